"""How sloppy, repetitive and varied texts are: each metric with its definition, unit, source, and an interval.

What is counted in a text is added to a `Tally`; each metric is computed from sums over texts, so that drawing the texts
again, those of a group together, gives its interval. Less is not better: what a metric is worth shows against human
writing, see `humans`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antislop.lists.ban_list import BanList
from antislop.metrics.bootstrap import Floats, Intervals, bootstrap, bound_unseen
from antislop.metrics.contrasts import count_contrasts
from antislop.metrics.diversity import count_distinct, count_distinct_ngrams, measure_self_bleu
from antislop.metrics.repetition import TOP, find_overused
from antislop.metrics.segmentation import (
    count_dialogues,
    drop_stop_words,
    extract_paragraphs,
    extract_sentences,
    extract_words,
)
from antislop.metrics.slop_scale import MARGIN, Scale

WINDOW = 500  # words
PIECE = 100  # words
COMPARED = 100  # texts
BEGINNING = 200  # words
WEIGHTS = {"slop_words": 0.60, "contrasts": 0.25, "slop_trigrams": 0.15}

_SLOP_SCORE = "https://github.com/sam-paech/slop-score, commit 289264ab2a"
_OWN = "this project"


class Metric(NamedTuple):
    """What is measured. about: how exactly. source: who defined it, as URL or DOI."""

    name: str
    title: str
    unit: str
    about: str
    source: str


class Estimate(NamedTuple):
    """A value and the bounds of its interval.

    The value is None where it is undefined, the bounds where there is no interval; `why` gives the reason for either,
    or a caution about a value that is defined.
    """

    value: float | None
    low: float | None
    high: float | None
    why: str | None = None


METRICS = (
    Metric(
        "slop_words",
        "slop words",
        "per 1,000 words",
        "words that are in the scale's list, in exactly that form",
        _SLOP_SCORE,
    ),
    Metric(
        "slop_trigrams",
        "slop trigrams",
        "per 1,000 words",
        "three words in a row that are in the scale's list, overlapping ones too; stop words between them are left out "
        'unless the scale is over "words"; per 1,000 words of any kind',
        _SLOP_SCORE,
    ),
    Metric(
        "contrasts",
        "not X but Y",
        "per 1,000 characters",
        "hits of eight bundled constructions that deny one thing to put another in its place; of overlapping hits the "
        "first counts. The published metric has 45 patterns, others than these: levels differ",
        _SLOP_SCORE,
    ),
    Metric(
        "slop_score",
        "slop score",
        "0 to 100",
        "60 % slop words, 25 % contrasts, 15 % slop trigrams, each as its place in the scale's range, widened by 10 % "
        "on both sides and cut off at its ends",
        _SLOP_SCORE,
    ),
    Metric(
        "repetition",
        "repetition",
        "per 1,000 content words",
        f"occurrences of the {TOP} bigrams and {TOP} trigrams of content words whose share is highest against that in "
        "human writing. Falls with the amount of text; the interval takes the n-grams as given",
        _SLOP_SCORE,
    ),
    Metric(
        "mattr_500",
        "MATTR-500",
        "0 to 1",
        f"mean over all windows of {WINDOW} words of the share of distinct words, texts laid end to end; a window "
        "belongs to the text that it begins in",
        "Covington and McFall 2010, doi 10.1080/09296171003643098",
    ),
    *(
        Metric(
            f"distinct_{n}",
            f"distinct-{n}",
            "0 to 1",
            f"share of distinct ones among the {n}-grams of words in pieces of {PIECE} words, shorter pieces left out, "
            "so that it does not depend on length, as the published one does, which counts in all texts at once",
            "Li et al. 2016, https://arxiv.org/abs/1510.03055; in pieces: Johnson 1944, doi 10.1037/h0093508",
        )
        for n in (1, 2, 3)
    ),
    Metric(
        "self_bleu",
        "self-BLEU",
        "0 to 1",
        f"mean BLEU-4 of the first {BEGINNING} words of a text against those of the others, in {COMPARED} texts drawn "
        "by the seed, or all if there are fewer; then it is lower. The interval takes the other texts as given",
        "Zhu et al. 2018, https://arxiv.org/abs/1802.01886",
    ),
    Metric("sentence_words", "sentence length", "words", "words of all sentences over sentences", _OWN),
    Metric(
        "sentence_spread",
        "sentence spread",
        "words",
        "standard deviation of the words of a sentence over all sentences: burstiness",
        _OWN,
    ),
    Metric(
        "dialogue",
        "dialogue",
        "share of paragraphs",
        "paragraphs that hold something between double quotes, straight or curly; British single quotes and dashes "
        "in the place of quotes are not seen",
        _OWN,
    ),
    Metric(
        "paragraph_words",
        "paragraph length",
        "words",
        "words of all paragraphs over paragraphs, which empty lines separate",
        _OWN,
    ),
)
"""All metrics, in the order of tables."""

# Of each ratio: what is above, what is below, and by how much it is multiplied.
_RATIOS = {
    "slop_words": ("slop_words", "words", 1000),
    "slop_trigrams": ("slop_trigrams", "words", 1000),
    "contrasts": ("contrasts", "characters", 1000),
    "repetition": ("overused", "content_words", 1000),
    "mattr_500": ("shares_in_windows", "windows", 1),
    **{f"distinct_{n}": (f"distinct_{n}", f"ngrams_{n}", 1) for n in (1, 2, 3)},
    "self_bleu": ("bleu", "compared", 1),
    "sentence_words": ("sentence_words", "sentences", 1),
    "dialogue": ("dialogues", "paragraphs", 1),
    "paragraph_words": ("words", "paragraphs", 1),
}
_EVENTS = ("slop_words", "slop_trigrams", "contrasts", "dialogue")
"""Ratios that count events; one that never occurred has a rate all the same."""
_HITS = "hits of "
_WHY = {
    "mattr_500": f"fewer than {WINDOW:,} words in all",
    "self_bleu": "fewer than two texts of four words or more",
    **{f"distinct_{n}": f"no text of {PIECE} words or more" for n in (1, 2, 3)},
}


class Tally:
    """Texts, and what metrics need of each.

    scale: what they are held against, by default the bundled one. bans: lists whose hits are counted, too, by a name
        that no metric has.

    Holds a number for each word, about as many bytes as the texts have, but not the texts.

    >>> tally = Tally()
    >>> tally.add("It was not a door, but a mouth.")
    >>> len(tally), measure(tally)["contrasts"].value > 0
    (1, True)
    """

    def __init__(self, scale: Scale | None = None, *, bans: Mapping[str, BanList] | None = None) -> None:
        self.scale = Scale.load() if scale is None else scale
        self.bans = dict(bans or {})
        for name in self.bans.keys() & {metric.name for metric in METRICS}:
            raise ValueError(f"a list of bans is named {name!r}, as a metric is: give it another name")
        self._counts: list[dict[str, float]] = []
        self._named: list[str | None] = []
        self._words: list[NDArray[np.int32]] = []
        self._content: list[NDArray[np.int32]] = []
        self._sums: dict[int, dict[str, Floats]] = {}
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def words(self) -> int:
        """The words of all texts."""
        return sum(map(len, self._words))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The words of each text."""
        return tuple(map(len, self._words))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What `measure` measures: `METRICS`, and the hits of each list of bans."""
        about = "occurrences of the list's bans, as `BanList.find` finds them; its weights don't matter"
        return (*METRICS, *(Metric(name, name, "per 1,000 words", about, _OWN) for name in self.bans))

    @property
    def groups(self) -> tuple[str | int, ...]:
        """What is drawn again, by first occurrence: names of groups, and of texts without one 0, 1, 2, ..."""
        return tuple(dict.fromkeys(self._owners()))

    def add(self, text: str, *, group: str | None = None) -> None:
        """Count what is in a text.

        group: what it shares with texts that it is not independent of, such as their prompt: intervals are over groups.
            None: the text is a group of its own.
        """
        self._sums.clear()
        self._named.append(group)
        words = extract_words(text)
        content = drop_stop_words(words)
        self._words.append(self._number(words))
        self._content.append(self._number(content))
        self._counts.append(
            {
                "words": len(words),
                "content_words": len(content),
                "characters": len(text),
                "contrasts": count_contrasts(text),
                **_count_slop(words, content, self.scale),
                **_count_structure(text),
                **{_HITS + name: len(bans.find(text)) for name, bans in self.bans.items()},
            }
        )

    def sum_up(self, *, seed: int = 0) -> dict[str, Floats]:
        """Return what each text adds to each sum that metrics are computed from: [texts] by the name of the sum.

        seed: draws the texts that are compared with each other.
        """
        if seed not in self._sums:
            self._sums[seed] = self._sum_up(seed)
        return self._sums[seed]

    def sum_groups(self, groups: Sequence[str | int] | None = None, *, seed: int = 0) -> dict[str, Floats]:
        """Return what the texts of each group add to each sum: [groups] by the name of the sum.

        groups: all of them, in the order that is wanted; by default that of `groups`. seed: as in `sum_up`.
        """
        places = {group: place for place, group in enumerate(self.groups if groups is None else groups)}
        owners = np.array([places[group] for group in self._owners()])
        return {name: np.bincount(owners, column).astype(float) for name, column in self.sum_up(seed=seed).items()}

    def _owners(self) -> list[str | int]:
        """Return the group of each text."""
        turns = count()
        return [next(turns) if group is None else group for group in self._named]

    def _sum_up(self, seed: int) -> dict[str, Floats]:
        sums = {name: np.array([counts[name] for counts in self._counts], dtype=float) for name in self._counts[0]}
        words = [one.astype(np.int64) for one in self._words]
        return {**sums, "texts": np.ones(len(self)), **self._sum_overused(), **_sum_diversity(words, seed=seed)}

    def find_overused(self, n: int) -> list[str]:
        """Return the n-grams, of 2 or 3 content words, that `repetition` counts, the most overused first."""
        return [" ".join(gram) for gram in self._find_overused(n)[0]]

    def _find_overused(self, n: int) -> tuple[tuple[tuple[str, ...], ...], NDArray[np.int64]]:
        content = [one.astype(np.int64) for one in self._content]
        return find_overused(content, list(self._numbers), shares=self.scale.human[n], n=n)

    def _sum_overused(self) -> dict[str, Floats]:
        found = [self._find_overused(n)[1] for n in self.scale.human]
        return {"overused": np.sum(found, axis=0, dtype=float) if found else np.full(len(self), np.nan)}

    def _number(self, words: Sequence[str]) -> NDArray[np.int32]:
        numbers = self._numbers
        return np.array([numbers[word] for word in words], dtype=np.int32)


def measure(tally: Tally, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> dict[str, Estimate]:
    """Return each metric of the texts, by name: those of `METRICS`, and hits per 1,000 words of each list of bans.

    resamples, level: of the interval, see `bootstrap`. seed: draws the resamples and the texts of self-BLEU.

    Groups are drawn again as a whole, so that for texts grouped by prompt the interval is about other prompts. Where
    texts to a few prompts have no groups, it is about other texts to these prompts only. A rate of 0 is bounded by the
    rule of three, see `bootstrap.bound_unseen`.
    """
    if not tally.words:
        return dict.fromkeys(_names(tally), _undefined(_why_empty(tally)))
    sums = tally.sum_groups(seed=seed)
    intervals = bootstrap(
        np.stack(list(sums.values()), axis=1),
        lambda totals: np.stack(list(compute(_name(sums, totals), tally).values())),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    found = name_estimates(intervals, _names(tally), lambda name: explain(name, tally), tally=tally)
    unseen = bound_unseen_rates(sums, tally, level=level)
    found |= {name: widen(found[name], high=bound) for name, bound in unseen.items()}
    return {name: _caution(estimate, name, tally) for name, estimate in found.items()}


def measure_difference(
    after: Tally, before: Tally, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Estimate]:
    """Return how much higher each metric is after than before, by name.

    Paired: texts of the same group are drawn together on both sides, so that what the prompt explains cancels out;
    they need not be as many. A rate of 0 on both sides has a difference of 0 without an interval. Texts without a group
    are paired by their turn: the i-th of both answer the same prompt under the same seed. Raises `ValueError` where a
    group or text has no counterpart, and where they are not held against the same.
    """
    _refuse_unpaired(after, before)
    if after.scale != before.scale or after.bans.keys() != before.bans.keys():
        raise ValueError("the tallies have different scales or lists of bans: make both with the same")
    for tally in (after, before):
        if not tally.words:
            return dict.fromkeys(_names(after), _undefined(_why_empty(tally)))
    sums = [tally.sum_groups(after.groups, seed=seed) for tally in (after, before)]
    width = len(sums[0])

    def subtract(totals: Floats) -> Floats:
        halves = (totals[..., :width], totals[..., width:])
        values = [compute(_name(sums[0], half), after) for half in halves]
        return np.stack(list(values[0].values())) - np.stack(list(values[1].values()))

    columns = np.stack([column for one in sums for column in one.values()], axis=1)
    intervals = bootstrap(columns, subtract, resamples=resamples, level=level, seed=seed)
    found = name_estimates(intervals, _names(after), lambda name: explain(name, after), tally=after)
    never = set.intersection(*(set(bound_unseen_rates(one, after, level=level)) for one in sums))
    found |= {name: _undefined_bounds(found[name], "it occurs on neither side") for name in never}
    return {name: _caution(_caution(one, name, before), name, after) for name, one in found.items()}


def _refuse_unpaired(after: Tally, before: Tally) -> None:
    alone = [sum(isinstance(group, int) for group in tally.groups) for tally in (after, before)]
    if alone[0] != alone[1]:
        raise ValueError(f"{alone[0]} texts after and {alone[1]} before have no group: pass texts in pairs")
    odd = sorted(map(str, {*after.groups} ^ {*before.groups}))
    if odd:
        raise ValueError(f"the group {odd[0]!r} is on one side only: pass texts of the same groups after and before")


def bound_unseen_rates(sums: Mapping[str, Floats], tally: Tally, *, level: float) -> dict[str, float]:
    """Return upper bounds of the rates whose events never occurred, by the metric's name.

    sums: by group, as of `Tally.sum_groups`. Texts of one group are not independent: they count as one of their mean.
    """
    ratios = {name: _RATIOS[name] for name in _EVENTS} | {name: (_HITS + name, "words", 1000) for name in tally.bans}
    trials = {
        name: float((sums[below] / sums["texts"]).sum())
        for name, (above, below, _) in ratios.items()
        if not sums[above].any()
    }
    return {name: ratios[name][2] * bound_unseen(count, level=level) for name, count in trials.items() if count}


def widen(estimate: Estimate, *, high: float, low: float | None = None) -> Estimate:
    """Return an estimate whose interval reaches up to `high`, and down to `low`; as it is if it has no interval."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return estimate._replace(low=estimate.low if low is None else min(estimate.low, low), high=max(estimate.high, high))


