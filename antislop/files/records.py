"""Read files of records, one record at a time: JSON Lines, JSON, text, CSV, Parquet.

A broken record becomes a record with an error, so that the records after it are still read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from antislop.errors import DISTRIBUTION, InputError, first_line
from antislop.files.disk import decode, find_other_encoding, open_text, parse_json, read_bytes

MAX_LINE = 10_000_000
"""The most characters of a line, and of a CSV cell: as many as in several long books."""
NEEDS_DATASETS = f"needs the packages datasets and pyarrow: pip install '{DISTRIBUTION}[datasets]'"

_BATCH = 64  # rows of Parquet in memory
_ENCODING = "not UTF-8: save the file as UTF-8"
_LENGTH = f"longer than {MAX_LINE:,} characters: write one record per line, and shorten it"


class RawRecord(NamedTuple):
    """A record as read from a file.

    place: what errors call the record, such as path:line.
    key: the record's name, if the file is a JSON object of named records.
    error: the reason why the record can't be used; None if it can.
    """

    place: str
    value: Any
    key: str | None = None
    error: str | None = None


def is_readable(path: Path) -> bool:
    return _kind(path) in KINDS


def read_file(path: Path) -> Iterator[RawRecord]:
    """Yield the records of a file of one of the `KINDS`, such as a.csv or a.csv.gz. Only .json files are read whole.

    Raises `InputError` if not even the first record can be read.
    """
    if not is_readable(path):
        suffixes = ", ".join(sorted(KINDS))
        raise InputError(
            f"{path}: not a file of records by its name: expected a suffix {suffixes}, or .gz after any but .parquet"
        )
    return guard(KINDS[_kind(path)](path), str(path))


def guard(records: Iterator[RawRecord], name: str) -> Iterator[RawRecord]:
    """Yield records. If reading fails, raise `InputError` before the first record; later, yield an error record."""
    latest_record = None
    try:
        for latest_record in records:
            yield latest_record
    except OSError as error:
        reason = first_line(getattr(error, "strerror", None) or error)
        if latest_record is None:
            raise InputError(f"{name}: can't be read ({reason}): check the file") from error
        fault = f"nothing after this can be read ({reason}): repair it or download it again"
        yield RawRecord(latest_record.place, None, error=fault)


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # of lone surrogates
        return False
    return True


def _kind(path: Path) -> str:
    """Return a path's suffix: .csv for a.csv, and for a.csv.gz."""
    suffix = path.suffix.lower()
    if suffix != ".gz":
        return suffix
    inner = path.with_suffix("").suffix.lower()
    return "" if inner == ".parquet" else inner  # Parquet needs random access


def _open_text(path: Path) -> IO[str]:
    return open_text(path, errors="surrogateescape")  # bytes that are not UTF-8 become lone surrogates


def _lines(path: Path) -> Iterator[tuple[str, str, str | None]]:
    with _open_text(path) as file:
        for number, (line, is_whole) in enumerate(_read_lines(file), start=1):
            if number == 1 and (fault := find_other_encoding(line.encode("utf-8", "surrogateescape"))):
                raise InputError(f"{path}:1: {fault}")
            if line.strip():
                error = _LENGTH if not is_whole else None if is_unicode(line) else _ENCODING
                yield f"{path}:{number}", line.rstrip("\r\n"), error


def _read_lines(file: IO[str]) -> Iterator[tuple[str, bool]]:
    """Yield (line, is_whole); the part of a line beyond `MAX_LINE` characters is skipped."""
    while line := file.readline(MAX_LINE + 1):
        is_whole = piece_ends = len(line) <= MAX_LINE or line.endswith("\n")
        while not piece_ends:
            piece = file.readline(MAX_LINE)
            piece_ends = not piece or piece.endswith("\n")
        yield line, is_whole


def _read_json_lines(path: Path) -> Iterator[RawRecord]:
    for number, (place, line, error) in enumerate(_lines(path)):
        value, error = (None, error) if error else _parse(line)
        names = value.keys() if number == 0 and isinstance(value, dict) else set()
        # The first line of a chat of SillyTavern is no message.
        if "mes" in names or not ("chat_metadata" in names or {"user_name", "character_name"} <= names):
            yield RawRecord(place, value, error=error)


def _parse(line: str) -> tuple[Any, str | None]:
    try:
        return json.loads(line), None
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error.msg} at column {error.colno}): correct the line"
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of nested brackets
        return None, f"not JSON that can be read ({first_line(error)}): correct the line"


def _read_json(path: Path) -> Iterator[RawRecord]:
    """Read a list of records, {"data": [...]}, an object of named records, a single record, or JSON Lines."""
    first_lines = [line for _, line, _ in islice(_lines(path), 2)]
    if len(first_lines) == 2 and isinstance(_parse(first_lines[0])[0], (dict, str)):
        yield from _read_json_lines(path)
        return
    text = decode(read_bytes(path), str(path))
    if text.strip():
        advice = "correct it, or write one record per line as .jsonl"
        content = parse_json(text, str(path), advice=advice)
        if isinstance(content, dict) and isinstance(content.get("data"), list):
            content = content["data"]
        if isinstance(content, dict) and content and all(isinstance(value, dict) for value in content.values()):
            for name, value in content.items():
                yield RawRecord(f"{path}, record {name!r}", value, key=name)
        else:
            for number, value in enumerate(content if isinstance(content, list) else [content]):
                yield RawRecord(f"{path}, record {number}", value)


def _read_csv(path: Path) -> Iterator[RawRecord]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    with _open_text(path) as file:
        header = next((line for line, _ in _read_lines(file) if line.strip()), "")
    with _open_text(path) as file:
        cut: list[str] = []
        rows = csv.reader(_note_cut(file, cut), delimiter=max(",;\t", key=header.count), strict=True)
        try:
            names = next((row for row in rows if row), [])
        except csv.Error as error:
            advice = "write the names of the columns into the first line"
            raise InputError(f"{path}:1: not CSV ({error}): {advice}") from error
        if len(set(names)) < len(names) or not all(map(is_unicode, names)):
            raise InputError(f"{path}:1: the first line must name the columns, each once and in UTF-8: correct it")
        while True:
            place = f"{path}:{rows.line_num + 1}"
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield RawRecord(place, None, error=f"not CSV ({error}): correct the line, or close its quotes")
                continue
            if cells:
                fault = _LENGTH if cut else None if all(map(is_unicode, cells)) else _ENCODING
                if not cut and len(cells) != len(names):
                    advice = "correct the line, or put quotes around its cells"
                    fault = f"the number of cells is {len(cells)}, and that of column names {len(names)}: {advice}"
                yield RawRecord(place, dict(zip(names, cells, strict=False)), error=fault)
            cut.clear()


def _note_cut(file: IO[str], cut: list[str]) -> Iterator[str]:
    for line, is_whole in _read_lines(file):
        if not is_whole:
            cut.append(line[:40])
        yield line


def _read_parquet(path: Path) -> Iterator[RawRecord]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(f"{path}: Parquet {NEEDS_DATASETS}") from error
    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                for row in batch.to_pylist():
                    yield RawRecord(f"{path}, record {number}", row)
                    number += 1
    except (ArrowException, ValueError) as error:  # a damaged file, or times beyond the range of Python
        raise OSError(first_line(error)) from error


KINDS = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".txt": lambda path: (RawRecord(place, line, error=error) for place, line, error in _lines(path)),
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
