"""Write the page of all commands and options from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

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
    from antislop.cli.examples import EPILOGS, EXAMPLES
    from antislop.cli.main import COMMANDS, load_command

    for name in COMMANDS:
        function = inspect.unwrap(load_command(name).callback)
        rows = sorted(_read_rows(function), key=lambda row: row.table[0])
        usage = [
            "antislop",
            name,
            *(row.names for row in rows if row.table[0] == 0),
            "[OPTIONS]",
        ]
        yield f"## antislop {name} {{ #{name} }}\n\n```text\n{' '.join(usage)}\n```\n\n{inspect.getdoc(function)}\n"
        status = EPILOGS[name].partition("\n\n")[2]
        yield "```sh\n" + "\n".join(EXAMPLES[name]) + f"\n```\n\n{status}\n"
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
        kind, info = hint.__origin__, hint.__metadata__[0]
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
        value = info.metavar or _name_value(kind)
        if is_argument:
            shown, table = (
                value if info.metavar else name.upper(),
                (0, "Arguments"),
            )
        else:
            shown = ", ".join(names) + (f" {value}" if value else "")
            table = (
                (2, info.rich_help_panel)
                if info.rich_help_panel
                else (1, "Options")
            )
        about = [
            info.help or "",
            _describe_choices(kind),
            _describe_default(parameter.default, info, is_argument),
        ]
        yield Row(table, shown, " ".join(filter(None, about)))


def _name_value(kind: Any) -> str:
    """Return what a value looks like; nothing for a switch, whose value is its presence."""
    kind = _strip_none(kind)
    if kind is bool:
        return ""
    return {int: "N", float: "X", Path: "FILE"}.get(
        kind, "NAME" if _choices(kind) else "TEXT"
    )


def _strip_none(kind: Any) -> Any:
    """Return T for `T | None`, and for `list[T]`."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    return (
        kind
        if get_origin(kind) is Literal or not parts
        else _strip_none(parts[0])
    )


def _describe_choices(kind: Any) -> str:
    choices = [f"`{choice}`" for choice in _choices(_strip_none(kind))]
    return f"{', '.join(choices[:-1])} or {choices[-1]}." if choices else ""


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return (
        [str(choice.value) for choice in kind]
        if isinstance(kind, type) and issubclass(kind, Enum)
        else []
    )


def _describe_default(default: Any, info: Any, is_argument: bool) -> str:
    if default is inspect.Parameter.empty:
        return "" if is_argument else "Required."
    default = (
        info.show_default
        if isinstance(info.show_default, str)
        else getattr(default, "value", default)
    )
    is_off = default is None or default is False or default in ("", [])
    return "" if is_off else f"Default: {default}."


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
