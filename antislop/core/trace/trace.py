"""The trace of a call: the prompt and events of each text, from which the kept and withdrawn tokens are derived."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Drawn, Event, Finished, Rewound, TokenChoice
from antislop.core.trace.text_pieces import TextPiece, WrittenText, WrittenToken
from antislop.display import describe_count, make_visible
from antislop.errors import InputError

if TYPE_CHECKING:
    from antislop.core.bans.ban_list import BanList
    from antislop.core.bans.characters import Surfaces

RecordLevel = Literal["none", "events", "top", "full"]
"""What to record: "none"; "events"; "top", which adds likely alternatives to each draw; "full", which adds all."""


@dataclass(frozen=True)
class Recording:
    """What a call records. top_k: the number of alternatives recorded for each draw if the level is "top"."""

    level: RecordLevel = "events"
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.level not in get_args(RecordLevel):
            raise InputError(f"record is {self.level!r}; it is one of {', '.join(map(repr, get_args(RecordLevel)))}")
        if self.top_k < 1:
            raise InputError(f"record_top_k is {self.top_k!r}; a number of alternatives, 1 or more, was expected")

    @property
    def has_choices(self) -> bool:
        """Whether each `Drawn` event has a `TokenChoice`."""
        return self.level in ("top", "full")

    @property
    def alternatives(self) -> int:
        """The maximum number of likely tokens that are recorded with each draw."""
        return sys.maxsize if self.level == "full" else self.top_k


EVENTS: Recording = Recording()
NOTHING: Recording = Recording("none")


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The recorded events of one call, which can be shown as text or HTML and saved to a file.

    rows: the texts, in the order of the batch.
    surfaces: the bytes of each token.
    describe: a function that returns the value of `about`; it is called once, when `about` is first read.
    """

    rows: tuple[TracedRow, ...]
    bans: BanList
    surfaces: Surfaces
    describe: Callable[[], Mapping[str, Any]]

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """The facts of the call as plain data: model, tokenizer, sampler, settings, versions, seed, record."""
        return self.describe()

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, (self.rows, self.bans, self.surfaces, partial(dict, self.about))

    @property
    def sequences(self) -> list[list[int]]:
        """For each text, the ids of the prompt, without padding, and of the generated tokens."""
        return [row.sequence for row in self.rows]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file of JSON Lines, which is replaced as a whole or not at all.

        The file contains the texts, the bans and the bytes of the tokens, so it can be shown without the model. Raises
        `BanError` for a ban that can't be written as text.
        """
        from antislop.explain.trace_file import write_trace

        write_trace(path, self.rows, about=self.about, bans=self.bans, surfaces=self.surfaces)

    @classmethod
    def load(cls, source: str | os.PathLike[str] | IO[bytes]) -> Trace:
        """Read a trace from the path of a file that `save` wrote, or from a binary stream of such a file.

        Raises `InputError` for any other file, and for a trace that was changed after it was saved.
        """
        from antislop.explain.trace_file import read_trace

        rows, bans, surfaces, about = read_trace(source)
        return cls(rows, bans, surfaces, lambda: about)

    def to_text(self, *, row: int = 0) -> str:
        """Return one text without its prompt, as plain text that also shows what was withdrawn.

        Withdrawn: " [-a testament to-]"; conceded: " [!a testament to!]". Control characters become visible symbols.
        """
        from antislop.explain.console import to_plain

        text = to_plain(piece for piece in self.pieces(row=row) if piece.kind != "prompt")
        return make_visible(text, keep_layout=True)

    def to_html(
        self, *, relevance: Mapping[tuple[int, int], Sequence[float]] | None = None, title: str | None = None
    ) -> str:
        """Return a self-contained page: texts with withdrawn parts struck through, a table of bans, time lines, facts.

        relevance: for the token (row, token_index), a number for each earlier token of prompt and text, not of padding;
            they are shown as shading when the token is selected. Raises `InputError` for a token that doesn't exist.

        The page loads nothing from the network, and no text becomes markup. The fragment "#token-12" of its address
        opens the details of token 12 in the first text, "#text-1-token-12" those in the second text of a batch.
        """
        from antislop.explain.html_view import render_page

        return render_page(
            self.rows,
            surfaces=self.surfaces,
            list_size=len(self.bans),
            about=self.about,
            relevance=relevance,
            title=title,
        )

    def pieces(self, *, row: int = 0) -> list[TextPiece]:
        """Return the prompt and the text of a row as labeled pieces, in the order in which they were written.

        The generated pieces that are not withdrawn, joined, are the decoded output.
        """
        from antislop.explain.row_view import list_pieces

        if not -len(self.rows) <= row < len(self.rows):
            raise IndexError(f"row {row!r}: the trace has {describe_count(len(self.rows), 'text')}, numbered from 0")
        return list_pieces(self.rows[row], surfaces=self.surfaces, about=self.about)

    def __repr__(self) -> str:
        histories = [row.history for row in self.rows]
        kept = sum(len(history.kept) for history in histories)
        attempts = [attempt for history in histories for attempt in history.attempts]
        withdrawn = sum(len(attempt.tokens) for attempt in attempts)
        return (
            f"<Trace of {len(self.rows)}: {describe_count(kept, 'token')} kept, {withdrawn:,} withdrawn in "
            f"{describe_count(len(attempts), 'rewind')}>"
        )

    def _repr_html_(self) -> str:
        from antislop.explain.html_view import write_fragment

        return write_fragment(self.rows, surfaces=self.surfaces, about=self.about)


# -- one text ---------------------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """Tokens that one rewind or cut withdrew together.

    token_index: the place in the text of the first of these tokens.
    step_index: the number of tokens drawn before that first token, including withdrawn tokens.
    choice: the recorded distribution of that first token; None if it was not recorded.
    violation: the violation that caused the rewind; None if a controller or other rows of the batch cut the text.
    is_on_path: whether the final text begins with all tokens that came before the attempt.
    end_index: the number of tokens drawn until the attempt was withdrawn.
    alternatives: the likeliest next tokens, as in `Rewound`.
    """

    tokens: tuple[int, ...]
    token_index: int
    step_index: int
    choice: TokenChoice | None
    violation: Violation | None
    is_on_path: bool
    end_index: int
    alternatives: tuple[tuple[int, float], ...] = ()


class KeptToken(NamedTuple):
    """A token of the final text. `token_index`, `step_index` and `choice` are as in `Attempt`, for this token.

    rejected: the attempts that began at this place of the text, after the same tokens, in the order of time.
    """

    token: int
    token_index: int
    step_index: int
    choice: TokenChoice | None
    rejected: tuple[Attempt, ...]


class RowHistory(NamedTuple):
    """The kept tokens of one text, and its attempts in the order of time.

    rejected_at_end: the attempts that began after the last kept token.
    attempts: all attempts, including those that began in text that was itself withdrawn.
    """

    kept: tuple[KeptToken, ...]
    rejected_at_end: tuple[Attempt, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class TokenSurfaces:
    """The bytes of the tokens that occur in a trace; for all other ids, no bytes."""

    surfaces: Mapping[int, bytes]
    byte_tokens: frozenset[int] = frozenset()
    breaks: Mapping[int, str] = field(default_factory=dict)

    def surface(self, token_id: int) -> bytes:
        return self.surfaces.get(token_id, b"")


@dataclass(frozen=True)
class TracedRow:
    """One text of a trace.

    prompt: the ids of the prompt as the model read them, including padding.
    events: the events in order; the last is `Finished` unless the text is unfinished.
    mask: 0 for each id of the prompt that is padding, 1 for each other id; None if there is no padding.
    """

    prompt: tuple[int, ...]
    events: Sequence[Event]
    mask: tuple[int, ...] | None = None

    @cached_property
    def history(self) -> RowHistory:
        return read_history(self.events)

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended; False if it was interrupted, or is still being generated."""
        return any(isinstance(event, Finished) for event in self.events)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the final text, without the prompt."""
        return [kept.token for kept in self.history.kept]

    @property
    def sequence(self) -> list[int]:
        """The ids of the prompt, without padding, and of the final text."""
        return [*self.prompt_tokens, *self.tokens]

    def list_tokens(self) -> Iterator[int]:
        """Yield all tokens of the prompt and the events, including recorded alternatives that were never drawn."""
        yield from self.prompt
        for event in self.events:
            if isinstance(event, Drawn):
                yield event.token
                yield from (other for other, _ in (event.choice.alternatives if event.choice else ()))
            elif isinstance(event, Rewound):  # each withdrawn or settled token has a `Drawn`
                yield from (other for other, _ in event.alternatives)

    @property
    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt, without padding."""
        mask = self.mask or (1,) * len(self.prompt)
        return [token for token, is_read in zip(self.prompt, mask, strict=True) if is_read]


