"""Texts, reduced to the numbers from which metrics are computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from antislop.lists.ban_list import BanList
from antislop.metrics.bootstrap import Floats
from antislop.metrics.definitions import BEGINNING, COMPARED, METRICS, PIECE, WINDOW, Metric, define_hits
from antislop.metrics.diversity import count_distinct, count_distinct_ngrams, find_overused, measure_self_bleu
from antislop.metrics.segmentation import Segments
from antislop.metrics.slop_scale import Scale


class Tally:
    """The numbers of texts that metrics need.

    scale: by default the bundled one. metrics: to be measured. bans: lists whose matches are also counted, by names
        other than those of metrics.

    Stores a number per word, which takes about as much memory as the texts, but not the texts.

    >>> from antislop.metrics.metrics import measure
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
            raise ValueError(f"a list of bans is named {name!r} like a metric: give it another name")
        self.metrics = (*metrics, *(define_hits(name, bans) for name, bans in lists.items()))
        self._ratios = [metric.ratio for metric in self.metrics if metric.ratio is not None]
        self._counters = {
            metric.ratio.above: metric.count
            for metric in self.metrics
            if metric.ratio is not None and metric.count is not None
        }
        self._counts: list[dict[str, float]] = []
        self._groups: list[str | None] = []
        self._words: list[NDArray[np.int32]] = []
        self._content_words: list[NDArray[np.int32]] = []
        self._sums: dict[int, dict[str, Floats]] = {}
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def words(self) -> int:
        """The number of words of all texts."""
        return sum(map(len, self._words))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of words of each text."""
        return tuple(map(len, self._words))

    @property
    def groups(self) -> tuple[str | int, ...]:
        """The units of the bootstrap, by first occurrence: names of groups, and 0, 1, 2, ... for texts without one."""
        return tuple(dict.fromkeys(self._owners()))

    def add(self, text: str, *, group: str | None = None, sums: Mapping[str, float] | None = None) -> None:
        """Count a text.

        group: the name of a group of dependent texts, such as the texts to one prompt; intervals are over groups. None:
            the text is a group by itself. sums: contributions of the text to sums that can't be counted in it, such as
            costs, by name; sums that are left out are unknown.
        """
        self._sums.clear()
        self._groups.append(group)
        segments = Segments.of(text)
        self._words.append(self._number(segments.words))
        self._content_words.append(self._number(segments.content_words))
        counted = {name: count(segments, self.scale) for name, count in self._counters.items()}
        self._counts.append({**_count_segments(segments), **counted, **(sums or {})})

    def sum_up(self, *, seed: int = 0) -> dict[str, Floats]:
        """Return the contributions of texts to the sums from which metrics are computed: [texts] by name of the sum.

        seed: draws the texts that self-BLEU compares with each other.
        """
        if seed not in self._sums:
            self._sums[seed] = self._sum_up(seed)
        return self._sums[seed]

    def sum_groups(self, groups: Sequence[str | int] | None = None, *, seed: int = 0) -> dict[str, Floats]:
        """Return the contributions of groups to the sums: [groups] by name of the sum.

        groups: all groups, in the order of the result; by default as in the property `groups`. seed: as in `sum_up`.
        """
        places = {group: place for place, group in enumerate(self.groups if groups is None else groups)}
        owners = np.array([places[group] for group in self._owners()])
        return {name: np.bincount(owners, column).astype(float) for name, column in self.sum_up(seed=seed).items()}

    def find_overused(self, n: int) -> list[str]:
        """Return the n-grams of 2 or 3 content words that `repetition` counts, the most overused first."""
        return [" ".join(gram) for gram in self._find_overused(n)[0]]

    def _owners(self) -> list[str | int]:
        """Return the group of each text."""
        numbers = count()
        return [next(numbers) if group is None else group for group in self._groups]

    def _sum_up(self, seed: int) -> dict[str, Floats]:
        names = dict.fromkeys(name for counts in self._counts for name in counts)
        sums = {name: np.array([counts.get(name, np.nan) for counts in self._counts], dtype=float) for name in names}
        words = [numbers.astype(np.int64) for numbers in self._words]
        sums |= {"texts": np.ones(len(self)), **self._sum_overused(), **_sum_diversity(words, seed=seed)}
        unknown = {name for ratio in self._ratios for name in (ratio.above, ratio.below)} - sums.keys()
        return sums | {name: np.full(len(self), np.nan) for name in sorted(unknown)}

    def _find_overused(self, n: int) -> tuple[tuple[tuple[str, ...], ...], NDArray[np.int64]]:
        content_words = [numbers.astype(np.int64) for numbers in self._content_words]
        return find_overused(content_words, list(self._numbers), shares=self.scale.human[n], n=n)

    def _sum_overused(self) -> dict[str, Floats]:
        counts = [self._find_overused(n)[1] for n in self.scale.human]
        return {"overused": np.sum(counts, axis=0, dtype=float) if counts else np.full(len(self), np.nan)}

    def _number(self, words: Sequence[str]) -> NDArray[np.int32]:
        numbers = self._numbers
        return np.array([numbers[word] for word in words], dtype=np.int32)


def _count_segments(segments: Segments) -> dict[str, float]:
    return {
        "words": len(segments.words),
        "content_words": len(segments.content_words),
        "characters": len(segments.text),
        "sentences": len(segments.sentences),
        "sentence_words": sum(segments.sentences),
        "sentence_squares": sum(length * length for length in segments.sentences),
        "paragraphs": len(segments.paragraphs),
    }


def _sum_diversity(words: Sequence[NDArray[np.int64]], *, seed: int) -> dict[str, Floats]:
    distinct = count_distinct(np.concatenate(words), window=WINDOW)
    owners = np.repeat(np.arange(len(words)), [len(numbers) for numbers in words])[: len(distinct)]
    sums = {
        "windows": np.bincount(owners, minlength=len(words)).astype(float),
        "shares_in_windows": np.bincount(owners, distinct / WINDOW, minlength=len(words)),
    }
    for n in (1, 2, 3):
        counts = np.array([count_distinct_ngrams(numbers, n, piece=PIECE) for numbers in words], dtype=float)
        sums |= {f"distinct_{n}": counts[:, 0], f"ngrams_{n}": counts[:, 1]}
    return sums | _sum_bleu(words, seed=seed)


def _sum_bleu(words: Sequence[NDArray[np.int64]], *, seed: int) -> dict[str, Floats]:
    indices = np.random.default_rng(seed).permutation(len(words))[:COMPARED]
    scores = np.full(len(words), np.nan)
    scores[indices] = measure_self_bleu([words[index][:BEGINNING].tolist() for index in indices])
    return {"bleu": np.nan_to_num(scores), "compared": (~np.isnan(scores)).astype(float)}
