"""The real vLLM: the client reads its probabilities, which are those of `generate`, and draws as rejection sampling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antislop
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import EndpointMethod, ServerFeatures
from tests.support.depth import DEPTH
from tests.support.letters import CASES, draw_texts, expected_texts
from tests.support.processes import ServingProcess
from tests.support.served_streams import (
    SETTINGS,
    check_drawn_probabilities,
    check_raw_probabilities_under_a_bias,
    check_that_draws_are_streams,
    use,
)
from tests.support.statistics import p_value
from tests.support.vllm_server import DRAWN_LOGPROBS, serve_vllm


@pytest.fixture(scope="module")
def tiny() -> Any:
    return antislop.tiny_model()


def test_the_probe_finds_how_vllm_was_started(vllm: ServingProcess, plain_vllm: ServingProcess, tiny: Any) -> None:
    for server, logprobs in ((vllm, "drawn"), (plain_vllm, "raw")):
        features: ServerFeatures = use(server, tiny[1], StreamingClient.probe)
        assert (features.server, features.context_length) == ("vllm", 512)
        assert features.logprobs == {logprobs}
        assert features.has_ids
        assert features.has_bias


@pytest.mark.parametrize("settings", sorted({*SETTINGS} - {"typical_p", "dry", "top_n_sigma"}))
def test_vllm_draws_from_the_distribution_of_generate(vllm: ServingProcess, tiny: Any, settings: str) -> None:
    check_drawn_probabilities(vllm, tiny, SETTINGS[settings])


def test_raw_log_probabilities_ignore_the_bias(plain_vllm: ServingProcess, tiny: Any) -> None:
    check_raw_probabilities_under_a_bias(plain_vllm, tiny)


def test_draws_are_the_first_tokens_of_streams(plain_vllm: ServingProcess, tiny: Any) -> None:
    check_that_draws_are_streams(plain_vllm, tiny)


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
