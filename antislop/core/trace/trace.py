"""The trace of a call: the events of all its texts, and all that is needed to show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from antislop.core.trace.traced_row import TracedRow
from antislop.display import describe_count, make_visible
from antislop.errors import InputError

if TYPE_CHECKING:
    from antislop.core.bans.ban_list import BanList
    from antislop.core.bans.characters import Surfaces
    from antislop.core.trace.text_pieces import TextPiece


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
