"""The tokens that llama.cpp writes and does not name in a stream.

While a text ends within a character, the server streams nothing; then it sends the character's text, and the id of its
last token only. If several sequences of tokens spell the text, an answer that is not streamed names them.

Why this is exact: the second answer is used only if it agrees with all that was seen of the first. Either the server
repeated its draw, and these are the tokens; or it drew independently, and conditioned on what was seen they have the
same distribution. (Drawing again at this place alone would make tokens that end within a character too rare.) The first
stream is then abandoned, since it continues different tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from antislop.core.hf import Vocabulary

LEAD_BYTES = ((0xE0, 0xC0, 2), (0xF0, 0xE0, 3), (0xF8, 0xF0, 4))
"""Mask and value of a character's first byte, and the character's length in bytes."""


class HiddenTokens(NamedTuple):
    """Tokens that were written and not named.

    text: of these tokens and those after them; "" at the end of a text.
    after: the ids of the tokens after them.
    reason: why the text ended, if they are its last tokens.
    """

    number: int
    text: str
    after: Sequence[int]
    reason: Literal["stop", "length"] | None = None


def ends_within_character(text: bytes) -> bool:
    """Return whether the last character lacks bytes, as llama.cpp decides it: by first bytes alone."""
    return any(
        text[-back] & mask == value for mask, value, size in LEAD_BYTES for back in range(1, min(size, len(text) + 1))
    )


class HiddenSpeller:
    """Finds which tokens a server merged into one piece of text, because they split a character."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: dict[bytes, list[int]] = {}

    def find(self, hidden: HiddenTokens) -> list[int] | None:
        """Return the hidden tokens; None unless exactly one sequence spells their text."""
        text, last = hidden.text.encode(), self._vocabulary.join(hidden.after)
        if "\ufffd" in hidden.text or not last or not text.endswith(last):
            return None
        spellings = self._spell(text.removesuffix(last), 0, hidden.number)
        tokens = next(spellings, None)
        # Tokens without text can hide too, so a spelling of fewer tokens would be another possibility.
        return tokens if tokens and len(tokens) == hidden.number and next(spellings, None) is None else None

    def agree(self, tokens: Sequence[int], hidden: HiddenTokens) -> bool:
        """Return whether these tokens would be streamed as the hidden ones were."""
        names, text = tokens[: hidden.number], b""
        for token in names:
            text += self._vocabulary.surface(token)
            if not ends_within_character(text):
                return False
        return len(names) == hidden.number and list(tokens[hidden.number :]) == list(hidden.after)

    def _spell(self, text: bytes, start: int, limit: int) -> Iterator[list[int]]:
        """Yield the sequences of up to `limit` tokens that spell `text[start:]`, each token ending in a character."""
        if start == len(text):
            yield []
            return
        for stop in range(start + 1, len(text) + 1) if limit else ():
            if ends_within_character(text[:stop]):
                for token in self._index().get(text[start:stop], ()):
                    yield from ([token, *rest] for rest in self._spell(text, stop, limit - 1))

    def _index(self) -> dict[bytes, list[int]]:
        """Return the tokens by their bytes, without those of ASCII, which never end within a character."""
        if not self._ids:
            for token, surface in enumerate(self._vocabulary.surfaces):
                if surface and not surface.isascii():
                    self._ids.setdefault(surface, []).append(token)
        return self._ids
