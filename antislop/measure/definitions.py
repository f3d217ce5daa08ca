"""The definitions of all metrics: unit, source, and the computation of the value from sums over texts.

To add a metric, add an entry to `METRICS`: `count` computes the contribution of a text to a new sum, `formula` the
value from the sums. `text_counts` counts the sums of the bundled metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from antislop.measure.diversity import MOST_OVERUSED
from antislop.measure.estimates import Floats, Sums, bound_unseen
from antislop.measure.slop import WEIGHTS, Scale, score_slop
from antislop.measure.text_counts import BEGINNING_WORDS, PIECE_WORDS, WINDOW_WORDS

COMPARED_TEXTS = 100  # texts that self-BLEU compares

_SLOP_SCORE = "https://github.com/sam-paech/slop-score, commit 289264ab2a"
_OWN = "this project"

Formula: TypeAlias = Callable[[Sums, Scale], Floats]
Count: TypeAlias = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The formula of a metric that divides one sum over texts by another.

    above, below: names of the sums.
    is_rate: whether `above` counts events; a rate of 0 then has an upper bound.
    """

    above: str
    below: str
    factor: float = 1
    is_rate: bool = False

    def __call__(self, sums: Sums, _scale: Scale | None = None) -> Floats:
        ratio: Floats = self.factor * sums[self.above] / sums[self.below]
        return ratio

    def bound_unseen(self, sums: Sums, *, level: float) -> float | None:
        """Return the upper bound of a rate whose events never occurred; None for other ratios.

        sums: [groups]. Texts of a group are dependent: they count as one text of their mean length.
        """
        trials = float((sums[self.below] / sums["texts"]).sum())
        if not self.is_rate or sums[self.above].any() or not trials > 0:
            return None
        return self.factor * bound_unseen(trials, level=level)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its names, how its value is computed from sums over texts, and why a value may be undefined.

    about: the definition in words.
    source: who defined the metric, as URL or DOI.
    formula: computes the value from sums over texts; None if the value is derived from other estimates.
    count: computes the contribution of a text, or of a piece that ends at white space, to the numerator of a `Ratio`.
    missing: why the value is undefined if a sum is unknown (NaN).
    undefined: why the value is undefined in all other cases.
    reads: how many words of each text the metric reads; if most texts are shorter, the value depends on their length.
    """

    name: str
    title: str
    unit: str
    about: str
    source: str = _OWN
    formula: Formula | None = None
    count: Count | None = None
    missing: str = "a sum is unknown"
    undefined: str = "division by 0"
    reads: int = 0

    @property
    def ratio(self) -> Ratio | None:
        return self.formula if isinstance(self.formula, Ratio) else None

    def describe(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("name", "title", "unit", "about", "source")}

    def explain(self, *sums: Sums) -> str:
        """Return why the metric is undefined for the sums of one side or more, [groups] each."""
        names = (self.ratio.above, self.ratio.below) if self.ratio else ()
        is_unknown = any(np.isnan(side[name]).any() for side in sums for name in names)
        return self.missing if is_unknown else self.undefined


def compute_metrics(metrics: Iterable[Metric], sums: Sums, scale: Scale) -> dict[str, Floats]:
    """Return the value of each metric by name, of the same shape as the sums; NaN or infinity if undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {metric.name: metric.formula(sums, scale) for metric in metrics if metric.formula is not None}


def define_hits(name: str) -> Metric:
    return Metric(
        name,
        name,
        "per 1,000 words",
        "occurrences of the list's bans, of overlapping ones the first and longest; weights are ignored",
        formula=Ratio(name_hits(name), "words", 1000, is_rate=True),
    )


def name_hits(name: str) -> str:
    return f"hits of {name}"


_SLOP_RATES = {
    name: Ratio(name, unit, 1000, is_rate=True)
    for name, unit in (("slop_words", "words"), ("slop_trigrams", "words"), ("contrasts", "characters"))
}
_SENTENCE_WORDS = Ratio("sentence_words", "sentences")


def _compute_spread(sums: Sums, _scale: Scale) -> Floats:
    variance = sums["sentence_squares"] / sums["sentences"] - _SENTENCE_WORDS(sums) ** 2
    spread: Floats = np.sqrt(np.maximum(variance, 0.0))
    return spread


