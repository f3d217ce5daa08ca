"""How a text ends: in a loop or not, by a measure of its own and by `antislop.loops()`, and how much it repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

import antislop
from antislop import AntiSlop
from eval.qualities import measure_distinct
from eval.speed.measuring import Subject

LAST = 300
"""Characters at the end of a text that a loop reaches, and that are compared with those a passage earlier."""
LONGEST = 1000
"""Characters of a passage."""
ALIKE = 0.9
"""The share of characters that equal those a passage earlier from which on a text ends in a loop."""
LOOPED = 5 * LONGEST
"""Characters within which `antislop.loops()` finds a loop, however long its passage."""
HELD = ("texts", "median", "99 of 100", "mean")
"""What `describe_held` returns, after a title."""


class Ending(NamedTuple):
    """Whether a text ends in a loop, by two measures."""

    is_copied: bool
    is_loop: bool


def find_ending(text: str) -> Ending:
    return Ending(ends_in_copies(text), ends_in_loop(text))


def ends_in_copies(text: str) -> bool:
    """Return whether a text's end consists of copies of a passage, without any rule of `antislop.loops()`.

    >>> ends_in_copies("He slept. " * 40)
    True
    >>> ends_in_copies(" ".join(map(str, range(400))))
    False
    """
    return measure_copying(text) >= ALIKE


def measure_copying(text: str, *, last: int = LAST) -> float:
    """Return the share of characters at the end that equal those a passage earlier, largest over passages' lengths.

    The end is two passages long, and `last` characters or more, so a loop has three copies at least.
    """
    signs = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    shares = [0.0]
    for period in range(1, LONGEST + 1):
        size = max(last, 2 * period)
        if size + period > len(signs):
            break
        shares.append(float((signs[-size:] == signs[-size - period : -period]).mean()))
    return max(shares)


def ends_in_loop(text: str) -> bool:
    """Return whether `antislop.loops()` finds a loop that reaches into the last `LAST` characters.

    Loops are found one after the other, so the search begins at several places: one loop must not hide the next.
    """
    find, text = antislop.loops().find, text[-LOOPED:]
    sizes = range(LAST, len(text) + LAST, LAST) if find(text) else ()
    return any(match.end > min(size, len(text)) - LAST for size in sizes for match in find(text[-size:]))


def measure_own_distinct(text: str, n: int) -> float:
    """Return the share of distinct n-grams of words of one text; 1.0 if it is shorter."""
    return measure_distinct([text], n) or 1.0


@torch.no_grad()
def read_end(subject: Subject, opening: str, tokens: Sequence[int], *, last: int) -> float:
    """Return the nats per token of a text's last tokens under the untouched model, given its opening and the others."""
    ids = torch.tensor([[*subject.tokenizer(opening)["input_ids"], *tokens]])
    count = min(last, len(tokens))
    own = torch.log_softmax(subject.model(ids, logits_to_keep=count + 1).logits[0, :-1].float(), dim=-1)
    return -float(own.gather(1, ids[0, -count:, None]).mean())


def count_held(subject: Subject, opening: str, tokens: Sequence[int]) -> list[int]:
    """Return for each token of a text how many tokens a stream under `antislop.loops()` holds back after it."""
    compiled = AntiSlop(subject.tokenizer, antislop.loops()).compiled
    state, held = compiled.read_prompt(subject.tokenizer(opening)["input_ids"]), list[int]()
    for token in tokens:
        state = compiled.matcher.feed(state, token)
        held.append(state.length - max(0, state.settled_length))
    return held


def describe_held(counts: Sequence[int]) -> list[float]:
    return [float(np.median(counts)), float(np.percentile(counts, 99)), float(np.mean(counts))]
