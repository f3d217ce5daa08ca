"""Find passages that are written several times in a row with a few words changed.

A sentence that begins like an earlier sentence may begin the second copy of the passage between these two places. Two
sentences in a row with the same first word may be copies, too, once both are complete. Only such candidates are
followed word by word, and most of them are dropped at the second word that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from antislop.core.bans.folding import SENTENCE_ENDS

HEAD = 8
"""Two sentences begin alike if their first so many symbols are equal."""

MARKUP = re.compile(r"[|{}<>#\\]|``|==")
"""Signs of code and markup, where similar passages are written on purpose."""

_SENTENCE = re.compile("S")
_WORD = re.compile(r'\w[^\s"]*')
_STOP = re.compile(f"[ {re.escape(''.join(sorted(SENTENCE_ENDS)))}]")
_AROUND = " \"'()[]*_"  # what may stand between the end of a sentence and the next sentence


class Candidate(NamedTuple):
    """A passage that may be written several times; places are counted from the beginning of the text.

    first: place at which the first copy begins.
    second: place at which the occurrence will begin: the second copy, or the third copy of sentences that differ early.
    period: number of words of the passage.
    words, changed: number of words in all copies but the first; of words in the latest copy that differ from before.
    place, before: places from which the next word, and the word one copy earlier to compare it with, are looked for.
    """

    first: int
    second: int
    period: int
    words: int
    changed: int
    place: int
    before: int


class NearTrack(NamedTuple):
    """The state of the search for one pattern. floor: where the last loop ended. candidates: for the next loop.

    is_alike: whether the latest two sentences have the same first word.
    """

    floor: int = 0
    candidates: tuple[Candidate, ...] = ()
    is_alike: bool = False


class NearTracker:
    """Finds loops of one pattern: all copies have `least` to `most` symbols, each one `shortest` to `longest`."""

    def __init__(self, *, copies: int, least: int, most: int, shortest: int, longest: int, similarity: int) -> None:
        self._copies, self._least, self._most = copies, least, most
        self._shortest, self._longest = shortest, longest
        self._tolerance = 100 - similarity

    def read(
        self, track: NearTrack, text: str, marks: str, begun: int, offset: int, loops: Sequence[tuple[int, int]]
    ) -> tuple[NearTrack, list[tuple[int, int]], int]:
        """Return the loops that the symbols from `begun` on complete, and where the first incomplete one begins.

        offset: number of symbols of the whole text before `text`, which is only its end.
        loops: the loops of equal copies that were found in the same symbols.
        """
        heads = [m.start() for m in _SENTENCE.finditer(marks, max(0, begun - HEAD + 1), max(0, len(marks) - HEAD + 1))]
        begins = {head + HEAD: new for head in heads if (new := list(self._begin(text, marks, head, offset)))}
        for match in _SENTENCE.finditer(marks, begun):
            if third := self._begin_third(text, marks, match.start(), offset):
                begins[match.end()] = [*begins.get(match.end(), ()), third]
        is_alike = _find_alike(text, marks, heads[-1]) >= 0 if heads else track.is_alike
        if not (begins or track.candidates or loops):
            return NearTrack(track.floor, (), is_alike), [], len(text)
        floor, candidates, found, ends = track.floor, list(track.candidates), [], [end for _, end in loops]
        for stop in sorted(begins.keys() | {match.end() for match in _STOP.finditer(text, begun)}):
            while ends and ends[0] <= stop:
                floor, candidates = ends.pop(0) + offset, []
            last = text[stop - 1]
            if candidates and last in SENTENCE_ENDS:
                start = min((c.second for c in candidates if self._is_complete(c, text, stop, offset)), default=None)
                if start is not None:
                    found.append((start - offset, stop))
                    floor, candidates = stop + offset, []
            elif candidates and last == " ":
                followed = (self._follow(c, text, stop, offset) for c in candidates)
                candidates = [c for c in followed if c]
            if stop in begins:
                candidates += [candidate for candidate in begins[stop] if candidate.second >= floor]
        if ends:
            floor, candidates = ends[-1] + offset, []
        opened = min((candidate.second - offset for candidate in candidates), default=len(text))
        return NearTrack(floor, tuple(candidates), is_alike), found, opened

    def _begin(self, text: str, marks: str, second: int, offset: int) -> Iterator[Candidate]:
        """Yield a candidate for each earlier passage whose second copy may begin with the sentence at `second`."""
        if not _ends_sentence(text, second):
            return
        head, first = text[second : second + HEAD], second - self._shortest + 1
        while (first := text.rfind(head, max(0, second - self._longest), max(0, first + HEAD - 1))) >= 0:
            if marks[first] == "S" and not MARKUP.search(text, first, second):
                period = len(_WORD.findall(text, first, second))
                if period * self._tolerance >= 100:  # in a shorter passage, no word may differ
                    place, before = second + offset, first + offset
                    yield Candidate(before, place, period, 0, 0, place, before)

    def _begin_third(self, text: str, marks: str, third: int, offset: int) -> Candidate | None:
        """Return a candidate if the two sentences before `third` are copies that differ early; else None."""
        second = marks.rfind("S", 0, third)
        first = _find_alike(text, marks, second)
        if first < 0 or not self._shortest <= second - first <= self._longest:
            return None
        if text[first : first + HEAD] == text[second : second + HEAD] or not _ends_sentence(text, second):
            return None
        period = len(_WORD.findall(text, first, second))
        if period * self._tolerance < 100 or MARKUP.search(text, first, second):
            return None
        copy = Candidate(first + offset, third + offset, period, 0, 0, second + offset, first + offset)
        after = self._follow(copy, text, third, offset)
        return after if after and after.words == period else None

    def _follow(self, candidate: Candidate, text: str, stop: int, offset: int) -> Candidate | None:
        """Return a candidate after reading the words up to `stop`; None if too many differ from the copy before."""
        first, second, period, words, changed, place, before = candidate
        if stop + offset - first > self._most:
            return None
        while word := _WORD.search(text, place - offset, stop):
            other = _WORD.search(text, before - offset)
            assert other is not None  # it lies before the word
            place, before = word.end() + offset, other.end() + offset
            words, changed = words + 1, changed + (word[0] != other[0])
            inside = words % period
            if changed * 100 > (inside or period) * self._tolerance + (100 if inside else 0):
                return None
            if not inside:
                changed = 0
                if word[0][-1] not in SENTENCE_ENDS:
                    return None
        return Candidate(first, second, period, words, changed, place, before)

    def _is_complete(self, candidate: Candidate, text: str, stop: int, offset: int) -> bool:
        after = self._follow(candidate, text, stop, offset)
        if after is None or after.words % after.period:
            return False
        return after.words // after.period >= self._copies - 1 and stop + offset - after.first >= self._least


def _ends_sentence(text: str, place: int) -> bool:
    """Return whether a sentence ends before a place."""
    return text[max(0, place - HEAD) : place].rstrip(_AROUND)[-1:] in SENTENCE_ENDS


def _find_alike(text: str, marks: str, second: int) -> int:
    """Return where the sentence before the one at `second` begins, if both have the same first word; else -1."""
    first = marks.rfind("S", 0, max(0, second))
    return first if first >= 0 and text.startswith(text[second : text.find(" ", second) + 1], first) else -1
