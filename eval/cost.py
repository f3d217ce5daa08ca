"""What does the sampler cost against plain `generate`, by the length of the list and by how often it is violated?"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import antislop
from antislop import AntiSlop, BanList
from eval import ROOT, qualities
from eval.command import Work, answer_question, describe_size
from eval.contests import tell
from eval.phrase_lists import STUDIED
from eval.reporting import Answer, Cell, Table
from eval.speed import measuring, phrases
from eval.writers import Task, draw_prompts, write_plain

BATCHED = 8  # rows up to which all rounds are run; batches with more rows run fewer
TRIES = 3  # to make a list that is violated as often as is asked for
GOAL = 0.95  # of generate's speed, with tiny models
FREE = 0.99  # of generate's speed with large models, where a list hardly matches
DENSE = {10: (0.96, 0.93), 30: (0.90, 0.85)}  # the same by violations per 1,000 tokens: with one row, with more
CHAT = (0.95, 0.92)  # the same for the bundled lists, which match what chat models overuse
NEVER = "never violated"
OFTEN = "often violated"
BUNDLED = "bundled list"
RULES = "bundled list, constructions, loops"
OWN = "the model's own list"


class Size(NamedTuple):
    """The size of the race, the lengths of lists without a violation, the violations per 1,000 tokens, and the rows."""

    rounds: int
    texts: int
    tokens: int
    lists: tuple[int, ...]
    rates: tuple[int, ...]
    rows: tuple[int, ...] = (1,)


SIZES = {
    "full": Size(5, 4, 200, (0, 20, 500, 1000, 8000, 100_000), (10, 35, 80)),
    "quick": Size(3, 2, 60, (0, 500, 8000, 100_000), (10, 35, 80)),
    "smallest": Size(1, 1, 12, (0, 20), (35,)),
    "large, full": Size(6, 2, 40, (0, 10_000, 1_000_000), tuple(DENSE), (1, 8, 16)),
    "chat, full": Size(5, 2, 40, (0, 10_000), tuple(DENSE), (1, 8, 16)),
    "large, quick": Size(3, 1, 40, (0, 10_000), tuple(DENSE), (1, 8)),
    "large, smallest": Size(1, 1, 4, (0, 20), (10,)),
}


class Point(NamedTuple):
    """One list against `generate`: its place in the plot, and the ratios of its laps."""

    kind: str
    place: float
    rows: int
    ratios: Sequence[float]
    goal: float | None
    row: list[Cell]


class Listed(NamedTuple):
    """A list of bans.

    place: its length if no text violates it, or the violations per 1,000 tokens that it is chosen for; otherwise 0.
    """

    kind: str
    place: int
    bans: BanList


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("cost", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    points: dict[str, list[Point]] = {}
    notes = list(NOTES)
    settings: dict[str, Any] = {"clock": work.clock}
    for subject, size in work.load_models(SIZES, notes):
        points[subject.name] = measure_model(subject, size, work)
        settings |= describe_size(subject, size)
    work.out.mkdir(parents=True, exist_ok=True)
    draw_plot(points, work.out / "cost.svg")
    tables = [Table(name, COLUMNS, [point.row for point in own]) for name, own in points.items()]
    return Answer(
        "cost", QUESTION, tables, [judge(*pair) for pair in points.items()], LIMITS, notes, settings, "cost.svg"
    )


QUESTION = "How many kept tokens per second does the sampler write, as a ratio to plain generate in the same process?"
COLUMNS = (
    "rows",
    "list",
    "bans",
    "violations per 1,000 tokens",
    "tokens/s",
    "against generate",
    "min … max",
    "goal",
    "floor",
    "passes per kept token",
    "matcher, µs per token",
)
NOTES = (
    "Ratios are medians over the rounds. In each round all contestants write the same texts from the same seeds "
    "in turn; generate also runs against itself, which shows the noise.",
    "Never violated: phrases of two to four words that occur in no plain text, though nearly every word of the "
    "texts begins some phrase. Often violated: frequent phrases of the model, as many as are needed for about the "
    "rate. The bundled list, and the list that `eval.habits` made from what the model overuses, are as they are.",
    "Floor: the forward passes of generate, of a batch counted once, by those of the sampler. It is the ratio of a "
    "sampler that takes no time of its own: tokens are withdrawn, and the rows of a batch wait for its last one.",
    "Temperature 1 without truncation (chat models: 0.7, top-p 0.95), on the CPU, one thread; rows: texts of a batch.",
)
LIMITS = (
    "With tiny models on a CPU, the time outside the forward pass is a larger share than with any other model; "
    "nothing here applies to a GPU. The cost of a violation depends on the number of tokens that it withdraws, "
    "and so on the length of the phrases. Batches, other kinds of bans and other cache layouts are in "
    "eval/speed/README.md. On a machine that does other work, a ratio varies by more than the differences of "
    "interest: see generate against itself."
)


def measure_model(subject: measuring.Subject, size: Size, work: Work) -> list[Point]:
    """Race all lists against `generate`, with one text at a time and in batches."""
    lists = make_lists(subject, size, work)
    samplers = [AntiSlop(subject.tokenizer, each.bans) for each in lists]
    points = []
    for rows in size.rows:
        rounds, texts = (size.rounds, size.texts) if rows == 1 else (max(1, size.rounds * BATCHED // rows), 1)
        race = measuring.Race(min(rounds, size.rounds), texts, work.clock, warm_up=1)
        plain = partial(subject.write_batch, rows=rows)
        contestants: dict[str, measuring.Contestant] = {"generate": plain, "again": plain}
        contestants |= {str(number): partial(plain, sampler=sampler) for number, sampler in enumerate(samplers)}
        advance = work.begin(
            f"{subject.name}, {rows} rows", len(contestants) * (race.warm_up + race.rounds * race.texts)
        )
        laps = race.run({name: tell(subject.follow(write, work.clock), advance) for name, write in contestants.items()})
        noise = Listed("generate against itself", 0, BanList([]))
        for number, each in [("again", noise), *((str(number), each) for number, each in enumerate(lists))]:
            goal = find_goal(each, rows, subject) if each is not noise else None
            points.append(make_point(each, rows, goal, laps[number], laps["generate"]))
    return points


def make_lists(subject: measuring.Subject, size: Size, work: Work) -> list[Listed]:
    """Return lists that the model never violates, lists that it often violates, the bundled lists, and its own list."""
    prompts = draw_prompts(subject, STUDIED, work.seed)
    texts = write_plain(Task(subject, prompts, work.seed, lambda: None)).texts
    studied = qualities.decode(subject, texts)
    absent = phrases.invent(max(size.lists), phrases.collect_words(studied, measuring.ASSETS), absent_from=studied)
    lists = [Listed(NEVER, count, BanList(absent[:count])) for count in size.lists]
    lists += [Listed(OFTEN, rate, choose_violated(subject, studied, rate, work.seed)) for rate in size.rates]
    every = antislop.default_bans() | antislop.constructions() | antislop.loops()
    lists += [Listed(BUNDLED, 0, antislop.default_bans()), Listed(RULES, 0, every)]
    own = ROOT / "eval/results" / subject.name / f"bans-{subject.name}.txt"  # by eval.habits
    return [*lists, Listed(OWN, 0, BanList.load(own))] if own.exists() else lists


def choose_violated(subject: measuring.Subject, studied: Sequence[str], rate: int, seed: int) -> BanList:
    """Return phrases that are violated about `rate` times per 1,000 tokens, found by repeated trials in batches."""
    tokens = len(studied) * subject.tokens
    ranked = phrases.rank_frequent(studied, most=max(2, int(rate * tokens / 10_000)))
    aim, tried = float(rate), list[tuple[float, list[str]]]()
    for _ in range(TRIES):
        chosen = phrases.choose_frequent(ranked, aim * tokens / 1000)
        written = subject.write_batch(seed, rows=STUDIED, sampler=AntiSlop(subject.tokenizer, chosen))
        measured = 1000 * written.violations / len(written.tokens)
        tried.append((abs(measured - rate), chosen))
        aim *= min(2.0, max(0.5, rate / measured)) if measured else 2.0
    return BanList(min(tried)[1])


def find_goal(each: Listed, rows: int, subject: measuring.Subject) -> float | None:
    """Return the smallest ratio that meets the goal, or None for a list that has no goal."""
    if not subject.is_large:
        return GOAL if each.kind in (NEVER, OFTEN) else None
    if each.kind == OFTEN:
        return DENSE[each.place][rows > 1]
    if subject.is_chat and each.kind in (BUNDLED, RULES):
        return CHAT[rows > 1]
    return None if each.kind == OWN else FREE


def make_point(
    each: Listed, rows: int, goal: float | None, own: Sequence[measuring.Lap], plain: Sequence[measuring.Lap]
) -> Point:
    ratios, figures = measuring.compare(own, plain), measuring.figures(own)
    floor = sum(lap.calls for lap in plain) / sum(lap.calls for lap in own)
    row: list[Cell] = [
        rows,
        each.kind,
        len(each.bans),
        figures["violations_per_1000"],
        figures["tokens_per_second"],
        f"{statistics.median(ratios):.3f}×",
        f"{min(ratios):.3f} … {max(ratios):.3f}",
        goal,
        f"{floor:.3f}×",
        figures["passes_per_token"],
        figures["matcher_us_per_token"],
    ]
    place = figures["violations_per_1000"] if each.kind == OFTEN else each.place
    return Point(each.kind, place, rows, ratios, goal, row)


def judge(model: str, points: Sequence[Point]) -> str:
    slow = [point for point in points if point.goal and statistics.median(point.ratios) < point.goal]
    if not slow:
        return f"{model}: no list is slower than its goal: met."
    named = "; ".join(
        f"{point.row[0]} rows, {point.kind}, {point.row[2]:,} bans, {point.row[3]:.0f} violations per 1,000: "
        f"{point.row[5]} ({point.row[6]}; goal {point.goal})"
        for point in slow
    )
    noise = "; ".join(f"{point.row[5]}, {point.row[6]}" for point in points if point.goal is None and not point.row[2])
    return f"{model}: the goal is missed by {named}. Generate against itself: {noise}."


def draw_plot(points: dict[str, list[Point]], path: Path) -> None:
    """Plot the ratios against the length of the list, and against the violations."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "antislop"  # the same figures, the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for model, own in points.items():
        for panel, kind in zip(axes, (NEVER, OFTEN), strict=True):
            shown = [point for point in own if point.kind == kind and point.rows == 1]
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
    axes[0].set_xlim(-2, 2_000_000)
    axes[0].set_ylabel("tokens/s against generate")
    axes[0].set_ylim(0, None)
    axes[1].set_xlim(0, None)
    axes[1].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
