"""Turn the events of a text into the chunks that its client gets: settled text, up to a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from antislop.core.bans import Ban, decode
from antislop.core.hf import Vocabulary
from antislop.core.trace import Drawn, Event, Report, Rewound, TokenChoice, WrittenText, find_spans
from antislop.serve.backend import PromptChoices

FinishReason = Literal["stop", "length", "repetition"]


class SettledToken(NamedTuple):
    """A token of the text that no rewind can withdraw any more.

    start: the index of the token's first character in the text.
    choice: the probabilities from which the token was drawn, if recorded.
    """

    token: int
    start: int
    choice: TokenChoice | None


class WithdrawnText(NamedTuple):
    """Text that a rewind withdrew.

    start: the index in the text at which the withdrawn text began, and other text follows now.
    tokens: the number of withdrawn tokens.
    """

    text: str
    ban: Ban
    start: int
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. `banned` is the range [start, end) of the banned phrase in the withdrawn text."""
        spans = find_spans(self.ban, self.text)
        banned = (spans[0][0], spans[-1][1]) if spans else (0, len(self.text))  # no span: it began before this text
        return {**self._asdict(), "ban": self.ban.text, "banned": banned}


@dataclass(frozen=True)
class Echo:
    """A prompt that is repeated at the beginning of its answer. starts: the index of each token's first character."""

    text: str
    tokens: Sequence[int]
    starts: Sequence[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary, tokens: Sequence[int], text: str) -> Echo:
        """Locate a prompt's tokens in the prompt's text, in which special tokens may be spelled or left out."""
        starts, at = [], 0
        *written, _ = WrittenText(vocabulary).read(map(Drawn.plain, tokens))
        for each in written:
            starts.append(min(at, len(text)))
            if name := vocabulary.breaks.get(each.token, ""):
                at += len(name) if text.startswith(name, at) else 0
            else:
                at += len(each.text if text.startswith(each.text, at) else each.text.removeprefix(" "))
        return cls(text, tokens, starts)


@dataclass(frozen=True)
class AnswerChunk:
    """The next part of a text. withdrawn: texts that were withdrawn before or within this part, in order of time."""

    text: str = ""
    tokens: tuple[SettledToken, ...] = ()
    withdrawn: tuple[WithdrawnText, ...] = ()
    finish_reason: FinishReason | None = None

    @staticmethod
    def join(chunks: Sequence[AnswerChunk]) -> AnswerChunk:
        return AnswerChunk(
            "".join(chunk.text for chunk in chunks),
            tuple(token for chunk in chunks for token in chunk.tokens),
            tuple(text for chunk in chunks for text in chunk.withdrawn),
            chunks[-1].finish_reason,
        )


@dataclass
class ChunkMaker:
    """Turns the events of one text into chunks of whole characters that no rewind or stop string can take back.

    stop: strings that end the text and are left out with all that follows.
    drops_space: leave out a space at the beginning.
    end_tokens: tokens that end a text by themselves; without an echo, chunks don't list these tokens.
    spelled: special tokens whose names are part of the text.
    echo: the prompt, if the answer begins with the prompt; indices then count from the prompt's beginning.
    kept: number of settled tokens.
    """

    vocabulary: Vocabulary
    max_new_tokens: int
    stop: Sequence[str] = ()
    drops_space: bool = False
    end_tokens: Collection[int] = ()
    spelled: Mapping[int, str] = field(default_factory=dict)
    echo: Echo | None = None
    report: Report = field(default_factory=Report)
    kept: int = 0

    def __post_init__(self) -> None:
        self._written = WrittenText(self.vocabulary, drops_space=self.drops_space)
        self._text = ""  # settled, not yet returned
        self._returned = 0  # characters
        self._tokens: deque[SettledToken] = deque()  # settled, not yet returned
        self._withdrawn: list[WithdrawnText] = []
        self._last_token = -1

    def begin(self, choices: Iterable[TokenChoice | None] = ()) -> AnswerChunk | None:
        """Return the chunk of the echoed prompt, if any; it is the last chunk if no new tokens are asked for."""
        if self.echo is None:
            return None
        tokens = map(SettledToken, self.echo.tokens, self.echo.starts, choices)
        return AnswerChunk(self.echo.text, tuple(tokens), finish_reason=None if self.max_new_tokens else "length")

    def add(self, event: Event | PromptChoices) -> AnswerChunk | None:
        """Return the chunk that an event completes, if any; the last chunk has a `finish_reason`."""
        if isinstance(event, PromptChoices):
            return self.begin(event.choices)
        self.report.count(event)
        cuts, settled = len(self._written.cuts), [each for each in self._written.add(event) if not each.attempt]
        for _, cut in self._written.cuts[cuts:]:
            lengths = [len(written.text) for written in self._written.unsettled]
            start = self._returned + len(self._text) + sum(lengths)
            # Earlier texts may have been withdrawn after a character that is withdrawn now.
            self._withdrawn = [text._replace(start=min(text.start, start)) for text in self._withdrawn]
            if isinstance(cut, Rewound):
                text = decode(self.vocabulary, cut.withdrawn)
                self._withdrawn.append(WithdrawnText(text, cut.violation.ban, start, len(cut.withdrawn)))
        for written in settled:
            if not written.is_end:
                place = self._returned + len(self._text)
                self._tokens.append(SettledToken(written.token, place, written.choice))
                self.kept += 1
                self._last_token = written.token
            self._text += written.text + self.spelled.get(written.token, "")
        if not settled or not settled[-1].is_end:
            return self._release(hold=True) if settled else None
        chunk = self._release(hold=False) or AnswerChunk()
        if chunk.finish_reason:
            return chunk
        if self.report.reason == "repetition":
            return replace(chunk, finish_reason="repetition")
        is_full = self.kept >= self.max_new_tokens and self._last_token not in self.end_tokens
        return replace(chunk, finish_reason="length" if is_full else "stop")

    def _release(self, *, hold: bool) -> AnswerChunk | None:
        """Return a chunk of the final text, if any. hold: keep back text that may be the beginning of a stop string."""
        starts = ((self._text.find(string), string) for string in self.stop)
        ends = [(start + len(string), start) for start, string in starts if start >= 0]
        stop = min(ends)[1] if ends else None  # the start of the string that ends first: it is complete first
        is_last = stop is not None or not hold
        held = 0 if is_last else max((_overlap(self._text, string) for string in self.stop), default=0)
        count = len(self._text) - held if stop is None else stop
        text, self._text = self._text[:count], self._text[count:]
        self._returned += count
        before = len(self.echo.text) if self.echo else 0  # the client's indices begin with the echo
        tokens = []
        while self._tokens and (self._tokens[0].start < self._returned or (is_last and not self._text)):
            token = self._tokens.popleft()
            if self.echo or token.token not in self.end_tokens:
                tokens.append(token._replace(start=before + token.start))
        certain = [cut for cut in self._withdrawn if is_last or cut.start <= self._returned]
        self._withdrawn = [cut for cut in self._withdrawn if cut not in certain]
        # A text that was withdrawn beyond a stop string is placed at the end of the returned text.
        withdrawn = tuple(cut._replace(start=before + min(cut.start, self._returned)) for cut in certain)
        if not (text or tokens or withdrawn or stop is not None):
            return None
        return AnswerChunk(text, tuple(tokens), withdrawn, None if stop is None else "stop")


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest proper prefix of `string` that `text` ends with.

    >>> _overlap("one two th", "three")
    2
    """
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
