"""What vLLM, llama.cpp and a bare OpenAI clone do with a request, without a network: bodies in, events out.

Each draws from any function of the tokens, in its own order of bias, penalties, temperature and truncation, with its
own defaults for what a request leaves out, and tells it in its own format. From their source, their documentation, and
the real ones; not from the client under test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antislop.core.hf.vocabulary import Vocabulary
from tests.support.naive_samplers import dry, top_n_sigma, xtc

Floats = NDArray[np.float64]
EngineKind = Literal["vllm", "llama.cpp", "openai"]

DEFAULTS: dict[str, dict[str, Any]] = {
    "vllm": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
    "llama.cpp": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0},
    "openai": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.1},
}
ORDERS = {
    "vllm": ("bias", "penalties", "temperature", "min_p", "top_k", "top_p"),
    "llama.cpp": ("bias", "penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"),
    "openai": ("bias", "penalties", "temperature", "top_k", "top_p", "min_p"),
}


class RequestRefused(Exception):
    """A request that the server answers with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Draw:
    """A written token, and the log-probabilities [vocab] of the model, and of what it was drawn from."""

    token: int
    raw: Floats
    drawn: Floats


@dataclass
class SimulatedEngine:
    """A server of one kind.

    model: returns the logits [vocab] after some tokens.
    end_tokens: those that end a text; by default the tokenizer's.
    tells_drawn: vLLM's `--logprobs-mode processed_logprobs`.
    bias_limit: as of vLLM's second runner; 0 for speculative decoding.
    repeats: whether a seed repeats its draws.
    owner: of the model of a server without a dialect of its own.
    takes_ids: whether a prompt may be ids; Ollama and LM Studio take texts alone.
    names_streamed: whether streams name their tokens; koboldcpp's only name those of whole answers.
    names_tokens: whether any answer does.
    refuse: returns why a body is refused, for servers that know few fields or values.
    asked: all bodies so far.
    """

    model: Callable[[list[int]], Tensor]
    tokenizer: PreTrainedTokenizerBase
    kind: EngineKind = "vllm"
    end_tokens: frozenset[int] = frozenset()
    context_length: int = 512
    tells_drawn: bool = False
    bias_limit: int | None = None
    repeats: bool = True
    owner: str = "sglang"
    takes_ids: bool = True
    names_streamed: bool = True
    names_tokens: bool = True
    refuse: Callable[[Mapping[str, Any]], str | None] = lambda body: None
    asked: list[tuple[str, Any]] = field(default_factory=list)
    written: int = 0

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary.of(self.tokenizer)
        self.size = len(self.vocabulary.surfaces)
        self.end_tokens = self.end_tokens or frozenset({self.tokenizer.eos_token_id} - {None})
        self._fresh_seeds = random.Random(0)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""
        return self.vocabulary.surface(token)

    def draw(self, prompt: Sequence[int], asked: Mapping[str, Any], *, count: int, seed: int) -> Iterator[Draw]:
        """Yield tokens until the count is reached or the text ends."""
        numbers = random.Random(seed if self.repeats else self._fresh_seeds.getrandbits(60))
        tokens, room = list(prompt), min(count, self.context_length - len(prompt))
        for _ in range(room):
            logits = self.model(tokens)
            raw = (logits if isinstance(logits, Tensor) else torch.as_tensor(logits)).double().numpy()
            draw = self._draw(raw, tokens, asked, numbers)
            self.written += 1
            yield draw
            if draw.token in self.end_tokens:
                return
            tokens.append(draw.token)

    def _draw(self, raw: Floats, tokens: list[int], asked: Mapping[str, Any], numbers: random.Random) -> Draw:
        scores = raw.copy()
        settings = {**DEFAULTS[self.kind], **asked}
        order = asked.get("order") or ORDERS[self.kind]
        for step in order:
            self._apply(step, scores, tokens, settings, numbers)
        is_greedy = settings["temperature"] == 0
        drawn = log_softmax(scores)
        if is_greedy:
            token = int(scores.argmax())
        else:
            sums = np.exp(drawn).cumsum()
            token = int(np.searchsorted(sums, numbers.random() * sums[-1], side="right"))
        return Draw(token, log_softmax(raw), drawn)

    def _apply(
        self, step: str, scores: Floats, tokens: list[int], settings: Mapping[str, Any], numbers: random.Random
    ) -> None:
        """Change scores in place; XTC throws a coin."""
        if step == "bias":
            for token, value in settings.get("bias", {}).items():
                scores[token] += value if self.kind == "llama.cpp" else max(-100.0, min(100.0, value))
        elif step == "penalties" and settings["repetition_penalty"] != 1:
            last = settings.get("penalized", len(tokens))
            seen = sorted(set(tokens[-last:])) if last else []
            factor = settings["repetition_penalty"]
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
        elif step == "temperature" and settings["temperature"] > 0:
            scores /= settings["temperature"]
        elif step == "dry" and settings.get("dry_multiplier"):
            names = ("multiplier", "base", "allowed_length", "penalty_last_n")
            scores[:] = dry(tokens, scores.tolist(), [], **{name: settings[f"dry_{name}"] for name in names})
        elif step == "top_n_sigma" and settings.get(step, -1) > 0:
            scores[:] = top_n_sigma(scores.tolist(), settings[step])
        elif step == "xtc" and numbers.random() < settings.get("xtc_probability", 0):
            with np.errstate(divide="ignore"):
                scores[:] = np.log(xtc(scores.tolist(), probability=1, threshold=settings["xtc_threshold"]))
        elif step in ("top_k", "top_p", "min_p", "typ_p"):
            truncate(step, scores, settings)


def log_softmax(scores: Floats) -> Floats:
    """Return natural log-probabilities [vocab]; -inf for truncated tokens."""
    shifted = scores - scores.max()
    with np.errstate(divide="ignore"):
        result: Floats = shifted - np.log(np.exp(shifted).sum())
    return result


def truncate(step: str, scores: Floats, settings: Mapping[str, Any]) -> None:
    """Set the scores of unlikely tokens to -inf."""
    value, least = settings.get(step, settings.get("typical_p", 1.0)), max(1, settings.get("min_keep", 1))
    if step == "top_k" and 0 < value < len(scores):
        scores[scores < np.sort(scores)[-value]] = -np.inf
    elif step == "min_p" and value > 0:
        order = np.argsort(-scores, kind="stable")[least:]
        scores[order[scores[order] < scores.max() + np.log(value)]] = -np.inf
    elif step == "top_p" and value < 1:
        order = np.argsort(-scores, kind="stable")
        before = np.exp(log_softmax(scores))[order].cumsum() - np.exp(log_softmax(scores))[order]
        scores[order[least:][before[least:] >= value]] = -np.inf
    elif step == "typ_p" and value < 1:
        logprobs = log_softmax(scores)
        probs = np.exp(logprobs)
        entropy = -(probs[probs > 0] * logprobs[probs > 0]).sum()
        order = np.argsort(np.abs(-logprobs - entropy), kind="stable")
        before = probs[order].cumsum() - probs[order]
        scores[order[least:][before[least:] >= value]] = -np.inf
