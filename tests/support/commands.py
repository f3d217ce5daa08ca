"""Commands of `antislop`, run in the process of the test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from typer.testing import CliRunner, Result

from antislop.cli.main import app
from antislop.files.journal import Journal, Record


def invoke(
    *args: str, stdin: str | bytes | None = None, columns: int = 80, env: Mapping[str, str] | None = None
) -> Result:
    """Run a command in a terminal of this width; an exception that it doesn't report fails the test."""
    result = CliRunner().invoke(app, args, input=stdin, env={"COLUMNS": str(columns), **(env or {})})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def assert_refused(result: Result, *parts: str) -> None:
    """One sentence on standard error with these parts, nothing on standard output, exit status 2."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("antislop: ") and result.stderr.count("\n") == 1, result.stderr
    assert [part for part in parts if part not in result.stderr] == [], result.stderr


def at_record(number: int, do: Callable[[], None]) -> Callable[[Journal, Record], None]:
    """Return an `append` of journals that calls `do` after `number` records."""
    append, seen = Journal.append, []

    def appending(journal: Journal, record: Record) -> None:
        append(journal, record)
        seen.append(record)
        if len(seen) == number:
            do()

    return appending


def interrupt() -> None:
    """Send this process what Ctrl-C sends."""
    signal.raise_signal(signal.SIGINT)
