"""The sampler in place of `generate`: bit-identical without bans, no trace of a rewind, its cost in forward passes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    set_seed,
)
from transformers.cache_utils import DynamicLayer

from antislop import AntiSlop, Ban, BanList
from antislop.core.bans.token_matcher import State
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.private import CACHE
from antislop.core.trace.events import Drawn, Forwarded, Report, Rewound
from tests.support.ban_cases import anywhere
from tests.support.depth import DEPTH, first_quick, in_turn, sample_size
from tests.support.memory import count_left
from tests.support.models import EACH_FAMILY, VOCABULARY, WINDOW, build_model, build_tokenizer

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[0, 5, 9, 2, 12, 7]])

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "temperature": {"do_sample": True, "temperature": 0.7},
    "top-k": {"do_sample": True, "top_k": 5},
    "top-p": {"do_sample": True, "top_p": 0.8},
    "min-p": {"do_sample": True, "min_p": 0.2},
    "repetition penalty": {"do_sample": True, "repetition_penalty": 1.3},
    "greedy with repetition penalty": {"do_sample": False, "repetition_penalty": 1.3},
    "no repeated n-grams": {"do_sample": True, "no_repeat_ngram_size": 2},
    "all of them": {
        "do_sample": True,
        "temperature": 1.3,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 10,
    },
}
ABSENT = {
    "an empty list": BanList([]),
    "5,000 phrases that don't occur": BanList(f"qu{i} zephyr xylophone" for i in range(5000)),
}
NARROW: dict[str, Any] = {"temperature": 0.7, "suppress_tokens": [0, 1]}
COMMON = ["a", anywhere("b"), anywhere("dd"), "fed a", anywhere("ea")]


def generate(model: PreTrainedModel, *, seed: int = 0, **kwargs: Any) -> Any:
    set_seed(seed)
    return model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **{"max_new_tokens": 40, **kwargs})


def sample(sampler: AntiSlop, model: PreTrainedModel, *, seed: int = 0, **kwargs: Any) -> Any:
    set_seed(seed)
    kwargs = {"max_new_tokens": 40, "attention_mask": torch.ones_like(PROMPT), **kwargs}
    return sampler.generate(model, PROMPT, return_dict_in_generate=True, **kwargs)


@pytest.fixture(scope="module", params=EACH_FAMILY)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build_model(request.param)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@cache
def absent(bans: str) -> AntiSlop:
    """Return a sampler whose bans never occur; each list is compiled once."""
    return AntiSlop(TOKENIZER, ABSENT[bans])


@pytest.mark.parametrize(("settings", "bans"), first_quick(in_turn(SETTINGS, tuple(ABSENT)), 3))
def test_if_nothing_matches_the_output_is_that_of_generate(model: PreTrainedModel, settings: str, bans: str) -> None:
    sampler = absent(bans)
    for seed in range(2):
        expected = generate(model, seed=seed, **SETTINGS[settings])
        random_after = torch.rand(1)
        assert torch.equal(generate(model, seed=seed, custom_generate=sampler, **SETTINGS[settings]), expected)
        assert torch.equal(torch.rand(1), random_after), "the same random numbers are used up"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_equals_generate_too(dtype: torch.dtype) -> None:
    half = build_model("llama", dtype=dtype)
    expected = generate(half, do_sample=True, min_p=0.1)
    assert torch.equal(generate(half, custom_generate=AntiSlop(TOKENIZER, ["zz"]), do_sample=True, min_p=0.1), expected)
    out = sample(AntiSlop(TOKENIZER, COMMON), half, do_sample=True, min_p=0.1)
    assert out.report.rewinds > 0


def test_the_output_dict_has_the_fields_of_generate_and_the_report(llama: PreTrainedModel) -> None:
    asked = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "do_sample": True,
        "top_k": 9,
    }
    theirs = generate(llama, **asked)
    ours = generate(llama, custom_generate=AntiSlop(TOKENIZER, ["zz"]), **asked)
    assert isinstance(ours, type(theirs))
    assert torch.equal(ours.sequences, theirs.sequences)
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(theirs[name])
        assert all(map(torch.equal, ours[name], theirs[name]))
    assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length()
    assert ours.report.violations == 0
    assert isinstance(ours.report, Report)


def test_scores_and_cache_are_those_of_the_kept_tokens(model: PreTrainedModel) -> None:
    asked = {"do_sample": True, "top_k": 9, "output_scores": True, "output_logits": True, "suppress_tokens": [1]}
    out = sample(AntiSlop(TOKENIZER, COMMON), model, **asked)
    kept = out.sequences.shape[1] - PROMPT.shape[1]
    assert out.report.rewinds > 1
    assert len(out.scores) == len(out.logits) == kept
    assert out.past_key_values.get_seq_length() == out.sequences.shape[1] - 1
    fresh = model(out.sequences).logits[0, PROMPT.shape[1] - 1 : -1]
    assert torch.allclose(torch.cat(out.logits), fresh, atol=1e-4)
    for token, scores in zip(out.sequences[0, PROMPT.shape[1] :], out.scores, strict=True):
        assert scores[0, token] > -torch.inf


def test_a_text_that_ends_before_its_first_token_has_no_scores(model: PreTrainedModel) -> None:
    ban = Ban.regex(".", then="stop", tries=0)
    asked = {"do_sample": True, "output_scores": True, "output_logits": True, "suppress_tokens": [0, 1]}
    out = sample(AntiSlop(TOKENIZER, [ban]), model, **asked)
    assert out.sequences.shape == PROMPT.shape
    assert out.scores == out.logits == ()


@pytest.mark.parametrize("seed", range(2 * DEPTH))
def test_after_any_rewinds_the_logits_are_those_of_a_fresh_pass(model: PreTrainedModel, seed: int) -> None:
    """Texts twice as long as the windows, and bans so frequent that rewinds nest."""
    sampler = AntiSlop(TOKENIZER, frequent_pieces(model))
    out = sample(sampler, model, seed=seed, do_sample=True, output_logits=True, **NARROW)
    assert out.sequences.shape[1] > 2 * WINDOW
    assert out.report.rewinds > 5
    assert max(len(e.withdrawn) for e in out.report.events if isinstance(e, Rewound)) > 1
    fresh = model(out.sequences).logits[0, PROMPT.shape[1] - 1 : -1]
    straight = straight_logits(model, out.sequences)
    floor = float((straight - fresh).abs().max())
    assert float((torch.cat(out.logits) - fresh).abs().max()) <= max(5 * floor, 1e-5)
    following = model(out.sequences[:, -1:], **{CACHE: out.past_key_values}).logits[0, -1]
    assert torch.allclose(following, model(out.sequences).logits[0, -1], atol=1e-4)


@torch.no_grad()
def straight_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the logits of cached decoding of the same tokens, one by one, without a rewind."""
    cache, prompt = DynamicCache(), PROMPT.shape[1]
    pieces = [ids[:, :prompt], *ids[:, prompt:-1].split(1, dim=1)]
    return torch.cat([model(piece, **{CACHE: cache}, logits_to_keep=1).logits[:, -1] for piece in pieces])


