"""Lists of bans: in order, checked, from files and back.

Text only: nothing here knows of tokens or models, and nothing imports torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from antislop.bans import Ban, BanError, Match, distinct
from antislop.detector import Detector
from antislop.regexes import TIME_LIMIT


class BanList(Sequence[Ban]):
    r"""Hold bans in order, checked when they come in.

    entries: phrases (`str`) or `Ban`s, in any mixture. A bare `str` is refused, since each of its characters
        would become a ban.
    source: where they came from, for messages and reports.

    Bans that compare as equal count once, with the smallest of their weights.

    >>> bans = BanList(["a testament to", Ban("cat", edges="anywhere")])
    >>> [(match.ban.phrase, match.start, match.end) for match in bans.find("A  TESTAMENT\nto bobcats")]
    [('a testament to', 0, 15), ('cat', 19, 22)]
    """

    def __init__(self, entries: Iterable[str | Ban], *, source: str | None = None) -> None:
        if isinstance(entries, (str, bytes)):
            raise BanError(
                f"a list of bans was expected, but {entries[:40]!r} is one string, and each of its characters would "
                "become a ban: write [phrase], or BanList.load(path) for a file"
            )
        if isinstance(entries, Mapping):
            raise BanError("a list of bans was expected, not a mapping: write [Ban(phrase, weight=…), …]")
        self._bans = tuple(entry if isinstance(entry, Ban) else Ban(entry) for entry in entries)
        self.source = source

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BanList:
        """Read a file of bans, UTF-8.

        Text: one phrase per line; empty lines and lines that begin with "#" are left out. JSON: a list of phrases,
        or of [phrase, number] pairs; numbers up to 1 are weights, larger ones counts, which rank but don't weigh.
        A name in .json or .txt decides which it is, else the first character does.
        Raises `BanError`, with path:line, for the first entry that can't be used.
        """
        place = os.fspath(path)
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise BanError(
                f"{place}: can't be read ({error.strerror}): give the path of a text or JSON file"
            ) from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise BanError(f"{place}:{line}: not UTF-8 ({error.reason}): save the file as UTF-8") from error
        suffix = Path(path).suffix.lower()
        is_json = suffix == ".json" or (suffix != ".txt" and text.lstrip().startswith(("[", "{")))
        entries = _parse_json(text, place) if is_json else _parse_lines(text)
        return cls(_checked(entries, place), source=place)

    @overload
    def __getitem__(self, index: int) -> Ban: ...
    @overload
    def __getitem__(self, index: slice) -> BanList: ...
    def __getitem__(self, index: int | slice) -> Ban | BanList:
        return self._bans[index] if isinstance(index, int) else BanList(self._bans[index], source=self.source)

    def __len__(self) -> int:
        return len(self._bans)

    def __iter__(self) -> Iterator[Ban]:
        return iter(self._bans)

    def __eq__(self, other: object) -> bool:
        return self._bans == other._bans if isinstance(other, BanList) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bans)

    def __repr__(self) -> str:
        shown = ", ".join(repr(ban.phrase) for ban in self._bans[:3]) + (", …" if len(self) > 3 else "")
        origin = f" from {self.source}" if self.source else ""
        return f"<BanList of {len(self)}{origin}: {shown}>"

    def find(self, text: str) -> list[Match]:
        """Return every occurrence of every ban in a text, in order; they may overlap.

        What is found here is what the sampler takes back, except that the sampler lets some of it pass where a
        ban has a weight above 0.
        """
        detector, size = self._detector, len(text)
        _, _, reading = detector.read(detector.phrases.start, detector.start, text, final=True)
        if slow := detector.slow:
            raise BanError(
                f"the regex {self._distinct[slow[0]].phrase!r} took longer than {TIME_LIMIT} seconds: simplify it, or "
                "search shorter texts"
            )
        matches = {Match(self._distinct[hit.pattern], size - hit.first, size - hit.last + 1) for hit in reading.hits}
        return sorted(matches, key=lambda match: (match.start, match.end, match.ban.phrase))

    @cached_property
    def _detector(self) -> Detector:
        return Detector(self._distinct)

    @cached_property
    def _distinct(self) -> list[Ban]:
        return distinct(self._bans)


def _parse_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        phrase = line.strip()
        if phrase and not phrase.startswith("#"):
            yield number, phrase


def _parse_json(text: str, place: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, entry) for each item of a JSON list, [phrase, number] already made a Ban."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
        line = getattr(error, "lineno", 1)
        raise BanError(f"{place}:{line}: not JSON ({error}): mend it, or write one phrase per line") from error
    if not isinstance(whole, list):
        raise BanError(f'{place}:1: a JSON list of phrases was expected, not {type(whole).__name__}: write ["…", …]')
    counted = _are_counts(whole)
    for line, entry in zip(_find_lines(text), whole, strict=True):
        if isinstance(entry, list) and len(entry) == 2:
            phrase, number = entry
            yield line, (phrase, 0.0 if counted else number)
        else:
            yield line, entry


def _are_counts(entries: list[Any]) -> bool:
    """Tell lists of [phrase, count] from lists of [phrase, weight]: all counts are whole numbers, some above 1."""
    numbers = [entry[1] for entry in entries if isinstance(entry, list) and len(entry) == 2]
    whole = all(isinstance(number, int) and number >= 1 for number in numbers)
    return whole and any(number > 1 for number in numbers)


def _find_lines(text: str) -> Iterator[int]:
    """Yield the line on which each item of a valid JSON list begins."""
    decoder, at, line, seen = json.JSONDecoder(), text.index("[") + 1, 1, 0
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return
        line, seen = line + text.count("\n", seen, at), at
        yield line
        at = decoder.raw_decode(text, at)[1]


def _checked(entries: Iterable[tuple[int, Any]], place: str) -> Iterator[Ban]:
    for line, entry in entries:
        try:
            phrase, weight = entry if isinstance(entry, tuple) else (entry, 0.0)
            yield Ban(phrase, weight=weight)
        except BanError as error:
            raise BanError(f"{place}:{line}: {error}") from None
