"""Imports point down only, what needs no torch stays without it, and the public surface is what it says."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import antislop

PACKAGE = Path(antislop.__file__).parent

LAYERS = (
    {"folding", "chats", "arms", "whole_files", "display", "regex_size", "characters", "quantiles"},
    {"automaton", "record_files"},
    {"sources"},
    {"patterns", "regexes", "scopes", "prompts", "texts"},
    {"sequences", "searches"},
    {"bans", "words"},
    {"rules", "entries", "requests"},
    {"detector", "notation", "json_lists", "yaml_lists", "csv_lists", "files"},
    {"formats", "matcher"},
    {"lists"},
    {"events", "ledger", "inference", "spelling", "completions", "rewindable", "memory", "support"},
    {"lint"},
    {"row", "report", "streaming", "records"},
    {"pairs"},
    {"walker", "criteria", "processors"},
    {"lockstep"},
    {"decoding"},
    {"render", "engine", "rowwise", "drafts", "candidates"},
    {"arguments", "layers", "snapshots", "vocabulary"},
    {"fixed", "originals"},
    {"cache", "lengths", "settings"},
    {"language_model", "inferencer"},
    {"run"},
    {"sampler", "bundled", "bootstrap", "scales", "continuations"},
    {"contrasts", "diversity"},
    {"repetition"},
    {"metrics"},
    {"humans"},
    {"grams"},
    {"sketches"},
    {"counting"},
    {"baselines"},
    {"overuse"},
    {"profiles"},
    {"profile_bans", "profile_figures"},
    {"endpoint"},
    {"outputs", "quantities", "preferences"},
    {"datasets", "publishing", "evaluation"},
    {"served", "likelihood"},
    {"terminal"},
    {"machine", "options", "pretrained", "progress", "scanning"},
    {"list_commands", "profile_command"},
    {"__init__"},
    {"app", "cards", "cluster"},
    {"figures"},
    {"page"},
    {"dataset_command", "eval_command", "measure_command"},
    {"cli"},
    {"__main__"},
)
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
TORCH_FREE = {
    "quantiles",
    "folding",
    "automaton",
    "patterns",
    "characters",
    "regex_size",
    "regexes",
    "scopes",
    "sequences",
    "searches",
    "bans",
    "rules",
    "detector",
    "entries",
    "notation",
    "json_lists",
    "yaml_lists",
    "csv_lists",
    "files",
    "formats",
    "lists",
    "matcher",
    "events",
    "rewindable",
    "completions",
    "report",
    "streaming",
    "records",
    "pairs",
    "render",
    "spelling",
    "lint",
    "scanning",
    "terminal",
    "list_commands",
    "pretrained",
    "dataset_command",
    "cards",
    "publishing",
    "record_files",
    "whole_files",
    "display",
    "sources",
    "chats",
    "prompts",
    "texts",
    "words",
    "requests",
    "arms",
    "options",
    "progress",
    "machine",
    "outputs",
    "quantities",
    "evaluation",
    "figures",
    "page",
    "eval_command",
    "bootstrap",
    "scales",
    "contrasts",
    "diversity",
    "repetition",
    "metrics",
    "humans",
    "measure_command",
    "grams",
    "sketches",
    "counting",
    "baselines",
    "overuse",
    "profiles",
    "profile_bans",
    "profile_figures",
    "profile_command",
    "app",
    "cli",
    "__init__",
}
TRANSFORMERS = {
    "arguments",
    "continuations",
    "likelihood",
    "candidates",
    "run",
    "fixed",
    "layers",
    "snapshots",
    "originals",
    "lengths",
    "cache",
    "language_model",
    "settings",
    "criteria",
    "processors",
    "memory",
    "vocabulary",
    "sampler",
    "endpoint",
    "support",
    "bundled",
    "terminal",
    "list_commands",
    "pretrained",
    "dataset_command",
    "datasets",
    "served",
    "publishing",
    "prompts",
    "requests",
    "arms",
    "options",
    "progress",
    "machine",
    "outputs",
    "quantities",
    "evaluation",
    "figures",
    "page",
    "eval_command",
    "cli",
}


def imports(module: str, *, at_run_time: bool = False) -> set[str]:
    """Full names of what a module imports; at run time only those outside functions and `if TYPE_CHECKING`."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    if at_run_time:
        nodes = list(tree.body)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(LEVEL)


@pytest.mark.parametrize("module", sorted(set(LEVEL) - {"__init__", "cli", "__main__"}))
def test_imports_point_down(module: str) -> None:
    used = {name.split(".")[1] for name in imports(module) if name.startswith("antislop.")} & set(LEVEL)
    assert all(LEVEL[name] < LEVEL[module] for name in used), used


@pytest.mark.parametrize("module", sorted(LEVEL))
def test_only_the_border_knows_transformers(module: str) -> None:
    if module not in TRANSFORMERS:
        assert not {name.split(".")[0] for name in imports(module)} & {"transformers", "tokenizers"}


@pytest.mark.parametrize("module", sorted(TORCH_FREE))
def test_torch_free_modules_stay_torch_free(module: str) -> None:
    assert "torch" not in {name.split(".")[0] for name in imports(module, at_run_time=True)}


FILLED_AT_RANDOM = {"rand", "randn", "randint", "randperm", "normal"}


@pytest.mark.parametrize("module", sorted(set(LEVEL) - TORCH_FREE))
def test_whoever_draws_from_a_generator_says_on_which_device(module: str) -> None:
    """Without it torch draws on the CPU, and refuses a generator of another device."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in FILLED_AT_RANDOM:
            given = {keyword.arg for keyword in node.keywords}
            assert "generator" not in given or "device" in given, f"{module}.py:{node.lineno}"


def test_bans_are_found_without_torch_and_transformers() -> None:
    code = (
        "import sys, antislop; antislop.BanList(['a b']).find('a b'); antislop.default_bans();"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy imports'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_surface_is_all_there_and_all_there_is() -> None:
    assert sorted(antislop.__all__) == antislop.__all__
    for name in antislop.__all__:
        assert getattr(antislop, name).__doc__, name
        assert name in dir(antislop)
    with pytest.raises(AttributeError, match="no attribute 'Elara'"):
        antislop.Elara  # noqa: B018
    assert (PACKAGE / "py.typed").is_file()


def test_examples_in_docstrings_run() -> None:
    import doctest

    tried = 0
    for module in sorted(set(LEVEL) - {"__main__"}):
        name = "antislop" if module == "__init__" else f"antislop.{module}"
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        tried += result.attempted
    assert tried >= 5
