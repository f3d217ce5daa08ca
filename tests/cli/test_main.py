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
from antislop.cli.terminal import describe_command


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


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("--model=owner/name-1.0", "--model=owner/name-1.0"),
        ("owner/texts:stories", "owner/texts:stories"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("folder/model", "model"),
        ("folder/out.jsonl", "out.jsonl"),
        ("--prompts=folder/in.jsonl", "--prompts=in.jsonl"),
        ("/home/somebody/list.txt", "list.txt"),
        ("./owner/name", "name"),
        ("a/b/c.txt", "c.txt"),
        (r"C:\Users\somebody\list.txt", "list.txt"),
        (r"--prompts=C:\Users\somebody\in.jsonl", "--prompts=in.jsonl"),
        ("0.5", "0.5"),
    ],
)
def test_a_recorded_command_names_models_whole_and_files_without_their_folders(
    argument: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["antislop", "dataset", argument])
    assert describe_command() == f"antislop dataset {shown}"
