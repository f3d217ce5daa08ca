"""Show a rendered result to whoever asked for it: within a notebook, in a browser, or on standard output."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal, get_args

from rich.console import Console

from antislop.errors import InputError
from antislop.files import replace_text

InlineFormat = Literal["html", "svg", "text"]
"""A page of its own, a picture of one text, or one text with brackets around withdrawn parts."""

_SUFFIXES: dict[str, InlineFormat] = {".html": "html", ".htm": "html", ".svg": "svg", ".txt": "text", ".text": "text"}
_TYPES: dict[InlineFormat, str] = {"html": "text/html", "svg": "image/svg+xml", "text": "text/plain"}


def check_format(inline_format: str, path: str | os.PathLike[str] | None) -> None:
    """Raise `InputError` for an unknown format, and for a path whose suffix belongs to another one."""
    if inline_format not in get_args(InlineFormat):
        raise InputError(f"inline_format is {inline_format!r}; it is {', '.join(map(repr, get_args(InlineFormat)))}")
    suffix = "" if path is None else Path(path).suffix.lower()
    if _SUFFIXES.get(suffix, inline_format) != inline_format:
        raise InputError(
            f"{os.fspath(path or '')} ends in {suffix}, and inline_format is {inline_format!r}: pass "
            f"inline_format={_SUFFIXES[suffix]!r}, or another path"
        )


def frame(page: str) -> str:
    """Return a page as an element for a notebook, apart from the notebook's own styles."""
    style = "width: 100%; height: 36em; border: 0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def show_rendered(rendered: str, inline_format: InlineFormat, path: str | os.PathLike[str] | None = None) -> None:
    """Show a result in the notebook that runs this, else in a browser, or as text on standard output.

    path: the file that holds it; a browser reads a temporary one without it. Raises `RuntimeError` if no browser opens.
    """
    if Console().is_jupyter:
        shown = frame(rendered) if inline_format == "html" else rendered
        import_module("IPython.display").display({_TYPES[inline_format]: shown}, raw=True)
    elif inline_format == "text":
        sys.stdout.write(rendered + "\n")
    else:
        file = Path(path) if path is not None else _write_temporary(rendered, f".{inline_format}")
        if not webbrowser.open(file.resolve().as_uri()):
            raise RuntimeError(f"no browser could be opened: open {file} yourself")


def _write_temporary(rendered: str, suffix: str) -> Path:
    """Write a file that stays, since the browser reads it later."""
    with NamedTemporaryFile(prefix="antislop-", suffix=suffix, delete=False) as file:
        path = Path(file.name)
    replace_text(path, rendered)
    return path
