"""Texts that a real vLLM draws have the distribution of rejection sampling, which is solved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from antislop.engines.endpoint.endpoint import EndpointMethod
from tests.support.depth import DEPTH
from tests.support.letters import CASES, draw_texts, expected_texts
from tests.support.processes import ServingProcess
from tests.support.statistics import p_value
from tests.support.vllm_server import DRAWN_LOGPROBS, serve_vllm

TIMES = 200 * DEPTH
SERVERS = {"raw": (), "drawn": DRAWN_LOGPROBS}
"""The options of the servers by what they tell: one starts at a time."""


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, vllm_python: str, letters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ServingProcess]]:
    """What a server tells, and the server."""
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with serve_vllm(vllm_python, letters, log, *SERVERS[request.param]) as process:
        yield request.param, process


@pytest.mark.parametrize(("bans", "setting", "method"), CASES)
def test_texts_of_vllm_are_those_of_rejection_sampling(
    server: tuple[str, ServingProcess], bans: str, setting: str, method: EndpointMethod
) -> None:
    kind, process = server
    if kind.startswith("raw") and (setting != "plain" and method in ("thin", "bias")):
        pytest.skip("raw log-probabilities are those of what is drawn from with plain settings only")
    drawn = draw_texts(process.url, bans, setting, method, times=TIMES)
    assert p_value(drawn, expected_texts(bans, setting)) > 1e-3