@cache
def frequent_pieces(model: PreTrainedModel) -> list[Ban]:
    """Return bans that the model completes over several tokens: four-character pieces of its frequent texts."""
    texts = [TOKENIZER.decode(generate(model, seed=seed, do_sample=True, **NARROW)[0, 6:]) for seed in range(6)]
    pieces = {text[i : i + 4] for text in texts for i in range(len(text) - 4)}
    return [anywhere(piece) for piece in sorted(pieces) if piece.strip()]


def test_with_full_attention_logits_after_a_rewind_are_bit_identical(llama: PreTrainedModel) -> None:
    exact = 0
    for seed in range(sample_size(12)):
        out = sample(
            AntiSlop(TOKENIZER, frequent_pieces(llama)), llama, seed=seed, do_sample=True, output_logits=True, **NARROW
        )
        fed = [event.fed for event in out.report.events if isinstance(event, Forwarded)]
        if out.report.cut_tokens and set(fed[1:]) == {1}:  # several tokens at once may round differently
            assert torch.equal(torch.cat(out.logits), straight_logits(llama, out.sequences))
            exact += 1
    assert exact


def test_no_violation_costs_no_forward_pass(llama: PreTrainedModel) -> None:
    out = sample(AntiSlop(TOKENIZER, ["zz"]), llama, do_sample=True, suppress_tokens=[1])
    assert out.report.forward_passes == 40
    assert out.report.tokens_fed == PROMPT.shape[1] + 39


