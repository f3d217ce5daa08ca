"""The logits processors of a batch, and `BatchCallbacks`: the batch's processors together with its stopping criteria.

The processors of transformers and of this package depend on ids and scores alone. A processor of the caller may
remember the text. A `Rewindable` processor is rewound with the text and sees each position once, in order. Any other
processor is wrapped in `Replayed`, which makes it forget withdrawn text if it follows a single row. If it follows
several rows, its calls must not change it, and `SharingError` is raised if they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from antislop.core.hf.callbacks.criteria import Criteria
from antislop.core.hf.callbacks.memory import Followable, Recognizer, Replayed, Rewindable, name_of
from antislop.core.hf.refusals import refusal
from antislop.core.loop.forced import LookAhead
from antislop.core.loop.protocols import send
from antislop.core.loop.row import Callbacks, Row, ids_of
from antislop.core.loop.tables import find_dense
from antislop.errors import SharingError

# Processors that read the scores alone: rows of any length and prompt go through them in one call.
_BLIND = {
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TopHLogitsWarper",
    "MinPLogitsWarper",
    "TypicalLogitsWarper",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "LogitNormalization",
    "SuppressTokensLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "TopNSigmaLogitsProcessor",
    "XtcLogitsProcessor",
}
# Processors that depend on the index of the row in the batch.
COUNTING = {
    "RepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
}
NO_CHOICE_SHARE = 0.01
"""A processor that leaves less than this share of the possible tokens is said to leave no choice."""


class Processors:
    """The logits processors of a batch of `rows` rows.

    pad: the token that finished rows are filled with.
    is_shared: whether the same processor objects are also called for texts outside this batch.

    Raises `InputError` for a processor that can't be shared, or whose memory of the text can't be copied.
    """

    def __init__(self, processors: LogitsProcessorList, *, rows: int, pad: int, is_shared: bool) -> None:
        # XTC comes last, since later processors would change its mixture; `generate` puts its own after the caller's.
        in_order = sorted(processors, key=_is_last)
        self._is_alone = rows == 1 and not is_shared
        self._list = LogitsProcessorList(_follow(processor, is_alone=self._is_alone) for processor in in_order)
        self.user_processors = [p for p in self._list if not is_stateless(p)]
        self.rewindable = [p for p in self.user_processors if isinstance(p, Rewindable)]
        self._replayed = [p for p in self.user_processors if isinstance(p, Replayed)]
        parts = [part for each in filter(_is_last, in_order) for part in each.after]
        names = {type(processor).__name__ for processor in (*in_order, *parts)}
        self.is_blind = not self.user_processors and names <= _BLIND
        self._is_counting = rows > 1 and bool(self.user_processors or names & COUNTING)
        self._pad = pad
        self._rows = rows
        self._is_shared = is_shared
        self._is_first = True
        self._is_disturbed = False  # whether processors were called in an order that no text without rewinds has
        self._shown = -1  # generated tokens that the rewindable processors have seen; -1 before the prompt
        self._padded: dict[int, int] = {}  # row index to length, for rows shown to these processors with padding
        self.batch: Sequence[Row] = ()
        passed = [p for p in self.rewindable if any(p is shared for shared in processors)]
        if is_shared and passed:
            raise refusal("shared processor", name=name_of(passed[0]))

    @torch.no_grad()
    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores [n, vocab] of logits [n, vocab]; logits[i] follow the first lengths[i] tokens of rows[i]."""
        if not self._list:
            return logits
        if self.is_blind:
            scores: Tensor = self._list(rows[0].ids_up_to(0)[:, -1:].expand(len(rows), -1), logits)
            return scores
        sizes = [row.prompt_length + length for row, length in zip(rows, lengths, strict=True)]
        if len(set(sizes)) == 1:
            return self._process(rows, lengths[0], logits)
        scores = logits.clone()
        can_follow = self._find_rejected(rows, lengths, scores)
        for size in sorted(set(sizes)):
            numbers = [number for number, row_size in enumerate(sizes) if row_size == size and can_follow(number)]
            if numbers:
                group, index = [rows[number] for number in numbers], send(torch.tensor(numbers), logits.device)
                scores[index] = self._process(group, lengths[numbers[0]], logits[index])
        return scores

    def rewind(self, row: Row, length: int) -> None:
        """Make the processors forget all but `length` tokens of a row; raise `InputError` if one of them can't."""
        if not self.user_processors:
            return
        self._is_disturbed = True
        self._rewind_to(length, row)
        if not self._is_alone:
            self._refuse_memory(calls_again=True)

    def may_ask_again(self, length: int) -> bool:
        """Return whether processors may be called twice after `length` tokens; not at 0 if one is rewindable."""
        return not self.rewindable or length > 0

    def find_constraint(self, row: Row, length: int, logits: Tensor) -> str | None:
        """Return the name of the first processor of the caller that rules out nearly all tokens.

        Return None if there is none, or if processors can't be called a second time.
        logits: [1, vocab], after `length` generated tokens of the row.
        """
        if not self.user_processors or not self.may_ask_again(length):
            return None
        self._catch_up(length, like=logits)
        ids, scores, row_indices = self._arrange([row], length, logits)
        index, forcing, scores = 0 if row_indices is None else row.index, list[str](), scores.clone()
        for processor in self._list:  # all processors, since this call shows the position to rewindable processors
            before = int((scores[index] > -torch.inf).sum())
            scores = self._call(processor, ids, scores)
            left = int((scores[index] > -torch.inf).sum())
            if processor in self.user_processors and left < NO_CHOICE_SHARE * before:
                forcing.append(name_of(processor))
        return forcing[0] if forcing else None

    def look_ahead(self, row: Row, length: int) -> LookAhead | None:
        """Return the grammar's state after `length` tokens of a row; None without a grammar that reads characters."""
        grammars = [each for each in self.rewindable if isinstance(each, Recognizer)]
        return grammars[0].look_ahead(row.index if self._rows > 1 else 0, row.tokens[:length]) if grammars else None

    def _process(self, rows: Sequence[Row], length: int, logits: Tensor) -> Tensor:
        self._catch_up(length, like=logits)
        ids, all_logits, row_indices = self._arrange(rows, length, logits)
        if self.user_processors:
            scores = all_logits.clone()  # some processors write into it, and the model's logits are needed again
            for processor in self._list:
                scores = self._call(processor, ids, scores)
        else:
            scores = self._list(ids, all_logits)
        scores = scores if row_indices is None else scores[row_indices]
        if self.user_processors:
            for processor in self._replayed if self._is_alone else ():
                processor.settle(rows[0].settled)
            if self._is_shared:  # calls for several texts alternate, even if none of the texts rewinds
                self._refuse_memory(calls_again=self._is_first)
                self._is_first = False
        return scores

    def _arrange(self, rows: Sequence[Row], length: int, logits: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ids and logits for the processors; also the indices of `rows` if they got all rows of the batch."""
        if not self._is_counting or len(rows) == self._rows:
            return ids_of(rows, length), logits, None
        # Processors that count rows get all rows of the batch.
        row_indices = send(torch.tensor([row.index for row in rows]), logits.device)
        all_logits = logits[:1].repeat(self._rows, 1)
        all_logits[row_indices] = logits
        return self._ids_of_batch(rows, length), all_logits, row_indices

    def _call(self, processor: Callable[..., Any], ids: Tensor, scores: Tensor) -> Tensor:
        try:
            processed: Tensor = processor(ids, scores)
        except Exception as error:
            if self._is_disturbed and processor in self._replayed:
                fault = f"raised {type(error).__name__}"
                raise refusal("withheld memory", name=name_of(processor), fault=fault) from error
            raise
        return processed

    def _ids_of_batch(self, rows: Sequence[Row], length: int) -> Tensor:
        """Return ids [rows of the batch, tokens] for processors that must get all rows, but are called for `rows`.

        With rewindable processors, which read the latest token of each row, a row with too few tokens is padded; the
        pad tokens are rewound once the row has grown. Without, the ids of the first of `rows` take the row's place.
        """
        batch = {row.index: row for row in (*self.batch, *rows)}
        sizes = {
            index: len(row.tokens) + len(row.draft.tokens)
            for index, row in batch.items()
            if not (row.is_finished or row.end is not None)
        }
        behind = {index: size for index, size in sizes.items() if size < length}
        if self.rewindable:
            self._padded = behind | self._padded
        shown = [rows[0] if not self.rewindable and index in behind else row for index, row in sorted(batch.items())]
        return ids_of(shown, length, filler=self._pad)

    def _find_rejected(self, rows: Sequence[Row], lengths: Sequence[int], scores: Tensor) -> Callable[[int], bool]:
        """Return a function of i: whether the scores one position earlier allow the draft token before lengths[i]."""
        # A draft may contain tokens that a processor has ruled out and would fail on.
        numbers = {(id(row), length): number for number, (row, length) in enumerate(zip(rows, lengths, strict=True))}
        rejected: set[int] = set()

        def can_follow(number: int) -> bool:
            row, length = rows[number], lengths[number]
            before = numbers.get((id(row), length - 1))
            if not self.user_processors or before is None or length <= len(row.tokens):
                return True
            self._is_disturbed = True
            token = row.draft.tokens[length - len(row.tokens) - 1]
            if before in rejected or float(scores[before, token]) == -torch.inf:
                rejected.add(number)
            return number not in rejected

        return can_follow

    def _rewind_to(self, length: int, row: Row | None = None) -> None:
        """Rewind the processors for `row`, and for each other row if they have seen more than `length` tokens."""
        if length > self._shown:
            return
        for index, other in enumerate(self.batch):
            if other is row or (length < self._shown and (other.end is None or other.end > length)):
                for processor in self.rewindable:
                    processor.rewind(index, length)
        for replayed in self._replayed if self._is_alone else ():
            replayed.keep(length + 1)
        self._shown = length
        self._padded = {index: size for index, size in self._padded.items() if size < length}

    def _catch_up(self, length: int, *, like: Tensor) -> None:
        """Call the processors that remember text for each position that they have not seen, up to `length`."""
        followers = [*self.rewindable, *(self._replayed if self._is_alone else ())]
        if not followers:
            return
        # A token that is drawn from stored scores was drawn without a call, so processors have not seen it.
        grown = [size for index, size in self._padded.items() if len(self.batch[index].tokens) > size]
        if grown or length <= self._shown:
            self._rewind_to(min([*grown, length - 1]))
        for between in range(self._shown + 1, length):
            ids = self._ids_of_batch(self.batch, between)
            logits = like.new_zeros((self._rows, like.shape[-1]))
            if self._is_alone and self.batch[0].node.depth >= between:
                table = find_dense(self.batch[0].node.back_to(between))
                logits = logits if table is None else table.logits
            for processor in followers:
                processor(ids, logits.clone())
        self._shown = length

    def _refuse_memory(self, *, calls_again: bool) -> None:
        for processor in self._replayed:
            if calls_again:
                processor.keep(0)
            if processor.has_changed:
                raise refusal("changing processor", error=SharingError, name=name_of(processor))


class BatchCallbacks(Processors, Callbacks):
    """The logits processors and stopping criteria of a batch of `rows` rows.

    pad: the token that finished rows are filled with; None if there is none.
    shares_processors, shares_criteria: whether texts outside this batch use the same objects.

    Raises `InputError` for a processor or criterion that can't be shared, rewound, or used with drafts.
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
        super().__init__(logits_processor, rows=rows, pad=pad or 0, is_shared=shares_processors)
        # Drafts go through none of the caller's processors, which may remember tokens that are then not accepted.
        own = [processor for processor in self._list if is_stateless(processor)]
        # As in transformers, warpers (temperature, top-k, …) are applied twice to drafts: it passes them to the
        # assistant's `generate`, which makes them once more.
        own += [processor for processor in own if type(processor).__name__.endswith("Warper")]
        self._draft_processors = Processors(
            LogitsProcessorList(own), rows=rows, pad=pad or 0, is_shared=shares_processors
        )
        self._criteria = Criteria(stopping_criteria, rows=rows, pad=pad, is_shared=shares_criteria)
        self.eos_token_ids = self._criteria.eos_token_ids
        rewindable = self.rewindable if rows > 1 else []
        self.is_lockstep = self._criteria.is_lockstep or bool(rewindable)
        if rewindable and is_drafted:
            raise refusal("processor in step with drafts", name=name_of(rewindable[0]))

    @property
    def fits_any_prompt(self) -> bool:
        return self.is_blind and not self._criteria.others

    @property
    def step_count(self) -> int:
        return self._criteria.step_count

    def follow(self, rows: Sequence[Row]) -> Callbacks | None:
        """Set the rows of the batch; return these callbacks, or None if no processor or criterion remembers text."""
        # If none remembers text, no single row is kept: a cycle of references would delay the release of its memory.
        remembers = self.is_lockstep or bool(self.user_processors)
        self.batch = self._draft_processors.batch = rows if remembers or len(rows) > 1 else ()
        return self if remembers else None

    def process_drafts(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores for drafts, which may be rejected: like `process`, but without the caller's processors."""
        return self._draft_processors.process(rows, lengths, logits)

    def is_done(self, row: Row) -> bool:
        """Return whether the latest token ends the text: an end token, the length limit, or a one-row criterion."""
        if row.tokens[-1] in self.eos_token_ids or len(row.tokens) >= row.max_new_tokens:
            return True
        return not self.is_lockstep and bool(self._criteria.others) and self._criteria.is_done(row)

    def ask(self) -> list[bool]:
        return self._criteria.ask(self.batch)

    def rewind(self, row: Row, length: int) -> None:
        super().rewind(row, length)
        if self.is_lockstep:
            self._criteria.rewind(self.batch, length)

    def settle(self, length: int) -> None:
        self._criteria.settle(length)


def _follow(processor: Callable[..., Any], *, is_alone: bool) -> Callable[..., Any]:
    if isinstance(processor, Followable):
        return processor.follow()
    is_followed = is_stateless(processor) or isinstance(processor, Rewindable)
    return processor if is_followed else Replayed(processor, is_alone=is_alone)


def _is_last(processor: Any) -> bool:
    return getattr(processor, "is_last", False)


def is_stateless(processor: Callable[..., Any]) -> bool:
    """Return whether a processor depends on ids and scores alone, as those of transformers and this package do."""
    is_known = type(processor).__module__.startswith(("transformers.", "antislop.steer.samplers"))
    return is_known and all(map(is_stateless, getattr(processor, "after", ())))
