"""A folder with `custom_generate/`, of a model or not, writes what the sampler writes, and needs no import."""

from __future__ import annotations

import gc
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GenerationMixin, TextStreamer, pipeline

import antislop
from antislop import AntiSlop, applied_to
from antislop.engines.custom_generate import folder as page
from antislop.errors import DISTRIBUTION
from tests.support.commands import invoke
from tests.support.documents import ROOT, read_blocks
from tests.support.refusals import refused

FOLDER = Path(antislop.__file__).parent / "engines"
"""It holds `custom_generate/generate.py`, the file that exported folders have."""
MODEL, TOKENIZER = antislop.tiny_model()
PROMPT = "The old house at the edge of the village"
INPUTS = dict(TOKENIZER(PROMPT, return_tensors="pt"))
SAMPLED = {"max_new_tokens": 60, "do_sample": True, "min_p": 0.05, "temperature": 0.9}
SLOP = antislop.default_bans()


@pytest.fixture(autouse=True)
def _modules_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the code to a folder of the test, and not to the user's cache."""
    folder = tmp_path_factory.mktemp("modules", numbered=True)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    monkeypatch.syspath_prepend(folder)


def generate(model: Any = MODEL, seed: int = 3, **arguments: Any) -> torch.Tensor:
    """Call a model's `generate` with the folder."""
    torch.manual_seed(seed)
    chosen = {"custom_generate": str(FOLDER), "trust_remote_code": True, "tokenizer": TOKENIZER}
    return model.generate(**{**INPUTS, **SAMPLED, **chosen, **arguments})


def asked(**bans: Any) -> dict[str, Any]:
    """Return the arguments of a server that was sent a generation config."""
    return {"generation_config": GenerationConfig(**bans)}


