"""Drive other packages that keep phrases out of texts of transformers, under the same settings. They are optional."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from eval.speed.measuring import Contestant, Skipped, Subject, Written

EXCLUDED = 1000
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


def xgrammar_excludes(subject: Subject, phrases: Sequence[str]) -> Contestant:
    """Return a grammar of all text without the phrases, in lower case and capitalized; raise `Skipped` without it."""
    if len(phrases) > EXCLUDED:
        raise Skipped(
            f"xgrammar compiles {len(phrases):,} excluded phrases for minutes or more, so it is not measured."
        )
    try:
        from xgrammar.contrib.hf import LogitsProcessor
    except ImportError as error:
        raise Skipped("xgrammar is not installed, so it is not measured: pip install -e '.[xgrammar]'") from error

    excludes = tuple(form for phrase in phrases for form in (phrase, phrase.capitalize()))
    compiled = _compile_excludes(subject.tokenizer, subject.model.config.vocab_size, excludes)

    def write(seed: int) -> Written:
        ids = subject.tokenizer(subject.prompt(seed), return_tensors="pt")["input_ids"]
        return subject.write_rows(ids, seed=seed, logits_processor=[LogitsProcessor(compiled)])

    return write


@functools.cache  # 500 phrases take two minutes, and each contest asks twice
def _compile_excludes(tokenizer: PreTrainedTokenizerBase, vocab_size: int, excludes: tuple[str, ...]) -> Any:
    import xgrammar

    known = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    tag = {"type": "structural_tag", "format": {"type": "any_text", "excludes": list(excludes)}}
    return xgrammar.GrammarCompiler(known).compile_structural_tag(xgrammar.StructuralTag.model_validate(tag))


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
