"""How far texts are from human writing, per metric and overall.

The bundled human values are those of 20 novels before 1930 (data/metrics/README.md of the repository).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from antislop.data import FOLDER
from antislop.errors import InputError
from antislop.files import read_json
from antislop.metrics.bootstrap import Floats, bootstrap
from antislop.metrics.metrics import (
    METRICS,
    Estimate,
    Tally,
    bound_unseen_rates,
    compute,
    explain,
    name_estimates,
    warn_of_short_texts,
    widen,
)
from antislop.metrics.segmentation import extract_paragraphs, extract_words

FORMAT = "antislop human 1"
_ADVICE = "pass a file that data/metrics/make.py wrote"
PASSAGE = 500
"""Words of a passage, at least; it ends with a paragraph."""

_OF_LISTS = ("slop_words", "slop_trigrams", "slop_score")
_NOT_OVERALL = ("slop_score", "slop_trigrams", "repetition")
_OVERALL = "overall"


class Human(NamedTuple):
    """What a metric is in human writing.

    value: in all passages. passages, books: the standard deviation between passages, and between books, each measured
    alone.
    """

    value: float
    passages: float
    books: float


@dataclass(frozen=True)
class Humans:
    """What metrics are in human writing, by name.

    scale: the fingerprint of the `Scale` that it was measured with. texts: title, file, sha256 and words of each.
    """

    metrics: Mapping[str, Human]
    scale: str
    texts: tuple[Mapping[str, Any], ...]


class Distance(NamedTuple):
    """How far texts are from human writing, in standard deviations between human passages of about 500 words.

    metrics: by name and with sign: above 0, the texts have more of it. overall: the root mean square of those.
    """

    metrics: dict[str, Estimate]
    overall: Estimate


def load_human() -> Humans:
    """Load the human values that come with the package."""
    return read_human(FOLDER / "human_metrics.json")


def read_human(path: str | os.PathLike[str]) -> Humans:
    """Read human values that data/metrics/make.py wrote. Raises `InputError` for another file."""
    whole = read_json(path, advice=_ADVICE)
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise InputError(f"{path}: holds no human values: {_ADVICE}")
    known = {name: Human(**{key: entry[key] for key in Human._fields}) for name, entry in whole["metrics"].items()}
    return Humans(known, whole["scale"], tuple(whole["texts"]))


def measure_distance(
    tally: Tally, *, human: Humans | None = None, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Distance:
    """Return how far texts are from human writing.

    Per metric: (value - human value) / standard deviation of the metric between human passages of about 500 words. So
    1 is as far as one page of a novel usually is from all of them: a set of texts at 1 is off in all of its pages.
    Overall: the root mean square over the metrics that are defined, without the slop score, which is made of three
    others, without slop trigrams, of which novels hold next to none, so that their spread is no measure, and without
    repetition, which depends on how much text there is. Metrics that read more words than most texts have are
    undefined here. human: by default the bundled values. Intervals are over groups of texts, as in `metrics.measure`.

    Novels before 1930 are not how people write today: human answers to writing prompts are at about 1.2, those of
    eleven models at 2.9 to 9.1 (eval/published.md of the repository). Compare a distance with these. It does NOT say
    whether a text is good, or whether a person wrote it. The overall distance of few texts is too high, since chance
    adds to each part.
    """
    known = load_human() if human is None else human
    names = [metric.name for metric in METRICS]
    if not tally.words:
        nothing = Estimate(None, None, None, "no words in the texts" if len(tally) else "no texts")
        return Distance(dict.fromkeys(names, nothing), nothing)
    sums = tally.sum_groups(seed=seed)
    usable = _usable(known, tally)

    def place(totals: Floats) -> Floats:
        values = compute({name: totals[..., i] for i, name in enumerate(sums)}, tally)
        return _place({name: values[name] for name in names}, usable)

    columns = np.stack(list(sums.values()), axis=1)
    intervals = bootstrap(columns, place, resamples=resamples, level=level, seed=seed)
    found = name_estimates(intervals, [*names, _OVERALL], lambda name: _explain(name, tally, known), tally=tally)
    for name, bound in bound_unseen_rates(sums, tally, level=level).items():
        if name in usable:
            found[name] = widen(found[name], high=(bound - usable[name].value) / usable[name].passages)
    return Distance({name: found[name] for name in names}, found[_OVERALL])


def cut_passages(text: str, *, words: int = PASSAGE) -> Iterator[str]:
    r"""Cut a text at ends of paragraphs into passages of at least so many words; a shorter rest is left out.

    >>> list(cut_passages("One two.\n\nThree.\n\nFour five.\n\nSix.", words=3))
    ['One two.\n\nThree.', 'Four five.\n\nSix.']
    """
    passage: list[str] = []
    length = 0
    for paragraph in extract_paragraphs(text):
        passage.append(paragraph)
        length += len(extract_words(paragraph))
        if length >= words:
            yield "\n\n".join(passage)
            passage, length = [], 0


def _usable(known: Humans, tally: Tally) -> dict[str, Human]:
    """Return the human values that the texts can be held against."""
    is_same = known.scale == tally.scale.fingerprint
    return {
        name: one
        for name, one in known.metrics.items()
        if one.passages > 0 and (is_same or name not in _OF_LISTS) and warn_of_short_texts(name, tally) is None
    }


def _place(values: Mapping[str, Floats], usable: Mapping[str, Human]) -> Floats:
    """Return the distances, and the overall one after them: [metrics + 1, ...]."""
    places = {
        name: (value - usable[name].value) / usable[name].passages if name in usable else np.full_like(value, np.nan)
        for name, value in values.items()
    }
    counted = np.stack([place for name, place in places.items() if name not in _NOT_OVERALL])
    is_known = ~np.isnan(counted)
    squares = np.where(is_known, counted, 0.0) ** 2
    with np.errstate(invalid="ignore"):
        overall = np.sqrt(squares.sum(axis=0) / is_known.sum(axis=0))
    return np.stack([*places.values(), overall])


def _explain(name: str, tally: Tally, known: Humans) -> str:
    if name in known.metrics and name in _OF_LISTS and known.scale != tally.scale.fingerprint:
        return "the human value was measured with other lists"
    if name not in known.metrics and name != _OVERALL:
        return "there is no human value: it depends on how much text there is"
    return warn_of_short_texts(name, tally) or explain(name, tally)
