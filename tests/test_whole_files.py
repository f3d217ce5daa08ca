"""A file is replaced as a whole or not at all, its mode and its links stay, and no other file is touched."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antislop import BanList
from antislop.files import MIN_BOUND, read_bytes, replace_bytes, replace_text, replacing
from antislop.profiles.human_rates import Baseline
from antislop.profiles.profiles import Profile
from antislop.records.journal import Journal

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs modes and links of POSIX")


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def write_journal(path: Path) -> None:
    with Journal(path, {"seed": 1}, identify=lambda record: record["key"], force=True) as journal:
        journal.append({"key": len(journal)})


WRITERS: list[Callable[[Path], Any]] = [
    lambda path: replace_text(path, "new"),
    lambda path: BanList(["a cat"]).save(path),
    lambda path: Baseline("books", 9, 1, {}, {}).save(path),
    lambda path: Profile(1, 1, 1, 1, None, {}, ()).save(path),
    write_journal,
]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@needs_posix
@pytest.mark.parametrize("write", WRITERS)
def test_a_file_that_only_its_owner_may_read_stays_so(write: Callable[[Path], Any], tmp_path: Path) -> None:
    path, new = tmp_path / "kept", tmp_path / "new"
    path.write_text('{"key": "old"}\ntorn')
    path.chmod(0o600)
    write(path)
    write(new)
    assert b"torn" not in path.read_bytes()
    assert (mode_of(path), mode_of(new)) == (0o600, 0o644)


@needs_posix
@pytest.mark.parametrize("write", WRITERS)
def test_a_link_stays_and_its_target_is_replaced(write: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    target.write_text('{"key": "old"}\ntorn')
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert b"torn" not in target.read_bytes()


@needs_posix
@pytest.mark.parametrize("write", WRITERS)
def test_no_name_that_a_stranger_could_guess_is_written_to(write: Callable[[Path], Any], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("out.new", "out.part", "out.tmp", ".out.tmp", "out.run.json.new"):
        (tmp_path / name).symlink_to(victim)
    write(tmp_path / "out")
    assert victim.read_text() == "mine"


def test_what_fails_half_way_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@needs_posix
def test_a_device_is_written_to_and_not_replaced() -> None:
    replace_bytes("/dev/null", b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@needs_posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o400)
    with pytest.raises(PermissionError):
        replace_text(path, "new")


def test_a_name_of_any_length_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    replace_text(path, "one")
    replace_text(path, "two")
    assert path.read_text() == "two"


def test_a_compressed_file_is_unpacked_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "texts.gz"
    path.write_bytes(gzip.compress(json.dumps(["a cat"] * 9).encode()))
    assert json.loads(read_bytes(path)) == ["a cat"] * 9
    path.write_bytes(gzip.compress(b" " * (MIN_BOUND + 1)))
    with pytest.raises(OSError, match="unpacks to more than 16,777,216 bytes"):
        read_bytes(path)


DAMAGED = {
    "no gzip": b"no",
    "cut at its end": gzip.compress(b"abc" * 99)[:-9],
    "cut": gzip.compress(bytes(range(256)))[:40],
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_an_error_of_the_operating_system(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(OSError, match="not gzip, or cut off"):
        read_bytes(tmp_path / "a.gz")
