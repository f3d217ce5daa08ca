"""Standard streams and files as commands use them: input is checked, output is safe to show on a terminal.

Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from antislop.display import describe_count, escape_json, format_csv, make_visible
from antislop.errors import InputError, first_line
from antislop.files import disk as files

_SUFFIX = re.compile(r"\.(?!gz$)([a-z]{2,}\d?)(\.gz)?$", re.I)
_SUFFIX_OF_FILES = re.compile(
    r"\.(arrow|csv|docx?|gguf|html?|jpg|json|jsonl|md|ndjson|parquet|pdf|png|safetensors|svg|tsv|txt|xlsx|ya?ml|zip)"
    r"(\.gz)?$",
    re.I,
)
"""Suffixes of names that can't mean a folder."""
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?")


TableFormat = Literal["text", "json", "csv"]
OutputFormatOption = Annotated[Literal["text", "json"], typer.Option("--format", help="The format of the output.")]


class _Console(Console):
    """A console that shows control characters as symbols, and raises `BrokenPipeError` for `Commands` to handle."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments to write, with control characters made visible. All printed text passes through here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=make_visible(segment.text, keep_layout=True))

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console that interprets no markup and no emoji codes in text, and highlights nothing."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def warn(sentence: str) -> None:
    """Write a warning or an error to standard error."""
    _write_remark(f"antislop: {make_visible(sentence)}")


def warn_left_out(counts: Mapping[tuple[str, str], int], *, warn: Callable[[str], None] = warn) -> None:
    """Warn of each source's records that were left out, or read only in part. counts: a `LeftOut`."""
    for (source, what), count in counts.items():
        warn(f"{source}: {what.format(describe_count(count, 'record'))}")


def say(sentence: str) -> None:
    """Write a remark to standard error, dimmed on a terminal."""
    _write_remark(sentence, style="dim")


def _write_remark(sentence: str, *, style: str | None = None) -> None:
    screen = console(stderr=True)
    try:
        with screen.capture() as captured:
            screen.print(sentence, style=style, soft_wrap=not sys.stderr.isatty())
        sys.stderr.write(captured.get())  # a progress bar replaces `sys.stderr`, to stay below this
        sys.stderr.flush()
    except OSError as error:  # if standard error takes nothing, the exit status remains
        if isinstance(error, BrokenPipeError):
            raise


def print_line(line: Text) -> None:
    """Write a line of data to standard output: on a terminal in color, and broken between words."""
    screen = console()
    line.plain = make_visible(line.plain)
    if screen.is_terminal:
        screen.print(line, soft_wrap=not sys.stdout.isatty())
    else:  # rich takes a hundred times as long
        screen.file.write(line.plain + "\n")


def write(text: str) -> None:
    """Write data to standard output. On a terminal, show control characters instead of sending them."""
    _write_each((text,))


def _write_each(texts: Iterable[str]) -> None:
    out = console().file
    is_terminal = out.isatty()
    for text in texts:
        out.write(make_visible(text, keep_layout=True) if is_terminal else text)


def write_table(
    output: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    columns: Sequence[str],
    show: Callable[[Iterable[Mapping[str, Any]]], None],
    data: Any = None,
) -> None:
    """Write a table to standard output, each row as it comes.

    output: "json", "csv", or any other value to call `show` with the rows.
    data: what to write as JSON instead of the rows.
    """
    if output == "json" and data is not None:
        write_json(data)
    elif output in ("json", "csv"):
        _write_each(format_csv(columns, rows) if output == "csv" else _format_rows(rows))
    else:
        show(rows)


