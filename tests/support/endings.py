"""Endings of bans over vocabularies of a few strings, and their naive twin: plain rejection with a count of tries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy.stats import chi2_contingency

from antislop.core.bans.bans import Ban
from tests.support.ban_cases import LETTERS, SPACED, anywhere
from tests.support.oracles import completed
from tests.support.toys import PROMPT, Markov, Words

FORCED = {"d": (3,), "bd": (1, 3), "d d ": (3, 3)}
"""Texts that the bans below force, and their tokens."""
Ended = tuple[tuple[int, ...], str]
"""The tokens of a text, and the reason for its end."""


def ending(phrase: str, then: Any, *, tries: int = 1, force: str = "", weight: float = 0.0) -> Ban:
    return replace(anywhere(phrase, weight), then=then, tries=tries, force=force)


def loop(then: Any, *, tries: int = 1, force: str = "") -> Ban:
    return Ban.loop(2, 2, 4, 100, then=then, tries=tries, force=force)


def ways(then: Any, *, tries: int = 1, force: str = "", weight: float = 0.0) -> Ban:
    """A ban with several ways to be completed from one place: a phrase has one, which is drawn once only."""
    return Ban.regex("a.[bc]", then=then, tries=tries, force=force, weight=weight)


CASES: dict[str, tuple[Words, list[Ban]]] = {
    "stop": (LETTERS, [ways("stop"), anywhere("ca")]),
    "stop at once": (LETTERS, [ending("ab", "stop", tries=0), anywhere("c")]),
    "stop by one of two": (LETTERS, [ways("stop", weight=0.2), ending("dd", "stop", tries=0, weight=0.5)]),
    "concede": (LETTERS, [ways("concede"), anywhere("bd")]),
    "force": (LETTERS, [ways("force", force="d"), anywhere("bc")]),
    "force what may end a ban": (LETTERS, [ways("force", tries=0, force="bd"), anywhere("db", 0.3), anywhere("abd")]),
    "force after each loop": (SPACED, [loop("force", tries=0, force="d d ")]),
    "stop after a loop": (SPACED, [loop("stop", tries=1)]),
}


Find = Callable[[tuple[int, ...]], Sequence[tuple[int, int]]]


def finder(model: Markov, words: Words, bans: Sequence[Ban]) -> Find:
    """Return a function that finds the bans which the last token of a path completes, by (start, index)."""
    return cache(lambda path: completed(path, words, bans, is_final=model.ends(path)))


def write_naively(
    model: Markov, bans: Sequence[Ban], find: Find, draw: Callable[..., int], coin: Callable[[], float]
) -> Ended:
    """Plain rejection that counts the tries at each place; what was rejected before is drawn again for free.

    draw: draws a token after others; it may leave out the tokens that led from there into a ban.
    """
    tokens, floor, known, tries = tuple[int, ...](), 0, set[Any](), Counter[Any]()
    free = dict[Any, bool]()  # by place and ban: whether its weight lets the ban stay there
    rejected = defaultdict[tuple[int, ...], set[int]](set)
    while not (tokens and model.ends(tokens)):
        path = (*tokens, draw(tokens, rejected[tokens]))
        for start, number in find(path):
            ban, place = bans[number], path[: max(start, floor)]
            if (place, number) not in free:
                free[place, number] = coin() < ban.weight
            if free[place, number]:
                continue
            is_new = (path, number) not in known
            siblings = ((*tokens, token) for token in range(model.size))
            known |= {
                (other, each)
                for other in siblings
                if not any(bans[each].then and each != number for _, each in find(other))
                for _, each in find(other)
            }
            rejected[place].add(path[len(place)])
            tries[place, number] += is_new
            if not (is_new and ban.then) or tries[place, number] <= ban.tries:
                tokens = place
                break
            if ban.then == "concede":
                continue
            reason = "repetition" if ban.pattern.is_repetition else "exhausted"
            if ban.then == "stop" or 0 < floor == len(place):
                return place, reason
            tokens = place
            for token in FORCED[ban.force]:
                tokens = (*tokens, token)
                if find(tokens):
                    return place, reason
                if model.ends(tokens):
                    break
            floor = len(tokens)
            break
        else:
            known |= {(path, number) for _, number in find(path)}
            tokens = path
    return tokens, "done"


def count_naively(model: Markov, words: Words, bans: Sequence[Ban], *, times: int) -> Counter[Ended]:
    """Sample texts by the twin."""
    generator, find = np.random.default_rng(0), finder(model, words, bans)
    sums = cache(lambda tokens: np.cumsum(model.probs(PROMPT, tokens).double().numpy()))

    def draw(tokens: tuple[int, ...], _: object) -> int:
        return int(np.searchsorted(sums(tokens), generator.random() * sums(tokens)[-1]))

    return Counter(write_naively(model, bans, find, draw, generator.random) for _ in range(times))


def compare(drawn: Counter[Any], other: Counter[Any]) -> float:
    """Return the p-value of two counts; texts that are rare in both are left out."""
    often = [text for text in drawn | other if drawn[text] + other[text] >= 10]
    return float(chi2_contingency([[each[text] for text in often] for each in (drawn, other)]).pvalue)
