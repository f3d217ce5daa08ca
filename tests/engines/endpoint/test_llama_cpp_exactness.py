"""Texts that a real llama.cpp server draws have the distribution of rejection sampling, which is solved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp is not tested")

from antislop.engines.endpoint.endpoint import EndpointMethod
from tests.support.depth import DEPTH
from tests.support.gguf_file import write_gguf
from tests.support.letters import CASES, FEW_CASES, build_model, build_tokenizer, draw_texts, expected_texts
from tests.support.llama_cpp import serve_llama_cpp
from tests.support.processes import ServingProcess
from tests.support.statistics import p_value

pytestmark = pytest.mark.slow

TIMES = 150 * DEPTH


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    path = tmp_path_factory.mktemp("letters") / "letters.gguf"
    write_gguf(build_model(), build_tokenizer(), path)
    with serve_llama_cpp(path) as server:
        yield server


@pytest.mark.parametrize(("bans", "setting", "method"), CASES if DEPTH > 1 else FEW_CASES)
def test_texts_of_llama_cpp_are_those_of_rejection_sampling(
    letters: ServingProcess, bans: str, setting: str, method: EndpointMethod
) -> None:
    drawn = draw_texts(letters.url, bans, setting, method, times=TIMES)
    assert p_value(drawn, expected_texts(bans, setting)) > 1e-3
