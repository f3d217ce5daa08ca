"""Write the page of all commands and options from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple, get_type_hints

MARK = "<!-- all commands -->"


class Row(NamedTuple):
    """An argument or an option: the table that it belongs to, its names with its value, and its help."""

    table: tuple[int, str]
    names: str
    about: str


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands in the place of the mark."""
    return (
        markdown.replace(MARK, "\n".join(describe_commands()))
        if MARK in markdown
        else markdown
    )


def describe_commands() -> Iterator[str]:
    """Yield the page, command by command."""
    from antislop.cli.main import COMMANDS, load_command

    for name, command in COMMANDS.items():
        function = inspect.unwrap(load_command(name).callback)
        rows = sorted(_read_rows(function), key=lambda row: row.table[0])
        usage = [
            "antislop",
            name,
            *(row.names for row in rows if row.table[0] == 0),
            "[OPTIONS]",
        ]
        yield f"## antislop {name} {{ #{name} }}\n\n```text\n{' '.join(usage)}\n```\n\n{inspect.getdoc(function)}\n"
        yield (
            "```sh\n"
            + "\n".join(command.examples)
            + f"\n```\n\n{command.status}\n"
        )
        for table, group in groupby(rows, key=lambda row: row.table):
            yield f"| {table[1]} | |\n|---|---|"
            yield from (
                f"| `{row.names}` | {_escape(row.about)} |" for row in group
            )
            yield ""


def _read_rows(function: Any) -> Iterator[Row]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = (
            hints[name]
            if isinstance(parameter.annotation, str)
            else parameter.annotation
        )
        info = hint.__metadata__[0]
        is_argument = type(info).__name__ == "ArgumentInfo"
        declared = [
            part
            for part in (info.default, *(info.param_decls or ()))
            if str(part).startswith("-")
        ]
        names = sorted(
            declared or ["--" + name.rstrip("_").replace("_", "-")],
            key=len,
            reverse=True,
        )
        if is_argument:
            shown, table = info.metavar, (0, "Arguments")
        else:
            shown = f"{', '.join(names)} {info.metavar}".strip()
            table = (
                (2, info.rich_help_panel)
                if info.rich_help_panel
                else (1, "Options")
            )
        about = [
            info.help or "",
            _describe_default(parameter.default, info, is_argument),
        ]
        yield Row(table, shown, " ".join(filter(None, about)))


def _describe_default(default: Any, info: Any, is_argument: bool) -> str:
    if default is inspect.Parameter.empty:
        return "" if is_argument else "Required."
    if isinstance(info.show_default, str):
        default = info.show_default
    return "" if default is None or default is False else f"Default: {default}."


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
