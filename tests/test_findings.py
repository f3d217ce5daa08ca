"""The scripts of `findings/` can be run by anybody: pinned, alone, and with a head that says what they show."""

from __future__ import annotations

import ast
import os
import re
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
    assert all(f"\n# {word}: " in head for word in ("Expected", "Seen", "Why it matters", "Versions"))
    assert body.startswith("folder=$(mktemp -d)\ntrap 'rm -rf \"$folder\"' EXIT\n")
    (installed,) = re.findall(r"^.*pip\" install --quiet --no-compile (.+)$", body, flags=re.MULTILINE)
    pins = [pin.strip("'\"") for pin in installed.split()]
    assert all(re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.]+", pin) for pin in pins), installed
    versions = head.partition("# Versions: ")[2].replace("\n# ", " ").split()
    assert versions == [part for pin in pins for part in pin.split("==")]
    assert "antislop" not in body.lower().replace("antislopstrategy", "")
    assert not re.search(r"https?://(?!127\.0\.0\.1)|/work/|/tmp/", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_finding_checks_what_it_prints(path: Path) -> None:
    (code,) = re.findall(r"<<'PYTHON'\n(.*)\nPYTHON\n", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    tree = ast.parse(code)
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    printed = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert any("expected" in call for call in printed) and any("seen" in call for call in printed)


def test_no_workflow_runs_findings() -> None:
    runs = [*(ROOT / ".github").rglob("*.yml"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    assert not any("findings" in path.read_text(encoding="utf-8") for path in runs if path.is_file())
