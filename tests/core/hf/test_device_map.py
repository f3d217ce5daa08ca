"""A model that accelerate distributes over devices, or to disk, writes the same text as on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.hf.model import device_of
from tests.support.depth import first_quick
from tests.support.families import build, prepare
from tests.support.models import build_tokenizer

needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed: device_map is not tested"
)

SAMPLER = AntiSlop(build_tokenizer(), [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde")])
PROMPTS = ((2, 5, 9, 3, 12, 7), (4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40), (21, 3, 8))
SETTINGS = {"max_new_tokens": 36, "do_sample": True, "suppress_tokens": [0, 1]}
EMBEDDINGS = {"model.embed_tokens", "lm_head"}  # some models share their weights
PLACES: dict[str, Callable[[str], str]] = {
    "all on the processor": lambda name: "cpu",
    "a layer on disk": lambda name: "disk" if name == "model.layers.1" else "cpu",
    "the embeddings on disk": lambda name: "disk" if name in EMBEDDINGS else "cpu",
    "all on disk": lambda name: "disk",
}


@cache
def parts(family: str) -> list[str]:
    """Return the names of the modules that may be assigned to a device."""
    inner = build(family).model
    layers = [f"model.layers.{number}" for number in range(len(inner.layers))]
    return [*(f"model.{name}" for name, _ in inner.named_children() if name != "layers"), *layers, "lm_head"]


def load(family: str, folder: Path, device_map: dict[str, str]) -> PreTrainedModel:
    build(family).save_pretrained(folder / "model")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder / "model", device_map=device_map, offload_folder=folder / "offloaded"
    )
    return model.eval()


def sample(model: PreTrainedModel, inputs: dict[str, Any], **more: Any) -> Any:
    set_seed(5)
    settings = {**SETTINGS, "return_dict_in_generate": True, "output_logits": True, **more}
    return SAMPLER.generate(model, **inputs, **settings)


def assert_alike(family: str, dispatched: PreTrainedModel, *, rows: int, **more: Any) -> None:
    inputs, undivided = prepare(family, *PROMPTS[:rows]), build(family)
    ours, expected = sample(dispatched, inputs, **more), sample(undivided, inputs, **more)
    assert min(report.rewinds for report in expected.reports) >= 3
    assert torch.equal(ours.sequences, expected.sequences)
    assert ours.report.rewinds == expected.report.rewinds
    assert torch.allclose(torch.stack(ours.logits), torch.stack(expected.logits), atol=1e-4)


@needs_accelerate
@pytest.mark.parametrize("family", first_quick(["gemma3", "llama", "bamba"]))
@pytest.mark.parametrize("where", first_quick(PLACES))
def test_a_model_writes_the_same_on_any_distribution_of_its_modules(family: str, where: str, tmp_path: Path) -> None:
    device_map = {name: PLACES[where](name) for name in parts(family)}
    model = load(family, tmp_path, device_map)
    assert any(weight.is_meta for weight in model.parameters()) == ("disk" in device_map.values())
    for rows in (1, len(PROMPTS)):
        assert_alike(family, model, rows=rows)


@needs_accelerate
def test_a_model_mapped_to_one_device_runs_with_a_static_cache(tmp_path: Path) -> None:
    model = load("llama", tmp_path, {"": "cpu"})
    assert_alike("llama", model, rows=len(PROMPTS))
    assert_alike("llama", model, rows=len(PROMPTS), cache_implementation="static")


def test_ids_are_moved_to_the_device_on_which_accelerate_runs_offloaded_layers() -> None:
    model = build("llama")
    assert device_of(model) == torch.device("cpu")
    model.to("meta")
    for places, expected in (({"": "disk"}, "cpu"), ({"a": "disk", "b": "cuda:1", "c": "cpu"}, "cuda:1")):
        model.hf_device_map = places
        assert device_of(model) == torch.device(expected)
