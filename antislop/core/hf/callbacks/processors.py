"""The logits processors of a batch, and its callbacks: these processors, and its stopping criteria.

Processors are called in the order of the text, and checked for a memory that can't be rewound. Transformers' own, and
the samplers of this package, depend on ids and scores alone. A processor of the caller may remember the text. If it is
`Rewindable`, it is rewound with the text and sees each position once, in order. Any other forgets withdrawn text as
`Replayed` says if it follows a single row, and must not change with its calls if it follows several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from antislop.core.hf.callbacks.criteria import Criteria
from antislop.core.hf.callbacks.memory import Followable, Recognizer, Replayed, Rewindable, describe, name_of
from antislop.core.loop.forced import LookAhead
from antislop.core.loop.protocols import send
from antislop.core.loop.row import Callbacks, Row, ids_of
from antislop.core.loop.tables import find_dense
from antislop.errors import InputError, SharingError

# They look at the scores alone: rows of any length and prompt go through them together.
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
# They depend on the index of the row in the batch.
COUNTING = {
    "RepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
}
NO_CHOICE_SHARE = 0.01
"""Share of the possible tokens below which a processor leaves no choice."""


class Processors:
    """The processors of a batch of `rows` rows.

    pad: the token that finished rows are filled with.
    is_shared: whether other texts are processed by the same objects.

    Raises `InputError` for a processor that can't be shared, or whose memory can't be copied.
    """

    def __init__(self, processors: LogitsProcessorList, *, rows: int, pad: int, is_shared: bool) -> None:
        # What comes after XTC would change its mixture; `generate` puts its own after those of the caller.
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
        self._is_disturbed = False  # whether a processor was called in another order than that of one text
        self._shown = -1  # generated tokens that the rewindable processors have seen; -1 before the prompt
        self._padded: dict[int, int] = {}  # lengths of the rows of which they have seen padding instead
        self.batch: Sequence[Row] = ()
        passed = [p for p in self.rewindable if any(p is shared for shared in processors)]
        if is_shared and passed:
            raise InputError(
                f"{name_of(passed[0])} follows one text, and all texts of generate_many would share it: pass "
                "a function that makes processors for each text, logits_processor=lambda: [...]"
            )

    @torch.no_grad()
    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores [n, vocab]; the i-th logits [vocab] follow the first `lengths[i]` generated tokens of row i."""
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
        """Rewind the processors; raise `InputError` if one remembers withdrawn text."""
        if not self.user_processors:
            return
        self._is_disturbed = True
        self._rewind_to(length, row)
        if not self._is_alone:
            self._refuse_memory(calls_again=True)

    def may_ask_again(self, length: int) -> bool:
        """Return whether processors may be called twice after `length` tokens; rewindable ones see the prompt once."""
        return not self.rewindable or length > 0

    def find_constraint(self, row: Row, length: int, logits: Tensor) -> str | None:
        """Return the name of a caller's processor that rules out nearly all tokens.

        None: no processor does, or it can't be called a second time.
        logits: [1, vocab], after `length` generated tokens of the row.
        """
        if not self.user_processors or not self.may_ask_again(length):
            return None
        self._catch_up(length, like=logits)
        ids, scores, row_indices = self._arrange([row], length, logits)
        index, forcing, scores = 0 if row_indices is None else row.index, list[str](), scores.clone()
        for processor in self._list:  # all of them, since rewindable ones read the position by this call
            before = int((scores[index] > -torch.inf).sum())
            scores = self._call(processor, ids, scores)
            left = int((scores[index] > -torch.inf).sum())
            if processor in self.user_processors and left < NO_CHOICE_SHARE * before:
                forcing.append(name_of(processor))
        return forcing[0] if forcing else None

    def look_ahead(self, row: Row, length: int) -> LookAhead | None:
        """Return the grammar after `length` tokens of a row; None if there is none that reads characters."""
        grammars = [each for each in self.rewindable if isinstance(each, Recognizer)]
        return grammars[0].look_ahead(row.index if self._rows > 1 else 0, row.tokens[:length]) if grammars else None

    def _process(self, rows: Sequence[Row], length: int, logits: Tensor) -> Tensor:
        self._catch_up(length, like=logits)
        ids, all_logits, row_indices = self._arrange(rows, length, logits)
        if self.user_processors:
            scores = all_logits.clone()  # some write into their argument, and the model's logits are needed again
            for processor in self._list:
                scores = self._call(processor, ids, scores)
        else:
            scores = self._list(ids, all_logits)
        scores = scores if row_indices is None else scores[row_indices]
        if self.user_processors:
            for processor in self._replayed if self._is_alone else ():
                processor.settle(rows[0].settled)
            if self._is_shared:  # the calls of two texts alternate, also where none of them rewinds
                self._refuse_memory(calls_again=self._is_first)
                self._is_first = False
        return scores

    def _arrange(self, rows: Sequence[Row], length: int, logits: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return ids and logits for the processors, and the indices of the rows if these are not all."""
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
                raise InputError(describe(processor, f"raised {type(error).__name__}")) from error
            raise
        return processed

    def _ids_of_batch(self, rows: Sequence[Row], length: int) -> Tensor:
        """Return ids [rows of the batch, tokens] for a call about `rows`.

        A row with fewer tokens is padded if a processor reads each row by its latest token: then it reads the same at
        each step, until the row has grown. Otherwise the row is replaced by the first of `rows`, a text that exists.
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
        """Return a function that says whether the scores of the position before, computed by then, allow a token."""
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
        """Rewind one row, and all others of which more tokens were shown."""
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
        """Show rewound processors the positions between the last one that they saw and `length`."""
        followers = [*self.rewindable, *(self._replayed if self._is_alone else ())]
        if not followers:
            return
        # A row grows without a call where it is drawn from stored scores, and then has tokens that were not shown.
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
                raise SharingError(
                    f"{name_of(processor)} changes with its calls: it remembers the text, and other texts are written "
                    "at the same time. Pass one prompt at a time, or give it a method rewind(row, length), see "
                    "antislop.Rewindable, or make its scores depend on the ids and scores alone"
                )


class BatchCallbacks(Processors, Callbacks):
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
        super().__init__(logits_processor, rows=rows, pad=pad or 0, is_shared=shares_processors)
        # An assistant gets none of the caller's processors: they may remember text, and a draft is not always written.
        own = [processor for processor in self._list if is_stateless(processor)]
        # transformers hands an assistant its processors, and makes the warpers (temperature, top-k, …) once more there:
        # both are applied.
        own += [processor for processor in own if type(processor).__name__.endswith("Warper")]
        self._draft_processors = Processors(
            LogitsProcessorList(own), rows=rows, pad=pad or 0, is_shared=shares_processors
        )
        self._criteria = Criteria(stopping_criteria, rows=rows, pad=pad, is_shared=shares_criteria)
        self.eos_token_ids = self._criteria.eos_token_ids
        rewindable = self.rewindable if rows > 1 else []
        self.is_lockstep = self._criteria.is_lockstep or bool(rewindable)
        if rewindable and is_drafted:
            raise InputError(
                f"{name_of(rewindable[0])} sees the rows of a batch in step, and drafts let one row be read ahead: "
                "leave out prompt lookup and assistants, or pass one prompt at a time"
            )

    @property
    def fits_any_prompt(self) -> bool:
        return self.is_blind and not self._criteria.others

    @property
    def step_count(self) -> int:
        return self._criteria.step_count

    def follow(self, rows: Sequence[Row]) -> Callbacks | None:
        """Take the rows of the batch; return the callbacks, or None if no processor or criterion remembers text."""
        # A single row without one is not kept: a cycle of row and callbacks would delay the release of its memory.
        remembers = self.is_lockstep or bool(self.user_processors)
        self.batch = self._draft_processors.batch = rows if remembers or len(rows) > 1 else ()
        return self if remembers else None

    def process_drafts(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores as `process` does, for tokens that may never be written: without the caller's processors."""
        return self._draft_processors.process(rows, lengths, logits)

    def is_done(self, row: Row) -> bool:
        """Return whether an end token, the length limit or a criterion that looks at one row ends a text."""
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
    """Return whether a processor depends on ids and scores alone, as transformers' own and this package's do."""
    is_known = type(processor).__module__.startswith(("transformers.", "antislop.steer.samplers"))
    return is_known and all(map(is_stateless, getattr(processor, "after", ())))
