"""Samplers that model cards and presets switch on, as logits processors of `generate`.

All are functions of the ids so far and the scores: a rewind needs nothing of them, and rows of a batch, texts in flight
and drafts share them. Their order, with transformers' own between them:

1. `repetition_penalty`, `no_repeat_ngram_size` and all else that `generate` puts before a caller's processors;
2. the caller's: `CountPenaltyLogitsProcessor`, `DryLogitsProcessor`, `TopNSigmaLogitsProcessor`;
3. `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, …, in this order;
4. `XtcLogitsProcessor`, which an `AntiSlop` moves to the end of any list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from antislop.core.hf import Vocabulary
from antislop.core.loop import Sampling
from antislop.errors import InputError

Breakers: TypeAlias = Mapping[int, Collection[tuple[int, ...]]]
"""Sequences of tokens, by their first token: the tokens that follow it, () if the first token is a whole sequence."""

LONGEST_TAIL = 20
"""Tokens of a sequence breaker after its first one; as in llama.cpp, longer ones are cut."""
_LOG_MAX = math.log(torch.finfo(torch.float32).max)


class CountPenaltyLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Lower the scores of tokens by how often they were generated, by OpenAI's formula.

    presence: subtracted from the score of each token that was generated.
    frequency: subtracted once for each time that it was generated.
    prompt_length: how many ids belong to the prompt, padding included, and don't count. An `AntiSlop` finds it by
        itself; `generate` needs it.
    """

    def __init__(self, *, presence: float = 0.0, frequency: float = 0.0, prompt_length: int | None = None) -> None:
        self.presence, self.frequency, self.prompt_length = presence, frequency, prompt_length

    def after_prompt(self, length: int) -> CountPenaltyLogitsProcessor:
        """Return the processor for a prompt of `length` ids, unless it has a `prompt_length` already."""
        fitted = copy(self)
        fitted.prompt_length = length if self.prompt_length is None else self.prompt_length
        return fitted

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.prompt_length is None:
            raise InputError(
                "CountPenaltyLogitsProcessor counts generated tokens, and can't tell them from the prompt's here: pass "
                "prompt_length=inputs['input_ids'].shape[1]"
            )
        size = scores.shape[-1]
        ids = input_ids[:, self.prompt_length :].clamp(max=size)  # some models have more embeddings than scores
        ones = torch.ones_like(ids, dtype=scores.dtype)
        counts = scores.new_zeros(len(scores), size + 1).scatter_add_(1, ids, ones)[:, :size]
        return scores - self.frequency * counts - self.presence * (counts > 0)


class DryLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Lower the scores of tokens that would continue a repetition, as "DRY" in llama.cpp does.

    A token is penalized if the latest n tokens, n ≥ `allowed_length`, occurred before, followed by this token: its
    score loses `multiplier * base ** (n - allowed_length)`, with the largest such n. The prompt counts.

    allowed_length: 0 or more.
    penalty_last_n: how many of the latest ids are looked at; -1 for all, 0 for none.
    breakers: where a repetition ends (`antislop.steer.find_breakers`). It begins after the last of them, and tokens
        that are a breaker by themselves have no penalty.
    pad_token_id: ids at the beginning that are padding, and are not looked at.
    """

    def __init__(
        self,
        multiplier: float,
        *,
        base: float = 1.75,
        allowed_length: int = 2,
        penalty_last_n: int = -1,
        breakers: Breakers | None = None,
        pad_token_id: int | None = None,
    ) -> None:
        if multiplier < 0 or base < 1 or allowed_length < 0 or penalty_last_n < -1:
            raise InputError(
                f"multiplier={multiplier}, base={base}, allowed_length={allowed_length}, penalty_last_n="
                f"{penalty_last_n} was passed: pass at least 0, 1, 0 and -1"
            )
        self._multiplier, self._base, self._allowed_length = multiplier, base, allowed_length
        self._last_n = penalty_last_n
        self._breakers = dict(breakers or {})
        self._pad = -1 if pad_token_id is None else pad_token_id
        # A longer repetition has the same penalty: the largest that a float32 can hold.
        self._longest = allowed_length + (int(_LOG_MAX / math.log(base)) if base > 1.000001 else 0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, ids in zip(scores, input_ids.cpu().numpy(), strict=True):
            lengths = self._measure(ids) if self._multiplier else {}
            tokens = [token for token in lengths if token < len(row) and () not in self._breakers.get(token, ())]
            if tokens:
                penalties = [self._multiplier * self._base ** (lengths[i] - self._allowed_length) for i in tokens]
                row[tokens] -= row.new_tensor(penalties)
        return scores

    def _measure(self, ids: NDArray[np.int64]) -> dict[int, int]:
        """Return for each token that would continue a repetition the length of the longest one."""
        ids = ids[np.logical_or.accumulate(ids != self._pad)]
        ids = ids if self._last_n == -1 else ids[max(len(ids) - self._last_n, 0) :]
        if len(ids) <= self._allowed_length:
            return {}
        last = len(ids) - 1
        ends = np.arange(last)  # where an earlier copy of the latest `length` tokens ends
        lengths = np.full_like(ends, -1)
        for length in range(min(self._count_after_breaker(ids), self._longest) + 1):
            if length >= self._allowed_length:
                lengths[ends] = length
            ends = ends[(ends >= length) & (ids[ends - length] == ids[last - length])]
            if not len(ends):
                break
        found = np.flatnonzero(lengths >= 0)
        found = found[lengths[found].argsort()]  # the longest last
        return dict(zip(ids[found + 1].tolist(), lengths[found].tolist(), strict=True))

    def _count_after_breaker(self, ids: NDArray[np.int64]) -> int:
        """Return how many tokens, of as many as matter, follow the last breaker."""
        latest: list[int] = ids[::-1][: self._longest + LONGEST_TAIL + 1].tolist()
        for place, token in enumerate(latest):
            tails = (tail for tail in self._breakers.get(token, ()) if len(tail) <= place)
            after = [place - len(tail) for tail in tails if [*tail[::-1]] == latest[place - len(tail) : place]]
            if after:
                return min(after)
        return len(latest)


class TopNSigmaLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Keep the tokens whose scores are at most n standard deviations of all finite scores below the highest.

    Top-nσ (arXiv 2411.07641) keeps the same tokens at any temperature.
    """

    def __init__(self, n: float) -> None:
        if n <= 0:
            raise InputError(f"n={n!r} was passed: pass a number above 0")
        self._n = n

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        finite = scores.masked_fill(scores == -torch.inf, torch.nan)
        sigma = (finite - finite.nanmean(-1, keepdim=True)).square().nanmean(-1, keepdim=True).sqrt()
        return scores.masked_fill(scores < scores.amax(-1, keepdim=True) - self._n * sigma, -torch.inf)


class XtcLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Exclude top choices: of the tokens whose probability is at least `threshold`, keep the least likely only.

    Other engines do so for a share `probability` of the tokens, by a coin for each. Their tokens have the distribution
    (1 - probability) · P + probability · Q, where P is without the exclusion and Q with it. This processor returns the
    logarithms of that mixture, so the same ids have the same scores, and a rewind meets no coin.

    after: processors that follow in the chain, such as a temperature. They are applied to P and Q, since what follows
        the processor would change the mixture instead. `AntiSlop` therefore moves it to the end of a list; in a plain
        `generate` it must be the last, with temperature and truncations before it in the list or in `after`.

    Nothing is excluded where fewer than two tokens reach the threshold, so never above a threshold of 0.5, or where
    fewer than `min_tokens_to_keep` would be left.
    """

    is_last = True

    def __init__(
        self,
        probability: float,
        threshold: float,
        *,
        after: Sequence[Callable[[Tensor, Tensor], Tensor]] = (),
        min_tokens_to_keep: int = 1,
    ) -> None:
        if not (0 <= probability <= 1 and 0 <= threshold <= 1):
            raise InputError(f"probability={probability}, threshold={threshold} was passed: pass numbers from 0 to 1")
        self._probability, self._threshold = probability, threshold
        self.after: Any = LogitsProcessorList(after)
        self.min_tokens_to_keep = min_tokens_to_keep

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        probabilities = scores.softmax(-1)
        is_top = (probabilities >= self._threshold) & (probabilities > 0)
        least = probabilities.where(is_top, torch.inf).argmin(-1, keepdim=True)
        excluded = scores.masked_fill(is_top.scatter(-1, least, False), -torch.inf)
        are_few = (excluded > -torch.inf).sum(-1, keepdim=True) < self.min_tokens_to_keep
        parts = [(1 - self._probability, scores), (self._probability, scores.where(are_few, excluded))]
        logs = [
            self.after(input_ids, part.clone()).log_softmax(-1) + math.log(share) for share, part in parts if share > 0
        ]
        return logs[0] if len(logs) == 1 else torch.logaddexp(*logs)


class MinKeepLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Have the truncations of a list leave at least `count` tokens each, as llama.cpp's `min_keep` does.

    An `AntiSlop` applies it to all processors that have `min_tokens_to_keep`, those of `generate` included: top-p,
    min-p, typical-p, epsilon and eta cutoffs, and XTC; a top-k keeps its k. Plain `generate` can't: pass it processors
    of your own with that argument instead.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise InputError(f"count={count!r} was passed: pass at least 1")
        self.count = count

    @staticmethod
    def change_others(processors: Iterable[Any]) -> list[Any]:
        """Return processors without those of this class among them, changed as these ask."""
        listed = list(processors)
        least = max((each.count for each in listed if isinstance(each, MinKeepLogitsProcessor)), default=1)
        changed = [each for each in listed if not isinstance(each, MinKeepLogitsProcessor)]
        for place, processor in enumerate(changed):
            if getattr(processor, "min_tokens_to_keep", least) < least:
                changed[place] = copy(processor)  # the caller may pass the same object to plain `generate`, too
                changed[place].min_tokens_to_keep = least
        return changed

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        raise InputError(
            "MinKeepLogitsProcessor changes other processors, which plain generate() doesn't let it: pass those, with "
            "min_tokens_to_keep, as logits_processor"
        )


BREAKERS_KEPT = 8
"""Results of `find_breakers` that are kept: each reads the whole vocabulary."""
_LONGEST = 40  # characters; longer strings are cut, as in llama.cpp


def find_breakers(
    tokenizer: PreTrainedTokenizerBase,
    strings: Iterable[str] = Sampling.dry_sequence_breakers,
    *,
    vocabulary: Vocabulary | None = None,
) -> Breakers:
    """Return the sequences of tokens that contain strings, for `DryLogitsProcessor`.

    A token that contains a string is one. A token that ends with a part of it is the first of one, whose rest is
    tokenized as text without a space before it. The names of special tokens, such as "<|im_start|>", are strings, too.

    vocabulary: of the tokenizer, if it was read before.
    """
    vocabulary = vocabulary or Vocabulary.of(tokenizer)
    surfaces = dict(enumerate(vocabulary.surfaces)) | {i: name.encode() for i, name in vocabulary.breaks.items()}
    breakers: dict[int, set[tuple[int, ...]]] = {}
    for text in (string[:_LONGEST] for string in strings if string):
        tails = [
            (text[:place].encode(), vocabulary.encode_after(tokenizer, text[place:])) for place in range(1, len(text))
        ]
        whole, first = text.encode(), text[0].encode()
        for token, surface in surfaces.items():
            if first in surface:  # a tail is empty if it can't be written after other text
                part_tails = {tuple(tail[:LONGEST_TAIL]) for part, tail in tails if tail and surface.endswith(part)}
                if found := {()} if whole in surface else part_tails:
                    breakers[token] = breakers.get(token, set()) | found
    return breakers


PROCESSORS: Mapping[str, Callable[[Any], LogitsProcessor]] = {
    "temperature": lambda temperature: TemperatureLogitsWarper(float(temperature)),
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
}
"""Transformers' own, by the field of `Sampling`, in the order of `generate`."""


