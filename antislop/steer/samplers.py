"""Samplers that model cards and presets ask for (DRY, XTC, top-nσ, …), as logits processors for `generate`.

Each is a function of the ids so far and the scores, without any state. So a rewind needs no help from a processor, and
all rows of a batch, other texts and drafts can share it. The order, with the processors of transformers between them:

1. `repetition_penalty`, `no_repeat_ngram_size` and all else that `generate` puts before a caller's processors;
2. processors of the caller: `CountPenaltyLogitsProcessor`, `DryLogitsProcessor`, `TopNSigmaLogitsProcessor`;
3. `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, …, in this order;
4. `XtcLogitsProcessor`, which an `AntiSlop` moves to the end of any list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase
from transformers.generation import logits_process

from antislop.core.hf import Vocabulary
from antislop.core.loop import Sampling
from antislop.errors import InputError

Breakers: TypeAlias = Mapping[int, Collection[tuple[int, ...]]]
"""Sequences of tokens. For the first token of each, the tokens after it; () if the first token is a whole sequence."""

LONGEST_TAIL = 20
"""Maximum tokens of a sequence breaker after its first token; as in llama.cpp, a longer sequence is cut."""
_LOG_MAX = math.log(torch.finfo(torch.float32).max)


@dataclass(kw_only=True, eq=False)
class CountPenaltyLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Lower the scores of tokens by how often they were generated, by OpenAI's formula.

    presence: subtracted from the score of each token that was generated at least once.
    frequency: subtracted from the score of a token once for each time that it was generated.
    prompt_length: number of ids that belong to the prompt, padding included; these are not counted. An `AntiSlop` finds
        the length by itself; for `generate`, pass it.
    """

    presence: float = 0.0
    frequency: float = 0.0
    prompt_length: int | None = None

    def after_prompt(self, length: int) -> CountPenaltyLogitsProcessor:
        """Return a copy for a prompt of `length` ids; a `prompt_length` that was passed before is kept."""
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

    A token is penalized if the latest n tokens, n ≥ `allowed_length`, occurred before, followed by this token: the
    token's score loses `multiplier * base ** (n - allowed_length)`, with the largest such n. Prompt tokens count, too.

    allowed_length: length of a repetition from which its continuation is penalized; 0 or more.
    penalty_last_n: only so many of the latest ids are searched for repetitions; -1 for all, 0 for none.
    breakers: sequences that no repetition extends across, from `antislop.steer.find_breakers`. A token that is a
        breaker by itself is not penalized.
    pad_token_id: the padding token; ids at the beginning that equal it are ignored.
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
        # The longest repetition to measure: its penalty is about the largest that a float32 can hold.
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
        """Return, for each token that would continue repetitions, the length of the longest of these."""
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
        """Return how many tokens follow the last breaker; only tokens that can matter are searched for it."""
        latest: list[int] = ids[::-1][: self._longest + LONGEST_TAIL + 1].tolist()
        for place, token in enumerate(latest):
            tails = (tail for tail in self._breakers.get(token, ()) if len(tail) <= place)
            after = [place - len(tail) for tail in tails if [*tail[::-1]] == latest[place - len(tail) : place]]
            if after:
                return min(after)
        return len(latest)


class TopNSigmaLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Keep only tokens whose score is at most n standard deviations (of all finite scores) below the highest score.

    This is top-nσ (arXiv 2411.07641), which keeps the same tokens at any temperature.
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
    """XTC, "exclude top choices": of the tokens whose probability is at least `threshold`, keep only the least likely.

    Other engines toss a coin for each token they draw, and exclude with the chance `probability`. So they draw from the
    mixture (1 - probability) · P + probability · Q, where P is without the exclusion and Q with it. This processor
    returns the logarithms of the mixture: without a coin, the same ids have the same scores after a rewind, too.

    after: processors to apply to P and to Q, such as a temperature; behind this processor in a list, they would change
        the mixture instead. `AntiSlop` therefore moves this processor to the end of a list. In a plain `generate`, it
        must be the last, with temperature and truncations before it in the list, or in `after`.

    Nothing is excluded where fewer than two tokens reach the threshold (so never with a threshold above 0.5), or where
    fewer than `min_tokens_to_keep` tokens would be left.
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
    """Make each truncation in a list of processors leave at least `count` tokens, as llama.cpp's `min_keep` does.

    An `AntiSlop` raises `min_tokens_to_keep` of all processors that have it, those of `generate` included: top-p,
    min-p, typical-p, epsilon and eta cutoffs, and XTC. A top-k is not changed. Plain `generate` can't do this: pass it
    processors that were made with `min_tokens_to_keep`.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise InputError(f"count={count!r} was passed: pass at least 1")
        self.count = count

    @staticmethod
    def change_others(processors: Iterable[Any]) -> list[Any]:
        """Return processors without those of this class, with `min_tokens_to_keep` raised to the largest `count`."""
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
"""Number of results of `find_breakers` to keep: each call reads the whole vocabulary."""
_LONGEST = 40  # characters; longer strings are cut, as in llama.cpp


def find_breakers(
    tokenizer: PreTrainedTokenizerBase,
    strings: Iterable[str] = Sampling.dry_sequence_breakers,
    *,
    vocabulary: Vocabulary | None = None,
) -> Breakers:
    """Return the sequences of tokens that contain certain strings, as the `breakers` of `DryLogitsProcessor`.

    A token that contains a string is a sequence by itself. A token that ends with the beginning of a string begins a
    sequence, which goes on with the tokens of the string's rest. The text of a special token is its name: "<|im_end|>".

    vocabulary: the tokenizer's vocabulary, if it was read before.
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
            if first in surface:  # an empty tail means that the rest can't be tokenized after other text
                part_tails = {tuple(tail[:LONGEST_TAIL]) for part, tail in tails if tail and surface.endswith(part)}
                if found := {()} if whole in surface else part_tails:
                    breakers[token] = breakers.get(token, set()) | found
    return breakers


PROCESSORS: Mapping[str, Callable[[Any], LogitsProcessor]] = {
    "temperature": lambda temperature: logits_process.TemperatureLogitsWarper(float(temperature)),
    "top_k": logits_process.TopKLogitsWarper,
    "top_p": logits_process.TopPLogitsWarper,
    "min_p": logits_process.MinPLogitsWarper,
    "typical_p": logits_process.TypicalLogitsWarper,
}
"""Makers of transformers' own processors, by the field of `Sampling`, in the order of `generate`."""


@dataclass(frozen=True)
class SamplerMaker:
    """Makes the logits processors for settings that `generate` does not know, such as `dry_multiplier`.

    find_breakers: function of strings that returns DRY's sequence breakers, for one tokenizer.
    """

    find_breakers: Callable[[tuple[str, ...]], Breakers]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary | None = None) -> SamplerMaker:
        """Return a maker for a tokenizer, which remembers the results of `find_breakers`."""
        return cls(lru_cache(BREAKERS_KEPT)(partial(find_breakers, tokenizer, vocabulary=vocabulary)))

    def make(self, sampling: Sampling) -> list[LogitsProcessor]:
        """Return the processors for settings that `generate` does not know, in the order in which they are applied."""
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
        """Return the processors for all settings, including those that `generate` itself would make, in its order."""
        used, first = sampling.in_effect, list[LogitsProcessor]()
        if "repetition_penalty" in used:
            first.append(logits_process.RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
        last = [make(used[name]) for name, make in PROCESSORS.items() if name in used]
        return LogitsProcessorList(MinKeepLogitsProcessor.change_others([*first, *self.make(sampling), *last]))


def add_samplers(arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return arguments for `generate`: settings that it does not know are replaced by logits processors."""
    sampling, _ = Sampling.read(arguments)
    samplers = SamplerMaker.of(tokenizer).make(sampling)
    others = {name: value for name, value in arguments.items() if name not in Sampling.foreign}
    if not samplers:
        return others
    return {**others, "logits_processor": [*(arguments.get("logits_processor") or ()), *samplers]}
