"""`generate_many` with engine="paged" writes what it writes alone, whatever it is asked for, or refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, PreTrainedModel, StoppingCriteria
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager

from antislop import AntiSlop, Ban, applied_to
from antislop.core.trace import Completion
from antislop.errors import ConcededWarning, Exhausted, InputError
from tests.support.batches import COMMON, PROMPTS
from tests.support.depth import first_quick
from tests.support.families import build
from tests.support.models import build_model, build_tokenizer, failing, poisoned

TOKENIZER = build_tokenizer()
MANY = AntiSlop(TOKENIZER, COMMON)
MODEL = build_model()
GREEDY = {"do_sample": False, "suppress_tokens": [0, 1]}
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}
SMALL = ContinuousBatchingConfig(page_size=4, num_blocks=24, max_batch_tokens=32, safety_margin=0.0)
"""Blocks of four tokens, too few for all texts: some are begun anew."""


def write(
    sampler: AntiSlop = MANY, prompts: Any = PROMPTS, *, model: PreTrainedModel = MODEL, **asked: Any
) -> list[Completion]:
    """Return the texts in the order of their prompts."""
    settings = {"batch_size": 3, "seed": None if "seeds" in asked else 5, "max_new_tokens": 16, **asked}
    return sorted(sampler.generate_many(model, [*prompts], **settings), key=lambda text: text.number)


def differ(own: Sequence[Completion], paged: Sequence[Completion]) -> list[str]:
    """Return what differs between two lists of completions, but for times."""
    found = []
    for one, other in zip(own, paged, strict=True):
        for text in (one, other):
            text.report.matcher_seconds = 0.0
            text.report.events.clear()
        fields = {"text", "tokens", "report"}
        found += [f"{name} of {one.number}" for name in fields if getattr(one, name) != getattr(other, name)]
        found += [f"error of {one.number}"] * (str(one.error) != str(other.error))
    return found


class Halving:
    """Makes what a text has written so far half as likely."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter_add(1, ids, torch.full(ids.shape, -0.7))


class Seventh(StoppingCriteria):  # type: ignore[misc]
    """Ends a text at each seventh token, its prompt included."""

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] % 7 == 0)


CASES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "in little memory": {**SAMPLED, "continuous_batching_config": SMALL},
    "callbacks": {"logits_processor": lambda: [Halving()], "stopping_criteria": lambda: [Seventh()], "do_sample": True},
    "stop strings and penalties": {**SAMPLED, "stop_strings": ["ab", "c"], "repetition_penalty": 1.3},
    "a list for each": {**GREEDY, "bans": [["a"], None, [], COMMON[:2]]},
    "a seed for each": {**SAMPLED, "seeds": [1, 1, 2, 3], "batch_size": 1},
    "ids that nobody has": {**GREEDY, "prompts": [[5, 9], [], [48], [7]]},
    "nothing but an error": {"prompts": [[]]},
    "no prompt": {"prompts": []},
}


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_texts_reports_and_errors_are_the_same(asked: dict[str, Any]) -> None:
    own = {name: value for name, value in asked.items() if name != "continuous_batching_config"}
    assert differ(write(**own), write(**asked, engine="paged")) == []


def test_a_text_that_skips_batches_draws_again_from_its_own_probabilities() -> None:
    """Prompts go first here, in parts, and texts wait for them while something that may become a ban is open."""
    rng = random.Random(0)
    phrases = ["".join(rng.choice("abcdefgh") for _ in range(rng.choice((2, 3, 4)))) for _ in range(40)]
    sampler = AntiSlop(TOKENIZER, [Ban(phrase, edges="anywhere") for phrase in phrases])
    prompts = [[rng.randrange(2, 48) for _ in range(14)] for _ in range(24)]
    asked: dict[str, Any] = {"batch_size": 8, "seed": 0, "max_new_tokens": 12, "do_sample": True, "top_k": 0}
    parts = ContinuousBatchingConfig(page_size=4, num_blocks=96, max_batch_tokens=7, scheduler_type="prefill_first")
    paged = write(sampler, prompts, engine="paged", continuous_batching_config=parts, **asked)
    assert [text.tokens for text in paged] == [text.tokens for text in write(sampler, prompts, **asked)]


