"""The distributions are complete, and the metadata and the model card are true."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import antislop
from antislop.cli import parsing
from antislop.core.bans.patterns import incremental_regex, pattern
from antislop.core.trace.events import Admitted, Conceded, Rewound
from antislop.errors import DISTRIBUTION
from antislop.files import disk as files, records, sources
from antislop.lists import limits
from antislop.lists.bundled import FOLDER
from antislop.measure import folders
from tests.support.processes import find_requirements, start_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.slow
def test_the_wheel_contains_all_files_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {str(p.relative_to(ROOT)) for p in (ROOT / "antislop").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert package <= names
    assert {name.partition("/")[0] for name in names} == {"antislop", f"antislop_lm-{antislop.__version__}.dist-info"}
    assert {f"antislop_lm-{antislop.__version__}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names
    assert wheel.stat().st_size < 10e6


@pytest.mark.slow
def test_the_source_distribution_contains_the_files_that_its_tests_need(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing lists the project's files")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    assert tracked <= packed
    assert "hub/antislop/README.md" in packed  # which the wheel lacks: it belongs on the Hub


@pytest.mark.parametrize(
    "file",
    [
        "tiny/model.safetensors",
        "tiny/tokenizer.json",
        "slop.txt",
        "slop_held_out.txt",
        "human.json.gz",
        "constructions.json",
    ],
)
def test_the_bundled_data_are_those_that_their_provenance_describes(file: str) -> None:
    digest = hashlib.sha256((FOLDER / file).read_bytes()).hexdigest()
    assert digest in (ROOT / "data" / "README.md").read_text(encoding="utf-8")


def test_each_file_of_data_has_a_line_about_its_source() -> None:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in FOLDER.iterdir() if path.suffix not in (".py", ".pyc", ".md")} - {"__pycache__"}
    assert {name for name in names if f"`{name}" not in table} == set()


def test_the_model_card_describes_the_bundled_model() -> None:
    import yaml

    card = (FOLDER / "tiny" / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["license"] == PROJECT["license"].lower()
    assert header["language"] == ["en"]
    model, tokenizer = antislop.tiny_model()
    assert f"{model.num_parameters():,} parameters" in card
    assert f"{model.config.max_position_embeddings} tokens" in card
    assert f"{len(tokenizer):,} tokens" in card
    training = json.loads((ROOT / "data" / "tiny" / "training.json").read_text(encoding="utf-8"))
    for name, form in (("documents", ","), ("steps", ","), ("train_loss", ".3f"), ("held_out_loss", ".3f")):
        assert format(training[name], form) in card


def test_the_metadata_names_the_pythons_and_links_within_one_repository() -> None:
    minors = {line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language")}
    assert {"3.10", "3.11", "3.12", "3.13"} <= minors
    assert not any(line.startswith("License ::") for line in PROJECT["classifiers"])
    source = PROJECT["urls"]["Source"]
    assert all(url.startswith(source) for url in PROJECT["urls"].values())
    for name in ("CITATION.cff", "SECURITY.md", "antislop/data/tiny/README.md"):
        assert f"{source}" in (ROOT / name).read_text(encoding="utf-8"), name


TEXT_SUFFIXES = (".md", ".py", ".pyi", ".ipynb")
TAKEN = ("anti-slop", "anti-slop-kit", "anti-slop-py", "anti-slop-python", "antishlop-cli", "antislope-ai", "slop")
"""Names near ours that PyPI had on 2026-11-24."""


def reduce_name(name: str) -> str:
    """Return what PyPI compares new names by (`ultranormalize_name` in https://github.com/pypi/warehouse)."""
    return re.sub("[._-]", "", name.lower()).translate(str.maketrans("lio", "110"))


def test_pypi_takes_the_name_of_the_distribution() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    taken = {reduce_name(name) for name in TAKEN}
    assert reduce_name("antislop") in taken, "or the import's own name could be had"
    assert reduce_name(DISTRIBUTION) not in taken


def test_every_sentence_that_installs_the_package_names_its_distribution() -> None:
    folders = ("antislop", "data", "docs", "eval", "examples", "hub")
    texts = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in TEXT_SUFFIXES]
    texts += ROOT.glob("*.md")
    assert len(texts) > 300
    wrong = re.compile(r"pip install '?antislop(?![\w-])|`antislop\[")
    found = {path.name: wrong.findall(path.read_text(encoding="utf-8")) for path in texts}
    assert {name: places for name, places in found.items() if places} == {}


