"""A cache holds what a model's modules put out in one clean forward pass, and the model is as it was before."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from antislop.errors import InputError
from antislop.explain import ActivationCache, activations, run_with_cache
from tests.support import families
from tests.support.models import VOCABULARY, build_model, counted_calls, failing, read_state
from tests.support.refusals import find_words, list_words

IDS = torch.tensor([[3, 4, 5, 6, 7], [9, 8, 7, 6, 5]])
LAYER = "model.layers.0"
PATTERN = f"{LAYER}.self_attn.pattern"


def build(family: str = "llama", *, attention: str = "eager") -> PreTrainedModel:
    model = families.build(family)
    model.set_attn_implementation(attention)
    return model


def find_first(output: Any) -> Any:
    while not isinstance(output, Tensor):
        output = output.to_tuple()[0] if hasattr(output, "to_tuple") else output[0]
    return output


def watch(model: PreTrainedModel, path: str) -> list[Tensor]:
    """Return a module's outputs in a plain forward pass, by a hook on this module alone."""
    outputs: list[Tensor] = []
    handle = model.get_submodule(path).register_forward_hook(
        lambda _module, _inputs, output: outputs.append(find_first(output).clone())
    )
    model(IDS, use_cache=False)
    handle.remove()
    return outputs


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mixtral", "mamba"])
def test_every_output_is_that_of_its_module_in_a_plain_pass(family: str) -> None:
    """Also those of a module that is called several times: gemma3 computes two kinds of positions by one."""
    model = build(family)
    logits, cache = run_with_cache(model, IDS)
    assert torch.equal(logits, model(IDS, use_cache=False).logits)
    paths = [path for path, module in model.named_modules() if path and not isinstance(module, nn.ModuleList)]
    stored = [name for name in cache if not name.endswith(".pattern")]
    seen = {
        f"{path}@{call}" if call > 1 else path: output
        for path in paths
        for call, output in enumerate(watch(model, path), start=1)
    }
    assert set(seen) == set(stored)
    assert all(torch.equal(seen[name], cache[name]) for name in seen)
    assert ("model.rotary_emb@2" in cache) == (family == "gemma3")


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "gemma3", "qwen3-next"])
def test_hidden_states_and_attention_patterns_are_those_of_transformers(family: str) -> None:
    model = build(family)
    _, cache = run_with_cache(model, IDS)
    plain = model(IDS, use_cache=False, output_hidden_states=True, output_attentions=True)
    patterns = [cache[name] for name in cache if name.endswith(".pattern")]
    assert len(patterns) == len(plain.attentions) > 0
    assert all(torch.equal(*pair) for pair in zip(patterns, plain.attentions, strict=True))
    layers = [cache[name] for name in cache if re.fullmatch(r"(model.layers|transformer.h)\.\d+", name)]
    assert len(layers) == len(plain.hidden_states) - 1 == 2
    assert torch.equal(layers[0], plain.hidden_states[1])  # the last one is returned normalized


def test_the_hooks_and_modes_of_a_model_are_as_before() -> None:
    model = build().train()
    model.model.layers[0].eval()
    model.model.layers[1].register_forward_hook(lambda *_: None)
    before, device = read_state(model), model.device
    run_with_cache(model, IDS, device="meta")
    assert read_state(model) == before
    assert model.device == device


def test_the_hooks_and_modes_of_a_model_are_as_before_if_the_pass_raises() -> None:
    model = build().train()
    with failing(model.model.layers[1].mlp):
        before = read_state(model)
        with pytest.raises(ZeroDivisionError):
            run_with_cache(model, IDS)
        assert read_state(model) == before


def test_the_pass_has_no_dropout() -> None:
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.5, embd_pdrop=0.5)
    model = GPT2LMHeadModel(config).train()
    logits, cache = run_with_cache(model, IDS)
    assert model.training
    expected, other = run_with_cache(model.eval(), IDS)
    assert torch.equal(logits, expected)
    assert all(torch.equal(cache[name], other[name]) for name in other)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom", "mistral", "qwen2-vl"])
def test_padding_changes_no_token(family: str) -> None:
    """Positions are counted by the mask: each row is as it is alone."""
    model = build(family)
    inputs = families.prepare("llama", [3, 4, 5, 9], [6, 7, 8, 9, 10, 11])
    logits, _ = run_with_cache(model, inputs["input_ids"], attention_mask=inputs["attention_mask"])
    alone, _ = run_with_cache(model, torch.tensor([[3, 4, 5, 9]]))
    torch.testing.assert_close(logits[:1, 2:], alone, atol=1e-4, rtol=0)


def test_a_mask_of_ones_changes_no_bit() -> None:
    model = build(attention="sdpa")
    logits, _ = run_with_cache(model, IDS)
    masked, _ = run_with_cache(model, IDS, attention_mask=torch.ones_like(IDS))
    assert torch.equal(logits, masked)