METRICS = (
    Metric(
        "slop_words",
        "slop words",
        "per 1,000 words",
        "words in exactly a form of the scale's list",
        _SLOP_SCORE,
        _SLOP_RATES["slop_words"],
        missing="the scale has no slop words",
    ),
    Metric(
        "slop_trigrams",
        "slop trigrams",
        "per 1,000 words",
        "sequences of three words that are in the scale's list, overlapping ones included; stop words between them "
        'are skipped unless the scale is over "words"; per 1,000 words of any kind',
        _SLOP_SCORE,
        _SLOP_RATES["slop_trigrams"],
        missing="the scale has no slop trigrams",
    ),
    Metric(
        "contrasts",
        "not X but Y",
        "per 1,000 characters",
        "matches of eight bundled constructions that deny one thing to assert another; of overlapping matches, the "
        "first counts. The published metric has 45 other patterns, so its values differ",
        _SLOP_SCORE,
        _SLOP_RATES["contrasts"],
        missing="the constructions are English",
    ),
    Metric(
        "slop_score",
        "slop score",
        "0 to 100",
        "60 % slop words, 25 % contrasts, 15 % slop trigrams, each as its position in the scale's range, which is "
        "widened by 10 % on both sides; positions outside are clipped",
        _SLOP_SCORE,
        lambda sums, scale: score_slop({name: _SLOP_RATES[name](sums) for name in WEIGHTS}, scale),
        undefined="the scale lacks words, trigrams or ranges",
    ),
    Metric(
        "repetition",
        "repetition",
        "per 1,000 content words",
        f"occurrences of the {MOST_OVERUSED} bigrams and {MOST_OVERUSED} trigrams of content words with the highest "
        "ratio of their share to that in human writing. Falls with the amount of text; the interval treats the n-grams "
        "as fixed",
        _SLOP_SCORE,
        Ratio("overused", "content_words", 1000),
        missing="the scale has no human n-grams",
    ),
    Metric(
        "mattr_500",
        "MATTR-500",
        "0 to 1",
        f"mean share of distinct words over all windows of {WINDOW_WORDS} words, texts concatenated; a window "
        "belongs to the text in which it begins",
        "Covington and McFall 2010, doi 10.1080/09296171003643098",
        Ratio("shares_in_windows", "windows"),
        undefined=f"fewer than {WINDOW_WORDS:,} words in all",
        reads=WINDOW_WORDS,
    ),
    *(
        Metric(
            f"distinct_{n}",
            f"distinct-{n}",
            "0 to 1",
            f"share of distinct {n}-grams among the {n}-grams of words in pieces of {PIECE_WORDS} words; shorter "
            "pieces are left out, so it does not depend on length, unlike the published metric, which counts in all "
            "texts at once",
            "Li et al. 2016, https://arxiv.org/abs/1510.03055; in pieces: Johnson 1944, doi 10.1037/h0093508",
            Ratio(f"distinct_{n}", f"ngrams_{n}"),
            undefined=f"no text of {PIECE_WORDS} words or more",
        )
        for n in (1, 2, 3)
    ),
    Metric(
        "self_bleu",
        "self-BLEU",
        "0 to 1",
        f"mean BLEU-4 of the first {BEGINNING_WORDS} words of a text against those of the others, over "
        f"{COMPARED_TEXTS} texts drawn by the seed; over all if there are fewer, which lowers it. The interval treats "
        "the other texts as fixed",
        "Zhu et al. 2018, https://arxiv.org/abs/1802.01886",
        Ratio("bleu", "compared"),
        undefined="fewer than two texts of four words or more",
        reads=BEGINNING_WORDS,
    ),
    Metric("sentence_words", "sentence length", "words", "words per sentence", formula=_SENTENCE_WORDS),
    Metric(
        "sentence_spread",
        "sentence spread",
        "words",
        "standard deviation of the words per sentence, over all sentences: burstiness",
        formula=_compute_spread,
    ),
    Metric(
        "dialogue",
        "dialogue",
        "share of paragraphs",
        "paragraphs with words between double quotes of any language or, where a dash begins dialogue (not in "
        "English), with a line after one; British single quotes are not recognized",
        formula=Ratio("dialogues", "paragraphs", is_rate=True),
    ),
    Metric(
        "paragraph_words",
        "paragraph length",
        "words",
        "words per paragraph; empty lines separate paragraphs",
        formula=Ratio("words", "paragraphs"),
    ),
)
"""All metrics, in the order of tables."""
