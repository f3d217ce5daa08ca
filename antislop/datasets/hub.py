"""Records as a data set of the Hugging Face hub: Parquet files, a card, the list of bans.

Format of cards: https://huggingface.co/docs/hub/datasets-cards.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import DatasetCardData, HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # not in its __all__

from antislop import __version__
from antislop.core.bans import BanList
from antislop.datasets.samples import measure_slop
from antislop.display import load_template, make_visible
from antislop.errors import DISTRIBUTION, InputError, first_line
from antislop.files.disk import read_bytes, read_json, replace_text, replacing
from antislop.files.journal import Record, read_records
from antislop.measure.languages import recognize

if TYPE_CHECKING:
    from datasets import Dataset

CARD, LIST = "README.md", "bans.txt"
ROWS_PER_FILE = 100_000
"""Records per Parquet file."""
MANIFEST = ".parquet-files.json"
"""File with the names of the files that this module wrote into a folder: only these may be replaced."""
LANGUAGE_SAMPLE = 1000
"""Number of responses from which the language is guessed."""

_COUNTS = ("violations", "withdrawn", "conceded", "rewinds_by_part")
_OWN_NAME = re.compile(r"data-[a-z-]*\d{5,}-of-\d{5,}\.parquet|bans\.txt")
_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")


def load_records(path: Path) -> Dataset:
    """Load the records of a journal as a data set, in the order of the journal, with all columns that any record has.

    Counts per ban and values of several types become JSON. Raises `InputError` if the package is missing.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        advice = f"pip install '{DISTRIBUTION}[datasets]'"
        raise InputError(f"Parquet and the hub need the package datasets: {advice}") from error
    import pyarrow as pa

    records = list(read_records(path))
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for record in records for name in record):  # failed records have fewer columns
        columns[name] = values = [record.get(name) for record in records]
        try:
            has_type = name not in _COUNTS and "struct<>" not in str(pa.array(values).type)  # objects without keys
        except (pa.ArrowException, OverflowError):
            has_type = False
        if not has_type:
            columns[name] = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return Dataset.from_dict(columns)


def write_parquet(path: Path, folder: Path) -> list[Path]:
    """Write a journal's records into Parquet files by arm, which replace earlier files; return the paths.

    Raises `InputError` if the folder has Parquet files of the same names that this function did not write.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    records = load_records(path)
    arms, shards = records["arm"], {}
    for arm in dict.fromkeys(arms):
        rows = records.select([number for number, record_arm in enumerate(arms) if record_arm == arm])
        count = -(-len(rows) // ROWS_PER_FILE)
        for number in range(count):
            shards[f"data-{arm}-{number:05}-of-{count:05}.parquet"] = rows.shard(count, number, contiguous=True)
    old_files = _read_own(folder)
    _write_own(folder, old_files.union(shards))
    for name, shard in shards.items():
        with _without_bars(), replacing(folder / name) as file:
            shard.to_parquet(file)
    for old_file in old_files.difference(shards, [LIST]):
        (folder / old_file).unlink(missing_ok=True)
    _write_own(folder, [*shards, *old_files.intersection([LIST])])
    return [folder / name for name in shards]


def check_folder(folder: Path) -> None:
    """Raise `InputError` if a folder has files of other origin under names that a data set uses.

    These files would be overwritten, removed, or read as a part of the data set.
    """
    own_files, card = _read_own(folder), folder / CARD
    strangers = [
        file
        for file in (*sorted(folder.glob("data-*-of-*.parquet")), folder / LIST)
        if file.name not in own_files and file.exists()
    ]
    if card.is_file() and "\n- antislop\n" not in read_bytes(card).decode(errors="replace")[:1000]:
        strangers.append(card)
    if strangers:
        raise InputError(f"{strangers[0]}: was not written by this command: move it, or choose another folder")


def check_repo(repo: str | None) -> None:
    """Raise `InputError` for a name that no repository of the hub can have."""
    try:
        if repo is not None:
            validate_repo_id(repo)
    except HFValidationError:
        raise InputError(f"--push-to-hub {repo!r}: a name such as me/stories was expected: correct it") from None


def _read_own(folder: Path) -> set[str]:
    """Return the names in a folder's manifest, without names that this module never gives to files."""
    try:
        names = read_json(folder / MANIFEST)
    except InputError:  # no manifest, or a damaged one: then every file counts as foreign
        return set()
    strings = names if isinstance(names, list) else []
    return {name for name in strings if isinstance(name, str) and _OWN_NAME.fullmatch(name)}