@pytest.mark.parametrize(
    ("names_filter", "names"),
    [
        ("lm_head", ["lm_head"]),
        (["lm_head", PATTERN], [PATTERN, "lm_head"]),
        (lambda name: name.endswith("0.mlp.up_proj"), [f"{LAYER}.mlp.up_proj"]),
        (lambda name: name.endswith(".pattern"), [PATTERN, PATTERN.replace("0", "1")]),
    ],
)
def test_a_filter_chooses_what_is_stored(names_filter: Any, names: list[str]) -> None:
    model = build()
    _, cache = run_with_cache(model, IDS, names_filter=names_filter)
    _, all_names = run_with_cache(model, IDS)
    assert list(cache) == names
    assert all(torch.equal(cache[name], all_names[name]) for name in names)


NO_PATTERN = (
    rf"'{re.escape(PATTERN)}', and attn_implementation='sdpa' computes no attention pattern: load the model with "
    'attn_implementation="eager"'
)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"names_filter": f"{LAYER}.mpl"},
            rf"no module '{LAYER}.mpl'; near names are '{LAYER}.mlp', 'model.layers.1.mlp', '{LAYER}'",
        ),
        ({"names_filter": ["lm_head", "lm_haed"]}, "no module 'lm_haed'; near names are 'lm_head', .*, .*"),
        ({"names_filter": "model.layers"}, "no module 'model.layers'"),  # a list, which is never called
        ({"names_filter": []}, "names_filter is empty"),
        ({"names_filter": 5}, "names_filter is a int: pass a name, a list of names or a function"),
        (
            {"names_filter": lambda name: name == "blocks.0"},
            "accepts none of the model's 33 names: 'lm_head', 'model', .*, …",
        ),
        *(
            ({"names_filter": each}, NO_PATTERN)
            for each in (PATTERN, ["lm_head", PATTERN], lambda n: n.endswith("pattern"))
        ),
        ({"device": "nowhere"}, "device='nowhere' can't be used: "),
        ({"device": 5.0}, "device=5.0 can't be used: "),
        ({"device": "mps" if torch.cuda.is_available() else "cuda"}, "device='(mps|cuda)' can't be used: "),
        ({"input_ids": "a text"}, "input_ids is a str: pass ids as a tensor"),
        ({"input_ids": IDS[0]}, r"input_ids has the shape \(5,\) and the type torch.int64"),
        ({"input_ids": IDS.float()}, "torch.float32"),
        ({"attention_mask": torch.ones((2, 4))}, r"attention_mask has the shape \(2, 4\) and the text \(2, 5\)"),
        ({"input_ids": None}, "neither input_ids nor inputs_embeds"),
    ],
)
def test_what_can_not_be_read_or_stored_is_refused_before_the_model_runs(options: dict[str, Any], match: str) -> None:
    model = build(attention="sdpa")
    with counted_calls(model) as calls, pytest.raises(InputError, match=match):
        run_with_cache(model, **{"input_ids": IDS, **options})
    assert not calls


def test_a_function_that_accepts_everything_of_a_layer_gets_the_patterns_that_are_computed() -> None:
    for attention in ("eager", "sdpa"):
        _, cache = run_with_cache(build(attention=attention), IDS, names_filter=lambda name: "layers.0" in name)
        assert (PATTERN in cache) == (attention == "eager")
        assert LAYER in cache


def test_a_named_module_that_is_not_called_is_an_error() -> None:
    model = build()
    model.spare = nn.Linear(2, 2)
    with pytest.raises(InputError, match="names_filter names 'spare', which was not called in this forward pass"):
        run_with_cache(model, IDS, names_filter=["lm_head", "spare"])
    with pytest.raises(InputError, match="no module that names_filter selects was called"):
        run_with_cache(model, IDS, names_filter=lambda name: name == "spare")
    assert "spare" not in run_with_cache(model, IDS)[1]


def test_tensors_are_copies_that_may_be_used_in_training() -> None:
    model = build_model()
    before = model.lm_head.weight.clone()
    logits, cache = run_with_cache(model, IDS)
    for tensor in cache.values():
        tensor.zero_()
    assert torch.equal(model.lm_head.weight, before)
    assert logits.any()
    probe = nn.Linear(32, 1)
    probe(cache["model.norm"]).sum().backward()
    assert probe.weight.grad is not None
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in (logits, *cache.values()))


def test_a_cache_moves_to_a_device() -> None:
    model = build_model()
    _, cache = run_with_cache(model, IDS)
    moved = cache.to("meta")
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}
    assert {tensor.device.type for tensor in cache.values()} == {"cpu"}
    logits, elsewhere = run_with_cache(model, IDS, device="meta")
    assert {tensor.device.type for tensor in elsewhere.values()} == {"meta"}
    assert {name: tensor.shape for name, tensor in elsewhere.items()} == {n: t.shape for n, t in cache.items()}
    assert logits.device == model.device == torch.device("cpu")


