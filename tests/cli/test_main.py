"""Typer sees the options of commands as they are written, on every supported Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from antislop.cli.main import expand_options


@dataclass(frozen=True)
class Options:
    """A group of options."""

    names: Annotated[list[str] | None, typer.Option("--name")] = None


def command(
    options: Options,
    paths: Annotated[list[Path] | None, typer.Option("--path", "-p")] = None,
    number: Annotated[int | None, typer.Option("--number", min=1)] = None,
) -> int:
    typer.echo(f"{options.names} {[str(path) for path in paths or []]} {number}")
    return 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "None [] None"),
        (["-p", "a", "--path", "b", "--name", "c", "--name", "d", "--number", "3"], "['c', 'd'] ['a', 'b'] 3"),
    ],
)
def test_options_may_have_none_as_their_default(arguments: list[str], expected: str) -> None:
    app = typer.Typer()
    run: Callable[..., int] = expand_options(command)
    app.command()(run)
    assert CliRunner().invoke(app, arguments).stdout.strip() == expected
