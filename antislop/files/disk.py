"""Read files within bounds of size, append to files, and replace files in one step.

A file whose name ends in .gz is decompressed when it is read, and compressed when it is replaced.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import json
import os
import re
import stat
import time
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase, TextIOWrapper
from itertools import chain
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import IO, Any

from antislop.errors import InputError, first_line

MAX_RATIO = 100
"""Unpacked bytes allowed per compressed byte. Text has a ratio of 3 to 20."""
MIN_BOUND = 2**24
"""Unpacked bytes allowed for any compressed file."""
PIECE = 1 << 16
"""Bytes per read."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):[/\\]")  # longer than the letter of a drive
_CHECK = "check the path and the file"
_FREE = "free some space there"
_ADVICE = {
    errno.ENOSPC: _FREE,
    getattr(errno, "EDQUOT", errno.ENOSPC): _FREE,
    errno.EFBIG: "choose a disk that takes larger files",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "choose a folder of yours",
    errno.EPERM: "choose a folder of yours",
    errno.ENAMETOOLONG: "choose a shorter name",
}
_HELD = (5, 32)  # Windows' errors for a file that is open elsewhere: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION
_WAITS = (0.02, 0.08, 0.3, 0.6)  # seconds between attempts to replace such a file: virus scanners are brief
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # an existing file is never opened


