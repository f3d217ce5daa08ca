"""Sums over records: tokens, violations and errors of a run, and how often bans occur in its texts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from antislop.datasets.samples import UNBANNED
from antislop.lists.ban_list import BanList
from antislop.matching.bans import drop_overlaps


@dataclass
class Summary:
    """Counts of the records of a run.

    words: of texts with bans. unbanned: tokens of texts without bans. conceded: violations that stay in the text.
    cut: texts that ended before their grammar did.
    began: seconds of the monotonic clock.
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
        """Count one more record."""
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
        """Return the counts and rates as one line."""
        return f"{self.records:,} {'record' if self.records == 1 else 'records'}, {self.describe_rates()}"

    def describe_rates(self) -> str:
        """Return `describe` without the number of records."""
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
    """Return per arm the occurrences of the bans that don't overlap, per 1,000 words of the responses."""
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for record in records:
        if record["response"] is not None:
            words[record["arm"]] += len(record["response"].split())
            hits[record["arm"]] += len(drop_overlaps(bans.find(record["response"])))
    return {arm: 1000 * hits[arm] / max(1, words[arm]) for arm in words}
