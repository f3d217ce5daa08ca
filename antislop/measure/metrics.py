"""Measures of slop, repetition and variety: of the texts of one tally, or as the difference between two tallies."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import nan

import numpy as np

from antislop.core.bans import BanList
from antislop.errors import InputError
from antislop.measure.blocks import cut_blocks
from antislop.measure.definitions import COMPARED_TEXTS, METRICS, Metric, compute_metrics, define_hits, name_hits
from antislop.measure.diversity import Overused, find_overused, measure_self_bleu
from antislop.measure.estimates import Estimate, Floats, Sums, estimate
from antislop.measure.slop import ContrastCount, Scale
from antislop.measure.text_counts import BEGINNING_WORDS, WINDOW_WORDS, TextCounts


class Tally:
    """Counts of texts, from which metrics are computed; the texts themselves are not stored.

    scale: the lists that define slop; by default the bundled scale.
    bans: lists by name, whose matches are counted, too; a list may not have the name of a metric.

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
        self._others: dict[str, array[float]] = {}  # sums that `TextCounts` lacks
        self._owners: array[int] = array("q")  # the place of the group of each text in `groups`
        self._places: dict[str, int] = {}  # by the name of a group
        self._names: list[str | None] = []  # None for a text that is a group by itself
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
        """The names of groups by first occurrence; a text without a group has a number in its place: 0, 1, 2, ..."""
        numbers = count()
        return tuple(next(numbers) if name is None else name for name in self._names)

    def add(
        self, text: str | Iterable[str], *, group: str | None = None, sums: Mapping[str, float] | None = None
    ) -> None:
        """Count a text, whole or in pieces.

        group: the name of a group of dependent texts, such as those to one prompt; None: the text is a group by itself.
        sums: amounts that can't be counted in the text itself, such as costs; amounts that are left out are unknown.

        In a text that comes in pieces, contrasts of over 1,000 characters may be missed where a piece ends, and
        2,000,000 characters without white space or a comma are cut, even within a word.
        """
        self._sums.clear()
        new_place = len(self._names)
        place = new_place if group is None else self._places.setdefault(group, new_place)
        if place == new_place:
            self._names.append(group)
        self._owners.append(place)
        counted: Counter[str] = Counter()
        contrasts = ContrastCount()
        pieces: Iterable[str] = [text] if isinstance(text, str) else cut_blocks(text)
        for name, bans in self._bans.items():
            pieces = _count_hits(bans, pieces, name, counted)
        self._counts.add(self._count_others(pieces, contrasts, counted))
        contrasts.read("", is_last=True)
        names = ["characters", *self._bans, *self._counters]
        found = contrasts.count if self.scale.language.is_english else nan
        others = {name: counted[name] for name in names} | {"contrasts": found, **(sums or {})}
        for name, amount in others.items():
            column = self._others.setdefault(name, array("d"))
            column.extend([nan] * (len(self) - 1 - len(column)))
            column.append(amount)

    def _count_others(self, pieces: Iterable[str], contrasts: ContrastCount, counted: Counter[str]) -> Iterator[str]:
        """Yield the pieces of a text unchanged, and count in them what `TextCounts` does not count."""
        for piece in pieces:
            contrasts.read(piece)
            counted["characters"] += len(piece)
            counted.update({name: counter(piece) for name, counter in self._counters.items()})
            yield piece

    def sum_up(self, *, seed: int = 0) -> dict[str, Floats]:
        """Return by the name of each sum what each text adds to it: [texts]. The seed draws the texts of self-BLEU."""
        if seed in self._sums:
            return self._sums[seed]
        self._counts.flush()
        sums = {name: np.array(column) for name, column in self._counts.sums.items()}
        for name, listed in (("slop_words", self.scale.words), ("slop_trigrams", self.scale.trigrams)):
            if not listed:
                sums[name] = np.full(len(self), np.nan)
        for name, column in self._others.items():
            sums[name] = np.pad(np.array(column), (0, len(self) - len(column)), constant_values=nan)
        sums["shares_in_windows"] = sums.pop("distinct_in_windows") / WINDOW_WORDS
        overused = [self._find_overused(n).counts for n in self.scale.human]
        sums["overused"] = np.sum(overused, axis=0, dtype=float) if overused else np.full(len(self), np.nan)
        # Self-BLEU grows with the number of texts: it is measured over `COMPARED_TEXTS` texts if possible.
        drawn = np.random.default_rng(seed).permutation(len(self))[:COMPARED_TEXTS]
        ends = np.cumsum([min(length, BEGINNING_WORDS) for length in self.lengths])
        beginnings, scores = self._counts.beginnings, np.full(len(self), np.nan)
        scores[drawn] = measure_self_bleu([beginnings[ends[i - 1] if i else 0 : ends[i]] for i in drawn])
        sums |= {"bleu": np.nan_to_num(scores), "compared": (~np.isnan(scores)).astype(float)}
        sums["texts"] = np.ones(len(self))
        unknown = {name for ratio in self._ratios for name in (ratio.above, ratio.below)} - sums.keys()
        self._sums[seed] = sums | {name: np.full(len(self), np.nan) for name in sorted(unknown)}
        return self._sums[seed]

    def sum_groups(self, groups: Sequence[str | int] | None = None, *, seed: int = 0) -> dict[str, Floats]:
        """Return by the name of each sum what each group adds to it: [groups]. groups: by default `self.groups`."""
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

    def _find_overused(self, n: int) -> Overused:
        self._counts.flush()
        return find_overused(
            np.frombuffer(self._counts.content, np.int32),
            np.array(self._counts.sums["content_words"], dtype=np.int64),
            self._counts.numbers,
            shares=self.scale.human[n],
            n=n,
        )


