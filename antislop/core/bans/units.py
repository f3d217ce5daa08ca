"""Find where words, sentences and paragraphs begin: the units of a text to whose beginning a ban may rewind it.

Whether a unit is over depends on the text so far, not on the next character. So after a rewind to the beginning of a
unit, a unit begins there again, whatever is drawn. Hence "3.5" counts as two sentences, and each sign that is no letter
or digit as a word. A full stop after an abbreviation ends no sentence: the text before the stop decides that.
Units are nested: where a paragraph begins, a sentence begins, and where a sentence begins, a word begins. The text of
all generated tokens is a unit, too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from antislop.core.bans.folding import APOSTROPHES, EXTENDING, INVISIBLE, SENTENCE_ENDS, find_words

Unit: TypeAlias = Literal["span", "word", "sentence", "paragraph", "text"]
"""How much is drawn again after a ban was written: the ban itself ("span"), or the whole unit in which it begins."""
Opening: TypeAlias = Literal["word", "sentence", "paragraph"]
"""The units for `Ban.opening`: the ban applies only in the first such unit of a reply."""

ABBREVIATIONS = ("[a-zß-\u052f]", "mr", "mrs", "ms", "dr", "st", "vs", "prof")
"""Regexes of lower-case words after which a full stop ends no sentence. The first is for "J." and "p.m."."""

BEFORE, OVER, PROMPT = -1, 2, 3
"""States of `follow_first`: before the text's first letter or digit, after the first unit, and within the prompt."""
_ABBREVIATION = re.compile("|".join(ABBREVIATIONS))
_BEFORE = rf"(?<![^\W_])(?<![^\W_]['{APOSTROPHES}])"  # the t of "don't." abbreviates nothing
SENTENCE_END = f"[{re.escape('…' + ''.join(sorted(SENTENCE_ENDS)))}]" + "".join(
    rf"(?<!{_BEFORE}(?i:{word})\.)" for word in ABBREVIATIONS
)
"""A regex for one mark at the end of a sentence. It begins with a set, which `re` finds fast."""
# The beginnings of abbreviations. In a sentence, the state -2 - i means that its last word is the i-th of these so far:
# "a" for any other single letter, and "-" for any longer word that is no beginning of an abbreviation.
_SHORT = ("", "a", "-", *sorted({word[:end] for word in ABBREVIATIONS[1:] for end in range(1, len(word) + 1)}))
_PIECES_KEPT = 1 << 14


class UnitState(NamedTuple):
    """What is known of the units of one kind in a text so far. Places are counted from the beginning of the text.

    state: the state that `_read` returned.
    latest: the place at which the latest unit begins.
    begun: the places at which units begin in the latest piece.
    """

    state: int = OVER
    latest: int = -1
    begun: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the next character begins a unit, whichever it is."""
        return self.state == OVER

    def read(self, unit: Unit, piece: str, *, end: int) -> UnitState:
        """Return the state after a piece, which ends at the place `end`."""
        if unit == "text":  # the whole text is one unit
            return self
        indices, state = _read(unit, piece, self.state)
        begun = tuple([end - len(piece) + index for index in indices])
        return UnitState(state, begun[-1] if begun else self.latest, begun)

    def end(self) -> UnitState:
        """Return the state after a special token, which ends all units."""
        return UnitState(OVER, self.latest)

    def find(self, place: int, *, before: UnitState) -> int:
        """Return where the unit around a place in the latest piece begins. before: the state before that piece."""
        return max((begin for begin in self.begun if begin <= place), default=before.latest)


def follow_first(opening: Opening, char: str, state: int) -> int:
    """Return the state of a text's first unit after one more character. The unit begins at a letter or digit."""
    if state >= OVER:
        return state
    if opening == "word":
        begins, is_in_word = find_words(char, is_in_word=state == 0)
        return 0 if is_in_word else OVER if begins or state == 0 else BEFORE
    if state == BEFORE:
        return _read(opening, char, OVER)[1] if char.isalnum() else BEFORE
    return _read(opening, char, state)[1]


def is_abbreviation(word: str) -> bool:
    """Return whether a full stop after a word, in lower case, ends no sentence."""
    return _ABBREVIATION.fullmatch(word) is not None


@lru_cache(_PIECES_KEPT)
def _read(unit: Unit, piece: str, state: int) -> tuple[list[int], int]:
    r"""Return the indices at which units begin in a piece, and the state after it.

    >>> _read("word", " to-day", 0), _read("sentence", 'Dr. O. "He', OVER), _read("paragraph", "- a\n \nb", 0)
    (([0, 1, 3, 4], 0), ([0], -4), ([6], 0))
    """
    begins = []
    for index, char in enumerate(piece):
        is_over = state == OVER
        if unit == "word":
            found, is_in_word = find_words(char, is_in_word=not is_over)
            is_over = is_over or bool(found) or not is_in_word
            state = 0 if is_in_word else OVER
        elif unit == "sentence":
            word = "" if is_over else _SHORT[-2 - state]
            is_end = char in SENTENCE_ENDS or char in "…\n"
            is_apostrophe = char == "'" or char in APOSTROPHES
            if char.isalnum() and not is_apostrophe:
                longer = word + char.lower()
                word = longer if longer in _SHORT else "a" if not word and char.isalpha() else "-"
            elif is_end or not (EXTENDING.match(char) or INVISIBLE.match(char)):
                is_end = is_end and not (char == "." and is_abbreviation(word))
                word = "-" if is_apostrophe and word else ""
            if is_end or not (is_over and not char.isalnum()):
                state = OVER if is_end else -2 - _SHORT.index(word)
        elif char == "\n":
            state = min(state + 1, OVER)
        elif not char.isspace():
            state = 0
        if is_over:
            begins.append(index)
    return begins, state
