"""Settings and fixtures of all tests; README.md says which tools they share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.depth import DEPTH, SHARE, is_in_turn, sample_size

if TYPE_CHECKING:
    from tests.support.pretend_device import RunApart
    from tests.support.processes import ServingProcess

# The models of the tests are too small to gain from more threads, and pytest-xdist already keeps every core busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test loads a model from the hub. Without this, those of names that are no folder would wait for its answer.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A shell starts background jobs with interrupts ignored, and the tests of Ctrl-C send interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

CORE = Path(__file__).parent / "core"
QUICK = 10 * max(1.0, SHARE / 0.25)
"""Seconds of CPU that a quick test may take where other jobs run: several times what it takes alone."""
ASSETS = Path(__file__).parents[2] / "shared" / "assets"
HAS_TORCH = find_spec("torch") is not None
"""Not where .ci/versions tests what is installed without extras."""

settings.register_profile(
    "antislop",
    max_examples=sample_size(40),
    deadline=None,
    derandomize=DEPTH == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("antislop")


SLOW_FIXTURES = {"accelerator", "assets", "browser", "vllm_python"}
"""What not every machine has, and what takes seconds to start; llama.cpp is ready in a quarter of a second."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that use one of `SLOW_FIXTURES`, and leave out the slow cases whose turn it is not."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = {
        item for test, of in cases.items() for number, item in enumerate(of) if not is_in_turn(test, number, len(of))
    }
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over torch and transformers, which stay: that is half of its work."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed each test alike: weights and draws must not depend on the tests that its worker ran before."""
    if HAS_TORCH:
        import torch

        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a quick test of the core that takes long, unless it was the first to import something."""
    modules, start = len(sys.modules), time.process_time()
    result = yield
    seconds = time.process_time() - start
    if item.path.is_relative_to(CORE) and not item.get_closest_marker("slow") and len(sys.modules) == modules:
        assert seconds < QUICK, f"{seconds:.1f} s of CPU: mark it as slow, and give what it holds a quicker case"
    return result


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of models, tokenizers and texts beside the repository; tests skip if there is none."""
    if not ASSETS.is_dir():
        pytest.skip("no folder shared/assets beside the repository: real models and tokenizers are not tested")
    return ASSETS


@pytest.fixture(scope="session")
def accelerator() -> Iterator[RunApart]:
    """Runs functions in a process that has a pretend accelerator; elsewhere torch would take it for the machine's."""
    from tests.support import pretend_device

    if pretend_device.COMPILER is None:
        pytest.skip("no compiler of C++ was found: no accelerator can be pretended")
    with pretend_device.process() as run:
        yield run


@pytest.fixture(scope="session")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    """A real llama.cpp server of the bundled model: 8 texts at once, 512 positions each."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp is not tested")
    import antislop
    from tests.support.gguf_file import write_gguf
    from tests.support.llama_cpp import serve_llama_cpp

    path = tmp_path_factory.mktemp("llama_cpp") / "tiny.gguf"
    write_gguf(*antislop.tiny_model(), path)
    with serve_llama_cpp(path) as server:
        yield server
