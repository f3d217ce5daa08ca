"""The changes of rates from one profile to another."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, log, sqrt
from typing import NamedTuple

from antislop.measure.profiles.ngrams import EXPLAINED_SHARE, Kind, find_explained, find_parts
from antislop.measure.profiles.profiles import Entry, Profile
from antislop.measure.profiles.rates import find_half_width


class Change(NamedTuple):
    """The change of a rate, per million words, from before to after.

    ratio, low, high: after divided by before, with a 95 % interval.
    error: the standard error of the ratio's logarithm.
    before_count, after_count: None if the profile does not list the entry; its rate is then an upper bound.
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
    """Return the entries whose rate changed from one profile to another, the strongest evidence first.

    discoveries: the accepted share of false discoveries (Benjamini and Hochberg 1995, doi
        10.1111/j.2517-6161.1995.tb02031.x); other changes are left out.

    An entry that one profile does not list counts with the upper bound of its rate there. Changes that a longer entry
    explains are left out. Prompts count as independent, which understates the evidence if they are the same.
    """
    sides = _Side(before), _Side(after)
    keys = dict.fromkeys([*sides[0].entries, *sides[1].entries])
    measured = [change for key in keys if (change := _measure(key, *sides)) is not None]
    chances = control_discoveries([erfc(change.evidence / sqrt(2)) for change in measured])
    discovered = [change for change, chance in zip(measured, chances, strict=True) if chance <= discoveries]
    explained = set[tuple[Kind, str]]()
    for is_rise in (False, True):  # a rise explains no fall
        explained |= find_explained(
            {
                (change.kind, change.text): max(change.before_count or 0, change.after_count or 0)
                for change in discovered
                if (change.ratio > 1) is is_rise
            }
        )
    unexplained = (change for change in discovered if (change.kind, change.text) not in explained)
    return sorted(unexplained, key=lambda change: (-change.evidence, change.text))


class _Side:
    """One profile of a comparison, with upper bounds for entries that it does not list."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.entries = {(entry.kind, entry.text): entry for entry in profile.entries}
        self._unlisted_count = max(1, int(profile.made_with.get("min_count", 1)) - 1)
        self._ratio = float(profile.made_with.get("min_ratio", 0.0))
        self._container_counts: dict[tuple[Kind, str], int] = {}
        for (kind, text), entry in self.entries.items():
            for part in find_parts(kind, text):
                self._container_counts[part] = max(self._container_counts.get(part, 0), entry.count)

    def bound(self, entry: Entry) -> float:
        human = self._ratio * (entry.human_per_million or 0.0) * self.profile.words / 1e6
        explained = self._container_counts.get((entry.kind, entry.text), 0) / EXPLAINED_SHARE
        return max(self._unlisted_count, human, explained)


def _measure(key: tuple[Kind, str], before: _Side, after: _Side) -> Change | None:
    """Return a change; None if there may be none: one side's bound is above the other's rate."""
    old_entry, new_entry = before.entries.get(key), after.entries.get(key)
    listed_entry = old_entry or new_entry
    assert listed_entry is not None
    rates, errors = [], []
    for side, entry in ((before, old_entry), (after, new_entry)):
        amount = entry.count if entry else side.bound(listed_entry)
        rates.append(1e6 * amount / side.profile.words)
        errors.append(max(entry.error, 1e-3) if entry else 1 / sqrt(amount))
    if (old_entry is None and rates[0] >= rates[1]) or (new_entry is None and rates[1] >= rates[0]):
        return None
    error = sqrt(errors[0] ** 2 + errors[1] ** 2)
    ratio, reach = rates[1] / rates[0], exp(find_half_width(0) * error)
    return Change(
        kind=listed_entry.kind,
        text=listed_entry.text,
        before=rates[0],
        after=rates[1],
        ratio=ratio,
        low=ratio / reach,
        high=ratio * reach,
        error=error,
        before_count=old_entry.count if old_entry else None,
        after_count=new_entry.count if new_entry else None,
        is_name=listed_entry.is_name,
    )


def control_discoveries(chances: Sequence[float]) -> list[float]:
    """Return for each p-value the share of false discoveries if p-values up to it are accepted."""
    adjusted, minimum = list(chances), 1.0
    order = sorted(range(len(chances)), key=lambda index: -chances[index])
    for above, index in enumerate(order):
        minimum = min(minimum, chances[index] * len(chances) / (len(chances) - above))
        adjusted[index] = minimum
    return adjusted
