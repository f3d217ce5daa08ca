"""The settings of sampling that `generate` lacks, as logits processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import LogitsProcessor, PreTrainedTokenizerBase

from antislop.decoding.sampling import FOREIGN, Sampling
from antislop.hf.breakers import find_breakers
from antislop.processors.samplers import (
    Breakers,
    CountPenaltyLogitsProcessor,
    DryLogitsProcessor,
    TopNSigmaLogitsProcessor,
    XtcLogitsProcessor,
)


def make_samplers(sampling: Sampling, find: Callable[[tuple[str, ...]], Breakers]) -> list[LogitsProcessor]:
    """Return the processors of the settings that `generate` lacks, in the order of the chain.

    find: `find_breakers` of the tokenizer.
    """
    settings = {name: getattr(sampling, name) for name in sampling.in_effect}
    samplers: list[LogitsProcessor] = []
    if not settings.keys().isdisjoint({"presence_penalty", "frequency_penalty"}):
        samplers.append(
            CountPenaltyLogitsProcessor(presence=sampling.presence_penalty, frequency=sampling.frequency_penalty)
        )
    if "dry_multiplier" in settings:
        dry = DryLogitsProcessor(
            sampling.dry_multiplier,
            base=sampling.dry_base,
            allowed_length=sampling.dry_allowed_length,
            penalty_last_n=sampling.dry_penalty_last_n,
            breakers=find(sampling.dry_sequence_breakers),
        )
        samplers.append(dry)
    if "top_n_sigma" in settings:
        samplers.append(TopNSigmaLogitsProcessor(sampling.top_n_sigma))
    if "xtc_probability" in settings:
        samplers.append(XtcLogitsProcessor(sampling.xtc_probability, sampling.xtc_threshold))
    return samplers


def add_samplers(arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return arguments of `generate`, in which processors replace the settings that it lacks."""
    sampling, _ = Sampling.read(arguments)
    samplers = make_samplers(sampling, partial(find_breakers, tokenizer))
    others = {name: value for name, value in arguments.items() if name not in FOREIGN}
    if not samplers:
        return others
    return {**others, "logits_processor": [*(arguments.get("logits_processor") or ()), *samplers]}
