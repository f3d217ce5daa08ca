"""The command line as a whole: its commands by name, each imported when it runs, and how they end.

Imports typer only, so that `antislop --help` and shell completion start at once. Knows no command.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup

from antislop import __version__
from antislop.errors import InputError

EXIT_CODES = (
    "Exit status: 0 all went well, and scan or lint found nothing; 1 they found something, or generate had nothing "
    "left to say under --on-exhausted raise; 2 an input can't be used; 130 interrupted; 141 output not read to its end."
)


class Command(NamedTuple):
    """Where a command is, and what the list of all commands says of it: the beginning of its own help."""

    module: str
    function: str
    about: str


COMMANDS = {
    "generate": Command("generate", "generate", "Continue a text without what is banned."),
    "scan": Command("scan", "scan", "Find banned phrases in files: file:line:column: phrase, each where it begins."),
    "try": Command("scan", "try_", "Try a list on texts: what each ban would have hit, how often, and where."),
    "lint": Command(
        "scan",
        "lint_",
        "Find entries of a list that do nothing, do too much, or can't be meant.",
    ),
    "convert": Command("scan", "convert", "Write a list of any format in antislop's own."),
    "profile": Command(
        "profile",
        "profile",
        "Count what texts hold more often than people write it: words, phrases, content n-grams, constructions.",
    ),
    "bans-from": Command("profile", "bans_from", "Make a list of bans out of a profile."),
    "dataset": Command("dataset", "dataset", "Make a data set: responses to prompts, without what is banned."),
    "eval": Command(
        "evaluate",
        "evaluate",
        "Measure what bans do: texts to the same prompts with and without them, or texts that are there already.",
    ),
    "measure": Command(
        "measure",
        "measure",
        "Measure texts: slop, repetition, diversity, sentences, each with its interval.",
    ),
}

# The base of all usage errors, which typer does not export under a name that all its versions have.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if not {"--help", "--version"} & set(sys.argv):
        from antislop.trace.events import ConcededWarning

        warnings.simplefilter("ignore", ConcededWarning)  # each command says how much was conceded, and of what
    app(prog_name="antislop")


class Commands(TyperGroup):
    """Imports a command when it is resolved, and ends it with an exit status and at most one sentence."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command line."""
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except _UsageError as error:
            _complain(" ".join(error.format_message().split()))
            status = 2
        if options.get("standalone_mode", True):
            sys.exit(status)
        return status

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return (name, command, arguments) of a command line; the command is the real one, not its place holder."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command and return its exit status."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except typer.Exit:  # after --version, --help
            raise
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail once more
            return 141
        except InputError as error:
            _complain(str(error))
            status = 2
        return status


def _complain(sentence: str) -> None:
    from antislop.cli.terminal import complain

    complain(sentence)


def load_command(name: str) -> Any:
    """Import a command and return it as typer runs it."""
    command = COMMANDS[name]
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    function = getattr(import_module(f"antislop.cli.{command.module}"), command.function)
    one.command(name, epilog=EXIT_CODES)(function)
    return typer.main.get_command(one)


app = typer.Typer(cls=Commands, pretty_exceptions_enable=False, rich_markup_mode="markdown")


def _hold_place() -> None:
    """Stand for a command in lists of commands."""


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.about)(_hold_place)


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def _antislop(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> int:
    """A language model, minus the phrases you never want to read again."""
    if version:
        typer.echo(f"antislop {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
    return 0
