"""Put the public names of a package in the place of `<!-- names of … -->`."""

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


def read_names(package: str) -> list[str]:
    """Return what the stub of a package imports, without importing it."""
    stub = ROOT.joinpath(*package.split("."), "__init__.pyi").read_text(
        encoding="utf-8"
    )
    imports = (
        node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)
    )
    return sorted(name.name for node in imports for name in node.names)
