"""The figures of an evaluation. Needs matplotlib.

Figures are as wide as a phone, and their SVG keeps text as text. The colors are those of Okabe and Ito
(https://jfly.uni-koeln.de/color/), which color-blind people can distinguish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antislop.datasets.samples import PLAIN
from antislop.display import shorten
from antislop.evaluation.evaluation import DISTANCE, LIST_METRICS, Evaluation, distance_metric
from antislop.measure.definitions import METRICS
from antislop.measure.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from antislop.measure.profiles.profiles import Change

INK, MUTED, RULE = "#1b1c1e", "#66686b", "#d9dadc"
ARM_COLORS = {"plain": "#767880", "banned": "#0072b2", "token": "#d55e00", "prompt-only": "#009e73"}
MORE_COLORS = ("#cc79a7", "#b8860b", "#8a4fbf", "#5a7d2a")
WIDTH = 5.0  # inches
SIZE = 10.0  # points
SMALL = 9.0
_VARYING = {".svg": "Date", ".png": "Software", ".pdf": "CreationDate"}  # metadata that differs between equal figures
STYLE = Path(__file__).with_name("figures.mplstyle")


def choose_colors(arms: Iterable[str]) -> dict[str, str]:
    """Return a color for each arm; a known arm always has the same color."""
    arms = list(arms)
    other_colors = iter([*MORE_COLORS, *[MUTED] * len(arms)])
    return {arm: ARM_COLORS.get(arm) or next(other_colors) for arm in arms}


def save_figure(figure: Figure, path: Path, *, is_transparent: bool = False) -> None:
    """Write a figure as SVG, PNG of 200 dots per inch or PDF; equal figures give equal bytes."""
    from matplotlib import style

    suffix = path.suffix.lower()
    with style.context(STYLE):
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
    """Write the arms' names in their colors above the axes, in place of a legend, in as many lines as they need."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker
    from matplotlib.transforms import blended_transform_factory

    lines: list[list[Any]] = []
    room = 0
    for arm, color in colors.items():
        room -= len(arm) + 2
        if room < 0:
            lines.append([])
            room = _LINE - len(arm) - 2
        lines[-1].append(TextArea(arm, textprops={"color": color, "weight": "bold"}))
    rows: list[Any] = [HPacker(children=line, sep=14, pad=0) for line in lines]
    box = AnchoredOffsetbox(
        "lower left",
        child=VPacker(children=rows, sep=4, pad=0),
        frameon=False,
        pad=0,
        borderpad=0,
        bbox_to_anchor=(0.02, 1),
        bbox_transform=blended_transform_factory(figure.transFigure, axes.transAxes),
    )
    axes.add_artist(box)


def to_errors(estimate: Estimate) -> list[list[float]] | None:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


_CHANGES_LIMIT = 10
_MIN_CHANGES = 3  # fewer changes are not drawn, only listed in the table
_LABEL = 34  # characters
_LINE = 54  # characters: what fits in bold above the axes
_SAME_SUPPRESSION = 3.0  # percentage points of suppression: closer arms are drawn side by side


def draw_figures(evaluation: Evaluation) -> dict[str, Figure]:
    """Return by name each figure whose estimates are known. Raises `ImportError` without matplotlib."""
    from matplotlib import style

    colors = choose_colors(evaluation.sizes)
    with style.context(STYLE):
        figures = {
            "suppression": _draw_hits(evaluation),
            "excess": _draw_excess(evaluation),
            "distance": _draw_distance(evaluation),
            **{
                f"changes-{name_file(arm)}": _draw_changes(changes, {arm: colors[arm]})
                for arm, changes in evaluation.changes.items()
                if len(changes) >= _MIN_CHANGES
            },
        }
    return {name: figure for name, figure in figures.items() if figure is not None}


