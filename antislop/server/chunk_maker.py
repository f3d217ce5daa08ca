"""Turn the events of a text into what its client gets: settled text, up to a stop string, in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from antislop.hf.vocabulary import Vocabulary
from antislop.matching.bans import Ban
from antislop.matching.characters import NOTHING, Pending, complete, decode, finish
from antislop.trace.events import Drawn, Event, Finished, Rewound, Settled, Shortened, TokenChoice
from antislop.trace.report import Report
from antislop.trace.text_pieces import find_spans

FinishReason = Literal["stop", "length"]


class SettledToken(NamedTuple):
    """A token of the text. start: the index of its first character. choice: what it was drawn from, if recorded."""

    token: int
    start: int
    choice: TokenChoice | None


class WithdrawnText(NamedTuple):
    """Text that a rewind withdrew. start: the index of the character of the text that came in its place."""

    text: str
    ban: Ban
    start: int
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. banned: the characters [start, end) of the withdrawn text that belong to the ban."""
        spans = find_spans(self.ban, self.text)
        banned = (spans[0][0], spans[-1][1]) if spans else (0, len(self.text))  # no match if the ban began before it
        return {**self._asdict(), "ban": self.ban.phrase, "banned": banned}


@dataclass(frozen=True)
class Echo:
    """A prompt that its text begins with. starts: the index of the first character of each token."""

    text: str
    tokens: Sequence[int]
    starts: Sequence[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary, tokens: Sequence[int], text: str) -> Echo:
        """Find the tokens of a prompt in its text, which may contain special tokens or leave them out."""
        starts, at, pending = [], 0, NOTHING
        for token in tokens:
            starts.append(min(at, len(text)))
            piece, _, pending = complete(vocabulary, token, pending)
            if name := vocabulary.breaks.get(token, ""):
                at += len(name) if text.startswith(name, at) else 0
            else:
                at += len(piece if text.startswith(piece, at) else piece.removeprefix(" "))
        return cls(text, tokens, starts)


@dataclass(frozen=True)
class TextChunk:
    """The next part of a text. withdrawn: what was withdrawn before it or within it, in order of time."""

    text: str = ""
    tokens: tuple[SettledToken, ...] = ()
    withdrawn: tuple[WithdrawnText, ...] = ()
    finish_reason: FinishReason | None = None

    def join(self, later: TextChunk) -> TextChunk:
        """Return this chunk and the next one as one."""
        return TextChunk(
            self.text + later.text,
            self.tokens + later.tokens,
            self.withdrawn + later.withdrawn,
            later.finish_reason,
        )


class _WrittenToken(NamedTuple):
    """A token that may still be withdrawn. pending: the bytes of an open character after it."""

    token: int
    text: str
    pending: Pending
    choice: TokenChoice | None


