"""What makes managers of continuous batching end sooner in tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> Iterator[None]:
    """A manager that ends collects garbage twice; what was imported by then need not be searched."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
