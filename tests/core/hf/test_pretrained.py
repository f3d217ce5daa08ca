"""A model is loaded with the given options, and impossible options are refused before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antislop.core.bans.bundled import FOLDER
from antislop.core.hf.pretrained import ModelSpec, choose_device, load_model, load_tokenizer
from antislop.errors import InputError


def test_the_bundled_model_is_loaded_with_the_given_options() -> None:
    model, tokenizer = load_model(ModelSpec(dtype="bfloat16", attention="eager", device="cpu"))
    assert (model.dtype, model.device.type, model.config._attn_implementation) == (torch.bfloat16, "cpu", "eager")
    assert load_model(None)[0].dtype == torch.float32
    assert tokenizer.get_vocab() == load_tokenizer(None).get_vocab()


def test_every_choice_reaches_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def load(source: object, **options: Any) -> Any:
        seen.append({"source": source, **options})
        return "loaded"

    monkeypatch.setattr("antislop.core.hf.pretrained._find_fault", lambda _: None)
    for part in (AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(part, "from_pretrained", load)
    spec = ModelSpec(
        "me/it", revision="v2", dtype="float16", device_map="auto", attention="sdpa", trust_remote_code=True
    )
    assert load_model(spec) == ("loaded", "loaded")
    both = {"source": "me/it", "revision": "v2", "trust_remote_code": True}
    assert seen == [{**both, "dtype": "float16", "device_map": "auto", "attn_implementation": "sdpa"}, both]


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"), [(2, True, "cuda"), (0, True, "mps"), (0, False, "cpu"), (1, False, "cuda")]
)
def test_the_first_of_cuda_mps_and_cpu_is_chosen(
    cuda: int, mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto") == torch.device(chosen)
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(
        InputError, match=rf"--device cuda:{cuda}: there is no such device here: pass one of auto, .*cpu"
    ):
        choose_device(f"cuda:{cuda}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "cpu", "device_map": "auto"}, "--device and --device-map exclude each other"),
        ({"revision": "v2"}, "--revision means nothing for the bundled model"),
        ({"trust_remote_code": True}, "--trust-remote-code means nothing for the bundled model"),
    ],
)
def test_options_that_can_not_be_combined_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ModelSpec(**options)


def test_an_error_of_transformers_is_reported_in_one_sentence() -> None:
    with pytest.raises(InputError, match=r"^the bundled model can't be loaded \(.*magic.*\): change the options"):
        load_model(ModelSpec(attention="magic"))
    with pytest.raises(InputError, match=r"^the bundled model can't be loaded \(.*\): change the options"):
        load_model(ModelSpec(dtype="float33"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a path was expected, not 3"):
        load_model(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("./nomodel", "there is no folder ./nomodel"),
        ("a b", "there is no folder a b"),
        ("nowhere/x", "there is no such folder, it is not in the cache, and example.invalid can't be reached"),
    ],
)
def test_a_model_that_is_nowhere_is_named_at_once(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://example.invalid")
    monkeypatch.setattr("antislop.core.hf.pretrained.getproxies", dict)
    for load, what in ((load_model, ""), (load_tokenizer, "the tokenizer of ")):
        with pytest.raises(InputError) as caught:
            load(name)
        sentence = f"{what}the model {name!r} can't be loaded ({fault}): check the name, the path or the connection"
        assert str(caught.value) == sentence


def test_settings_that_determine_the_texts_are_named_and_devices_are_not() -> None:
    plain = ModelSpec(str(FOLDER / "tiny"))
    assert plain.content == {"model": str(FOLDER / "tiny"), "revision": None, "dtype": None}
    assert ModelSpec("x", device="cpu", attention="eager").content == ModelSpec("x").content
    assert ModelSpec("x", revision="v2", dtype="float16").content == {
        "model": "x",
        "revision": "v2",
        "dtype": "float16",
    }