def test_the_citation_is_of_this_version() -> None:
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == antislop.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert "2510.15061" in citation["references"][0]["url"]


def test_the_bounds_that_the_security_page_names_are_those_of_the_code() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for number in (
        limits.MAX_ENTRIES,
        limits.MAX_LENGTH,
        limits.MAX_REGEXES,
        incremental_regex.MAX_SIZE,
        pattern.MAX_SPAN,
        folders.MAX_IGNORE,
        parsing.MAX_SETTINGS,
    ):
        assert f"{number:,} " in page
    for number in (limits.MAX_CHARACTERS, limits.MAX_WRITTEN_OUT, records.MAX_LINE):
        assert f"{number // 10**6} million" in page
    assert f"{incremental_regex.TIME_LIMIT} seconds" in page
    assert f"{files.MAX_RATIO} times" in page
    modules = re.findall(r"[(,] ?`([a-z_.]+)`", page)
    assert len(modules) > 8
    assert [name for name in modules if find_spec(f"antislop.{name}") is None] == []
    assert (limits.MAX_DEPTH, sources.MAX_DEPTH, limits.MAX_TIMED_OUT, files.MIN_BOUND) == (10, 100, 10, 2**24)


def test_the_bundled_list_is_long_and_its_phrases_are_distinct() -> None:
    bans = antislop.default_bans()
    assert len(bans) > 500
    assert len({ban.text.lower() for ban in bans}) == len(bans)


def test_the_held_out_list_comes_from_other_prompts_and_shares_only_a_part() -> None:
    made_from, held_out = ({ban.text for ban in bans} for bans in (antislop.default_bans(), antislop.held_out_bans()))
    assert len(held_out) > 500
    assert 0.2 < len(made_from & held_out) / len(held_out) < 0.8


def test_each_ban_of_the_bundled_list_makes_its_phrase_at_least_six_times_rarer() -> None:
    weights = [ban.weight for ban in antislop.default_bans()]
    assert weights.count(0) > 0.3 * len(weights)
    assert 0 < max(weights) < 0.17


@pytest.mark.slow
def test_the_bundled_model_is_small_and_writes_slop_that_the_sampler_withdraws() -> None:
    import torch

    model, tokenizer = antislop.tiny_model()
    assert (FOLDER / "tiny" / "model.safetensors").stat().st_size <= 8e6
    inputs = tokenizer("The old house at the edge of the village", return_tensors="pt")
    asked = {**inputs, "max_new_tokens": 200, "do_sample": True, "min_p": 0.05}
    bans = antislop.default_bans()
    lenient = antislop.BanList([replace(ban, weight=0.5) if ban.weight else ban for ban in bans])
    found = admitted = 0
    for seed in range(2):
        torch.manual_seed(seed)
        found += len(bans.find(tokenizer.decode(model.generate(**asked)[0], skip_special_tokens=True)))
        for given in (bans, lenient):
            torch.manual_seed(seed)
            out = antislop.AntiSlop(tokenizer, given).generate(model, **asked, return_dict_in_generate=True)
            stands = Counter(match.ban for match in given.find(tokenizer.decode(out.sequences[0])))
            told = list[Admitted | Conceded]()
            for event in out.report.events:
                if isinstance(event, Admitted | Conceded):
                    told.append(event)
                elif isinstance(event, Rewound):  # another ban withdrew what was admitted: "face etched with"
                    told = [kept for kept in told if kept.violation.end < event.length]
            assert stands == Counter(event.violation.ban for event in told)
            assert all(event.violation.ban.weight for event in told if isinstance(event, Admitted))
            admitted += out.report.admitted
    assert found > 5
    assert admitted > 0


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_the_demo_installs_no_extras_and_says_each_step() -> None:
    def plan(*args: str) -> str:
        command = ["make", "--dry-run", "--always-make", *args]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    demo = plan("demo")
    assert "[test" not in demo
    assert [f"step {number} of 3" in demo for number in (1, 2, 3)] == [True] * 3
    assert "install -q" not in demo
    assert "-e '.[hf]'" in demo
    assert "-e '.[test,check]'" in plan("test")
    assert "urlopen" not in plan("demo", "TORCH_INDEX=")


def test_a_release_publishes_the_distributions_that_were_tried() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    build, publish = (jobs[name]["steps"] for name in ("build", "publish"))
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in build + publish if "uses" in step)
    assert [step["run"] for step in build if "run" in step][:2] == ["make .venv/ready", ".ci/distributions dist"]
    assert "/gh-action-pypi-publish@" in publish[-1]["uses"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}, "PyPI trusts the workflow: no password is stored"


