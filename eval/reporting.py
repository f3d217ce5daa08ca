"""Write an answer: tables for people, the same figures for machines, and the conditions that they depend on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch

from antislop.display import list_versions
from antislop.evaluation.html_report import count_cores, name_processor
from eval import ROOT

PACKAGES = ("numpy", "scipy")
TINY = 1e-6  # what float32 can't tell from 0

Cell = str | int | float | None


class Table(NamedTuple):
    """Rows of figures. None is printed as a dash: it was not measured, and a note says why."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    verdicts: a sentence per goal that says if it was met.
    notes: the meaning of the columns, and the figures that could not be measured.
    limits: a paragraph on conclusions that the figures don't allow.
    plot: the name of a picture in the same folder.
    """

    name: str
    question: str
    tables: Sequence[Table]
    verdicts: Sequence[str]
    limits: str
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    plot: str | None = None


def write_answer(answer: Answer, folder: Path, *, command: str, setting: str, seconds: float) -> Path:
    """Write NAME.md and NAME.json into a folder; return the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    made_with = describe(command=command, setting=setting, seconds=seconds) | dict(answer.settings)
    path = folder / f"{answer.name}.md"
    path.write_text(render_markdown(answer, made_with), encoding="utf-8")
    data = {
        "question": answer.question,
        "made_with": made_with,
        "verdicts": list(answer.verdicts),
        "tables": [
            {"title": table.title, "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows]}
            for table in answer.tables
        ],
        "notes": list(answer.notes),
        "limits": answer.limits,
    }
    text = json.dumps(data, ensure_ascii=False, indent=1)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    return path


def describe(*, command: str, setting: str, seconds: float) -> dict[str, Any]:
    """Return the conditions that the figures depend on."""
    return {
        "setting": setting,
        "command": command,
        "seconds": round(seconds),
        **describe_conditions(),
        **list_versions(PACKAGES),
        "commit": find_commit(),
    }


def describe_conditions() -> dict[str, Any]:
    """Return what, besides the code, a timing depends on: processor, cores, threads, load, versions and date."""
    return {
        "cpu": name_processor(),
        "cores": count_cores(),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()],
        **list_versions(("torch", "transformers")),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def find_commit() -> str | None:
    """Return the checked-out commit, with a + if files differ from it; None outside of a repository."""
    try:
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=10", "--dirty=+"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def render_markdown(answer: Answer, made_with: Mapping[str, Any]) -> str:
    parts = [f"# {answer.name.capitalize()}", answer.question]
    if made_with["setting"] != "full":
        parts.append(f"**Setting: {made_with['setting']}.** Few texts: the intervals are wide, the timings noisy.")
    parts += ["\n".join(f"- {verdict}" for verdict in answer.verdicts)] if answer.verdicts else []
    parts += [f"![{answer.name}]({answer.plot})"] if answer.plot else []
    for table in answer.tables:
        parts += [f"## {table.title}", render_table(table)]
    parts += ["\n".join(f"- {note}" for note in answer.notes)] if answer.notes else []
    parts += ["## What this does not show", answer.limits]
    parts += ["## Made with", "\n".join(f"- {name}: {value}" for name, value in made_with.items())]
    return "\n\n".join(parts) + "\n"


def render_table(table: Table) -> str:
    """Return a table in Markdown, figures on the right."""
    is_text = [any(isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]
    lines = [table.columns, ["---" if text else "---:" for text in is_text]]
    lines += [[show(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(cell: Cell) -> str:
    """Return a cell as it is printed: three significant digits."""
    if cell is None:
        return "–"
    if isinstance(cell, float) and 0 < abs(cell) < TINY:
        return f"< {TINY:g}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
