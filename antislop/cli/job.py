"""Jobs: runs that make a record for each prompt, can be interrupted, and resume from their journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from rich.console import Console

from antislop.cli.options import GenerationOptions, PromptOptions, read_variables
from antislop.cli.progress import ProgressBar, estimate_seconds, stop_at_interrupt, stop_workers_at_interrupt
from antislop.cli.terminal import console, say, warn
from antislop.core.bans import BanList
from antislop.display import describe_count, shorten
from antislop.errors import InputError
from antislop.files.disk import open_bytes, read_json
from antislop.files.journal import Journal, Record
from antislop.files.models import ModelSpec
from antislop.files.prompts import Prompt, fingerprint_text, read_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.datasets.samples import Arm, RecordMaker, SampleSpec, Summary
    from antislop.datasets.writing import PairFile, Resumed


MAX_NAME = 41
"""Warnings name a prompt that has no key by its first characters: by so many."""


@dataclass(frozen=True)
class JobSpec:
    """The settings that, with the arms, determine the texts of a job: equal settings give equal records.

    source: where the prompts come from, as the journal names it.
    """

    source: str
    _: KW_ONLY
    model: ModelSpec
    bans: BanList
    prompts: PromptOptions
    generation: GenerationOptions

    def __post_init__(self) -> None:
        _ = self.content  # raises an error for an invalid value

    @cached_property
    def content(self) -> dict[str, Any]:
        """The settings that a journal stores and compares. A newer option is left out if unused: old journals match."""
        from antislop.datasets.samples import fingerprint_items

        prompts, model, variables = self.prompts, self.model.content, read_variables(self.prompts.chat_template_kwargs)
        return {
            "source": self.source,
            "model": model["model"] or "",
            "bans": f"{describe_count(len(self.bans), 'ban')}, {fingerprint_items(self.bans)}",
            **{name: getattr(prompts, name) for name in ("column", "key", "split", "prompt_template", "system")},
            **({"chat_template_kwargs": variables} if variables else {}),
            "seed": self.generation.seed,
            "generation": self.generation.settings,
            "revision": model["revision"],
            "dtype": model["dtype"],
        }


@dataclass
class Job:
    """A run that makes the records that a journal lacks, and that Ctrl-C stops.

    at_once: number of texts that are generated at the same time.
    on_cluster: whether Ctrl-C discards the texts in flight at once, since workers elsewhere can't finish them.
    """

    spec: JobSpec
    _: KW_ONLY
    arms: Sequence[Arm]
    at_once: int
    on_cluster: bool = False
    _stop: Event = field(default_factory=Event, init=False)

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def read_prompts(self, source: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[Prompt]:
        options = self.spec.prompts
        return read_prompts(
            source,
            column=options.column,
            key=options.key,
            split=options.split,
            template=options.prompt_template,
            system=options.system,
            limit=options.limit,
            tokenizer=tokenizer,
            chat_template_kwargs=self.spec.content.get("chat_template_kwargs", {}),
        )

    def begin(self, path: Path, more: Mapping[str, Any], *, additions: Collection[str] = (), force: bool) -> Journal:
        """Open the journal of this job. more: settings in addition to those of the spec.

        Another `source` than in an earlier run is accepted: `resume` compares the prompts themselves.
        """
        from antislop.datasets.writing import open_journal

        settings = {**self.spec.content, **more}
        with suppress(InputError, LookupError, TypeError, OSError):  # opening the journal below names the fault
            settings |= {} if force else {"source": read_json(path.with_name(f"{path.name}.run.json"))["source"]}
        return open_journal(path, settings, additions=additions, force=force)

    def plan(self, prompts: Callable[[], Iterable[Prompt]]) -> Iterator[SampleSpec]:
        """Yield the specs of all texts of this job."""
        from antislop.datasets.samples import plan_samples

        samples = self.spec.generation.n
        return (spec for arm in self.arms for spec in plan_samples(prompts(), samples=samples, arm=arm))

    def resume(self, journal: Journal, prompts: Callable[[], Iterable[Prompt]], *, force: bool) -> Resumed:
        """Compare the journal's prompts with those of this job before any text is made."""
        from antislop.datasets.writing import resume

        resumed, old = resume(journal, self.plan(prompts), force=force), journal.previous.get("source")
        if resumed.unasked and old != self.spec.source and not force:
            raise InputError(
                f"{journal.path} was made with source={old!r}, and {resumed.unasked:,} of its records answer no prompt "
                f"of {self.spec.source}: choose another file, the same prompts, or --force to mix them"
            )
        return resumed

    def run(
        self,
        maker: RecordMaker,
        prompts: Callable[[], Iterable[Prompt]],
        journal: Journal,
        *,
        total: int | None,
        pairs: PairFile | None = None,
    ) -> Summary:
        """Make the missing records, and say how far the job came if the user stops it.

        total: number of missing records, if known.
        """
        from antislop.datasets.samples import Summary
        from antislop.datasets.writing import write_records

        summary, existing = Summary(), len(journal)
        records = write_records(
            maker,
            prompts,
            journal,
            samples=self.spec.generation.n,
            arms=self.arms,
            pairs=pairs,
            is_stopped=lambda: self.is_stopped,
        )
        stopping = stop_workers_at_interrupt if self.on_cluster else stop_at_interrupt
        try:
            with stopping(say) as self._stop:
                follow(records, summary, screen=console(stderr=True), total=total, at_once=self.at_once)
        finally:
            if self.is_stopped:
                made = describe_count(len(journal), "record") + ("" if total is None else f" of {existing + total:,}")
                say(f"stopped: {made} in {journal.path}; run the same command again to make the rest")
        return summary


