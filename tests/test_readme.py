"""The README is short, its code runs, its links lead somewhere, and a package index can show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import ROOT, prepare_folder, read_blocks, read_commands, run_command

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_folder(tmp_path)
    names: dict[str, object] = {}
    blocks = read_blocks(README, "python")
    for block in blocks:
        exec(block.compile(), names)
    assert len(blocks) >= 3
    assert not any(block.title for block in blocks), "all of them run"
    assert capsys.readouterr().out, "an example prints what it made"


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_folder(tmp_path)
    (tmp_path / "out.jsonl").unlink()  # the command before makes it
    commands = [command for block in read_blocks(README, "sh") for command in read_commands(block)]
    assert {command[1] for command in commands if command[0] == "antislop"} >= {"generate", "scan", "dataset", "eval"}
    for command in commands:
        run_command(command)


def test_it_is_read_in_five_minutes() -> None:
    assert len(TEXT.splitlines()) <= 130
    assert all(len(block.text.splitlines()) <= 8 for block in read_blocks(README, "python", "sh"))


def test_the_first_sentence_is_short() -> None:
    assert len(TEXT.split("\n\n")[1].split()) < 50


def test_links_work_on_a_package_index() -> None:
    """Which shows the text alone: relative links would lead nowhere."""
    links = re.findall(r"\]\(([^)\s]+)\)", TEXT)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
