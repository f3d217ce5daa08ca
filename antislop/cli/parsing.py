"""How commands read their arguments: names of options, options in conflict, files of settings, mistakes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperCommand

from antislop.errors import InputError, first_line, suggest

if TYPE_CHECKING:
    from yaml import Node

PROJECT = Path("pyproject.toml")
"""The file whose table [tool.antislop] has the settings of `scan` if --config is not passed."""
_ADVICE = "write a line name: value for each option"
_PLACES = "antislop.places"
"""The key in a context's `meta` under which the places of settings in their file are kept, by parameter."""
MAX_SETTINGS = 100_000
"""The most characters of a file of settings, which takes three seconds at most to parse."""
MAX_LINE = 2000
"""The most characters of a line of pyproject.toml."""
MAX_DEPTH = 100
"""How deep values in a file of settings may be nested."""


class ForgivingCommand(TyperCommand):
    """A command that silently accepts --max_new_tokens for --max-new-tokens, and arguments as options: --pairs FILE."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each option into its section of the help, with its default, or with "required".

        Errors name the ranges of options; the help does not. No line ends right after "default:".
        """
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        params: list[Any] = self.get_params(ctx)
        for param in params:
            is_option, is_switch = param.param_type_name == "option", getattr(param, "is_flag", False)
            names = f"{', '.join(sorted(param.opts, key=len))} {param.metavar or ''}" if is_option else param.metavar
            default = param.show_default if isinstance(param.show_default, str) else param.default
            shown = "" if is_switch or default is None else f"  [default:\N{NO-BREAK SPACE}{default}]"
            section = getattr(param, "rich_help_panel", None) or ("Options" if is_option else "Arguments")
            about = (param.help or "") + ("  [required]" if param.required else shown)
            sections.setdefault(section, []).append((names.strip(), about))
        for section, rows in sections.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)
        formatter.buffer = [part.replace("\N{NO-BREAK SPACE}", " ") for part in formatter.buffer]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, with options under their proper names, and arguments passed as options moved to the end."""
        options: dict[str, Any] = {
            name: param for param in self.get_params(ctx) for name in param.opts if name.startswith("-")
        }
        named = {f"--{key}" for key in _list_settings(self)} - options.keys()
        left, renamed, arguments = iter(args), list[str](), list[str]()
        for arg in left:
            name, equals, value = arg.partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name
            if arg == "--":
                arguments += left
            elif arg.startswith("-") and arg != "-" and os.path.lexists(arg):  # as if a shell's * or a hook named it
                raise InputError(f"{arg}: is a file, and looks like an option: write ./{arg}, or put -- before files")
            elif name in named:
                arguments += [value] if equals else islice(left, 1)
            elif name in options:
                renamed.append(name + equals + value)
                if not equals and not options[name].is_flag:
                    renamed += islice(left, options[name].nargs)
            else:
                renamed.append(arg)
        return super().parse_args(ctx, [*renamed, "--", *arguments] if arguments else renamed)


def name_value(kind: Any) -> str:
    """Return how the help writes a value of a type: "a|b" for choices, N for int, FILE for Path, "" for a switch."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    parts = get_args(kind)  # of T | None and list[T]
    return name_value(parts[0]) if parts else {bool: "", int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")


# -- options that exclude each other, need another one, or have no effect ---------------------------------------------


class When(NamedTuple):
    """What makes a conflict.

    options: names of options. There is a conflict only if one of these options is given; "": whatever is given.
    condition: takes an object with the value of each option of the command, and returns whether there is a conflict.
    """

    options: str
    condition: Callable[[Any], object]


Conflicts = Mapping[str, When]
"""The conflicts of a command, by the error message of each.

In a sentence, {option} stands for the first of `When.options` that the user passed, and {name} for the value of the
option with this name.
"""


def refuse_conflicts(conflicts: Conflicts, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise `InputError` for the first conflict of a command.

    An option counts as passed if its value differs from its default.
    """
    for sentence, (options, condition) in conflicts.items():
        used = [name for name in options.split() if values[name] not in (defaults[name], [])]
        if (used or not options) and condition(SimpleNamespace(**values)):
            option = f"--{used[0].replace('_', '-')}" if used else None
            raise InputError(sentence.format(**values, option=option))


# -- files of settings ------------------------------------------------------------------------------------------------


def _list_settings(command: Any) -> dict[str, Any]:
    """Return a command's parameters by their keys in a settings file: the long name, or an argument's help name."""
    names = {param: param.metavar or param.name for param in command.params}
    return {
        max(param.opts, key=len).lstrip("-") if param.param_type_name == "option" else name.lower(): param
        for param, name in names.items()
        if param.name != "config"
    }


def _apply_settings(ctx: typer.Context, path: Path | None) -> Mapping[str, Any]:
    """Apply a settings file. Return settings of pyproject.toml, which count as defaults: some calls don't use them."""
    settings: tuple[dict[str, Any], dict[str, str]] = {}, {}
    known = _list_settings(ctx.command)
    if path is not None and not ctx.resilient_parsing:
        settings = _parse_settings(_read_bounded(path, advice=_ADVICE), known, path)
    elif ctx.command.name == "scan" and PROJECT.is_file() and not ctx.resilient_parsing:
        settings = _read_project(known)
    ctx.default_map, ctx.meta[_PLACES] = settings
    return settings[0] if path is None else {}


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_apply_settings,
        help="Read options from this YAML file, name: value; the command line overrides it.",
    ),
]


