"""Import the public names of a package when they are first used (PEP 562), so that importing it stays cheap."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


def import_lazily(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    package: its `__name__`. modules: the names that each of its modules defines, with modules relative to the package.

    Type checkers don't see these names: the package imports them under `TYPE_CHECKING` and lists them in `__all__`.
    """
    module_of = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get_attribute(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(module_of[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get_attribute, list_names
