"""The trace of a call: the events of all its texts, and all that is needed to show or repeat them. No torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from antislop.trace.attempts import RowHistory, read_history
from antislop.trace.events import Event

if TYPE_CHECKING:
    from antislop.lists.ban_list import BanList
    from antislop.matching.token_matcher import Surfaces

RecordLevel = Literal["none", "events", "top", "full"]
"""How much a call records: nothing; its events; also, for each draw, the likeliest alternatives, or all of them."""


@dataclass(frozen=True)
class TracedRow:
    """One text of a trace.

    prompt: its ids as the model read them, padding included. mask: for each of them 0 if it is padding, else 1; None if
        none is padding. events: in order; those of an unfinished text don't end with `Finished`.
    """

    prompt: tuple[int, ...]
    events: Sequence[Event]
    mask: tuple[int, ...] | None = None

    @cached_property
    def history(self) -> RowHistory:
        """The kept tokens, and the attempts that were withdrawn."""
        return read_history(self.events)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the final text, without the prompt's."""
        return [kept.token for kept in self.history.kept]

    @property
    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt, without padding."""
        mask = self.mask or (1,) * len(self.prompt)
        return [token for token, is_read in zip(self.prompt, mask, strict=True) if is_read]


@dataclass(frozen=True, eq=False)
class Trace:
    """All that happened in one call, to be shown, saved and repeated.

    rows: a text each, in the order of the batch. bans: the compiled list. surfaces: the bytes of each token.
    describe: returns the facts of the call, as `about` has them; called once, when they are asked for.
    """

    rows: tuple[TracedRow, ...]
    bans: BanList
    surfaces: Surfaces = field(repr=False)
    describe: Callable[[], Mapping[str, Any]] = field(repr=False)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """The facts of the call as plain data: model, tokenizer, sampler, settings, versions, seed, record."""
        return self.describe()

    @property
    def sequences(self) -> list[list[int]]:
        """Prompt and tokens of each text, without padding."""
        return [[*row.prompt_tokens, *row.tokens] for row in self.rows]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON Lines; the file is replaced as a whole or not at all. Read it back with `load`.

        It contains the texts, the whole list of bans and the bytes of the tokens that occur, so that it can be shown
        without the model. Raises `BanError` for a ban that can't be written as text.
        """
        from antislop.trace.trace_file import save_trace

        save_trace(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a file that `save` wrote. Raises `InputError` for any other file, and for one that was changed."""
        from antislop.trace.trace_file import load_trace

        return load_trace(path)
