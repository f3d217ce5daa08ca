"""The private names of transformers work as `core.hf.private` expects, and no other module uses private names."""

from __future__ import annotations

import ast
import inspect
import re
import time
from collections.abc import Iterator
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    StaticCache,
)
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer
from transformers.generation.logits_process import LogitsProcessorList

import antislop
from antislop.core.hf import private, releases
from antislop.core.hf.caches.borrowed import choose_cache
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.private import (
    CACHE,
    STATES,
    cache_name,
    copy_states,
    join_layers,
    needs_mask_with_static_cache,
    placeholder_layer,
    set_layer_factory,
    supports_dynamic_cache,
)
from antislop.core.loop.sampling import Sampling
from antislop.steer.samplers import TopNSigmaLogitsProcessor
from tests.support.families import build, build_refused, prepare
from tests.support.models import build_model
from tests.support.refusals import refused

PACKAGE = Path(antislop.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ALLOWED = {PACKAGE / "core" / "hf" / name for name in ("private.py", "releases.py")}
# All names are looked up in vLLM at the start of an engine, by names.yaml; `make test-vllm` runs it.
OF_VLLM = {PACKAGE / "engines" / "vllm" / name for name in ("scheduler.py", "requests.py")}
# So are those of continuous batching in transformers, by a table of their own, at the first use.
OF_BATCHING = {PACKAGE / "core" / "hf" / "paged" / "private.py"}
OF_PYTHON = {"_asdict", "_field_defaults", "_fields", "_make", "_replace", "_getframe"}
"""Names with an underscore that Python documents."""
PROMPT = torch.tensor([[4, 8, 3, 30, 22]])


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


class Call:
    """A custom loop that keeps the arguments that `generate` passes to it."""

    def __call__(self, model: PreTrainedModel, input_ids: Tensor, **kwargs: Any) -> Tensor:
        self.config: GenerationConfig = kwargs["generation_config"]
        self.kwargs = kwargs
        return input_ids


def call(model: PreTrainedModel, prompt: Tensor = PROMPT, **kwargs: Any) -> Call:
    taken = Call()
    model.generate(prompt, custom_generate=taken, **{"max_new_tokens": 3, **kwargs})
    return taken


# -- each private name works as expected -------------------------------------------------------------------------------


def test_a_configuration_remembers_the_commit_of_the_hub(llama: PreTrainedModel) -> None:
    loaded = copy(llama.config)
    loaded._commit_hash = "0123abc"
    assert private.revision_of(loaded) == "0123abc"
    assert "_commit_hash" in inspect.getsource(PreTrainedConfig)
    assert private.revision_of(llama.config) is None


OWN = {  # of a model's generation config, which requests don't name
    "min_new_tokens": 3,
    "suppress_tokens": [7],
    "begin_suppress_tokens": [8],
    "bad_words_ids": [[9], [10, 11]],
    "repetition_penalty": 1.5,
    "temperature": 0.3,
}


@pytest.mark.parametrize("own", [{}, OWN])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0), Sampling(temperature=0.7, top_k=9, min_p=0.1)]
)
def test_another_prompt_is_prepared_as_generate_would(own: dict[str, Any], sampling: Sampling) -> None:
    """Prompts of several lengths; the scores of texts that begin, that have begun, and that may end."""
    model = build_model("llama")
    model.generation_config.update(**own)
    settings = sampling.generate_arguments | {"sequence_bias": {(5,): 2.0}}
    extra = {"logits_processor": [TopNSigmaLogitsProcessor(2.0)], "stopping_criteria": [StopStrings(["a"], bytes)]}
    first = call(model, PROMPT[:, :1], max_new_tokens=9)
    for length in (1, 3, 6):
        prompt = torch.randint(2, 48, (1, length))
        asked = {"max_new_tokens": 9, **settings, **extra}
        expected = call(model, prompt, **asked).kwargs
        lengths = {"max_length": length + 9}
        made = private.prepare_again(model, prompt, first.config, settings={**settings, **lengths}, **extra)
        for name in ("max_length", "do_sample", *settings):
            assert getattr(made["generation_config"], name) == getattr(expected["generation_config"], name)
        assert {*map(type, made["stopping_criteria"])} == {*map(type, expected["stopping_criteria"])}
        for new in (0, 1, 2, 4):
            ids, scores = torch.cat([prompt, torch.randint(2, 48, (1, new))], dim=1), torch.randn(1, 48)
            processed = made["logits_processor"](ids, scores)
            assert torch.equal(processed, expected["logits_processor"](ids, scores))