def test_14_rewinds_after_a_200_token_prompt_feed_no_prompt_token_again(llama: PreTrainedModel) -> None:
    fed: list[int] = []
    handle = llama.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    set_seed(0)
    prompt = torch.randint(2, VOCABULARY, (1, 200))
    mask = torch.ones_like(prompt)
    sampler = AntiSlop(TOKENIZER, COMMON)
    out = sampler.generate(
        llama,
        prompt,
        attention_mask=mask,
        max_new_tokens=60,
        do_sample=True,
        suppress_tokens=[1],
        return_dict_in_generate=True,
    )
    handle.remove()
    assert out.report.rewinds >= 14
    assert fed[0] == 200
    assert sum(fed) == out.report.tokens_fed == 200 + 60 + out.report.cut_tokens - 1


def test_the_cache_is_never_cut_by_more_than_it_contains_or_by_0(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[tuple[int, int]] = []
    rewind = TransformersCache.rewind
    monkeypatch.setattr(
        TransformersCache,
        "rewind",
        lambda self, row, length: (cuts.append((length, self.lengths[row])), rewind(self, row, length))[1],
    )
    for seed in range(3):
        sample(AntiSlop(TOKENIZER, COMMON), model, do_sample=True, seed=seed)
    assert cuts
    assert all(PROMPT.shape[1] <= length < held for length, held in cuts)


def test_replaying_the_events_gives_the_text(llama: PreTrainedModel) -> None:
    out = sample(AntiSlop(TOKENIZER, COMMON), llama, do_sample=True)
    tokens: list[int] = []
    for event in out.report.events:
        if isinstance(event, Drawn):
            tokens.append(event.token)
        elif isinstance(event, Rewound):
            assert tuple(tokens[event.length :]) == event.withdrawn
            del tokens[event.length :]
    assert tokens == out.sequences[0, PROMPT.shape[1] :].tolist()


def test_the_way_of_calling_and_reports_do_not_change_the_text(llama: PreTrainedModel) -> None:
    sampler = AntiSlop(TOKENIZER, COMMON)
    mask = torch.ones_like(PROMPT)
    asked = {"max_new_tokens": 40, "do_sample": True, "attention_mask": mask}
    hook = generate(llama, custom_generate=sampler, do_sample=True)
    assert torch.equal(sample(sampler, llama, do_sample=True).sequences, hook)
    set_seed(0)
    assert torch.equal(sampler.generate(llama, PROMPT, **asked), hook)
    set_seed(0)
    assert torch.equal(sampler.generate(llama, input_ids=PROMPT, **asked), hook)
    set_seed(0)
    assert "".join(sampler.stream(llama, PROMPT, **asked)) == TOKENIZER.decode(
        hook[0, PROMPT.shape[1] :], skip_special_tokens=True
    )


@pytest.mark.parametrize("eos", [9, [9, 14, 3]])
def test_every_end_token_ends_the_text_and_a_withdrawn_one_does_not(
    llama: PreTrainedModel, eos: int | list[int]
) -> None:
    ends = {eos} if isinstance(eos, int) else set(eos)
    expected = generate(llama, do_sample=True, eos_token_id=eos)
    assert torch.equal(
        generate(llama, custom_generate=AntiSlop(TOKENIZER, []), do_sample=True, eos_token_id=eos), expected
    )
    ended = 0
    for seed in range(10):
        tokens = sample(AntiSlop(TOKENIZER, COMMON), llama, seed=seed, do_sample=True, eos_token_id=eos).sequences[
            0, 6:
        ]
        assert not ends & set(tokens[:-1].tolist())
        ended += int(tokens[-1]) in ends
    assert ended


def test_a_left_padded_prompt_is_read_with_its_mask(llama: PreTrainedModel) -> None:
    padded = torch.cat([torch.full((1, 3), 1), PROMPT], dim=1)
    mask = torch.cat([torch.zeros((1, 3), dtype=torch.long), torch.ones_like(PROMPT)], dim=1)
    set_seed(0)
    expected = llama.generate(padded, attention_mask=mask, max_new_tokens=20, do_sample=True)
    set_seed(0)
    ours = llama.generate(
        padded, attention_mask=mask, max_new_tokens=20, do_sample=True, custom_generate=AntiSlop(TOKENIZER, [])
    )
    assert torch.equal(ours, expected)


def test_a_cache_of_the_user_is_returned_as_one_of_transformers(llama: PreTrainedModel) -> None:
    """Also without `return_dict_in_generate`: the user may continue with it by other means."""
    sampler = AntiSlop(TOKENIZER, COMMON)
    mask = torch.ones_like(PROMPT)
    asked = {"max_new_tokens": 40, "do_sample": True, "attention_mask": mask, "suppress_tokens": [1]}
    for streams in (False, True):
        cache = DynamicCache(config=llama.config)
        set_seed(0)
        if streams:
            events = list(sampler.events(llama, PROMPT, **{CACHE: cache}, **asked))
            assert any(isinstance(event, Rewound) for event in events)
        else:
            ids = sampler.generate(llama, PROMPT, **{CACHE: cache}, **asked)
        assert {type(layer) for layer in cache.layers} == {DynamicLayer}
        assert cache.get_seq_length() == ids.shape[1] - 1
        logits = llama(ids[:, -1:], **{CACHE: cache}).logits[:, -1]
        assert torch.allclose(logits, llama(ids).logits[:, -1], atol=1e-4)


class StopAfterAB(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.tensor([input_ids.shape[1] > 15 and bool(input_ids[0, -1] == 12)])


def test_criteria_and_processors_of_the_user_see_only_kept_tokens(llama: PreTrainedModel) -> None:
    seen: list[Tensor] = []

    class Watch(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            seen.append(input_ids.clone())
            return scores

    out = sample(
        AntiSlop(TOKENIZER, COMMON),
        llama,
        do_sample=True,
        logits_processor=LogitsProcessorList([Watch()]),
        stopping_criteria=StoppingCriteriaList([StopAfterAB()]),
    )
    assert out.report.rewinds
    final = out.sequences[0].tolist()
    last_of_length = {ids.shape[1]: ids[0].tolist() for ids in seen}
    assert all(final[:length] == ids for length, ids in last_of_length.items() if length < len(final))


def test_a_processor_that_depends_on_the_text_is_called_again_after_a_rewind(llama: PreTrainedModel) -> None:
    settings = {"do_sample": True, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "output_scores": True}
    out = sample(AntiSlop(TOKENIZER, COMMON), llama, **settings)
    assert out.report.rewinds
    processors = llama._get_logits_processor(
        generation_config=llama._prepare_generation_config(
            None, **{k: v for k, v in settings.items() if k != "output_scores"}
        )[0],
        input_ids_seq_length=PROMPT.shape[1],
    )
    for length, scores in enumerate(out.scores, start=PROMPT.shape[1]):
        ids = out.sequences[:, :length]
        expected = processors(ids, llama(ids).logits[:, -1].clone())
        assert torch.allclose(scores, expected, atol=1e-4)


def test_stop_strings_of_a_generation_config_work_too(llama: PreTrainedModel) -> None:
    config = GenerationConfig(max_new_tokens=40, do_sample=True, stop_strings=["ad"], pad_token_id=1, eos_token_id=1)
    mask = torch.ones_like(PROMPT)
    set_seed(0)
    expected = llama.generate(PROMPT, attention_mask=mask, generation_config=config, tokenizer=TOKENIZER)
    set_seed(0)
    ours = AntiSlop(TOKENIZER, ["zz"]).generate(llama, PROMPT, attention_mask=mask, generation_config=config)
    assert torch.equal(ours, expected)
    assert config.stop_strings == ["ad"]


def test_a_finished_text_is_freed_without_the_collector() -> None:
    sampler, model = AntiSlop(TOKENIZER, ["a"]), build_model()
    sample(sampler, model, do_sample=True)
    assert count_left(State, lambda: sample(sampler, model, do_sample=True)) <= 0
