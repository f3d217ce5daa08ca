"""How often do phrases stay under a list of weights, beside their share of what the model writes without it?"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np

import antislop
from antislop import AntiSlop, Ban, BanList, Report
from antislop.lists.bundled import held_out_bans
from eval import ROOT
from eval.command import Work, answer_question, describe_size
from eval.prompts import render
from eval.qualities import count_leaks, count_words, estimate
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import REQUESTS, Subject

SAMPLINGS: dict[str, dict[str, float]] = {
    "whole vocabulary, temperature 1": {},
    "min-p 0.05": {"min_p": 0.05},
    "temperature 0.7, top-p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "min-p 0.1, temperature 0.8": {"min_p": 0.1, "temperature": 0.8},
}
LISTS = {"bundled": antislop.default_bans, "held out": held_out_bans}
CHAT_SAMPLINGS = [*SAMPLINGS][1:]  # few would sample a chat model from all of its vocabulary
ROWS, CHAT_ROWS = 16, 64
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
    "left, by place",
    "all bans, without and with the list",
    "kept tokens per second, against none",
)
NOTES = (
    "The bans of a list whose weights are between 0 and 1, and all of their occurrences. Times each weight: each "
    "occurrence in the texts without bans counts as much as its ban's weight. The intervals are of 95 %, by bootstrap "
    "over the texts of both arms. The bans of weight 0 apply to the texts of chat models, too, and not to the others.",
    "A ratio above 1 is expected where the model tries again at a later place of the same text: that place has a coin "
    "of its own. Left, by place: the occurrences that stayed, divided by the sum of the bans' weights over all places "
    "at which one was completed, first or later ones. It is about 1 in expectation.",
    "All bans: occurrences of the list per 1,000 words, those of weight 0 included.",
    f"Kept tokens per second: CPU time, {ROWS} rows in flight, or {CHAT_ROWS} of chat models, one arm after the other.",
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
        samplings = CHAT_SAMPLINGS if subject.is_chat else [*SAMPLINGS]
        rows, advance = list[list[Cell]](), work.begin(subject.name, (1 + len(LISTS)) * len(samplings))
        for sampling in samplings:
            plain = write(subject, size, BanList([]), sampling, seed=work.seed)
            advance()
            for name, load in LISTS.items():
                weighted = load().filter(lambda ban: 0 < ban.weight < 1)
                bans = load() if subject.is_chat else weighted
                banned = write(subject, size, bans, sampling, seed=work.seed)
                hits = [1000 * count_leaks(bans, own.texts) / count_words(own.texts) for own in (plain, banned)]
                found = [*compare(plain, banned, weighted, seed=work.seed), banned.by_place]
                rows.append([name, sampling, *found, "{:.2f}, {:.2f}".format(*hits), banned.speed / plain.speed])
                advance()
        tables.append(Table(subject.name, COLUMNS, rows))
        ratio, name, sampling = max((row[5], row[0], row[1]) for row in rows if isinstance(row[5], float))
        verdicts.append(f"{subject.name}: the largest ratio is {ratio:.2f} ({name}, {sampling}).")
    return Answer("weights", QUESTION, tables, verdicts, LIMITS, notes, settings)


class Written(NamedTuple):
    """Texts, the kept tokens per second of CPU time, and the share of weighted occurrences by place that stayed."""

    texts: list[str]
    speed: float
    by_place: float | None


def write(subject: Subject, size: Size, bans: BanList, sampling: str, *, seed: int) -> Written:
    openings = (ROOT / "antislop/data/openings.txt").read_text(encoding="utf-8").splitlines()
    openings = [render(subject.tokenizer, request) for request in REQUESTS] if subject.is_chat else openings
    prompts = [openings[number % len(openings)] for number in range(size.texts)]
    rows = CHAT_ROWS if subject.is_chat else ROWS
    asked = {"do_sample": True, "top_k": 0, "max_new_tokens": size.tokens, "batch_size": rows, "seed": seed}
    sampler, began = AntiSlop(subject.tokenizer, bans), time.process_time()
    texts = list(sampler.generate_many(subject.model, prompts, **asked, **SAMPLINGS[sampling]))
    speed = sum(len(text.tokens) for text in texts) / (time.process_time() - began)
    kept = sum(0 < event.violation.ban.weight < 1 for text in texts for event in text.report.let_through)
    expected = sum(weigh_places(text.report) for text in texts)
    return Written([text.text for text in texts], speed, kept / expected if expected else None)


def weigh_places(report: Report) -> float:
    """Return the sum of the weights of all bans that a text completed, each once at a place: after the same tokens."""
    places, lengths = list[tuple[int, int, Ban]](), list[int]()
    for _, length, violation in report.withdrawn:
        # What precedes a place is another text after each rewind to a shorter one.
        places.append((length, sum(other < length for other in lengths), violation.ban))
        lengths.append(length)
    stayed = [event.violation.ban for event in report.let_through]
    return sum(ban.weight for ban in [*(ban for *_, ban in dict.fromkeys(places)), *stayed])


def compare(plain: Written, banned: Written, bans: BanList, *, seed: int) -> list[Cell]:
    """Return occurrences per 1,000 words without bans, times their weights, and with bans; the ratio, its interval."""
    words, other_words = (np.array([len(text.split()) for text in own.texts], float) for own in (plain, banned))
    found, other_found = ([bans.find(text) for text in own.texts] for own in (plain, banned))
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
