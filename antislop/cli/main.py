"""The command line: a table of commands, each imported when it runs, and the exit status.

This module imports no heavy package but typer, so that `antislop --help` and shell completion start at once.
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from antislop import __version__
from antislop.cli.parsing import ConfigOption, ForgivingCommand, describe_mistake, name_value, refuse_conflicts
from antislop.errors import ConcededWarning, InputError, needing_models

EXIT_CODES = (
    "Exit status: 0 success; 1 a result that the command's help names; 2 an input can't be used; 130 interrupted; "
    "141 the reader of the output closed it."
)
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
Check = Callable[[dict[str, Any], dict[str, Any]], None]


class Command(NamedTuple):
    """A command. about: the first sentence of the command's help, shown without importing the command."""

    module: str
    function: str
    about: str


COMMANDS = {
    "generate": Command("generate", "generate", "Continue a text without banned phrases."),
    "view": Command("view", "view", "Show what was withdrawn in a trace, and what came instead."),
    "scan": Command("scan", "scan", "Find banned phrases in files, with the place at which each begins."),
    "fix": Command("fix", "fix", "Replace what a list flags in a finished text, and nothing else."),
    "lint": Command(
        "lists", "lint_list", "Find entries of a list that have no effect, match too much, or look like mistakes."
    ),
    "convert": Command("lists", "convert", "Convert a list from any supported format to antislop's own."),
    "profile": Command(
        "profile",
        "profile",
        "Count words, phrases, content n-grams and constructions that texts contain more often than human writing.",
    ),
    "bans-from": Command("bans_from", "bans_from", "Make a list of bans from a profile."),
    "dataset": Command("dataset", "dataset", "Make a data set: responses to prompts, without banned phrases."),
    "tune": Command(
        "tune",
        "tune",
        "Train a model on the places at which it began banned phrases, until it prefers something else there.",
    ),
    "export": Command("export", "export", "Make a model's folder that brings its bans, which transformers then obeys."),
    "serve": Command(
        "serve", "serve", "Serve a model without banned phrases, to OpenAI's clients, SillyTavern and open-webui."
    ),
    "eval": Command(
        "evaluate",
        "evaluate",
        "Measure the effect of bans: texts to the same prompts with and without them, or existing texts.",
    ),
    "measure": Command(
        "measure", "measure", "Measure texts: slop, repetition, diversity, sentences, each with an interval."
    ),
}
"""All commands by name. To add a command, write its module and add a line here."""

EXAMPLES = {
    "generate": (
        'antislop generate "The old house" --show',
        'antislop generate "Once" --no-bans --ban "little girl" --trace trace.jsonl',
        'antislop generate "Write a story." --chat --model NAME --bans list.txt',
    ),
    "view": ("antislop view trace.jsonl", "antislop view trace.jsonl --html page.html"),
    "scan": (
        "antislop scan story.txt",
        "antislop scan . --bans list.txt",
        "antislop scan story.txt --bans list.txt --by-ban",
        "antislop scan out.jsonl --column response --format json",
    ),
    "fix": (
        "antislop fix story.txt --model NAME --bans list.txt",
        "antislop fix story.txt --model NAME --write",
        "antislop fix data.jsonl -o fixed.jsonl --model NAME --pairs pairs.jsonl",
    ),
    "lint": ("antislop lint list.txt", "antislop lint list.txt --ignore common --format json"),
    "convert": ("antislop convert list.json -o converted.txt", "antislop convert list.json -o - --top 100"),
    "profile": ("antislop profile out.jsonl -o profile.json", "antislop profile --compare before.jsonl after.jsonl"),
    "bans-from": ("antislop bans-from profile.json -o bans.txt",),
    "dataset": (
        "antislop dataset prompts.txt -o texts.jsonl --n 2",
        "antislop dataset --config settings.yaml --seed 1",
        "antislop dataset prompts.jsonl -o folder --pairs pairs.jsonl --to-parquet",
    ),
    "tune": (
        "antislop tune pairs.jsonl -o tuned --bans list.txt",
        "antislop tune --auto --prompts prompts.txt -o tuned",
    ),
    "export": ("antislop export -o model --bans list.txt", "antislop export NAME -o model --copy"),
    "serve": (
        "antislop serve --port 5000",
        "antislop serve --model NAME --bans list.txt --reload-bans",
        "antislop serve --upstream http://127.0.0.1:8080/v1 --tokenizer NAME",
    ),
    "eval": (
        "antislop eval -o report --bans list.txt",
        "antislop eval -o report --outputs plain=a.jsonl --outputs banned=b.jsonl",
    ),
    "measure": (
        "antislop measure before.jsonl after.jsonl",
        "antislop measure qwen=a.jsonl gemma=b.jsonl --markdown",
        "antislop measure out.jsonl --by arm --format csv",
    ),
}
_STATUSES = {
    "generate": "Exit status 1: every continuation was banned, with --on-exhausted raise.",
    "scan": "Exit status 1: a phrase was found.",
    "fix": "Exit status 1: a banned phrase was left.",
    "lint": "Exit status 1: something was found.",
    "dataset": "Exit status 1: records have failed; the same command makes them again.",
}