def warn_of_short_texts(name: str, tally: Tally) -> str | None:
    """Return why a metric says little about texts of this length, or None.

    Most windows of MATTR-500 then begin in one text and end in another, and self-BLEU compares texts that end before
    the words it reads, so that both depend on how long the texts are.
    """
    reads = {"mattr_500": WINDOW, "self_bleu": BEGINNING}.get(name)
    short = None if reads is None else sum(length < reads for length in tally.lengths)
    if not short or 2 * short <= len(tally):
        return None
    return f"{short:,} of {len(tally):,} texts are shorter than the {reads} words that it reads of each"


def _caution(estimate: Estimate, name: str, tally: Tally) -> Estimate:
    warning = warn_of_short_texts(name, tally)
    return estimate if warning is None or estimate.why else estimate._replace(why=warning)


def compute(sums: Mapping[str, Floats], tally: Tally) -> dict[str, Floats]:
    """Return each metric from sums, by name, in the order of `tally.metrics`; NaN where it is undefined."""
    ratios = {**_RATIOS, **{name: (_HITS + name, "words", 1000) for name in tally.bans}}
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: factor * sums[above] / sums[below] for name, (above, below, factor) in ratios.items()}
        variance = sums["sentence_squares"] / sums["sentences"] - values["sentence_words"] ** 2
        values["sentence_spread"] = np.sqrt(np.maximum(variance, 0.0))
        for name, given in (("slop_words", tally.scale.words), ("slop_trigrams", tally.scale.trigrams)):
            values[name] = values[name] if given else np.full_like(values[name], np.nan)
        values["slop_score"] = _score(values, tally.scale)
    return {name: values[name] for name in _names(tally)}


