"""How deep to test: ANTISLOP_TEST_DEPTH=10 makes the random tests ten times longer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs the tests in the background has them ignore interrupts; those of Ctrl-C send some.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEPTH = int(os.environ.get("ANTISLOP_TEST_DEPTH", "1"))
ASSETS = Path(__file__).parents[2] / "shared" / "assets"

settings.register_profile(
    "antislop",
    max_examples=40 * DEPTH,
    deadline=None,
    derandomize=DEPTH == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("antislop")


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of models, tokenizers and texts that lies beside the repository where there is one."""
    if not ASSETS.is_dir():
        pytest.skip("no folder shared/assets beside the repository: real models and tokenizers are not tested")
    return ASSETS
