"""Imports point down only, torch and transformers are imported by few packages, and the public names are complete."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from types import FrameType, FunctionType
from typing import get_origin
from xml.etree import ElementTree

import pytest

import antislop
from tests.support import rooms

PACKAGE = Path(antislop.__file__).parent
REFERENCE = PACKAGE.parent / "docs" / "reference"
HOUSE = ElementTree.parse(PACKAGE.parent / "docs" / "house.svg").getroot()
"""The picture of CONTRIBUTING.md, which these tests hold: its floors, and its colors."""
MODULES = sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    """Return the full name of a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def find_imports(path: Path) -> Iterator[str]:
    """Yield the full names of all modules that a module imports, at its top or in functions."""
    for node in walk_statements(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node contains, without expressions, which are most of a module."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from walk_statements(child)


def _read_room(text: ElementTree.Element) -> str:
    return str(text.text).removesuffix(".py").replace("/", ".")


def read_floors() -> list[set[str]]:
    """Return the rooms of each floor, packages and modules on the same level, from the ground up."""
    floors: dict[int, set[str]] = {}
    for text in HOUSE.iterfind("{*}text[@font-weight='700']"):
        floors.setdefault(int(text.get("y", "")), set()).add(_read_room(text))
    return [floors[y] for y in sorted(floors, reverse=True)]


def find_rooms(label: str) -> set[str]:
    """Return the rooms with a color, by its label in the legend."""
    colors: dict[str, str | None] = {}
    for shape, text in pairwise(HOUSE):
        colors.setdefault(_read_room(text), shape.get("fill"))
    return {room for floor in FLOORS for room in floor if colors.get(room) == colors[label]}


FLOORS = [*read_floors(), {"__main__"}]
KNOWN = {name(path) for path in MODULES}
INSIDE = KNOWN - {"antislop", "antislop.core"}
UP = {
    ("core.bans", "lists"),
    ("core.trace", "explain"),
    ("core.hf", "steer"),
    ("core.sampler", "explain"),
}
"""The imports that point up, in functions that nobody calls who asked for nothing of that room. It only shrinks."""

BESIDE = {
    "engines": {"explain", "steer"},
    "serve": {"engines", "steer"},
    "datasets": {"engines", "measure"},
    "evaluation": {"datasets", "measure"},
    "tuning": {"datasets", "measure"},
    "cli": {"explain", "steer", "engines", "measure", "datasets", "tuning", "evaluation", "serve"},
}
"""The doors that a door may import."""
DOORS = {*BESIDE, *chain(*BESIDE.values())}
EXCEPTIONS = {("datasets", "steer")}
"""What a door imports beside that: this table only shrinks."""


def find_room(module: str) -> str:
    """Return the package or module of the top that a module belongs to, or that of the core."""
    _, *parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "core" else 1])


def find_floor(room: str) -> int:
    return next(floor for floor, rooms in enumerate(FLOORS) if room in rooms)


