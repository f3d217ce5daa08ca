"""Files of preference pairs, one per journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antislop.datasets.pairs import PairCount, PairFormat, cap_per_ban, cap_per_token, drop_duplicates
from antislop.errors import InputError
from antislop.files import explain_write, open_to_append
from antislop.records.journal import Journal, Record, read_lines, read_records, replace_lines


class PairFile:
    """The preference pairs of a journal's records; each record has its pairs once, even if the process was killed.

    The pairs of a record are written before it; a resumed run removes pairs without a record. is_own: whether the
    settings of the journal name this file. Raises `InputError` for a file with other content.
    """

    def __init__(self, path: Path, journal: Journal, *, kind: PairFormat, is_own: bool = False) -> None:
        self.path = path
        self.counts = Counter[PairCount]()
        self._kind = kind
        journal.lock(path)
        lines = list(read_lines(path)) if path.exists() else []
        self._check(lines, journal, is_own=is_own)
        replace_lines(path, (line for line, row in lines if row and _owner(row) in journal))

    def _check(self, lines: Sequence[tuple[bytes, Record | None]], journal: Journal, *, is_own: bool) -> None:
        """Refuse a file with lines that are no pairs of the journal's records, or of records that the journal lost.

        Unless `is_own`, pairs of one lost record are accepted: that which was being written when the process was
        killed.
        """
        is_torn = bool(lines) and lines[-1][1] is None
        rows = [row or {} for _, row in (lines[:-1] if is_torn else lines)]
        if not all({"ban", "key", "sample"} <= row.keys() for row in rows):
            raise InputError(f"{self.path}: contains other lines than pairs: choose another file")
        if any(("rejected_id" in row) != (self._kind == "tokens") for row in rows):
            raise InputError(f"{self.path}: contains pairs of another format: choose another file, or that format")
        strangers = {owner for row in rows if (owner := _owner(row)) not in journal} - journal.dropped
        if len(strangers) > 1 + journal.damaged and not is_own:
            raise InputError(
                f"{self.path}: contains pairs of texts not in {journal.path}: choose another file, or remove it"
            )

    def append(self, rows: Iterable[Record], counts: Mapping[PairCount, int] | None = None) -> None:
        """Write the pairs of a text; raises `InputError` if the disk is full. counts: added to the file's counts."""
        self.counts.update(counts or {})
        try:
            with open_to_append(self.path) as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        except OSError as error:
            fault = explain_write(error, advice="check the disk")
            raise InputError(f"{self.path}: {fault}, and run it again to resume") from error

    def finish(self, *, per_ban: int | None = None, per_token: int | None = None, seed: int = 0) -> int:
        """Remove duplicates and pairs beyond the limits; return the number of pairs left.

        per_ban: limit of pairs per ban. per_token: limit of rows that reject a token, and of rows that choose it.
        """
        rows = drop_duplicates(read_records(self.path))
        rows = rows if per_ban is None else cap_per_ban(rows, limit=per_ban, seed=seed)
        rows = rows if per_token is None else cap_per_token(rows, limit=per_token, seed=seed)
        replace_lines(self.path, (json.dumps(row).encode() + b"\n" for row in rows))
        return len(rows)


def _owner(row: Record) -> tuple[Any, ...]:
    return row.get("key"), row.get("sample"), "banned"
