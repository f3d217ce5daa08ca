"""Texts, reduced to the numbers from which metrics are computed."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import nan
from types import NoneType
from typing import SupportsIndex

import numpy as np

from antislop.core.bans import BanList, drop_overlaps
from antislop.display import shorten
from antislop.errors import InputError
from antislop.measure.blocks import cut_blocks
from antislop.measure.definitions import COMPARED_TEXTS, METRICS, Metric, define_hits, name_hits
from antislop.measure.diversity import Overused, find_overused, measure_self_bleu
from antislop.measure.estimates import Floats
from antislop.measure.slop_counts import ContrastCount
from antislop.measure.slop_scale import Scale
from antislop.measure.text_counts import BEGINNING_WORDS, WINDOW_WORDS, TextCounts


class Tally:
    """The numbers of texts that metrics need; no texts are stored.

    scale: by default the bundled one.
    bans: lists whose matches are also counted, by names other than those of metrics.

    Stores 4 bytes for each content word, 4 for each of a text's first 200 words, and about 200 for each text. Words
    that first occur after 524,288 others are told apart by a hash of 20 bits, so that two of these may count as one.

    >>> from antislop.measure.metrics import measure
    >>> tally = Tally()
    >>> tally.add("It was not a door, but a mouth.")
    >>> len(tally), measure(tally)["contrasts"].value > 0
    (1, True)
    """

    def __init__(
        self,
        scale: Scale | None = None,
        *,
        bans: Mapping[str, BanList] | None = None,
        metrics: Sequence[Metric] = METRICS,
    ) -> None:
        self.scale = Scale.load() if scale is None else scale
        if not isinstance(self.scale, Scale):
            raise InputError(f"scale is {shorten(repr(scale), 40)}; a Scale was expected, or None for the bundled one")
        if not (
            isinstance(bans, Mapping | NoneType) and all(isinstance(each, BanList) for each in (bans or {}).values())
        ):
            raise InputError(f"bans is {shorten(repr(bans), 40)}: pass each list with a name, {{'mine': BanList([…])}}")
        if not isinstance(metrics, Iterable) or not all(isinstance(each, Metric) for each in metrics):
            raise InputError(f"metrics is {shorten(repr(metrics), 40)}: pass a list of Metrics, or leave it out")
        lists = dict(bans or {})
        for name in lists.keys() & {metric.name for metric in metrics}:
            raise InputError(f"a list of bans is named {name!r} like a metric: give it another name")
        self.metrics = (*metrics, *map(define_hits, lists))
        self._ratios = [metric.ratio for metric in self.metrics if metric.ratio is not None]
        self._counters = {
            metric.ratio.above: metric.count
            for metric in self.metrics
            if metric.ratio is not None and metric.count is not None
        }
        self._bans = {name_hits(name): bans for name, bans in lists.items()}
        self._counts = TextCounts(self.scale)
        self._others: dict[str, array[float]] = {}  # sums that are not counted in words
        self._owners: array[int] = array("q")  # the place of the group of each text in `groups`
        self._places: dict[str, int] = {}  # of named groups
        self._names: list[str | None] = []  # of groups; None for a text without one
        self._sums: dict[int, dict[str, Floats]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def words(self) -> int:
        return sum(self.lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of words of each text."""
        self._counts.flush()
        return tuple(map(int, self._counts.sums["words"]))

    @property
    def groups(self) -> tuple[str | int, ...]:
        """The names of groups by first occurrence, and 0, 1, 2, ... for texts without one."""
        numbers = count()
        return tuple(next(numbers) if name is None else name for name in self._names)

    def add(
        self, text: str | Iterable[str], *, group: str | None = None, sums: Mapping[str, float] | None = None
    ) -> None:
        """Count a text, whole or in pieces.

        group: the name of a group of dependent texts, such as those to one prompt; None: the text is a group by itself.
        sums: contributions to sums that can't be counted in a text, such as costs; sums that are left out are unknown.

        In pieces, a contrast of more than 1,000 characters may be missed where one ends, and 2,000,000 characters
        without white space or a comma are cut, even within a word.
        """
        if not isinstance(text, Iterable):
            raise InputError(
                f"a text (str) or its pieces were expected, not {shorten(repr(text), 40)}: call add for each"
            )
        if not isinstance(group, str | NoneType) or not isinstance(sums, Mapping | NoneType):
            raise InputError(f"group is {group!r:.40} and sums {sums!r:.40}: pass a name, and numbers by name")
        self._sums.clear()
        self._owners.append(self._find_group(group))
        counted: Counter[str] = Counter()
        contrasts = ContrastCount()
        pieces: Iterable[str] = [text] if isinstance(text, str) else cut_blocks(text)
        for name, bans in self._bans.items():
            pieces = _count_hits(bans, pieces, name, counted)
        self._counts.add(self._count_others(pieces, contrasts, counted))
        contrasts.read("", is_last=True)
        names = ["characters", *self._bans, *self._counters]
        self._note({name: counted[name] for name in names} | {"contrasts": contrasts.count, **(sums or {})})

    def _count_others(self, pieces: Iterable[str], contrasts: ContrastCount, counted: Counter[str]) -> Iterator[str]:
        """Pass on the pieces of a text, and count in them what is not counted in words."""
        for piece in pieces:
            contrasts.read(piece)
            counted["characters"] += len(piece)
            counted.update({name: counter(piece) for name, counter in self._counters.items()})
            yield piece

    def _note(self, sums: Mapping[str, float]) -> None:
        for name, amount in sums.items():
            column = self._others.setdefault(name, array("d"))
            column.extend([nan] * (len(self) - 1 - len(column)))
            column.append(amount)

    def sum_up(self, *, seed: int = 0) -> dict[str, Floats]:
        """Return the contributions of texts to the sums: [texts] by name. The seed draws the texts of self-BLEU."""
        if not isinstance(seed, SupportsIndex) or seed < 0:
            raise InputError(f"seed is {seed!r:.40}; a whole number, 0 or more, is expected")
        if seed not in self._sums:
            self._sums[seed] = self._sum_up(seed)
        return self._sums[seed]

    def sum_groups(self, groups: Sequence[str | int] | None = None, *, seed: int = 0) -> dict[str, Floats]:
        """Return the contributions of groups, by default `self.groups`, to the sums: [groups] by name."""
        owners = np.array(self._owners)
        if groups is not None:
            places = {group: place for place, group in enumerate(groups)}
            owners = np.array([places[group] for group in self.groups])[owners]
        return {name: np.bincount(owners, column).astype(float) for name, column in self.sum_up(seed=seed).items()}

    def find_overused(self, n: int) -> list[str]:
        """Return the n-grams of 2 or 3 content words that `repetition` counts, the most overused first."""
        if n not in (lengths := [*self.scale.human]):
            raise InputError(f"n is {n!r:.40}; the scale has n-grams of {lengths}: pass one of these lengths")
        return [" ".join(gram) for gram in self._find_overused(n).ngrams]

    def _find_group(self, name: str | None) -> int:
        new_place = len(self._names)
        place = new_place if name is None else self._places.setdefault(name, new_place)
        if place == new_place:
            self._names.append(name)
        return place

    def _sum_up(self, seed: int) -> dict[str, Floats]:
        self._counts.flush()
        sums = {name: np.array(column) for name, column in self._counts.sums.items()}
        for name, listed in (("slop_words", self.scale.words), ("slop_trigrams", self.scale.trigrams)):
            if not listed:
                sums[name] = np.full(len(self), np.nan)
        for name, column in self._others.items():
            sums[name] = np.pad(np.array(column), (0, len(self) - len(column)), constant_values=nan)
        sums["shares_in_windows"] = sums.pop("distinct_in_windows") / WINDOW_WORDS
        sums |= {"texts": np.ones(len(self)), "overused": self._sum_overused(), **self._sum_bleu(seed)}
        unknown = {name for ratio in self._ratios for name in (ratio.above, ratio.below)} - sums.keys()
        return sums | {name: np.full(len(self), np.nan) for name in sorted(unknown)}

    def _find_overused(self, n: int) -> Overused:
        self._counts.flush()
        return find_overused(
            np.frombuffer(self._counts.content, np.int32),
            np.array(self._counts.sums["content_words"], dtype=np.int64),
            self._counts.numbers,
            shares=self.scale.human[n],
            n=n,
        )

    def _sum_overused(self) -> Floats:
        counts = [self._find_overused(n).counts for n in self.scale.human]
        return np.sum(counts, axis=0, dtype=float) if counts else np.full(len(self), np.nan)

    def _sum_bleu(self, seed: int) -> dict[str, Floats]:
        ends = np.cumsum([min(length, BEGINNING_WORDS) for length in self.lengths])
        indices = np.random.default_rng(seed).permutation(len(self))[:COMPARED_TEXTS]
        scores = np.full(len(self), np.nan)
        beginnings = self._counts.beginnings
        scores[indices] = measure_self_bleu([beginnings[ends[i - 1] if i else 0 : ends[i]] for i in indices])
        return {"bleu": np.nan_to_num(scores), "compared": (~np.isnan(scores)).astype(float)}


def check_tallies(*tallies: object) -> None:
    """Raise `InputError` for texts in place of their tally."""
    for tally in tallies:
        if not isinstance(tally, Tally):
            raise InputError(
                f"a Tally was expected, not {shorten(repr(tally), 40)}: make one, tally = Tally(), and call "
                "tally.add(text) for each text"
            )


def _count_hits(bans: BanList, pieces: Iterable[str], name: str, counted: Counter[str]) -> Iterator[str]:
    """Pass on the pieces of a text once they were searched, and add their matches to the count of a name."""
    passed: deque[str] = deque()

    def note() -> Iterator[str]:
        for piece in pieces:
            passed.append(piece)
            yield piece

    end = 0  # of the latest counted match
    for step in bans.search(note()):
        matches = drop_overlaps(step.matches, begin=end)
        counted[name] += len(matches)
        end = matches[-1].end if matches else end
        while passed:
            yield passed.popleft()
    yield from passed
