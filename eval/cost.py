"""What does the sampler cost against plain `generate`, by the length of the list and by how often it is violated?"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from eval import qualities
from eval.command import Work, answer_question
from eval.contests import tell
from eval.phrase_lists import STUDIED
from eval.reporting import Answer, Cell, Table
from eval.speed import cases, measuring, phrases
from eval.writers import Task, draw_prompts, write_plain

TRIES = 3  # to make a list that is violated as often as is asked for
GOAL = 0.95  # of generate's speed
NEVER = "never violated"
OFTEN = "often violated"


class Size(NamedTuple):
    """The size of the race, the lengths of lists without a violation, and the violations per 1,000 tokens."""

    rounds: int
    texts: int
    tokens: int
    lists: tuple[int, ...]
    rates: tuple[int, ...]


SIZES = {
    "full": Size(5, 4, 200, (0, 20, 500, 1000, 8000, 100_000), (10, 35, 80)),
    "quick": Size(3, 2, 60, (0, 500, 8000, 100_000), (10, 35, 80)),
    "smallest": Size(1, 1, 12, (0, 20), (35,)),
}


class Point(NamedTuple):
    """One list against `generate`: its place in the plot, and the ratios of its laps."""

    kind: str
    place: float
    ratios: Sequence[float]
    row: list[Cell]


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("cost", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    size = SIZES[work.setting]
    points: dict[str, list[Point]] = {}
    notes = list(NOTES)
    for subject in work.load_models(size.tokens, notes):
        points[subject.name] = measure_model(subject, size, work)
    work.out.mkdir(parents=True, exist_ok=True)
    draw_plot(points, work.out / "cost.svg")
    tables = [Table(name, COLUMNS, [point.row for point in own]) for name, own in points.items()]
    settings = work.describe_race(size)
    return Answer(
        "cost", QUESTION, tables, [judge(*pair) for pair in points.items()], LIMITS, notes, settings, "cost.svg"
    )


QUESTION = "How many kept tokens per second does the sampler write, as a ratio to plain generate in the same process?"
COLUMNS = (
    "list",
    "phrases",
    "violations per 1,000 tokens",
    "tokens/s",
    "against generate",
    "min … max",
    "passes per kept token",
    "matcher, µs per token",
)
NOTES = (
    "Ratios are medians over the rounds. In each round all contestants write the same texts from the same seeds "
    "in turn; generate also runs against itself, which shows the noise.",
    "Never violated: phrases of two to four words that occur in no plain text, though nearly every word of the "
    "texts begins some phrase. Often violated: frequent phrases of the model, as many as are needed for about the "
    "rate.",
    "One text at a time, temperature 1 without truncation, float32 on the CPU, one thread.",
)
LIMITS = (
    "With tiny models on a CPU, the time outside the forward pass is a larger share than with any other model; "
    "nothing here applies to a GPU. The cost of a violation depends on the number of tokens that it withdraws, "
    "and so on the length of the phrases. Batches, other kinds of bans and other cache layouts are in "
    "eval/speed/README.md. On a machine that does other work, a ratio varies by more than the differences of "
    "interest: see generate against itself."
)


def measure_model(subject: measuring.Subject, size: Size, work: Work) -> list[Point]:
    """Race lists of all lengths, and of all rates, against `generate`."""
    race = measuring.Race(size.rounds, size.texts, work.clock, warm_up=2)
    bench = cases.Bench(subject, race)
    studied = bench.studied + bench.raced
    words = phrases.collect_words(studied, measuring.ASSETS)
    absent = phrases.invent(max(size.lists), words, absent_from=studied)
    lists: list[tuple[str, float, list[str]]] = [(NEVER, count, absent[:count]) for count in size.lists]
    lists += [(OFTEN, rate, choose_violated(bench, rate, work.seed)) for rate in size.rates]
    contestants = {f"{kind} {place}": bench.contestant(each) for kind, place, each in lists}
    contestants = {"generate": subject.write, "again": subject.write, **contestants}
    advance = work.begin(subject.name, len(contestants) * (race.warm_up + size.rounds * size.texts))
    laps = race.run({name: tell(write, advance) for name, write in contestants.items()})
    points = [make_point("generate against itself", 0, 0, laps["again"], laps["generate"])]
    for kind, place, each in lists:
        points.append(make_point(kind, place, len(each), laps[f"{kind} {place}"], laps["generate"]))
    return points


def choose_violated(bench: cases.Bench, rate: float, seed: int) -> list[str]:
    """Return phrases that are violated about `rate` times in the timed texts, found by repeated trials."""
    prompts = draw_prompts(bench.subject, STUDIED, seed)
    texts = write_plain(Task(bench.subject, prompts, seed, lambda: None)).texts
    tokens = sum(map(len, texts))
    ranked = phrases.rank_frequent(qualities.decode(bench.subject, texts), most=max(2, int(rate * tokens / 10_000)))
    aim, tried = rate, list[tuple[float, list[str]]]()
    for _ in range(TRIES):
        chosen = phrases.choose_frequent(ranked, aim * tokens / 1000)
        written = [bench.contestant(chosen)(each) for each in bench.race.seeds]
        measured = 1000 * sum(each.violations for each in written) / sum(len(each.tokens) for each in written)
        tried.append((abs(measured - rate), chosen))
        aim *= min(2.0, max(0.5, rate / measured)) if measured else 2.0
    return min(tried)[1]


def make_point(
    kind: str, place: float, count: int, own: Sequence[measuring.Lap], plain: Sequence[measuring.Lap]
) -> Point:
    ratios, figures = measuring.compare(own, plain), measuring.figures(own)
    row: list[Cell] = [
        kind,
        count,
        figures["violations_per_1000"],
        figures["tokens_per_second"],
        f"{statistics.median(ratios):.3f}×",
        f"{min(ratios):.3f} … {max(ratios):.3f}",
        figures["passes_per_token"],
        figures["matcher_us_per_token"],
    ]
    return Point(kind, figures["violations_per_1000"] if kind == OFTEN else place, ratios, row)


def judge(model: str, points: Sequence[Point]) -> str:
    slow = [point for point in points if statistics.median(point.ratios) < GOAL and point.kind in (NEVER, OFTEN)]
    if not slow:
        return f"{model}: no list is slower than {GOAL}× generate: met."
    named = ", ".join(f"{point.row[1]:,} phrases {point.row[4]} at {point.row[2]:.0f} violations" for point in slow)
    noise = f"generate against itself: {points[0].row[4]}, {points[0].row[5]}"
    busy = ", so the noise alone misses it, too" if min(points[0].ratios) < GOAL else ""
    return f"{model}: at least {GOAL}× generate is missed by {named} ({noise}{busy})."


def draw_plot(points: dict[str, list[Point]], path: Path) -> None:
    """Plot the ratios against the length of the list, and against the violations."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "antislop"  # the same figures, the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for model, own in points.items():
        for panel, kind in zip(axes, (NEVER, OFTEN), strict=True):
            shown = [point for point in own if point.kind == kind]
            middle = [statistics.median(point.ratios) for point in shown]
            spread = [
                [mid - min(point.ratios) for mid, point in zip(middle, shown, strict=True)],
                [max(point.ratios) - mid for mid, point in zip(middle, shown, strict=True)],
            ]
            panel.errorbar([point.place for point in shown], middle, yerr=spread, marker="o", capsize=3, label=model)
    for panel, label in zip(axes, ("phrases in the list, none violated", "violations per 1,000 tokens"), strict=True):
        panel.axhline(1.0, color="gray", linewidth=0.8)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_xscale("symlog", linthresh=10)
    axes[0].set_xlim(-2, 200_000)
    axes[0].set_ylabel("tokens/s against generate")
    axes[0].set_ylim(0, None)
    axes[1].set_xlim(0, None)
    axes[1].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
