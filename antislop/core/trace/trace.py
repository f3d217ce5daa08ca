"""The trace of a call: the prompt and events of each text, with the tokens kept and each withdrawn attempt."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Event,
    Finished,
    Forced,
    Forked,
    Forwarded,
    Rewound,
    Settled,
    TimedOut,
    TokenChoice,
    Truncated,
)
from antislop.core.trace.text_pieces import TextPiece, WrittenText, WrittenToken
from antislop.display import describe_count, make_visible
from antislop.errors import InputError

if TYPE_CHECKING:
    from antislop.core.bans.ban_list import BanList
    from antislop.core.bans.characters import Surfaces

RecordLevel = Literal["none", "events", "top", "full"]
"""Nothing; events; also the likeliest alternatives of each draw; or all alternatives."""


@dataclass(frozen=True)
class Recording:
    """What a call records. top_k: alternatives for each draw."""

    level: RecordLevel = "events"
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.level not in get_args(RecordLevel):
            raise InputError(f"record is {self.level!r}; it is one of {', '.join(map(repr, get_args(RecordLevel)))}")
        if self.top_k < 1:
            raise InputError(f"record_top_k is {self.top_k!r}; a number of alternatives, 1 or more, was expected")

    @property
    def has_choices(self) -> bool:
        """Whether the distribution of each draw is recorded."""
        return self.level in ("top", "full")

    @property
    def alternatives(self) -> int:
        """The number of likely tokens that are recorded with each draw."""
        return sys.maxsize if self.level == "full" else self.top_k


EVENTS: Recording = Recording()
NOTHING: Recording = Recording("none")


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """All that happened in one call, to be shown and saved.

    rows: a text each, in the order of the batch.
    surfaces: the bytes of each token.
    describe: returns `about`.
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
        """Prompt and tokens of each text, without padding."""
        return [row.sequence for row in self.rows]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON Lines; the file is replaced as a whole or not at all.

        It contains the texts, the bans and the bytes of the tokens, so that it can be shown without the model. Raises
        `BanError` for a ban that can't be written as text.
        """
        from antislop.explain.trace_file import write_trace

        write_trace(path, self.rows, about=self.about, bans=self.bans, surfaces=self.surfaces)

    @classmethod
    def load(cls, source: str | os.PathLike[str] | IO[bytes]) -> Trace:
        """Read a file that `save` wrote, or a binary stream of it.

        Raises `InputError` for any other file, and for one that was changed.
        """
        from antislop.explain.trace_file import read_trace

        rows, bans, surfaces, about = read_trace(source)
        return cls(rows, bans, surfaces, lambda: about)

    def to_text(self, *, row: int = 0) -> str:
        """Return one text without its prompt: withdrawn as " [-a testament to-]", conceded as " [!a testament to!]".

        Control and direction characters become visible symbols.
        """
        from antislop.explain.console import to_plain

        text = to_plain(piece for piece in self.pieces(row=row) if piece.kind != "prompt")
        return make_visible(text, keep_layout=True)

    def to_html(
        self, *, relevance: Mapping[tuple[int, int], Sequence[float]] | None = None, title: str | None = None
    ) -> str:
        """Return a self-contained page: texts with withdrawn parts struck through, a table of bans, time lines, facts.

        relevance: for (row, token_index), a number for each token before that one, the prompt's included, padding not,
            shown as shading when the token is selected. Raises `InputError` for a token that doesn't exist.

        The page loads nothing from the network, and no text becomes markup. The address "#token-12" opens it at the
        details of that token, "#text-1-token-12" at those of one in the second text of a batch.
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
        """Return the prompt and the text of a row as pieces, in the order in which they were written.

        The pieces of the text that are not withdrawn, joined, are the decoded output.
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
    """Tokens that were withdrawn together.

    token_index: of the first of them in the text.
    step_index: the number of tokens drawn before it, withdrawn ones included.
    choice: of the first token, if it was recorded.
    violation: None if a controller or the other rows of the batch cut the text.
    is_on_path: whether the final text begins with all that preceded the attempt.
    end_index: the number of tokens drawn until it was withdrawn.
    alternatives: as in `Rewound`.
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
    """A token of the final text; fields as in `Attempt`.

    rejected: the attempts that were withdrawn at this place after the same tokens, in order.
    """

    token: int
    token_index: int
    step_index: int
    choice: TokenChoice | None
    rejected: tuple[Attempt, ...]


class RowHistory(NamedTuple):
    """The kept tokens of one text, and all attempts, in order.

    rejected_at_end: attempts that were withdrawn behind the last kept token.
    attempts: those on withdrawn paths included.
    """

    kept: tuple[KeptToken, ...]
    rejected_at_end: tuple[Attempt, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class TokenSurfaces:
    """The bytes of the tokens that a trace contains; other ids have none."""

    surfaces: Mapping[int, bytes]
    byte_tokens: frozenset[int] = frozenset()
    breaks: Mapping[int, str] = field(default_factory=dict)

    def surface(self, token_id: int) -> bytes:
        return self.surfaces.get(token_id, b"")


@dataclass(frozen=True)
class TracedRow:
    """One text of a trace.

    prompt: its ids as the model read them, padding included.
    events: in order; those of an unfinished text don't end with `Finished`.
    mask: for each id of the prompt 0 if it is padding, else 1; None if none is.
    """

    prompt: tuple[int, ...]
    events: Sequence[Event]
    mask: tuple[int, ...] | None = None

    @cached_property
    def history(self) -> RowHistory:
        return read_history(self.events)

    @property
    def is_finished(self) -> bool:
        """Whether the text came to its end, and was not interrupted."""
        return any(isinstance(event, Finished) for event in self.events)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the final text, without the prompt's."""
        return [kept.token for kept in self.history.kept]

    @property
    def sequence(self) -> list[int]:
        """The tokens of prompt and text, without padding."""
        return [*self.prompt_tokens, *self.tokens]

    def list_tokens(self) -> Iterator[int]:
        """Yield all tokens of the prompt and of the events, likely ones that were not drawn included."""
        yield from self.prompt
        for event in self.events:
            match event:
                case Drawn(token, choice):
                    yield token
                    yield from (other for other, _ in (choice.alternatives if choice else ()))
                case Rewound():
                    yield from (other for other, _ in event.alternatives)
                case Truncated() | Settled():
                    pass  # they were drawn
                case Forwarded() | Drafted() | Forked() | Admitted() | Conceded() | Forced() | TimedOut() | Finished():
                    pass

    @property
    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt, without padding."""
        mask = self.mask or (1,) * len(self.prompt)
        return [token for token, is_read in zip(self.prompt, mask, strict=True) if is_read]


_Prefix: TypeAlias = "dict[int, _Prefix]"
"""A beginning that the text had at some time, by the tokens that followed it."""


def read_history(events: Iterable[Event]) -> RowHistory:
    """Return the kept tokens of a text and the withdrawn attempts, from all of its events.

    >>> from antislop.core.trace import Drawn, Truncated
    >>> history = read_history([Drawn(5), Drawn(7), Truncated(1, (7,)), Drawn(8)])
    >>> [(kept.token, kept.token_index, kept.step_index, len(kept.rejected)) for kept in history.kept]
    [(5, 0, 0, 0), (8, 1, 2, 1)]
    """
    text = WrittenText(TokenSurfaces({}))
    *tokens, _ = text.read(events)
    path: list[_Prefix] = [{}]  # the beginnings of the text when a token was drawn
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
