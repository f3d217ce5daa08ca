"""Read from events which characters each token completed, and which of them were withdrawn or left in. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from antislop.matching.characters import NOTHING, complete, finish
from antislop.matching.text_matcher import TextMatcher
from antislop.trace.events import Admitted, Conceded, Drawn, Event, Finished, Rewound, Settled, Shortened

if TYPE_CHECKING:
    from antislop.matching.bans import Ban
    from antislop.matching.token_matcher import Surfaces, Violation

PieceKind = Literal["prompt", "kept", "withdrawn", "conceded", "admitted"]


@dataclass(slots=True, eq=False)
class WrittenToken:
    """A token that was drawn, and the characters that it completed.

    token: its id; None for the incomplete bytes at the end of the text, which no token completed.
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
        """Add characters."""
        self.text += text
        self.kinds += ["kept"] * len(text)

    def drop(self, count: int) -> None:
        """Remove leading characters."""
        self.text, self.kinds = self.text[count:], self.kinds[count:]


class WrittenText:
    """The text after each event, token by token.

    surfaces: the bytes of each token, such as a `Vocabulary`.

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
        if isinstance(event, Drawn):
            return [self._write(event.token)]
        if isinstance(event, (Rewound, Shortened)):
            self._strike(event.length, event.violation if isinstance(event, Rewound) else None)
        elif isinstance(event, Conceded):
            self._mark(event.violation, "conceded")
        elif isinstance(event, Admitted):
            self._mark(event.violation, "admitted")
        elif isinstance(event, Settled):
            self._settle(len(event.tokens))
        elif isinstance(event, Finished):
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
        """Split a run of byte tokens at a rewind, so that each side keeps the characters whose bytes it contains."""
        if not self._surfaces.byte_tokens:
            return
        for index, written in enumerate(self._text[length:], start=length):
            written.drop(sum(index - age < length for age in written.begun))
        pending, withdrawn = self._pending[-1], len(self._text) - length
        count = sum(age <= withdrawn for age in pending.ages)
        self._text[-1].append(pending.data[len(pending.data) - count :].decode(errors="ignore"))

    def _mark(self, violation: Violation, kind: PieceKind) -> None:
        """Mark the characters of a ban; a violation may also contain the token that ended its last word."""
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
    """Return [start, end) of each occurrence of a ban in a text."""
    detector = TextMatcher([ban])
    _, _, result = detector.read(detector.phrases.start, detector.start, text, final=True)
    return [(len(text) - match.start_back, len(text) - match.end_back + 1) for match in result.matches]
