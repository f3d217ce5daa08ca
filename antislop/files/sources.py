"""Read records from sources: files, folders, data sets of the hub, Python iterables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from antislop.errors import InputError, first_line
from antislop.files.disk import read_bytes, refuse_address
from antislop.files.records import NEEDS_DATASETS, RawRecord, guard, is_readable, is_unicode, read_file

Source = str | os.PathLike[str] | Iterable[Mapping[str, Any] | str]

MAX_DEPTH = 100  # of nested lists and objects; the depth at which json fails depends on its caller

_NOT_RECORDS = {"dataset_info.json", "dataset_infos.json"}
_SPLITS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing", "eval", "evaluation"},
}


class SourceRecord(NamedTuple):
    """One record of a source; place, key and error as in `RawRecord`.

    number: index in the source, from 0; blank lines don't count, broken lines do.
    fields: columns, as JSON values; a bare string becomes the column "prompt".
    """

    number: int
    place: str
    fields: dict[str, Any]
    key: str | None = None
    error: str | None = None


def read_records(source: Source, *, split: str = "train") -> Iterator[SourceRecord]:
    """Read a source record by record. Raises `InputError` at once if nothing can be read.

    source: the path of a file or a folder; a data set of the hub as owner/name or owner/name:configuration; or strings
        and mappings.
    split: the split to read of a folder or a data set of the hub. A file of a folder belongs to the split that its path
        names ("test", "dev", …), else to "train".

    Lone surrogates become U+FFFD, NaN and infinities null, and values of other types text.
    """
    raw_records = _open_source(source, split)
    head = list(islice(raw_records, 1))
    if not head:
        raise InputError(f"{name_source(source)}: contains no records: pass a source with at least one")
    return (_make_record(number, record) for number, record in enumerate(chain(head, raw_records)))


def name_source(source: Source) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the passed records"


def _make_record(number: int, raw_record: RawRecord) -> SourceRecord:
    place, value, key, error = raw_record
    fields: dict[str, Any] = {}
    if error is None and isinstance(value, (str, Mapping)):
        try:
            fields = to_json({"prompt": value} if isinstance(value, str) else value)
        except ValueError as fault:
            error = str(fault)
    elif error is None:
        error = f"a text or an object with columns was expected, not {type(value).__name__}: correct the record"
    return SourceRecord(number, place, fields, key and _clean(key), f"{place}: {error}" if error else None)


def to_json(value: Any, *, depth: int = 0) -> Any:
    """Return a copy of a value in the types of JSON; bytes become "(3 bytes)", values of other types their `str`."""
    if depth > MAX_DEPTH:
        raise InputError(f"lists and objects are nested more than {MAX_DEPTH} deep: flatten the record")
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_clean(str(name)): to_json(item, depth=depth + 1) for name, item in value.items()}
        case list() | tuple():
            return [to_json(item, depth=depth + 1) for item in value]
        case bytes() | bytearray() | memoryview():
            return f"({len(value)} bytes)"
        case _ if hasattr(value, "tolist"):  # NumPy's numbers and arrays
            return to_json(value.tolist(), depth=depth + 1)
        case _:
            return _clean(str(value))


def _clean(text: str) -> str:
    return text if is_unicode(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _open_source(source: Source, split: str) -> Iterator[RawRecord]:
    if isinstance(source, (str, os.PathLike)):
        return _open_path(os.fspath(source), split)
    if isinstance(source, Mapping):
        names = ", ".join(map(str, islice(source, 10)))
        raise InputError(f"records were expected, not a mapping of {names}: pass one of its values, or a list of it")
    if isinstance(source, (bytes, bytearray)) or not isinstance(source, Iterable):
        raise InputError(f"a path or records were expected, not {type(source).__name__}: pass a str, Path or list")
    _refuse_split("records that are passed have", split)
    return (RawRecord(f"record {number}", value) for number, value in enumerate(source))


def _open_path(name: str, split: str) -> Iterator[RawRecord]:
    path = Path(name).expanduser()
    if os.path.exists(path):  # noqa: PTH110 - Path raises for long names and zeros
        if path.is_dir():
            return _read_folder(path, split)
        _refuse_split(f"{name}: a file has", split)
        return read_file(path)
    if not is_readable(path) and re.fullmatch(r"(?!\.)[\w.-]+(/[\w.-]+)?(:[\w.-]+)?", name, re.ASCII):
        path_or_id, _, configuration = name.partition(":")
        return guard(_number_rows(_load_rows(path_or_id, split, configuration=configuration or None), name), name)
    refuse_address(name)
    raise InputError(f"{name}: no such file or folder: check the path")


def _refuse_split(subject: str, split: str) -> None:
    if split != "train":
        raise InputError(f"{subject} no splits: leave out split={split!r} (--split)")


# -- folders and the hub ----------------------------------------------------------------------------------------------


def _read_folder(folder: Path, split: str) -> Iterator[RawRecord]:
    """Read a folder with `datasets` if `datasets` saved it, or if it has a card; else read its files by name order."""
    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        return guard(_number_rows(_load_saved(folder, split), str(folder)), str(folder))
    try:
        card = read_bytes(folder / "README.md").decode(errors="replace")
    except OSError:
        card = ""
    if re.match(r"---\n(?:(?!---).*\n)*configs:", card):
        return guard(_number_rows(_load_rows(str(folder), split), str(folder)), str(folder))
    shown = [p for p in sorted(folder.rglob("*")) if not any(name[:1] == "." for name in p.relative_to(folder).parts)]
    files = [path for path in shown if path.name not in _NOT_RECORDS and is_readable(path) and path.is_file()]
    if not files:
        raise InputError(
            f"{folder}: contains no file that can be read: put .jsonl, .json, .txt, .csv or .parquet files there"
        )
    wanted = next((name for name, names in _SPLITS.items() if split in names), split)  # "val" is "validation"
    chosen = [path for path in files if _split_of(path, folder) == wanted]
    if not chosen:
        splits = ", ".join(sorted({_split_of(path, folder) for path in files}))
        raise InputError(f"{folder}: no file of the split {split!r}; there are: {splits}: pass one as split (--split)")
    return _read_files(chosen, folder)


def _read_files(paths: list[Path], folder: Path) -> Iterator[RawRecord]:
    has_records = False
    for path in paths:
        try:
            for record in read_file(path):
                has_records = True
                yield record
        except InputError as error:  # the error names the file
            if not has_records:
                raise
            yield RawRecord(str(folder), None, error=str(error))


def _split_of(path: Path, folder: Path) -> str:
    words = re.split(r"[^a-z]+", str(path.relative_to(folder)).lower())
    return next((split for word in words for split, names in _SPLITS.items() if word in names), "train")


def _load_rows(path: str, split: str, *, configuration: str | None = None) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f"{path}: no file of records here, and a data set of the hub {NEEDS_DATASETS}") from error
    try:
        rows = load_dataset(path, configuration, split=split, streaming=True)
        return rows.decode(False) if hasattr(rows, "decode") else rows  # images and sounds stay bytes
    except Exception as error:  # downloads, configurations and splits fail with many types of errors
        raise InputError(
            f"{path}: neither a file or folder here nor a data set that datasets can load ({first_line(error)}): check "
            "the name, the split (--split), a configuration as owner/name:configuration, and the network"
        ) from error


def _load_saved(folder: Path, split: str) -> Any:
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise InputError(f"{folder}: a saved data set {NEEDS_DATASETS}") from error
    try:
        saved = load_from_disk(str(folder))
    except Exception as error:  # a damaged folder fails with many types of errors
        raise InputError(f"{folder}: datasets can't load it ({first_line(error)}): save it again") from error
    if not isinstance(saved, dict):
        _refuse_split(f"{folder}: this data set has", split)
        return saved
    if split not in saved:
        raise InputError(f"{folder}: no split {split!r}; there are: {', '.join(saved)}: pass one as split (--split)")
    return saved[split]


def _number_rows(rows: Iterable[Any], name: str) -> Iterator[RawRecord]:
    try:
        for number, row in enumerate(rows):
            yield RawRecord(f"{name}, record {number}", row)
    except Exception as error:  # downloads fail with many types of errors
        raise OSError(first_line(error)) from error
