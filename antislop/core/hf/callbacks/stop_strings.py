"""Stop strings: a text ends with the token in which one of them is complete, as it does in `generate`.

Transformers' `StopStringCriteria` finds the same with a table of the vocabulary times the characters of the strings,
which has 10 GB for 64 strings of 256 characters and 151,936 tokens. Here the strings are searched for in the bytes of
the latest tokens: nothing is kept, so a rewind has nothing to undo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from antislop.errors import InputError


class StopStrings(StoppingCriteria):  # type: ignore[misc]
    """Ends a text with the token that completes one of some strings; more text may follow it in this token.

    spell: returns the bytes of a token.
    skipped: number of tokens before those that are searched; by default, a string may begin in the prompt.
    reach: number of generated tokens from which on the prompt makes no difference.
    """

    def __init__(self, strings: Sequence[str], spell: Callable[[int], bytes], *, skipped: int = 0) -> None:
        self.stop_strings = tuple(strings)  # by the name that transformers has for them
        self._strings = [string.encode() for string in strings]
        self._longest = max(map(len, self._strings))
        self._spell = spell
        self._skipped = skipped
        self.reach = 0 if skipped else self._longest  # each token has a byte at least

    @classmethod
    def read(cls, stop_strings: str | list[str], spell: Callable[[int], bytes]) -> StopStrings:
        """Return the criterion for what `generate` takes as `stop_strings`.

        Raises `InputError` for an empty string, which would end each text after one token.
        """
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        if not isinstance(strings, (list, tuple)) or not all(isinstance(each, str) and each for each in strings):
            raise InputError(
                f"stop_strings is {stop_strings!r}; strings that are not empty were expected: write ['…'], or leave it "
                "out"
            )
        return cls(strings, spell)

    def __call__(self, input_ids: Tensor, scores: Any = None, **kwargs: Any) -> Tensor:  # noqa: ARG002
        """Return which rows of ids [rows, tokens] end with their latest token, bool [rows] on the host."""
        latest = input_ids[:, self._skipped :][:, -self._longest :]
        return torch.tensor([self.end(tokens) for tokens in latest.tolist()])

    def end(self, tokens: Sequence[int]) -> bool:
        """Report whether the latest token completes one of the strings."""
        latest = tail = self._spell(tokens[-1])
        for token in islice(reversed(tokens), 1, None):
            if len(tail) - len(latest) >= self._longest - 1:
                break
            tail = self._spell(token) + tail
        before = len(tail) - len(latest)
        return any(tail.find(string, max(0, before - len(string) + 1)) >= 0 for string in self._strings)
