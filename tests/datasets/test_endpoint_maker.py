"""Data sets from a model behind an HTTP endpoint."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import antislop
from antislop.cli.main import app
from antislop.datasets.maker import EndpointMaker
from antislop.datasets.ray_cluster import Worker
from antislop.datasets.samples import MadeRecord, plan_samples
from antislop.engines import Endpoint
from antislop.files.models import ModelSpec
from antislop.files.prompts import Prompt
from antislop.lists.bundled import FOLDER
from tests.support.processes import ServingProcess
from tests.support.simulated_engine import SimulatedEngine
from tests.support.streaming import Fault, serve_streams

BANS = ["the air", "shadows", "eyes", "voice", "darkness", "whisper"]
PROMPTS = ["The old house", "One day", ""]


def invoke(folder: Path, *args: str, method: str = "auto") -> Result:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    bans = ["--no-bans", *(part for phrase in BANS for part in ("--ban", phrase))]
    options = ["--engine", "openai", "--endpoint-method", method, "--max-new-tokens", "12", "--seed", "1"]
    return CliRunner().invoke(app, ["dataset", str(prompts), "-o", str(folder / "out.jsonl"), *options, *bans, *args])


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def served_by(url: str) -> list[str]:
    return ["--base-url", url, "--model", "tiny", "--tokenizer", str(FOLDER / "tiny")]


def test_records_of_a_server_contain_no_ban_and_say_the_method_and_its_cost(
    tmp_path: Path, llama_cpp: ServingProcess
) -> None:
    command = (*served_by(f"{llama_cpp.url}/v1"), "--n", "2", "--arms", "plain,banned", "--ban", "was")
    result = invoke(tmp_path, *command)
    assert result.exit_code == 1, "the empty prompt is a record with an error"
    assert "llama.cpp, model" in result.stderr
    again = invoke(tmp_path, *command)
    assert "resuming: 8 records exist already" in again.stderr
    records = read(tmp_path)
    assert [record["status"] for record in records].count("error") == 4
    good = [record for record in records if record["status"] != "error"]
    assert len({(r["key"], r["sample"], r["arm"]) for r in good}) == 8
    for record in good:
        assert record["method"] == "auto"
        assert record["requests_per_token"] >= 0.08
        assert record["written_per_token"] >= 1
        assert record["arm"] == "plain" or not antislop.BanList([*BANS, "was"]).find(record["response"])


def test_workers_of_a_cluster_make_the_records_of_a_server(tmp_path: Path, llama_cpp: ServingProcess) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    prompts = [Prompt(f"p{i}", text, None, {"id": f"p{i}"}) for i, text in enumerate(PROMPTS[:2])]
    specs = list(plan_samples(prompts, samples=1, arm="banned"))
    endpoint, model = Endpoint(f"{llama_cpp.url}/v1"), ModelSpec(str(FOLDER / "tiny"))
    options = {"settings": {"max_new_tokens": 12}, "batch_size": 1, "seed": 1, "method": "thin"}
    worker = Worker(
        model=model, bans=BANS, arm="banned", options=options, endpoint=pickle.loads(pickle.dumps(endpoint))
    )
    row = worker(pyarrow.table({"number": [0], "specs": [pickle.dumps(specs)]}))
    there = [MadeRecord(*made).record for made in json.loads(row["done"][0])]
    here = [made.record for made in EndpointMaker(endpoint, model.load_tokenizer(), BANS, **options).make(specs)]
    texts = [[(record["key"], record["response"], record["method"]) for record in records] for records in (there, here)]
    assert sorted(texts[0]) == sorted(texts[1])


def test_withdrawn_text_is_continued_by_the_server_to_the_end_of_its_sentence(
    tmp_path: Path, llama_cpp: ServingProcess
) -> None:
    file = tmp_path / "pairs.jsonl"
    more = ("--max-new-tokens", "40", "--ban", "the", "--ban", "was", "--pairs", str(file))
    result = invoke(tmp_path, *served_by(f"{llama_cpp.url}/v1"), *more)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows, result.stderr
    assert " tokens written to continue withdrawn text" in result.stderr
    texts = [record["prompt"] + record["response"] for record in read(tmp_path) if record["response"]]
    for row in rows:
        assert any(text.startswith(row["prompt"] + row["chosen"]) for text in texts)
        assert antislop.BanList([row["ban"]]).find(row["rejected"])
        assert all(row[side].rstrip("\"'”’)")[-1] in ".!?…" for side in ("chosen", "rejected"))


@pytest.mark.parametrize(
    ("fault", "sentence"), [(Fault(status=400), "answered 400"), (Fault("garbage"), "did not answer in JSON")]
)
def test_a_text_that_the_server_fails_is_a_failed_record_and_made_again_later(
    tmp_path: Path, fault: Fault, sentence: str
) -> None:
    tokenizer = antislop.tiny_model()[1]
    logits = torch.zeros(len(tokenizer))
    logits[tokenizer.eos_token_id] = -9
    engine = SimulatedEngine(lambda tokens: logits, tokenizer)
    with serve_streams(engine) as server:
        server.faults += [None, None, fault]  # each arm asks first what the server can do
        url = f"{server.url}/v1"
        assert invoke(tmp_path, *served_by(url), "--batch-size", "1").exit_code == 1
        errors = {record["prompt"]: record["error"] for record in read(tmp_path)}
        assert sentence in errors["The old house"]
        assert errors["One day"] is None
        invoke(tmp_path, *served_by(url))
    assert sorted(record["status"] for record in read(tmp_path)) == ["error", "ok", "ok"]


def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2\n")
    result = invoke(tmp_path, *served_by("http://127.0.0.1:9/v1"))
    assert result.exit_code == 2
    assert result.stderr.startswith("antislop: the API key contains white space")
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (served_by("nowhere"), "nowhere"),
        (served_by("http://me:hunter2@127.0.0.1/v1"), "--base-url contains a user name, a password"),
    ],
)
def test_options_that_an_endpoint_can_not_use_are_refused_in_one_sentence(
    tmp_path: Path, args: tuple[str, ...], sentence: str
) -> None:
    result = invoke(tmp_path, *args)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.output
