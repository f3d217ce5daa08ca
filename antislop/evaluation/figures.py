"""Figures of an evaluation, each a matplotlib figure that reads the same on a phone, on paper and in the dark.

They are as wide as a phone, since they are shown at that width or larger, and their SVG keeps text as text. Colors are
those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which color-blind people tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antislop.datasets.samples import PLAIN
from antislop.evaluation.definitions import DISTANCE, LIST_TITLES, LISTS, distance_metric
from antislop.evaluation.evaluation import Evaluation
from antislop.metrics.definitions import METRICS
from antislop.metrics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE = "#1b1c1e", "#66686b", "#d9dadc"
ARM_COLORS = {"plain": "#767880", "banned": "#0072b2", "token": "#d55e00", "prompt-only": "#009e73"}
MORE_COLORS = ("#cc79a7", "#b8860b", "#8a4fbf", "#5a7d2a")
WIDTH = 5.0  # inches
_SIZE = 10.0  # points
_SMALL = 9.0
_MOST_CHANGES = 10
_SAME = 3.0  # percent of suppression that are drawn side by side
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "antislop",
    "font.size": _SIZE,
    "axes.labelsize": _SMALL,
    "xtick.labelsize": _SMALL,
    "ytick.labelsize": _SIZE,
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
    """Return a color for each arm, the same for the same names."""
    arms = list(arms)
    more = iter([*MORE_COLORS, *[MUTED] * len(arms)])
    return {arm: ARM_COLORS.get(arm) or next(more) for arm in arms}


def draw_figures(evaluation: Evaluation) -> dict[str, Figure]:
    """Return the figures that can be drawn, by name. Raises `ImportError` without matplotlib."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        drawn = {
            "suppression": _draw_hits(evaluation),
            "excess": _draw_excess(evaluation),
            "distance": _draw_distance(evaluation),
            **{f"changes-{name_file(arm)}": _draw_changes(arm, evaluation) for arm in evaluation.changes},
        }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def name_file(arm: str) -> str:
    """Return an arm's name as it can stand in names of files and ids.

    >>> name_file("My arm/2")
    'my-arm-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", arm.lower()).strip("-") or "arm"


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG with text as text, or as PNG of 200 dots per inch; the same figure, the same bytes."""
    import matplotlib

    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, dpi=200, metadata=metadata, transparent=path.suffix == ".svg")


