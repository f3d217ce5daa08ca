"""The samplers leave the same distribution as those of a real llama.cpp server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from antislop.steer import (
    CountPenaltyLogitsProcessor,
    DryLogitsProcessor,
    MinKeepLogitsProcessor,
    TopNSigmaLogitsProcessor,
    XtcLogitsProcessor,
    find_breakers,
)
from tests.support.depth import DEPTH
from tests.support.letters import START, build_model, build_tokenizer
from tests.support.llama_cpp import serve_llama_cpp

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp is not tested")
from tests.support.gguf_file import write_gguf

VOCABULARY = 16
LARGEST_DIFFERENCE = 1e-4
LAST_N = 64
"""Ids that llama.cpp looks at; the prompts are shorter."""

Case = tuple[dict[str, Any], list[Any]]


def make_dry(allowed_length: int, last_n: int, breakers: list[str]) -> Case:
    settings = {"base": 1.5, "allowed_length": allowed_length, "penalty_last_n": last_n}
    body = {f"dry_{name}": value for name, value in settings.items()} | {"dry_sequence_breakers": breakers}
    found = find_breakers(build_tokenizer(), breakers)
    return {"samplers": ["dry"], "dry_multiplier": 0.8, **body}, [DryLogitsProcessor(0.8, breakers=found, **settings)]


def make_xtc(threshold: float, temperature: float) -> Case:
    """At a probability of 1: the part of the mixture in which the coin excludes tokens."""
    after = [TemperatureLogitsWarper(temperature)]
    body = {"xtc_probability": 1, "xtc_threshold": threshold, "temperature": temperature}
    return {"samplers": ["xtc", "temperature"], **body}, [XtcLogitsProcessor(1, threshold, after=after)]


def make_min_keep(name: str, value: float, count: int, warper: Any) -> Case:
    body = {{"typ_p": "typical_p"}.get(name, name): value, "min_keep": count, "samplers": ["top_k", name], "top_k": 9}
    return body, MinKeepLogitsProcessor.change_others([MinKeepLogitsProcessor(count), TopKLogitsWarper(9), warper])


CASES: dict[str, Case] = {
    "no sampler": ({"samplers": []}, []),
    "counts": (
        {"samplers": ["penalties"], "presence_penalty": 1.5, "frequency_penalty": 0.3, "repeat_last_n": LAST_N},
        [CountPenaltyLogitsProcessor(presence=1.5, frequency=0.3, prompt_length=0)],
    ),
    **{
        f"DRY {length} {last_n} {breakers}": make_dry(length, last_n, breakers)
        for length, last_n, breakers in [
            *product((1, 2), (LAST_N, 12), (["d"], ["c.", "dab"], [".", " a"])),
            (0, LAST_N, ["d"]),
            (3, LAST_N, ["</s>"]),
            (1, 0, ["d"]),
        ]
    },
    **{
        f"top-n-sigma {n}": (
            {"samplers": ["top_k", "top_n_sigma"], "top_k": 9, "top_n_sigma": n},
            [TopKLogitsWarper(9), TopNSigmaLogitsProcessor(n)],
        )
        for n in (0.3, 1.0, 2.0)
    },
    **{
        f"XTC {threshold} {temperature}": make_xtc(threshold, temperature)
        for threshold, temperature in product((0.02, 0.1, 0.3, 0.6), (1.0, 0.5))
    },
    **{
        f"min-keep {count} {name} {value}": make_min_keep(name, value, count, make(value))
        for count, (name, value, make) in product(
            (1, 3, 7, 20),
            [("top_p", 0.5, TopPLogitsWarper), ("min_p", 0.4, MinPLogitsWarper), ("typ_p", 0.4, TypicalLogitsWarper)],
        )
    },
    **{
        f"min-keep {count} XTC": (
            {"samplers": ["top_k", "xtc"], "top_k": 9, "xtc_probability": 1, "xtc_threshold": 0.05, "min_keep": count},
            MinKeepLogitsProcessor.change_others(
                [TopKLogitsWarper(9), XtcLogitsProcessor(1, 0.05), MinKeepLogitsProcessor(count)]
            ),
        )
        for count in (1, 5, 7, 9)
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("letters") / "letters.gguf"
    write_gguf(build_model(), build_tokenizer(), path)
    with serve_llama_cpp(path, slots=1) as server:
        yield server


def make_prompt(seed: int) -> list[int]:
    """A prompt in which much is repeated."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randint(2, VOCABULARY, (4, 3), generator=generator).tolist()
    order = torch.randint(0, len(parts), (12,), generator=generator).tolist()
    return [START, *(token for number in order for token in parts[number])]


def ask(server: Any, prompt: list[int], body: dict[str, Any]) -> list[float]:
    """Return the probabilities that a server draws the next token by."""
    asked = {"prompt": prompt, "n_predict": 1, "n_probs": VOCABULARY, "post_sampling_probs": True, "seed": 1}
    data = json.dumps(asked | {"temperature": 1.0} | body).encode()
    with urlopen(Request(f"{server.url}/completion", data, {"Content-Type": "application/json"}), timeout=30) as answer:
        top = json.load(answer)["completion_probabilities"][0]["top_probs"]
    shares = {token["id"]: token["prob"] for token in top}
    return [shares.get(token, 0.0) for token in range(VOCABULARY)]


@pytest.mark.parametrize("name", CASES)
def test_probabilities_are_those_of_llama_cpp(server: Any, name: str) -> None:
    body, processors = CASES[name]
    changes = []
    for seed in range(6 * DEPTH):
        ids = torch.tensor([make_prompt(seed)])
        logits = build_model()(ids).logits[:, -1]
        expected = LogitsProcessorList(processors)(ids, logits).softmax(-1)
        assert ask(server, ids[0].tolist(), body) == pytest.approx(expected[0].tolist(), abs=LARGEST_DIFFERENCE)
        changes.append(float((expected - logits.softmax(-1)).abs().max()))
    can_change = "0.6 1.0" not in name and not name.startswith(("no", "DRY 1 0"))
    assert (max(changes) > LARGEST_DIFFERENCE) == can_change
