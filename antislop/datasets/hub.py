"""Records as Parquet, and on the Hugging Face hub, by the package datasets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antislop.errors import InputError
from antislop.files import read_bytes, read_json, replace_text, replacing
from antislop.records.journal import read_records

if TYPE_CHECKING:
    from datasets import Dataset

_COUNTS = ("violations", "withdrawn", "conceded")
ROWS = 100_000
"""Records in a file of Parquet."""
MANIFEST = ".parquet-files.json"
"""The file of a folder that names the Parquet files which were written into it, and no others may be replaced."""


def load_records(path: Path) -> Dataset:
    """Load the records of a journal as a data set, in the order of their keys' first appearance.

    Counts per ban become JSON, since a column for each ban would be mostly empty; so do columns that hold values of
    several types. Raises `InputError` where the package is missing.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise InputError("Parquet and the hub need the package datasets: pip install 'antislop[datasets]'") from error
    records = list(read_records(path))
    names = dict.fromkeys(name for record in records for name in record)  # a record that failed has fewer columns
    return Dataset.from_dict({name: _fit(name, [record.get(name) for record in records]) for name in names})


def write_parquet(path: Path, folder: Path) -> list[Path]:
    """Write the records of a journal into Parquet files of a folder, in place of those that it wrote there before.

    Raises `InputError` for a folder that holds Parquet files of others by such names.
    """
    check_folder(folder)
    records = load_records(path)
    shards = max(1, -(-len(records) // ROWS))
    names = [f"data-{number:05}-of-{shards:05}.parquet" for number in range(shards)]
    before = _read_own(folder)
    _write_own(folder, before.union(names))
    for number, name in enumerate(names):
        with _without_bars(), replacing(folder / name) as file:
            records.shard(shards, number, contiguous=True).to_parquet(file)
    for other in before.difference(names):
        (folder / other).unlink(missing_ok=True)
    _write_own(folder, names)
    return [folder / name for name in names]


def check_folder(folder: Path) -> None:
    """Raise `InputError` for a folder with Parquet files or a card that are not ours, but have the names of ours.

    They would be overwritten, removed, or taken for a part of the data set.
    """
    own, card = _read_own(folder), folder / "README.md"
    strangers = [file for file in sorted(folder.glob("data-*-of-*.parquet")) if file.name not in own]
    if card.is_file() and "\n- antislop\n" not in read_bytes(card).decode(errors="replace")[:1000]:
        strangers.append(card)
    if strangers:
        raise InputError(f"{strangers[0]}: was not written by this command: move it, or choose another folder")


def _read_own(folder: Path) -> set[str]:
    """Return the names of the Parquet files that `write_parquet` wrote, without anything that is no such name."""
    try:
        names = read_json(folder / MANIFEST)
    except InputError:  # none, or not ours: then no file is
        return set()
    known = names if isinstance(names, list) else []
    return {name for name in known if isinstance(name, str) and re.fullmatch(r"data-\d{5,}-of-\d{5,}\.parquet", name)}


def _write_own(folder: Path, names: Iterable[str]) -> None:
    replace_text(folder / MANIFEST, json.dumps(sorted(names)) + "\n")


def push(folder: Path, repo: str) -> None:
    """Push the Parquet files and the card of a folder to a data set repository of the hub, in place of older ones.

    Needs a login (`hf auth login`). Raises `InputError` with what the hub said.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        repo_id = api.create_repo(repo, repo_type="dataset", exist_ok=True).repo_id
        patterns = ["README.md", "data-*.parquet"]
        api.upload_folder(
            repo_id=repo_id, repo_type="dataset", folder_path=folder, allow_patterns=patterns, delete_patterns=patterns
        )
    except Exception as error:  # names, logins and networks fail in a dozen ways
        reason = str(error).strip().split("\n", maxsplit=1)[0].rstrip(".")
        raise InputError(
            f"{repo} can't be pushed to ({reason}): what was made is in {folder}; log in with hf auth login, check the "
            "name and the network, and run it again"
        ) from error


def _fit(name: str, values: list[Any]) -> list[Any]:
    """Return a column as Parquet can hold it: as it is, or as JSON."""
    import pyarrow as pa

    if name not in _COUNTS:
        try:
            if "struct<>" not in str(pa.array(values).type):  # an object without names
                return values
        except (pa.ArrowException, OverflowError):
            pass
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the package datasets from showing its own progress."""
    import datasets

    was_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            datasets.enable_progress_bars()
