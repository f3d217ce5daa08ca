"""Commands of `antislop`, run in the process of the test."""

from __future__ import annotations

from collections.abc import Mapping

from typer.testing import CliRunner, Result

from antislop.cli.main import app


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