@dataclass
class TextStream:
    """Fold the events of one text into chunks.

    vocabulary: of the model. stop: strings that end the text, and are cut off with all that follows them. drops_space:
    whether a space at the beginning is no part of the text. end_tokens: tokens that end a text by themselves. echo: the
    prompt, if the client gets it before the text; then its chunks list end tokens, too, and all places count from it.
    report: the counts of all events so far.

    Text is returned once no rewind can reach it, in complete characters, and once it can't begin a stop string.
    """

    vocabulary: Vocabulary
    max_new_tokens: int
    stop: Sequence[str] = ()
    drops_space: bool = False
    end_tokens: Collection[int] = ()
    echo: Echo | None = None
    report: Report = field(default_factory=Report)
    kept: int = 0

    def __post_init__(self) -> None:
        self._unsettled: deque[_WrittenToken] = deque()
        self._pending = NOTHING  # the bytes of an open character after the settled tokens
        self._text = ""  # settled and not returned
        self._returned = 0  # characters
        self._tokens: deque[SettledToken] = deque()  # settled and not returned
        self._withdrawn: list[WithdrawnText] = []
        self._last_token = -1

    @property
    def length(self) -> int:
        """The number of settled characters."""
        return self._returned + len(self._text)

    def begin(self, choices: Iterable[TokenChoice | None] = ()) -> TextChunk | None:
        """Return the chunk of the prompt, if it is echoed: the last one if no token is to follow.

        choices: how likely each token of the prompt is, if that is known.
        """
        if self.echo is None:
            return None
        tokens = map(SettledToken, self.echo.tokens, self.echo.starts, choices)
        return TextChunk(self.echo.text, tuple(tokens), finish_reason=None if self.max_new_tokens else "length")

    def add(self, event: Event) -> TextChunk | None:
        """Return the chunk that an event completes, if any; the last one has a reason."""
        self.report.count(event)
        if isinstance(event, Drawn):
            pending = self._unsettled[-1].pending if self._unsettled else self._pending
            text, _, after = complete(self.vocabulary, event.token, pending)
            self._unsettled.append(_WrittenToken(event.token, text, after, event.choice))
        elif isinstance(event, (Rewound, Shortened)):
            self._cut(event)
        elif isinstance(event, Settled):
            for _ in event.tokens:
                self._settle(self._unsettled.popleft())
            return self._release(hold=True)
        elif isinstance(event, Finished):
            return self.end()
        return None

    def end(self) -> TextChunk:
        """Return the last chunk: what is settled and was held back."""
        self._append(finish(self.vocabulary, self._pending).text)
        self._pending = NOTHING
        chunk = self._release(hold=False) or TextChunk()
        if chunk.finish_reason:
            return chunk
        is_full = self.kept >= self.max_new_tokens and self._last_token not in self.end_tokens
        return replace(chunk, finish_reason="length" if is_full else "stop")

    def _cut(self, event: Rewound | Shortened) -> None:
        while self.kept + len(self._unsettled) > event.length:
            self._unsettled.pop()
        start = self.length + sum(len(written.text) for written in self._unsettled)
        # Earlier texts were withdrawn at places that are withdrawn now.
        self._withdrawn = [text._replace(start=min(text.start, start)) for text in self._withdrawn]
        if isinstance(event, Rewound):
            text = decode(self.vocabulary, event.withdrawn)
            self._withdrawn.append(WithdrawnText(text, event.violation.ban, start, len(event.withdrawn)))

    def _settle(self, written: _WrittenToken) -> None:
        self._tokens.append(SettledToken(written.token, self.length, written.choice))
        self.kept += 1
        self._last_token = written.token
        self._pending = written.pending
        self._append(written.text)

    def _append(self, text: str) -> None:
        if text and self.drops_space:
            text, self.drops_space = text.removeprefix(" "), False
        self._text += text

    def _release(self, *, hold: bool) -> TextChunk | None:
        """Return the text that is certain. hold: keep back what may begin a stop string."""
        stop = self._find_stop()
        count = stop if stop is not None else len(self._text) - (self._count_open() if hold else 0)
        is_last = stop is not None or not hold
        text, self._text = self._text[:count], self._text[count:]
        self._returned += count
        before = len(self.echo.text) if self.echo else 0
        tokens = tuple(token._replace(start=before + token.start) for token in self._take_tokens(is_last=is_last))
        withdrawn = tuple(w._replace(start=before + w.start) for w in self._take_withdrawn(is_last=is_last))
        if not (text or tokens or withdrawn or stop is not None):
            return None
        return TextChunk(text, tokens, withdrawn, None if stop is None else "stop")

    def _find_stop(self) -> int | None:
        """Return the index of the stop string that ends first in the text that was not returned."""
        starts = ((self._text.find(string), string) for string in self.stop)
        ends = [(start + len(string), start) for start, string in starts if start >= 0]
        return min(ends)[1] if ends else None

    def _count_open(self) -> int:
        """Return the number of last characters that may begin a stop string."""
        return max((_overlap(self._text, string) for string in self.stop), default=0)

    def _take_tokens(self, *, is_last: bool) -> tuple[SettledToken, ...]:
        """Return the tokens that begin in the returned text, without end tokens unless the prompt is echoed."""
        taken = []
        while self._tokens and (self._tokens[0].start < self._returned or (is_last and not self._text)):
            taken.append(self._tokens.popleft())
        return tuple(token for token in taken if self.echo or token.token not in self.end_tokens)

    def _take_withdrawn(self, *, is_last: bool) -> tuple[WithdrawnText, ...]:
        certain = [text for text in self._withdrawn if is_last or text.start <= self._returned]
        self._withdrawn = [text for text in self._withdrawn if text not in certain]
        return tuple(text._replace(start=min(text.start, self._returned)) for text in certain)


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest end of a text with which a string begins, without being all of it.

    >>> _overlap("one two th", "three")
    2
    """
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
