"""A resumable journal: JSON Lines, flushed after each record, and a file with the settings of the run.

A lock admits one process at a time. A killed process loses its lock and the record that it was writing; the next run
removes the incomplete line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypeAlias

from filelock import FileLock, Timeout

from antislop.errors import InputError
from antislop.files.disk import explain_write, open_bytes, open_to_append, read_json, read_path, replace_text, replacing

Record: TypeAlias = dict[str, Any]

_FORCE = "use --force to overwrite it"


class Journal:
    """The records of one run, in a file that is open and locked until the context ends.

    identify: returns a record's identity, which is unique in the journal.
    is_done: returns whether a resumed run keeps a record, and does not make it again.
    fingerprint: returns a hash of a record's input, for `fingerprint_of`.
    additions: names of settings that a run may have though the previous run had not.
    force: whether to resume even if settings differ.

    previous: settings of the resumed run, if any.
    damaged: number of damaged lines that were removed, not counting an incomplete last line.
    dropped: identities of the records that `drop` removed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "out.jsonl"
    >>> with Journal(path, {"seed": 1}, identify=lambda record: record["key"]) as journal:
    ...     journal.append({"key": "a"})
    >>> with Journal(path, {"seed": 1}, identify=lambda record: record["key"]) as journal:
    ...     "a" in journal, "b" in journal
    (True, False)
    >>> Journal(path, {"seed": 2}, identify=lambda record: record["key"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    antislop.errors.InputError: ...out.jsonl was made with seed=1, and this run has seed=2: ...
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Any],
        *,
        identify: Callable[[Record], Any],
        is_done: Callable[[Record], bool] = bool,
        fingerprint: Callable[[Record], str | None] = lambda _: None,
        additions: Collection[str] = (),
        force: bool = False,
    ) -> None:
        self.path = read_path(path)
        if not (isinstance(settings, Mapping) and isinstance(additions, Collection)):
            raise InputError(f"settings is {settings!r:.40}, additions {additions!r:.40}: pass a dict and a list")
        self.previous: Mapping[str, Any] = {}
        self.damaged = 0
        self.dropped: set[Any] = set()
        self._identify = identify
        self._fingerprint = fingerprint
        self._fingerprints: dict[Any, str | None] = {}
        self._file: IO[bytes] | None = None
        with ExitStack() as self._locks:
            self.lock(self.path)
            try:
                settings = json.loads(json.dumps(settings))  # in the form in which they are read back
                if self.path.exists() and self.path.stat().st_size:  # an empty file fits any settings
                    self.previous = self._read_description(force=force)
                    if not force:
                        self._compare(settings, additions)
                self._clean_up(is_done)
                replace_text(self.description, json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
                self._file = open_to_append(self.path)
            except OSError as error:
                raise InputError(f"{self.path}: {explain_write(error, advice='choose another place')}") from error
            self._locks = self._locks.pop_all()  # they stay locked

    @property
    def description(self) -> Path:
        """The file with the settings of the run."""
        return self.path.with_name(self.path.name + ".run.json")

    def append(self, record: Record) -> None:
        """Write a record and flush it to the operating system."""
        assert self._file is not None, "the journal is closed"
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise self._not_written(error) from error
        self._fingerprints[self._identify(record)] = self._fingerprint(record)

    def fingerprint_of(self, identity: object) -> str | None:
        return self._fingerprints[identity]

    def lock(self, path: Path) -> None:
        """Lock another file until the journal is closed."""
        self._locks.callback(lock_file(path).release)

    def drop(self, identities: Collection[Any]) -> None:
        if not identities:
            return
        assert self._file is not None, "the journal is closed"
        self.dropped |= set(identities)
        remaining_lines = [
            line for line, record in read_lines(self.path) if record and self._identify(record) not in self.dropped
        ]
        self._file.close()
        replace_lines(self.path, remaining_lines)
        self._file = open_to_append(self.path)
        for identity in identities:
            del self._fingerprints[identity]

    def __contains__(self, identity: object) -> bool:
        return identity in self._fingerprints

    def __len__(self) -> int:
        return len(self._fingerprints)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
        except OSError as error:  # closing retries the write of `append` that failed
            raise self._not_written(error) from error
        finally:
            self._locks.close()

    def _not_written(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: {explain_write(error, advice='check the disk')}, and run it again to resume")

    def _read_description(self, *, force: bool) -> Mapping[str, Any]:
        if not (force or self.description.exists()):
            raise InputError(f"{self.path} exists, and its settings are unknown: choose another file, or use --force")
        try:
            settings = read_json(self.description, advice=_FORCE)
            if not isinstance(settings, dict):
                raise InputError(f"{self.description}: contains no settings: {_FORCE}")
        except InputError:
            if not force:
                raise
            return {}
        return settings

    def _compare(self, settings: Mapping[str, Any], additions: Collection[str]) -> None:
        old_settings, new_settings = dict(_flatten(self.previous)), dict(_flatten(settings))
        added = {name for name in new_settings if name.split(".")[0] in additions and old_settings.get(name) is None}
        names = [
            name
            for name in {**old_settings, **new_settings}
            if old_settings.get(name) != new_settings.get(name) and name not in added
        ]
        if names:
            old, new = (
                ", ".join(f"{name}={values.get(name)!r}" for name in names) for values in (old_settings, new_settings)
            )
            raise InputError(
                f"{self.path} was made with {old}, and this run has {new}: choose another file, the same settings, or "
                "--force to mix them"
            )

    def _clean_up(self, is_done: Callable[[Record], bool]) -> None:
        """Remove incomplete lines, duplicates, and records to be made again. Refuse a file of other records."""
        if not self.path.exists():
            return
        foreign = InputError(f"{self.path}: its lines are not records of such a run: choose another file")
        remaining_lines, size, records, incomplete = [], self.path.stat().st_size, 0, 0
        for line, record in read_lines(self.path):
            if record is None:
                incomplete, self.damaged = incomplete + 1, incomplete
                continue
            records, self.damaged = records + 1, incomplete
            try:
                identity = self._identify(record)
                if is_done(record) and identity not in self._fingerprints:
                    self._fingerprints[identity] = self._fingerprint(record)
                    remaining_lines.append(line)
            except (LookupError, TypeError, AttributeError):  # a column is missing, or its value can't be hashed
                raise foreign from None
        if self.damaged and not records:
            raise foreign
        if sum(map(len, remaining_lines)) != size:
            replace_lines(self.path, remaining_lines)


def lock_file(path: Path) -> FileLock:
    """Lock a file, by a hidden lock file beside it, until the returned lock is released or this process ends."""
    target = Path(os.path.realpath(path))
    lock = FileLock(target.with_name(f".{target.name}.lock"), thread_local=False)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{path}: another process is writing to it: wait until it ends, or choose another file"
        ) from None
    except NotImplementedError:
        raise InputError(
            f"{path}: its file system can't lock files: choose a place on a disk of this machine"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {explain_write(error, advice='choose another place')}") from error
    return lock


def _flatten(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each setting; names are like generation.top_k."""
    if not isinstance(settings, dict):
        yield name, settings
        return
    for inner, value in settings.items():
        yield from _flatten(value, f"{name}.{inner}" if name else inner)


def read_lines(path: Path) -> Iterator[tuple[bytes, Record | None]]:
    """Yield (line, record) for each line of a journal. The record is None if the line is incomplete or damaged."""
    with open_bytes(path, unpack=False) as file:
        for line in file:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                record = None
            yield line, record if isinstance(record, dict) else None


def replace_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Replace the lines of a journal in one step."""
    with replacing(path) as file:
        file.writelines(lines)


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the records of a journal, without incomplete lines."""
    return (record for _, record in read_lines(read_path(path)) if record is not None)
