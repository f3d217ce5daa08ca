"""Write records into a journal and their pairs into a file, and resume a run that was stopped."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from antislop.datasets.pairs import PairCount, PairFormat, cap_per_ban, cap_per_token, drop_duplicates
from antislop.datasets.samples import Arm, RecordMaker, SampleSpec, identify, plan_samples
from antislop.errors import InputError
from antislop.files.disk import explain_write, open_to_append
from antislop.files.journal import Journal, Record, read_lines, read_records, replace_lines
from antislop.files.prompts import Prompt, fingerprint_text


def open_journal(
    path: str | os.PathLike[str], settings: Mapping[str, Any], *, additions: Collection[str] = (), force: bool = False
) -> Journal:
    """Open a journal for the records of a `RecordMaker`; a resumed run makes failed records again. See `Journal`."""
    return Journal(
        path,
        settings,
        identify=identify,
        is_done=lambda record: record["status"] != "error",
        fingerprint=lambda record: fingerprint_text(record["prompt"]),
        additions=additions,
        force=force,
    )


class Resumed(NamedTuple):
    """How the journal of a resumed run compares with the prompts of the run.

    changed: number of records that were removed because their prompts have changed.
    unasked: number of records of prompts, samples or arms that this run does not have.
    """

    changed: int
    unasked: int


def resume(journal: Journal, specs: Iterable[SampleSpec], *, force: bool = False) -> Resumed:
    """Compare the prompts of a journal's records with the prompts of all specs, before any text is made.

    Raises `InputError` if a prompt has changed under its key; with `force`, removes the records of that prompt instead.
    """
    if not len(journal):
        return Resumed(0, 0)
    changed, unasked = [], len(journal)
    for spec in specs:
        if spec.identity in journal:
            unasked -= 1
            if _has_changed(spec, journal):
                changed.append(spec)
    if changed and not force:
        raise _describe_change(changed, journal)
    journal.drop([spec.identity for spec in changed])
    return Resumed(len(changed), unasked)


def _has_changed(spec: SampleSpec, journal: Journal) -> bool:
    fingerprint = journal.fingerprint_of(spec.identity)
    return fingerprint is not None and fingerprint != fingerprint_text(spec.prompt.text)


def _describe_change(changed: Sequence[SampleSpec], journal: Journal) -> InputError:
    spec = changed[0]
    old_prompt = next(record["prompt"] for record in read_records(journal.path) if identify(record) == spec.identity)
    prompt = spec.prompt.text
    start = next((i for i, pair in enumerate(zip(old_prompt, prompt, strict=False)) if pair[0] != pair[1]), len(prompt))
    before, after = (repr(text[max(0, start - 20) : start + 40]) for text in (old_prompt, prompt))
    return InputError(
        f"{journal.path}: {len(changed):,} of its records answer prompts that have changed; {spec.prompt.key!r} had "
        f"{before}, and now has {spec.prompt.error or after}: restore the prompts, choose another file, or use --force "
        "to make these records again"
    )


def write_records(
    maker: RecordMaker,
    prompts: Callable[[], Iterable[Prompt]],
    journal: Journal,
    *,
    samples: int = 1,
    arms: Sequence[Arm] = ("banned",),
    pairs: PairFile | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Make the records that a journal lacks, and yield each when it is written.

    prompts: returns an iterator over all prompts; called once per arm.
    is_stopped: called before each text; once True, only the texts in flight are finished.

    Raises `InputError` at a prompt that differs from the prompt of a record with the same key.
    """
    for arm in arms:
        specs = takewhile(lambda _: not is_stopped(), plan_samples(prompts(), samples=samples, arm=arm))
        for sample in maker.make((spec for spec in specs if not _is_made(spec, journal)), arm=arm):
            if identify(sample.record) in journal:
                continue
            if pairs is not None:
                pairs.append(sample.pairs, sample.counts)
            journal.append(sample.record)
            yield sample.record


def _is_made(spec: SampleSpec, journal: Journal) -> bool:
    if spec.identity in journal and _has_changed(spec, journal):
        raise _describe_change([spec], journal)
    return spec.identity in journal


class PairFile:
    """A file of the preference pairs of a journal's records: none is lost or doubled, even if the process is killed.

    is_own: whether the settings of the journal name this file, so that its pairs belong to the journal.

    The pairs of a record are written before the record; a resumed run removes pairs without a record. Raises
    `InputError` for a file with other content.
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
        """Refuse a file with other lines than pairs of this run.

        The file may have pairs of one record that the journal lacks: the process that wrote these pairs was killed
        before it wrote the record.
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
        """Write the pairs of a text, and add to the counts. Raises `InputError` if the disk is full."""
        self.counts.update(counts or {})
        try:
            with open_to_append(self.path) as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        except OSError as error:
            fault = explain_write(error, advice="check the disk")
            raise InputError(f"{self.path}: {fault}, and run it again to resume") from error

    def finish(self, *, per_ban: int | None = None, per_token: int | None = None, seed: int = 0) -> int:
        """Remove duplicates and pairs beyond the limits; return the number of pairs left.

        per_ban: the most pairs of one ban.
        per_token: the most rows that reject one token, and the most rows that choose one token.
        """
        rows = drop_duplicates(read_records(self.path))
        rows = rows if per_ban is None else cap_per_ban(rows, limit=per_ban, seed=seed)
        rows = rows if per_token is None else cap_per_token(rows, limit=per_token, seed=seed)
        replace_lines(self.path, (json.dumps(row).encode() + b"\n" for row in rows))
        return len(rows)


def _owner(row: Record) -> tuple[Any, ...]:
    return row.get("key"), row.get("sample"), "banned"
