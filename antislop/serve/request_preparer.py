"""From a request to what the loop needs: settings, bans, random numbers; and how likely its prompt is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from secrets import randbits
from time import monotonic
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antislop.core.bans import Matcher
from antislop.core.hf import (
    Call,
    CompiledBans,
    Settings,
    TransformersModel,
    device_of,
    prepare_text,
)
from antislop.core.loop import LanguageModel, RowSpec, Sampling
from antislop.core.trace import TokenChoice
from antislop.errors import InputError, first_line
from antislop.serve.backend import GenerationRequest
from antislop.steer.grammar.compilation import compile_llguidance, read_json_schema, read_lark
from antislop.steer.grammar.grammar import Grammar

GRAMMARS_KEPT = 64
"""Compiled grammars, by schema or text."""
TOKENS_SCORED = 128
"""Tokens of a prompt whose logits are in memory together."""
RESTORE_AFTER = 60.0
"""Seconds after which a regex that timed out in one text is searched for again in the next ones."""


class RequestPreparer:
    """Prepares requests for one model.

    bans: the server's own, compiled.
    context_length: maximum tokens of prompt and text together.
    """

    def __init__(self, model: PreTrainedModel, bans: CompiledBans, *, context_length: int) -> None:
        self._model = model
        self._tokenizer = bans.tokenizer
        self._device = device_of(model)
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._context_length = context_length
        # Rows with the same settings are processed together.
        self._shared: WeakValueDictionary[Sampling, Settings] = WeakValueDictionary()
        self._timed_out_since: WeakKeyDictionary[Matcher, float] = WeakKeyDictionary()
        self.samplers = bans.samplers
        self.find_grammar = lru_cache(GRAMMARS_KEPT)(self._make_grammar)
        self._ends = sorted(TransformersModel(model).eos_token_id) or None

    def check(self, request: GenerationRequest) -> None:
        """Raise `InputError` for a request that can't be served. Thread-safe."""
        prompt, limit = request.prompt, self._context_length
        if not prompt:
            raise InputError("an empty prompt was passed: pass at least one token, the bos token for instance")
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise InputError(f"a token of the prompt is not in the vocabulary, 0 to {self._vocabulary - 1}")
        if request.logit_bias and max(request.logit_bias) >= self._vocabulary:
            raise InputError(f"a biased token is not in the vocabulary, 0 to {self._vocabulary - 1}")
        if request.max_new_tokens < (0 if request.scores_prompt else 1):
            raise InputError(f"{request.max_new_tokens} tokens are asked for; at least 1 was expected")
        if len(prompt) + request.max_new_tokens > limit:
            raise InputError(
                f"the context has {limit:,} tokens, and a prompt of {len(prompt):,} with {request.max_new_tokens:,} "
                "new ones needs more: shorten the prompt, or ask for fewer tokens"
            )

    def prepare(self, request: GenerationRequest, *, grammar: Grammar | None = None) -> tuple[Call, RowSpec]:
        """Return the call of `generate` that a request is, and its row. Raises `ValueError` for what can't be done."""
        self._restore_timed_out(request.bans.matcher)
        seed = randbits(63) if request.seed is None else request.seed
        ids = torch.tensor([request.prompt], device=self._device)
        arguments = request.sampling.generate_arguments | {
            "max_new_tokens": request.max_new_tokens,
            "attention_mask": torch.ones_like(ids),
            "stopping_criteria": request.stopping_criteria,
        }
        if request.logit_bias:  # becomes the first processor
            arguments["sequence_bias"] = {(token,): float(bias) for token, bias in request.logit_bias.items()}
        samplers = self.samplers.make(request.sampling)
        arguments["logits_processor"] = [*([] if grammar is None else [grammar]), *samplers]
        call, spec = prepare_text(self._model, ids, arguments, request.bans, seed=seed, policy=request.policy)
        if isinstance(spec.settings, Settings) and spec.settings.fits_any_prompt:
            spec = replace(spec, settings=self._shared.setdefault(request.sampling, spec.settings))
        return call, replace(spec, alternatives=request.alternatives)

    def score_prompt(self, request: GenerationRequest) -> list[TokenChoice | None]:
        return score_prompt(TransformersModel(self._model), request.prompt, alternatives=request.alternatives or 0)

    def _restore_timed_out(self, matcher: Matcher) -> None:
        # The text of one client must not end a ban for all others.
        if matcher.timed_out and monotonic() - self._timed_out_since.setdefault(matcher, monotonic()) >= RESTORE_AFTER:
            del self._timed_out_since[matcher]
            matcher.restore()

    def _make_grammar(self, text: str, *, is_lark: bool = False) -> Grammar:
        """Compile a JSON schema or a grammar, which takes up to seconds. Not thread-safe. Raises `InputError`."""
        try:
            grammar = read_lark(text) if is_lark else read_json_schema(text)
            return Grammar(compile_llguidance(grammar, self._tokenizer, end_tokens=self._ends))
        except ValueError as error:  # most are `GrammarError`s
            raise InputError(f"the schema can't be followed: {first_line(error)}") from error


@torch.no_grad()
def score_prompt(
    model: LanguageModel, prompt: Sequence[int], *, alternatives: int, size: int = TOKENS_SCORED
) -> list[TokenChoice | None]:
    """Return how likely a model finds each token of a prompt, None for the first one; reads `size` tokens at a time."""
    ids, cache = torch.tensor([prompt]), model.new_cache(1)
    cache.settle(0, len(prompt))
    choices: list[TokenChoice | None] = [None]
    while (read := len(choices) - 1) < len(prompt) - 1:
        end = min(read + size if read else 1, len(prompt) - 1)  # a new cache's first pass returns its last logits only
        logits = model.forward(ids[:, read:end], cache)[0]
        choices += _describe_tokens(logits, ids[0, read + 1 : end + 1], alternatives)
    return choices


def _describe_tokens(logits: Tensor, tokens: Tensor, alternatives: int) -> list[TokenChoice]:
    """Return how likely each of tokens [n] is by its row of logits [n, vocab]."""
    token_logits = logits.gather(1, tokens.to(logits.device)[:, None])
    ranks = 1 + (logits > token_logits).sum(dim=-1)
    likeliest = logits.topk(min(alternatives, logits.shape[-1]))
    logs = torch.cat([token_logits, likeliest.values], dim=-1).float() - logits.float().logsumexp(dim=-1, keepdim=True)
    rows = zip(logs.cpu().double().exp().tolist(), ranks.tolist(), likeliest.indices.tolist(), strict=True)
    return [
        TokenChoice(share, share, rank, tuple(zip(others, shares, strict=True)))
        for (share, *shares), rank, others in rows
    ]
