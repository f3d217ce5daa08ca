"""What a call of `generate` asks for: its logits processors and stopping criteria, for rows of any length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria

from antislop.inference import send
from antislop.row import Row
from antislop.support import memory_of, refuse_memory

# These look at the scores alone: rows of any length and any prompt go through them together.
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
}
# These ask which row of the batch they look at.
_COUNTING = {
    "RepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
}


class Settings:
    """The processors and criteria of a batch of `rows` rows."""

    def __init__(
        self, *, logits_processor: LogitsProcessorList, stopping_criteria: StoppingCriteriaList, rows: int
    ) -> None:
        self._processor = logits_processor
        self._strangers = [p for p in logits_processor if not type(p).__module__.startswith("transformers.")]
        self._memories: list[dict[str, tuple[int, int]]] = []
        names = {type(processor).__name__ for processor in logits_processor}
        self._rows = rows
        self._is_blind = not self._strangers and names <= _BLIND
        self._is_counting = rows > 1 and bool(self._strangers or names & _COUNTING)
        eos = [criterion for criterion in stopping_criteria if type(criterion) is EosTokenCriteria]
        self.eos_token_ids = frozenset(int(i) for criterion in eos for i in criterion.eos_token_id.flatten())
        # The two criteria that every run has are a look at an int; only others are worth their tensors.
        self._other_criteria = StoppingCriteriaList(
            c for c in stopping_criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)
        )

    @property
    def fits_any_prompt(self) -> bool:
        """Whether rows with other prompts may share these settings, as far as their processors and criteria go."""
        return self._is_blind and not self._other_criteria

    @torch.no_grad()
    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return the scores [n, vocab] that the processors make of logits [n, vocab].

        The i-th logits follow the first `lengths[i]` generated tokens of the i-th row.
        """
        if not self._processor:
            return logits
        if self._is_blind:
            return self._process(rows, torch.cat([row.ids_up_to(0)[:, -1:] for row in rows]), logits)
        sizes = [row.prompt_length + length for row, length in zip(rows, lengths, strict=True)]
        if len(set(sizes)) == 1:
            return self._process(rows, _ids_of(rows, sizes[0]), logits)
        scores = torch.empty_like(logits)
        for size in set(sizes):
            numbers = [number for number, own in enumerate(sizes) if own == size]
            some, index = [rows[number] for number in numbers], send(torch.tensor(numbers), logits.device)
            scores[index] = self._process(some, _ids_of(some, size), logits[index])
        return scores

    def is_done(self, row: Row) -> bool:
        """Tell whether the text is at its end: an end token, the length limit or any other criterion."""
        if row.tokens[-1] in self.eos_token_ids or len(row.tokens) >= row.capacity:
            return True
        if not self._other_criteria:
            return False
        scores = None if row.kept is None else tuple(scores for _, scores in row.kept)
        return bool(self._other_criteria(row.ids, scores).all())

    def _process(self, rows: Sequence[Row], ids: Tensor, logits: Tensor) -> Tensor:
        if self._is_counting and len(rows) < self._rows:
            return self._process_in_place(rows, ids, logits)
        scores: Tensor = self._processor(ids, logits)
        if self._strangers:
            self._check_strangers()
        return scores

    def _process_in_place(self, rows: Sequence[Row], ids: Tensor, logits: Tensor) -> Tensor:
        """Let processors that count rows see each one at its place, and copies of the first in all others."""
        places = send(torch.tensor([row.place for row in rows]), logits.device)
        all_ids, all_logits = (t[:1].repeat(self._rows, 1) for t in (ids, logits))
        all_ids[places], all_logits[places] = ids, logits
        scores: Tensor = self._processor(all_ids, all_logits)
        return scores[places]

    def _check_strangers(self) -> None:
        """Compare each processor of the user's with itself, after the first and the second call."""
        if self._memories:
            for processor, before in zip(self._strangers, self._memories, strict=True):
                refuse_memory(processor, before=before)
            self._strangers = []
        self._memories = [memory_of(processor) for processor in self._strangers]


def _ids_of(rows: Sequence[Row], size: int) -> Tensor:
    """Return the first `size` ids of each row, prompt included, [rows, size]."""
    return torch.cat([row.ids_up_to(size - row.prompt_length) for row in rows])
