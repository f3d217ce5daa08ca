"""Texts, names and answers of strangers can't control the terminal that shows them, or a spreadsheet."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import antislop
from antislop.cli.job import follow
from antislop.cli.main import app
from antislop.cli.terminal import console, write, write_json
from antislop.core.trace.text_pieces import TextPiece
from antislop.display import escape_json, make_visible, quote_formula
from antislop.explain.console import to_rich
from tests.support.depth import first_quick

HOSTILE = "x\x1b]0;mine\x07\x1b[2J\x9b2J\u202egnp\u2066\x08y"
"""Names the window, clears it in two ways, turns the direction of writing."""
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "300"}


RICH = re.compile(r"\x1b\[([0-9;]*m|\?25[lh]|2K|1A)|\r")
"""What rich writes itself: colors, and how it draws a line anew."""


DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"


def find_controls(shown: str, *, is_terminal: bool) -> str:
    """Return the control characters of a text, except those that rich writes itself to a terminal."""
    rest = RICH.sub("", shown) if is_terminal else shown
    return "".join(c for c in rest if (unicodedata.category(c) == "Cc" or c in DIRECTIONS) and c not in "\n\t")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with hostile files."""
    monkeypatch.chdir(tmp_path)
    for name in ("text", "list", "rows"):
        Path(f"{name}{HOSTILE.replace('/', '')}.txt").write_text("a cat\n", encoding="utf-8")
    Path("text.txt").write_text(f"a cat {HOSTILE} cat{HOSTILE}", encoding="utf-8")
    Path("list.json").write_text(json.dumps([f"cat {HOSTILE}", "cat", 5]), encoding="utf-8")
    rows = [{"arm": f"{HOSTILE}\nantislop: forged", "text": "a cat sat. " * 9}, {"arm": "=1+1", "text": "a dog. " * 9}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


TEXT = f"text{HOSTILE}.txt"
LIST = f"list{HOSTILE}.txt"


@pytest.mark.parametrize("is_terminal", first_quick([False, True]))
@pytest.mark.parametrize(
    "args",
    [
        ("scan", TEXT, "--ban", "cat"),
        ("scan", TEXT, f"nowhere{HOSTILE}", "--ban", "cat", "--count"),
        ("scan", TEXT, "--ban", "cat", "--format", "json"),
        ("scan", "text.txt", "--ban", f"cat {HOSTILE}", "--format", "json"),
        ("scan", "text.txt", "--ban", f"cat {HOSTILE}"),
        ("scan", "text.txt", "--bans", LIST, "--by-ban"),
        ("lint", LIST),
        ("lint", "list.json"),
        ("lint", "list.json", "--format", "json"),
        ("convert", LIST, "-o", f"out{HOSTILE}.txt"),
        ("convert", "list.json", "-o", f"out{HOSTILE}.txt", "--lenient"),
        ("measure", "rows.jsonl", "--column", "text", "--by", "arm", "--bans", LIST, "--resamples", "0"),
        ("measure", "rows.jsonl", "--by", "arm", "--bans", LIST, "--resamples", "0", "--format", "json"),
        ("measure", "rows.jsonl", "--column", HOSTILE),
        ("measure", "rows.jsonl", f"--{HOSTILE}"),
        ("dataset", TEXT, "-o", TEXT),
        ("generate", HOSTILE, "--bans", f"nowhere{HOSTILE}"),
    ],
)
def test_no_command_prints_characters_that_control_the_terminal(args: tuple[str, ...], is_terminal: bool) -> None:
    result = CliRunner().invoke(app, list(args), env=TERMINAL if is_terminal else {"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.output
    assert find_controls(result.output, is_terminal=is_terminal) == ""
    assert "\nantislop: forged" not in result.output


def test_ids_of_prompts_and_words_of_servers_are_shown_with_visible_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from antislop.datasets.samples import Summary

    record = {
        "key": f"{HOSTILE}\nantislop: forged",
        "prompt": HOSTILE,
        "error": f"answered 400: {HOSTILE}",
        "status": "error",
    }
    follow([record], Summary(), screen=console(stderr=True), total=1)
    shown = capsys.readouterr().err
    assert find_controls(shown, is_terminal=False) == ""
    assert shown.count("\n") == 1
    assert shown.count("␛]0;mine␇␛[2J�2J�gnp�␈y") == 2


REMARKS = """
from rich.text import Text
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import console, print_line, say, warn
sentence = "each prompt of this list, a/b/c.jsonl:3, was read and found wanting"
with ProgressBar(console(stderr=True), "the bar", total=9) as bar:
    bar.update(advance=1)
    say(sentence)
    bar.update(advance=1)
    warn(sentence)
print_line(Text(sentence))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("width", [80, 40])
def test_remarks_are_broken_between_words_on_a_terminal_and_not_at_all_in_a_pipe(width: int) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    command = [sys.executable, "-c", REMARKS]
    subprocess.run(command, stdout=theirs, stderr=theirs, check=True, env=environment)
    os.close(theirs)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(_read_all(ours)).decode())
    lines = [line.strip() for line in re.split(r"[\r\n]+", shown) if "the bar" not in line]
    sentence = "each prompt of this list, a/b/c.jsonl:3, was read and found wanting"
    expected = [textwrap.wrap(text, width) for text in (sentence, f"antislop: {sentence}", sentence)]
    assert [line for line in lines if line] == [line for text in expected for line in text]
    piped = subprocess.run(command, capture_output=True, check=True, env=environment, text=True)
    assert (piped.stdout, piped.stderr) == (f"{sentence}\n", f"{sentence}\nantislop: {sentence}\n")


def _read_all(terminal: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # EIO: nobody writes to it any more
        while data := os.read(terminal, 4096):
            yield data


def test_tables_statuses_and_bars_are_cleaned_for_text_of_any_source() -> None:
    """Also what looks like markup of rich is no markup."""
    screen = console()
    name = f"[/red]{HOSTILE}"
    table = Table(name, title=name)
    table.add_row(name)
    with screen.capture() as captured:
        screen.print(name, Text(name), table)
        with Progress(TextColumn("{task.description}", markup=False), console=screen) as bar:
            bar.add_task(name)
    assert captured.get().count("[/red]") >= 5
    assert find_controls(captured.get(), is_terminal=True) == ""


def test_texts_keep_their_length_and_their_lines() -> None:
    everything = "".join(map(chr, range(0x3000)))
    shown = make_visible(everything)
    assert len(shown) == len(everything)
    assert find_controls(shown, is_terminal=False) == ""
    assert make_visible("a\tb\nc\r", keep_layout=True) == "a\tb\nc␍"
    assert make_visible("a\tb\nc\r") == "a␉b␊c␍"
    assert make_visible("Grüße, 世界, שלום, 👩‍🚀") == "Grüße, 世界, שלום, 👩‍🚀"


def test_a_picture_of_a_text_has_no_direction_characters() -> None:
    assert to_rich([TextPiece(f"{HOSTILE}\n", "kept")]).plain == "x␛]0;mine␇␛[2J�2J�gnp�␈y\n"


def test_json_has_the_same_value_after_its_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    everything = "".join(chr(code) for code in range(0x3000) if not 0xD800 <= code < 0xE000)
    whole = json.dumps({everything: [everything]}, ensure_ascii=False, indent=1)
    assert json.loads(escape_json(whole)) == json.loads(whole)
    assert find_controls(escape_json(whole), is_terminal=False) == ""
    write_json([HOSTILE])
    shown = capsys.readouterr().out
    assert json.loads(shown) == [HOSTILE]
    assert find_controls(shown, is_terminal=False) == ""


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "shown"), [(io.StringIO(), "\x1b[2J\n"), (FakeTerminal(), "␛[2J\n")])
def test_data_is_written_as_it_is_but_not_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO, shown: str
) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    write("\x1b[2J\n")
    assert out.getvalue() == shown


@pytest.mark.parametrize("start", "=+-@\t\r\n")
def test_no_cell_of_a_table_is_a_formula_and_negative_numbers_stay_numbers(start: str) -> None:
    assert quote_formula(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"
    assert [quote_formula(cell) for cell in (-0.5, -3, None, "", "a=b", "1-2")] == [-0.5, -3, None, "", "a=b", "1-2"]


def test_arms_that_look_like_formulas_are_quoted_in_the_tables_of_measure() -> None:
    args = ["measure", "rows.jsonl", "--by", "arm", "--resamples", "0", "--format", "csv"]
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(CliRunner().invoke(app, args).stdout)))
    assert {row["group"] for row in rows} == {f"{HOSTILE}\nantislop: forged", "'=1+1"}
    assert any(row["distance"].startswith("-") and float(row["distance"]) < 0 for row in rows)


def test_every_table_is_written_by_the_function_that_quotes_formulas() -> None:
    paths = Path(antislop.__file__).parent.rglob("*.py")
    assert [path.name for path in paths if re.search(r"csv\.(Dict)?[Ww]riter", path.read_text(encoding="utf-8"))] == [
        "display.py"
    ]
