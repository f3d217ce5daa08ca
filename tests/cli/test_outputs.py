"""All commands write into folders that don't exist yet, and refuse places that take no file before any work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import assert_refused, invoke
from tests.support.documents import prepare_folder

SHORT = "--max-new-tokens 8"
FIX = "--model bundled --no-bans --ban dance"
WRITING = {
    "generate --report": f"generate One {SHORT} --report {{}}/x.json",
    "generate --trace": f"generate One {SHORT} --trace {{}}/x.jsonl",
    "view": "view trace.jsonl --html {}/x.html",
    "convert": "convert list.txt -o {}/x.txt",
    "profile": "profile out.jsonl -o {}/x.json",
    "bans-from": "bans-from profile.json -o {}/x.txt",
    "dataset": f"dataset prompts.txt -o {{}}/x.jsonl {SHORT}",
    "dataset --pairs": f"dataset prompts.txt -o x.jsonl {SHORT} --pairs {{}}/x.jsonl --pairs-format tokens",
    "fix": f"fix story.txt -o {{}}/x.txt {FIX}",
    "fix of records": f"fix out.jsonl -o {{}}/x.jsonl {FIX}",
    "fix --pairs": f"fix out.jsonl -o x.jsonl --pairs {{}}/x.jsonl {FIX}",
    "eval": "eval -o {}/x --outputs plain=a.jsonl",
    "tune": "tune pairs.jsonl -o {}/x",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_folder(tmp_path)
    Path("file").touch()


@pytest.mark.parametrize("command", sorted(WRITING.keys() - {"tune", "eval", "bans-from", "view"}))
def test_missing_folders_are_made(command: str) -> None:
    result = invoke(*shlex.split(WRITING[command].format("new/folder")))
    assert result.exit_code == 0, result.output
    assert [*Path("new/folder").glob("x.*")]


@pytest.mark.parametrize("command", WRITING)
def test_a_file_in_the_place_of_a_folder_is_refused(command: str) -> None:
    assert_refused(invoke(*shlex.split(WRITING[command].format("file"))), "file")


@pytest.mark.parametrize("command", WRITING)
def test_a_name_with_the_suffix_of_another_format_is_refused(command: str) -> None:
    named = re.sub(r"\{\}/x(\.\w+)?", "x.docx", WRITING[command])
    assert_refused(invoke(*shlex.split(named)), "x.docx: .docx is not what this option writes: pass ")
    assert not Path("x.docx").exists()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
@pytest.mark.parametrize("command", sorted(WRITING.keys() - {"view", "bans-from", "tune"}))
def test_a_folder_of_the_system_is_refused_before_any_work(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antislop.files.models.ModelSpec.load", lambda _: pytest.fail("a model was loaded"))
    result = invoke(*shlex.split(WRITING[command].format("/proc")))
    assert_refused(result, "can't be written (/proc takes no files): choose a folder of yours")
