"""How likely texts are under a model without bans; records and outputs with these likelihoods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.hf import device_of, encode, max_positions
from antislop.core.trace import Completion, TextPieces
from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.samples import UNBANNED, Arm, MadeRecord, SampleSpec
from antislop.errors import InputError
from antislop.evaluation.outputs import Output
from antislop.files.journal import Record

PASS = 2048
"""Maximum number of tokens in one scoring pass, including padding: its logits take most of the memory."""


class PromptedTokens(NamedTuple):
    """Token ids to score, and the prompt before them, of at least one token."""

    prompt: Sequence[int]
    tokens: Sequence[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)


def measure_nll(model: PreTrainedModel, texts: Sequence[PromptedTokens]) -> list[float]:
    """Return −log p of each text given its prompt, in nats: the sum over the tokens of the text.

    Probabilities are at temperature 1, without truncation. Sums are in float32; batching changes their last bits.
    """
    if model.config.is_encoder_decoder:
        raise InputError("texts of encoder-decoder models are not scored: pass a causal language model")
    if any(not text.prompt for text in texts):
        raise InputError("a prompt has no token, and the first token's probability depends on one: pass at least one")
    order = sorted(range(len(texts)), key=lambda i: texts[i].length)
    scores: dict[int, float] = {}
    while order:
        size = 1  # the number of texts, of about the same length, that one pass takes
        while size < len(order) and (size + 1) * texts[order[size]].length <= PASS:
            size += 1
        indices, order = order[:size], order[size:]
        scores.update(zip(indices, _score_together(model, [texts[i] for i in indices]), strict=True))
    return [scores[i] for i in range(len(texts))]


@torch.inference_mode()
def _score_together(model: PreTrainedModel, texts: Sequence[PromptedTokens]) -> list[float]:
    device = device_of(model)
    rows = [torch.tensor([*text.prompt, *text.tokens]) for text in texts]
    # Padding on the right: no token that counts attends to it.
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)  # [texts, tokens]
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # [texts, tokens, vocabulary]
    scores = []
    for row, text in enumerate(texts):
        start, end = len(text.prompt), text.length
        # The logits at a place are those of the next token.
        nll = cross_entropy(logits[row, start - 1 : end - 1].float(), ids[row, start:end], reduction="sum")
        scores.append(float(nll))
    return scores


def score_outputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, outputs: Sequence[Output]
) -> list[Output]:
    """Return outputs with their `nll` and `tokens` under a model; all unchanged if any output has no prompt.

    Texts are tokenized again: where the tokens differ from the generated tokens, nll is a little too high. Raises
    `InputError` if a text is too long for the model.
    """
    if not all(output.prompt for output in outputs):
        return list(outputs)
    room = max_positions(model)
    texts = [
        PromptedTokens(encode(output.prompt, tokenizer), tokenizer(output.text, add_special_tokens=False)["input_ids"])
        for output in outputs
    ]
    if room is not None and (max_length := max(text.length for text in texts)) > room:
        raise InputError(
            f"a text has {max_length:,} tokens with its prompt, and the model can read {room:,}: score shorter texts"
        )
    scores = measure_nll(model, texts)
    return [
        replace(output, costs={**output.costs, "nll": nll, "tokens": len(text.tokens)})
        for output, text, nll in zip(outputs, texts, scores, strict=True)
    ]


class ScoredMaker(ModelRecordMaker):
    """Makes records with the likelihood and cost of each text.

    nll: of the kept tokens under the model without bans, given the original prompt, even if the arm adds to the prompt.
    forward_passes: the number of passes that included the text.
    pieces: (text, kind) as in `TextPieces`, in arms that rewind.
    """

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield records as texts are finished and scored, several at a time."""
        waiting: list[MadeRecord] = []
        self._unscored: dict[tuple[str, int, str], PromptedTokens] = {}
        for sample in super().make(specs, arm=arm):
            waiting.append(sample)
            if sum(text.length for text in self._unscored.values()) >= PASS:
                yield from self._score(waiting)
                waiting = []
        yield from self._score(waiting)

    def _score(self, waiting: Sequence[MadeRecord]) -> Iterator[MadeRecord]:
        texts, self._unscored = self._unscored, {}
        scores = dict(zip(texts, measure_nll(self._model, list(texts.values())), strict=True))
        for sample in waiting:
            record = sample.record
            nll = scores.get((record["key"], record["sample"], record["arm"]))
            yield sample if nll is None else replace(sample, record={**record, "nll": round(nll, 4)})

    def make_record(self, spec: SampleSpec, completion: Completion, *, ids: list[int], since: float) -> Record:
        record = super().make_record(spec, completion, ids=ids, since=since)
        if completion.error is not None:
            return record
        self._unscored[spec.identity] = PromptedTokens(self._encode(spec.prompt), completion.tokens)
        record = {**record, "forward_passes": completion.report.forward_passes}
        if spec.arm in UNBANNED:
            return record
        text_pieces = TextPieces(self._vocabulary)
        parts = (
            part
            for event in completion.report.events
            for piece in text_pieces.add(event)
            for part in (piece.split_withdrawn() if piece.kind == "withdrawn" else [(piece.text, piece.kind)])
        )
        groups = groupby(parts, key=lambda part: part[1])
        return {**record, "pieces": [["".join(text for text, _ in group), kind] for kind, group in groups]}
