"""Prompts and other arguments are used as intended, or refused in one sentence before the model runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    MaxLengthCriteria,
    PreTrainedModel,
    TextIteratorStreamer,
    TextStreamer,
    pipeline,
    set_seed,
)

from antislop import AntiSlop, Ban, BanError
from antislop.trace.events import Settled
from tests.support.models import build_model, build_spaced_tokenizer, build_tokenizer

TOKENIZER = build_tokenizer()
SAMPLER = AntiSlop(TOKENIZER, ["ad", "be"])
TEXT = "abad fab"
IDS = TOKENIZER(TEXT, return_tensors="pt")["input_ids"]
ASKED: dict[str, Any] = {"max_new_tokens": 20, "do_sample": True}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@contextmanager
def refusing(model: PreTrainedModel, match: str) -> Iterator[None]:
    """Expect one sentence, and that the model never runs."""
    ran: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(ValueError, match=match) as caught:
        yield
    handle.remove()
    assert "\n" not in str(caught.value)
    assert not ran


def seeded(write: Callable[[], Any]) -> Any:
    set_seed(0)
    return write()


def test_a_text_is_read_as_its_ids_are(llama: PreTrainedModel) -> None:
    given = {"attention_mask": torch.ones_like(IDS), **ASKED}
    expected = seeded(lambda: SAMPLER.generate(llama, IDS, **given))
    assert torch.equal(seeded(lambda: SAMPLER.generate(llama, TEXT, **ASKED)), expected)
    text = TOKENIZER.decode(expected[0, IDS.shape[1] :], skip_special_tokens=True)
    assert seeded(lambda: "".join(SAMPLER.stream(llama, TEXT, **ASKED))) == text
    events = seeded(lambda: list(SAMPLER.events(llama, TEXT, **ASKED)))
    settled = [token for event in events if isinstance(event, Settled) for token in event.tokens]
    assert settled == expected[0, IDS.shape[1] :].tolist()


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ("", "an empty prompt was passed"),
        (["abad", "fab"], "inputs is a list: pass one text, or several texts to generate_many"),
        ([2, 3], r"inputs is a list: pass a text, or ids as a tensor \[rows, tokens\]"),
        (
            TOKENIZER(TEXT, return_tensors="pt"),
            r"inputs is a BatchEncoding: pass its parts, generate\(model, \*\*inputs\)",
        ),
        (IDS[0], r"inputs has the shape \(\d,\), not \[rows, tokens\]: pass inputs\[None\]"),
        (b"abad", "inputs is a bytes"),
    ],
)
def test_inputs_that_are_not_a_prompt_are_refused(llama: PreTrainedModel, inputs: Any, match: str) -> None:
    for way in (SAMPLER.generate, SAMPLER.stream, SAMPLER.events):
        with refusing(llama, match):
            way(llama, inputs, **ASKED)


@pytest.mark.parametrize("name", ["attention_mask", "input_ids", "position_ids", "inputs_embeds", "past_key_values"])
def test_a_text_together_with_arguments_for_ids_is_refused(llama: PreTrainedModel, name: str) -> None:
    with refusing(llama, f"a text and {name} are passed: leave {name} out"):
        SAMPLER.generate(llama, TEXT, **{name: IDS}, **ASKED)


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        ("The old house", "prompts is 'The old house', one text, and each letter would be a prompt: write \\[text\\]"),
        (b"abad", "prompts is b'abad', one text"),
        (TOKENIZER([TEXT]), "prompts is a BatchEncoding: pass a list of texts or of ids"),
        (5, "prompts is a int"),
        ([None], r"a prompt is a text or ids \[tokens\], not a NoneType"),
        ([[0.5, 2.0]], r"a prompt is a text or ids \[tokens\], not a list"),
        ([IDS], r"a prompt is a text or ids \[tokens\], not a Tensor of shape \(1, \d\)"),
        (IDS[0], r"a prompt is a text or ids \[tokens\], not a Tensor of shape \(\)"),
        (["abad", ""], "an empty prompt was passed"),
    ],
)
def test_unusable_prompts_are_refused(llama: PreTrainedModel, prompts: Any, match: str) -> None:
    with refusing(llama, match):
        list(SAMPLER.generate_many(llama, prompts, **ASKED))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        *(
            (name, IDS, f"{name} belongs to one prompt, and generate_many prepares each by itself")
            for name in ("inputs", "input_ids", "attention_mask", "position_ids", "inputs_embeds", "token_type_ids")
        ),
        ("past_key_values", DynamicCache(), "past_key_values belongs to one prompt"),
        ("negative_prompt_ids", IDS, "negative_prompt_ids belongs to one prompt"),
        ("streamer", TextIteratorStreamer(TOKENIZER), "leave streamer out and read the texts as they are yielded"),
        ("assistant_model", object(), "assistant_model drafts for one prompt at a time"),
        ("return_dict_in_generate", True, "return_dict_in_generate has no effect here"),
    ],
)
def test_arguments_of_one_prompt_are_refused_for_many(
    llama: PreTrainedModel, name: str, value: Any, match: str
) -> None:
    """Refused at once, since a caller would wait forever for the end of a streamer."""
    with refusing(llama, match):
        SAMPLER.generate_many(llama, [TEXT], **ASKED, **{name: value})


def test_scores_that_can_not_be_returned_are_refused(llama: PreTrainedModel) -> None:
    config = GenerationConfig(max_new_tokens=2, return_dict_in_generate=True, output_scores=True, pad_token_id=1)
    with refusing(llama, "generate_many keeps no scores"):
        list(SAMPLER.generate_many(llama, [TEXT], generation_config=config))


def test_fewer_seeds_than_prompts_are_refused(llama: PreTrainedModel) -> None:
    """A prompt was left out without an error."""
    with refusing(llama, "there are fewer seeds than prompts"):
        list(SAMPLER.generate_many(llama, [TEXT] * 3, seeds=[1, 2], **ASKED))


def test_a_streamer_is_refused_by_methods_that_yield_something_else(llama: PreTrainedModel) -> None:
    for way in (SAMPLER.stream, SAMPLER.events):
        with refusing(llama, "only generate takes a streamer"):
            way(llama, TEXT, streamer=TextStreamer(TOKENIZER), **ASKED)


def test_a_cache_with_which_transformers_calls_no_sampler_is_refused(llama: PreTrainedModel) -> None:
    with refusing(llama, "cache_implementation='paged' never asks a sampler"):
        SAMPLER.generate(llama, TEXT, cache_implementation="paged", **ASKED)
    with refusing(llama, "cache_implementation='paged' is not supported"):
        SAMPLER.generate(llama, TEXT, generation_config=GenerationConfig(cache_implementation="paged"), **ASKED)


def test_a_model_whose_generate_changes_the_output_works_only_by_generate(llama: PreTrainedModel) -> None:
    class Own(type(llama)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            super().generate(*args, **kwargs)
            return {"sequences": None}

    model = Own(llama.config)
    for way in (SAMPLER.stream, SAMPLER.events):
        with refusing(model, "Own makes more of what it writes, in a generate"):
            way(model, TEXT, **ASKED)
    with refusing(model, "Own makes more of what it writes, in a generate"):
        next(SAMPLER.generate_many(model, [TEXT], **ASKED))
    assert SAMPLER.generate(model, TEXT, **ASKED) == {"sequences": None}


def test_a_model_whose_generate_passes_on_its_arguments_works(llama: PreTrainedModel) -> None:
    class Plain(type(llama)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    model, asked = Plain(llama.config), {**ASKED, "suppress_tokens": [0, 1]}
    out = SAMPLER.generate(model, TEXT, return_dict_in_generate=True, **asked)
    assert out.report.tokens_fed >= out.sequences.shape[1] - 1
    assert out.reports == [out.report]
    assert "".join(SAMPLER.stream(model, TEXT, **asked))
    assert [done.text for done in SAMPLER.generate_many(model, [TEXT], **asked)]


def test_a_model_that_calls_no_sampler_is_refused(llama: PreTrainedModel) -> None:
    class Alone(type(llama)):  # type: ignore[misc]
        def generate(self, *args: Any, custom_generate: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    with pytest.raises(ValueError, match=r"Alone.generate\(\) wrote the text by itself and never called the sampler"):
        SAMPLER.generate(Alone(llama.config), TEXT, **ASKED)


def test_another_tokenizer_than_that_of_the_sampler_is_refused(llama: PreTrainedModel) -> None:
    with refusing(llama, "tokenizer is not the sampler's"):
        SAMPLER.generate(llama, TEXT, tokenizer=build_spaced_tokenizer(), stop_strings="fa", **ASKED)
    for same in (TOKENIZER, build_tokenizer()):
        SAMPLER.generate(llama, TEXT, tokenizer=same, stop_strings="fa", **ASKED)


def test_stop_strings_reach_the_sampler_through_generate_and_a_pipeline(llama: PreTrainedModel) -> None:
    asked = {**ASKED, "stop_strings": ["d", "\n\n"]}
    expected = seeded(lambda: SAMPLER.generate(llama, TEXT, **asked))
    assert expected.shape[1] < IDS.shape[1] + 20
    mask = torch.ones_like(IDS)
    given: dict[str, Any] = {"attention_mask": mask, "custom_generate": SAMPLER, **asked}
    assert torch.equal(seeded(lambda: llama.generate(IDS, **given)), expected)
    assert torch.equal(seeded(lambda: llama.generate(IDS, tokenizer=TOKENIZER, **given)), expected)
    write = pipeline("text-generation", model=llama, tokenizer=TOKENIZER, device="cpu")
    own = {**ASKED, "temperature": 1.0}  # a pipeline has settings of its own
    (done,) = seeded(lambda: write(TEXT, custom_generate=SAMPLER, stop_sequence="d", return_full_text=False, **own))
    alone = seeded(lambda: SAMPLER.generate(llama, TEXT, stop_strings="d", **own))
    assert done["generated_text"] == TOKENIZER.decode(alone[0, IDS.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("bans", ["", "  ", "no such file.txt", "x" * 5000, b"", False, 5, {}, {"ad": 0.5}])
def test_inputs_that_are_not_a_list_of_bans_are_refused(bans: Any) -> None:
    """An empty string banned nothing, and a long one was taken for a path."""
    with pytest.raises(BanError, match=r"one string|a list of bans was expected") as caught:
        AntiSlop(TOKENIZER, bans)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("other", [{"banned_strings": [""]}, {"banned_strings": ["  "]}, {"banned_regex": [""]}])
def test_bans_without_a_visible_character_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(BanError):
        AntiSlop(TOKENIZER, **other)


@pytest.mark.parametrize(
    "copied", [deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))], ids=["deep", "pickle"]
)
def test_a_used_sampler_can_be_copied_and_the_copy_writes_the_same(
    llama: PreTrainedModel, copied: Callable[[AntiSlop], AntiSlop]
) -> None:
    sampler = AntiSlop(
        TOKENIZER, ["ad", Ban.regex("b[ea]"), Ban.words(["f", "a"], gap=1)], method="token", max_rewinds=7
    )
    written = seeded(lambda: sampler.generate(llama, TEXT, **ASKED))
    copy = copied(sampler)
    assert torch.equal(seeded(lambda: copy.generate(llama, TEXT, **ASKED)), written)
    assert (copy.bans, copy.method, copy.max_rewinds) == (sampler.bans, "token", 7)


@pytest.mark.parametrize("limit", [2, 9, 40])
def test_a_limit_of_the_callers_own_replaces_the_configurations(llama: PreTrainedModel, limit: int) -> None:
    own = {"do_sample": False, "max_new_tokens": 20, "stopping_criteria": [MaxLengthCriteria(limit)]}
    inputs = TOKENIZER(TEXT, return_tensors="pt")
    expected = llama.generate(**inputs, **own, eos_token_id=None)
    assert expected.shape[1] == max(limit, inputs["input_ids"].shape[1] + 1)
    assert torch.equal(AntiSlop(TOKENIZER, []).generate(llama, **inputs, **own, eos_token_id=None), expected)
