"""The text of the last tokens, and tokens for a text in their place: what controllers over words need.

Uses only `decode` and `encode` of a Hugging Face tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antislop.errors import InputError

CONTEXT = 8
"""Tokens that are decoded before a passage, since some tokenizers write the space of a word only after another word."""


class Passage:
    """The text of the generated tokens from `first` on; `before` is the end of the text before it, or of the prompt."""

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

    def find_token(self, place: int) -> int:
        """Return the index of the token that contains the character at a place, or of the first one after the text."""
        for index in range(self.first + len(self._tokens), self.first, -1):
            text = self.cut(index)
            if len(text) <= place and self.text.startswith(text):
                return index
        return self.first

    def find_end(self, place: int) -> int:
        """Return the index before which the tokens contain the text up to a place, and as little more as possible."""
        end = self.first + len(self._tokens)
        ends = range(self.find_token(place), end)
        return next((i for i in ends if place <= len(self.cut(i)) and self.text.startswith(self.cut(i))), end)

    def spell(self, index: int, text: str) -> tuple[int, tuple[int, ...]]:
        """Return where to cut the tokens, at `index` or before it, and tokens that continue there with `text`.

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
