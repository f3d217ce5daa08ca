"""The streaming client reads the real vLLM, whose probabilities are those of `generate` with the same settings."""

from __future__ import annotations

from typing import Any

import pytest

import antislop
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import ServerFeatures
from tests.support.processes import ServingProcess
from tests.support.served_streams import (
    SETTINGS,
    check_drawn_probabilities,
    check_raw_probabilities_under_a_bias,
    check_that_draws_are_streams,
    use,
)


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
