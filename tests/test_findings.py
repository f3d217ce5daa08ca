"""The scripts of `findings/` can be run by anybody: pinned, alone, and with a head that says what they show."""

from __future__ import annotations

import ast
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.support.documents import ROOT

FOLDER = ROOT / "findings"
SCRIPTS = sorted(path for path in FOLDER.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_finding_installs_pinned_packages_and_says_what_it_shows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.suffix == ".sh" and text.startswith("#!/usr/bin/env bash\n# ")
    assert os.access(path, os.X_OK)
    head, _, body = text.partition("set -euo pipefail\n")
    assert all(line.startswith("#") for line in head.splitlines())
    assert "expect" in head.lower() and "Why it matters: " in head
    assert body.lstrip().startswith("folder=$(mktemp -d)\ntrap 'rm -rf \"$folder\"' EXIT\n")
    pins = [
        pin
        for line in re.findall(r'/pip" install (.+)$', body, flags=re.MULTILINE)
        for pin in shlex.split(line, comments=True)
    ]
    pins = [pin for pin in pins if not pin.startswith("--")]
    assert pins and all(re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.]+", pin) for pin in pins), pins
    assert any(pin.partition("==")[2] in head for pin in pins)
    assert "antislop" not in body.lower().replace("antislopstrategy", "")
    assert not re.search(r"https?://(?!127\.0\.0\.1)|/home/|/root/|/tmp/|(^|\W)(index-url|find-links)", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_finding_checks_what_it_prints(path: Path) -> None:
    codes = re.findall(r"<<'(\w+)'\n(.*?)\n\1\n", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = (code for _, code in codes)
    ast.parse(code)
    assert "print(" in code and ("assert " in code or "exit" in code.lower())


def test_no_workflow_runs_findings() -> None:
    runs = [*(ROOT / ".github").rglob("*.yml"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    assert not any("findings" in path.read_text(encoding="utf-8") for path in runs if path.is_file())
