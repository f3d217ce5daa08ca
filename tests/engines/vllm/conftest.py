"""Real vLLM servers. `make test-vllm` installs vLLM into an environment of its own and runs these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import antislop
from tests.support.letters import build_model, build_tokenizer
from tests.support.processes import ServingProcess
from tests.support.vllm_server import DRAWN_LOGPROBS, PYTHON, serve_vllm

TINY = Path(antislop.__file__).parent / "data" / "tiny"


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The Python executable of the environment with vLLM."""
    if not os.environ.get(PYTHON):
        pytest.skip(f"{PYTHON} names no Python executable with vLLM: run make test-vllm")
    return os.environ[PYTHON]


@pytest.fixture(scope="module")
def vllm(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    """The bundled model, with log-probabilities of what was drawn from."""
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with serve_vllm(vllm_python, TINY, log, *DRAWN_LOGPROBS) as server:
        yield server


@pytest.fixture(scope="module")
def plain_vllm(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    """The bundled model, served with vLLM's own defaults: raw log-probabilities."""
    with serve_vllm(vllm_python, TINY, tmp_path_factory.mktemp("vllm") / "log.txt") as server:
        yield server


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model."""
    folder = tmp_path_factory.mktemp("letters")
    build_model().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
