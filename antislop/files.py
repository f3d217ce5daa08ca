"""Files as a whole: read within bounds, replaced in one step. Knows no formats."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO

MAX_RATIO = 100
"""Bytes that a compressed file may unpack to, for each of its own: text comes to 3 to 20."""
MIN_BOUND = 2**24
"""Bytes that any compressed file may unpack to."""

PIECE = 1 << 16
"""Bytes that are read at a time."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # a file that is there is never opened


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz.

    Raises `OSError` with a `strerror` where it can't be read, is damaged, or unpacks to more than `MAX_RATIO` times
    its size.
    """
    return b"".join(read_pieces(path))


def read_pieces(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the content of a file as `read_bytes` returns it, in pieces of up to `PIECE` bytes."""
    path = Path(path)
    is_packed = path.suffix.lower() == ".gz"
    with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
        bound = room = max(MIN_BOUND, MAX_RATIO * path.stat().st_size)
        try:
            while piece := file.read(PIECE):
                room -= len(piece)
                if is_packed and room < 0:
                    problem = f"it unpacks to more than {bound:,} bytes, {MAX_RATIO} times its size or more"
                    raise OSError(errno.EFBIG, problem)
                yield piece
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(errno.EIO, f"not gzip, or cut off: {error}") from error


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, UTF-8, in one step, as `replacing` does."""
    replace_bytes(path, text.encode())


def replace_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file in one step, as `replacing` does."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield an open file that takes the place of another when the block ends without an error.

    Readers find the old content or the new content, never a part. The file's mode stays; a symbolic link stays, and
    its target is replaced. A device or a pipe is written to directly. Raises `OSError` where that can't be done.
    """
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    part = target.with_name(f".{target.name[:40]}.{token_hex(8)}")
    try:
        number = os.open(part, _NEW, 0o666 if mode is None else 0o600)
        with os.fdopen(number, "wb") as file:
            yield file
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
