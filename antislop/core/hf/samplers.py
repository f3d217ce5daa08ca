"""The settings of sampling that `generate` lacks, as logits processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from transformers import LogitsProcessor, PreTrainedTokenizerBase

from antislop.core.hf.breakers import BREAKERS_KEPT, find_breakers
from antislop.core.hf.callbacks.samplers import (
    Breakers,
    CountPenaltyLogitsProcessor,
    DryLogitsProcessor,
    MinKeepLogitsProcessor,
    TopNSigmaLogitsProcessor,
    XtcLogitsProcessor,
)
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import FOREIGN, Sampling


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


def add_samplers(arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return arguments of `generate`, in which processors replace the settings that it lacks."""
    sampling, _ = Sampling.read(arguments)
    samplers = SamplerMaker.of(tokenizer).make(sampling)
    others = {name: value for name, value in arguments.items() if name not in FOREIGN}
    if not samplers:
        return others
    return {**others, "logits_processor": [*(arguments.get("logits_processor") or ()), *samplers]}