@pytest.mark.parametrize("stop", [{}, {"stop_strings": [" and", " the air"]}], ids=["", "stop"])
def test_the_streamed_text_is_the_returned_text(stop: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ids = generate(bans=SLOP, streamer=TextStreamer(TOKENIZER), **stop)
    assert capsys.readouterr().out.rstrip("\n") == TOKENIZER.decode(ids[0]).rstrip("\n")
    assert not stop or re.search("( and| the air)[^ ]*$", TOKENIZER.decode(ids[0]))


def test_bans_come_under_all_names(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("air\n", encoding="utf-8")
    bans = {"bans": tmp_path / "list.txt", "banned_strings": ["silen"], "banned_regex": [r"\bdark\w*"]}
    plain = " ".join(TOKENIZER.decode(generate(seed=seed, bans=[])[0]) for seed in range(4))
    text = " ".join(TOKENIZER.decode(generate(seed=seed, **bans)[0]) for seed in range(4))
    for pattern in (r"\bair\b", "silen", r"\bdark"):
        assert re.search(pattern, plain, flags=re.IGNORECASE), pattern
        assert not re.search(pattern, text, flags=re.IGNORECASE), pattern


def test_the_output_is_that_of_generate() -> None:
    out = generate(bans=SLOP, return_dict_in_generate=True, output_scores=True)
    assert torch.equal(out.sequences, generate(bans=SLOP))
    assert len(out.scores) == out.sequences.shape[1] - INPUTS["input_ids"].shape[1]
    assert out.report.rewinds > 0


def test_an_assistant_drafts() -> None:
    greedy = {"do_sample": False, "min_p": None, "temperature": None, "bans": SLOP}
    assert torch.equal(generate(**greedy, assistant_model=MODEL), generate(**greedy))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tokenizer": None, "bans": ["x"]}, "no tokenizer was passed"),
        ({}, "nothing is banned"),
        ({"bans": ["x"], "metod": "token"}, "metod"),
        ({"bans": ["x"], "method": "tokens"}, "method is 'tokens'"),
        ({"bans": "absent.txt"}, "absent.txt"),
        ({"bans": {"x": 1}}, "a list of bans was expected, not {'x': 1}"),
        ({"banned_strings": "x"}, "one string"),
        ({"bans": ["x"], "num_beams": 2}, "num_beams=2 is not supported"),
        (asked(bans="/etc/passwd"), "has bans: it can have banned_strings and banned_regex, and no other option"),
        (asked(banned_strings="x"), "banned_strings is 'x': a list of strings was expected"),
        (asked(banned_strings=["x" * 257]), "257 characters in one phrase are too many for a request: at most 256"),
        (asked(banned_regex=["x"] * 101), "101 regexes are too many for a request: at most 100"),
        (asked(banned_regex=["("]), "does not compile"),
        ({"bans": ["x"], "trust_remote_code": False}, "trust_remote_code"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        generate(**arguments)


def test_no_option_of_the_sampler_is_a_setting_of_generate() -> None:
    settings = {*vars(GenerationConfig()), *signature(GenerationMixin.generate).parameters}
    assert not page.OPTIONS & settings


def test_a_list_is_compiled_once() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL.name_or_path)
    first = page.find_sampler(tokenizer, {"bans": ["x", "y"], "method": "token"})
    assert page.find_sampler(tokenizer, {"method": "token", "bans": antislop.BanList(["x", "y"])}) is first
    others = [{"bans": ["x", "y"]}, {"bans": ["x"], "method": "token"}, {"banned_strings": ["x"]}]
    assert len({id(page.find_sampler(tokenizer, options)) for options in others} - {id(first)}) == 3
    tokenizer.add_tokens(["<new>"])
    assert page.find_sampler(tokenizer, {"bans": ["x", "y"], "method": "token"}) is not first


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("one\n", encoding="utf-8")
    assert len(page.find_sampler(TOKENIZER, {"bans": str(path)}).bans) == 1
    path.write_text("one\ntwo\n", encoding="utf-8")
    assert len(page.find_sampler(TOKENIZER, {"bans": str(path)}).bans) == 2


def test_what_was_compiled_is_bounded_and_dies_with_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL.name_or_path)
    for number in range(page.KEPT + 2):
        page.find_sampler(tokenizer, {"bans": [f"word {number}"]})
    before = len(page.SAMPLERS)
    assert len(page.SAMPLERS[tokenizer]) == page.KEPT
    del tokenizer
    gc.collect()
    assert len(page.SAMPLERS) == before - 1


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    """A model from an exported folder."""
    assert invoke("export", "-o", str(tmp_path / "model"), "--no-bans", "--ban", "the", "--ban", "a").exit_code == 0
    return AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True, dtype=torch.float32)


