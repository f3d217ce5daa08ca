"""Run the code of documents as a reader would who copies one block after the other into a shell or an interpreter.

Python blocks run; blocks with a title, which need a hub or a server, are only compiled, except for blocks with the
title "with PACKAGE", which run if it is installed. Commands of `antislop` run, but commands that need another model, a
server, a cluster or the hub are only parsed. For other commands, the targets of make, extras and modules that they name
have to exist.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.testing import CliRunner

from antislop.cli.main import app, load_command

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ABSENT = re.compile(
    r"^[A-Z]{2,}$|^(ray|openai)$|^https?:|^--(push-to-hub|device-map|chat|system|install-completion)$|/.*-Instruct$"
)
"""Arguments that no test can provide: placeholders such as NAME, clusters, servers, the hub, models of chats."""

_FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```", flags=re.DOTALL | re.MULTILINE)
_STORY = "It's not just a dance; it's a testament to her will.\nA whisper, barely above a whisper, hung in the air.\n"


class Block(NamedTuple):
    """A block of code of a document. line: the number of its first line. title: the text after the language."""

    path: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def needs(self) -> str | None:
        """The package without which Python can't run, from a title "with …"."""
        match = re.fullmatch(r'title="with (\w+)"', self.title)
        return match[1] if match else None

    def compile(self) -> Any:
        """Compile Python; errors name the lines of the document."""
        return compile("\n" * (self.line - 1) + self.text, str(self.path), "exec")


def read_blocks(path: Path, *languages: str) -> list[Block]:
    """Return the blocks of a document in some languages, those in tabs and lists too."""
    text = path.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        indent, language, title, code = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        blocks.append(Block(path, line, language, title.strip(), re.sub(f"^{indent}", "", code, flags=re.MULTILINE)))
    return [block for block in blocks if block.language in languages]


def read_prose(path: Path) -> str:
    """Return a document without its blocks of code."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def prepare_folder(folder: Path) -> None:
    """Write the files that documents name: lists, prompts, texts, each as short as can be."""
    (folder / "list.txt").write_text("a testament to\nbarely above a whisper\nthe old house\n", encoding="utf-8")
    (folder / "list.json").write_text(json.dumps([["a testament to", 0.5], ["delve", 0.0]]), encoding="utf-8")
    settings = "prompts: prompts.txt\nout: set.jsonl\nmax-new-tokens: 24\n"
    (folder / "settings.yaml").write_text(settings, encoding="utf-8")
    for name in ("story.txt", "page.md"):
        (folder / name).write_text(_STORY, encoding="utf-8")
    (folder / "prompts.txt").write_text("The old house\nOne day\n", encoding="utf-8")
    prompts = [{"id": str(number), "prompt": prompt} for number, prompt in enumerate(["The old house", "One day"])]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts), encoding="utf-8")
    pair = {"prompt": "One day", "chosen": " she left.", "rejected": " she would delve into it."}
    (folder / "dpo.jsonl").write_text(f"{json.dumps(pair)}\n" * 2, encoding="utf-8")
    (folder / "folder").mkdir()
    (folder / "folder" / "part.jsonl").write_text(json.dumps({"question": "Who came in?"}) + "\n", encoding="utf-8")
    for name in ("out", "before", "after", "a", "b"):
        lines = [{"key": str(number), "arm": "plain", "response": _STORY * (number + 2)} for number in range(3)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a shell block as arguments; each side of a pipe is one."""
    for line in block.text.replace("\\\n", " ").splitlines():
        arguments = shlex.split(line, comments=True)
        while "|" in arguments:
            yield arguments[: arguments.index("|")]
            arguments = arguments[arguments.index("|") + 1 :]
        if arguments:
            yield arguments


def run_command(arguments: list[str]) -> None:
    """Run a command of `antislop`; for other commands, check that the things they name exist."""
    program, *rest = arguments
    if program != "antislop":
        check_command(program, rest)
    elif rest[0] == "serve" or any(map(ABSENT.search, rest)) or "-" in rest[1:] or {"<", ">"} & set(rest):
        parse_command(rest)
    else:
        result = CliRunner().invoke(app, [*rest, *_shorten(rest)])
        allowed = {0, 1} if rest[0] in ("scan", "lint") else {0}
        too_small = rest[0] == "bans-from" and " is left (" in result.output  # of the texts that a test makes
        assert result.exit_code in allowed or too_small, f"{shlex.join(arguments)}: {result.output}"


def parse_command(arguments: list[str]) -> None:
    """Parse the arguments of a command without running it: all options exist, and their values fit."""
    for sign in ("<", ">"):
        if sign in arguments:
            arguments = arguments[: arguments.index(sign)]
    if arguments[0].startswith("--"):
        assert arguments[0] in ("--help", "--version", "--install-completion")
        return
    command = load_command(arguments[0])
    with contextlib.suppress(typer.Exit):
        command.make_context(arguments[0], arguments[1:])


def check_command(program: str, arguments: list[str]) -> None:
    """Check that the targets, extras or modules that another program's command names exist."""
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert arguments[0] in targets, f"make {arguments[0]}"
    elif program == "pip":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extras in re.findall(r"\[([a-z,]+)\]", " ".join(arguments)):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, flags=re.MULTILINE), f"the extra {extra}"
    elif program.startswith("python") and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), arguments[1]
    elif program.startswith("python"):
        ast.parse((ROOT / arguments[0]).read_text(encoding="utf-8"))
    else:
        assert program in ("git", "vllm", "lm_eval", "llama-server", "ray", "cd", "export", "docker"), (
            f"unknown: {program}"
        )


def _shorten(arguments: list[str]) -> list[str]:
    """Return options that make a command quick, since a short run tests the same."""
    if arguments[0] == "tune":
        return ["--batch-size", "4", "--epochs", "2"]  # for the few rows of short texts
    writes = arguments[0] in ("generate", "dataset", "eval") and "--outputs" not in arguments
    return ["--max-new-tokens", "24"] if writes and "--max-new-tokens" not in arguments else []
