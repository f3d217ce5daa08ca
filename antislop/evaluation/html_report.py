"""The report of an evaluation: a page that needs no network and no script, figures, a table, and results as JSON."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antislop.datasets.samples import PLAIN
from antislop.display import describe_count, fill_page, format_csv, format_number
from antislop.evaluation.evaluation import (
    COLUMNS,
    COST_METRICS,
    DISTANCE,
    EXCESS,
    FALSE_SHARE,
    LIST_METRICS,
    PASSES,
    SUPPRESSION,
    Evaluation,
    describe_row,
    distance_metric,
)
from antislop.evaluation.figures import INK, MUTED, RULE, choose_colors, draw_figures, name_file, save_figure
from antislop.files.disk import read_bytes, read_text, replace_text
from antislop.measure.definitions import METRICS, Metric
from antislop.measure.estimates import Estimate

CHANGES_LIMIT = 30
BANS_LIMIT = 30
HEADLINE_LISTS = (("hits of the list", "made_from"), ("those of the held-out list alone", "held_out_only"))


def write_report(folder: Path, evaluation: Evaluation, about: Mapping[str, Any]) -> Path:
    """Write report.html, figures as .svg and .png, summary.csv and summary.json into a folder; return the page.

    about: command, made_with, lists, versions, machine, seed, date and notes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    for name, figure in draw_figures(evaluation).items():
        for suffix in (".svg", ".png"):
            save_figure(figure, folder / f"{name}{suffix}", is_transparent=suffix == ".svg")
        figures[name] = read_text(folder / f"{name}.svg")
    summary = {"format": "antislop evaluation 1", **about, **evaluation.describe()}
    replace_text(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    replace_text(folder / "summary.csv", "".join(format_csv(COLUMNS, map(describe_row, evaluation.rows))))
    page = folder / "report.html"
    replace_text(page, render_page(evaluation, about, figures))
    return page


def render_page(evaluation: Evaluation, about: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    """Return the HTML page of an evaluation. figures: SVG by the names that `draw_figures` gives."""
    arms = list(evaluation.sizes)
    page, _ = fill_page(
        "report.html",
        styles=("page.css", "report.css"),
        evaluation=evaluation,
        about=about,
        arms=arms,
        colors=choose_colors(arms),
        headline=make_headline(evaluation),
        summary=summarize(evaluation),
        notes=[*evaluation.notes, *about["notes"]],
        figures={name: inline(svg, name, choose_colors(arms)) for name, svg in figures.items()},
        changed={f"changes-{name_file(arm)}": arm for arm in arms},
        tables=find_tables(evaluation),
        most_bans=BANS_LIMIT,
        changes={
            arm: {
                "rose": [change for change in changes if change.ratio > 1][:CHANGES_LIMIT],
                "fell": [change for change in changes if change.ratio <= 1][:CHANGES_LIMIT],
            }
            for arm, changes in evaluation.changes.items()
        },
        hinted=[arm for arm, chance in evaluation.chances.items() if chance > FALSE_SHARE],
    )
    return page


def find_tables(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the tables of the page; rows are (metric, estimate by arm)."""
    arms = list(evaluation.sizes)
    compared_arms = [arm for arm in arms if arm != PLAIN]
    style = list(METRICS)
    plan: list[tuple[str, list[str], str | None, list[Metric]]] = [
        ("against", compared_arms, PLAIN, [*SUPPRESSION, EXCESS, PASSES]),
        ("sums", arms, None, [*LIST_METRICS, *COST_METRICS]),
        ("style", arms, None, style),
        ("style-against", compared_arms, PLAIN, style),
        ("distance", arms, None, [DISTANCE, *map(distance_metric, style)]),
    ]
    tables = (_make_table(evaluation, *part) for part in plan)
    return [table for table in tables if table["rows"] or table["left_out"]]


def _make_table(
    evaluation: Evaluation, name: str, arms: list[str], against: str | None, metrics: list[Metric]
) -> dict[str, Any]:
    """Return a table of metrics and arms with values; `left_out` has by reason the titles of metrics without values."""
    rows = [(metric, {arm: evaluation.find(arm, metric.name, against=against) for arm in arms}) for metric in metrics]
    known = [(metric, cells) for metric, cells in rows if any(map(_has_value, cells.values()))]
    left_out: dict[str, list[str]] = {}
    for metric, cells in rows:
        estimate = next(filter(None, cells.values()), None)
        if estimate is not None and not any(map(_has_value, cells.values())):
            left_out.setdefault(str(estimate.why), []).append(metric.title)
    return {
        "name": name,
        "arms": [arm for arm in arms if any(_has_value(cells[arm]) for _, cells in known)],
        "against": against,
        "rows": known,
        "left_out": left_out,
        "cautions": [
            f"{metric.title}, {arm}: {estimate.why}"
            for metric, cells in known
            for arm, estimate in cells.items()
            if estimate is not None and estimate.low is not None and estimate.why
        ],
    }


def _has_value(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.value is not None


def make_headline(evaluation: Evaluation) -> str:
    """Return the change of the hits against the plain arm, as a sentence."""
    arm = _choose_arm(evaluation)
    if arm is None:
        return "What bans change"
    parts = [
        f"{noun} {_describe_change(evaluation, arm, name, suppressed)}"
        for noun, name in HEADLINE_LISTS
        if (suppressed := evaluation.find_known(arm, f"{name}_suppressed", against=PLAIN)) is not None
    ]
    sentence = "; ".join(parts) or "the plain texts contain no entry of the list"
    sentence = f"in the {arm} arm, {sentence}" if len(evaluation.sizes) > 2 else sentence
    return sentence[0].upper() + sentence[1:]


def may_be_chance(evaluation: Evaluation) -> bool:
    """Return whether chance may explain the first effect that the headline names."""
    arm = _choose_arm(evaluation)
    names = [f"{name}_suppressed" for _, name in HEADLINE_LISTS]
    effects = [evaluation.find_known(arm, name, against=PLAIN) for name in names] if arm else []
    return next((effect.is_chance for effect in effects if effect is not None), False)


def _choose_arm(evaluation: Evaluation) -> str | None:
    """Return the arm that the headline compares with the plain arm; None if there is no such arm."""
    compared_arms = [arm for arm in evaluation.sizes if arm != PLAIN]
    if PLAIN not in evaluation.sizes or not compared_arms:
        return None
    return "banned" if "banned" in compared_arms else compared_arms[0]


def _describe_change(evaluation: Evaluation, arm: str, name: str, suppressed: Estimate) -> str:
    assert suppressed.value is not None
    rates = [evaluation.find(each, name) for each in (PLAIN, arm)]
    before, after = ("unknown" if rate is None or rate.value is None else format_number(rate.value) for rate in rates)
    percent = f"{abs(suppressed.value):,.0f}"
    if percent == "0" or before == after:
        return f"stayed at {before} per 1,000 words"
    if percent == "100" and 0 < suppressed.value < 100:
        percent = "more than 99"
    direction = "fell" if suppressed.value > 0 else "rose"
    change = f"{direction} by {percent}\u00a0%, from {before} to {after} per 1,000 words"
    return f"{change}, which may be chance" if suppressed.is_chance else change


def summarize(evaluation: Evaluation) -> str:
    """Return as sentences how much text there is, and what the bans cost if that is known."""
    size = next(iter(evaluation.sizes.values()))
    prompts = "" if size.prompts is None else f" to {describe_count(size.prompts, 'prompt')}"
    texts = (
        f"{describe_count(size.texts, 'text')}{prompts} in each arm"
        if evaluation.is_paired
        else ", ".join(f"{describe_count(size.texts, 'text')} of {arm}" for arm, size in evaluation.sizes.items())
    )
    arm = _choose_arm(evaluation)
    if arm is None:
        return f"{texts}. There is no arm to compare with another."
    costs = [
        _format_cost(evaluation, arm, "excess_nll", "nats of likelihood per token"),
        _format_cost(evaluation, arm, "passes_ratio", "times the plain arm’s forward passes per token"),
    ]
    cost = " and ".join(part for part in costs if part)
    return f"{texts}. The {arm} texts cost {cost}." if cost else f"{texts}."


def _format_cost(evaluation: Evaluation, arm: str, name: str, unit: str) -> str:
    estimate = evaluation.find(arm, name, against=PLAIN)
    if estimate is None or estimate.value is None:
        return ""
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f" ({format_number(estimate.low)} to {format_number(estimate.high)})"
    return f"{format_number(estimate.value)}{interval} {unit}"


def inline(svg: str, name: str, colors: Mapping[str, str]) -> str:
    """Return an SVG for the page: without its header, with unique ids, in the colors and fonts of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-labelledby="{name}">', svg, count=1
    )
    svg = re.sub(r"font: ([^;\"']*?)(\d[\d.]*px) [^;\"]*", r"font: \1\2 var(--letters)", svg)
    places = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", "#ffffff": "var(--paper)"}
    places |= {color: f"var(--arm-{number})" for number, color in enumerate(colors.values())}
    for color, variable in places.items():
        svg = svg.replace(color, variable)
    return svg


def describe_machine() -> str:
    """Return the processor, the number of usable cores, and the system, but not the name of the machine."""
    return f"{name_processor()}, {count_cores()} cores, {platform.system()} {platform.machine()}"


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def name_processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = read_bytes(info).decode(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or "unknown processor"
