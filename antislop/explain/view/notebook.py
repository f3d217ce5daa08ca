"""A trace as the output of a notebook's cell: plain HTML without a script or a style sheet.

The scheme of the notebook is unknown: red and gray are mixed with the color of its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antislop.core.trace import TracedRow
from antislop.display import escape_html, write_html_table
from antislop.explain.view.rows import BanCounts, RowView, Segment, count_bans

if TYPE_CHECKING:
    from antislop.core.bans import Surfaces

ROWS, BANS = 8, 20
"""Maximum texts and bans that are shown; `Trace.to_html` shows all."""

_TEXT = "white-space: pre-wrap; overflow-wrap: anywhere; max-width: 44em; margin: .5em 0; line-height: 1.6"
_STYLES = {
    "space": "",
    "kept": "",
    "withdrawn": "text-decoration: line-through; color: #d93025; color: color-mix(in srgb, currentcolor 30%, #e53935)",
    "beside": "text-decoration: line-through; color: #777; color: color-mix(in srgb, currentcolor 60%, #888)",
    "conceded": "text-decoration: underline wavy #d93025",
    "admitted": "text-decoration: underline dotted",
}


def write_fragment(rows: Sequence[TracedRow], *, surfaces: Surfaces, about: Mapping[str, Any]) -> str:
    views = [RowView(row, surfaces, about) for row in rows]
    parts = list(map(_write_row, views[:ROWS]))
    if len(views) > ROWS:
        parts.append(f"<p>… and {len(views) - ROWS:,} more: to_html() shows all</p>")
    if counts := count_bans(views):
        parts.append(_write_bans(counts))
    return f'<div class="antislop">{"".join(parts)}</div>'


def _write_row(view: RowView) -> str:
    prompt = "".join(escape_html(text) for token in view.prompt for text, _ in token.parts)
    text = "".join(map(_write_segment, view.segments, [None, *view.segments]))
    return f'<div style="{_TEXT}"><span style="opacity: .75">{prompt}</span>{text}</div>'


def _write_segment(segment: Segment, before: Segment | None) -> str:
    text = "".join(_write_part(text, kind) for token in segment.tokens for text, kind in token.parts)
    if segment.attempt is None:
        return text
    violation = segment.attempt.violation
    title = f"ban: {violation.ban.text}" if violation else "no ban: cut by a controller, or because of its batch"
    gap = "; margin-left: .4em" if before and before.attempt else ""
    return f'<del style="text-decoration: none{gap}" title="{escape_html(title)}">{text}</del>'


def _write_part(text: str, kind: str) -> str:
    style = _STYLES[kind]
    return f'<span style="{style}">{escape_html(text)}</span>' if style else escape_html(text)


def _write_bans(counts: Sequence[BanCounts]) -> str:
    lines = [
        (
            entry.ban.text if entry.ban else "no ban: a controller, or its batch",
            entry.rewinds,
            entry.tokens,
            entry.conceded + entry.admitted,
            ", ".join(f"“{text}”" for text, _ in entry.instead.most_common(3)),
        )
        for entry in counts[:BANS]
    ]
    shown = f", the first {BANS} of {len(counts):,}" if len(counts) > BANS else ""
    headers = ("ban", "rewinds", "tokens withdrawn", "left in", "what came instead")
    return write_html_table(headers, lines, caption=f"Bans that occurred{shown}")
