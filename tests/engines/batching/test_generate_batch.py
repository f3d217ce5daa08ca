"""`generate_batch` inside `applied_to`: its texts are those of `generate` under the same bans, in every way it has."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from antislop import AntiSlop, Ban, applied_to
from antislop.engines.batching import private
from antislop.engines.batching.texts import BatchJudge
from antislop.engines.vllm.names import read_names
from antislop.errors import ConcededWarning, InputError
from tests.support import letters
from tests.support.batches import COMMON, PROMPTS
from tests.support.depth import DEPTH, first_quick
from tests.support.models import WINDOW, build_model, build_tokenizer
from tests.support.statistics import p_value

TOKENIZER = build_tokenizer()
NEVER, MANY = AntiSlop(TOKENIZER, ["zz zz"]), AntiSlop(TOKENIZER, COMMON)
END = 1
GREEDY = {"do_sample": False, "suppress_tokens": [0, END]}
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}
CONFIG = {"page_size": 4, "num_blocks": 128, "max_batch_tokens": 64}
"""Blocks of four tokens: texts begin several, and share them."""


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> Iterator[None]:
    """A manager that ends collects garbage twice; what was imported by then need not be searched."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def write(
    model: PreTrainedModel,
    sampler: AntiSlop | None,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    batching: dict[str, Any] | None = None,
    seed: int = 3,
    **settings: Any,
) -> list[list[int]]:
    """Return the generated tokens of a call of `generate_batch`, under the bans of a sampler if there is one."""
    config = GenerationConfig(**{"max_new_tokens": 24, "eos_token_id": END, **settings})
    calls: dict[str, Any] = {
        "generation_config": config,
        "continuous_batching_config": ContinuousBatchingConfig(**CONFIG | (batching or {})),
    }
    torch.manual_seed(seed)
    if sampler is None:
        outputs = model.generate_batch([*map(list, prompts)], **calls)
    else:
        with applied_to(model, sampler):
            outputs = model.generate_batch([*map(list, prompts)], **calls)
    assert [output.error for output in outputs.values()] == [None] * len(outputs)
    assert [output.prompt_ids for output in outputs.values()] == [
        [*prompt] for prompt in prompts for _ in range(settings.get("num_return_sequences", 1))
    ]
    return [output.generated_tokens for output in outputs.values()]


@pytest.mark.parametrize(
    ("settings", "batching"),
    [
        (GREEDY, {}),
        (SAMPLED, {"per_request_processors": True}),
        ({**SAMPLED, "num_return_sequences": 3}, {"allow_block_sharing": False}),
        ({"do_sample": True}, {"scheduler_type": "prefill_first", "max_requests_per_batch": 2}),
    ],
)
def test_under_bans_that_never_occur_the_texts_are_those_without(
    settings: dict[str, Any], batching: dict[str, Any]
) -> None:
    model = build_model()
    plain = write(model, None, batching=batching, **settings)
    assert write(model, NEVER, batching=batching, **settings) == plain
    assert not {"generate", "init_continuous_batching"} & {*vars(model)}


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collect how far the logits of each judged token are from those of a fresh pass over its text."""
    found: list[float] = []
    judge = BatchJudge._judge

    def compare(self: BatchJudge, processor: Any, requests: list[Any], tokens: list[int]) -> Any:
        with torch.no_grad():
            for place, request in enumerate(each for each in requests if each.has_new_token):
                text = torch.tensor([request.state.initial_tokens + request.state.generated_tokens])
                fresh = self._manager.model(text).logits[0, -1]
                found.append(float((self._logits[place] - fresh).abs().max()))
        return judge(self, processor, requests, tokens)

    monkeypatch.setattr(BatchJudge, "_judge", compare)
    return found


LONG = tuple(PROMPTS[2] * 3)
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "full attention": ("llama", {"allow_block_sharing": False}),
    "a window in some layers": ("gemma3", {}),
    "a window in all layers": ("mistral", {}),
    "shared blocks": ("llama", {}),
    "prompts in parts": ("llama", {"max_batch_tokens": 8}),
    "too little memory": ("llama", {"num_blocks": 26, "safety_margin": 0.0}),
    "positions in a table": ("gpt2", {}),
}


@pytest.mark.parametrize(("family", "batching"), first_quick(WAYS.values(), 4), ids=list(WAYS))
def test_after_a_rewind_the_next_logits_are_those_of_a_fresh_pass(
    family: str, batching: dict[str, Any], differences: list[float]
) -> None:
    """And greedy texts are those of `sampler.generate`."""
    model = build_model(family)
    prompts = [*PROMPTS, LONG, LONG, LONG[:9]]
    plain = write(model, None, prompts, batching=batching, **GREEDY)
    likely = {TOKENIZER.decode(text[place : place + 2]) for text in plain for place in range(22)}
    sampler = AntiSlop(TOKENIZER, [Ban(text, edges="anywhere") for text in sorted(likely) if text.strip()])
    texts = write(model, sampler, prompts, batching=batching, **GREEDY)
    assert max(differences) < 2e-4
    assert len(differences) > 1.05 * sum(map(len, texts)), "little was withdrawn"
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        alone = sampler.generate(model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, **GREEDY)
        assert text == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("bans", "setting"), first_quick([(bans, setting) for setting in letters.SETTINGS for bans in letters.LISTS], 3)
)
def test_texts_are_those_of_rejection_sampling(bans: str, setting: str) -> None:
    """Sixteen at once, against a solved chain."""
    sampler = AntiSlop(letters.build_tokenizer(), list(letters.LISTS[bans]), max_rewinds=10_000)
    texts = write(
        letters.build_model(),
        sampler,
        [[letters.START]] * (400 * DEPTH),
        batching={"max_requests_per_batch": 16},
        max_new_tokens=letters.LENGTH,
        do_sample=True,
        **{"top_k": 0, **letters.SETTINGS[setting]},
    )
    assert p_value(Counter(map(tuple, texts)), letters.expected_texts(bans, setting)) > 1e-3
