"""The style of all figures: legible on a phone, on paper and in dark mode.

Figures are as wide as a phone, since they are shown at that width or larger, and their SVG keeps text as text. The
colors are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which color-blind people can distinguish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antislop.metrics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE = "#1b1c1e", "#66686b", "#d9dadc"
ARM_COLORS = {"plain": "#767880", "banned": "#0072b2", "token": "#d55e00", "prompt-only": "#009e73"}
MORE_COLORS = ("#cc79a7", "#b8860b", "#8a4fbf", "#5a7d2a")
WIDTH = 5.0  # inches
SIZE = 10.0  # points
SMALL = 9.0
_VARYING = {".svg": "Date", ".png": "Software", ".pdf": "CreationDate"}  # metadata that differs between equal figures
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "antislop",
    "font.size": SIZE,
    "axes.labelsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SIZE,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
}


def choose_colors(arms: Iterable[str]) -> dict[str, str]:
    """Return a color for each arm; a known arm always has the same color."""
    arms = list(arms)
    other_colors = iter([*MORE_COLORS, *[MUTED] * len(arms)])
    return {arm: ARM_COLORS.get(arm) or next(other_colors) for arm in arms}


def save_figure(figure: Figure, path: Path, *, is_transparent: bool = False) -> None:
    """Write a figure as SVG, PNG of 200 dots per inch or PDF; equal figures give equal bytes."""
    import matplotlib

    suffix = path.suffix.lower()
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=200, metadata={_VARYING[suffix]: None}, transparent=is_transparent)


def new_figure(rows: float, *, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with the height of `rows` rows of text, and its axes, one below the other."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06)
    figure = Figure(figsize=(WIDTH, 0.27 * rows + 0.75 * panels + 0.25), layout=layout)
    axes = figure.subplots(panels, squeeze=False)[:, 0]
    return figure, list(axes)


def name_arms(figure: Figure, axes: Axes, colors: Mapping[str, str]) -> None:
    """Write the arms' names in their colors above the axes, in place of a legend."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea
    from matplotlib.transforms import blended_transform_factory

    names: list[Any] = [TextArea(arm, textprops={"color": color, "weight": "bold"}) for arm, color in colors.items()]
    row = HPacker(children=names, sep=14, pad=0)
    box = AnchoredOffsetbox(
        "lower left",
        child=row,
        frameon=False,
        pad=0,
        borderpad=0,
        bbox_to_anchor=(0.02, 1),
        bbox_transform=blended_transform_factory(figure.transFigure, axes.transAxes),
    )
    axes.add_artist(box)


def to_errors(estimate: Estimate) -> list[list[float]] | None:
    """Return an interval in the form of matplotlib: the distances to its lower and its upper end."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def name_ratio_ticks(axes: Axes) -> None:
    """Label a logarithmic axis with a few decimal numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100, 1000) if low <= tick <= high]
    if high / low > 300:
        ticks = [tick for tick in ticks if tick not in (0.3, 3)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
