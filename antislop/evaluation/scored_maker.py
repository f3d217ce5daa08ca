"""How likely texts are under the model alone, and makers of records that say it.

What bans cost in quality shows here: a text that the model itself would hardly have written is unlikely under it.
Token ids are scored, not texts, which could be tokenized in other ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.samples import UNBANNED, Arm, MadeRecord, SampleSpec
from antislop.evaluation.outputs import Output
from antislop.hf.model import device_of
from antislop.hf.vocabulary import Vocabulary
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.records.journal import Record
from antislop.sampler import Completion
from antislop.trace.report import Report
from antislop.trace.text_pieces import TextPieces

PASS = 2048
"""Tokens, padding included, that one scoring pass may hold: its logits are what takes the memory."""


class Scored(NamedTuple):
    """A text to score: the ids of its prompt, at least one, and its own."""

    prompt: Sequence[int]
    tokens: Sequence[int]


def measure_nll(model: PreTrainedModel, texts: Sequence[Scored]) -> list[float]:
    """Return −log p of each text given its prompt, in nats: the sum over its tokens, an end token included.

    The model's own probabilities are taken, at temperature 1 and without truncation; the sum is in float32 whatever
    the model's dtype. Texts are batched, which changes the last bits. Raises `ValueError` for encoder-decoder models
    and for an empty prompt.
    """
    if model.config.is_encoder_decoder:
        raise ValueError("texts of encoder-decoder models are not scored: pass a causal language model")
    if any(not text.prompt for text in texts):
        raise ValueError("a prompt has no token, and the first token's probability depends on one: pass at least one")
    order = sorted(range(len(texts)), key=lambda i: _length(texts[i]))
    found: dict[int, float] = {}
    for places in _split(order, texts):
        batch = [texts[i] for i in places]
        found.update(zip(places, _score(model, batch), strict=True))
    return [found[i] for i in range(len(texts))]


def _length(text: Scored) -> int:
    return len(text.prompt) + len(text.tokens)


def _split(order: Sequence[int], texts: Sequence[Scored]) -> Iterator[list[int]]:
    """Yield places of texts that fit into one pass together; they come in the order of their lengths."""
    batch: list[int] = []
    for place in order:
        if batch and (len(batch) + 1) * _length(texts[place]) > PASS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@torch.inference_mode()
def _score(model: PreTrainedModel, texts: Sequence[Scored]) -> list[float]:
    device = device_of(model)
    rows = [torch.tensor([*text.prompt, *text.tokens]) for text in texts]
    # Padding on the right: no token that counts attends to it.
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)  # [texts, tokens]
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # [texts, tokens, vocabulary]
    return [_sum(logits[row], ids[row], text) for row, text in enumerate(texts)]


def _sum(logits: Tensor, ids: Tensor, text: Scored) -> float:
    """Return −log p of a text in one row: logits [tokens, vocabulary], ids [tokens], both with padding."""
    start, end = len(text.prompt), _length(text)
    return float(cross_entropy(logits[start - 1 : end - 1].float(), ids[start:end], reduction="sum"))


def score_outputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, outputs: Sequence[Output]
) -> list[Output]:
    """Return outputs with nll and tokens under a model, tokenized anew; as they are, where one has no prompt.

    A text that is tokenized in other ways than it was written in is a little less likely than what was written.
    """
    if not all(output.prompt for output in outputs):
        return list(outputs)
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    texts = [
        Scored(tokenizer(each.prompt)["input_ids"], tokenizer(each.text, add_special_tokens=False)["input_ids"])
        for each in outputs
    ]
    if room is not None and (longest := max(map(_length, texts))) > room:
        raise ValueError(
            f"a text has {longest:,} tokens with its prompt, and the model has {room:,}: score shorter texts"
        )
    scores = measure_nll(model, texts)
    return [
        replace(each, costs={**each.costs, "nll": nll, "tokens": len(text.tokens)})
        for each, text, nll in zip(outputs, texts, scores, strict=True)
    ]


class ScoredMaker(ModelRecordMaker):
    """Makes records that also say how likely each text is, and what it cost. options: those of `ModelRecordMaker`.

    nll: of the kept tokens under the model without bans, given the prompt of the data set, whatever the arm read.
    forward_passes: those that the text took part in.
    pieces: (text, what became of it), as in `render.Piece`, in arms that take back.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        **options: Any,
    ) -> None:
        super().__init__(model, tokenizer, bans, **options)
        self._vocabulary = Vocabulary.of(tokenizer)
        self._unscored: dict[tuple[str, int, str], Scored] = {}

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield records as texts are finished and scored, which is done for several at a time."""
        waiting: list[MadeRecord] = []
        for made in super().make(specs, arm=arm):
            waiting.append(made)
            if sum(map(_length, self._unscored.values())) >= PASS:
                yield from self._score(waiting)
                waiting = []
        yield from self._score(waiting)

    def _score(self, waiting: Sequence[MadeRecord]) -> Iterator[MadeRecord]:
        texts, self._unscored = self._unscored, {}
        scores = dict(zip(texts, measure_nll(self._model, list(texts.values())), strict=True))
        for made in waiting:
            record = made.record
            nll = scores.get((record["key"], record["sample"], record["arm"]))
            yield made if nll is None else replace(made, record={**record, "nll": round(nll, 4)})

    def _report(self, spec: SampleSpec, done: Completion, *, prompt_tokens: int, since: float) -> Record:
        record = super()._report(spec, done, prompt_tokens=prompt_tokens, since=since)
        if done.error is not None:
            return record
        self._unscored[spec.identity] = Scored(self._encode(spec.prompt), done.tokens)
        pieces = {} if spec.arm in UNBANNED else {"pieces": self._find_pieces(done.report)}
        return {**record, "forward_passes": done.report.forward_passes, **pieces}

    def _find_pieces(self, report: Report) -> list[list[str]]:
        text_pieces = TextPieces(self._vocabulary)
        pieces = (piece for event in report.events for piece in text_pieces.add(event))
        groups = groupby(pieces, key=lambda piece: piece.kind)  # what is withdrawn brings its own spaces
        return [["".join(piece.text for piece in group), kind] for kind, group in groups]
