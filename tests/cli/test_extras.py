"""A command that lacks a package names the smallest extra that brings it, before the work begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from antislop.cli import tune
from antislop.errors import DISTRIBUTION
from antislop.measure.languages import ENGLISH
from tests.support.commands import invoke

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TUNING = ("accelerate", "matplotlib", "peft")
DPO = (*TUNING, "datasets", "trl")
LACKING = [
    ("wordfreq", ("wordfreq",), ("lint", "texts.txt")),
    ("wordfreq", ("wordfreq",), ("profile", "texts.txt", "-o", "new.json")),
    ("wordfreq", ("wordfreq",), ("bans-from", "profile.json")),
    ("matplotlib", ("matplotlib",), ("eval", "-o", "new", "--outputs", "plain=texts.txt")),
    ("datasets", ("datasets", "pyarrow"), ("dataset", "texts.txt", "-o", "new", "--to-parquet")),
    ("datasets", ("datasets", "pyarrow"), ("dataset", "texts.txt", "-o", "new", "--push-to-hub", "me/it")),
    *((name, TUNING, ("tune", "pairs.jsonl", "-o", "new")) for name in TUNING),
    *((name, DPO, ("tune", "pairs.jsonl", "-o", "new", "--loss", "dpo")) for name in ("datasets", "trl")),
]
"""The missing package, all packages beyond the base that the command needs, and the command."""


def find_extra(packages: tuple[str, ...]) -> str:
    """Return the extra with the fewest requirements of those that bring all packages."""
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    own = {name: {part.partition(">")[0].partition("[")[0] for part in parts} for name, parts in extras.items()}
    sizes = {name: len(parts) + len(own["hf"]) * (DISTRIBUTION in parts) for name, parts in own.items()}
    return min((name for name, parts in own.items() if parts >= {*packages}), key=sizes.__getitem__)


@pytest.mark.parametrize(("package", "needed", "command"), LACKING, ids=lambda value: str(value)[:40])
def test_a_missing_package_is_named_with_its_extra_before_the_work_begins(
    package: str, needed: tuple[str, ...], command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("A fathomless testament to a fathomless whisper.\n" * 9, encoding="utf-8")
    if command[0] == "bans-from":
        assert invoke("profile", "texts.txt", "-o", "profile.json").exit_code == 0
    monkeypatch.setitem(sys.modules, package, None)
    vars(ENGLISH).pop("frequencies", None)  # which an earlier test has loaded
    monkeypatch.setattr(tune, "import_module", lambda name: pytest.fail(f"{name} was imported, and torch with it"))
    said = invoke(*command, columns=300).stderr
    assert f"pip install '{DISTRIBUTION}[{find_extra(needed)}]'" in said, said
    assert not Path("new").exists()


def test_a_profile_says_what_it_lacks_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    path = tmp_path / "torn.jsonl"
    path.write_text("{", encoding="utf-8")
    first, second = invoke("profile", str(path), "-o", str(tmp_path / "new.json")).stderr.splitlines()
    assert "wordfreq is not installed" in first and "torn.jsonl:1" in second
