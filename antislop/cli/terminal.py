"""What all commands share: what they read, what they refuse, and what they write where.

Data goes to standard output, everything else to standard error. Knows no model.
"""

from __future__ import annotations

import json
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from antislop import files
from antislop.display import escape_json, make_visible
from antislop.errors import InputError, first_line


class _Console(Console):
    """A console that shows control characters as symbols, and leaves a broken pipe to `Commands`."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is written; all that is printed comes through here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=make_visible(segment.text, keep_layout=True))

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console that writes text as it is, without markup."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def complain(sentence: str) -> None:
    """Write one sentence to standard error."""
    typer.echo(f"antislop: {make_visible(sentence)}", err=True)


def write(text: str) -> None:
    """Write data to standard output: to a file or a pipe as it is, to a terminal with visible control characters."""
    out = console().file
    out.write(make_visible(text, keep_layout=True) if out.isatty() else text)


def write_json(data: Any) -> None:
    """Write plain data to standard output as JSON."""
    console().file.write(escape_json(json.dumps(data, indent=1, ensure_ascii=False)) + "\n")


def read(name: str) -> str:
    """Return a text file, compressed if it ends in .gz, or standard input for "-"."""
    return "".join(read_pieces(name))


def read_pieces(name: str, *, advance: Callable[[int], object] = lambda _: None) -> Iterator[str]:
    """Yield a text as `read` returns it, in pieces. advance: is called with the number of bytes of each piece."""
    decoder, lines = getincrementaldecoder("utf-8-sig")(), 0
    try:
        for piece in chain(_read_stdin() if name == "-" else files.read_pieces(name), [b""]):
            yield decoder.decode(piece, final=not piece)
            lines += piece.count(b"\n")
            advance(len(piece))
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder: pass the files in it, {Path(name, '*.txt')} for instance") from None
    except OSError as error:
        raise InputError(f"{name}: can't be read ({error.strerror}): pass the path of a text file") from error
    except UnicodeDecodeError as error:
        line = lines + error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}: not UTF-8 ({error.reason} in line {line}): save the file as UTF-8") from None


def _read_stdin() -> Iterator[bytes]:
    return iter(partial(sys.stdin.buffer.read1, files.PIECE), b"")  # type: ignore[union-attr]


@contextmanager
def as_refusal() -> Iterator[None]:
    """Turn what the sampler refuses into a sentence without a traceback."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(first_line(error)) from error


def refuse_stdin(source: str) -> None:
    """Refuse "-" where the name of a file tells its format."""
    if source == "-":
        raise InputError("-: prompts can't come from standard input: save them to a .jsonl or .txt file, and pass that")


def check_writable(path: Path, *, or_stdout: bool = False) -> None:
    """Refuse a path at which no file can be written, and "-" too unless `or_stdout`."""
    if str(path) == "-":
        if or_stdout:
            return
        raise InputError("-: standard output can't take this file: pass the path of a file")
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"{path.parent} is not a folder"
        raise InputError(f"{path}: can't be written ({why}): pass the path of a file")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file into a sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror}): pass the path of a file") from error


@contextmanager
def writing_or_stdout(path: Path) -> Iterator[Path]:
    """Yield where to write a file; if the path is "-", its text goes to standard output in the end."""
    if str(path) != "-":
        with writing(path):
            yield path
        return
    with TemporaryDirectory() as folder:
        part = Path(folder, "output")
        yield part
        write(files.read_text(part))
