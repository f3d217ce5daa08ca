"""The README is short, its code runs, its links lead somewhere, and a package index can show it."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.documents import ROOT, check_command, read_blocks, read_commands
from tests.support.processes import find_requirements, start_command

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with those files of a clone that commands and examples name."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(README, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_runs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    blocks = read_blocks(README, "python")
    for block in blocks:
        exec(block.compile(), names)
    assert len(blocks) >= 3
    assert not any(block.title for block in blocks), "all of them run"
    assert capsys.readouterr().out, "an example prints what it made"


SHORTER = {"generate": ["--max-new-tokens", "24"], "dataset": ["--max-new-tokens", "120"], "serve": ["--port", "0"]}
SHORTER["eval"] = SHORTER["generate"]
STATUS = {"scan": 1, "serve": 130}


@pytest.mark.slow
def test_every_command_runs_in_a_clone_with_what_the_lines_before_it_install(clone: Path) -> None:
    commands = [command for block in read_blocks(README, "sh") for command in read_commands(block)]
    assert {command[1] for command in commands if command[0] == "antislop"} >= {"generate", "scan", "dataset", "eval"}
    extras, installed = set[str](), find_requirements([])
    for program, name, *arguments in commands:
        if program != "antislop":
            check_command(program, [name, *arguments])
            extras |= {extra for each in re.findall(r"\[(.*?)\]", " ".join(arguments)) for extra in each.split(",")}
            installed = find_requirements(extras)
            continue
        command = start_command([name, *arguments, *SHORTER.get(name, [])], installed=installed)
        if name == "serve":
            assert "http://127.0.0.1" in command.stderr.readline()
            command.send_signal(signal.SIGINT)
        error = command.communicate(timeout=300)[1]
        assert command.returncode == STATUS.get(name, 0), f"{shlex.join([name, *arguments])}: {error}"


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
