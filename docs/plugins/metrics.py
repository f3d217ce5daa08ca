"""Write the table of all metrics from their definitions."""

from __future__ import annotations

from typing import Any

MARK = "<!-- all metrics -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table in the place of the mark."""
    return (
        markdown.replace(MARK, describe_metrics())
        if MARK in markdown
        else markdown
    )


def describe_metrics() -> str:
    """Return a table of names, units, definitions and sources."""
    from antislop.measure.definitions import METRICS

    rows = [
        f"| `{metric.name}` | {metric.title}, {metric.unit} | {_escape(metric.about)} ({_link(metric.source)}) |"
        for metric in METRICS
    ]
    return "\n".join(
        ["| name | unit | definition and source |", "|---|---|---|", *rows]
    )


def _link(source: str) -> str:
    url, _, rest = source.partition(", ")
    if url.startswith("10."):
        url = f"https://doi.org/{url}"
    return (
        f"[{url.split('/')[-1]}]({url}){', ' * bool(rest)}{rest}"
        if url.startswith("https://")
        else source
    )


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
