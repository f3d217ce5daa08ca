"""How often do phrases stay under a list of weights, beside their share of what the model writes without it?"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np

import antislop
from antislop import AntiSlop, BanList
from antislop.lists.bundled import held_out_bans
from eval import ROOT
from eval.command import Work, answer_question, describe_size
from eval.prompts import render
from eval.qualities import estimate
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import REQUESTS, Subject

SAMPLINGS: dict[str, dict[str, float]] = {
    "whole vocabulary, temperature 1": {},
    "min-p 0.05": {"min_p": 0.05},
    "temperature 0.7, top-p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "min-p 0.1, temperature 0.8": {"min_p": 0.1, "temperature": 0.8},
}
LISTS = {"bundled": antislop.default_bans, "held out": held_out_bans}
ROWS = 16
QUESTION = "Does a ban keep the share of its occurrences that its weight says?"
COLUMNS = (
    "list",
    "sampling",
    "without bans, per 1,000 words",
    "times each weight",
    "with the list",
    "ratio of the last two",
    "from",
    "to",
    "kept tokens per second, against none",
)
NOTES = (
    "The bans of a list whose weights are between 0 and 1, and all of their occurrences. Times each weight: each "
    "occurrence in the texts without bans counts as much as its ban's weight. The intervals are of 95 %, by bootstrap "
    "over the texts of both arms.",
    "A ratio above 1 is expected where the model tries again at a later place of the same text: that place has a coin "
    "of its own.",
    f"Kept tokens per second: CPU time, {ROWS} rows in flight, both arms after one another.",
)
LIMITS = (
    "A ratio of 1 says that phrases stay as often as their weights ask for, not that the weights are right: these were "
    "made from other models' texts."
)


class Size(NamedTuple):
    """The texts of each arm, and their tokens."""

    texts: int
    tokens: int


SIZES = {"full": Size(600, 200), "quick": Size(48, 100), "smallest": Size(4, 24), "chat, full": Size(200, 150)}


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("weights", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    notes, tables, verdicts, settings = list(NOTES), list[Table](), list[str](), dict[str, Any]()
    for subject, size in work.load_models(SIZES, notes):
        settings |= describe_size(subject, size)
        rows, advance = list[list[Cell]](), work.begin(subject.name, (1 + len(LISTS)) * len(SAMPLINGS))
        for sampling, options in SAMPLINGS.items():
            plain, speed = write(subject, size, BanList([]), seed=work.seed, **options)
            advance()
            for name, load in LISTS.items():
                bans = load().filter(lambda ban: 0 < ban.weight < 1)
                banned, own_speed = write(subject, size, bans, seed=work.seed, **options)
                rows.append([name, sampling, *compare(plain, banned, bans, seed=work.seed), own_speed / speed])
                advance()
        tables.append(Table(subject.name, COLUMNS, rows))
        ratio, name, sampling = max((row[5], row[0], row[1]) for row in rows if isinstance(row[5], float))
        verdicts.append(f"{subject.name}: the largest ratio is {ratio:.2f} ({name}, {sampling}).")
    return Answer("weights", QUESTION, tables, verdicts, LIMITS, notes, settings)


def write(subject: Subject, size: Size, bans: BanList, *, seed: int, **options: float) -> tuple[list[str], float]:
    """Return texts, and the kept tokens per second of CPU time."""
    openings = (ROOT / "antislop/data/openings.txt").read_text(encoding="utf-8").splitlines()
    openings = [render(subject.tokenizer, request) for request in REQUESTS] if subject.is_chat else openings
    prompts = [openings[number % len(openings)] for number in range(size.texts)]
    asked = {"do_sample": True, "max_new_tokens": size.tokens, "batch_size": ROWS, "seed": seed, **options}
    sampler, began = AntiSlop(subject.tokenizer, bans), time.process_time()
    texts = list(sampler.generate_many(subject.model, prompts, **asked))
    speed = sum(len(text.tokens) for text in texts) / (time.process_time() - began)
    return [text.text for text in texts], speed


def compare(plain: Sequence[str], banned: Sequence[str], bans: BanList, *, seed: int) -> list[Cell]:
    """Return occurrences per 1,000 words without bans, times their weights, and with bans; the ratio, its interval."""
    words, other_words = (np.array([len(text.split()) for text in texts], float) for texts in (plain, banned))
    found, other_found = ([bans.find(text) for text in texts] for texts in (plain, banned))
    asked = np.array([sum(match.ban.weight for match in own) for own in found])
    kept = np.array([len(own) for own in other_found], float)
    before = 1000 * sum(map(len, found)) / words.sum()
    ratio = estimate(_ratio, words, asked, other_words, kept, seed=seed)
    cells = [None if isnan(figure) else figure for figure in ratio]  # where nothing was found without bans
    return [before, 1000 * asked.sum() / words.sum(), 1000 * kept.sum() / other_words.sum(), *cells]


def _ratio(plain_words: Any, weighed: Any, words: Any, found: Any, axis: int = -1) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return (found.sum(axis) / words.sum(axis)) / (weighed.sum(axis) / plain_words.sum(axis))


if __name__ == "__main__":
    sys.exit(main())