def _new(rows: float, *, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure that is as high as so many rows of text need, and its axes, one below the other."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06)
    figure = Figure(figsize=(WIDTH, 0.27 * rows + 0.75 * panels + 0.25), layout=layout)
    axes = figure.subplots(panels, squeeze=False)[:, 0]
    return figure, list(axes)


def _name_arms(figure: Figure, axes: Axes, colors: dict[str, str]) -> None:
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


def _errors(estimate: Estimate) -> list[list[float]] | None:
    """Return an interval as matplotlib wants it: how far it reaches down and up."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def _draw_distance(evaluation: Evaluation) -> Figure | None:
    """Draw how far each metric of each arm is from human writing: a dot and its interval."""
    metrics = [DISTANCE, *(distance_metric(metric) for metric in METRICS)]
    arms = list(evaluation.sizes)
    known = [m for m in metrics if any(_value(evaluation.find(arm, m.name)) is not None for arm in arms)]
    if not known:
        return None
    colors = choose_colors(arms)
    figure, (axes,) = _new(len(known) * (0.75 + 0.25 * len(arms)))
    step = 0.7 / len(arms)
    for row, metric in enumerate(known):
        for turn, arm in enumerate(arms):
            y = row + (turn - (len(arms) - 1) / 2) * step
            _dot(axes, evaluation.find(arm, metric.name), y, colors[arm])
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(known)), [metric.title for metric in known])
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlabel("human standard deviations")
    _stretch_middle(axes)
    _name_arms(figure, axes, colors)
    return figure


def _stretch_middle(axes: Axes) -> None:
    """Make an axis linear up to 3 and logarithmic beyond, so that one far value does not hide the others."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("symlog", linthresh=3, linscale=1)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -3.3), max(high, 3.3))
    ticks = [sign * size for size in (1000, 100, 10, 3) for sign in (-1, 1)]
    axes.xaxis.set_major_locator(FixedLocator([0, *(tick for tick in ticks if low <= tick <= high or abs(tick) == 3)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _dot(axes: Axes, estimate: Estimate | None, y: float, color: str) -> None:
    if estimate is None or estimate.value is None:
        return
    axes.errorbar(estimate.value, y, xerr=_errors(estimate), fmt="o", color=color, markersize=4, linewidth=1.4)


def _draw_hits(evaluation: Evaluation) -> Figure | None:
    """Draw what is left of each list in each arm: bars with intervals, and by how much they fell."""
    arms = list(evaluation.sizes)
    lists = [name for name in LISTS if evaluation.find(arms[0], name) is not None]
    if not lists:
        return None
    colors = choose_colors(arms)
    figure, panels = _new(len(lists) * len(arms), panels=len(lists))
    ends = [_end(evaluation.find(arm, name)) for name in lists for arm in arms]
    most = max(ends) or 1.0
    for axes, name in zip(panels, lists, strict=True):
        for row, arm in enumerate(arms):
            _bar(axes, evaluation, name, arm, row, colors[arm], most)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.set_xlim(0, most * 1.45)  # room for the labels
        axes.set_title(LIST_TITLES[name].capitalize(), loc="left", fontsize=_SIZE, weight="bold", color=INK)
        for label, arm in zip(axes.get_yticklabels(), arms, strict=True):
            label.set_color(colors[arm])
    panels[-1].set_xlabel("per 1,000 words")
    return figure


def _end(estimate: Estimate | None) -> float:
    """Return how far a bar and its interval reach."""
    return 0.0 if estimate is None or estimate.value is None else max(estimate.value, estimate.high or 0.0)


def _bar(axes: Axes, evaluation: Evaluation, name: str, arm: str, row: int, color: str, most: float) -> None:
    estimate = evaluation.find(arm, name)
    if estimate is None or estimate.value is None:
        return
    axes.barh(row, estimate.value, height=0.62, color=color, alpha=0.85)
    errors = _errors(estimate)
    if errors is not None:
        axes.errorbar(estimate.value, row, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    suppressed = _value(evaluation.find(arm, f"{name}_suppressed", against=PLAIN))
    label = f"{estimate.value:.1f}" if suppressed is None else f"{estimate.value:.1f}, {_say_change(suppressed)}"
    axes.text(_end(estimate) + 0.02 * most, row, label, va="center", fontsize=_SMALL, color=INK)


def _say_change(suppressed: float) -> str:
    return f"{suppressed:.0f}\u00a0% less" if suppressed >= 0 else f"{-suppressed:.0f}\u00a0% more"


def _draw_excess(evaluation: Evaluation) -> Figure | None:
    """Draw what suppression costs in likelihood: a point for each arm, with both intervals."""
    points = []
    for arm in evaluation.sizes:
        fallen = evaluation.find(arm, "made_from_suppressed", against=PLAIN)
        excess = evaluation.find(arm, "excess_nll", against=PLAIN)
        if fallen is not None and excess is not None and fallen.value is not None and excess.value is not None:
            points.append((arm, fallen, excess))
    if not points:
        return None
    colors = choose_colors(evaluation.sizes)
    figure, (axes,) = _new(8)
    for arm, fallen, excess in points:
        peers = [name for name, other, _ in points if abs((other.value or 0) - (fallen.value or 0)) < _SAME]
        assert fallen.value is not None and excess.value is not None
        axes.errorbar(
            fallen.value,
            excess.value,
            xerr=_errors(fallen),
            yerr=_errors(excess),
            fmt="o",
            color=colors[arm],
            markersize=6,
            linewidth=1.4,
            transform=axes.transData + _shift(figure, 7 * (peers.index(arm) - (len(peers) - 1) / 2)),
        )
    axes.axhline(0, color=INK, linewidth=1)
    axes.grid(axis="y")
    axes.set_xlim(*_span([value for _, fallen, _ in points for value in fallen[:3]], about=100, least=10))
    axes.set_ylim(*_span([value for _, _, excess in points for value in excess[:3]], about=0, least=0.01))
    axes.set_xlabel("suppression of the list, % of the plain arm's hits")
    axes.set_ylabel("excess nats per token")
    axes.tick_params(axis="y", labelsize=_SMALL, labelcolor=MUTED)
    _name_arms(figure, axes, {arm: colors[arm] for arm, _, _ in points})
    return figure


def _span(values: Iterable[float | None], *, about: float, least: float) -> tuple[float, float]:
    """Return limits around what is known of values and this one, at least so wide, with a margin."""
    known = [about, *(value for value in values if value is not None)]
    low, high = min(known), max(known)
    margin = max(least, high - low) * 0.15
    return low - margin, high + margin


def _shift(figure: Figure, points: float) -> Any:
    """Return a transform that moves to the right on paper, so that arms of equal suppression don't hide each other."""
    from matplotlib.transforms import ScaledTranslation

    return ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def _draw_changes(arm: str, evaluation: Evaluation) -> Figure | None:
    """Draw what rose and what fell most surely: a dot and its interval on a logarithmic axis."""
    changes = evaluation.changes[arm]
    groups = [[c for c in changes if c.ratio > 1][:_MOST_CHANGES], [c for c in changes if c.ratio < 1][:_MOST_CHANGES]]
    shown = [sorted(group, key=lambda change: -change.ratio) for group in groups]
    rows = [change for group in shown for change in group]
    if not rows:
        return None
    color = choose_colors(evaluation.sizes)[arm]
    figure, (axes,) = _new(len(rows))
    for y, change in enumerate(rows):
        errors = [[change.ratio - change.low], [change.high - change.ratio]]
        axes.errorbar(change.ratio, y, xerr=errors, fmt="o", color=color, markersize=4, linewidth=1.4)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [_shorten(change.text) for change in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("times as frequent as in the plain arm")
    _name_ticks(axes)
    _name_arms(figure, axes, {arm: color})
    return figure


def _name_ticks(axes: Axes) -> None:
    """Mark a logarithmic axis with a few plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100, 1000) if low <= tick <= high]
    if high / low > 300:
        ticks = [tick for tick in ticks if tick not in (0.3, 3)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))


def _shorten(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
