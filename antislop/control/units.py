"""Sentences and paragraphs of a text that is being written: where they end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from antislop.control.branches import Step
from antislop.control.passages import Passage
from antislop.errors import InputError

Unit = Literal["sentence", "paragraph"]
_ENDS = {
    "sentence": re.compile(r"""(?<=\S)([.!?…]+["'”’»)\]]*(?=\s)|(?=\n))"""),
    "paragraph": re.compile(r"(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)"),
}
"""A sentence ends with a mark and closing quotes before a space, and at a line break, so "Mr. Fox" has two. A paragraph
ends before an empty line. The end of the text ends both."""


class WrittenUnit(NamedTuple):
    """A unit that was written: its text, and the index of the first token after it and the spaces behind it.

    is_cut: the text was cut within it, at its maximum length for instance.
    """

    text: str
    end: int
    is_cut: bool = False


def check_unit(unit: str) -> str:
    """Return the name of a unit; raise `InputError` if there is none of that name."""
    if unit not in _ENDS:
        raise InputError(f"{unit!r} is no unit: it is 'sentence' or 'paragraph'")
    return unit


def find_unit(tokenizer: Any, prompt: Sequence[int], step: Step, *, first: int, unit: str) -> WrittenUnit | None:
    """Return the unit that the tokens from `first` on begin with; None if its end is not known yet."""
    passage = Passage(tokenizer, prompt, step.tokens, first=first)
    if match := _ENDS[unit].search(passage.text):
        space = re.compile(r"\s*").match(passage.text, match.end())
        assert space is not None
        end = max(passage.find_end(match.end()), passage.find_token(space.end()))
        return WrittenUnit(passage.text[: match.end()].strip(), end)
    if not step.is_done:
        return None
    end, specials = len(step.tokens), set(tokenizer.all_special_ids)
    while end > first and step.tokens[end - 1] in specials:
        end -= 1
    text = passage.cut(end).strip()
    return WrittenUnit(text, end, is_cut=end == len(step.tokens)) if text else None