def _read_project(known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the settings in pyproject.toml, and their places for errors. Raises `InputError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    text = _read_bounded(PROJECT, advice="pass options in another file, --config FILE")
    if "antislop" not in text:  # a fault in a file that has no settings doesn't matter
        return {}, {}
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:  # the time for a name of many parts grows with the square of their number
            raise InputError(f"{PROJECT}:{number}: longer than {MAX_LINE:,} characters: break it")
    try:
        tools = tomllib.loads(text).get("tool")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{PROJECT}: not TOML ({first_line(error)}): mend it, or pass --config FILE") from error
    table = tools.get("antislop", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise InputError(f"{PROJECT}: [tool.antislop] is no table: write this line once, and name = value below it")
    lasting = {key: param for key, param in known.items() if key != "write-baseline"}
    return _parse_settings(json.dumps(table, ensure_ascii=False, default=str), lasting, PROJECT)


def _read_bounded(path: Path, *, advice: str) -> str:
    from antislop.files.disk import read_text_pieces

    text = ""
    for piece in read_text_pieces(path):
        text += piece
        if len(text) > MAX_SETTINGS:
            raise InputError(f"{path}: longer than {MAX_SETTINGS:,} characters: {advice}")
    return text


def _parse_settings(text: str, known: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of settings in YAML, and their places for errors, by parameter. Raises `InputError`."""
    import yaml

    def name_place(node: Any) -> str:
        return f"{path}: [tool.antislop]" if path == PROJECT else f"{path}:{node.start_mark.line + 1}:"

    depth = 0
    try:
        # A few aliases stand for billions of values, and Python's recursion ends where values are nested too deep.
        for event in yaml.parse(text, yaml.SafeLoader):
            place = name_place(event)
            if isinstance(event, yaml.AliasEvent):
                raise InputError(f"{place} *{event.anchor} is an alias: write the value, or put quotes around a text")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError(f"{place} nested more than {MAX_DEPTH} deep: {_ADVICE}")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or first_line(error)
        raise InputError(f"{path}:{mark.line + 1 if mark else 1}: not YAML ({reason}): {_ADVICE}") from error
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}: contains no settings: {_ADVICE}")
    values, places = dict[str, Any](), dict[str, str]()
    for key_node, node in root.value:
        place = name_place(key_node)
        key = _read_text(key_node, f"{place} the name of an option").replace("_", "-")
        if key not in known:
            advice = suggest(key, known, advice="--help lists them")
            raise InputError(f"{place} there is no option {key!r}: {advice}")
        name = known[key].name
        if name in values:
            raise InputError(f"{place} {key} comes twice: leave one out")
        values[name], places[name] = _read_value(node, known[key], loader, f"{place} {key}"), place
    return values, places


def _read_value(node: Node, param: Any, loader: Any, place: str) -> Any:
    """Return a YAML value as the command line would give it: the text as written, or for an object, JSON."""
    from yaml import YAMLError

    if param.nargs != 1 or getattr(param, "multiple", False):
        return [_read_text(item, place) for item in (node.value if node.id == "sequence" else [node])]
    if node.id == "mapping" and param.metavar == "JSON":
        try:
            return json.dumps(loader.construct_object(node, deep=True))
        except (TypeError, ValueError, YAMLError) as error:
            raise InputError(f"{place} can't be JSON ({first_line(error)}): put quotes around texts") from error
    return _read_text(node, place)


def _read_text(node: Node, place: str) -> str:
    if node.id == "sequence":
        raise InputError(f"{place} takes one value, and a list came: leave one")
    if node.id == "mapping":
        raise InputError(f"{place} takes a text, and name: value came: put quotes around the text")
    if node.tag == "tag:yaml.org,2002:null":
        raise InputError(f"{place} has no value: write one, or leave the line out")
    if "\0" in node.value:
        raise InputError(f"{place} contains a null character: leave it out")
    return str(node.value)


# -- mistakes ---------------------------------------------------------------------------------------------------------


def describe_mistake(error: Any) -> str:
    """Return a sentence about a usage error, with the setting's place in its file, or else a hint to --help.

    error: a `UsageError`, which typer's versions export under different names.
    """
    context = error.ctx
    if context and getattr(error, "possibilities", None):  # --temp looks most like --help, and means --temperature
        names = (name for param in context.command.params for name in param.opts)
        error.possibilities = [name for name in names if name.startswith(error.option_name)] or error.possibilities
    sentence = " ".join(error.format_message().split())
    sentence = re.sub(r"\. Did you mean (.+)\?$", r" (did you mean \1?)", sentence)
    if (extra := re.fullmatch(r"Got unexpected extra arguments? ?(?:\(s\))? ?\((.+)\)", sentence)) and context:
        (*_, last) = ("", *(p.metavar for p in context.command.params if p.param_type_name == "argument"))
        sentence = f"{extra[1]!r} is too much" + f" behind {last}: put the {last.lower()} in quotes" * bool(last)
    param: Any = getattr(error, "param", None)
    if type(error) is not typer.BadParameter:
        return sentence if context is None else f"{sentence.rstrip('.')}: try {context.command_path} --help"
    faults: list[Any] = getattr(error.__cause__, "errors", list)()
    if faults:  # of pydantic, with which newer versions of typer read values
        expected = re.sub(
            r"^Value error, .* is not (?=one of)|^Input (should be )?|, unable to .*", "", faults[0]["msg"]
        )
        sentence = f"{param.get_error_hint()} is {str(faults[0]['input'])!r}, but should be {expected.rstrip('.')}"
    place = context.meta.get(_PLACES, {}).get(param.name) if param and context else None
    return f"{place} {sentence}" if place else sentence
