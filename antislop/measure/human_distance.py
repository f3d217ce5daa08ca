"""The distance of texts to human writing; the bundled values are of 20 novels before 1930 (data/metrics/README.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from antislop.data import FOLDER
from antislop.errors import InputError
from antislop.files.disk import read_json
from antislop.measure.definitions import METRICS, compute_metrics
from antislop.measure.estimates import Estimate, Floats, Sums, estimate
from antislop.measure.metrics import Tally, bound_unseen_rates, explain_interval, warn_of_short_texts

FORMAT = "antislop human 1"
_ADVICE = "pass a file that data/metrics/make.py wrote"

_OF_LISTS = ("slop_words", "slop_trigrams", "slop_score")
# Left out: computed from three other metrics; too rare in novels for a deviation; dependent on the amount of text.
_NOT_OVERALL = ("slop_score", "slop_trigrams", "repetition")
_OVERALL = "overall"


class Human(NamedTuple):
    """A metric in human writing, with its standard deviations between passages of about 500 words and between books."""

    value: float
    passages: float
    books: float


@dataclass(frozen=True)
class Humans:
    """The metrics of human writing, by name; `texts` describes the books."""

    metrics: Mapping[str, Human]
    scale: str  # the fingerprint of the `Scale`
    texts: tuple[Mapping[str, Any], ...]


class Distance(NamedTuple):
    """The distance of texts to human writing, in standard deviations between human passages of about 500 words.

    metrics: the distance of each metric by name; above 0, the texts exceed human writing.
    overall: the root mean square of the distances of metrics.
    """

    metrics: dict[str, Estimate]
    overall: Estimate


def load_human() -> Humans:
    return read_human(FOLDER / "human_metrics.json")


def read_human(path: str | os.PathLike[str]) -> Humans:
    """Read human values that data/metrics/make.py wrote. Raises `InputError` for another file."""
    content = read_json(path, advice=_ADVICE)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: contains no human values: {_ADVICE}")
    metrics = {name: Human(**{key: entry[key] for key in Human._fields}) for name, entry in content["metrics"].items()}
    return Humans(metrics, content["scale"], tuple(content["texts"]))


def measure_distance(
    tally: Tally, *, human: Humans | None = None, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Distance:
    """Return the distance of texts to human writing: (value - human value) / deviation between passages.

    human: by default the bundled values.

    Metrics that read more words than most texts have are undefined. The overall distance of few texts is too high,
    since chance increases each part. Human answers to writing prompts are at about 1.2, eleven models at 2.9 to 9.1
    (eval/published.md of the repository). The distance does NOT measure quality, or who wrote a text.
    """
    human = load_human() if human is None else human
    if not (tally.words and tally.scale.language.is_english):
        empty = "no words in the texts" if len(tally) else "no texts"
        undefined = Estimate.undefined("the human passages are English" if tally.words else empty)
        return Distance({metric.name: undefined for metric in METRICS}, undefined)
    sums = tally.sum_groups(seed=seed)
    is_same = human.scale == tally.scale.fingerprint  # else human slop is by other lists
    comparable = {
        name: value
        for name, value in human.metrics.items()
        if value.passages > 0 and (is_same or name not in _OF_LISTS) and warn_of_short_texts(name, tally) is None
    }
    estimates = estimate(
        [sums],
        lambda totals: _compute_distances(compute_metrics(METRICS, totals, tally.scale), comparable),
        explain=lambda name: _explain(name, tally, human, sums),
        unbounded=explain_interval(tally),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    for name, bound in bound_unseen_rates(tally, sums, level=level).items():
        if name in comparable:
            estimates[name] = estimates[name].widen(high=(bound - comparable[name].value) / comparable[name].passages)
    overall = estimates.pop(_OVERALL)
    return Distance(estimates, overall)


def _compute_distances(values: Sums, comparable: Mapping[str, Human]) -> dict[str, Floats]:
    distances = {
        name: (value - comparable[name].value) / comparable[name].passages
        if name in comparable
        else np.full_like(value, np.nan)
        for name, value in values.items()
    }
    counted = np.stack([distance for name, distance in distances.items() if name not in _NOT_OVERALL])
    is_defined = ~np.isnan(counted)
    squares = np.where(is_defined, counted, 0.0) ** 2
    return {**distances, _OVERALL: np.sqrt(squares.sum(axis=0) / is_defined.sum(axis=0))}


def _explain(name: str, tally: Tally, human: Humans, sums: Sums) -> str:
    if name in human.metrics and name in _OF_LISTS and human.scale != tally.scale.fingerprint:
        return "the human value was measured with other lists"
    if name == _OVERALL:
        return "no metric is defined"
    if name not in human.metrics:
        return "there is no human value" + (": it depends on the amount of text" if name == "repetition" else " yet")
    metric = next(metric for metric in METRICS if metric.name == name)
    return warn_of_short_texts(name, tally) or metric.explain(sums)
