"""Samples: specs of texts to be made from prompts, and the records of these texts. Knows no models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from antislop.datasets.pairs import PairCount
from antislop.lists.ban_list import BanList
from antislop.records.journal import Record
from antislop.records.prompts import Prompt

Arm = Literal["plain", "banned", "token", "prompt-only"]
"""How a text is written: without bans; with bans; with `method="token"`; without, but with a request to avoid them."""

PLAIN: Arm = "plain"
"""The arm with which all others are compared."""

UNBANNED: tuple[Arm, ...] = ("plain", "prompt-only")
"""The arms without rewinds."""


class SampleSpec(NamedTuple):
    """One text to be made: the prompt, the number of the response among those to this prompt, and the arm."""

    prompt: Prompt
    sample: int
    arm: Arm

    @property
    def identity(self) -> tuple[str, int, str]:
        """Key, number and arm: unique among the records of a journal."""
        return self.prompt.key, self.sample, self.arm

    def seed(self, base: int) -> int:
        """Return the seed of the text: a function of `base`, key and number, and so the same in each arm."""
        name = f"{base}/{self.sample}/{self.prompt.key}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "big")


@dataclass(frozen=True)
class MadeRecord:
    """A record with the preference pairs of its text, and counts of the pairs that were left out."""

    record: Record
    pairs: Sequence[Record] = ()
    counts: Mapping[PairCount, int] = field(default_factory=dict)


class RecordMaker(Protocol):
    """Makes records, in this process or elsewhere."""

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield a record for each spec, in any order. arm: of all specs."""


def plan_samples(prompts: Iterable[Prompt], *, samples: int, arm: Arm) -> Iterator[SampleSpec]:
    """Yield `samples` specs for each prompt."""
    return (SampleSpec(prompt, sample, arm) for prompt in prompts for sample in range(samples))


def identify(record: Record) -> tuple[str, int, str]:
    """Return key, number and arm of a record, as `SampleSpec.identity`."""
    return record["key"], record["sample"], record["arm"]


def fingerprint_bans(bans: BanList) -> str:
    """Return a hash of the bans of a list, in their order."""
    return hashlib.sha256("\n".join(map(repr, bans)).encode("utf-8", "surrogatepass")).hexdigest()
