"""One text of a trace: its prompt, and all its events. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from antislop.trace.attempts import RowHistory, read_history
from antislop.trace.events import Event, Finished


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

    @property
    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt, without padding."""
        mask = self.mask or (1,) * len(self.prompt)
        return [token for token, is_read in zip(self.prompt, mask, strict=True) if is_read]