def test_contributors_have_a_hook_of_the_pinned_ruff_and_one_that_the_pages_pass() -> None:
    ruff, own = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ruff=={ruff['rev'].removeprefix('v')}" in pins
    program, *command = own["hooks"][0]["entry"].split()
    assert program == ".venv/bin/antislop"
    pages = [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))]
    found = subprocess.run(
        [sys.executable, "-m", "antislop", *command, *pages], cwd=ROOT, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert len(pages) > 30


# -- the hook of pre-commit and the action of GitHub ------------------------------------------------------------------

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def test_without_extras_scan_runs_and_what_writes_text_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("It was a testament to x.\n")
    (tmp_path / "list.json").write_text('{"group": ["a testament to"]}')
    (tmp_path / "--config=c.yaml").write_text("no-bans: true\n")
    (tmp_path / "c.yaml").write_text("quiet: true\n")
    installed = find_requirements([])
    assert not {"torch", "transformers", "huggingface-hub"} & installed

    def run(*command: str) -> tuple[int, str, str]:
        process = start_command(command, installed=installed, cwd=tmp_path)
        out, err = process.communicate()
        return process.returncode, out, err

    scan = [*HOOK["entry"].split()[1:], "--bans", "list.json", *HOOK["args"], "--config=c.yaml", "a.md"]
    assert run(*scan)[:2] == (1, "a.md:1:8: a testament to\n")
    said = "antislop: this command needs torch and transformers: pip install 'antislop-lm[hf]'\n"
    assert run("generate", "The old") == (2, "", said)


def test_in_python_the_sampler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("torch", "transformers"):
        with monkeypatch.context() as patched:
            for name in [name for name in sys.modules if name.startswith("antislop.core.sampler")]:
                patched.delitem(sys.modules, name)
            patched.setitem(sys.modules, missing, None)
            for use in (lambda: antislop.AntiSlop, antislop.tiny_model):
                with pytest.raises(antislop.InputError, match=r"^antislop\.\S+ needs torch and transformers: pip"):
                    use()


def test_the_hook_and_the_action_install_the_package_itself(tmp_path: Path) -> None:
    """pip and antislop are replaced by a script that prints its arguments."""
    assert "additional_dependencies" not in HOOK
    (step,) = ACTION["runs"]["steps"]
    assert set(step["env"]) == {"FILES", "BANS", "SOURCE"}
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNNER_TEMP": "/t", "SOURCE": str(ROOT)}
    environment["FILES"] = "docs README.md\nCHANGELOG.md\n"
    for bans, package, option in (("hf://me/slop", " huggingface_hub", " --bans hf://me/slop"), ("", "", "")):
        environment["BANS"] = bans
        done = subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, capture_output=True, text=True)
        install, scan = done.stdout.splitlines()
        assert install.endswith(f"--target /t/antislop {ROOT}{package}")
        assert scan.endswith(f"/t/antislop scan --format github{option} -- docs README.md CHANGELOG.md")


def test_the_action_imports_no_python_file_of_the_checkout(tmp_path: Path) -> None:
    """pip is asked for its version in place of an installation; antislop is that of this folder."""
    checkout, python = tmp_path / "checkout", tmp_path / "python3"
    checkout.mkdir()
    for name in ("pip", "typer", "antislop", "logging", "sitecustomize"):
        (checkout / f"{name}.py").write_text("open('ran', 'w')\n")
    (checkout / "a.md").write_text("It was a testament to x.\n")
    (tmp_path / "antislop").symlink_to(ROOT)
    python.write_text(
        f"""#!{sys.executable} -I
import os, sys
args = sys.argv[1:]
if "install" in args:
    args[args.index("install") :] = ["--version"]
os.execv(sys.executable, [sys.executable, *args])
"""
    )
    python.chmod(0o755)
    (step,) = ACTION["runs"]["steps"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "SOURCE": str(ROOT)}
    environment |= {"FILES": "a.md", "BANS": ""}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env=environment, cwd=checkout, capture_output=True, text=True
    )
    found = "::error file=a.md,line=1,col=8,title=antislop::the banned phrase “a testament to”"
    assert done.stdout.splitlines()[1:] == [found], done.stderr
    assert (done.returncode, (checkout / "ran").exists()) == (1, False)
