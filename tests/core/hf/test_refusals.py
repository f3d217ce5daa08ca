"""Unsupported settings are refused before the model runs, with one sentence that explains how to fix them."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MllamaConfig,
    MllamaForConditionalGeneration,
    PreTrainedModel,
    StaticCache,
    TextStreamer,
)

from antislop import AntiSlop, Ban, BanList, InputError, Scope
from antislop.core.hf import refusals
from antislop.core.hf.private import CACHE
from tests.support.families import REFUSED, UNKNOWN_LAYERS, build, build_refused
from tests.support.models import VOCABULARY, build_model, build_tokenizer
from tests.support.refusals import find_words, list_words, refused

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[0, 5, 9, 2]])
SAMPLER = AntiSlop(TOKENIZER, ["a b"])


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def refuses(model: PreTrainedModel, match: str, inputs: torch.Tensor = PROMPT, **kwargs: Any) -> None:
    """Check that both entry points refuse with one sentence, before the model runs."""
    kwargs = {"max_new_tokens": 3, "attention_mask": torch.ones_like(inputs), **kwargs}
    refused(match, SAMPLER.generate, model, inputs, **kwargs)
    refused(match, model.generate, inputs, custom_generate=SAMPLER, **kwargs)


def test_an_encoder_decoder_writes_one_text_at_a_time() -> None:
    model, match = build("t5"), "such a model writes one text at a time, not 2: pass one prompt, and num_return"
    refuses(model, match, num_return_sequences=2, do_sample=True)
    refuses(model, match, PROMPT.repeat(2, 1))
    assert SAMPLER.generate(model, PROMPT, max_new_tokens=3, suppress_tokens=[1]).shape == (1, 4)


def test_an_offloaded_cache_is_refused_before_it_is_made(llama: PreTrainedModel) -> None:
    """Making one needs a GPU, or a build of torch without CUDA."""
    match = "cache_implementation='offloaded' is not supported"
    config = GenerationConfig(cache_implementation="offloaded")
    for asked in ({"cache_implementation": "offloaded"}, {"generation_config": config}):
        refused(match, SAMPLER.generate, llama, PROMPT, **asked)
    offload(llama)
    refuses(llama, match, cache_implementation="offloaded")


def offload(model: PreTrainedModel) -> DynamicCache:
    try:
        return DynamicCache(config=model.config, offloading=True)
    except RuntimeError as error:
        pytest.skip(f"no offloaded cache can be made here: {str(error).splitlines()[0]}")


@pytest.mark.parametrize("family", ["gpt-neo", "falcon-alibi"])
def test_static_caches_are_refused_if_generate_is_wrong_with_them(family: str) -> None:
    model, match = build(family), r"takes the free columns .* in generate\(\) too: leave out cache_implementation"
    refuses(model, match, cache_implementation="static")
    refuses(model, match, **{CACHE: StaticCache(config=model.config, max_cache_len=20)})


def test_an_offloaded_cache_of_the_caller_is_refused(llama: PreTrainedModel) -> None:
    refuses(llama, "DynamicCache with offloading", **{CACHE: offload(llama)})


def test_caches_that_can_not_be_cut_are_refused(llama: PreTrainedModel) -> None:
    refuses(llama, "a Half can't be rewound yet", **{CACHE: Half(config=llama.config)})
    mistral = build_model("mistral")
    cache = StaticCache(config=mistral.config, max_cache_len=40)
    mistral(PROMPT, **{CACHE: cache})
    longer = torch.cat([PROMPT, PROMPT], dim=1)
    refuses(mistral, "holds tokens in sliding windows", longer, **{CACHE: cache})


@pytest.mark.parametrize("family", REFUSED)
def test_families_with_state_outside_of_their_cache_are_refused(family: str) -> None:
    """Also in flight; at most the prompt is read before."""
    model, match = build_refused(family), "keeps what it has read in states|does not keep all that it has read in its"
    with pytest.raises(ValueError, match=match) as caught:
        SAMPLER.generate(model, PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=3)
    assert type(model).__name__ in str(caught.value)
    assert "use_cache" not in str(caught.value)
    with pytest.raises(ValueError, match=match):
        next(SAMPLER.generate_many(model, PROMPT, max_new_tokens=3))


@pytest.mark.parametrize("family", UNKNOWN_LAYERS)
def test_families_with_layers_of_their_own_in_their_cache_are_refused(family: str) -> None:
    """In flight, too. `generate` itself can write with them."""
    model = build_refused(family)
    assert model.generate(PROMPT, min_new_tokens=3, max_new_tokens=3).shape[1] == PROMPT.shape[1] + 3
    refuses(model, "cache layers of type .* can't be rewound yet")
    refused("can't be rewound yet", lambda: next(SAMPLER.generate_many(model, PROMPT, max_new_tokens=3)))


def test_images_in_layers_of_the_cache_are_refused() -> None:
    """Mllama without images is supported."""
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "image_size": 8}
    vision |= {"intermediate_size": 48, "patch_size": 4, "max_num_tiles": 2, "vision_output_dim": 64}
    shapes = {"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    text = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "rope_parameters": rope}
    text |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "cross_attention_layers": [1]}
    config = MllamaConfig(text_config=text, vision_config={**vision, **shapes}, image_token_index=VOCABULARY - 1)
    model = MllamaForConditionalGeneration(config).eval()
    image = {
        "pixel_values": torch.randn(1, 1, 2, 3, 8, 8),
        "aspect_ratio_ids": torch.tensor([[1]]),
        "aspect_ratio_mask": torch.ones((1, 1, 2), dtype=torch.long),
        "cross_attention_mask": torch.ones((1, 4, 1, 2), dtype=torch.long),
    }
    asked = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 9, "do_sample": False}
    with pytest.raises(ValueError, match=r"keeps an image in layers of its cache, .* pass text alone"):
        SAMPLER.generate(model, PROMPT, **asked, **image)
    assert torch.equal(AntiSlop(TOKENIZER, []).generate(model, PROMPT, **asked), model.generate(PROMPT, **asked))


class Half(DynamicCache):
    """An unknown subclass of a cache."""


def test_rotary_scaling_that_depends_on_earlier_lengths_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        rope_parameters=rope,
    )
    refuses(LlamaForCausalLM(config), "rope_type='dynamic'", pad_token_id=1)


def test_checkpointing_that_drops_the_cache_in_training_is_refused() -> None:
    model = build_model("llama")
    newer = "activation_checkpointing_enable"
    getattr(model, newer if hasattr(model, newer) else "gradient_checkpointing_enable")()
    refuses(model.train(), "training mode with gradient checkpointing, which keeps no cache to rewind: call model.eval")
    assert len(SAMPLER.generate(model.eval(), PROMPT, max_new_tokens=3)) == 1
    model = build_model("llama").train()
    assert len(SAMPLER.generate(model, PROMPT, max_new_tokens=3)) == 1, "training mode alone is no obstacle"


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"method": "fast"}, "method is 'fast'; it is one of 'exact', 'token'"),
        ({"on_exhausted": "cry"}, "on_exhausted is 'cry'; it is one of"),
        ({"max_rewinds": -1}, "max_rewinds is -1"),
        ({"max_rewinds": True}, "max_rewinds is True"),
        ({"mass_floor": 1.5}, r"mass_floor is 1.5; it is a share of probability, 0.0 to 1.0"),
        ({"mass_floor": float("nan")}, "mass_floor is nan"),
        ({"probability_floor": -1e-4}, "probability_floor is -0.0001"),
        ({"probability_floor": "0.1"}, "probability_floor is '0.1'"),
        ({"probability_floor": True}, "probability_floor is True"),
        ({"prompt_lookback": -2}, "prompt_lookback is -2; it is True or False"),
        ({"exempt_prompt": "yes"}, "exempt_prompt is 'yes'; it is True or False"),
        ({"banned_strings": 3}, "banned_strings is 3; a list is expected"),
        ({"exempt": 3}, "exempt is 3; a list is expected"),
        ({"scopes": Scope("outside", "quotes")}, r"scopes is Scope\(.*; a list is expected: write \[scopes\]"),
        ({"rewind": "line"}, "rewind is 'line'; it is one of 'span', 'word', 'sentence', 'paragraph', 'text'"),
        ({"method": "token", "rewind": "word"}, "method='token' draws one token again, and rewind is 'word': leave"),
        ({"method": "token", "rewind": "text"}, "method='token' draws one token again, and rewind is 'text': leave"),
        ({"method": "token", "bans": [Ban("a", rewind="sentence")]}, "and rewind is 'sentence': leave out one"),
        ({"bans": [Ban.tokens([10**6])]}, r"Ban.tokens\(\[1000000\]\) is beyond the tokenizer, whose ids end at"),
    ],
)
def test_invalid_options_of_the_sampler_are_refused(kwargs: dict[str, Any], match: str) -> None:
    refused(match, AntiSlop, TOKENIZER, **{"bans": ["a"], **kwargs})


NO_STATES = "{} returns no scores, states or attentions: leave {} out, or use generate"
CALLS: list[tuple[str, dict[str, Any], str]] = [
    (
        "custom_generate",
        {"assistant_model": build_model("llama")},
        r"generate\(model, …, assistant_model=assistant\) inst",
    ),
    (
        "custom_generate",
        {"streamer": TextStreamer(TOKENIZER)},
        r"generate\(model, …, streamer=streamer\) or sampler.str",
    ),
    ("custom_generate generate", {"synced_gpus": True}, "synced_gpus is not supported yet"),
    ("generate", {"custom_generate": SAMPLER}, "custom_generate can't be passed to a sampler"),
    ("generate", {"tools": [{}]}, "tools are for the chat template"),
    ("stream", {"num_return_sequences": 2, "do_sample": True}, "one text can be streamed at a time, not 2"),
    ("stream events", {"streamer": TextStreamer(TOKENIZER)}, "only generate takes a streamer"),
    ("stream", {"return_cache": True}, "only generate returns a cache: call sampler.generate, or leave return_cache"),
    ("generate_many", {"controller": object()}, "a controller moves the rows of one call"),
    ("generate_many", {"inputs_embeds": torch.zeros(1, 4, 2)}, "inputs_embeds belongs to one prompt"),
    ("generate_many", {"seeds": ["x"]}, "a seed is 'x': pass whole numbers of up to 64 bits, one for each prompt"),
    ("generate_many", {"batch_size": "4"}, "batch_size is '4'; a whole number, at least 1, is expected"),
    ("generate_many", {"batch_size": 2.5}, "batch_size is 2.5"),
    ("generate_many", {"seed": "4"}, "a seed is '4': pass whole numbers of up to 64 bits"),
    ("generate_many", {"seeds": 4}, "seeds is 4: pass a whole number for each prompt, or a single one as seed"),
    ("generate_many", {"seeds": "4"}, "seeds is '4'"),
    ("generate stream", {"max_tokens": 10}, "generate has no argument max_tokens: did you mean max_new_tokens?"),
    ("generate stream", {"temprature": 1.0}, "generate has no argument temprature: did you mean temperature?"),
    ("generate stream", {"stop": "."}, "generate has no argument stop: did you mean stop_strings?"),
    ("generate stream", {"bans": ["a"]}, "generate has no argument bans: leave it out"),
    ("custom_generate generate", {"num_beams": 3}, "num_beams=3 is not supported: .* use num_beams=1"),
    ("custom_generate generate", {"use_cache": False}, "use_cache"),
    ("custom_generate generate", {"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
    ("custom_generate generate", {"guidance_scale": 1.5}, "guidance"),
    *(
        (door, {name: True}, NO_STATES.format("stream" if door == "events" else door, name))
        for door in ("stream", "events", "generate_many")
        for name in ("output_scores", "output_logits")
    ),
]
"""The doors, the arguments, and the sentence that refuses them."""


@pytest.mark.parametrize(("doors", "kwargs", "sentence"), CALLS)
def test_arguments_that_a_door_can_do_nothing_with_are_refused(
    llama: PreTrainedModel, doors: str, kwargs: dict[str, Any], sentence: str
) -> None:
    for door in doors.split():
        is_custom = door == "custom_generate"
        write = (
            partial(llama.generate, custom_generate=SAMPLER) if is_custom else partial(getattr(SAMPLER, door), llama)
        )
        refused(sentence, lambda write=write: list(write(PROMPT, **{"max_new_tokens": 3, **kwargs})))


def test_an_assistant_with_another_vocabulary_is_refused(llama: PreTrainedModel) -> None:
    model = LlamaForCausalLM(LlamaConfig(**{**llama.config.to_dict(), "vocab_size": 60}))
    with pytest.raises(InputError, match="the assistant has a vocabulary of 60 tokens, and the model one of 48"):
        SAMPLER.generate(llama, PROMPT, assistant_model=model, max_new_tokens=3)


def test_a_string_instead_of_a_list_is_refused() -> None:
    refused("the bans are 'a testament to', which is one string and not a file", AntiSlop, TOKENIZER, "a testament to")
    refused("is one string", BanList, "delve")


def resized(llama: PreTrainedModel, size: int) -> PreTrainedModel:
    model = deepcopy(llama)
    model.resize_token_embeddings(size)
    return model


@pytest.mark.parametrize("size", [VOCABULARY - 1, 2 * VOCABULARY])
def test_the_tokenizer_of_another_model_is_refused(llama: PreTrainedModel, size: int) -> None:
    refuses(resized(llama, size), f"tokenizer has 48 tokens and LlamaForCausalLM {size}: it belongs to another model")


def test_a_vocabulary_may_be_padded_and_a_tokenizer_may_have_additional_tokens(llama: PreTrainedModel) -> None:
    SAMPLER.generate(resized(llama, 64), PROMPT, max_new_tokens=1)
    longer = build_tokenizer()
    longer.add_tokens(["<think>", "</think>"])
    AntiSlop(longer, ["a b"]).generate(llama, PROMPT, max_new_tokens=1)


def test_tokens_added_after_the_sampler_was_made_are_refused(llama: PreTrainedModel) -> None:
    tokenizer = build_tokenizer()
    sampler = AntiSlop(tokenizer, ["a b"])
    tokenizer.add_tokens(["<think>"])
    for write in (sampler.generate, sampler.events, lambda *asked, **more: list(sampler.generate_many(*asked, **more))):
        with pytest.raises(ValueError, match=r"^the tokenizer has 49 tokens and had 48 when the sampler was made"):
            write(llama, PROMPT, max_new_tokens=1)


def test_each_sentence_of_the_table_is_raised_with_its_words() -> None:
    """`refusal` looks a sentence up when it is raised; a slip in a name would be found only then."""
    folder = Path(refusals.__file__).parent
    sentences = yaml.safe_load((folder / "refusals.yaml").read_text(encoding="utf-8"))["sentences"]
    assert find_words(folder, refusals.refusal) == list_words(sentences)
