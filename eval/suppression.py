"""Does a banned phrase get through at any length of the list, and how fast are the texts written?"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from antislop import BanList
from eval import qualities
from eval.command import Work, answer_question, describe_size
from eval.contests import BAD_WORDS, EXACT, GENERATE, GRAMMAR, RIVAL, TOKEN, Contest, hold_contest
from eval.phrase_lists import STUDIED, list_phrases
from eval.reporting import Answer, Cell, Table
from eval.speed import measuring
from eval.writers import Task, draw_prompts, write_plain

NAMES = (GENERATE, EXACT, TOKEN, BAD_WORDS, GRAMMAR, RIVAL)


class Size(NamedTuple):
    """The size of the race, the lengths of the lists, and the seconds that a text may take."""

    rounds: int
    texts: int
    tokens: int
    lists: tuple[int, ...]
    patience: float


SIZES = {
    "full": Size(3, 4, 150, (20, 200, 1000, 2000, 8000, 100_000), 15),
    "quick": Size(2, 2, 60, (20, 2000, 8000), 2),
    "smallest": Size(1, 1, 12, (20,), 10),
    "large, full": Size(1, 8, 60, (500, 8000, 100_000), 60),
}


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("suppression", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    """Measure all lists with all models that are there."""
    tables: list[Table] = []
    notes = list(NOTES)
    verdicts: list[str] = []
    settings: dict[str, Any] = {"clock": work.clock}
    for subject, size in work.load_models(SIZES, notes):
        settings |= describe_size(subject, size)
        rows, said, left_out = measure_model(subject, size, work)
        tables.append(Table(subject.name, COLUMNS, rows))
        verdicts += said
        notes += [f"{subject.name}: {why}" for why in left_out]
    tables.append(PUBLISHED)
    return Answer("suppression", QUESTION, tables, verdicts, LIMITS, list(dict.fromkeys(notes)), settings)


QUESTION = "How many banned phrases remain in the texts at each length of the list, and how fast are the texts written?"
COLUMNS = (
    "phrases",
    "method",
    "leaks per 1,000 words",
    "suppressed, %",
    "violations per 1,000 tokens",
    "tokens/s",
    "against generate",
)
PUBLISHED = Table(
    "Published, not measured here",
    ("what", "entries", "figure", "source"),
    [
        [
            "throughput lost by the published backtracking sampler",
            "1,000 to 8,000",
            "69 to 96 %",
            "reported of arXiv 2510.15061; not checked in it",
        ],
        ["banning tokens", "2,000", "becomes unusable", "arXiv 2510.15061, abstract"],
    ],
)
NOTES = (
    "Suppressed: the share of the leaks of plain generate that does not occur; a dash if plain has no leaks either.",
    "Leaks are found in the finished text, in any case and tokenization. bad_words_ids got each phrase in lower case "
    "and capitalized, with and without a space before; backtrack_sampler makes seven spellings of its own.",
    "Published token banning forbids single tokens, so the vocabulary becomes unusable; bad_words_ids, here, "
    "forbids whole sequences, and becomes slow instead.",
    "xgrammar, excludes: version 0.2.8's grammar of any text that contains none of the phrases, each in lower case and "
    "capitalized. A phrase counts within words, too, and the token that would complete a phrase is masked.",
    "The token rule is the published sampler's way to change probabilities, in this project's loop: its speed is not "
    "the published sampler's.",
    "Speeds are medians of the rounds' ratios, one text at a time, all in one process and in turn.",
    "A contestant that was too slow with one list is not tried with longer ones; its row has dashes.",
    "Longer lists add phrases that are rare in plain text; beyond the largest published list, phrases of random words.",
)
LIMITS = (
    "These are small models on a CPU, with which the time outside the forward pass is the largest share. The "
    "published figures are from other models and machines, and are given for orientation, not as a comparison. A "
    "leak is an occurrence by this project's own matching rule, with folded case and at word edges, which the "
    "other methods do not aim at: some of their leaks are spellings that were not in their list. The number of "
    "words limits the meaning of a zero: with n words and no leak, the true rate is probably below 3 in n."
)


def measure_model(subject: measuring.Subject, size: Size, work: Work) -> tuple[list[list[Cell]], list[str], list[str]]:
    """Return the rows of a model, its verdicts, and a reason for each contestant that was left out."""
    race = measuring.Race(size.rounds, size.texts, work.clock, warm_up=1)
    runs = len(size.lists) * len(NAMES) * (size.rounds * size.texts + race.warm_up)
    advance = work.begin(subject.name, runs)
    task = Task(subject, draw_prompts(subject, STUDIED, work.seed), work.seed + 1, lambda: None)
    phrases = list_phrases(subject, qualities.decode(subject, write_plain(task).texts), max(size.lists))
    rows: list[list[Cell]] = []
    left_out: dict[str, str] = {}
    for count in size.lists:
        names = [name for name in NAMES if name not in left_out]  # whom a shorter list was too long already
        contest = hold_contest(subject, phrases[:count], names, race, patience=size.patience, advance=advance)
        rows += tabulate(subject, BanList(phrases[:count]), contest)
        left_out |= contest.left_out
    ours = [row for row in rows if row[1] == EXACT]
    leaks = [(row[0], row[2]) for row in ours if row[2]]
    verdict = f"{subject.name}: no leak with {EXACT}, at {len(ours) - len(leaks)} of {len(ours)} lengths"
    more = "; leaks per 1,000 words at " + ", ".join(f"{n}: {leak:.2g}" for n, leak in leaks) if leaks else ""
    return rows, [f"{verdict} ({'missed' if leaks else 'met'}){more}."], list(left_out.values())


def tabulate(subject: measuring.Subject, bans: BanList, contest: Contest) -> list[list[Cell]]:
    """Return a row for each contestant, including those that were left out."""
    plain = contest.laps[GENERATE]
    leaks = {name: find_leaks(subject, bans, laps) for name, laps in contest.laps.items()}
    return [
        [f"{len(bans):,}", name, *describe(name, contest.laps, leaks), *describe_speed(contest.laps[name], plain)]
        if name in contest.laps
        else [f"{len(bans):,}", name, *[None] * (len(COLUMNS) - 2)]
        for name in NAMES
    ]


def find_leaks(subject: measuring.Subject, bans: BanList, laps: Sequence[measuring.Lap]) -> tuple[int, int]:
    """Return the number of bans that occur in the texts, and the number of words."""
    texts = qualities.decode(subject, [tokens for lap in laps for tokens in lap.texts])
    return qualities.count_leaks(bans, texts), qualities.count_words(texts)


def describe(
    name: str, laps: Mapping[str, Sequence[measuring.Lap]], leaks: Mapping[str, tuple[int, int]]
) -> list[Cell]:
    found, words = leaks[name]
    plain, plain_words = leaks[GENERATE]
    share = 100 * (1 - found / max(1, words) / (plain / plain_words)) if plain else None
    violations = 1000 * sum(lap.violations for lap in laps[name]) / sum(lap.kept for lap in laps[name])
    tells = name in (EXACT, TOKEN, RIVAL)
    return [1000 * found / max(1, words), share, violations if tells else None]


def describe_speed(own: Sequence[measuring.Lap], plain: Sequence[measuring.Lap]) -> list[Cell]:
    ratios = measuring.compare(own, plain)
    ratio = f"{statistics.median(ratios):.3g}× ({min(ratios):.3g} … {max(ratios):.3g})"
    return [statistics.median(lap.speed for lap in own), ratio]


if __name__ == "__main__":
    sys.exit(main())