@cache
def find_uses() -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports."""
    return {
        name(path): {
            next((known for known in (used, used.rpartition(".")[0]) if known in KNOWN), "antislop")
            for used in find_imports(path)
            if used.startswith("antislop.")
        }
        - {"antislop"}  # names of the top are imported when they are used
        for path in MODULES
    }


def find_arrows() -> set[tuple[str, str]]:
    return {(find_room(module), find_room(used)) for module in INSIDE for used in find_uses()[module]}


def test_the_picture_of_the_house_has_a_room_for_each_package() -> None:
    assert sorted(set(map(find_room, INSIDE))) == sorted(chain(*FLOORS))


def test_imports_point_down() -> None:
    assert {(room, used) for room, used in find_arrows() if room != used and find_floor(used) >= find_floor(room)} == UP


def test_a_door_imports_few_other_doors() -> None:
    between = {(door, other) for door, other in find_arrows() if {door, other} <= DOORS and door != other}
    assert {(door, other) for door, other in between if other not in BESIDE.get(door, set())} == EXCEPTIONS


@pytest.fixture(scope="module")
def shown() -> list[set[str]]:
    """What a process of its own shows: the packages at first, the core's, the modules after calls, star imports."""
    core = sorted(module for module in INSIDE if find_room(module).startswith("core."))
    code = f"""
import importlib, sys, antislop
print(*dir(antislop))
print(antislop.core.trace.Trace)
[importlib.import_module(name) for name in {core}]
model, tokenizer = antislop.tiny_model()
sampler = antislop.AntiSlop(tokenizer, ["the"])
asked = {{"do_sample": True, "max_new_tokens": 12}}
sampler.generate(model, "The old house", **asked)
sampler.generate(model, "The old house", return_dict_in_generate=True, **asked)
list(sampler.stream(model, "The old house", **asked))
list(sampler.generate_many(model, ["The old house"], **asked))
print(*sys.modules)
from antislop import *
print(*dir())
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [{*line.split()} for line in ended.stdout.splitlines()]


def test_neither_the_core_nor_a_plain_call_of_it_opens_a_door(shown: list[set[str]]) -> None:
    assert "antislop.core.sampler" in shown[2]
    assert {find_room(name) for name in INSIDE & shown[2]} & DOORS == set()


def test_no_imports_go_in_circles() -> None:
    list(TopologicalSorter(find_uses()).static_order())


def imported_with(*modules: str) -> set[str]:
    """Import modules in a process of their own and return the packages that were imported with them."""
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}];"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(ended.stdout.split())


def list_modules(*rooms: str) -> list[str]:
    return sorted(module for module in INSIDE if find_room(module) in rooms)


SHOWING = [f"antislop.explain.{name}" for name in ("console", "trace_file", "html_view", "row_view")]


def test_the_white_rooms_import_no_torch() -> None:
    """Among them are the commands, before they run. What shows a trace needs none either."""
    rooms = find_rooms("no torch")
    assert {"core.bans", "core.trace", "lists", "measure", "cli"} <= rooms
    modules = [*list_modules(*rooms), *SHOWING]
    assert not imported_with(*modules) & {"torch", "transformers", "tokenizers"}


def test_the_blue_rooms_import_no_transformers() -> None:
    rooms = find_rooms("torch, no transformers")
    assert "core.loop" in rooms
    modules = [*list_modules(*rooms), "antislop.engines.contract", "antislop.engines.inferencer"]
    assert "transformers" not in imported_with(*modules)


def test_the_help_of_scan_imports_neither_list_formats_nor_the_matcher_of_tokens() -> None:
    code = "import sys, antislop.cli.scan; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    modules = set(ended.stdout.split())
    assert "antislop.core.bans.ban_list" in modules
    assert not {"antislop.lists.values", "antislop.lists.lines", "antislop.core.bans.token_matcher"} & modules


def test_a_list_is_read_without_numpy() -> None:
    """Only a search of long texts takes numpy."""
    modules = {*list_modules("core.bans", "lists")} - {"antislop.core.bans.prefilter"}
    assert not imported_with(*sorted(modules)) & {"numpy", "rich", "typer"}


def test_bans_are_found_without_torch_and_transformers() -> None:
    code = (
        "import sys, antislop; antislop.BanList(['a b']).find('a b'); antislop.default_bans();"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy imports'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_are_complete() -> None:
    assert sorted(antislop.__all__) == antislop.__all__
    for name in antislop.__all__:
        assert getattr(antislop, name).__doc__, name
        assert name in dir(antislop)
    with pytest.raises(AttributeError, match=r"^antislop has no attribute dashs: did you mean dashes\?$"):
        antislop.dashs  # noqa: B018
    assert (PACKAGE / "py.typed").is_file()


def test_the_packages_are_there_without_an_import_but_not_in_a_star_import(shown: list[set[str]]) -> None:
    """`datasets` and others have names that star imports would hide."""
    listed, trace, _, starred = shown
    packages = {package.split(".")[1] for package in WITH_PUBLIC_NAMES if package != "antislop"}
    assert packages == listed - {*antislop.__all__}
    assert "Trace" in str(trace) and "AntiSlop" in starred and not packages & starred


PACKAGES = [path for path in MODULES if path.name == "__init__.py"]
PACKAGE_NAMES = [name(path) for path in PACKAGES]
WITH_PUBLIC_NAMES = [
    package for package, path in zip(PACKAGE_NAMES, PACKAGES, strict=True) if path.with_suffix(".pyi").exists()
]


NEED_VLLM = {f"antislop.engines.vllm.{name}" for name in ("BanningScheduler", "CheckBans", "CheckRequestBans")}


@pytest.mark.parametrize("module", WITH_PUBLIC_NAMES)
def test_public_names_are_there_documented_and_in_the_reference(module: str) -> None:
    owner = importlib.import_module(module)
    assert sorted(owner.__all__) == sorted(set(owner.__all__))
    pages = "".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    for public in owner.__all__:
        if f"{module}.{public}" in KNOWN:
            continue
        # The rooms below the doors also show what the doors of this package take, and nobody else is promised.
        is_promised = not module.startswith(("antislop.core", "antislop.lists"))
        is_listed = f"<!-- names of {module} -->" in pages or re.search(
            rf"^::: {module}\.{public}$", pages, re.MULTILINE
        )
        assert is_listed or not is_promised, public
        assert public in dir(owner)
        if f"{module}.{public}" in NEED_VLLM and find_spec("vllm") is None:
            continue
        value = getattr(owner, public)
        is_alias = get_origin(value) is not None or not isinstance(value, (type, FunctionType))
        assert value.__doc__ or is_alias or not is_promised, public
    with pytest.raises(AttributeError, match="attribute Elara"):
        owner.Elara  # noqa: B018


@pytest.mark.parametrize("package", PACKAGE_NAMES)
def test_a_package_has_public_names_or_says_that_it_is_internal(package: str) -> None:
    owner = importlib.import_module(package)
    assert ("__all__" in vars(owner)) != ("Internal" in str(owner.__doc__))


def test_a_package_with_public_names_imports_nothing_of_its_own() -> None:
    packages = sorted({*PACKAGE_NAMES} & {*WITH_PUBLIC_NAMES})
    code = f"import importlib, sys; [importlib.import_module(name) for name in {packages}]; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {module for module in ended.stdout.split() if module.startswith("antislop")} == {*packages}


ROOT = PACKAGE.parent
SOURCES = sorted(
    path
    for folder in (PACKAGE, *map(ROOT.joinpath, ("data", "docs", "eval", "examples", "tests")))
    for path in folder.rglob("*.py")
)
LINES_PER_MODULE, LINES_PER_FUNCTION, PARAMETERS = 500, 50, 10
MANY_PARAMETERS = {"antislop/core/sampler.py:AntiSlop.__init__"}
"""The options of the sampler: a keyword for each, under the names of the samplers that it replaces."""


def find_functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the qualified name and the definition of each function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{child.name}", child
        is_named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from find_functions(child, f"{prefix}{child.name}." if is_named else prefix)


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count named parameters, without self."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def list_modules_run(function: Callable[[], object]) -> set[str]:
    """Return the modules of the package in which a function runs during a call, imports left out."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and PACKAGE in path.parents:
            modules.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return modules


