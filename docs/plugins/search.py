"""Give the dialog of the search a name, which screen readers say and the theme lacks."""

from __future__ import annotations

from typing import Any

UNNAMED = 'data-md-component="search" role="dialog">'


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog as the theme names its field."""
    return output.replace(UNNAMED, f'{UNNAMED[:-1]} aria-label="Search">')
