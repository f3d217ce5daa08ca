"""A picture of what fell and what rose from one profile to another. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence

from antislop.profiles.changes import Change

FELL, ROSE = "#3b6fb6", "#c8553d"
_LIGHT = "#c9c9c9"


def draw_changes(
    changes: Sequence[Change], path: str | os.PathLike[str], *, before: str, after: str, each: int = 15
) -> None:
    """Write a picture: for what fell and what rose a line each from its rate before to its rate after.

    path: its suffix says what kind: .svg, .png or .pdf. before, after: what the two sides are called.
    each: how many lines each of the two panels has at most, from the first changes on.

    Rates are on a logarithmic scale; hollow dots are upper bounds, for what is below a profile's smallest count. Raises
    `ImportError` where matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(title, color, _choose(changes, rose, each)) for title, color, rose in _PANELS]
    heights = [max(1, len(rows)) for _, _, rows in panels]
    figure = Figure(figsize=(8.5, 1.8 + 0.27 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    for axis, (title, color, rows) in zip(axes, panels, strict=True):
        _draw_panel(axis, rows, title=title, color=color)
    axes[1].set_xscale("log")
    axes[1].set_xlabel("occurrences per million words", fontsize=10)
    figure.suptitle(f"From {before} (gray) to {after} (color)", fontsize=11)
    figure.savefig(path, dpi=150)


_PANELS = (("What fell", FELL, False), ("What rose", ROSE, True))


def _choose(changes: Sequence[Change], rose: bool, each: int) -> list[Change]:
    return [change for change in changes if (change.ratio > 1) is rose][:each]


def _draw_panel(axis: object, rows: Sequence[Change], *, title: str, color: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    axis.set_title(title if rows else f"{title}: nothing that is sure", fontsize=11, loc="left")
    for place, change in enumerate(rows):
        axis.plot([change.before, change.after], [place, place], color=color, linewidth=1.6, zorder=1)
        for rate, count, shade in (
            (change.before, change.before_count, _LIGHT),
            (change.after, change.after_count, color),
        ):
            face = "white" if count is None else shade
            edge = "#8a8a8a" if shade == _LIGHT else color
            axis.scatter([rate], [place], s=34, facecolor=face, edgecolor=edge, linewidth=1.2, zorder=2)
    axis.set_yticks(range(len(rows)), [_label(change) for change in rows], fontsize=9)
    axis.set_ylim(len(rows) - 0.4 if rows else 0.6, -0.6)
    axis.tick_params(axis="x", labelsize=9)
    axis.grid(axis="x", color="#e6e6e6")
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _label(change: Change) -> str:
    words = change.text if len(change.text) <= 40 else change.text[:39] + "…"
    return {"content": f"{words} (content words)", "construction": f"[{words}]"}.get(change.kind, words)