def test_a_cache_tells_its_size_and_near_names() -> None:
    cache = ActivationCache({"a.b": torch.zeros((2, 3)), "a.c": torch.zeros(1)})
    assert repr(cache) == "<ActivationCache: 2 outputs, 28 bytes>"
    assert "a.b" in cache
    assert cache.get("a") is None
    with pytest.raises(KeyError, match=r"'a.d' is not stored; near names are 'a.[bc]', 'a.[bc]'"):
        cache["a.d"]


def test_the_forward_passes_of_another_thread_are_not_stored() -> None:
    model = build_model()
    handle = model.model.layers[0].register_forward_hook(lambda *_: other.start() or other.join() if first else None)
    first, other = [True], Thread(target=lambda: (first.clear(), model(IDS[:1], use_cache=False)))
    _, cache = run_with_cache(model, IDS)
    handle.remove()
    assert not first
    assert list(cache) == list(run_with_cache(model, IDS)[1])


def test_embeddings_in_the_place_of_ids_give_the_same() -> None:
    model = build()
    inputs = families.prepare("llama", [3, 4, 5], [6, 7, 8, 9, 10])
    mask = inputs["attention_mask"]
    logits, _ = run_with_cache(model, inputs["input_ids"], attention_mask=mask)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    same, _ = run_with_cache(model, None, attention_mask=mask, inputs_embeds=embeds)
    assert torch.equal(logits, same)


def test_the_patterns_of_t5_are_weights() -> None:
    """T5 returns its position bias before the weights, in the same shape."""
    model = build("t5")
    _, cache = run_with_cache(model, IDS, decoder_input_ids=IDS)
    plain = model(IDS, decoder_input_ids=IDS, use_cache=False, output_attentions=True)
    expected = (*plain.encoder_attentions, *zip(plain.decoder_attentions, plain.cross_attentions, strict=True))
    patterns = [cache[name] for name in cache if name.endswith(".pattern")]
    assert len(patterns) == 6
    flat = [tensor for part in expected for tensor in (part if isinstance(part, tuple) else (part,))]
    assert all(torch.equal(*pair) for pair in zip(patterns, flat, strict=True))


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_decoder_of_an_encoder_decoder_model(family: str) -> None:
    model = families.build(family)
    inputs = families.prepare(family, [3, 4, 5], [6, 7, 8, 9])
    decoder_ids = torch.tensor([[0, 5, 6], [0, 7, 8]])
    logits, cache = run_with_cache(
        model, inputs["input_ids"], attention_mask=inputs["attention_mask"], decoder_input_ids=decoder_ids
    )
    assert torch.equal(logits, model(**inputs, decoder_input_ids=decoder_ids, use_cache=False).logits)
    assert any("encoder" in name for name in cache)
    assert any("decoder" in name for name in cache)


def test_a_model_that_reads_images() -> None:
    model = families.build("qwen2-vl")
    inputs = families.prepare("qwen2-vl", [3, 4, 5], [6, 7, 8, 9])
    logits, cache = run_with_cache(model, **inputs)
    assert torch.equal(logits, model(**inputs, use_cache=False).logits)
    assert any("visual" in name for name in cache)


def test_the_activations_of_an_offloaded_model(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = build_model()
    model.save_pretrained(tmp_path)
    offloaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map={"model": "disk", "lm_head": "cpu"}, offload_folder=tmp_path
    )
    _, plain = run_with_cache(model, IDS)
    _, cache = run_with_cache(offloaded, IDS)
    assert all(torch.equal(cache[name], plain[name]) for name in plain)


@pytest.mark.filterwarnings("ignore")  # some of peft's
def test_an_adapted_model_counts_positions_by_the_mask() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(
        target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(build("gpt2"), config).eval()
    inputs = families.prepare("llama", [3, 4, 5, 9], [6, 7, 8, 9, 10, 11])
    padded, cache = run_with_cache(model, **inputs)
    alone, _ = run_with_cache(model.get_base_model(), torch.tensor([[3, 4, 5, 9]]))
    torch.testing.assert_close(padded[:1, 2:], alone, atol=1e-4, rtol=0)
    assert "base_model.model.transformer.h.0.attn.c_attn.lora_A.default" in cache


def test_a_compiled_model_has_the_names_of_the_plain_one() -> None:
    model = build_model()
    _, plain = run_with_cache(model, IDS)
    _, cache = run_with_cache(torch.compile(model, backend="eager"), IDS)
    assert list(cache) == list(plain)


def test_what_is_no_model_or_has_no_logits_is_refused() -> None:
    with pytest.raises(InputError, match=r"model is a Tensor: write run_with_cache\(model, input_ids\)"):
        run_with_cache(IDS, build())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="LlamaModel returns no logits: pass a model with a language modeling head"):
        run_with_cache(build_model().model, IDS)


def test_each_sentence_of_the_table_is_looked_up_with_its_words() -> None:
    """A slip in the name of a sentence would be found only when it is to be raised."""
    folder = Path(activations.__file__).parent
    sentences = yaml.safe_load((folder / "refusals.yaml").read_text(encoding="utf-8"))
    assert find_words(folder, activations.sentence) == list_words(sentences)
