"""Records as Parquet, and on the Hugging Face hub, by the package datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from antislop.records import Record, read_records, replace_bytes

if TYPE_CHECKING:
    from datasets import Dataset

_COUNTS = ("violations", "conceded")
ROWS = 100_000
"""Records in a file of Parquet."""


def load_records(path: Path) -> Dataset:
    """Load the records of a journal as a data set, in the order of their keys' first appearance.

    Counts per ban become JSON, since a column for each ban would be mostly empty. Raises `ValueError` where the package
    is missing.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise ValueError("Parquet and the hub need the package datasets: pip install 'antislop[datasets]'") from error
    return Dataset.from_list([_flatten(record) for record in read_records(path)])


def write_parquet(path: Path, folder: Path) -> list[Path]:
    """Write the records of a journal into Parquet files of a folder, and remove those that were there before."""
    records = load_records(path)
    shards = max(1, -(-len(records) // ROWS))
    names = [folder / f"data-{number:05}-of-{shards:05}.parquet" for number in range(shards)]
    for number, name in enumerate(names):
        part = name.with_suffix(".new")
        records.shard(shards, number, contiguous=True).to_parquet(part)
        replace_bytes(name, part.read_bytes())
        part.unlink()
    for other in set(folder.glob("data-*-of-*.parquet")) - set(names):
        other.unlink()
    return names


def push(path: Path, repo: str, *, card: Path) -> None:
    """Push the records of a journal and a card to a data set repository of the hub.

    Needs a login (`hf auth login`). Raises `ValueError` with what the hub said.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        load_records(path).push_to_hub(repo)
        HfApi().upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo, repo_type="dataset")
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise ValueError(
            f"{repo} can't be pushed to ({reason}): log in with hf auth login, and check the name"
        ) from error


def _flatten(record: Record) -> Record:
    counts = {name: json.dumps(record[name], ensure_ascii=False) for name in _COUNTS if name in record}
    return {**record, **counts}
