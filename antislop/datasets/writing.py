"""Write records into a journal, and resume a run that was stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from antislop.datasets.pair_file import PairFile
from antislop.datasets.samples import Arm, RecordMaker, SampleSpec, identify, plan_samples
from antislop.errors import InputError
from antislop.records.journal import Journal, Record, read_records
from antislop.records.prompts import Prompt, fingerprint_text


def open_journal(
    path: str | os.PathLike[str], settings: Mapping[str, Any], *, additions: Collection[str] = (), force: bool = False
) -> Journal:
    """Open a journal for records of makers; a resumed run makes failed records again. See `Journal`."""
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
    """How the journal of a resumed run compares with its prompts.

    changed: number of records that were removed because their prompts have changed. unasked: number of records of
    prompts, samples or arms that this run does not have.
    """

    changed: int
    unasked: int


def resume(journal: Journal, specs: Iterable[SampleSpec], *, force: bool = False) -> Resumed:
    """Compare the prompts of a journal's records with those of all specs, before any text is made.

    Raises `InputError` if a prompt has changed under its key; with `force`, removes its records instead.
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
    """Return an error that shows how the first changed prompt differs from that of its record."""
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

    prompts: returns an iterator over all prompts; called once per arm. is_stopped: called before each text; once it
    returns True, only the texts in flight are finished. Raises `InputError` at a prompt that has changed under the key
    of a record: see `resume`.
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
