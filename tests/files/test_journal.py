"""A journal keeps every record once, whatever happens to the process that writes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from antislop.errors import InputError
from antislop.files.journal import Journal, Record, read_records
from tests.support.refusals import refused

SETTINGS = {"model": "m", "seed": 1}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "folder" / "out.jsonl"


def by_key(record: Record) -> Any:
    return record["key"]


def journal(path: Path, settings: dict[str, Any] = SETTINGS, **options: Any) -> Journal:
    return Journal(path, settings, identify=by_key, **options)


def test_appended_records_are_written_before_the_journal_is_closed(path: Path) -> None:
    with journal(path) as kept:
        for key in ("a", "ü\n", "\ud800"):
            kept.append({"key": key})
        assert path.read_bytes().count(b"\n") == 3
        assert len(kept) == 3
    assert [record["key"] for record in read_records(path)][:2] == ["a", "ü\n"]


def test_settings_and_paths_that_are_none_are_refused_before_a_file_is_made(path: Path) -> None:
    for settings, additions in (("seed", ()), ({"seed": 1}, 3)):
        refused(r"^settings is .*, additions .*: pass a dict and a list$", journal, path, settings, additions=additions)
    for call in (journal, read_records):
        refused(r"^a path was expected, not 3: pass a str or a Path$", call, 3)
    assert not path.parent.exists()


def test_a_resumed_run_knows_its_records(path: Path) -> None:
    with journal(path) as kept:
        kept.append({"key": "a"})
    with journal(path) as kept:
        assert "a" in kept
        assert "b" not in kept
        kept.append({"key": "b"})
    assert [record["key"] for record in read_records(path)] == ["a", "b"]


@given(torn=st.integers(0, 200))
def test_a_journal_that_was_cut_anywhere_loses_the_torn_record_only(
    tmp_path_factory: pytest.TempPathFactory, torn: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "out.jsonl"
    with journal(path) as kept:
        for key in range(5):
            kept.append({"key": key, "text": "é" * key})
    data = path.read_bytes()[:torn]
    path.write_bytes(data)
    whole = data[: data.rfind(b"\n") + 1].count(b"\n")
    with journal(path) as kept:
        assert len(kept) == whole
        kept.append({"key": 9})
    assert [record["key"] for record in read_records(path)] == [*range(whole), 9]


def test_records_that_failed_are_taken_out_to_be_made_again(path: Path) -> None:
    with journal(path) as kept:
        kept.append({"key": "a", "status": "error"})
        kept.append({"key": "b", "status": "ok"})
    with journal(path, is_done=lambda record: record["status"] == "ok") as kept:
        assert ("a" in kept, "b" in kept) == (False, True)
        kept.append({"key": "a", "status": "ok"})
    assert [(record["key"], record["status"]) for record in read_records(path)] == [("b", "ok"), ("a", "ok")]


def test_a_duplicate_record_is_kept_once(path: Path) -> None:
    with journal(path) as kept:
        kept.append({"key": "a", "n": 1})
        kept.append({"key": "a", "n": 2})
    with journal(path):
        assert [record["n"] for record in read_records(path)] == [1]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ({"seed": 1}, {"seed": 2}, r"was made with seed=1, and this run has seed=2: choose another file"),
        ({"seed": 1}, {"seed": 1, "top": 5}, r"was made with top=None, and this run has top=5"),
        (
            {"draw": {"k": 1, "p": 2}, "seed": 1},
            {"draw": {"k": 3, "p": 2, "t": 4}, "seed": 1},
            r"was made with draw.k=1, draw.t=None, and this run has draw.k=3, draw.t=4:",
        ),
    ],
)
def test_other_settings_are_refused_with_the_difference_unless_forced(
    path: Path, old: dict[str, Any], new: dict[str, Any], sentence: str
) -> None:
    with journal(path, old) as kept:
        kept.append({"key": "a"})
    refused(sentence, journal, path, new)
    journal(path, old).__exit__()  # the refused one keeps no lock
    journal(path, new, force=True).__exit__()
    journal(path, new).__exit__()


def test_a_journal_without_records_accepts_other_settings(path: Path) -> None:
    journal(path).__exit__()
    journal(path, {"seed": 2}).__exit__()


def test_a_second_process_is_refused_until_the_first_ends_however_it_ends(path: Path) -> None:
    """The second replaced the file, and the first went on writing to the one that had no name any more."""
    held = (
        "import sys, time; from antislop.files.journal import Journal; "
        f"journal = Journal(sys.argv[1], {SETTINGS}, identify=lambda record: record['key']); "
        "journal.append({'key': 'theirs'}); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", held, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        refused(r"out\.jsonl: another process is writing to it: wait until it ends", journal, path, force=True)
        process.kill()
    with journal(path) as kept:
        assert "theirs" in kept
        kept.append({"key": "mine"})
    assert [record["key"] for record in read_records(path)] == ["theirs", "mine"]


def test_two_names_of_a_journal_have_one_lock(path: Path, tmp_path: Path) -> None:
    with journal(path):
        (tmp_path / "link.jsonl").symlink_to(path)
        refused("another process", journal, tmp_path / "link.jsonl")
    journal(tmp_path / "link.jsonl").__exit__()


@pytest.mark.parametrize(
    ("files", "force", "sentence"),
    [
        ({"out.jsonl": '{"mine": 1}\n'}, True, "its lines are not records of such a run"),
        ({"out.jsonl": '{"key": "mine"}\n'}, False, "its settings are unknown"),
        (
            {"out.jsonl": '{"key": "a"}\n', "out.jsonl.run.json": "{"},
            False,
            r"run\.json:1: not JSON \(.*\): use --force",
        ),
        ({".": ""}, False, "can't be written"),  # a file where the folder would be
    ],
)
def test_a_place_that_can_not_be_used_is_refused_and_left_as_it_is(
    path: Path, files: dict[str, str], force: bool, sentence: str
) -> None:
    if "." not in files:
        path.parent.mkdir()
    for name, text in files.items():
        (path.parent / name).write_text(text)
    refused(sentence, journal, path, force=force)
    assert {name: (path.parent / name).read_text() for name in files} == files


def test_a_file_of_unknown_origin_is_resumed_if_forced(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"key": "mine"}\n')
    with journal(path, force=True) as kept:
        assert "mine" in kept


def test_settings_are_compared_as_they_will_be_read_again(path: Path) -> None:
    journal(path, {"arms": ("plain", "banned")}).__exit__()
    journal(path, {"arms": ["plain", "banned"]}).__exit__()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with journal(tmp_path / "out.jsonl") as kept, open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        mine, kept._file = kept._file, full
        with pytest.raises(
            InputError,
            match=r"can't be written \(No space left on device\): free some space there, and run it again to resume$",
        ):
            kept.append({"key": "a"})
        kept._file = mine


@given(records=st.lists(st.dictionaries(st.just("key"), st.text(), min_size=1), unique_by=lambda r: r["key"]))
def test_records_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("same") / "out.jsonl"
    with journal(path) as kept:
        for record in records:
            kept.append(record)
    assert list(read_records(path)) == records
    assert json.loads(path.with_name("out.jsonl.run.json").read_text()) == SETTINGS
