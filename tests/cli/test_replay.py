"""`antislop replay` makes the call of a trace again with the model that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from antislop import AntiSlop, default_bans, tiny_model
from antislop.cli.main import app
from antislop.cli.options import DtypeChoice
from antislop.cli.replay import TracedModelOptions, choose_model
from antislop.errors import InputError
from antislop.hf.pretrained import ModelSpec
from antislop.trace import Trace

SEED = ("The old house", "--seed", "5", "--max-new-tokens", "90")


def invoke(*args: str) -> Result:
    result = CliRunner().invoke(app, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a text with rewinds."""
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    assert invoke("generate", *SEED, "--trace", str(path)).exit_code == 0
    return path


def rename(path: Path, tmp_path: Path, **model: Any) -> Path:
    """Write a trace with other facts about the model."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    facts = json.loads(header)
    facts["model"] |= model
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([json.dumps(facts), *lines]), encoding="utf-8")
    return changed


def test_a_trace_replays(path: Path) -> None:
    result = invoke("replay", str(path))
    attempts = len(Trace.load(path).rows[0].history.attempts)
    assert attempts
    assert result.stdout == f"the same: 90 tokens, {attempts} rewind{'s' * (attempts != 1)}\n"
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "options",
    [
        ("--greedy", "--loops", "--repetition-penalty", "1.2"),
        ("--seed", "1", "--stop", "the", "--top-p", "0.9"),
        ("--seed", "2", "--no-bans", "--ban", "a", "--ban", "e", "--ban", "the", "--method", "text"),
        ("--seed", "3", "--constructions", "--method", "token", "--dtype", "bfloat16"),
    ],
)
def test_all_options_of_generate_replay(options: tuple[str, ...], tmp_path: Path) -> None:
    path = str(tmp_path / "trace.jsonl.gz")
    assert invoke("generate", "He said", "--max-new-tokens", "30", *options, "--trace", path).exit_code == 0
    assert invoke("replay", path).stdout.startswith("the same: ")


def test_an_exhausted_text_replays(tmp_path: Path) -> None:
    """Its trace is saved, and ends where every continuation was banned."""
    path, bans = tmp_path / "trace.jsonl", tmp_path / "bans.txt"
    bans.write_text("# antislop 1\n[\\s\\S]{30}\tregex\n", encoding="utf-8")
    options = ("--bans", str(bans), "--on-exhausted", "raise", "--greedy")
    result = invoke("generate", "He said", *options, "--trace", str(path))
    assert result.exit_code == 1
    assert "saved the trace of the unfinished text" in result.stderr
    assert invoke("replay", str(path)).stdout.startswith("the same, up to where")


def test_a_text_that_fits_a_schema_replays_without_the_file(tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install antislop[grammar]")
    schema, path = tmp_path / "schema.json", tmp_path / "trace.jsonl"
    schema.write_text('{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}')
    assert invoke("generate", *SEED, "--json-schema", str(schema), "--trace", str(path)).exit_code == 0
    schema.unlink()
    assert invoke("replay", str(path)).stdout.startswith("the same: ")


def test_a_difference_is_one_line_and_exit_status_1(path: Path, tmp_path: Path) -> None:
    result = invoke("replay", str(path), "--dtype", "bfloat16")
    assert result.exit_code == 1
    assert result.stdout.startswith("text 0, draw ") and result.stdout.count("\n") == 1
    assert result.stdout.endswith(" came (model dtype was float32 and is bfloat16)\n")


def test_a_trace_from_python_replays(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    sampler = AntiSlop(tokenizer, default_bans())
    torch.manual_seed(1)
    ids = torch.stack(
        [
            sampler.compiled.tokenizer(text, return_tensors="pt")["input_ids"][0][:3]
            for text in ("He said that", "The old house")
        ]
    )
    out = sampler.generate(
        model, ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=30, return_dict_in_generate=True
    )
    out.trace.save(tmp_path / "trace.jsonl")
    assert invoke("replay", str(tmp_path / "trace.jsonl")).stdout.startswith("the same: 60 tokens, ")


def test_the_model_is_that_of_the_trace_unless_options_say_otherwise(path: Path, tmp_path: Path) -> None:
    def choose(path: Path, **options: Any) -> ModelSpec:
        return choose_model(Trace.load(path), TracedModelOptions(**options))

    bundled = ModelSpec(device="cpu", dtype="float32", attention="sdpa")
    assert choose(path) == bundled
    assert choose(path, dtype=DtypeChoice.FLOAT16, attention="eager").dtype == "float16"
    assert choose(path, device_map="auto").device == "auto"
    hub = rename(path, tmp_path, name="owner/name", revision="0123abc", device="cuda:1", dtype="bfloat16")
    expected = ModelSpec("owner/name", revision="0123abc", device="cuda", dtype="bfloat16", attention="sdpa")
    assert choose(hub) == expected
    assert not choose(hub).trust_remote_code
    assert choose(hub, model="mine", device="cpu") == ModelSpec(
        "mine", device="cpu", dtype="bfloat16", attention="sdpa"
    )
    with pytest.raises(InputError, match=r"doesn't name the model.*pass --model NAME"):
        choose(rename(path, tmp_path, name=""))


def test_what_can_not_be_replayed_is_refused_with_one_sentence(path: Path, tmp_path: Path) -> None:
    for changed, sentence in (
        (rename(path, tmp_path, type="GPT2LMHeadModel"), "a GPT2LMHeadModel: pass that one"),
        (path.with_name("none.jsonl"), "No such file"),
    ):
        result = invoke("replay", str(changed))
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert sentence in result.stderr
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    images = json.loads(header) | {"inputs": ["pixel_values"]}
    (tmp_path / "images.jsonl").write_text("\n".join([json.dumps(images), *lines]), encoding="utf-8")
    assert (
        "can't be replayed, because a trace doesn't contain the model's other inputs: pixel_values"
        in invoke("replay", str(tmp_path / "images.jsonl")).stderr
    )
