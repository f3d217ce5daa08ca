"""Turn events into text: pieces labeled as kept, withdrawn and so on, or a stream of settled text. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from antislop.matching.characters import NOTHING, complete, finish
from antislop.matching.text_matcher import TextMatcher
from antislop.trace.events import Admitted, Conceded, Drawn, Event, Finished, Rewound, Settled

if TYPE_CHECKING:
    from antislop.matching.bans import Ban
    from antislop.matching.token_matcher import Matcher, State, Surfaces, Violation

PieceKind = Literal["prompt", "kept", "withdrawn", "conceded", "admitted"]


class TextPiece(NamedTuple):
    """A span of text that was kept, withdrawn, conceded or admitted as a whole.

    A withdrawn piece fits into one line: its line breaks are "↵", and a space separates it from a withdrawn piece
    before it. banned: the characters [start, end) of a withdrawn piece that belong to the ban; (0, 0) if none does.
    """

    text: str
    kind: PieceKind
    banned: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class _Entry:
    """The characters that one token completed.

    kinds: one for each character; in a withdrawn token only the characters of the ban are "withdrawn".
    begun: for each leading character that an earlier token began, the distance to that token.
    rewind: the number of the rewind that withdrew the token; 0 if it is part of the text.
    """

    text: str = ""
    kinds: list[PieceKind] = field(default_factory=list)
    begun: tuple[int, ...] = ()
    rewind: int = 0
    is_settled: bool = False

    def append(self, text: str) -> None:
        self.text += text
        self.kinds += ["kept"] * len(text)

    def drop(self, count: int) -> None:
        self.text, self.kinds = self.text[count:], self.kinds[count:]


class TextPieces:
    """Turn events into pieces, each returned as soon as later events can't change it.

    surfaces: the bytes of each token, such as a `Vocabulary`.

    A withdrawn piece is returned with its `Rewound`, or later if the text before it may still be withdrawn. The pieces
    that are not withdrawn, joined, are the text. Incomplete bytes at the end of the text become U+FFFD; in a withdrawn
    piece they are left out.
    """

    def __init__(self, surfaces: Surfaces) -> None:
        self._surfaces = surfaces
        self._text: list[_Entry] = []  # one entry per token of the current text
        self._waiting: list[_Entry] = []  # not returned yet, in order of time
        self._pending = [NOTHING]  # incomplete bytes after each length of the text
        self._settled = 0
        self._rewinds = 0
        self._ends_withdrawn = False

    def add(self, event: Event) -> list[TextPiece]:
        """Add an event and return the pieces that became certain."""
        if isinstance(event, Drawn):
            self._write(event.token)
        elif isinstance(event, Rewound):
            self._strike(event)
        elif isinstance(event, Conceded):
            self._mark(event.violation, "conceded")
        elif isinstance(event, Admitted):
            self._mark(event.violation, "admitted")
        elif isinstance(event, Settled):
            self._settle(len(event.tokens))
        elif isinstance(event, Finished):
            self._end()
        return list(self._release())

    def _write(self, token: int) -> None:
        text, begun, pending = complete(self._surfaces, token, self._pending[-1])
        entry = _Entry(begun=begun)
        entry.append(text)
        self._pending.append(pending)
        self._text.append(entry)
        self._waiting.append(entry)

    def _divide_run(self, length: int) -> None:
        """Split a run of byte tokens at a rewind, so that each side keeps the characters whose bytes it contains."""
        if not self._surfaces.byte_tokens:
            return
        for index, entry in enumerate(self._text[length:], start=length):
            entry.drop(sum(index - age < length for age in entry.begun))
        pending, withdrawn = self._pending[-1], len(self._text) - length
        count = sum(age <= withdrawn for age in pending.ages)
        self._text[-1].append(pending.data[len(pending.data) - count :].decode(errors="ignore"))

    def _strike(self, event: Rewound) -> None:
        self._divide_run(event.length)
        self._mark(event.violation, "withdrawn")
        self._rewinds += 1
        for entry in self._text[event.length :]:
            entry.rewind = self._rewinds
        del self._text[event.length :], self._pending[event.length + 1 :]

    def _mark(self, violation: Violation, kind: PieceKind) -> None:
        """Mark the characters of a ban; a violation may also contain the token that ended its last word."""
        entries = self._text[violation.start : violation.end + 1]
        characters = [(entry, i) for entry in entries for i in range(len(entry.text))]
        spans = _find_spans(violation.ban, "".join(entry.text for entry in entries))
        for start, end in spans or [(0, len(characters))]:  # no match if the ban began in the prompt
            for entry, i in characters[start:end]:
                entry.kinds[i] = kind

    def _settle(self, count: int) -> None:
        for entry in self._text[self._settled : self._settled + count]:
            entry.is_settled = True
        self._settled += count

    def _end(self) -> None:
        ending = _Entry()
        ending.append(finish(self._surfaces, self._pending[-1]).text)
        ending.is_settled = True
        self._waiting.append(ending)

    def _release(self) -> Iterator[TextPiece]:
        certain = next((i for i, e in enumerate(self._waiting) if not (e.rewind or e.is_settled)), len(self._waiting))
        released, self._waiting = self._waiting[:certain], self._waiting[certain:]
        for rewind, entries in groupby(released, key=lambda entry: entry.rewind):
            for piece in self._join_withdrawn(list(entries)) if rewind else _join_kept(entries):
                self._ends_withdrawn = piece.kind == "withdrawn"
                yield piece

    def _join_withdrawn(self, entries: list[_Entry]) -> Iterator[TextPiece]:
        text = "".join(entry.text for entry in entries).replace("\n", "↵")
        if text:
            touches = self._ends_withdrawn and not text.startswith(" ")
            kinds = [kind for entry in entries for kind in entry.kinds]
            banned = [touches + i for i, kind in enumerate(kinds) if kind == "withdrawn"]
            yield TextPiece(" " * touches + text, "withdrawn", (banned[0], banned[-1] + 1) if banned else (0, 0))


def _find_spans(ban: Ban, text: str) -> list[tuple[int, int]]:
    """Return [start, end) of each occurrence of a ban in a text."""
    detector = TextMatcher([ban])
    _, _, result = detector.read(detector.phrases.start, detector.start, text, final=True)
    return [(len(text) - hit.start_back, len(text) - hit.end_back + 1) for hit in result.hits]


def _join_kept(entries: Iterable[_Entry]) -> Iterator[TextPiece]:
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
