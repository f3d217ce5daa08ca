"""The README is short, its code runs, its links work in a clone, and a package index can show it."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import antislop
from antislop.errors import DISTRIBUTION
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
    assert len(blocks) >= 2
    assert not any(block.title for block in blocks), "all of them run"
    assert capsys.readouterr().out, "an example prints what it made"


SHORTER = {"generate": ["--max-new-tokens", "24"], "serve": ["--port", "0"]}
STATUS = {"scan": 1, "serve": 130}


@pytest.mark.slow
def test_every_command_runs_in_a_clone_with_what_the_lines_before_it_install(clone: Path) -> None:
    commands = [command for block in read_blocks(README, "sh") for command in read_commands(block)]
    assert {command[1] for command in commands if command[0] == "antislop"} >= {"generate", "view", "scan", "serve"}
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
    assert len(TEXT.splitlines()) <= 100
    assert all(len(block.text.splitlines()) <= 8 for block in read_blocks(README, "python", "sh"))


def test_the_first_sentence_is_short() -> None:
    assert len(TEXT.split("\n\n")[1].split()) < 50


def test_what_stands_before_the_second_screen_is_python_and_one_line_to_install_it() -> None:
    first, second = read_blocks(README, "python", "sh")[:2]
    assert (first.language, second.language, len(second.text.splitlines())) == ("python", "sh", 1)
    assert second.text.startswith("pip install ")


LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def test_links_and_the_picture_are_relative() -> None:
    """tests/test_docs.py follows them."""
    assert not [link for _, link in LINK.findall(TEXT) if "github.com/antislop" in link or "githubusercontent" in link]


def test_a_package_index_is_given_links_to_the_files_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the text alone: relative links would lead nowhere."""
    pytest.importorskip("hatch_fancy_pypi_readme", reason="hatch-fancy-pypi-readme is not installed")
    monkeypatch.chdir(ROOT)
    text = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    release = f"antislop/antislop/{{}}v{antislop.__version__}/"
    folders = {
        "": f"https://github.com/{release.format('blob/')}",
        "!": f"https://raw.githubusercontent.com/{release.format('')}",
    }
    expected = [link if "://" in link else folders[picture] + link for picture, link in LINK.findall(TEXT)]
    assert [link for _, link in LINK.findall(text)] == expected
    assert f"\npip install '{DISTRIBUTION}[" in text
    assert "pip install '." not in text
