"""The README's Python examples run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("a testament to\nbarely above a whisper\n", encoding="utf-8")
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert len(BLOCKS) >= 3
    assert capsys.readouterr().out, "an example prints what it made"


def test_the_first_sentence_is_short() -> None:
    first = README.read_text(encoding="utf-8").split("\n\n")[1]
    assert len(first.split()) < 50
