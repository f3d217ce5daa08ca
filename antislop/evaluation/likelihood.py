"""How likely texts are under a model without bans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from antislop.core.hf import device_of
from antislop.errors import InputError

PASS = 2048
"""Maximum number of tokens in one scoring pass, including padding: its logits take most of the memory."""


class PromptedTokens(NamedTuple):
    """Ids to score, after a prompt of at least one token."""

    prompt: Sequence[int]
    tokens: Sequence[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)


def measure_nll(model: PreTrainedModel, texts: Sequence[PromptedTokens]) -> list[float]:
    """Return −log p of each text given its prompt, in nats: the sum over its tokens.

    At temperature 1 and without truncation; summed in float32. Texts are batched, which changes the last bits.
    """
    if model.config.is_encoder_decoder:
        raise InputError("texts of encoder-decoder models are not scored: pass a causal language model")
    if any(not text.prompt for text in texts):
        raise InputError("a prompt has no token, and the first token's probability depends on one: pass at least one")
    order = sorted(range(len(texts)), key=lambda i: texts[i].length)
    scores: dict[int, float] = {}
    for indices in _split_into_passes(order, texts):
        scores.update(zip(indices, _score_together(model, [texts[i] for i in indices]), strict=True))
    return [scores[i] for i in range(len(texts))]


def _split_into_passes(order: Sequence[int], texts: Sequence[PromptedTokens]) -> Iterator[list[int]]:
    """Yield indices of texts that fit into one pass together. order: indices by length."""
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * texts[i].length > PASS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@torch.inference_mode()
def _score_together(model: PreTrainedModel, texts: Sequence[PromptedTokens]) -> list[float]:
    device = device_of(model)
    rows = [torch.tensor([*text.prompt, *text.tokens]) for text in texts]
    # Padding on the right: no token that counts attends to it.
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)  # [texts, tokens]
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # [texts, tokens, vocabulary]
    return [_sum_nll(logits[row], ids[row], text) for row, text in enumerate(texts)]


def _sum_nll(logits: Tensor, ids: Tensor, text: PromptedTokens) -> float:
    start, end = len(text.prompt), text.length
    return float(cross_entropy(logits[start - 1 : end - 1].float(), ids[start:end], reduction="sum"))