def test_a_plain_call_runs_in_few_modules() -> None:
    """What nobody asked for is not even looked at: controllers, chats, assistants, grammars, facts of a trace."""
    import torch

    model, tokenizer = antislop.tiny_model()
    inputs = tokenizer("The old house at the edge of the village", return_tensors="pt")

    def write(bans: list[str]) -> set[str]:
        sampler = antislop.AntiSlop(tokenizer, bans)
        for _ in range(2):  # what a sampler runs once is not counted
            torch.manual_seed(0)
            modules = list_modules_run(lambda: sampler.generate(model, **inputs, do_sample=True, max_new_tokens=12))
        return modules

    with_violation, without = write(["the", "and"]), write(["xyzzy"])
    assert {"core/loop/ledger.py", "core/loop/judge.py"} <= with_violation
    assert len(with_violation) <= 36 and len(without) <= 35, (sorted(with_violation), sorted(without))


@pytest.mark.filterwarnings("default:long:UserWarning")
def test_modules_are_short() -> None:
    """Long ones are shown, and pass. Files of tests may be longer; what they share is in `tests.support`."""
    paths = [path for path in SOURCES if not path.name.startswith("test_")]
    lengths = {path.relative_to(ROOT).as_posix(): count_lines(path) for path in paths}
    if long := {path: length for path, length in lengths.items() if length > LINES_PER_MODULE}:
        warnings.warn(f"long: {long}", stacklevel=1)