def explain(name: str, tally: Tally) -> str:
    """Return why a metric that is undefined for the texts is so."""
    lists = {"slop_words": tally.scale.words, "slop_trigrams": tally.scale.trigrams}
    if name in lists and not lists[name]:
        return f"the scale has no {name.replace('_', ' ')}"
    if name == "slop_score":
        return "the scale lacks words, trigrams or ranges"
    if name == "repetition" and not tally.scale.human:
        return "the scale has no human n-grams"
    return _WHY.get(name, "nothing to count in")


def name_estimates(
    intervals: Intervals, names: Sequence[str], why: Callable[[str], str], *, tally: Tally
) -> dict[str, Estimate]:
    """Return estimates of a tally by name: without value where it is NaN, without bounds where these are."""
    found = {}
    for name, value, low, high in zip(names, *intervals, strict=True):
        if np.isnan(value):
            found[name] = _undefined(why(name))
        elif np.isnan(low) or np.isnan(high):
            found[name] = Estimate(float(value), None, None, f"no interval: {_explain_bounds(tally)}")
        else:
            found[name] = Estimate(float(value), float(low), float(high))
    return found


def _explain_bounds(tally: Tally) -> str:
    if len(tally) < 2:
        return "one text"
    if len(tally.groups) < 2:
        return "all texts are of one group, such as one prompt"
    return "too few texts or groups that it is defined for, or no resamples"


