"""Sort tests by family of models, so that the tests of a family share their measurements."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests of families by their family, so that one process runs all tests of a family, also with xdist."""
    places = [place for place, item in enumerate(items) if item.path.name == "test_families.py"]
    for place, item in zip(places, sorted((items[place] for place in places), key=_family_of), strict=True):
        items[place] = item


def _family_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("family", "")) if callspec else ""
