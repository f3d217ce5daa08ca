"""Find entries of a list that no sequence of tokens of a vocabulary writes.

Knows surfaces, not tokenizers: a model may write any sequence of surfaces, whatever the tokenizer makes of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

from antislop.lists.lint.entries import Finding, Findings, describe
from antislop.matching.bans import Ban
from antislop.matching.folding import BOUNDARY, fold_phrase
from antislop.matching.patterns.pattern import FILLER

_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))


class VocabularySurfaces(Protocol):
    """The bytes that each token adds to a text, by token id."""

    @property
    def surfaces(self) -> Sequence[bytes]: ...


class Speller:
    """Spell folded symbols with the surfaces of a vocabulary; they may begin and end within a surface.

    A vocabulary with tokens for parts of characters is assumed to write anything, even if it lacks some bytes.

    >>> class Two:
    ...     surfaces = (b" cat", b"s")
    >>> speller = Speller(Two(), case_sensitive=False)
    >>> speller.can_write("cats"), speller.can_write("scat"), speller.find_missing("scar")
    (True, False, ['r'])
    """

    def __init__(self, vocabulary: VocabularySurfaces, *, case_sensitive: bool) -> None:
        self._surfaces = {surface for surface in vocabulary.surfaces if surface}
        self._case_sensitive = case_sensitive

    def can_write(self, symbols: str) -> bool:
        """Return whether the symbols of a phrase, as `fold_phrase` returns them, occur in a text of surfaces."""
        if self._writes_anything:
            return True
        text = symbols.replace(BOUNDARY, "").strip(" ")
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
        folded = (fold_phrase(text, case_sensitive=self._case_sensitive, edges="anywhere") for text in texts)
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


def find_untypable(bans: Sequence[Ban], vocabulary: VocabularySurfaces) -> Findings:
    """Yield the entries that no sequence of tokens of a vocabulary writes, because of their case or at all."""
    spellers = {case_sensitive: Speller(vocabulary, case_sensitive=case_sensitive) for case_sensitive in (False, True)}
    for index, ban in enumerate(bans):
        if beyond := [i for i in ban.pattern.token_ids if i >= len(vocabulary.surfaces)]:
            fault = f"{describe(ban)} contain {beyond[0]}, and the vocabulary ends at {len(vocabulary.surfaces) - 1}"
            yield Finding(ban, index, "untypable", fault, "leave it out, or write it as text")
        case_sensitive = ban.pattern.case_sensitive
        if _is_written(ban, spellers[case_sensitive], case_sensitive=case_sensitive):
            continue
        if case_sensitive and _is_written(ban, spellers[False], case_sensitive=False):
            fault = f"{describe(ban)} compares letters as they are, and the model does not write them in this case"
            yield Finding(ban, index, "case", fault, "leave out case_sensitive")
            continue
        shown = ", ".join(_find_missing(ban, spellers[case_sensitive]))
        why = f"no token of the model contains {shown}" if shown else "no sequence of the model's tokens makes it"
        yield Finding(ban, index, "untypable", f"{describe(ban)} can't be written: {why}", "leave it out")


def _find_missing(ban: Ban, speller: Speller) -> Iterator[str]:
    symbols = ban.pattern.find_symbols(case_sensitive=ban.pattern.case_sensitive) or ""
    for character in dict.fromkeys(ban.phrase):
        folded = fold_phrase(character, case_sensitive=ban.pattern.case_sensitive)
        if folded.strip(BOUNDARY) in symbols and speller.find_missing(folded):
            yield character


def _is_written(ban: Ban, speller: Speller, *, case_sensitive: bool) -> bool:
    """Return whether the symbols of a ban can be written; also if they are unknown."""
    symbols = ban.pattern.find_symbols(case_sensitive=case_sensitive) or ""
    return all(speller.can_write(part) for part in symbols.split(FILLER))
