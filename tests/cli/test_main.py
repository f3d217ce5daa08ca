"""Typer sees the options of commands as they are written, on every supported Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from antislop.cli.main import COMMANDS, app, expand_options
from antislop.cli.options import GenerationOptions, ModelOptions
from antislop.cli.terminal import describe_command
from antislop.cli.tune import AutoOptions, BalanceOptions, WeightOptions


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
def test_options_and_those_of_a_group_may_have_none_as_their_default(arguments: list[str], expected: str) -> None:
    single = typer.Typer()
    run: Callable[..., int] = expand_options(command)
    single.command()(run)
    assert CliRunner().invoke(single, arguments).stdout.strip() == expected
    shown = CliRunner().invoke(single, ["--help"]).stdout
    assert all(name in shown for name in ("--name", "--path", "--number"))


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


EXAMPLES = {
    "generate": (
        "x --greedy --top-k 2",
        "x --temperature 0 --min-p 0.1",
        "x --system y",
        "x --chat-template-kwargs {}",
        "x --no-bans --compare",
        "- --bans -",
        "x --no-bans --bans y",
        "x --group y",
        "x --language de",
        "x --grammar y.lark --json-schema z",
        "x --dry-allowed-length 3",
        "x --xtc-threshold 0.2",
        "x --min-keep 3 --min-p 0",
    ),
    "scan": (
        "x - --bans -",
        "x --no-bans --bans y",
        "x --group y",
        "x --language de",
        "x --no-bans",
        "x -g *.md",
        "x -C 1 --count",
        "x --by-ban --count",
        "x --format sarif --count",
    ),
    "profile": ("x --compare y z", "--compare y z -o w.svg", "", "x", "x -o y.json --as-baseline --also-human z"),
    "bans-from": ("x --no-names --names-only", "x --names words --names-only"),
    "dataset": (
        "x -o y.jsonl --push-to-hub me/z",
        "x -o y --n 2 --temperature 0",
        "x -o y --dry-sequence-breaker z",
        "x -o y --xtc-threshold 0.2",
        "x -o y --min-keep 3 --min-p 0",
        "x -o y --workers 2",
        "x -o y --base-url z",
        "x -o y --tp 2",
        "x -o y --model z --engine openai --base-url http://127.0.0.1:9/v1 --dtype float16",
        "x -o y --engine openai --base-url http://127.0.0.1:9/v1",
        "x -o y --model z --engine openai --base-url http://127.0.0.1:9/v1 --grammar a",
        "x -o y --engine vllm --device cpu",
        "x -o y --engine vllm --xtc-probability 0.5",
        "x -o y --engine vllm --json-schema z",
        "x -o y --json-schema z --grammar a",
        "x -o y --no-bans --bans z",
        "x -o y --group z",
        "x -o y --language de",
        "x -o y --no-bans",
        "x -o y --pairs-format dpo",
        "x -o y --pairs z --pairs-per-token 3",
        "x -o y --pairs z --arms plain",
        "x -o y --pairs z --json-schema a",
    ),
    "tune": (
        "x -o y --n 2",
        "-o y",
        "x -o y --auto",
        "-o y --auto",
        "-o y --auto --prompts z --force",
        "x -o y --full --merge",
        "x -o y --device-map auto",
        "x -o y --beta 1",
        "x -o y --loss dpo --min-chosen 3",
        "x -o y --min-chosen 9",
        "-o y --auto --prompts z --bans -",
        "x -o y --no-bans --bans z",
        "x -o y --group z",
        "x -o y --language de",
        "-o y --auto --prompts z --no-bans",
        "x -o y --no-bans",
    ),
    "export": ("-o y --no-bans --bans x", "-o y --group x", "-o y --language de", "-o y --no-bans"),
    "fix": (
        "x",
        "- --bans - --model y",
        "x --no-bans --bans z --model y",
        "x --group z --model y",
        "x --language de --model y",
        "x --no-bans --model y",
        "- --write --model y",
        "x --batch-size 2 --model y",
        "x.jsonl --model y",
    ),
    "serve": (
        "--tokenizer x",
        "--upstream x",
        "--upstream x --tokenizer y --batch-size 2",
        "--reload-bans --bans -",
        "--no-bans --bans x",
        "--group x",
        "--language de",
    ),
    "eval": (
        "-o y --no-bans --bans x",
        "-o y --group x",
        "-o y --language de",
        "-o y --no-bans",
        "-o y --outputs plain=x --force",
        "-o y --outputs plain=x --dtype float16",
        "-o y --n 2 --temperature 0",
        "-o y --dry-penalty-last-n 9",
        "-o y --xtc-threshold 0.2",
        "-o y --min-keep 3 --min-p 0",
    ),
}
"""Arguments for each conflict of a command's table."""
CONFLICTS = {name: import_module(f"antislop.cli.{COMMANDS[name].module}").CONFLICTS for name in EXAMPLES}


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        (name, arguments, sentence)
        for name, conflicts in CONFLICTS.items()
        for arguments, sentence in zip(EXAMPLES[name], conflicts, strict=True)
    ],
)
def test_options_that_do_not_go_together_are_refused_in_one_sentence(
    command: str, arguments: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, *arguments.split()])
    assert (result.exit_code, result.stdout, [*tmp_path.iterdir()]) == (2, "", [])
    pattern = re.sub(r"\\\{.*?\}", "(.+)", re.escape(f"antislop: {sentence}\n"))
    said = re.fullmatch(pattern, result.stderr)
    assert said, result.stderr
    assert {*said.groups()} <= {*arguments.split(), "transformers", "ftpo"}  # the defaults of --engine and --loss


def test_no_option_of_a_group_that_has_no_effect_is_forgotten() -> None:
    def list_refused(command: str, phrase: str) -> set[str]:
        rows = CONFLICTS[command].items()
        return {name for sentence, (options, _) in rows if phrase in sentence for name in options.split()}

    def list_names(*groups: type) -> set[str]:
        return {field.name for group in groups for field in fields(group)}  # type: ignore[arg-type]

    assert list_names(GenerationOptions) - {"seed"} <= list_refused("eval", "with --outputs")
    assert list_names(BalanceOptions, WeightOptions) == list_refused("tune", "with --loss")
    assert list_names(AutoOptions) - {"auto"} == list_refused("tune", "without --auto")
    loading = list_names(ModelOptions) - {"model", "revision", "trust_remote_code"}
    assert loading < list_refused("serve", "with --upstream")
    assert loading == list_refused("eval", "without --model") == list_refused("dataset", "on a server")
