"""Fill the tables of eval/results/speed.md from a run's JSON, and draw its plot.

    python -m eval.speed --json eval/results/speed.json
    python -m eval.speed.page [eval/results/speed.json]

A table stands between <!-- table: BENCHMARKS --> and <!-- end -->, and when and how the run was made after
<!-- conditions -->; what else the page says is left as it is.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antislop.display import describe_count
from eval import ROOT
from eval.cost import NEVER, OFTEN, Point, draw_plot
from eval.reporting import Table, render_table
from eval.speed.measuring import show_goal, show_value

RUN = ROOT / "eval" / "results" / "speed.json"
PAGE = RUN.with_suffix(".md")
PLACE = re.compile(r"(<!-- (table|conditions)(?:: ([^\n]+?))? -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 120
KINDS = {"no violation": (NEVER, "phrases"), "violations": (OFTEN, "violations_per_1000")}
"""Benchmarks that are plotted: the panel, and the figure on its axis."""

Row = Mapping[str, Any]
"""A result, as `Result.as_json` tells it."""


def fill(page: str, run: Mapping[str, Any]) -> str:
    """Return the page with its conditions and tables replaced by those of a run."""

    def replace(place: re.Match[str]) -> str:
        if place[2] == "conditions":
            return f"{place[1]}\n{describe(run)}\n\n{place[4]}"
        rows = [row for row in run["results"] if row["benchmark"] in place[3].split(", ")]
        return f"{place[1]}\n{tabulate(rows) if rows else 'Not part of this run.'}\n\n{place[4]}"

    return PLACE.sub(replace, page)


def describe(run: Mapping[str, Any]) -> str:
    """Return the sentence that says when, with what and on what the figures were measured."""
    machine, settings = run["machine"], run["settings"]
    rounds, texts = describe_count(settings["rounds"], "round"), describe_count(settings["texts"], "text")
    cores, threads = describe_count(machine["cores"], "core"), describe_count(machine["threads"], "thread")
    return textwrap.fill(
        f"Measured on {machine['date'][:10]} in {settings['clock']} time: medians of {rounds} of {texts} of "
        f"{settings['tokens']} tokens on {cores} ({machine['cpu']}, {threads}, a load of {machine['load'][0]:.1f} at "
        f"the start), with Python {machine['python']}, torch {machine['torch']}, transformers "
        f"{machine['transformers']} and this repository at {run['commit']}.",
        width=WIDTH,
    )


def tabulate(rows: Sequence[Row]) -> str:
    """Return a table with a row per case and a column per model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = {row["model"]: row for row in rows if row["case"] == case}
        goals = dict.fromkeys(show_goal(row["goal"], is_floor=row["is_floor"]) for row in own.values())
        lines.append([case, " or ".join(filter(None, goals)), *(show(own.get(model)) for model in models)])
    return render_table(Table("", ("", "goal", *models), lines))


def show(row: Row | None) -> str:
    """Return a figure with its noise, and whether it misses its goal."""
    if row is None:
        return ""
    low, high = row["noise"]
    noise = f" ({low:.3g} … {high:.3g})" if low < high else ""
    return f"{show_value(row['median'], row['unit'])}{noise}{' **missed**' if row['verdict'] == 'missed' else ''}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the ratios over the length of the list, and over violations."""
    points: dict[str, list[Point]] = {}
    for row in rows:
        kind, figure = KINDS.get(row["benchmark"], ("", ""))
        if figure in row:
            points.setdefault(row["model"], []).append(Point(kind, row[figure], 1, row["values"], None, []))
    draw_plot(points, path)


def main(arguments: Sequence[str]) -> None:
    """Rewrite the page and its plot."""
    path = Path(arguments[0]) if arguments else RUN
    run = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")
    plot(run["results"], RUN.with_suffix(".svg"))


if __name__ == "__main__":
    main(sys.argv[1:])
