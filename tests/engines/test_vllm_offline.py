"""Texts of `vllm.LLM` under bans have the distribution of rejection sampling, which is solved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.depth import DEPTH
from tests.support.letters import LENGTH, LISTS, SETTINGS, START, build_model, build_tokenizer, expected_texts
from tests.support.statistics import p_value
from tests.support.vllm_offline import write_texts

TIMES = int(1000 * DEPTH)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    build_model().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bans", LISTS)
def test_texts_inside_vllm_are_those_of_rejection_sampling(
    bans: str, vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    listed: list[dict[str, Any]] = [
        {"text": ban.text, "weight": ban.weight, "edges": ban.pattern.edges} for ban in LISTS[bans]
    ]
    requests = [
        {"prompt": [START], "max_tokens": LENGTH, "n": TIMES, "temperature": 1.0, **setting}
        for setting in SETTINGS.values()
    ]
    for request in requests:
        request["extra_args"] = {"antislop": {"bans": listed}}
    outputs = write_texts(vllm_python, tmp_path, letters, requests, banning={"max_rewinds": 10_000})
    for setting, texts in zip(SETTINGS, outputs, strict=True):
        drawn = Counter(tuple(text["tokens"]) for text in texts)
        assert p_value(drawn, expected_texts(bans, setting)) > 1e-3, setting
