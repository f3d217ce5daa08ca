"""Specs of texts to be made from prompts, the records of these texts, and sums over records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from antislop.core.bans import BanList
from antislop.datasets.pairs import PairCount
from antislop.display import describe_count
from antislop.files.journal import Record
from antislop.files.prompts import Prompt

Arm = Literal["plain", "banned", "token", "prompt-only"]
"""How a text is written: without bans; under bans; with `method="token"`; without bans but asked to avoid phrases."""

PLAIN: Arm = "plain"
"""The arm with which all others are compared."""

UNBANNED: tuple[Arm, ...] = ("plain", "prompt-only")
"""The arms whose texts are written without bans, and so without rewinds."""


class SampleSpec(NamedTuple):
    """One text to be made. sample: the number of the text among the texts to the same prompt."""

    prompt: Prompt
    sample: int
    arm: Arm

    @property
    def identity(self) -> tuple[str, int, str]:
        """The key of the prompt, and the number and the arm of the text: unique among the records of a journal."""
        return self.prompt.key, self.sample, self.arm

    def seed(self, base: int) -> int:
        """Return the seed of the text: it depends on `base`, key and number, so it is the same in each arm."""
        name = f"{base}/{self.sample}/{self.prompt.key}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "big")


@dataclass(frozen=True)
class MadeRecord:
    """A record, the preference pairs of its text, and counts for the report on pairs: see `COUNTS` in `pairs.py`."""

    record: Record
    pairs: Sequence[Record] = ()
    counts: Mapping[PairCount, int] = field(default_factory=dict)


class RecordMaker(Protocol):
    """Makes records, in this process or elsewhere."""

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield a record for each spec, in any order. arm: the arm that all specs have."""


def plan_samples(prompts: Iterable[Prompt], *, samples: int, arm: Arm) -> Iterator[SampleSpec]:
    return (SampleSpec(prompt, sample, arm) for prompt in prompts for sample in range(samples))


def identify(record: Record) -> tuple[str, int, str]:
    return record["key"], record["sample"], record["arm"]


def fingerprint_items(items: Iterable[object]) -> str:
    """Return a hash of bans or rows and their order, by which journals, evaluations and tuned models recognize them."""
    return hashlib.sha256("\n".join(map(repr, items)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass
class Summary:
    """Counts of the records of a run.

    conceded: violations that stay in the text.
    cut: texts that ended before their grammar did.
    words: number of words of the texts under bans.
    unbanned: number of tokens of the texts without bans.
    """

    records: int = 0
    failed: int = 0
    tokens: int = 0
    withdrawn: int = 0
    violations: int = 0
    conceded: int = 0
    cut: int = 0
    words: int = 0
    unbanned: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, record: Mapping[str, Any]) -> None:
        if record["status"] == "error":
            self.failed += 1
            return
        self.records += 1
        self.tokens += record["tokens"]
        self.withdrawn += record["withdrawn_tokens"]
        self.violations += sum(record["violations"].values())
        self.conceded += sum(record["conceded"].values())
        self.cut += record["status"] == "cut"
        if record["arm"] in UNBANNED:
            self.unbanned += record["tokens"]
        else:
            self.words += len(record["response"].split())

    def describe(self) -> str:
        return f"{describe_count(self.records, 'record')}, {self.describe_rates()}"

    def describe_rates(self) -> str:
        seconds = max(1e-9, time.monotonic() - self.began)
        parts = [f"{self.tokens / seconds:,.0f} tokens/s"]
        drawn_tokens = self.tokens - self.unbanned + self.withdrawn
        if drawn_tokens:
            parts += [
                f"{1000 * self.violations / max(1, self.words):.1f} violations per 1,000 words",
                f"{self.withdrawn / drawn_tokens:.1%} withdrawn",
            ]
        rare = {"conceded": self.conceded, "cut": self.cut, "failed": self.failed}
        parts += [f"{count:,} {name}" for name, count in rare.items() if count]
        return ", ".join(parts)


def measure_slop(records: Iterable[Mapping[str, Any]], bans: BanList) -> dict[str, float]:
    """Return by arm the occurrences of bans per 1,000 words of responses; of overlapping occurrences, one counts."""
    return {arm: 1000 * hits / max(1, words) for arm, (hits, words) in count_hits(records, bans).items()}


def count_hits(records: Iterable[Mapping[str, Any]], bans: BanList) -> dict[str, tuple[int, int]]:
    """Return by arm the number of occurrences of bans (of overlapping ones, one counts) and of words of responses."""
    counts: dict[str, tuple[int, int]] = {}
    for record in records:
        if record["response"] is not None:
            hits, words = counts.get(record["arm"], (0, 0))
            found = bans.find(record["response"], overlaps=False)
            counts[record["arm"]] = hits + len(found), words + len(record["response"].split())
    return counts
