"""The workflow and the scripts of CI run commands that exist, on the Pythons that the package supports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / ".ci").iterdir())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_the_workflow_runs_the_script_of_ci_and_the_tests_on_every_supported_python() -> None:
    jobs = WORKFLOW["jobs"]
    assert [step["run"] for name in ("all", "tests") for step in jobs[name]["steps"] if "run" in step] == [
        ".ci/run",
        "make test-all",
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == supported
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_windows_and_macos_run_the_tests_of_lists_texts_and_scan_without_make() -> None:
    job = WORKFLOW["jobs"]["systems"]
    assert job["strategy"]["matrix"]["system"] == ["windows-latest", "macos-latest"]
    install, test = (step["run"] for step in job["steps"] if "run" in step)
    assert "-c constraints.txt -e ." in install
    folders = ["tests/core/bans", "tests/files", "tests/cli/test_scan.py"]
    assert test.removeprefix("python -m pytest ").split() == folders
    assert all((ROOT / folder).exists() for folder in folders)


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
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert set(re.findall(r"^make ([a-z-]+)", text, flags=re.MULTILINE)) <= TARGETS
    assert [path for path in re.findall(r"\btests/[\w/.]+", text) if not (ROOT / path).exists()] == []


def test_the_script_of_ci_runs_the_commands_of_the_readme_in_clones_and_then_all_checks() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = re.findall(r"^make [a-z-]+", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert readme == ["make demo", "make test"]
    before, *others = re.split(r"^command -v chromium|^make ", script, flags=re.MULTILINE)
    assert re.findall(r"^run_in_a_clone (.*)", before, flags=re.MULTILINE) == readme
    made = [re.match(r"[a-z-]+", other)[0] for other in others[1:]]
    assert made == ["docs", "test-all", "test-versions", "check", "package", "eval-quick"]


def test_only_make_test_leaves_tests_out() -> None:
    recipes = dict(re.findall(r"^(test[a-z-]*): .*\n\t.* -m pytest\b(.*)", MAKEFILE, flags=re.MULTILINE))
    assert {target for target, options in recipes.items() if " -m " in options} == {"test"}
    assert "test-all" in recipes