@torch.no_grad()
@pytest.mark.parametrize("chunk", [None, 2])
def test_a_prompt_is_read_into_the_cache_in_parts_of_the_given_size(llama: PreTrainedModel, chunk: int | None) -> None:
    assert parameters(GenerationMixin._prefill)[:4] == ["self", "input_ids", "generation_config", "model_kwargs"]
    passes: list[int] = []
    handle = llama.register_forward_hook(lambda *_: passes.append(1))
    cache = DynamicCache(config=llama.config)
    config = GenerationConfig(prefill_chunk_size=chunk)
    kwargs = {CACHE: cache, "use_cache": True, "attention_mask": torch.ones_like(PROMPT)}
    output = private.prefill(llama, PROMPT, config, kwargs)
    handle.remove()
    assert cache.get_seq_length() == PROMPT.shape[1]
    assert len(passes) == (1 if chunk is None else 3)
    assert torch.allclose(output.logits[:, -1], llama(PROMPT).logits[:, -1], atol=1e-5)


def test_the_mode_of_decoding_is_a_context_that_leaves_the_model_as_it_was(llama: PreTrainedModel) -> None:
    assert parameters(GenerationMixin._optimize_model_for_decode) == ["self"]
    before = llama.get_experts_implementation()
    with private.optimized_for_decoding(llama):
        pass
    assert llama.get_experts_implementation() == before


def test_a_model_is_compiled_on_request_for_a_static_cache_and_never_for_a_dynamic_one() -> None:
    assert parameters(GenerationMixin._valid_auto_compile_criteria) == ["self", "model_kwargs", "generation_config"]
    model = build_model("llama")
    compiled = CompileConfig(backend="eager")
    compiled._compile_all_devices = True
    config = GenerationConfig(compile_config=compiled)
    static, dynamic = StaticCache(config=model.config, max_cache_len=9), DynamicCache(config=model.config)
    assert private.compiled_if_possible(model, static, GenerationConfig()) is model
    assert private.compiled_if_possible(model, static, config) is not model
    assert private.compiled_if_possible(model, dynamic, GenerationConfig()) is model


def test_an_assistant_drafts_for_ids_and_its_cache_is_found(llama: PreTrainedModel) -> None:
    prepared = call(llama, attention_mask=torch.ones_like(PROMPT), do_sample=False, max_new_tokens=9)
    generator = private.make_candidate_generator(
        llama,
        PROMPT,
        config=prepared.config,
        logits_processor=LogitsProcessorList(),
        model_kwargs={"attention_mask": torch.ones_like(PROMPT)},
        assistant_model=build_model("llama", seed=1),
    )
    assert private.cache_of(generator) is None
    candidates, logits = generator.get_candidates(PROMPT)
    assert torch.equal(candidates[:, : PROMPT.shape[1]], PROMPT)
    assert candidates.shape[1] > PROMPT.shape[1]
    assert logits is not None and logits.shape[1] == candidates.shape[1] - PROMPT.shape[1]
    cache = private.cache_of(generator)
    assert cache is not None
    assert PROMPT.shape[1] <= cache.get_seq_length() < candidates.shape[1]
    assert private.writes_drafts(generator)
    generator.num_assistant_tokens = 2.0
    assert private.draft_length_of(generator) == 2
    generator.generation_config.assistant_confidence_threshold = 0.0
    assert generator.get_candidates(PROMPT)[0].shape[1] == PROMPT.shape[1] + 2
    for threshold, expected in ((0.4, False), (0.3, True), (0.0, True), (None, True)):
        generator.generation_config.assistant_confidence_threshold = threshold
        assert private.is_confident(generator, 0.3) is expected


def test_prompt_lookup_has_no_cache(llama: PreTrainedModel) -> None:
    prepared = call(llama, prompt_lookup_num_tokens=2)
    generator = private.make_candidate_generator(
        llama, PROMPT, config=prepared.config, logits_processor=LogitsProcessorList(), model_kwargs={}
    )
    assert private.cache_of(generator) is None


