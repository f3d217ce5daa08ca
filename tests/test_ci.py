"""The workflow and the scripts of CI run commands that exist, on the Pythons that the package supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import depth

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
SCRIPTS = [*sorted(path for path in (ROOT / ".ci").iterdir() if not path.suffix), WORKFLOWS / "ci.yml"]
WORKFLOW = yaml.safe_load(SCRIPTS[-1].read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_the_workflow_tests_the_core_on_every_supported_python_and_has_a_job_for_each_door() -> None:
    core, doors = (WORKFLOW["jobs"][name]["strategy"]["matrix"] for name in ("core", "doors"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert core["python"] == supported
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert {*doors["door"]} == folders - {"core", "files", "lists", "support"}
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_guide_for_contributors_has_commands_that_need_no_make() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```\n(py -m venv.*?)```", text, flags=re.DOTALL)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"\[(.*?)\]", block)[0].split(",")
    assert set(extras) <= project["optional-dependencies"].keys()
    paths = re.findall(r"\btests/[\w/.]+", block)
    assert paths and all((ROOT / path).exists() for path in paths)
    assert "make" not in block


def test_every_action_is_pinned_to_a_commit() -> None:
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in STEPS if "uses" in step)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_of_ci_can_be_run_and_names_targets_and_tests_that_exist(script: Path) -> None:
    if script.name != "ci.yml":
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    assert set(re.findall(r"^[^#\n]*\bmake ([a-z-]+)", text, flags=re.MULTILINE)) <= TARGETS
    assert [path for path in re.findall(r"\btests/[\w/.]*\w", text) if not (ROOT / path).exists()] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_make_test_and_make_test_doors_run_each_quick_test_once() -> None:
    command = ["make", "--dry-run", "test", "test-doors"]
    planned = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sampler, doors = re.findall(r'pytest .* -m "not slow" (.*)', planned)
    assert doors.split() == ["tests", *(f"--ignore={path}" for path in sampler.split())]
    assert all((ROOT / path).exists() for path in sampler.split())


@pytest.mark.parametrize("cases", range(1, 10))
def test_each_case_of_a_slow_test_has_its_turn_and_in_each_turn_one_has(
    cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "TURNS", 4)
    ran = set()
    for turn in range(12):
        monkeypatch.setattr(depth, "TURN", turn)
        of_turn = {case for case in range(cases) if depth.is_in_turn("tests/test_ci.py::test", case, cases)}
        assert of_turn
        ran |= of_turn
    assert ran == {*range(cases)}