def read_path(path: object) -> Path:
    """Return a value as a path. Raises `InputError` if the value is neither a str nor a path."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a path was expected, not {path!r:.60}: pass a str or a Path")
    return Path(path)


def find_scheme(source: str) -> str:
    """Return the scheme of an address: hf for hf://a/b, and for hf:/a/b, as `Path` writes it; "" for a path."""
    match = _SCHEME.match(source)
    return match[1] if match else ""


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` for an address, such as https://example.org/x, unless a file has this name."""
    if (scheme := find_scheme(str(read_path(path)))) and not os.path.lexists(path):
        raise InputError(f"{scheme}://… is an address: download it, and pass the path of the file")


def open_bytes(path: str | os.PathLike[str], *, unpack: bool = True) -> IO[bytes]:
    """Open a file to read its bytes; its unpacked size is not limited, so read it in parts.

    unpack: decompress the file if its name ends in .gz.
    Raises `OSError` with a `strerror`, now or on reading, and `InputError` for an address.
    """
    refuse_address(path)
    if unpack and _is_packed(read_path(path)):
        return BufferedReader(_Unpacked(path), PIECE)
    return Path(path).open("rb")


def open_text(path: str | os.PathLike[str], *, errors: str = "strict") -> IO[str]:
    """Open a UTF-8 file to read its text, without a byte order mark; only line feeds end lines."""
    return TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors=errors, newline="\n")


def read_pieces(path: str | os.PathLike[str], *, unpack: bool = True) -> Iterator[bytes]:
    """Yield the content of a file in pieces of up to `PIECE` bytes.

    Raises `OSError` with a `strerror` if the file can't be read, is damaged, or unpacks to more than `MAX_RATIO` times
    its size.
    """
    with open_bytes(path, unpack=unpack) as file:
        bound = room = max(MIN_BOUND, MAX_RATIO * Path(path).stat().st_size)
        while piece := file.read(PIECE):
            room -= len(piece)
            if room < 0 and unpack and _is_packed(path):
                problem = f"it unpacks to more than {bound:,} bytes, {MAX_RATIO} times its size or more"
                raise OSError(errno.EFBIG, problem)
            yield piece


def read_bytes(path: str | os.PathLike[str], *, unpack: bool = True) -> bytes:
    return b"".join(read_pieces(path, unpack=unpack))


def read_text(path: str | os.PathLike[str], *, advice: str = _CHECK) -> str:
    """Return the content of a UTF-8 file.

    advice: what the error for a file that can't be read tells the user to do.
    Raises `InputError`, with path:line for bytes that are not UTF-8.
    """
    return "".join(read_text_pieces(path, advice=advice))


def read_text_pieces(path: str | os.PathLike[str], *, advice: str = _CHECK) -> Iterator[str]:
    """Yield the content of a UTF-8 file in pieces of text. Raises what `read_text` raises."""
    try:
        yield from decode_pieces(read_pieces(path), str(path))
    except InputError:
        raise  # a `ValueError`, too
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = first_line(getattr(error, "strerror", None) or error)
        raise InputError(f"{path}: can't be read ({reason}): {advice}") from error


def read_json(path: str | os.PathLike[str], *, advice: str = _CHECK) -> Any:
    """Return the value in a JSON file. Raises `InputError`, with path:line if it isn't UTF-8 or isn't JSON."""
    return parse_json(read_text(path, advice=advice), os.fspath(path), advice=advice)


def parse_json(text: str, place: str, *, advice: str) -> Any:
    """Return the value of a JSON text. Raises `InputError`, which calls the text `place`.

    >>> parse_json('["one"', "a.json", advice="pass a JSON list")
    Traceback (most recent call last):
    antislop.errors.InputError: a.json:1: not JSON (Expecting ',' delimiter): pass a JSON list
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, thousands of brackets
        reason = first_line(getattr(error, "msg", error))
        raise InputError(f"{place}:{getattr(error, 'lineno', 1)}: not JSON ({reason}): {advice}") from error


def decode(data: bytes, place: str) -> str:
    r"""Return bytes of UTF-8 as text, without a byte order mark. Raises `InputError`, which calls the bytes `place`.

    >>> decode(b"one\ntwo \xff", "a.txt")
    Traceback (most recent call last):
    antislop.errors.InputError: a.txt:2: not UTF-8 (invalid start byte): save the file as UTF-8
    """
    return "".join(decode_pieces([data], place))


def decode_pieces(pieces: Iterable[bytes], place: str) -> Iterator[str]:
    """Decode UTF-8 that comes in pieces, and yield its text in pieces. Raises what `decode` raises."""
    decoder, lines = getincrementaldecoder("utf-8-sig")(), 0
    for data in chain(pieces, [b""]):
        if b"\0" in data:  # as in UTF-16, whose bytes could be valid UTF-8
            raise InputError(f"{place}:1: {find_other_encoding(data)}")
        try:
            yield decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            if fault := find_other_encoding(bytes(error.object)):
                raise InputError(f"{place}:1: {fault}") from error
            line = lines + error.object.count(b"\n", 0, error.start) + 1
            raise InputError(f"{place}:{line}: not UTF-8 ({error.reason}): save the file as UTF-8") from error
        lines += data.count(b"\n")


def find_other_encoding(data: bytes) -> str | None:
    r"""Return a remark on what bytes are if they aren't UTF-8 text, and what to do; None if that is unknown.

    >>> find_other_encoding(b"\x89PNG\r\n\x1a\n\0\0\0")
    'not text but binary data: pass a text file'
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "not UTF-8 but UTF-16: save the file as UTF-8"
    return "not text but binary data: pass a text file" if b"\0" in data else None


def explain_write(error: OSError, *, advice: str) -> str:
    """Return why a file can't be written, and what to do: advice for this kind of error, or else `advice`.

    >>> explain_write(OSError(errno.ENOSPC, "No space left on device"), advice="pass the path of a file")
    "can't be written (No space left on device): free some space there"
    """
    return f"can't be written ({error.strerror or first_line(error)}): {_ADVICE.get(error.errno or 0, advice)}"


def takes_files(folder: Path) -> bool:
    """Return whether files can be made in a folder, by making a temporary one."""
    try:
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


class _Unpacked(RawIOBase):
    """The content of a gzip file as a stream. A damaged file raises `OSError`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = gzip.open(path, "rb")  # noqa: SIM115 - `close` closes it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read1(len(buffer))  # not `read`, which loses the data right before a damage
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(errno.EIO, f"not gzip, or cut off: {error}") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_packed(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".gz")


def open_to_append(path: str | os.PathLike[str]) -> IO[bytes]:
    return Path(path).open("ab")


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text to a file in one step, as `replacing` does; compress it if the file's name ends in .gz."""
    with replacing(path) as file:
        file.write(gzip.compress(text.encode(), mtime=0) if _is_packed(path) else text.encode())  # equal bytes


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield an open file that replaces the file at `path` when the block ends without an error.

    Readers find the old content or the new content, never a part. Missing folders are made. The mode is kept, a link's
    target is replaced, a device or a pipe is written to directly. Raises `OSError`, on Windows also if another program
    has the old file open for a second.
    """
    target = Path(os.path.realpath(read_path(path)))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name[:40]}.{token_hex(8)}")
    try:
        number = os.open(part, _NEW, 0o666 if mode is None else 0o600)
        with os.fdopen(number, "wb") as file:
            yield file
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        _move(part, target)
    except OSError as error:
        error.filename = str(target)  # not the hidden file's name
        raise
    finally:
        part.unlink(missing_ok=True)


def _move(part: Path, target: Path) -> None:
    """Move `part` to `target`; on Windows, wait up to a second until no other program has `target` open."""
    for seconds in (*_WAITS, None):
        try:
            part.replace(target)
        except OSError as error:
            if getattr(error, "winerror", None) not in _HELD:
                raise
            if seconds is None:
                problem = "another program has it open: close it there, and try again"
                raise PermissionError(errno.EACCES, problem, str(target)) from error
            time.sleep(seconds)
        else:
            return