def test_the_pad_token_is_available_in_a_custom_loop(llama: PreTrainedModel) -> None:
    assert private.pad_token_of(call(llama).config) == llama.generation_config.pad_token_id
    assert private.pad_token_of(call(llama, pad_token_id=7).config) == 7


def test_the_length_of_an_omitted_mask_is_known(llama: PreTrainedModel) -> None:
    prepared = call(llama, attention_mask=torch.ones_like(PROMPT))
    assert prepared.kwargs.get("attention_mask") is None
    assert private.mask_length_of(prepared.config) == PROMPT.shape[1]
    assert private.mask_length_of(GenerationConfig()) == 0


def test_a_cache_of_the_caller_is_distinguished_from_one_that_generate_made(llama: PreTrainedModel) -> None:
    passed = call(llama, **{CACHE: DynamicCache(config=llama.config)})
    assert private.belongs_to_caller(passed.kwargs[CACHE])
    assert not private.belongs_to_caller(call(llama).kwargs[CACHE])
    assert not private.belongs_to_caller(None)


def test_the_chosen_attention_is_reported() -> None:
    for name in ("sdpa", "eager"):
        model = build_model("llama")
        model.set_attn_implementation(name)
        assert private.attention_of(model.config.get_text_config(decoder=True)) == name


def test_code_of_transformers_is_not_remote(llama: PreTrainedModel) -> None:
    assert not llama.is_remote_code()


@pytest.mark.filterwarnings("ignore")  # of torch, on import of its compiler
def test_the_variables_of_a_chat_template_are_read_with_its_tags() -> None:
    template = "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}"
    assert private.variables_of(template + "{% set a = b | default(1) %}{{ a }}{{ '{{ c }}' }}") == {"messages", "b"}


def test_transformers_has_response_templates_by_the_type_of_model() -> None:
    for model_type in ("qwen3", "qwen3_5", "gemma4"):
        template = private.response_template_for(model_type)
        assert template is not None and {"tool_calls", "content"} < set(template["fields"])
        assert all(field.optional for field in private.compile_response_template(template).fields.values())
    assert private.response_template_for("llama") is None


def read_regions(prefix: str, *pieces: str) -> tuple[private.RegionParser, list[tuple[Any, ...]]]:
    """Return the parser of a Qwen 3's text, and its events without their opening and their values."""
    template = private.response_template_for("qwen3") or {}
    parser = private.RegionParser(template, prefix, tools=[])
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finalize()[1]
    kept = ("type", "field", "text", "raw", "start", "is_complete")
    return parser, [
        tuple(event[name] for name in kept if name in event) for event in events if event["type"] != "region_open"
    ]


def test_regions_have_their_places_and_one_that_can_not_be_read_its_text() -> None:
    parser, events = read_regions("<|im_start|>assistant\nAb", "c \n<tool_call>{</tool", "_call>", "d<tool_call>5")
    assert parser.prefilled == 2
    assert events == [
        ("region_chunk", "content", "c", 2),
        ("region_close", "content", "Abc", 0, False),
        ("region_chunk", "tool_calls", "{", 16),
        ("region_failed", "tool_calls", " \n<tool_call>{</tool_call>", 3, True),
        ("region_chunk", "content", "d", 29),
        ("region_close", "content", "d", 29, False),
        ("region_chunk", "tool_calls", "5", 41),
        ("region_close", "tool_calls", "<tool_call>5", 30, False),
    ]


def test_a_long_run_of_spaces_is_read_once() -> None:
    began = time.process_time()
    _, events = read_regions("", "a" + " " * 20_000 + "b", " " * 20_000 + "<tool_call>5</tool_call>")
    assert [event[1] for event in events] == ["content", "content", "tool_calls", "tool_calls"]
    assert time.process_time() - began < 2.0  # 0.4 seconds; 6 if each space begins a search


def test_a_compiled_model_contains_the_original(llama: PreTrainedModel) -> None:
    assert private.uncompiled(torch.compile(llama)) is llama
    assert private.uncompiled(llama) is None
    assert private.uncompiled(object()) is None


def test_images_are_inputs_of_the_prompt_only() -> None:
    assert "pixel_values" in private.PREFILL_INPUTS
    assert not {"attention_mask", CACHE, "position_ids"} & private.PREFILL_INPUTS