def test_a_model_brings_its_bans_along(loaded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bans, settings = ["the", "a"], {**SAMPLED, "max_new_tokens": 12}
    expected = generate(bans=bans, **settings)

    def write(model: Any = loaded, **arguments: Any) -> torch.Tensor:
        torch.manual_seed(3)
        return model.generate(**INPUTS, **(arguments or settings))

    assert not torch.equal(write(MODEL), expected)
    assert torch.equal(write(), expected)
    served = {"generation_config": GenerationConfig(**settings), "streamer": TextStreamer(TOKENIZER)}
    assert torch.equal(write(**served, tokenizer=TOKENIZER), expected)
    assert capsys.readouterr().out.rstrip("\n") == TOKENIZER.decode(expected[0])
    pipe = pipeline("text-generation", loaded.name_or_path, trust_remote_code=True, dtype=torch.float32)
    torch.manual_seed(3)
    assert TOKENIZER.decode(expected[0], skip_special_tokens=True) == pipe(PROMPT, **settings)[0]["generated_text"]
    sampler = AntiSlop(TOKENIZER, bans)
    for arguments in ({"custom_generate": sampler}, {"custom_generate": str(FOLDER), "bans": bans}):
        assert torch.equal(generate(loaded, **arguments, **settings), expected)
    torch.manual_seed(3)
    assert torch.equal(sampler.generate(loaded, **INPUTS, **settings), expected)
    own = loaded.generate
    with applied_to(loaded, sampler):
        assert torch.equal(write(), expected)
    assert loaded.generate is own


def test_a_request_adds_bans_to_those_of_the_folder(loaded: Any) -> None:
    loaded.generation_config.banned_strings = ["s"]
    request = GenerationConfig(**{**SAMPLED, "max_new_tokens": 16}, banned_regex=[r"\bw\w*"])
    torch.manual_seed(3)
    ids = loaded.generate(**INPUTS, generation_config=request, banned_strings=["r"])
    text = TOKENIZER.decode(ids[0, INPUTS["input_ids"].shape[1] :], skip_special_tokens=True)
    assert len(text) > 20
    assert not re.search(r"\b(the|a)\b|s|\bw|r", text, flags=re.IGNORECASE)


def test_a_folder_that_lost_its_list_is_refused(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(loaded.name_or_path) / page.LIST).unlink()
    with pytest.raises(ValueError, match=f"has no {page.LIST} for its generate to obey: export the model again"):
        loaded.generate(**INPUTS, banned_strings=["x"])
    loaded.name_or_path = Path(loaded.name_or_path).name  # as it was loaded from within the folder's own folder
    monkeypatch.chdir(os.sep)
    refused("is no folder here: load it by its full path", loaded.generate, **INPUTS, bans=["x"])


def test_continuous_batching_is_withheld_from_a_model_that_brings_bans(loaded: Any) -> None:
    assert hasattr(MODEL, "init_continuous_batching") and not hasattr(loaded, "init_continuous_batching")
    for call in (lambda: loaded.generate_batch([[1]]), lambda: loaded.generate(**INPUTS, cache_implementation="paged")):
        refused(r"asks? (no|a) sampler", call)


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("--continuous-batching",)])
def test_transformers_serve_obeys_and_streams(option: tuple[str, ...], tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    model = str(tmp_path / "model")
    assert invoke("export", "-o", model, "--no-bans", "--ban", "the").exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", *option]
    command += ["--trust-remote-code", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", model]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(tmp_path / "m"),
    }
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as client,
    ):
        try:
            while server.poll() is None and "startup complete" not in (tmp_path / "log").read_text():
                time.sleep(0.2)
            sent = json.dumps({"banned_strings": ["e"], "do_sample": False})
            asked = {"model": model, "prompt": PROMPT, "max_tokens": 24}
            plain = client.completions.create(**asked).choices[0].text
            stricter = client.completions.create(**asked, extra_body={"generation_config": sent}).choices[0].text
            pieces = client.completions.create(**asked, extra_body={"generation_config": sent}, stream=True)
            streamed = "".join(piece.choices[0].text for piece in pieces if piece.choices)
            assert len(plain) > 20 and not re.search(r"\bthe\b", plain, flags=re.IGNORECASE)
            assert len(stricter) > 20 and "e" not in stricter.lower()
            assert streamed == stricter
            with pytest.raises(openai.APIError):
                client.completions.create(**asked, extra_body={"generation_config": '{"bans": "list.txt"}'})
        finally:
            server.terminate()
    assert "generation_config has bans: it can have" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_folder_without_the_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "antislop.engines.custom_generate.folder", None)
    with pytest.raises(ImportError, match=re.escape(f"pip install -U '{DISTRIBUTION}[hf]'")):
        runpy.run_path(str(FOLDER / "custom_generate" / "generate.py"))


def test_the_card_of_the_hub_has_the_headings_of_its_example_and_all_options() -> None:
    text = (ROOT / "hub" / "antislop" / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---\n")[1])
    assert "custom_generate" in header["tags"] and header["license"] == "apache-2.0"
    assert re.findall("^## (.*)$", text, flags=re.MULTILINE)[:6] == [
        "Description",
        "Base model",
        "Model compatibility",
        "Additional Arguments",
        "Output Type changes",
        "Example usage",
    ]
    for name in page.OPTIONS:
        assert f"`{name}`" in text, name
    for block in read_blocks(ROOT / "hub" / "antislop" / "README.md", "python"):
        block.compile()