def _names(tally: Tally) -> list[str]:
    return [metric.name for metric in tally.metrics]


def _name(sums: Mapping[str, Floats], totals: Floats) -> dict[str, Floats]:
    return {name: totals[..., i] for i, name in enumerate(sums)}


def _undefined(why: str) -> Estimate:
    return Estimate(None, None, None, why)


def _undefined_bounds(estimate: Estimate, why: str) -> Estimate:
    return estimate if estimate.low is None else estimate._replace(low=None, high=None, why=f"no interval: {why}")


def _why_empty(tally: Tally) -> str:
    return "no words in the texts" if len(tally) else "no texts"


def _count_slop(words: Sequence[str], content: Sequence[str], scale: Scale) -> dict[str, float]:
    over = content if scale.over == "content" else words
    trigrams = scale.trigrams
    return {
        "slop_words": sum(map(scale.words.__contains__, words)),
        "slop_trigrams": sum(map(trigrams.__contains__, zip(over, over[1:], over[2:], strict=False))),
    }


def _count_structure(text: str) -> dict[str, float]:
    lengths = [len(extract_words(sentence)) for sentence in extract_sentences(text)]
    paragraphs = extract_paragraphs(text)
    return {
        "sentences": len(lengths),
        "sentence_words": sum(lengths),
        "sentence_squares": sum(length * length for length in lengths),
        "paragraphs": len(paragraphs),
        "dialogues": count_dialogues(paragraphs),
    }


