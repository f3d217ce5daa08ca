"""Turn the events of a text into pieces labeled as kept, withdrawn and so on, or into a stream of settled text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from antislop.core.bans.characters import NOTHING, Pending, Surfaces, complete, finish
from antislop.core.bans.text_matcher import TextMatcher
from antislop.core.trace import events as others
from antislop.core.trace.events import Admitted, Conceded, Drawn, Event, Finished, Rewound, Settled, Truncated

if TYPE_CHECKING:
    from antislop.core.bans.bans import Ban
    from antislop.core.bans.token_matcher import Violation
    from antislop.core.trace.events import TokenChoice

PieceKind = Literal["prompt", "kept", "withdrawn", "conceded", "admitted"]


# -- pieces -----------------------------------------------------------------------------------------------------------


class TextPiece(NamedTuple):
    """A span of text of one kind: prompt, kept, withdrawn, conceded or admitted.

    text: the characters. In a withdrawn piece line breaks are "↵", and after another withdrawn piece a space is added.
    banned: the range [start, end) of a withdrawn piece's characters that match the ban; (0, 0) if none do.
    """

    text: str
    kind: PieceKind
    banned: tuple[int, int] = (0, 0)

    def split_withdrawn(self) -> list[tuple[str, str]]:
        """Return the parts of a withdrawn piece, each with its kind.

        Kinds: "space" for leading spaces, which are not struck through; "withdrawn" for the ban; "beside" for all else.

        >>> TextPiece(" a cat in", "withdrawn", (1, 6)).split_withdrawn()
        [(' ', 'space'), ('a cat', 'withdrawn'), (' in', 'beside')]
        """
        spaces = len(self.text) - len(self.text.lstrip(" "))  # a struck space would seem to join the words around it
        start, end = (max(spaces, index) for index in self.banned)
        parts = [
            (self.text[:spaces], "space"),
            (self.text[spaces:start], "beside"),
            (self.text[start:end], "withdrawn"),
            (self.text[end:], "beside"),
        ]
        return [(text, kind) for text, kind in parts if text]


class TextPieces:
    """Turn events into pieces; each piece is returned as soon as later events can't change it.

    surfaces: the bytes of each token, such as a `Vocabulary`.
    drops_space: leave out a space at the start of the text.

    A withdrawn piece is returned for the event `Rewound`, or later if the text before it may still be withdrawn. The
    other pieces, joined, are the text. An incomplete character is U+FFFD at the end of the text, and left out at the
    end of a withdrawn piece.
    """

    def __init__(self, surfaces: Surfaces, *, drops_space: bool = False) -> None:
        self._written = WrittenText(surfaces, drops_space=drops_space, has_kinds=True)
        self._ends_withdrawn = False

    @property
    def settled(self) -> int:
        """The number of tokens, from the start of the text, that no rewind can withdraw any more."""
        return self._written.settled

    def add(self, event: Event) -> list[TextPiece]:
        """Add an event, and return the pieces that later events can no longer change."""
        return list(self._join(self._written.add(event)))

    def read(self, events: Iterable[Event]) -> list[TextPiece]:
        """Return the pieces of all events of a text, which may be unfinished."""
        return [piece for event in complete_events(events) for piece in self.add(event)]

    def _join(self, certain: list[WrittenToken]) -> Iterator[TextPiece]:
        for attempt, entries in groupby(certain, key=lambda entry: entry.attempt):
            characters = [pair for entry in entries for pair in zip(entry.text, entry.kinds, strict=True)]
            if attempt and characters:
                text, gap = "".join(character for character, _ in characters), int(self._ends_withdrawn)
                banned = [gap + i for i, (_, kind) in enumerate(characters) if kind == "withdrawn"]
                self._ends_withdrawn = True
                span = (banned[0], banned[-1] + 1) if banned else (0, 0)
                yield TextPiece(" " * gap + text.replace("\n", "↵"), "withdrawn", span)
            elif characters:
                self._ends_withdrawn = False
                for kind, group in groupby(characters, key=lambda pair: pair[1]):
                    yield TextPiece("".join(character for character, _ in group), kind)


# -- a stream ---------------------------------------------------------------------------------------------------------


def stream_text(events: Iterable[Event], surfaces: Surfaces, *, drops_space: bool = False) -> Iterator[str]:
    """Yield the text in pieces of complete characters, as soon as they are settled; special tokens add nothing.

    drops_space: leave out a space at the start of the text.
    An incomplete character at the end of the text becomes U+FFFD.
    """
    written = WrittenText(surfaces, drops_space=drops_space)
    for event in events:
        if text := "".join(token.text for token in written.add(event) if not token.attempt):
            yield text


# -- tokens -----------------------------------------------------------------------------------------------------------


Cut: TypeAlias = tuple[int, Rewound | Truncated]
"""A pair: the number of tokens drawn so far, and the event that then withdrew some of them."""
END = -1
"""A pseudo-token for the incomplete bytes that may remain at the end of a text."""


@dataclass(slots=True, eq=False)
class WrittenToken:
    """A token that was drawn, or `END`, and the characters that it completed.

    index: the token's place in the text.
    choice: the distribution that the token was drawn from; None if it was not recorded.
    kinds: a kind for each character; in a withdrawn token only the characters of the ban are "withdrawn".
    begun: for each leading character whose first bytes are in an earlier token, the distance to that token.
    pending: the bytes of an incomplete character at the end of this token.
    attempt: the number, from 1, of the attempt in which the token was withdrawn; 0 if it is part of the text.
    """

    token: int
    index: int
    choice: TokenChoice | None = None
    text: str = ""
    kinds: list[PieceKind] = field(default_factory=list)
    begun: tuple[int, ...] = ()
    pending: Pending = NOTHING
    attempt: int = 0
    is_settled: bool = False

    @property
    def is_end(self) -> bool:
        return self.token == END

    def append(self, text: str) -> None:
        self.text += text
        self.kinds += ["kept"] * len(text)

    def drop(self, count: int) -> None:
        self.text, self.kinds = self.text[count:], self.kinds[count:]


class WrittenText:
    """The tokens and characters of a text after each event; streams, pieces and pages are made from them.

    drops_space: leave out a space at the start of the text.
    has_kinds: find the characters of each ban, and mark them in `WrittenToken.kinds`.
    settled: the number of tokens, from the start, that no rewind can withdraw.
    unsettled: the tokens after the settled tokens.
    cuts: a cut for each attempt.
    """

    def __init__(self, surfaces: Surfaces, *, drops_space: bool = False, has_kinds: bool = False) -> None:
        self.settled = 0
        self.unsettled: list[WrittenToken] = []
        self.cuts: list[Cut] = []
        self._surfaces = surfaces
        self._drops_space = drops_space
        self._has_kinds = has_kinds
        self._uncertain = deque[WrittenToken]()  # not returned yet, in order of time
        self._drawn = 0
        self._pending = NOTHING  # incomplete bytes after the settled tokens

    def add(self, event: Event) -> list[WrittenToken]:
        """Add an event, and return the tokens now known to be withdrawn or settled, in the order of drawing.

        For the event `Finished`, the last token of the list is `END`.
        """
        match event:
            case Drawn(token, choice):
                pending = self.unsettled[-1].pending if self.unsettled else self._pending
                text, begun, pending = complete(self._surfaces, token, pending)
                index = self.settled + len(self.unsettled)
                written = WrittenToken(token, index, choice, begun=begun, pending=pending)
                written.append(text)
                self.unsettled.append(written)
                self._uncertain.append(written)
                self._drawn += 1
            case Settled(tokens):
                self._settle(len(tokens))
            case Rewound() | Truncated():
                self._withdraw(event)
            case Conceded(violation):
                self._mark(violation, "conceded")
            case Admitted(violation):
                self._mark(violation, "admitted")
            case Finished():
                self._settle(len(self.unsettled))
                ending = WrittenToken(END, self.settled, is_settled=True)
                ending.append(finish(self._surfaces, self._pending).text)
                self._uncertain.append(ending)
            case others.Forwarded() | others.Drafted() | others.Forked() | others.Forced() | others.TimedOut():
                pass
        certain = []
        while self._uncertain and (self._uncertain[0].attempt or self._uncertain[0].is_settled):
            certain.append(self._uncertain.popleft())
        return certain

    def read(self, events: Iterable[Event]) -> list[WrittenToken]:
        """Return all tokens drawn for a text, which may be unfinished, in the order of drawing, and `END` last."""
        return [token for event in complete_events(events) for token in self.add(event)]

    def _withdraw(self, event: Rewound | Truncated) -> None:
        kept = max(0, event.length - self.settled)
        if self._surfaces.byte_tokens:  # a run of bytes is split: each side keeps the characters it has in full
            for place, written in enumerate(self.unsettled[kept:]):
                written.drop(sum(age > place for age in written.begun))
            last, withdrawn = self.unsettled[-1], len(self.unsettled) - kept
            count = sum(age <= withdrawn for age in last.pending.ages)
            last.append(last.pending.data[len(last.pending.data) - count :].decode(errors="ignore"))
        if isinstance(event, Rewound):
            self._mark(event.violation, "withdrawn")
        self.cuts.append((self._drawn, event))
        for written in self.unsettled[kept:]:
            written.attempt = len(self.cuts)
        del self.unsettled[kept:]

    def _mark(self, violation: Violation, kind: PieceKind) -> None:
        """Mark the characters of a violation; the last token is not marked if it only ended the banned word."""
        start, end = (max(0, index - self.settled) for index in (violation.start, violation.end + 1))
        tokens = self.unsettled[start:end]
        if not (self._has_kinds and (text := "".join(written.text for written in tokens))):
            return
        characters = [(written, i) for written in tokens for i in range(len(written.text))]
        for first, last in find_spans(violation.ban, text) or [(0, len(text))]:  # or all: a ban may begin in the prompt
            for written, i in characters[first:last]:
                written.kinds[i] = kind

    def _settle(self, count: int) -> None:
        settled, self.unsettled = self.unsettled[:count], self.unsettled[count:]
        self.settled += len(settled)
        for written in settled:
            written.is_settled = True
            if self._drops_space and written.text:
                written.drop(written.text.startswith(" "))
                self._drops_space = False
            self._pending = written.pending


def complete_events(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events; if none of them is `Finished`, yield one at the end."""
    is_finished = False
    for event in events:
        is_finished = is_finished or isinstance(event, Finished)
        yield event
    if not is_finished:
        yield Finished("done", 0.0)


def find_spans(ban: Ban, text: str) -> list[tuple[int, int]]:
    """Return the range [start, end) of each match of a ban; [] if a regex takes milliseconds, as a server may wait."""
    detector = TextMatcher([ban])
    detector.begin(is_brief=True)
    _, _, result = detector.read(detector.phrases.start, detector.start, text, final=True)
    return [(len(text) - match.start_back, len(text) - match.end_back + 1) for match in result.matches]
