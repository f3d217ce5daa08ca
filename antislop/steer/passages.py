"""Tokens as text, for controllers over words: passages, and the sentences and paragraphs in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from antislop.core.loop import Step
from antislop.errors import InputError

CONTEXT = 8
"""Number of tokens decoded before a passage: some tokenizers write the space of a word only after another word."""


class Passage:
    """The text of the generated tokens from `first` on; `before` is the end of the text before it, or of the prompt.

    tokenizer: only its `decode` and `encode` are used.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], *, first: int = 0) -> None:
        self._tokenizer = tokenizer
        self._context = [*prompt[-CONTEXT:], *tokens[:first]][-CONTEXT:]
        self._tokens = tokens[first:]
        self.first = first
        self.before = self._read(self._context)
        self.text = self.cut(len(tokens))

    def cut(self, index: int) -> str:
        """Return the text of the passage before the token at an index."""
        return self._read([*self._context, *self._tokens[: index - self.first]])[len(self.before) :]

    def find_token(self, char: int) -> int:
        """Return the index of the token that contains a character of `text`, or of the first one behind it."""
        for index in range(self.first + len(self._tokens), self.first, -1):
            text = self.cut(index)
            if len(text) <= char and self.text.startswith(text):
                return index
        return self.first

    def find_end(self, char: int) -> int:
        """Return the end of the shortest tokens that contain the text before a character."""
        end = self.first + len(self._tokens)
        ends = range(self.find_token(char), end)
        return next((i for i in ends if char <= len(self.cut(i)) and self.text.startswith(self.cut(i))), end)

    def spell(self, index: int, text: str) -> tuple[int, tuple[int, ...]]:
        """Return the index to cut at, `index` or less, and the tokens that continue there with `text`.

        Raises `InputError` for a text that the tokenizer can't write there.
        """
        wanted = self.cut(index) + text
        for start in range(index, max(self.first, index - CONTEXT) - 1, -1):
            kept = [*self._context, *self._tokens[: start - self.first]]
            missing = wanted[len(self.cut(start)) :]
            for spelling in (missing, missing.removeprefix(" ")):  # some tokenizers begin each text with a space
                tokens = self._tokenizer.encode(spelling, add_special_tokens=False)
                if tokens and self._read([*kept, *tokens]) == self.before + wanted:
                    return start, tuple(tokens)
        raise InputError(f"the tokenizer can't write {text!r} after {self.cut(index)!r}")

    def _read(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text


Unit = Literal["sentence", "paragraph"]
_ENDS = {
    "sentence": re.compile(r"""(?<=\S)([.!?…]+["'”’»)\]]*(?=\s)|(?=\n))"""),
    "paragraph": re.compile(r"(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)"),
}
"""The end of each unit. A sentence ends with a mark and closing quotes before a space ("Mr. Fox" has two), or at a line
break; a paragraph before an empty line."""


class WrittenUnit(NamedTuple):
    """A sentence or paragraph that was written.

    end: the index of the first token after it and the spaces behind it.
    is_cut: the text was cut within it, at its maximum length for instance.
    """

    text: str
    end: int
    is_cut: bool = False


def check_unit(unit: str) -> str:
    if unit not in _ENDS:
        raise InputError(f"{unit!r} is not a unit: it is 'sentence' or 'paragraph'")
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