@pytest.mark.parametrize("family", first_quick(["llama", "gemma3"]))
def test_a_cache_that_waits_in_the_memory_of_the_host_is_right(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which transformers can do with an accelerator only, whose host memory is pinned."""
    moved: list[str] = []
    empty, move = torch.empty, OffloadingManager._offload_to_cpu

    def count(self: OffloadingManager, *args: Any) -> set[str]:
        moved.extend(move(self, *args))
        return {*moved[-1:]}

    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **kind: empty(*size, **kind))
    monkeypatch.setattr(OffloadingManager, "_offload_to_cpu", count)
    model, prompts = build_model(family), [[*prompt] * 2 for prompt in PROMPTS] * 3
    config = replace(SMALL, num_blocks=26, max_batch_tokens=64, cpu_offload_space=0.01)
    asked: dict[str, Any] = {"batch_size": 8, "max_new_tokens": 24, "do_sample": True, "top_k": 0}
    paged = write(MANY, prompts, model=model, engine="paged", continuous_batching_config=config, **asked)
    assert [text.tokens for text in paged] == [text.tokens for text in write(MANY, prompts, model=model, **asked)]
    assert len(moved) > 1


def test_a_text_without_probabilities_fails_with_those_beside_it_only() -> None:
    """A forward pass over packed texts spreads NaN among them."""
    with poisoned(MODEL, 40):
        own, paged = (write(engine=engine, batch_size=1, **GREEDY) for engine in ("own", "paged"))
    assert {text.error is None for text in paged} == {True, False}
    assert differ(own, paged) == []


def test_a_text_is_yielded_when_it_ends_and_prompts_are_read_as_places_become_free() -> None:
    read = itertools.count()

    def prompts() -> Iterator[list[int]]:
        while next(read) < 100:
            yield [5, 9]

    texts = MANY.generate_many(MODEL, prompts(), engine="paged", batch_size=2, max_new_tokens=4, **GREEDY)
    assert len([next(texts) for _ in range(3)]) == 3
    assert next(read) <= 8
    texts.close()
    assert "init_continuous_batching" not in vars(MODEL)


def test_the_model_and_the_random_numbers_of_torch_are_as_they_were() -> None:
    """Also inside `applied_to`, whose sampler such texts are not written under, as without the engine."""
    model = build_model()
    model.set_attn_implementation("eager")
    own = write(model=model, **GREEDY)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with applied_to(model, AntiSlop(TOKENIZER, [Ban.regex("(?s).")])):
        assert differ(own, write(model=model, engine="paged", **GREEDY)) == []
    assert torch.equal(torch.rand(3), expected)
    assert model.config._attn_implementation == "eager"


def test_a_concession_is_a_warning_about_the_line_that_asks() -> None:
    with pytest.warns(ConcededWarning, match="was let through at token 0") as caught:
        write(AntiSlop(TOKENIZER, [Ban.regex("(?s).")]), engine="paged", **GREEDY)
    assert [warning.filename for warning in caught] == [__file__]


def test_an_error_that_ends_all_texts_is_raised_as_it_is() -> None:
    """Of a ban, or of the model; that of a processor is each text's own."""
    with pytest.raises(Exhausted, match="every alternative"):
        write(AntiSlop(TOKENIZER, [Ban.regex("(?s).")], on_exhausted="raise"), engine="paged", **GREEDY)

    def fail(ids: Tensor, scores: Tensor) -> Tensor:
        raise KeyError(ids.shape)

    done = write(engine="paged", logits_processor=[fail], **GREEDY)
    assert all("fail" in str(text.error) and "KeyError" in str(text.error) for text in done), [
        text.error for text in done
    ]
    with failing(MODEL.model.layers[1]), pytest.raises(ZeroDivisionError):
        write(engine="paged", **GREEDY)


def test_a_text_that_the_cache_can_not_hold_has_an_error_and_the_others_none() -> None:
    long = list(PROMPTS[2] * 8)
    short, other, last = write(prompts=[[5], long, [9]], continuous_batching_config=SMALL, engine="paged", **GREEDY)
    assert "a text of up to 119 tokens, its prompt included, does not fit into a cache of 96: ask" in str(other.error)
    assert (short.error, last.error, len(last.tokens)) == (None, None, 16)


REFUSED: dict[str, tuple[str, AntiSlop, dict[str, Any]]] = {
    "t5 has an encoder": ("never reads the encoder of T5ForConditionalGeneration: call generate", MANY, {}),
    "bloom": ("can't run BloomForCausalLM .*its probabilities would be others.*: call generate, or", MANY, {}),
    "lfm2": (r"can't run Lfm2ForCausalLM \(ValueError: Invalid layer type: conv\): call generate, or", MANY, {}),
    "llama lookup": ("it reads no drafts: leave out assistants", MANY, {"prompt_lookup_num_tokens": 3}),
    "llama static": ("it has a cache of its own: leave cache_impl", MANY, {"cache_implementation": "static"}),
    "llama parts": ("its max_batch_tokens divide prompts: leave pref", MANY, {"prefill_chunk_size": 4}),
    "mixtral": ("no arguments to the model: leave output_router_logits out", MANY, {"output_router_logits": True}),
    "llama settings": ("continuous_batching_config is 3; a Cont", MANY, {"continuous_batching_config": 3}),
    "llama asynchronous": (
        r"pass ContinuousBatchingConfig\(use_async_batching=False\)",
        MANY,
        {"continuous_batching_config": ContinuousBatchingConfig(num_blocks=4, use_async_batching=True)},
    ),
    "llama memory": (
        r"can't run LlamaForCausalLM \(MemoryError: Memory footprint .*num_blocks",
        MANY,
        {"continuous_batching_config": ContinuousBatchingConfig(num_blocks=10**9)},
    ),
    "llama engine": ("engine is 'vllm'; it is 'own' or 'paged'", MANY, {"engine": "vllm"}),
}


@pytest.mark.parametrize(("case", "refusal"), REFUSED.items(), ids=REFUSED)
def test_what_continuous_batching_can_not_do_is_refused(
    case: str, refusal: tuple[str, AntiSlop, dict[str, Any]]
) -> None:
    sentence, sampler, asked = refusal
    model = build(case.partition(" ")[0])
    model.set_attn_implementation("eager")
    with pytest.raises(InputError, match=sentence):
        write(sampler, model=model, **{"engine": "paged", **asked})
    assert model.config._attn_implementation == "eager"


def test_a_model_in_training_is_refused() -> None:
    model = build_model().train()
    with pytest.raises(InputError, match=r"evaluation mode, which LlamaForCausalLM is not in: call model\.eval"):
        write(model=model, engine="paged")
    assert model.training
