"""A list of bans as the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

from antislop.display import write_html_table
from antislop.matching.bans import Ban, list_options

SHOWN = 20


def write_table(bans: Sequence[Ban], *, source: str | None) -> str:
    """Return the first bans as a table of HTML, with their weights and options."""
    lines = [
        (
            ban.phrase,
            ban.pattern.kind,
            ban.weight,
            ", ".join(f"{name}={value!r}" for name, value in list_options(ban) if name != "weight"),
        )
        for ban in bans[:SHOWN]
    ]
    origin = f" from {shorten(source, 80, placeholder=' …')}" if source else ""
    shown = f"the first {SHOWN} of " if len(bans) > SHOWN else ""
    caption = f"{shown}{len(bans):,} {'ban' if len(bans) == 1 else 'bans'}{origin}"
    return write_html_table(("ban", "kind", "weight", "options"), lines, caption=caption)
