"""Turn events into text: pieces labeled as kept, withdrawn and so on, or a stream of settled text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from antislop.matching.characters import NOTHING, complete, finish
from antislop.matching.text_matcher import TextMatcher
from antislop.trace.events import Admitted, Conceded, Drawn, Event, Finished, Rewound, Settled, Truncated

if TYPE_CHECKING:
    from antislop.matching.bans import Ban
    from antislop.matching.token_matcher import Surfaces, Violation

PieceKind = Literal["prompt", "kept", "withdrawn", "conceded", "admitted"]


# -- pieces -----------------------------------------------------------------------------------------------------------


class TextPiece(NamedTuple):
    """A span of text that was kept, withdrawn, conceded or admitted as a whole.

    text: of a withdrawn piece in one line: line breaks are "↵", and one more space separates two withdrawn pieces.
    banned: the characters [start, end) of a withdrawn piece that belong to the ban; (0, 0) if none does.
    """

    text: str
    kind: PieceKind
    banned: tuple[int, int] = (0, 0)

    def split_withdrawn(self) -> list[tuple[str, str]]:
        """Return the parts of a withdrawn piece and their kinds.

        "space" at its start is not struck through; the ban is "withdrawn", and the rest "beside" it.

        >>> TextPiece(" a cat in", "withdrawn", (1, 6)).split_withdrawn()
        [(' ', 'space'), ('a cat', 'withdrawn'), (' in', 'beside')]
        """
        spaces = len(self.text) - len(self.text.lstrip(" "))  # if this space were struck, the two words would be joined
        start, end = (max(spaces, index) for index in self.banned)
        parts = [
            (self.text[:spaces], "space"),
            (self.text[spaces:start], "beside"),
            (self.text[start:end], "withdrawn"),
            (self.text[end:], "beside"),
        ]
        return [(text, kind) for text, kind in parts if text]


class TextPieces:
    """Turn events into pieces, each returned as soon as later events can't change it.

    surfaces: the bytes of each token, such as a `Vocabulary`.

    A withdrawn piece is returned with its `Rewound`, or later if the text before it may still be withdrawn. The pieces
    that are not withdrawn, joined, are the text. Incomplete bytes at its end become U+FFFD; in a withdrawn piece they
    are left out.
    """

    def __init__(self, surfaces: Surfaces) -> None:
        self._written = WrittenText(surfaces)
        self._waiting: list[WrittenToken] = []  # not returned yet, in order of time
        self._ends_withdrawn = False

    def add(self, event: Event) -> list[TextPiece]:
        """Add an event, and return the pieces that became certain."""
        self._waiting += self._written.add(event)
        return list(self._release())

    def _release(self) -> Iterator[TextPiece]:
        certain = next((i for i, e in enumerate(self._waiting) if not (e.attempt or e.is_settled)), len(self._waiting))
        released, self._waiting = self._waiting[:certain], self._waiting[certain:]
        for attempt, entries in groupby(released, key=lambda entry: entry.attempt):
            for piece in self._join_withdrawn(list(entries)) if attempt else _join_kept(entries):
                self._ends_withdrawn = piece.kind == "withdrawn"
                yield piece

    def _join_withdrawn(self, entries: list[WrittenToken]) -> Iterator[TextPiece]:
        text = "".join(entry.text for entry in entries).replace("\n", "↵")
        if text:
            gap = int(self._ends_withdrawn)
            kinds = [kind for entry in entries for kind in entry.kinds]
            banned = [gap + i for i, kind in enumerate(kinds) if kind == "withdrawn"]
            yield TextPiece(" " * gap + text, "withdrawn", (banned[0], banned[-1] + 1) if banned else (0, 0))


def _join_kept(entries: Iterable[WrittenToken]) -> Iterator[TextPiece]:
    characters = (
        (character, kind) for entry in entries for character, kind in zip(entry.text, entry.kinds, strict=True)
    )
    for kind, group in groupby(characters, key=lambda pair: pair[1]):
        yield TextPiece("".join(character for character, _ in group), kind)


# -- a stream ---------------------------------------------------------------------------------------------------------


def stream_text(events: Iterable[Event], surfaces: Surfaces, *, drops_space: bool = False) -> Iterator[str]:
    """Yield text once it is settled, in complete characters; special tokens add nothing.

    drops_space: leave out a space at the start of the text.
    Incomplete bytes at the end become U+FFFD.
    """
    pending = NOTHING
    for event in events:
        if isinstance(event, Settled):
            text = ""
            for token in event.tokens:
                added, _, pending = complete(surfaces, token, pending)
                text += added
            if text and drops_space:
                text, drops_space = text.removeprefix(" "), False
            if text:
                yield text
    ending = finish(surfaces, pending).text
    if ending:
        yield ending


# -- tokens -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WrittenToken:
    """A token that was drawn, and the characters that it completed.

    token: None for the incomplete bytes at the end of the text.
    kinds: one for each character; in a withdrawn token only the characters of the ban are "withdrawn".
    begun: for each leading character that an earlier token began, the distance to that token.
    attempt: the number of the attempt that it was withdrawn with, from 1; 0 if it is part of the text.
    """

    token: int | None
    text: str = ""
    kinds: list[PieceKind] = field(default_factory=list)
    begun: tuple[int, ...] = ()
    attempt: int = 0
    is_settled: bool = False

    def append(self, text: str) -> None:
        self.text += text
        self.kinds += ["kept"] * len(text)

    def drop(self, count: int) -> None:
        self.text, self.kinds = self.text[count:], self.kinds[count:]


class WrittenText:
    """The text after each event, token by token.

    Tokens are returned once and change afterwards: as they are withdrawn, marked and settled.
    """

    def __init__(self, surfaces: Surfaces) -> None:
        self._surfaces = surfaces
        self._text: list[WrittenToken] = []  # one per token of the current text
        self._pending = [NOTHING]  # incomplete bytes after each length of the text
        self._settled = 0
        self._attempts = 0

    def add(self, event: Event) -> list[WrittenToken]:
        """Add an event, and return the token that it wrote, if any."""
        match event:
            case Drawn(token):
                return [self._write(token)]
            case Rewound(length):
                self._strike(length, event.violation)
            case Truncated(length):
                self._strike(length, None)
            case Conceded(violation):
                self._mark(violation, "conceded")
            case Admitted(violation):
                self._mark(violation, "admitted")
            case Settled(tokens):
                self._settle(len(tokens))
            case Finished():
                return [self.end()]
        return []

    def end(self) -> WrittenToken:
        """Return the incomplete bytes at the end of the text."""
        ending = WrittenToken(None, is_settled=True)
        ending.append(finish(self._surfaces, self._pending[-1]).text)
        return ending

    def _write(self, token: int) -> WrittenToken:
        text, begun, pending = complete(self._surfaces, token, self._pending[-1])
        written = WrittenToken(token, begun=begun)
        written.append(text)
        self._pending.append(pending)
        self._text.append(written)
        return written

    def _strike(self, length: int, violation: Violation | None) -> None:
        self._divide_run(length)
        if violation is not None:
            self._mark(violation, "withdrawn")
        self._attempts += 1
        for written in self._text[length:]:
            written.attempt = self._attempts
        del self._text[length:], self._pending[length + 1 :]
        self._settled = min(self._settled, length)

    def _divide_run(self, length: int) -> None:
        """Split a run of byte tokens at a rewind: each side keeps the characters whose bytes it contains."""
        if not self._surfaces.byte_tokens:
            return
        for index, written in enumerate(self._text[length:], start=length):
            written.drop(sum(index - age < length for age in written.begun))
        pending, withdrawn = self._pending[-1], len(self._text) - length
        count = sum(age <= withdrawn for age in pending.ages)
        self._text[-1].append(pending.data[len(pending.data) - count :].decode(errors="ignore"))

    def _mark(self, violation: Violation, kind: PieceKind) -> None:
        """Mark the characters of a ban, but not of a token that only ended its last word."""
        tokens = self._text[violation.start : violation.end + 1]
        characters = [(written, i) for written in tokens for i in range(len(written.text))]
        spans = find_spans(violation.ban, "".join(written.text for written in tokens))
        for start, end in spans or [(0, len(characters))]:  # no match if the ban began in the prompt
            for written, i in characters[start:end]:
                written.kinds[i] = kind

    def _settle(self, count: int) -> None:
        for written in self._text[self._settled : self._settled + count]:
            written.is_settled = True
        self._settled += count


def find_spans(ban: Ban, text: str) -> list[tuple[int, int]]:
    """Return [start, end) of each occurrence of a ban."""
    detector = TextMatcher([ban])
    _, _, result = detector.read(detector.phrases.start, detector.start, text, final=True)
    return [(len(text) - match.start_back, len(text) - match.end_back + 1) for match in result.matches]
