"""What became more or less frequent from one profile to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import erfc, exp, log, sqrt
from typing import NamedTuple

from antislop.profiles.ngrams import Kind
from antislop.profiles.profiles import Entry, Profile
from antislop.profiles.ratios import EXPLAINED, find_explained, find_parts, quantile


class Change(NamedTuple):
    """The change of a rate, per million words, from before to after.

    before_count, after_count: None if the profile does not list the entry; its rate is then an upper bound.
    ratio, low, high: after divided by before, with a 95 % interval.
    error: the standard error of the ratio's logarithm.
    """

    kind: Kind
    text: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    error: float
    before_count: int | None
    after_count: int | None
    is_name: bool

    @property
    def evidence(self) -> float:
        """The distance of the change from none, in standard errors."""
        return abs(log(self.ratio)) / self.error


def compare(before: Profile, after: Profile, *, discoveries: float = 0.05) -> list[Change]:
    """Return the entries that became rarer or more frequent from one profile to another, the best evidence first.

    discoveries: the accepted share of false discoveries (Benjamini and Hochberg 1995, doi
        10.1111/j.2517-6161.1995.tb02031.x); changes that don't pass are left out.

    Compares rates, so that longer texts alone change nothing. An entry that one profile does not list counts with the
    upper bound of its rate there. Changes that a longer entry explains are left out. Prompts of the two profiles count
    as independent, which understates the evidence if they are the same.
    """
    sides = _Side(before), _Side(after)
    keys = dict.fromkeys([*sides[0].entries, *sides[1].entries])
    changes = {key: _measure(key, *sides) for key in keys}
    evident = _discover([change for change in changes.values() if change is not None], discoveries)
    largest = {
        direction: {
            (each.kind, each.text): max(each.before_count or 0, each.after_count or 0)
            for each in evident
            if (each.ratio > 1) is direction
        }
        for direction in (False, True)
    }
    gone = {direction: find_explained(counts) for direction, counts in largest.items()}
    kept = (each for each in evident if (each.kind, each.text) not in gone[each.ratio > 1])
    return sorted(kept, key=lambda each: (-each.evidence, each.text))


class _Side:
    """One profile of a comparison: its entries, and upper bounds for everything else."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.entries = {(entry.kind, entry.text): entry for entry in profile.entries}
        self._least = max(1, int(profile.made_with.get("min_count", 1)) - 1)
        self._ratio = float(profile.made_with.get("min_ratio", 0.0))
        self._within: dict[tuple[Kind, str], int] = {}
        for (kind, text), entry in self.entries.items():
            for part in find_parts(kind, text):
                self._within[part] = max(self._within.get(part, 0), entry.count)

    def bound(self, entry: Entry) -> float:
        """Return the most occurrences that an entry of the other profile can have here."""
        human = self._ratio * (entry.human_per_million or 0.0) * self.profile.words / 1e6
        return max(self._least, human, self._within.get((entry.kind, entry.text), 0) / EXPLAINED)


def _measure(key: tuple[Kind, str], before: _Side, after: _Side) -> Change | None:
    """Return a change; None if there may be none, one side's bound being above the other's rate."""
    old, new = before.entries.get(key), after.entries.get(key)
    one = old or new
    assert one is not None
    rates, errors = [], []
    for side, entry in ((before, old), (after, new)):
        amount = entry.count if entry else side.bound(one)
        rates.append(1e6 * amount / side.profile.words)
        errors.append(max(entry.error, 1e-3) if entry else 1 / sqrt(amount))
    if (old is None and rates[0] >= rates[1]) or (new is None and rates[1] >= rates[0]):
        return None
    error = sqrt(errors[0] ** 2 + errors[1] ** 2)
    ratio, reach = rates[1] / rates[0], exp(quantile(0, 0.95) * error)
    return Change(
        kind=one.kind,
        text=one.text,
        before=rates[0],
        after=rates[1],
        ratio=ratio,
        low=ratio / reach,
        high=ratio * reach,
        error=error,
        before_count=old.count if old else None,
        after_count=new.count if new else None,
        is_name=one.is_name,
    )


def _discover(changes: list[Change], share: float) -> Iterator[Change] | list[Change]:
    chances = control_discoveries([erfc(each.evidence / sqrt(2)) for each in changes])
    return [each for each, chance in zip(changes, chances, strict=True) if chance <= share]


def control_discoveries(chances: Sequence[float]) -> list[float]:
    """Return for each chance the share of false discoveries if everything at least as improbable is accepted.

    By Benjamini and Hochberg (1995, doi 10.1111/j.2517-6161.1995.tb02031.x).

    >>> control_discoveries([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.03]
    """
    adjusted, least = list(chances), 1.0
    order = sorted(range(len(chances)), key=lambda index: -chances[index])
    for above, index in enumerate(order):
        least = min(least, chances[index] * len(chances) / (len(chances) - above))
        adjusted[index] = least
    return adjusted
