"""How do the alternatives compare? The same model, prompts and list for all: leaks, speed, and qualities of texts."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from antislop import BanList
from eval import qualities
from eval.command import Work, answer_question, describe_size
from eval.contests import BAD_WORDS, EXACT, GENERATE, GRAMMAR, RIVAL, TOKEN, Contest, hold_contest
from eval.phrase_lists import STUDIED, list_phrases
from eval.qualities import estimate, mean_difference
from eval.reporting import Answer, Cell, Table, show
from eval.speed import measuring
from eval.suppression import NAMES, describe_speed
from eval.writers import Task, draw_prompts, write_plain


class Size(NamedTuple):
    """The size of the race, the length of the list, and the seconds that a text may take."""

    rounds: int
    texts: int
    tokens: int
    phrases: int
    patience: float


SIZES = {
    "full": Size(3, 10, 150, 500, 60),
    "quick": Size(2, 4, 60, 500, 10),
    "smallest": Size(1, 2, 12, 20, 10),
    "large, full": Size(3, 6, 60, 500, 60),
    "large, quick": Size(1, 4, 40, 500, 60),
    "large, smallest": Size(1, 2, 4, 20, 60),
}
BARS = {
    GENERATE: ("without bans", "tab:gray"),
    BAD_WORDS: ("bad_words_ids", "tab:orange"),
    GRAMMAR: ("xgrammar, excludes", "tab:purple"),
    TOKEN: ("first-token rule", "tab:olive"),
    EXACT: ("antislop", "tab:blue"),
}
"""What a contestant is called in the picture, and its color."""


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("comparison", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    tables: list[Table] = []
    notes = list(NOTES)
    verdicts: list[str] = []
    settings: dict[str, Any] = {"clock": work.clock}
    for subject, size in work.load_models(SIZES, notes):
        contest, bans = race_all(subject, size, work)
        rows = tabulate(subject, bans, contest, work.seed)
        tables.append(Table(f"{subject.name}, {len(bans):,} phrases", COLUMNS, rows))
        verdicts.append(judge(subject.name, rows))
        notes += [f"{subject.name}: {why}" for why in contest.left_out.values()]
        settings |= describe_size(subject, size)
    work.out.mkdir(parents=True, exist_ok=True)
    draw_plot(tables, work.out / "comparison.svg")
    notes = list(dict.fromkeys(notes))
    return Answer("comparison", QUESTION, tables, verdicts, LIMITS, notes, settings, "comparison.svg")


QUESTION = "How do the available samplers compare on the same model, prompts and list?"
COLUMNS = (
    "sampler",
    "leaks per 1,000 words",
    "tokens/s",
    "against generate",
    "passes per token",
    "excess NLL, nats per token",
    "distinct-2",
    "distinct-3",
    "broken texts",
)
NOTES = (
    "backtrack_sampler is version 3.2.1 from PyPI, with its defaults except for the sampling settings, which are "
    "the same for all: temperature 1, no truncation; for chat models 0.7 and top-p 0.95. The token rule is the way in "
    "which published samplers change probabilities.",
    "xgrammar, excludes: version 0.2.8's grammar of any text that contains none of the phrases, each in lower case and "
    "capitalized. A phrase counts within words, too, and the token that would complete a phrase is masked.",
    "Passes per token: forward passes per kept token. Excess NLL: as in fidelity.md, paired by prompt and seed. "
    "Broken texts: texts with a replacement character, or of a wrong length.",
    "The first phrases of the list, 20 or more, are frequent in plain text, the others rare.",
)
LIMITS = (
    "This is one list, one text at a time, on a CPU, and small models. The number of texts is too small to "
    "distinguish the samplers by their excess, whose intervals overlap: fidelity.md has more. The texts continue "
    "four prompts, each with many seeds, so the intervals apply to these prompts only. backtrack_sampler matches "
    "the tokens of seven spellings and bad_words_ids of four, so their leaks in other spellings or tokenizations "
    "are limits of their way of matching, not errors in their code. Samplers that are built into other engines "
    "were not run."
)


def race_all(subject: measuring.Subject, size: Size, work: Work) -> tuple[Contest, BanList]:
    race = measuring.Race(size.rounds, size.texts, work.clock, warm_up=1)
    advance = work.begin(subject.name, len(NAMES) * (size.rounds * size.texts + race.warm_up))
    task = Task(subject, draw_prompts(subject, STUDIED, work.seed), work.seed + 1, lambda: None)
    phrases = list_phrases(subject, qualities.decode(subject, write_plain(task).texts), size.phrases)
    return hold_contest(subject, phrases, NAMES, race, patience=size.patience, advance=advance), BanList(phrases)


def tabulate(subject: measuring.Subject, bans: BanList, contest: Contest, seed: int) -> list[list[Cell]]:
    """Return a row for each contestant, including those that were left out."""
    plain = contest.laps[GENERATE]
    seeds = range(1000, 1000 + sum(len(lap.texts) for lap in plain))
    prompts = [subject.tokenizer(subject.prompt(each))["input_ids"] for each in seeds]
    base = qualities.read_surprise(subject, prompts, join(plain)).nll
    rows: list[list[Cell]] = []
    for name in NAMES:
        if name not in contest.laps:
            rows.append([name, *[None] * (len(COLUMNS) - 1)])
            continue
        laps, tokens = contest.laps[name], join(contest.laps[name])
        texts = qualities.decode(subject, tokens)
        nll = qualities.read_surprise(subject, prompts, tokens).nll
        rows.append(
            [
                name,
                1000 * qualities.count_leaks(bans, texts) / max(1, qualities.count_words(texts)),
                *describe_speed(laps, plain),
                sum(lap.forward_passes for lap in laps) / sum(lap.kept for lap in laps),
                None if name == GENERATE else str(estimate(mean_difference, nll, base, seed=seed)),
                qualities.measure_distinct(texts, 2),
                qualities.measure_distinct(texts, 3),
                qualities.count_broken(texts, tokens, subject.tokens),
            ]
        )
    return rows


def join(laps: Sequence[measuring.Lap]) -> list[list[int]]:
    return [tokens for lap in laps for tokens in lap.texts]


def judge(model: str, rows: Sequence[Sequence[Cell]]) -> str:
    by_name = {row[0]: row for row in rows}
    ours, theirs = by_name[EXACT], by_name[RIVAL]
    if not isinstance(ours[2], float) or not isinstance(theirs[2], float):
        return f"{model}: antislop leaks {ours[1]:.3g} per 1,000 words; {RIVAL} was not measured."
    return (
        f"{model}: antislop leaks {ours[1]:.3g} and {RIVAL} {theirs[1]:.3g} per 1,000 words; antislop is "
        f"{ours[2] / theirs[2]:.3g} times as fast."
    )


def draw_plot(tables: Sequence[Table], path: Path) -> None:
    """Draw phrases, speed and loss of each sampler under the last table's model, as bars, without intervals."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "antislop"  # the same figures, the same file
    import matplotlib.pyplot as plt

    if not tables:
        return
    rows = {row[0]: row for row in tables[-1].rows}
    names = [name for name in reversed(BARS) if rows[name][1] is not None]
    titles = {1: "banned phrases per 1,000 words", 3: "speed against generate", 5: "nats lost per token"}
    figure, panels = plt.subplots(1, 3, figsize=(8, 2.4), sharey=True, layout="constrained")
    figure.suptitle(tables[-1].title, fontsize=10)
    for panel, (column, title) in zip(panels, titles.items(), strict=True):
        cells = [re.findall(r"-?[\d.]+", show(rows[name][column])) or ["0"] for name in names]
        lengths = [float(value) for value, *_ in cells]
        bars = panel.barh([BARS[name][0] for name in names], lengths, color=[BARS[name][1] for name in names])
        panel.bar_label(bars, [value for value, *_ in cells], padding=3)
        panel.set_title(title, fontsize=9)
        panel.margins(x=0.2)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.tick_params(bottom=False, labelbottom=False, left=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
