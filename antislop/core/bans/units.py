"""Where words, sentences and paragraphs begin: the units of a text to whose beginning a ban may lead back.

The text so far says whether a unit is over, without the next character. So a text that was rewound to the beginning of
a unit begins one again, whatever is drawn there. Hence "3.5" is two sentences here, and a sign that is no letter or
digit is a word. But a full stop after an abbreviation ends no sentence: that is known when the stop is written.
Units are nested: where a paragraph begins, a sentence begins, and where a sentence begins, a word begins. The text of
all generated tokens is a unit, too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from antislop.core.bans.folding import APOSTROPHES, EXTENDING, INVISIBLE, SENTENCE_ENDS, find_words

Unit: TypeAlias = Literal["span", "word", "sentence", "paragraph", "text"]
"""What is drawn again where a ban was written: from its own first token, or from the beginning of what it began in."""
Opening: TypeAlias = Literal["word", "sentence", "paragraph"]
"""The first unit of a text, where a ban may hold alone."""

ABBREVIATIONS = ("[a-zß-\u052f]", "mr", "mrs", "ms", "dr", "st", "vs", "prof")
"""Words in lower case, as regexes, after which a full stop ends no sentence: the first one for "J." and "p.m."."""

BEFORE, OVER, PROMPT = -1, 2, 3
"""States before the first letter or digit of a text, after a unit or two line breaks in a row, and before a text."""
_ABBREVIATION = re.compile("|".join(ABBREVIATIONS))
_BEFORE = rf"(?<![^\W_])(?<![^\W_]['{APOSTROPHES}])"  # the t of "don't." abbreviates nothing
SENTENCE_END = f"[{re.escape('…' + ''.join(sorted(SENTENCE_ENDS)))}]" + "".join(
    rf"(?<!{_BEFORE}(?i:{word})\.)" for word in ABBREVIATIONS
)
"""A regex for one mark at the end of a sentence. It begins with a set, which `re` finds fast."""
# A sentence in its i-th of these has the state -2 - i: what is written of a word that may be abbreviated. The "a"
# stands for each letter that begins none of more letters, and the dash for all longer words.
_SHORT = ("", "a", "-", *sorted({word[:end] for word in ABBREVIATIONS[1:] for end in range(1, len(word) + 1)}))
_PIECES_KEPT = 1 << 14


class UnitState(NamedTuple):
    """The units of one kind in a text so far.

    state: of `_read`.
    latest: the place of the character with which the latest one begins, counted from the beginning of the text.
    begun: the places of those that begin in the latest piece.
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
        if unit == "text":  # the only one of its kind
            return self
        indices, state = _read(unit, piece, self.state)
        begun = tuple([end - len(piece) + index for index in indices])
        return UnitState(state, begun[-1] if begun else self.latest, begun)

    def end(self) -> UnitState:
        """Return the state after a special token, which ends all units."""
        return UnitState(OVER, self.latest)

    def find(self, place: int, *, before: UnitState) -> int:
        """Return where the unit of a place in the latest piece begins. before: the state before the piece."""
        return max((begin for begin in self.begun if begin <= place), default=before.latest)


def follow_first(opening: Opening, char: str, state: int) -> int:
    """Return the state of a text's first unit after one more character. It begins with a letter or digit."""
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