def _sum_diversity(words: Sequence[NDArray[np.int64]], *, seed: int) -> dict[str, Floats]:
    distinct = count_distinct(np.concatenate(words), window=WINDOW)
    owners = np.repeat(np.arange(len(words)), [len(one) for one in words])[: len(distinct)]
    sums = {
        "windows": np.bincount(owners, minlength=len(words)).astype(float),
        "shares_in_windows": np.bincount(owners, distinct / WINDOW, minlength=len(words)),
    }
    for n in (1, 2, 3):
        counts = np.array([count_distinct_ngrams(one, n, piece=PIECE) for one in words], dtype=float)
        sums |= {f"distinct_{n}": counts[:, 0], f"ngrams_{n}": counts[:, 1]}
    return sums | _sum_bleu(words, seed=seed)


def _sum_bleu(words: Sequence[NDArray[np.int64]], *, seed: int) -> dict[str, Floats]:
    drawn = np.random.default_rng(seed).permutation(len(words))[:COMPARED]
    scores = np.full(len(words), np.nan)
    scores[drawn] = measure_self_bleu([words[i][:BEGINNING].tolist() for i in drawn])
    return {"bleu": np.nan_to_num(scores), "compared": (~np.isnan(scores)).astype(float)}


def _score(values: Mapping[str, Floats], scale: Scale) -> Floats:
    score = np.zeros_like(values["slop_words"])
    for name, weight in WEIGHTS.items():
        if name not in scale.ranges:
            return np.full_like(score, np.nan)
        low, high = scale.ranges[name].widen(MARGIN)
        score += 100 * weight * np.clip((values[name] - low) / (high - low), 0, 1)
    return score
