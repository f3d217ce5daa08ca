"""The Hub folder: `custom_generate="FOLDER"` writes what the sampler writes, and needs no import."""

from __future__ import annotations

import gc
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GenerationMixin, TextStreamer

import antislop
from antislop import AntiSlop, applied_to
from antislop.errors import DISTRIBUTION
from tests.support.documents import read_blocks

FOLDER = Path(__file__).parents[1] / "hub" / "antislop"
MODEL, TOKENIZER = antislop.tiny_model()
PROMPT = "The old house at the edge of the village"
INPUTS = dict(TOKENIZER(PROMPT, return_tensors="pt"))
SAMPLED = {"max_new_tokens": 80, "do_sample": True, "min_p": 0.05, "temperature": 0.9}
SLOP = antislop.default_bans()


@pytest.fixture(autouse=True)
def _modules_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the code to a folder of the test, and not to the user's cache."""
    try:
        version(DISTRIBUTION)
    except PackageNotFoundError:
        pytest.skip("antislop is not installed, and transformers looks for it by the name of its distribution")
    folder = tmp_path_factory.mktemp("modules", numbered=True)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    monkeypatch.syspath_prepend(folder)


def generate(model: Any = MODEL, seed: int = 3, **arguments: Any) -> torch.Tensor:
    """Call a model's `generate` with the folder."""
    torch.manual_seed(seed)
    chosen = {"custom_generate": str(FOLDER), "trust_remote_code": True, "tokenizer": TOKENIZER}
    return model.generate(**{**INPUTS, **SAMPLED, **chosen, **arguments})


def load_page() -> dict[str, Any]:
    """Return the names of `generate.py`, as transformers loads it."""
    return MODEL.load_custom_generate(str(FOLDER), trust_remote_code=True).__globals__


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
        ({"bans": ["x"], "trust_remote_code": False}, "trust_remote_code"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        generate(**arguments)


def test_no_option_of_the_sampler_is_a_setting_of_generate() -> None:
    settings = {*vars(GenerationConfig()), *signature(GenerationMixin.generate).parameters}
    assert not load_page()["OPTIONS"] & settings


def test_a_list_is_compiled_once() -> None:
    page, tokenizer = load_page(), AutoTokenizer.from_pretrained(MODEL.name_or_path)
    first = page["find_sampler"](tokenizer, {"bans": ["x", "y"], "method": "token"})
    assert page["find_sampler"](tokenizer, {"method": "token", "bans": antislop.BanList(["x", "y"])}) is first
    others = [{"bans": ["x", "y"]}, {"bans": ["x"], "method": "token"}, {"banned_strings": ["x"]}]
    assert len({id(page["find_sampler"](tokenizer, options)) for options in others} - {id(first)}) == 3
    tokenizer.add_tokens(["<new>"])
    assert page["find_sampler"](tokenizer, {"bans": ["x", "y"], "method": "token"}) is not first


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    page, path = load_page(), tmp_path / "list.txt"
    path.write_text("one\n", encoding="utf-8")
    assert len(page["find_sampler"](TOKENIZER, {"bans": str(path)}).bans) == 1
    path.write_text("one\ntwo\n", encoding="utf-8")
    assert len(page["find_sampler"](TOKENIZER, {"bans": str(path)}).bans) == 2


def test_what_was_compiled_is_bounded_and_dies_with_the_tokenizer() -> None:
    page, tokenizer = load_page(), AutoTokenizer.from_pretrained(MODEL.name_or_path)
    for number in range(page["KEPT"] + 2):
        page["find_sampler"](tokenizer, {"bans": [f"word {number}"]})
    before = len(page["SAMPLERS"])
    assert len(page["SAMPLERS"][tokenizer]) == page["KEPT"]
    del tokenizer
    gc.collect()
    assert len(page["SAMPLERS"]) == before - 1


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    """A model from a folder of its own that holds `custom_generate/` beside its files."""
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    shutil.copytree(FOLDER / "custom_generate", tmp_path / "custom_generate")
    return AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()


def test_a_model_may_bring_it_along(loaded: Any) -> None:
    expected, ids = generate(bans=SLOP), INPUTS["input_ids"]
    torch.manual_seed(3)
    assert torch.equal(loaded.generate(ids, tokenizer=TOKENIZER, bans=SLOP, **SAMPLED), expected)
    sampler = AntiSlop(TOKENIZER, SLOP)
    for arguments in ({"custom_generate": sampler}, {"custom_generate": str(FOLDER), "bans": SLOP}):
        assert torch.equal(generate(loaded, **arguments), expected)
    torch.manual_seed(3)
    assert torch.equal(sampler.generate(loaded, **INPUTS, **SAMPLED), expected)
    own = loaded.generate
    with applied_to(loaded, sampler):
        torch.manual_seed(3)
        assert torch.equal(loaded.generate(ids, **SAMPLED), expected)
    assert loaded.generate is own
    with pytest.raises(ValueError, match="no tokenizer was passed"):
        loaded.generate(ids)


def test_the_requirement_is_this_version() -> None:
    (line,) = (FOLDER / "custom_generate" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert line == f"{DISTRIBUTION}>={antislop.__version__}"


def test_the_card_says_what_the_folder_is() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---\n")[1])
    assert "custom_generate" in header["tags"] and header["license"] == "apache-2.0"
    for name in load_page()["OPTIONS"]:
        assert f"`{name}`" in text, name
    for block in read_blocks(FOLDER / "README.md", "python"):
        block.compile()
