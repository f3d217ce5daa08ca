"""Run the code cells of a notebook without Jupyter, and write their outputs into it.

python -m tests.support.notebooks examples/quickstart.ipynb
"""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import rich

Output = dict[str, Any]
WIDTH = 80
"""Columns of outputs in rich text."""


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook of format 4."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return notebook


def run_cells(notebook: dict[str, Any]) -> list[list[Output]]:
    """Run the code cells in one namespace and return the outputs of each as Jupyter stores them."""
    rich.reconfigure(width=WIDTH)
    names: dict[str, Any] = {"__name__": "__main__"}
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run_cell(source, number, names) for number, source in enumerate(sources, 1)]


def write_outputs(path: Path) -> None:
    """Run a notebook and replace its outputs."""
    notebook = read_notebook(path)
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(code_cells, run_cells(notebook), strict=True), 1):
        cell["execution_count"], cell["outputs"] = number, outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _run_cell(source: str, number: int, names: dict[str, Any]) -> list[Output]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        result = {"data": _show(value), "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    return outputs


def _show(value: Any) -> dict[str, list[str]]:
    """Return a value as Jupyter shows it: in HTML too if it has such a form."""
    html = getattr(value, "_repr_html_", lambda: None)()
    data = {"text/plain": repr(value)} | ({"text/html": html} if html else {})
    return {form: text.splitlines(True) for form, text in sorted(data.items())}


if __name__ == "__main__":
    write_outputs(Path(sys.argv[1]))