@pytest.mark.filterwarnings("default:long:UserWarning")
def test_functions_are_short_and_take_few_parameters() -> None:
    """Long ones are shown, and pass. A parameter of a command is an option of it, and counts there only."""
    long, wide = set(), set()
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        for qualified, function in find_functions(parse(path)):
            if (function.end_lineno or 0) - function.lineno >= LINES_PER_FUNCTION:
                long.add(f"{place}:{qualified}")
            if count_parameters(function) > PARAMETERS and not place.startswith("antislop/cli/"):
                wide.add(f"{place}:{qualified}")
    if long:
        warnings.warn(f"long: {long}", stacklevel=1)
    assert wide == MANY_PARAMETERS


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_each_room_keeps_to_its_lines() -> None:
    """A room that has become a lot smaller lowers its number, too."""
    lines = Counter[str]()
    for path in MODULES:
        if (module := name(path)) in INSIDE:
            lines[find_room(module)] += count_lines(path)
    assert rooms.LINES.keys() == lines.keys()
    assert {room: lines[room] for room, most in rooms.LINES.items() if lines[room] > most} == {}
    assert {room: lines[room] for room, most in rooms.LINES.items() if most - lines[room] > 100} == {}
    assert rooms.POT - 100 < sum(lines.values()) <= rooms.POT


def test_few_names_lie_at_the_counter() -> None:
    """A door takes from the core and from lists what these rooms show, with a stub if they are packages, no more."""
    doors = [path for path in MODULES if (module := name(path)) in INSIDE and find_room(module) in DOORS]
    imported = {used for path in doors for used in find_imports(path)}
    assert {used for used in imported if used.startswith("antislop.lists.") and used.count(".") > 2} == set()
    taken = {used for used in imported if used.startswith("antislop.core.")}
    assert {used for used in taken if used in KNOWN or used.count(".") > 3} == set()
    assert rooms.NAMES_AT_THE_COUNTER - 10 < len(taken) <= rooms.NAMES_AT_THE_COUNTER


def test_functions_are_not_fragments() -> None:
    functions = sum(1 for path in MODULES for _ in find_functions(parse(path)))
    share = 1000 * functions / sum(map(count_lines, MODULES))
    assert rooms.FUNCTIONS_PER_1000_LINES - 2 < share <= rooms.FUNCTIONS_PER_1000_LINES


def test_each_class_has_a_name_of_its_own() -> None:
    owners: dict[str, list[str]] = {}
    for path in MODULES:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {public: paths for public, paths in owners.items() if len(paths) > 1} == {}


def test_no_test_file_imports_another() -> None:
    """What they share is in `tests.support`."""
    files = {path: find_imports(path) for path in SOURCES if path.is_relative_to(ROOT / "tests")}
    others = re.compile(r"tests\.(\w+\.)*test_\w+")
    assert {path.name: used for path, names in files.items() for used in names if others.match(used)} == {}


def test_examples_in_docstrings_run() -> None:
    """All lines with a prompt but those that are marked as skipped."""
    written = tried = 0
    for path in MODULES:
        prompts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith(">>> ")]
        written += sum("doctest: +SKIP" not in line for line in prompts)
        if prompts:
            result = doctest.testmod(importlib.import_module(name(path)))
            assert result.failed == 0, path
            tried += result.attempted - getattr(result, "skipped", 0)
    assert tried == written > 0
