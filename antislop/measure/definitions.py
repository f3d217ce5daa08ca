"""The definitions of all metrics: unit, source, and the computation of the value from sums over texts.

To add a metric, add an entry to `metrics.yaml` or, with a function, to `METRICS`: `count` computes the contribution of
a text to a new sum, `formula` the value from the sums. `text_counts` counts the sums of the bundled metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TypeAlias

import numpy as np
import yaml

from antislop.files.disk import read_text
from antislop.measure.diversity import MOST_OVERUSED
from antislop.measure.estimates import Floats, Sums, bound_unseen
from antislop.measure.slop import WEIGHTS, Scale, score_slop
from antislop.measure.text_counts import BEGINNING_WORDS, PIECE_WORDS, WINDOW_WORDS

COMPARED_TEXTS = 100  # texts that self-BLEU compares

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
    source: str = "this project"
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


def _compute_spread(sums: Sums, _scale: Scale) -> Floats:
    mean = sums["sentence_words"] / sums["sentences"]
    spread: Floats = np.sqrt(np.maximum(sums["sentence_squares"] / sums["sentences"] - mean**2, 0.0))
    return spread


_FORMULAS: dict[str, Formula] = {
    "slop_score": lambda sums, scale: score_slop(compute_metrics(_WEIGHED, sums, scale), scale),
    "sentence_spread": _compute_spread,
}
_NUMBERS = {"WINDOW_WORDS": WINDOW_WORDS, "PIECE_WORDS": PIECE_WORDS, "BEGINNING_WORDS": BEGINNING_WORDS}
_NUMBERS |= {"COMPARED_TEXTS": COMPARED_TEXTS, "MOST_OVERUSED": MOST_OVERUSED}
METRICS = tuple(
    Metric(**named | {"formula": Ratio(**named["formula"]) if "formula" in named else _FORMULAS[named["name"]]})
    for named in yaml.safe_load(Template(read_text(Path(__file__).with_name("metrics.yaml"))).substitute(_NUMBERS))
)
"""All metrics, in the order of tables."""
_WEIGHED: list[Metric] = [metric for metric in METRICS if metric.name in WEIGHTS]