def test_a_loop_can_read_the_arguments_of_generate_that_are_not_passed_to_it(llama: PreTrainedModel) -> None:
    seen: list[dict[str, Any]] = []

    def loop(model: PreTrainedModel, input_ids: Tensor, **kwargs: Any) -> Tensor:
        assert "streamer" not in kwargs
        seen.append(private.arguments_of_generate("streamer", "assistant_model", "synced_gpus"))
        return input_ids

    llama.generate(PROMPT, custom_generate=loop, max_new_tokens=3, streamer=Ignored())
    assert isinstance(seen[0]["streamer"], Ignored)
    assert not seen[0]["assistant_model"] and not seen[0]["synced_gpus"]
    loop(llama, PROMPT)
    assert seen[1] == {}


class Ignored:
    """A streamer."""

    def put(self, value: Tensor) -> None:
        """Take the prompt."""

    def end(self) -> None:
        """Never called for a custom loop."""


@pytest.mark.parametrize("name", releases.NEEDED)
def test_a_release_without_a_needed_name_is_refused_with_those_that_were_tested(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = f"transformers.{name}".replace(":", ".")
    monkeypatch.delattr(path)
    refused(rf"has no {path[13:]}, .* install a release from 5\.19 to 5\.24$", releases.check_release)


def test_a_release_that_was_not_tested_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for tested in ("5.19.0", "5.24.3"):
        monkeypatch.setattr(releases.transformers, "__version__", tested)
        releases.check_release()
    for other in ("5.9.1", "5.100.0.dev0"):
        monkeypatch.setattr(releases.transformers, "__version__", other)
        with pytest.warns(match=f"^antislop was tested with transformers 5.19 to 5.24, not with {other}: ") as caught:
            releases.check_release()
        assert len(caught) == 1


def test_the_tested_releases_are_those_of_the_script() -> None:
    script = (PACKAGE.parent / ".ci" / "versions").read_text(encoding="utf-8")
    assert f"\noldest={releases.OLDEST}.0\nnewest={releases.NEWEST}.0\n" in script


def test_each_private_name_that_a_class_or_a_module_must_have_is_checked() -> None:
    """Instances get the others in a call, or they are there in some releases only."""
    needed = {re.split(r"[.:]", name)[-1] for name in releases.NEEDED}
    of_instances = {"_attn_implementation", "_commit_hash", "_is_user_defined", "_mask_length", "_pad_token_tensor"}
    of_torch, optional = (
        {"_modules", "_forward_pre_hooks_with_kwargs"},
        {"_get_alibi_slopes", "_RESPONSE_TEMPLATE_FALLBACKS"},
    )
    assert find_private_names() - needed == of_instances | of_torch | optional


# -- no other module uses private names --------------------------------------------------------------------------------


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def foreign_names(path: Path) -> Iterator[str]:
    """Yield the names with an underscore that a module imports, or reads from any object but `self` and `cls`."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
            named = node.args[1]
            if isinstance(named, ast.Constant) and str(named.value).startswith("_") and named.value[:2] != "__":
                yield str(named.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "transformers"):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))


def defined_names(path: Path) -> Iterator[str]:
    """Yield the names with an underscore that a module defines: functions, classes, attributes and fields."""
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def find_private_names() -> set[str]:
    return {name for path in ALLOWED for name in foreign_names(path)} - OF_PYTHON


def test_uses_of_private_names_are_found() -> None:
    found = find_private_names()
    assert {"_prefill", "_is_user_defined", "_pad_token_tensor", "_get_candidate_generator"} <= found


def test_no_other_module_reads_private_names_of_other_packages() -> None:
    private_names = find_private_names()
    defined = {name for path in MODULES for name in defined_names(path)}
    for path in sorted(set(MODULES) - ALLOWED - OF_VLLM - OF_BATCHING):
        names = set(foreign_names(path)) - OF_PYTHON
        assert not names & private_names and names <= defined, path
        text = path.read_text(encoding="utf-8")
        assert not any(name in text for name in ("layer_class_to_replicate", "f_locals", "DROP_OUTSIDE_PREFILL")), path


# -- caches ------------------------------------------------------------------------------------------------------------


def states(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def recurrent() -> LinearAttentionLayer:
    layer = LinearAttentionLayer(number_of_states=1)
    layer.update_conv_state(states(2, 4, 3))
    layer.update_recurrent_state(states(2, 4, 5))
    return layer


@pytest.mark.parametrize("family", ["llama", "mamba", "mamba2", "falcon-h1", "bamba", "t5"])
def test_models_take_their_cache_by_its_name_and_return_it_by_that_of_outputs(family: str) -> None:
    model = build(family)
    assert cache_name(model) in inspect.signature(model.forward).parameters
    out = model.generate(
        **prepare(family, [3, 4]), **{cache_name(model): None}, max_new_tokens=2, return_dict_in_generate=True
    )
    assert isinstance(out[CACHE], Cache)


def test_a_release_that_passes_the_cache_by_another_name_is_refused() -> None:
    kwargs = {"use_cache": True, "of_another_name": DynamicCache()}
    with pytest.raises(ValueError, match=f"this release of transformers passes no {CACHE}: install one that antislop"):
        choose_cache(kwargs, model=build("llama"))
    with pytest.raises(ValueError, match=r"the model generates without a cache, .* pass use_cache=True"):
        choose_cache({"use_cache": False}, model=build("llama"))


def test_a_cache_without_a_configuration_makes_layers_when_it_is_updated() -> None:
    made: list[DynamicLayer] = []

    def make() -> DynamicLayer:
        made.append(DynamicLayer())
        return made[-1]

    cache = DynamicCache()
    set_layer_factory(cache, make)
    cache.update(states(1, 2, 3, 4), states(1, 2, 3, 4), 1)
    assert cache.layers == made
    assert len(made) == 2


def test_a_cache_with_a_configuration_makes_no_further_layers() -> None:
    cache = DynamicCache(config=build_model("llama").config)
    before = list(cache.layers)
    set_layer_factory(cache, DynamicLayer)
    assert cache.layers == before
    assert cache.layer_class_to_replicate is None


def test_recurrent_layers_keep_their_states_under_these_names_and_no_others() -> None:
    """Other attributes do not depend on the tokens."""
    names = vars(LinearAttentionLayer(number_of_states=1)).keys()
    assert names - set(STATES) == {"device", "dtype", "number_of_states", "record_past"}
    assert set(STATES) <= names
    assert all(list(vars(recurrent())[name]) == [0] for name in STATES)


def test_states_are_copied_and_not_shared() -> None:
    source, target = recurrent(), LinearAttentionLayer(number_of_states=1)
    copy_states(target, source)
    assert (target.device, target.dtype) == (source.device, source.dtype)
    for kept, read in ((target.conv_states, source.conv_states), (target.recurrent_states, source.recurrent_states)):
        assert torch.equal(kept[0], read[0])
        read[0].zero_()
        assert kept[0].any()


def test_a_hybrid_layer_is_made_of_its_two_halves() -> None:
    attention, half = DynamicLayer(), recurrent()
    attention.update(states(2, 2, 3, 4), states(2, 2, 3, 4))
    joined = join_layers(LinearAttentionAndFullAttentionLayer(1), states=half, attention=attention)
    assert type(joined) is LinearAttentionAndFullAttentionLayer
    assert torch.equal(joined.keys, attention.keys)
    assert joined.get_seq_length() == 3
    assert joined.conv_states is half.conv_states
    assert joined.recurrent_states is half.recurrent_states


def test_models_with_states_outside_of_their_cache_are_known() -> None:
    assert supports_dynamic_cache(build_model("llama"))
    assert supports_dynamic_cache(build("mamba"))
    assert not supports_dynamic_cache(build_refused("xlnet"))


def test_layers_without_a_cache_have_their_own_type_since_transformers_5_23() -> None:
    assert (placeholder_layer() is not None) == (Version(transformers.__version__) >= Version("5.23"))


def test_bloom_alone_may_need_a_mask_with_a_static_cache() -> None:
    """The tests of families show that it fails without a mask in these versions only."""
    assert not needs_mask_with_static_cache(build("falcon-alibi"))
    model, prompt = build("bloom"), torch.tensor([[4, 8, 3]])
    if needs_mask_with_static_cache(model):
        with pytest.raises(ValueError, match="too many values to unpack"):
            model.generate(prompt, max_new_tokens=2, cache_implementation="static")
    else:
        assert model.generate(prompt, max_new_tokens=2, cache_implementation="static").shape[1] > 3
