"""Static caches: tensors keep their addresses, so that compiled models work, and rewinds leave no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import CompileConfig, PreTrainedModel, StaticCache

from antislop import AntiSlop, Ban
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.private import CACHE, cache_name
from antislop.core.loop.protocols import PAD
from tests.support.depth import first_quick
from tests.support.families import RECURRENT, build
from tests.support.models import EACH_FAMILY, VOCABULARY, build_model, build_tokenizer

TOKENIZER = build_tokenizer()
PROMPTS = torch.tensor([[0, 5, 9, 2, 12, 7], [1, 1, 1, 8, 3, 4], [0, 6, 6, 7, 3, 2]])
MASK = torch.tensor([[1] * 6, [0, 0, 0, 1, 1, 1], [1] * 6])
COMMON = [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde")]
SETTINGS = {"max_new_tokens": 40, "do_sample": True, "top_k": 0, "cache_implementation": "static"}


def fresh(model: PreTrainedModel, text: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of one forward pass without a cache over a row, [generated tokens, vocab]."""
    mask = torch.cat([mask, mask.new_ones(len(text) - len(mask))])[None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits: Tensor = model(text[None], attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[0, PROMPTS.shape[1] - 1 : -1]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_without_violations_texts_are_bit_identical_to_those_of_generate(family: str, rows: int) -> None:
    model, settings = build_model(family), {**SETTINGS, "attention_mask": MASK[:rows]}
    torch.manual_seed(0)
    expected = model.generate(PROMPTS[:rows], **settings)
    torch.manual_seed(0)
    assert torch.equal(
        model.generate(PROMPTS[:rows], custom_generate=AntiSlop(TOKENIZER, ["zz"]), **settings), expected
    )


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_rewinds_leave_no_trace_and_need_no_more_memory(family: str, rows: int) -> None:
    model, settings = build_model(family), {**SETTINGS, "attention_mask": MASK[:rows], "suppress_tokens": [1]}
    torch.manual_seed(0)
    out = AntiSlop(TOKENIZER, COMMON).generate(
        model, PROMPTS[:rows], return_dict_in_generate=True, output_logits=True, **settings
    )
    assert out.report.rewinds >= 3
    for row in range(rows):
        expected = fresh(model, out.sequences[row], MASK[row])
        assert torch.allclose(torch.stack([step[row] for step in out.logits]), expected, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss", "llama4", *sorted(RECURRENT)])
def test_a_text_can_continue_from_a_static_cache_of_the_caller(family: str) -> None:
    """Its windows, in which rewinds are impossible, are replaced by as many columns as in other layers."""
    if family == "llama4" and Version(transformers.__version__) < Version("5.20"):
        pytest.skip("`generate` itself can't run it with a static cache before transformers 5.20")
    model, prompt = build(family), PROMPTS[:1, 1:]
    cache = StaticCache(config=model.config, max_cache_len=60)
    name = cache_name(model)
    settings: dict[str, Any] = {"max_new_tokens": 40, "do_sample": True, "suppress_tokens": [0, 1], name: cache}
    torch.manual_seed(0)
    out = AntiSlop(TOKENIZER, COMMON).generate(model, prompt, return_dict_in_generate=True, **settings)
    assert out.report.rewinds >= 3
    assert out.past_key_values is cache
    text = out.sequences
    more = {} if family in ("mamba", "mamba2") else {"position_ids": torch.tensor([[text.shape[1] - 1]])}
    logits = model(text[:, -1:], **{name: cache}, **more).logits
    assert torch.allclose(logits[0, -1], model(text, use_cache=False).logits[0, -1], atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3-next", "bamba"])
def test_a_row_near_the_end_of_its_memory_is_moved_to_read_more(family: str) -> None:
    """The cache is full but for one column; on the left is memory that a rewound row has released."""
    model, room = build(family), 18
    texts = torch.randint(2, VOCABULARY, (2, room), generator=torch.Generator().manual_seed(0))
    language_model = TransformersModel(model)
    cache = TransformersCache(StaticCache(config=model.config, max_cache_len=room), rows=2)
    language_model.forward(texts[:, :2], cache)
    for place in range(2, 16):
        language_model.forward(texts[:, place : place + 1], cache)
    start = cache.rewind(0, 8)
    language_model.forward(torch.stack([texts[0, start : start + 1], texts[1, 16:17]]), cache)
    more = torch.tensor([texts[0, start + 1 : start + 6].tolist(), [PAD] * 4 + [int(texts[1, 17])]])
    logits = language_model.forward(more, cache)
    for text, expected in ((texts[0, : start + 6], logits[0]), (texts[1], logits[1, -1:])):
        assert torch.allclose(expected, model(text[None], use_cache=False).logits[0, -len(expected) :], atol=1e-4)


def test_the_tensors_of_a_static_cache_keep_their_addresses() -> None:
    model = build_model("llama")
    cache = StaticCache(config=model.config, max_cache_len=60)
    settings = {"max_new_tokens": 40, "do_sample": True, "top_k": 0, "attention_mask": MASK, CACHE: cache}
    seen: set[int] = set()
    handle = model.register_forward_hook(lambda *_: seen.update(layer.keys.data_ptr() for layer in cache.layers))
    torch.manual_seed(0)
    out = AntiSlop(TOKENIZER, COMMON).generate(model, PROMPTS, return_dict_in_generate=True, **settings)
    handle.remove()
    assert out.report.rewinds
    assert len(seen) == len(cache.layers)


def compile_config() -> CompileConfig:
    config = CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    return config


@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about its work
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3-next", marks=pytest.mark.slow)])
def test_a_compiled_model_writes_the_same_text(family: str) -> None:
    model = build(family)
    compiled = compile_config()
    sampler, texts = AntiSlop(TOKENIZER, COMMON), []
    for config in (None, compiled):
        torch.manual_seed(0)
        out = sampler.generate(
            model, PROMPTS, return_dict_in_generate=True, attention_mask=MASK, compile_config=config, **SETTINGS
        )
        assert out.report.rewinds
        texts.append(out.sequences)
    assert torch.equal(*texts)
    assert hasattr(model, "_compiled_call")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("rows", first_quick([1, 3]))
def test_rewinds_and_drafts_compile_nothing_anew(family: str, rows: int) -> None:
    """Nor does a first text, if no layer has a window: the model that `generate` has compiled is run as it is."""
    model, mask = build(family), MASK[:rows] if rows > 1 else None
    settings = {**SETTINGS, "attention_mask": mask, "compile_config": compile_config(), "suppress_tokens": [1]}
    torch.compiler.reset()
    counters.clear()
    model.generate(PROMPTS[:rows], **settings)
    assert family != "llama" or counters["stats"]["unique_graphs"] == 1
    model.generate(PROMPTS[:rows], custom_generate=AntiSlop(TOKENIZER, ["zz"]), **settings)
    assert family != "llama" or counters["stats"]["unique_graphs"] == 1
    compiled = counters["stats"]["unique_graphs"]
    for drafts in ({}, {"prompt_lookup_num_tokens": 3}):
        out = AntiSlop(TOKENIZER, COMMON).generate(
            model, PROMPTS[:rows], return_dict_in_generate=True, **settings, **drafts
        )
        assert out.report.rewinds >= 3
        assert bool(out.report.drafted_tokens) == bool(drafts)
    assert counters["stats"]["unique_graphs"] == compiled


@pytest.mark.parametrize("rows", first_quick([1, 3]))
def test_logits_are_copied_before_the_model_runs_again(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph writes them into the same memory each time."""
    model, memory = build("llama"), torch.empty((rows, 1, VOCABULARY))
    settings: dict[str, Any] = {**SETTINGS, "attention_mask": MASK[:rows], "prompt_lookup_num_tokens": 3}

    def run(**kwargs: Any) -> Any:
        output = model(**kwargs)
        output.logits = memory.copy_(output.logits)
        return output

    texts = []
    for is_graph in (False, True):
        if is_graph:
            monkeypatch.setattr("antislop.core.hf.model.compiled_if_possible", lambda *_: run)
        torch.manual_seed(0)
        out = AntiSlop(TOKENIZER, COMMON).generate(model, PROMPTS[:rows], return_dict_in_generate=True, **settings)
        assert out.report.rewinds and out.report.drafted_tokens
        texts.append(out.sequences)
    assert torch.equal(*texts)