class SamplerMaker:
    """Makes the processors of the settings that `generate` lacks.

    find_breakers: returns DRY's sequence breakers, as the function of this name does for a tokenizer.
    """

    def __init__(self, find_breakers: Callable[[tuple[str, ...]], Breakers]) -> None:
        self.find_breakers = find_breakers

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary | None = None) -> SamplerMaker:
        """Return a maker that keeps what it finds for the latest breakers."""
        return cls(lru_cache(BREAKERS_KEPT)(partial(find_breakers, tokenizer, vocabulary=vocabulary)))

    def make(self, sampling: Sampling) -> list[LogitsProcessor]:
        """Return the processors in the order of the chain."""
        used, samplers = sampling.in_effect, list[LogitsProcessor]()
        if not used.keys().isdisjoint({"presence_penalty", "frequency_penalty"}):
            presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
            samplers.append(CountPenaltyLogitsProcessor(presence=presence, frequency=frequency))
        if "dry_multiplier" in used:
            options = {name: getattr(sampling, f"dry_{name}") for name in ("base", "allowed_length", "penalty_last_n")}
            breakers = self.find_breakers(sampling.dry_sequence_breakers)
            samplers.append(DryLogitsProcessor(sampling.dry_multiplier, breakers=breakers, **options))
        if "top_n_sigma" in used:
            samplers.append(TopNSigmaLogitsProcessor(sampling.top_n_sigma))
        if "xtc_probability" in used:
            samplers.append(XtcLogitsProcessor(sampling.xtc_probability, sampling.xtc_threshold))
        if "min_keep" in used:
            samplers.append(MinKeepLogitsProcessor(sampling.min_keep))
        return samplers

    def make_all(self, sampling: Sampling) -> LogitsProcessorList:
        """Return the logits processors that `generate` would have, in its order."""
        used, penalty = sampling.in_effect, sampling.repetition_penalty
        first = [RepetitionPenaltyLogitsProcessor(float(penalty))] if "repetition_penalty" in used else []
        last = [make(used[name]) for name, make in PROCESSORS.items() if name in used]
        return LogitsProcessorList(MinKeepLogitsProcessor.change_others([*first, *self.make(sampling), *last]))


def add_samplers(arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return arguments of `generate`, in which processors replace the settings that it lacks."""
    sampling, _ = Sampling.read(arguments)
    samplers = SamplerMaker.of(tokenizer).make(sampling)
    others = {name: value for name, value in arguments.items() if name not in Sampling.foreign}
    if not samplers:
        return others
    return {**others, "logits_processor": [*(arguments.get("logits_processor") or ()), *samplers]}
