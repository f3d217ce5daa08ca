"""The bundled model, lists, scales and pages. Internal: `antislop.tiny_model` and `antislop.default_bans` load them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from antislop.display import describe_count, format_number, make_visible

if TYPE_CHECKING:
    from jinja2 import Template

FOLDER = Path(__file__).parent


@cache
def load_template(name: str) -> Template:
    """Return the template of a page: it escapes all texts, and has the filters number, commas, count and visible."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"number": format_number, "commas": "{:,}".format, "count": describe_count, "visible": make_visible}
    environment.filters |= filters
    return environment.get_template(name)