def _format_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a JSON array in pieces, with one line for each row."""
    before = "["
    for row in rows:
        yield f"{before}\n{escape_json(json.dumps(row, ensure_ascii=False))}"
        before = ","
    yield "[\n]\n" if before == "[" else "\n]\n"


def write_json(data: Any) -> None:
    console().file.write(escape_json(json.dumps(data, indent=1, ensure_ascii=False)) + "\n")


def save_json(path: Path, data: Any) -> None:
    """Write plain data to a file as JSON, or to standard error for "-"."""
    text = escape_json(json.dumps(data, indent=2, ensure_ascii=False))
    if path == Path("-"):
        typer.echo(text, err=True)
    else:
        files.replace_text(path, text + "\n")


def describe_command() -> str:
    """Return the command line, but of paths only the last part: folders would reveal details of the machine."""
    shown = ["antislop"]
    for argument in sys.argv[1:]:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        is_hub_name = _HUB_NAME.fullmatch(value) is not None and not Path(value).parent.exists()
        is_remote = is_hub_name or "://" in value or not {"/", "\\"} & {*value}
        shown.append(argument if is_remote else f"{option}{equals}{PureWindowsPath(value).name}")  # cuts at / as well
    return shlex.join(shown)


def read_input(name: str) -> str:
    """Return the text of a file, unpacked if its name ends in .gz, or of standard input for "-"."""
    return "".join(read_input_pieces(name))


def read_input_pieces(name: str, *, advance: Callable[[int], object] = lambda _: None) -> Iterator[str]:
    """Yield the text of `read_input` in pieces, and call `advance` with the number of bytes of each piece."""

    def follow(pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            advance(len(piece))
            yield piece

    try:
        read = partial(sys.stdin.buffer.read1, files.PIECE) if name == "-" else None  # type: ignore[union-attr]
        yield from files.decode_pieces(follow(files.read_pieces(name) if read is None else iter(read, b"")), name)
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder: pass the files in it, {Path(name, '*.txt')} for instance") from None
    except OSError as error:
        raise InputError(f"{name}: can't be read ({error.strerror}): pass the path of a text file") from error


@contextmanager
def as_input_error() -> Iterator[None]:
    """Turn a `ValueError` about the user's arguments into an `InputError` with the error's first line."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(first_line(error)) from error


def refuse_stdin(source: str) -> None:
    """Refuse "-" as the source of prompts: the name of a file decides the format in which prompts are read."""
    if source == "-":
        raise InputError("-: prompts can't come from standard input: save them to a .jsonl or .txt file, and pass that")


def refuse_repeats(paths: Iterable[str | Path]) -> None:
    """Refuse paths with a duplicate, since a file's texts would count twice."""
    seen = set[Path]()
    for path in paths:
        if (place := Path(path).resolve()) in seen:
            raise InputError(f"{path}: is named twice: leave one out")
        seen.add(place)


def check_writable(path: Path, *, or_stdout: bool = False) -> None:
    """Refuse a path where no file can be written; "-" is allowed if `or_stdout`. Missing folders are made later."""
    if str(path) == "-":
        if or_stdout:
            return
        raise InputError("-: standard output can't take this file: pass the path of a file")
    place = _find_place(path)
    if path.is_dir() or (place != path and not place.is_dir()):
        reason = "it is a folder" if path.is_dir() else f"{place} is not a folder"
        raise InputError(f"{path}: can't be written ({reason}): pass the path of a file")
    _check_access(path, place)


def check_folder(path: Path, content: str) -> None:
    """Refuse a path where no folder can be made, or a folder that is read-only. content: what the folder is for."""
    if str(path) == "-":
        raise InputError(f"-: {content} is a folder of files: pass -o FOLDER")
    place = _find_place(path)
    if not place.is_dir():
        raise InputError(f"{place}: is a file, and {content} needs a folder: choose another path")
    if place != path:
        check_suffix(path, advice=f"pass the name of a folder for {content}")
    _check_access(path, place)


def _find_place(path: Path) -> Path:
    """Return the path if it exists, else the nearest folder above it that exists."""
    with writing(path, advice="choose another path"):  # for a name that is too long
        return next(place for place in (path, *path.parents) if place.exists())


def _check_access(path: Path, place: Path) -> None:
    if not os.access(place, os.W_OK):
        reason = "it is read-only" if place == path else f"{place} is read-only"
        raise InputError(f"{path}: can't be written ({reason}): choose a folder of yours")
    if place.is_dir() and not files.takes_files(place):  # a folder of the system, such as /proc
        raise InputError(f"{path}: can't be written ({place} takes no files): choose a folder of yours")


def check_suffix(path: Path, *suffixes: str, advice: str | None = None) -> None:
    """Refuse a path with a suffix other than `suffixes` (.gz may follow); without any, refuse suffixes of files."""
    found = (_SUFFIX if suffixes else _SUFFIX_OF_FILES).search(path.name)
    if found and f".{found[1].lower()}" not in suffixes:
        advice = advice or f"pass a name that ends in {' or '.join(suffixes)}"
        raise InputError(f"{path}: {found[0]} is not what this option writes: {advice}")


@contextmanager
def writing(path: Path, *, advice: str = "pass the path of a file") -> Iterator[None]:
    """Turn an `OSError` while a file is written into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {files.explain_write(error, advice=advice)}") from error


@contextmanager
def writing_or_stdout(path: Path) -> Iterator[Path]:
    """Yield the path to write to; for "-", yield a temporary file, and write it to standard output at the end."""
    if str(path) != "-":
        with writing(path):
            yield path
        return
    with TemporaryDirectory() as folder:
        part = Path(folder, "output")
        yield part
        write(files.read_text(part))
