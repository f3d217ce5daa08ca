"""Files of text, read and replaced; whatever goes wrong is a `BanError`. Knows no formats."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import IO, Any

from antislop.errors import InputError
from antislop.files import decode, open_bytes, replace_text
from antislop.lists.reading import MAX_CHARACTERS
from antislop.matching.errors import BanError


def read_text(source: str | os.PathLike[str] | IO[str] | IO[bytes]) -> tuple[str, str]:
    """Return what to call a file or an open one, and its text, UTF-8, with line feeds only at the ends of lines.

    A file whose name ends in .gz is decompressed.
    """
    if callable(getattr(source, "read", None)):
        name = getattr(source, "name", None)
        place = name if isinstance(name, str) else "<text>"
        content = _read(source, place)
    elif isinstance(source, (str, os.PathLike)):
        place = os.fsdecode(source)
        try:
            with open_bytes(place) as file:
                content = _read(file, place)
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            if isinstance(error, BanError):
                raise
            raise BanError(f"{place}: {_advise(error)}") from error
    else:
        raise BanError(f"a path or an open text file was expected, not {source!r}: write BanList([…]) for phrases")
    text = _decode(content, place) if isinstance(content, bytes) else content.removeprefix("\ufeff")
    return place, text.replace("\r\n", "\n").replace("\r", "\n")


def write_text(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Write lines to a file, UTF-8; it is replaced as a whole or not at all."""
    try:
        replace_text(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise BanError(f"{path}: can't be written ({error.strerror}): name a file in a folder of yours") from error


def _read(file: Any, place: str) -> str | bytes:
    """Read all of an open file, in as many pieces as it gives."""
    pieces: list[Any] = []
    size = 0
    try:
        while piece := file.read(MAX_CHARACTERS + 1 - size):
            if not isinstance(piece, type(pieces[0]) if pieces else (str, bytes)):
                raise BanError(f"{place}: an open text file was expected, not {file!r}: give a path, or open(path)")
            pieces.append(piece)
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise BanError(f"{place}: longer than {MAX_CHARACTERS} characters: split the list")
    except UnicodeDecodeError as error:
        raise BanError(f"{place}:1: not {error.encoding} ({error.reason}): open it with its encoding") from error
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a closed file
        if isinstance(error, BanError):
            raise
        raise BanError(f"{place}: {_advise(error)}") from error
    empty: Any = b"" if pieces and isinstance(pieces[0], bytes) else ""
    content: str | bytes = empty.join(pieces)
    return content


def _decode(content: bytes, place: str) -> str:
    try:
        return decode(content, place)
    except InputError as error:
        raise BanError(str(error)) from error


def _advise(error: Exception) -> str:
    return f"can't be read ({getattr(error, 'strerror', None) or error}): give the path of a text or JSON file"