def name_file(arm: str) -> str:
    """Return an arm's name in a form for file names and ids.

    >>> name_file("My arm/2")
    'my-arm-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", arm.lower()).strip("-") or "arm"


def _draw_distance(evaluation: Evaluation) -> Figure | None:
    """Draw the distance of each metric of each arm to human writing: a dot and its interval."""
    metrics = [DISTANCE, *map(distance_metric, METRICS)]
    arms = list(evaluation.sizes)
    measured = [m for m in metrics if any(evaluation.find_known(arm, m.name) for arm in arms)]
    if not measured:
        return None
    colors = choose_colors(arms)
    figure, (axes,) = new_figure(len(measured) * (0.75 + 0.25 * len(arms)))
    step = 0.7 / len(arms)
    for row, metric in enumerate(measured):
        for position, arm in enumerate(arms):
            y = row + (position - (len(arms) - 1) / 2) * step
            estimate = evaluation.find(arm, metric.name)
            if estimate is not None and estimate.value is not None:
                errors, color = to_errors(estimate), colors[arm]
                axes.errorbar(estimate.value, y, xerr=errors, fmt="o", color=color, markersize=4, linewidth=1.4)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(measured)), [metric.title for metric in measured])
    axes.set_ylim(len(measured) - 0.5, -0.5)
    axes.set_xlabel("human standard deviations")
    # Linear up to 3 and logarithmic beyond, so that an outlier does not hide the other values.
    axes.set_xscale("symlog", linthresh=3, linscale=1)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -3.3), max(high, 3.3))
    sizes = [sign * size for size in (1000, 100, 10, 3) for sign in (-1, 1)]
    ticks = [0, *(tick for tick in sizes if low <= tick <= high or abs(tick) == 3)]
    axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    axes.minorticks_off()
    name_arms(figure, axes, colors)
    return figure


def _draw_hits(evaluation: Evaluation) -> Figure | None:
    """Draw the hits of each list in each arm: bars with intervals, labeled with the rate and its change from plain."""
    arms = list(evaluation.sizes)
    lists = [metric for metric in LIST_METRICS if evaluation.find(arms[0], metric.name) is not None]
    if not lists:
        return None
    colors = choose_colors(arms)
    figure, panels = new_figure(len(lists) * len(arms), panels=len(lists))
    max_end = max(_end(evaluation.find(arm, metric.name)) for metric in lists for arm in arms) or 1.0
    for axes, metric in zip(panels, lists, strict=True):
        for row, arm in enumerate(arms):
            _bar(axes, evaluation, metric.name, arm, row, colors[arm], max_end)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.set_xlim(0, max_end * 1.45)  # room for the labels
        axes.set_title(metric.title.capitalize(), loc="left", fontsize=SIZE, weight="bold", color=INK)
        for label, arm in zip(axes.get_yticklabels(), arms, strict=True):
            label.set_color(colors[arm])
    panels[-1].set_xlabel("per 1,000 words")
    return figure


def _end(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None or estimate.value is None else max(estimate.value, estimate.high or 0.0)


def _bar(axes: Axes, evaluation: Evaluation, name: str, arm: str, row: int, color: str, max_end: float) -> None:
    estimate = evaluation.find(arm, name)
    if estimate is None or estimate.value is None:
        return
    axes.barh(row, estimate.value, height=0.62, color=color, alpha=0.85)
    errors = to_errors(estimate)
    if errors is not None:
        axes.errorbar(estimate.value, row, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    suppressed = evaluation.find(arm, f"{name}_suppressed", against=PLAIN)
    label = f"{estimate.value:.1f}"
    if suppressed is not None and suppressed.value is not None:
        label += f", {abs(suppressed.value):.0f}\u00a0% {'less' if suppressed.value >= 0 else 'more'}"
    axes.text(_end(estimate) + 0.02 * max_end, row, label, va="center", fontsize=SMALL, color=INK)


def _draw_excess(evaluation: Evaluation) -> Figure | None:
    """Draw the excess in negative log-likelihood against suppression: a point per arm, with both intervals."""
    points = []
    for arm in evaluation.sizes:
        fallen = evaluation.find(arm, "made_from_suppressed", against=PLAIN)
        excess = evaluation.find(arm, "excess_nll", against=PLAIN)
        if fallen is not None and excess is not None and fallen.value is not None and excess.value is not None:
            points.append((arm, fallen, excess))
    if not points:
        return None
    from matplotlib.transforms import ScaledTranslation

    colors = choose_colors(evaluation.sizes)
    figure, (axes,) = new_figure(8)
    for arm, fallen, excess in points:
        assert fallen.value is not None and excess.value is not None
        peers = [name for name, peer, _ in points if abs((peer.value or 0) - fallen.value) < _SAME_SUPPRESSION]
        shift = 7 * (peers.index(arm) - (len(peers) - 1) / 2)  # points, so that equal arms don't hide each other
        axes.errorbar(
            fallen.value,
            excess.value,
            xerr=to_errors(fallen),
            yerr=to_errors(excess),
            fmt="o",
            color=colors[arm],
            markersize=6,
            linewidth=1.4,
            transform=axes.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans),
        )
    axes.axhline(0, color=INK, linewidth=1)
    axes.grid(axis="y")
    axes.set_xlim(*_span([value for _, fallen, _ in points for value in fallen[:3]], about=100, min_width=10))
    axes.set_ylim(*_span([value for _, _, excess in points for value in excess[:3]], about=0, min_width=0.01))
    axes.set_xlabel("suppression of the list, % of the plain arm's hits")
    axes.set_ylabel("excess nats per token")
    axes.tick_params(axis="y", labelsize=SMALL, labelcolor=MUTED)
    name_arms(figure, axes, {arm: colors[arm] for arm, _, _ in points})
    return figure


def _span(values: Iterable[float | None], *, about: float, min_width: float) -> tuple[float, float]:
    """Return axis limits around the known values and `about`, with margins of 15 % of the range or `min_width`."""
    numbers = [about, *(value for value in values if value is not None)]
    low, high = min(numbers), max(numbers)
    margin = max(min_width, high - low) * 0.15
    return low - margin, high + margin


def _draw_changes(changes: Sequence[Change], colors: Mapping[str, str]) -> Figure:
    """Draw the most certain rises and falls of frequency in one arm. colors: the name and the color of this arm."""
    rose = [change for change in changes if change.ratio > 1][:_CHANGES_LIMIT]
    fell = [change for change in changes if change.ratio <= 1][:_CHANGES_LIMIT]
    rows = sorted([*rose, *fell], key=lambda change: -change.ratio)
    (color,) = colors.values()
    figure, (axes,) = new_figure(len(rows))
    for y, change in enumerate(rows):
        errors = [[change.ratio - change.low], [change.high - change.ratio]]
        face = "white" if None in (change.before_count, change.after_count) else color  # hollow: one rate is a bound
        axes.errorbar(
            change.ratio, y, xerr=errors, fmt="o", color=color, markerfacecolor=face, markersize=4, linewidth=1.4
        )
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    texts = [row.text.replace(" ", " … ") if row.kind == "content" else row.text for row in rows]
    labels = [shorten(text, _LABEL) for text in texts]
    labels = [f"[{text}]" if row.kind == "construction" else text for row, text in zip(rows, labels, strict=True)]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("times as frequent as in the plain arm")
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100, 1000) if low <= tick <= high]
    if high / low > 300:
        ticks = [tick for tick in ticks if tick not in (0.3, 3)]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    name_arms(figure, axes, colors)
    return figure
