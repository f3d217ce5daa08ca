"""The benchmarks run, and what they say about noise, goals and devices is right; their speeds are not tested."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import antislop


def load(name: str) -> Any:
    return importlib.import_module(f"eval.speed.{name}")


@pytest.mark.parametrize("count", range(1, 13))
def test_the_interval_of_noise_is_the_narrowest_that_holds_the_median_of_all_possible_rounds(count: int) -> None:
    """Of values of which each is below the median as likely as above it, all sides are listed."""

    def missing(cut: int) -> float:
        sides = [sum(side) for side in itertools.product((0, 1), repeat=count)]
        return sum(below <= cut or below >= count - cut for below in sides) / len(sides)

    cut = max([c for c in range((count - 1) // 2 + 1) if missing(c) <= 0.05], default=0)
    values = random.Random(count).sample(range(100), count)
    assert load("measuring").find_interval(values) == (sorted(values)[cut], sorted(values)[-1 - cut])


@given(values=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=20), goal=st.floats(0.5, 1.5), is_floor=st.booleans())
def test_a_goal_is_missed_if_the_whole_interval_misses_it(values: list[float], goal: float, is_floor: bool) -> None:
    result = load("measuring").Result("", "", "", values, "×", goal, is_floor=is_floor)
    sign = 1 if is_floor else -1
    margins = [sign * (value - goal) for value in result.noise]
    expected = "met" if sign * (statistics.median(values) - goal) >= 0 else "within noise"
    assert result.verdict == ("missed" if max(margins) < 0 else expected)


def test_no_round_begins_after_the_time_of_a_race() -> None:
    measuring = load("measuring")
    calls: list[int] = []
    race = measuring.Race(rounds=5, texts=2, clock="cpu", warm_up=0, until=time.monotonic() - 1)
    laps = race.run({"one": lambda seed: calls.append(seed) or measuring.Written([seed], 1)})
    assert len(laps["one"]) == 1 and len(calls) == 2


def test_a_wider_vocabulary_leaves_the_texts_as_they_are() -> None:
    measuring = load("measuring")
    model, tokenizer = antislop.tiny_model()
    subject = measuring.Subject("tiny", model, tokenizer, 20)
    wide = measuring.Subject("tiny", measuring.widen(model, 5000), tokenizer, 20)
    ids = torch.tensor([tokenizer("One day")["input_ids"]])
    with torch.no_grad():
        plain, padded = (each.model(ids).logits[0, -1].softmax(-1) for each in (subject, wide))
    assert padded.shape == (5000,) and not padded[len(plain) :].any()
    torch.testing.assert_close(padded[: len(plain)], plain)


def test_the_invented_llama_writes_what_the_bundled_model_would_write_after_each_frequent_token() -> None:
    measuring, gpu = load("measuring"), load("gpu")
    vocab = gpu.FULL.vocab
    model, tokenizer = measuring.build_llama(gpu.DRY.shape, vocab=vocab, dtype=torch.float32, device="cpu")
    tiny, _ = antislop.tiny_model()
    often = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(" the"))[-1]
    with torch.no_grad():
        own = model(torch.tensor([[7, 9, often]])).logits[0, -1].softmax(-1)
        logits = tiny(torch.tensor([[tiny.config.bos_token_id, often]])).logits[0, -1]
    logits[tokenizer.all_special_ids] = -math.inf
    torch.testing.assert_close(own[: len(logits)], logits.softmax(-1), atol=1e-4, rtol=1e-3)
    assert len(own) == vocab and not own[len(logits) :].any()
    subject = measuring.Subject("", model, tokenizer, 5)
    assert subject.write(0, antislop.AntiSlop(tokenizer, ["zebra"])).tokens == subject.write(0).tokens


def test_waits_are_counted_by_the_warnings_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, modes = load("gpu"), list[str]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def write(seed: int) -> str:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at x.cpp:1)", stacklevel=1)
        warnings.warn("another", stacklevel=1)
        return f"text {seed}"

    assert gpu.count_waits(write) == (3, "text 1")
    assert modes == ["warn", "default"]


@pytest.mark.slow
def test_the_command_for_a_gpu_runs_dry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = load("gpu")
    assert gpu.main(["--dry", "--out", str(tmp_path)]) == 0
    run = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert run["left_out"] == []
    assert {(row["model"], row["benchmark"]) for row in run["results"]} == {
        (model, name) for model, name, _, _ in gpu.PARTS
    }
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8") == capsys.readouterr().out


@pytest.mark.slow
def test_another_model_takes_the_place_of_the_invented_one_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = load("gpu")
    parts = [part for part in gpu.PARTS if part[:2] in ((gpu.SHAPE, "waits"), ("tiny", "eager"))]
    monkeypatch.setattr(gpu, "PARTS", parts)
    assert gpu.main(["--dry", "--out", str(tmp_path), "--model", "tiny"]) == 0
    run = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert run["left_out"] == []
    assert {(row["model"], row["benchmark"]) for row in run["results"]} == {("tiny", "waits"), ("tiny", "eager")}


def test_the_command_for_a_gpu_names_what_its_time_does_not_allow(tmp_path: Path) -> None:
    gpu = load("gpu")
    assert gpu.main(["--dry", "--minutes", "0", "--out", str(tmp_path)]) == 0
    run = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert run["results"] == [] and len(run["left_out"]) == len(gpu.PARTS)


def test_the_page_is_filled_from_a_run() -> None:
    page, measuring = load("page"), load("measuring")
    results = [
        measuring.Result("tiny", "violations", "often", [0.5, 0.6], "×", 0.9),
        measuring.Result("large", "violations", "often", [0.95], "×", 0.9),
    ]
    text = "a\n<!-- conditions -->\nold\n<!-- end -->\n<!-- table: violations, other -->\nold\n<!-- end -->\nb\n"
    machine = {"date": "2026-01-02T03:04", "cores": 1, "threads": 2, "cpu": "ABC", "load": [0.5]}
    run = {
        "machine": {**machine, "python": "3", "torch": "2", "transformers": "5"},
        "settings": {"clock": "cpu", "rounds": 10, "texts": 2, "tokens": 200},
        "commit": "abc",
        "results": [result.as_json() for result in results],
    }
    filled = page.fill(text + "<!-- table: none -->\n<!-- end -->\n", run)
    assert "Measured on 2026-01-02 in cpu time: medians of 10 rounds of 2 texts of 200 tokens on 1 core (ABC" in filled
    assert "| often | ≥ 0.9 | 0.550× (0.5 … 0.6) **missed** | 0.950× |" in filled
    assert "old" not in filled and "Not part of this run." in filled
    assert filled.count("<!-- end -->") == 3 and page.fill(filled, run) == filled


def test_the_plot_of_the_page_is_drawn_from_a_run(tmp_path: Path) -> None:
    rows = [
        {"model": "tiny", "benchmark": "no violation", "phrases": 500, "values": [0.9, 1.0]},
        {"model": "tiny", "benchmark": "violations", "violations_per_1000": 30, "values": [0.8]},
        {"model": "tiny", "benchmark": "memory", "values": [1.0]},
    ]
    load("page").plot(rows, tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text(encoding="utf-8").count("tiny") == 1


@pytest.mark.slow
def test_the_benchmarks_run_and_exit_with_1_where_a_goal_is_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main, steps = load("__main__"), load("steps")
    path = tmp_path / "run.json"
    monkeypatch.setattr(load("cases"), "POOLED", 40)
    monkeypatch.setattr(steps, "ROWS", 2)
    monkeypatch.setattr(steps, "STEPS", 16)
    monkeypatch.setattr("sys.argv", ["speed", "--rounds=1", "--model=tiny", "--only=python", "--json", str(path)])
    for goal, status in ((1e9, 0), (0.0, 1)):
        monkeypatch.setattr(steps, "PYTHON", goal)
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert ended.value.code == status
        assert len(json.loads(path.read_text(encoding="utf-8"))["results"]) == 3
