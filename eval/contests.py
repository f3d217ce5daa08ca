"""Let all available samplers write the same texts in turn, under one list of phrases, and time them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from antislop import AntiSlop
from eval.speed import measuring, rivals
from eval.writers import spell

PROBE = 16  # tokens of a text that tells who is much too slow
GENERATE = "generate"
EXACT = "antislop, exact"
TOKEN = "antislop, token rule"
BAD_WORDS = "bad_words_ids"
GRAMMAR = "xgrammar, excludes"
RIVAL = "backtrack_sampler"


class Contest(NamedTuple):
    """The laps of each contestant, one per round, and a sentence with the reason for each one that was left out."""

    laps: Mapping[str, list[measuring.Lap]]
    left_out: Mapping[str, str]


def make_contestant(name: str, subject: measuring.Subject, phrases: Sequence[str]) -> measuring.Contestant:
    """Return a contestant by its name; raise `Skipped` if it is not installed."""
    if name == GENERATE:
        return subject.write
    if name in (EXACT, TOKEN):
        sampler = AntiSlop(subject.tokenizer, list(phrases), method="exact" if name == EXACT else "token")
        return functools.partial(subject.write, sampler=sampler)
    if name == BAD_WORDS:
        spelled = spell(subject, phrases)

        def write(seed: int) -> measuring.Written:
            ids = subject.tokenizer(subject.prompt(seed), return_tensors="pt")["input_ids"]
            return subject.write_rows(ids, seed=seed, bad_words_ids=spelled)

        return write
    return rivals.xgrammar_excludes(subject, phrases) if name == GRAMMAR else rivals.backtrack_sampler(subject, phrases)


def hold_contest(
    subject: measuring.Subject,
    phrases: Sequence[str],
    names: Sequence[str],
    race: measuring.Race,
    *,
    patience: float,
    advance: Callable[[], None],
) -> Contest:
    """Race the contestants by name; leave out those that would take more than `patience` seconds per text.

    `generate`, if it is one of them, is never left out.
    """
    contestants: dict[str, measuring.Contestant] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            contestant = make_contestant(name, subject, phrases)
            seconds = probe(make_contestant(name, replace(subject, tokens=PROBE), phrases)) * subject.tokens / PROBE
            if seconds <= patience:  # what grows with the text is seen only with a whole one
                seconds = probe(contestant)
            if seconds <= patience or name == GENERATE:  # to which all others are compared
                contestants[name] = tell(contestant, advance)
            else:
                left_out[name] = (
                    f"{name}, {len(phrases):,} phrases: a text of {subject.tokens} tokens would take {seconds:,.1f} s "
                    f"or more; the limit is {patience:g} s."
                )
        except measuring.Skipped as reason:
            left_out[name] = str(reason)
    return Contest(race.run(contestants), left_out)


def probe(write: measuring.Contestant) -> float:
    return measuring.timed(functools.partial(write, 0), "wall")[0]


def tell(write: measuring.Contestant, advance: Callable[[], None]) -> measuring.Contestant:
    """Return a contestant that advances a progress bar."""

    def told(seed: int) -> measuring.Written:
        written = write(seed)
        advance()
        return written

    return told
