"""Turn events into text: pieces labeled as kept, withdrawn and so on, or a stream of settled text. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from antislop.matching.characters import NOTHING, complete, finish
from antislop.trace.events import Conceded, Drawn, Event, Finished, Settled
from antislop.trace.written_text import PieceKind, WrittenText, WrittenToken

if TYPE_CHECKING:
    from antislop.matching.token_matcher import Matcher, State, Surfaces


class TextPiece(NamedTuple):
    """A span of text that was kept, withdrawn, conceded or admitted as a whole.

    A withdrawn piece fits into one line: its line breaks are "↵", and a further space sets it apart from a withdrawn
    piece before it. banned: the characters [start, end) of a withdrawn piece that belong to the ban; (0, 0) if none
    does.
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
    that are not withdrawn, joined, are the text. Incomplete bytes at the end of the text become U+FFFD; in a withdrawn
    piece they are left out.
    """

    def __init__(self, surfaces: Surfaces) -> None:
        self._written = WrittenText(surfaces)
        self._waiting: list[WrittenToken] = []  # not returned yet, in order of time
        self._ends_withdrawn = False

    def add(self, event: Event) -> list[TextPiece]:
        """Add an event and return the pieces that became certain."""
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


def mark_conceded(events: Iterable[Event], matcher: Matcher, state: State) -> Iterator[Event]:
    """Yield the events of a run without bans, with each occurrence of a ban of `matcher` as `Conceded`.

    state: of the matcher after the prompt.
    """
    tokens: list[int] = []
    settled = 0
    for event in events:
        if isinstance(event, Settled):
            continue
        if isinstance(event, Drawn):
            tokens.append(event.token)
            state = matcher.feed(state, event.token)
            yield event
            yield from map(Conceded, state.violations)
            if state.earliest_start > settled:
                yield Settled(tuple(tokens[settled : state.earliest_start]))
                settled = state.earliest_start
            continue
        if isinstance(event, Finished):
            yield from map(Conceded, matcher.finish(state))
            yield Settled(tuple(tokens[settled:]))
        yield event


def stream_text(events: Iterable[Event], surfaces: Surfaces, *, drops_space: bool = False) -> Iterator[str]:
    """Yield text once it is settled, in complete characters; special tokens add nothing.

    Joined, the strings are the text of the final tokens; incomplete bytes at its end become U+FFFD.
    drops_space: leave out a space at the start of the text.
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
