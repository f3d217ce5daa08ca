"""The settings of a call of `generate`: its logits processors and stopping criteria, for rows of any length."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from antislop.core.hf.callbacks.criteria import Criteria
from antislop.core.hf.callbacks.memory import name_of
from antislop.core.hf.callbacks.processors import Processors
from antislop.core.loop.forced import LookAhead
from antislop.core.loop.row import CallbackMemory, Row
from antislop.errors import InputError


class Settings:
    """The processors and criteria of a batch of `rows` rows.

    pad: the token that finished rows are filled with, if there is one.
    shares_processors, shares_criteria: whether other texts use the same objects.

    Raises `InputError` for those that can't be shared, drafted for or rewound.
    """

    def __init__(
        self,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        rows: int,
        pad: int | None = None,
        is_drafted: bool = False,
        shares_processors: bool = False,
        shares_criteria: bool = False,
    ) -> None:
        self._processors = Processors(logits_processor, rows=rows, pad=pad or 0, is_shared=shares_processors)
        self._draft_processors = self._processors.for_drafts()
        self._criteria = Criteria(stopping_criteria, rows=rows, pad=pad, is_shared=shares_criteria)
        self._batch: Sequence[Row] = ()
        self.eos_token_ids = self._criteria.eos_token_ids
        rewindable = self._processors.rewindable if rows > 1 else []
        self.is_lockstep = self._criteria.is_lockstep or bool(rewindable)
        if rewindable and is_drafted:
            raise InputError(
                f"{name_of(rewindable[0])} sees the rows of a batch in step, and drafts let one row be read ahead: "
                "leave out prompt lookup and assistants, or pass one prompt at a time"
            )

    @property
    def fits_any_prompt(self) -> bool:
        return self._processors.is_blind and not self._criteria.others

    @property
    def step_count(self) -> int:
        return self._criteria.step_count

    def follow(self, rows: Sequence[Row]) -> CallbackMemory | None:
        """Take the rows of the batch; return the history that follows their rewinds, None if nothing remembers text."""
        # A single row without one is not kept: a cycle of row and settings would delay the release of its memory.
        remembers = self.is_lockstep or self._processors.has_user_processors
        self._batch = rows if remembers or len(rows) > 1 else ()
        self._processors.batch = self._draft_processors.batch = self._batch
        return self if remembers else None

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        return self._processors.process(rows, lengths, logits)

    def process_drafts(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores as `process` does, for tokens that may never be written: without the caller's processors."""
        return self._draft_processors.process(rows, lengths, logits)

    def may_ask_again(self, length: int) -> bool:
        return self._processors.may_ask_again(length)

    def find_constraint(self, row: Row, length: int, logits: Tensor) -> str | None:
        return self._processors.find_constraint(row, length, logits)

    def look_ahead(self, row: Row, length: int) -> LookAhead | None:
        return self._processors.look_ahead(row, length)

    def is_done(self, row: Row) -> bool:
        """Return whether an end token, the length limit or a criterion that looks at one row ends a text."""
        if row.tokens[-1] in self.eos_token_ids or len(row.tokens) >= row.max_new_tokens:
            return True
        return not self.is_lockstep and bool(self._criteria.others) and self._criteria.is_done(row)

    def ask(self) -> list[bool]:
        return self._criteria.ask(self._batch)

    def rewind(self, row: Row, length: int) -> None:
        self._processors.rewind(row, length)
        if self.is_lockstep:
            self._criteria.rewind(self._batch, length)

    def settle(self, length: int) -> None:
        self._criteria.settle(length)