def _count_hits(bans: BanList, pieces: Iterable[str], name: str, counted: Counter[str]) -> Iterator[str]:
    """Yield the pieces of a text once they were searched for bans, and add the number of matches to `counted[name]`."""
    passed: deque[str] = deque()

    def note() -> Iterator[str]:
        for piece in pieces:
            passed.append(piece)
            yield piece

    for step in bans.search(note(), overlaps=False):
        counted[name] += len(step.matches)
        while passed:
            yield passed.popleft()
    yield from passed


def measure(tally: Tally, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> dict[str, Estimate]:
    """Return each of the tally's metrics by name, with an interval over groups of texts.

    seed: draws the resamples and the texts of self-BLEU.

    With texts grouped by prompt, the interval covers other prompts; without groups, only other texts to the same
    prompts. A rate of 0 is bounded by the rule of three. A lower value is not better in itself: compare it with human
    writing, see `measure_distance`.
    """
    if not tally.words:
        return _explain_empty(tally)
    sums = tally.sum_groups(seed=seed)
    metrics = {metric.name: metric for metric in tally.metrics}
    estimates = estimate(
        [sums],
        lambda totals: compute_metrics(tally.metrics, totals, tally.scale),
        explain=lambda name: metrics[name].explain(sums),
        unbounded=explain_interval(tally),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    bounds = bound_unseen_rates(tally, sums, level=level)
    estimates |= {name: estimates[name].widen(high=bound) for name, bound in bounds.items()}
    return {name: value.with_caution(warn_of_short_texts(name, tally)) for name, value in estimates.items()}


def measure_difference(
    after: Tally, before: Tally, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Estimate]:
    """Return by name the difference of each metric, after minus before.

    Groups are resampled together on both sides, so that the influence of the prompt cancels. Texts without a group are
    paired by position. A rate of 0 on both sides has no interval.
    Raises `InputError` if a group or text has no counterpart, or if the tallies have different scales or metrics.
    """
    _check_pairs(after, before)
    if not (after.words and before.words):
        return _explain_empty(after, before)
    sums = after.sum_groups(seed=seed), before.sum_groups(after.groups, seed=seed)
    metrics = {metric.name: metric for metric in after.metrics}

    def subtract(*totals: Sums) -> Sums:
        after_values, before_values = (compute_metrics(after.metrics, side, after.scale) for side in totals)
        return {name: value - before_values[name] for name, value in after_values.items()}

    estimates = estimate(
        sums,
        subtract,
        explain=lambda name: metrics[name].explain(*sums),
        unbounded=explain_interval(after),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    unseen = set.intersection(*(set(bound_unseen_rates(after, side, level=level)) for side in sums))
    why = "no interval: it occurs on neither side"
    for name in (name for name in unseen if estimates[name].low is not None):
        estimates[name] = estimates[name]._replace(low=None, high=None, why=why)
    for tally in (before, after):
        estimates = {name: value.with_caution(warn_of_short_texts(name, tally)) for name, value in estimates.items()}
    return estimates


def _check_pairs(after: Tally, before: Tally) -> None:
    ungrouped = [sum(isinstance(group, int) for group in tally.groups) for tally in (after, before)]
    if ungrouped[0] != ungrouped[1]:
        raise InputError(f"of the texts, {ungrouped[0]} after and {ungrouped[1]} before have no group: pass pairs")
    unpaired = sorted(map(str, {*after.groups} ^ {*before.groups}))
    if unpaired:
        raise InputError(
            f"the group {unpaired[0]!r} is on one side only: pass texts of the same groups after and before"
        )
    names = [{metric.name for metric in tally.metrics} for tally in (after, before)]
    if after.scale != before.scale or names[0] != names[1]:
        raise InputError("the tallies have different scales, metrics or lists of bans: make both with the same")


def bound_unseen_rates(tally: Tally, sums: Sums, *, level: float) -> dict[str, float]:
    """Return by name the upper bounds of rates whose events never occurred. sums: from `tally.sum_groups`."""
    return {
        metric.name: bound
        for metric in tally.metrics
        if metric.ratio is not None and (bound := metric.ratio.bound_unseen(sums, level=level)) is not None
    }


def warn_of_short_texts(name: str, tally: Tally) -> str | None:
    """Return a caution if most texts are shorter than what a metric reads of each: their length then matters."""
    reads = next((metric.reads for metric in tally.metrics if metric.name == name), 0)
    short = sum(length < reads for length in tally.lengths) if reads else 0
    if 2 * short <= len(tally):
        return None
    return f"most texts ({short:,} of {len(tally):,}) are shorter than the {reads} words that it reads of each"


def explain_interval(tally: Tally) -> str:
    if len(tally) < 2:
        return "one text"
    if len(tally.groups) < 2:
        return "all texts are of one group, such as one prompt"
    return "too few texts or groups that it is defined for, or no resamples"


def _explain_empty(*tallies: Tally) -> dict[str, Estimate]:
    reason = "no words in the texts" if all(len(tally) for tally in tallies if not tally.words) else "no texts"
    return {metric.name: Estimate.undefined(reason) for metric in tallies[0].metrics}