def _write_own(folder: Path, names: Iterable[str]) -> None:
    replace_text(folder / MANIFEST, json.dumps(sorted(names)) + "\n")


def write_card(folder: Path, records: Sequence[Record], bans: BanList, made_of: Mapping[str, Any]) -> Path:
    """Write a card into a folder, and the list of bans beside it; return the card's path. made_of: see `make_card`."""
    if bans:
        _write_own(folder, _read_own(folder) | {LIST})
        bans.save(folder / LIST)
    path = folder / CARD
    replace_text(path, make_card(folder.resolve().name, records, bans, made_of))
    return path


def make_card(title: str, records: Sequence[Record], bans: BanList, made_of: Mapping[str, Any]) -> str:
    """Return a card as Markdown.

    made_of: has the keys source, model and command; if known, license and language, as identifiers of the hub; pairs,
        the format of the preference pairs, if there are any; and all settings of the records.
    """
    shown_elsewhere = ("command", "license", "language")
    settings = {name: value for name, value in made_of.items() if name not in shown_elsewhere}
    counts = Counter(record["arm"] for record in records)
    text = load_template("dataset_card.md").render(
        title=title,
        records=len(records),
        made_of=made_of,
        version=__version__,
        arms=counts,
        slop=measure_slop(records, bans),
        bans=bans,
        list=LIST,
        settings=list_settings(settings),
    )
    data = DatasetCardData(
        pretty_name=title,
        license=made_of.get("license") or "unknown",
        language=made_of.get("language") or find_language(records),
        size_categories=[_SIZES[min(max(0, len(str(len(records))) - 3), len(_SIZES) - 1)]],
        task_categories=["text-generation"],
        tags=["synthetic", "antislop"],
        configs=[
            {"config_name": "default", "data_files": "data-*.parquet"},
            *({"config_name": arm, "data_files": f"data-{arm}-*.parquet"} for arm in counts),
        ],
    )
    return f"---\n{data.to_yaml()}\n---\n\n{text}\n"


def list_settings(settings: Mapping[str, Any]) -> str:
    """Return a Markdown table of the settings that are not None, with values as code."""
    rows = ["| setting | value |", "|---|---|"]
    for name, value in settings.items():
        if value is not None:
            text = make_visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            code = text.replace("`", "'").replace("|", "\\|")
            rows.append(f"| {name} | `{code}` |")
    return "\n".join(rows)


def find_language(records: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the code of the language of the first responses; None if it is not known."""
    responses = (record["response"] for record in records if record["response"])
    language = recognize(islice(responses, LANGUAGE_SAMPLE))
    return None if language is None else language.code


def push(folder: Path, repo: str) -> None:
    """Push the Parquet files, the card and the bans of a folder to a data set repository, in place of older ones.

    Needs a login (`hf auth login`). Raises `InputError` with the hub's error.
    """
    patterns = [CARD, LIST, "data-*.parquet"]
    try:
        repo_id = HfApi().create_repo(repo, repo_type="dataset", exist_ok=True).repo_id
        HfApi().upload_folder(
            repo_id=repo_id, repo_type="dataset", folder_path=folder, allow_patterns=patterns, delete_patterns=patterns
        )
    except Exception as error:  # names, logins and networks fail with many types of errors
        raise InputError(
            f"{repo} can't be pushed to ({first_line(error)}): log in with hf auth login, check the name and the "
            f"network, and run it again; the data set is in {folder}"
        ) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    import datasets

    was_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            datasets.enable_progress_bars()