_Prefix: TypeAlias = "dict[int, _Prefix]"
"""A tree of all beginnings that the text ever had: each token that followed a beginning leads to the longer one."""


def read_history(events: Iterable[Event]) -> RowHistory:
    """Return the kept tokens and the withdrawn attempts of a text, derived from all of its events.

    >>> from antislop.core.trace import Drawn, Truncated
    >>> history = read_history([Drawn(5), Drawn(7), Truncated(1, (7,)), Drawn(8)])
    >>> [(kept.token, kept.token_index, kept.step_index, len(kept.rejected)) for kept in history.kept]
    [(5, 0, 0, 0), (8, 1, 2, 1)]
    """
    text = WrittenText(TokenSurfaces({}))
    *tokens, _ = text.read(events)
    path: list[_Prefix] = [{}]  # all beginnings of the text at the time of the current draw, shortest first
    parts, contexts = defaultdict[int, list[tuple[int, WrittenToken]]](list), dict[int, _Prefix]()
    for step, written in enumerate(tokens):
        del path[written.index + 1 :]
        contexts.setdefault(written.attempt, path[-1])
        parts[written.attempt].append((step, written))
        path.append(path[-1].setdefault(written.token, {}))
    del path[len(parts[0]) + 1 :]
    attempts, rejected = list[Attempt](), defaultdict[int, list[Attempt]](list)
    for number, (end, event) in enumerate(text.cuts, start=1):
        step, first = parts[number][0]
        withdrawn = tuple(written.token for _, written in parts[number])
        violation, alternatives = (event.violation, event.alternatives) if isinstance(event, Rewound) else (None, ())
        is_on_path = first.index < len(path) and path[first.index] is contexts[number]
        attempts.append(Attempt(withdrawn, first.index, step, first.choice, violation, is_on_path, end, alternatives))
        if is_on_path:
            rejected[first.index].append(attempts[-1])
    kept = [
        KeptToken(written.token, written.index, step, written.choice, tuple(rejected[written.index]))
        for step, written in parts[0]
    ]
    return RowHistory(tuple(kept), tuple(rejected[len(kept)]), tuple(attempts))
