"""Check another package's source code: whether a release has all names that bans use, as a table lists them.

The package is not imported: its source code is that of the installed package, or in CI, of each release's wheel. The
table lists names by module and class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from zipfile import Path as ZipPath

import yaml


def read_names(table: Path) -> dict[str, dict[str, str]]:
    """Return the names in a table, by module and class."""
    names: dict[str, dict[str, str]] = yaml.safe_load(table.read_text(encoding="utf-8"))
    return names


def find_differences(folder: Path | ZipPath, table: Path) -> Iterator[str]:
    """Yield a sentence for each name that a release lacks or defines differently. folder: the package's folder."""
    for module, kinds in read_names(table).items():
        paths = [folder.joinpath(module.replace(".", "/") + end) for end in (".py", "/__init__.py")]
        body = [node for path in paths if path.is_file() for node in ast.parse(path.read_text(encoding="utf-8")).body]
        classes = {node.name: node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        for kind, names in kinds.items():
            if kind not in classes:
                yield f"it has no {kind} in {folder.name}.{module}"
                continue
            found = dict(_list_names(classes[kind]))
            for name in names.split():
                called, _, parameters = name.rstrip(")").partition("(")
                if called not in found:
                    yield f"it has no {kind}.{called}"
                elif parameters not in ("", found[called]):
                    yield f"{kind}.{called} takes ({found[called]})" if called else f"{kind} is made of ({found['']})"


def _list_names(made: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield (name, parameters) of the methods and attributes of a class, and ("", fields or parameters) of it all."""
    if isinstance(made, ast.FunctionDef):
        yield "", ",".join(each.arg for each in made.args.args)
        return
    targets = (node.target for node in made.body if isinstance(node, ast.AnnAssign))
    fields = [target.id for target in targets if isinstance(target, ast.Name)]
    yield from (("", ",".join(fields)), *((name, "") for name in fields))
    for node in ast.walk(made):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield node.attr, ""  # an attribute that a method sets
    for statement in made.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [each.arg for each in (*statement.args.args, *statement.args.kwonlyargs)]
            yield statement.name, ",".join(name for name in names if name not in ("self", "cls"))
        elif isinstance(statement, ast.Assign):
            yield from ((each.id, "") for each in statement.targets if isinstance(each, ast.Name))