EPILOGS = {
    name: "\n  ".join(["\b\nExamples:", *examples]) + (f"\n\n{_STATUSES[name]}" if name in _STATUSES else "")
    for name, examples in EXAMPLES.items()
}
r"""What `--help` says below the options: examples, and exit statuses that other commands don't have.

Typer does not rewrap the lines after \b.
"""

# The base class of usage errors: typer's versions export it under different names.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if not {"--help", "-h", "--version", "-V"} & set(sys.argv):
        warnings.simplefilter("ignore", ConcededWarning)  # commands report concessions themselves
        loading = logging.getLogger("antislop.files.models")
        loading.setLevel(logging.INFO)
        loading.addHandler(_Remarks())
    app(prog_name="antislop")


class _Remarks(logging.Handler):
    """Shows the library's log messages as remarks: that a model is being converted, or has terms of use."""

    def emit(self, record: logging.LogRecord) -> None:
        from antislop.cli.terminal import say

        say(record.getMessage())


class Commands(TyperGroup):
    """The group of all commands, which imports a command when it runs, and turns errors into exit statuses."""

    def main(self, *args: Any, **options: Any) -> Any:
        for name in ("COLUMNS", "LINES"):
            if not os.environ.get(name, "").strip("0"):  # 0 means that the size is unknown
                os.environ.pop(name, None)
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except _UsageError as error:
            _warn(describe_mistake(error))
            status = 2
        except OSError as error:  # of standard output: commands handle errors of files themselves
            if error.errno not in (errno.ENOSPC, errno.EBADF):
                raise
            from antislop.files.disk import explain_write

            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _warn(f"{error.filename or 'standard output'}: {explain_write(error, advice='redirect it to a file')}")
            status = 2
        if options.get("standalone_mode", True):
            sys.exit(status)
        return status

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the user called, and return it instead of its placeholder."""
        name, command, arguments = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(name)), arguments

    def invoke(self, ctx: Any) -> Any:
        try:
            with needing_models("this command"):
                status = super().invoke(ctx)
            sys.stdout.flush()
        except typer.Exit:  # after --version, --help
            raise
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit fails again
            return 141
        except InputError as error:
            _warn(str(error))
            status = 2
        return status


def _warn(sentence: str) -> None:
    from antislop.cli.terminal import warn

    warn(sentence)


def load_command(name: str) -> Any:
    """Import a command and return it in the form that typer runs."""
    command = COMMANDS[name]
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    module = import_module(f"antislop.cli.{command.module}")
    check = partial(refuse_conflicts, getattr(module, "CONFLICTS", {}))
    expanded = expand_options(getattr(module, command.function), check=check)
    single.command(name, cls=ForgivingCommand, epilog=EPILOGS[name], context_settings=HELP)(expanded)
    return typer.main.get_command(single)


def expand_options(command: Callable[..., int], *, check: Check | None = None) -> Callable[..., int]:
    """Return a command for typer: each parameter whose type is a dataclass becomes one option per field.

    check: called before the command, with the values of all options and their defaults.
    """
    hints = _read_annotations(command)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        shown = inspect.signature(hints[name]).parameters.values() if name in groups else [parameter]
        annotations = _read_annotations(hints[name]) if name in groups else hints
        parameters += [
            field_parameter.replace(kind=field_parameter.KEYWORD_ONLY, annotation=annotations[field_parameter.name])
            for field_parameter in shown
        ]

    defaults = {parameter.name: parameter.default for parameter in parameters}
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigOption)

    def run(config: Mapping[str, Any], **values: Any) -> int:
        from antislop.files.disk import find_scheme, refuse_address

        for value in values.values():
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path) and find_scheme(str(path)) != "hf":  # hf:// names a list on the Hub
                    refuse_address(path)
        if check is not None:
            check(values, {**defaults, **config})
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*parameters, config])  # type: ignore[attr-defined]
    return run


def _read_annotations(source: Any) -> dict[str, Any]:
    """Return the annotations of a function or a dataclass, with the `metavar` of each option filled in.

    Python 3.10 adds `| None` to a parameter whose default is None; the annotation is returned as it was written.
    """
    hints = get_type_hints(source, include_extras=True)
    inner = {name: [hint for hint in get_args(hint) if get_origin(hint) is Annotated] for name, hint in hints.items()}
    hints |= {name: inner[name][0] for name, hint in hints.items() if get_origin(hint) is Union and inner[name]}
    for kind, option in (get_args(hint) for hint in hints.values() if get_origin(hint) is Annotated):
        option.metavar = option.metavar or name_value(kind)
    return hints


app = typer.Typer(
    name="antislop", cls=Commands, context_settings=HELP, pretty_exceptions_enable=False, rich_markup_mode=None
)


for _name, _command in COMMANDS.items():  # placeholders, which `resolve_command` replaces
    app.command(_name, help=_command.about, short_help=_command.about)(lambda: None)


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def _antislop(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version and exit.")] = False,
) -> int:
    """Ban phrases from a language model's output, exactly."""
    if version:
        typer.echo(f"antislop {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
    return 0
