"""Put the public names of a package or module, those of its `__all__`, in the place of `<!-- names of … -->`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_MARK = re.compile(r"<!-- names of ([\w.]+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Ask for the reference of each name."""
    return _MARK.sub(
        lambda mark: "\n".join(
            f"::: {mark[1]}.{name}\n" for name in read_names(mark[1])
        ),
        markdown,
    )


def read_names(module: str) -> list[str]:
    """Return what a module lists in its `__all__`, without importing it."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            getattr(name, "id", "") == "__all__" for name in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return []
