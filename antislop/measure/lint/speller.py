"""Spell texts with the tokens of a vocabulary, in any way that a model may write them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from antislop.core.bans import BOUNDARY, NO_EDGES, Folding, fold_phrase

_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))


class VocabularySurfaces(Protocol):
    """The bytes of each token, by id."""

    @property
    def surfaces(self) -> Sequence[bytes]: ...


class Speller:
    """Spell folded symbols with the surfaces of a vocabulary; they may begin and end within one.

    A vocabulary with tokens for parts of characters is assumed to write anything.

    >>> class Two:
    ...     surfaces = (b" cat", b"s")
    >>> speller = Speller(Two(), "caseless")
    >>> speller.can_write("cats"), speller.can_write("scat"), speller.find_missing("scar")
    (True, False, ['r'])
    """

    def __init__(self, vocabulary: VocabularySurfaces, folding: Folding) -> None:
        self._surfaces = {surface for surface in vocabulary.surfaces if surface}
        self._folding = folding

    def can_write(self, symbols: str) -> bool:
        """Return whether the symbols of a phrase occur in a text of surfaces."""
        if self._writes_anything:
            return True
        text = symbols.translate(NO_EDGES).strip(" ")
        size = len(text)
        reached = {0, *(end for end in range(1, size + 1) if text[:end] in self._suffixes)}
        for start in range(size):
            if start in reached:
                again = " " if text[:start].endswith(" ") else ""  # one more space changes nothing
                if {text[start:], again + text[start:]} & self._prefixes:
                    return True
                ends = range(start + 1, min(size, start + self._longest) + 1)
                reached.update(end for end in ends if {text[start:end], again + text[start:end]} & self._pieces)
        return size in reached or text in self._joined

    def find_missing(self, symbols: str) -> list[str]:
        if self._writes_anything:
            return []
        return [symbol for symbol in dict.fromkeys(symbols) if symbol not in self._alphabet | {BOUNDARY, " "}]

    @cached_property
    def _writes_anything(self) -> bool:
        if all(bytes([byte]) in self._surfaces for byte in _UTF8):
            return True
        return any("\ufffd" in surface.decode(errors="replace") for surface in self._surfaces)

    @cached_property
    def _pieces(self) -> frozenset[str]:
        texts = (surface.decode() for surface in self._surfaces)
        folded = (fold_phrase(text, folding=self._folding, edges="anywhere") for text in texts)
        return frozenset(symbols.replace(BOUNDARY, "") for symbols in folded)

    @cached_property
    def _joined(self) -> str:
        return BOUNDARY.join(self._pieces)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._pieces), default=0)

    @cached_property
    def _alphabet(self) -> frozenset[str]:
        return frozenset(symbol for piece in self._pieces for symbol in piece)

    @cached_property
    def _suffixes(self) -> frozenset[str]:
        return frozenset(piece[start:] for piece in self._pieces for start in range(len(piece)))

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(piece[:end] for piece in self._pieces for end in range(1, len(piece) + 1))
