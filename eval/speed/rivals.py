"""Drive backtrack_sampler, another backtracking sampler for transformers, under the same settings. It is optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eval.speed.measuring import Contestant, Skipped, Subject, Written

MISSING = (
    "backtrack_sampler is not installed, so it is not measured: "
    "pip install --no-deps --target DIR backtrack-sampler, then run with PYTHONPATH=DIR."
)


def backtrack_sampler(subject: Subject, phrases: Sequence[str]) -> Contestant:
    """Return the rival with its own defaults for the phrases; raise `Skipped` if it is not installed."""
    try:
        from backtrack_sampler import AntiSlopStrategy, BacktrackSampler
        from backtrack_sampler.provider.transformers_provider import TransformersProvider
    except ImportError as error:
        raise Skipped(MISSING) from error

    provider = TransformersProvider(subject.model, subject.tokenizer, torch.device("cpu"))
    provider.get_eos_token_id = lambda: -1  # as for the others, no text ends early
    calls = _count_calls(provider, "generate", "remove_latest_cache")
    strategy = AntiSlopStrategy(provider, list(phrases))

    def write(seed: int) -> Written:
        calls.update(dict.fromkeys(calls, 0))
        torch.manual_seed(seed)
        stream = BacktrackSampler(provider, strategy).generate(
            prompt=("" if subject.is_chat else subject.tokenizer.bos_token or "") + subject.prompt(seed),
            max_new_tokens=subject.tokens,
            **subject.sampling,
            eos_token_id=subject.model.config.vocab_size,
        )
        return Written(list(stream), calls["generate"], calls["remove_latest_cache"])

    return write


def _count_calls(target: Any, *names: str) -> dict[str, int]:
    """Replace some methods of an object by ones that count their calls."""
    counts = dict.fromkeys(names, 0)

    def counted(name: str) -> Any:
        method = getattr(target, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return call

    for name in names:
        setattr(target, name, counted(name))
    return counts
