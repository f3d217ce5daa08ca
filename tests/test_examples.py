"""The examples run as their first lines say and write what they promise; anybody can run the scripts of findings/."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import datasets
import pytest

from antislop.files.journal import read_records
from tests.support.documents import ROOT
from tests.support.notebooks import read_notebook, run_cells

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
HAS_RAY = find_spec("ray") is not None


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that runs an example in `tmp_path`, as a command would, and returns the printed lines."""

    def run_script(script: str, *args: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *args])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run_script


def start(script: str, *args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_corpus_of_stories_is_written_and_resumed(tmp_path: Path, run: Callable[..., list[str]]) -> None:
    command = ("story_corpus.py", "--samples", "1", "--max-new-tokens", "12")
    first = run(*command)
    records = list(read_records(tmp_path / "stories.jsonl"))
    openings = (EXAMPLES / "stories.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(record["prompt"] for record in records) == sorted(openings * 2)
    assert {record["status"] for record in records} == {"ok"}
    assert first[-1] == "banned: 0.00 banned phrases per 1,000 words"
    assert run(*command) == first[-2:], "nothing is made twice"


def test_chat_replies_come_with_pairs_that_load(tmp_path: Path, run: Callable[..., list[str]]) -> None:
    printed = run("chat_pairs.py", "--out", "out", "--limit", "2", "--max-new-tokens", "60")
    replies = list(read_records(tmp_path / "out" / "replies.jsonl"))
    assert [message["role"] for message in replies[0]["messages"]] == ["system", "user", "assistant"]
    assert {reply["key"] for reply in replies} >= {"opening", "farewell"}
    rows = list(read_records(tmp_path / "out" / "pairs.jsonl"))
    assert printed[-1].startswith(f"{len(rows)} pairs in ")
    bans = [row["ban"] for row in rows]
    assert 0 < max(map(bans.count, bans)) <= 2
    pairs = datasets.Dataset.from_list(rows)
    assert all(pairs.features[name].dtype == "string" for name in ("prompt", "chosen", "rejected"))


CLUSTER = ("cluster_job.py", "--limit", "2", "--max-new-tokens", "10")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")
def test_a_cluster_job_makes_a_whole_corpus(tmp_path: Path) -> None:
    ran = start(*CLUSTER, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(list(read_records(tmp_path / "corpus" / "records.jsonl"))) == 4
    assert (tmp_path / "corpus" / "README.md").exists()


@pytest.mark.slow  # datasets/test_cluster has the sentence itself
@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_a_cluster_job_is_refused_in_one_sentence_and_not_tried_again(tmp_path: Path) -> None:
    ran = start(*CLUSTER, folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith("antislop: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("replace_words", r"\A(?s:(?!.*\b(the|eyes)\b).+)"),
        ("write_again", r"\d+ rejected, \d+ of them kept$"),
        ("best_of_three", r"the best of \d+ rows$"),
        ("json_grammar", r"(\d+) tokens in (?!\1 )\d+ forward passes$"),
    ],
)
def test_a_controller_runs(script: str, shown: str, run: Callable[..., list[str]]) -> None:
    if script == "json_grammar":
        pytest.importorskip("llguidance", reason="llguidance is not installed")
    assert re.search(shown, "\n".join(run(f"{script}.py")))


def test_the_notebook_prints_the_outputs_that_it_stores_and_they_show_rewinds() -> None:
    notebook = read_notebook(EXAMPLES / "quickstart.ipynb")
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert run_cells(notebook) == stored, "python -m tests.support.notebooks examples/quickstart.ipynb writes them"
    shown = ["".join(output["data"]["text/html"]) for outputs in stored for output in outputs if "data" in output]
    assert [page.count("line-through") > 3 for page in shown] == [True, False], "a trace and a sampler"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert f"python examples/{script.name}" in (ast.get_docstring(ast.parse(text)) or "")
    assert f"]({script.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


FOLDER = ROOT / "findings"
FINDINGS = sorted(path for path in FOLDER.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
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


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_a_finding_checks_what_it_prints(path: Path) -> None:
    codes = re.findall(r"<<'(\w+)'\n(.*?)\n\1\n", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = (code for _, code in codes)
    ast.parse(code)
    assert "print(" in code and ("assert " in code or "exit" in code.lower())


def test_no_workflow_runs_findings() -> None:
    runs = [*(ROOT / ".github").rglob("*.yml"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    assert not any("findings" in path.read_text(encoding="utf-8") for path in runs if path.is_file())
