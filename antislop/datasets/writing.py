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
    """Open a journal for records of makers; a resumed run makes failed ones again. See `Journal`."""
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

    changed: records that were removed, since their prompts have changed. unasked: records of prompts, samples or arms
    that this run does not have.
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
    before = journal.fingerprint_of(spec.identity)
    return before is not None and before != fingerprint_text(spec.prompt.text)


def _describe_change(changed: Sequence[SampleSpec], journal: Journal) -> InputError:
    """Return an error that shows how the first changed prompt differs from that of its record."""
    first = changed[0]
    before = next(record["prompt"] for record in read_records(journal.path) if identify(record) == first.identity)
    after = first.prompt.text
    same = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after))
    was, now = (repr(text[max(0, same - 20) : same + 40]) for text in (before, after))
    return InputError(
        f"{journal.path}: {len(changed):,} of its records answer prompts that have changed; {first.prompt.key!r} had "
        f"{was}, and now has {first.prompt.error or now}: put the prompts back, choose another file, or use --force to "
        "make these records again"
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

    prompts: returns the prompts from the beginning; called once per arm. is_stopped: called before each text; once it
    returns True, only the texts in flight are finished. Raises `InputError` at a prompt that has changed under the key
    of a record: see `resume`.
    """
    for arm in arms:
        specs = takewhile(lambda _: not is_stopped(), plan_samples(prompts(), samples=samples, arm=arm))
        for made in maker.make((spec for spec in specs if not _is_made(spec, journal)), arm=arm):
            if identify(made.record) in journal:
                continue
            if pairs is not None:
                pairs.append(made.pairs, made.counts)
            journal.append(made.record)
            yield made.record


def _is_made(spec: SampleSpec, journal: Journal) -> bool:
    if spec.identity in journal and _has_changed(spec, journal):
        raise _describe_change([spec], journal)
    return spec.identity in journal