def follow(
    records: Iterable[Record], summary: Summary, *, screen: Console, total: int | None, at_once: int = 1
) -> None:
    """Add records to a summary as they are made and show the progress; warn once for each prompt that fails.

    at_once: number of texts that are generated at the same time.
    """
    failed: set[str] = set()
    durations: list[float] = []
    of = "" if total is None else f"/{total:,}"
    with ProgressBar(screen, f"0{of}") as bar:
        bar.update()
        for record in records:
            summary.add(record)
            if "seconds" in record:
                durations.append(record["seconds"])
            if record["error"] and record["key"] not in failed:
                failed.add(record["key"])
                key, prompt = record["key"], record["prompt"]  # a prompt without an id is named by its beginning
                name = repr(shorten(prompt, MAX_NAME)) if key.split("#")[0] == fingerprint_text(prompt) else key
                warn(f"{name}: {record['error']}" if prompt else record["error"])
            count, left = summary.records + summary.failed, None
            if total is not None and len(durations) % (len(durations) // 100 + 1) == 0:  # estimates take ever longer
                elapsed, texts = time.monotonic() - summary.began, total - summary.failed
                left = estimate_seconds(durations, elapsed=elapsed, total=texts, at_once=at_once)
            whole = total if len(durations) >= 2 else None
            note = summary.describe_rates()
            bar.update(done=count, total=whole, title=f"{count:,}{of}", note=note, seconds_left=left)


def count_records(source: str) -> int | None:
    """Return the number of records of a file; None if they can't be counted just by reading the file once."""
    path = Path(source).expanduser()
    try:
        if path.suffix.lower() in (".jsonl", ".ndjson", ".txt"):
            count, is_blank = 0, True  # of the lines that are not blank, with at most 1 MiB of one in memory
            with open_bytes(path) as file:
                while piece := file.readline(2**20):
                    is_blank = is_blank and piece.isspace()
                    if piece.endswith(b"\n"):
                        count, is_blank = count + (not is_blank), True
            return count + (not is_blank)
        if path.suffix.lower() == ".parquet":
            from pyarrow.parquet import read_metadata

            return int(read_metadata(path).num_rows)
    except (OSError, ValueError, ImportError):  # reported when the prompts are read
        return None
    return None
