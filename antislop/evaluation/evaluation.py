"""Evaluation: the texts of several arms to the same prompts, measured and compared with the arm "plain", as plain data.

Beside `METRICS`, an evaluation has the hits of lists and costs. Intervals are bootstrapped over prompts, since texts to
one prompt are not independent; if the prompts are unknown, over texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from antislop.core.bans import BanList
from antislop.datasets.samples import PLAIN, UNBANNED
from antislop.errors import InputError
from antislop.evaluation.outputs import Example, Output, align, find_examples
from antislop.files.texts import Text
from antislop.measure.definitions import METRICS, Metric, Ratio
from antislop.measure.estimates import Estimate, Floats, Sums, estimate
from antislop.measure.human_distance import measure_distance
from antislop.measure.languages import ENGLISH, Language, recognize
from antislop.measure.metrics import Tally, explain_interval, measure, measure_difference
from antislop.measure.profiles.profiles import Change, Profile, compare, profile_texts
from antislop.measure.slop import Scale

FALSE_SHARE = 0.05  # accepted share of false discoveries among changes
HINTED_FALSE_SHARE = 0.5  # the share accepted among hints, shown if no change is certain
COLUMNS = ("arm", "metric", "value", "low", "high", "unit", "against", "why")
"""The columns of summary.csv."""
_UNKNOWN = "the outputs don't contain it"


_DEFINED = yaml.safe_load(Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8"))
LIST_METRICS = tuple(
    Metric(**named, unit="per 1,000 words", formula=Ratio(named["name"], "words", 1000, is_rate=True))
    for named in _DEFINED["lists"]
)
"""Metrics that count the hits of a list; each has the name of its list in `find_lists`."""
COST_METRICS = tuple(
    Metric(**cost | {"formula": ratio}, missing=_UNKNOWN, undefined=f"no {ratio.below} to divide by")
    for cost in _DEFINED["costs"]
    for ratio in [Ratio(**cost["formula"])]
)
"""Metrics of the costs of texts: ratios of sums over `Output.sums`."""
SUPPRESSION = tuple(
    Metric(f"{metric.name}_suppressed", metric.title.replace("hits", "suppression"), **_DEFINED["suppression"])
    for metric in LIST_METRICS
)
EXCESS, PASSES, DISTANCE = (Metric(**_DEFINED[name]) for name in ("excess", "passes", "distance"))


def distance_metric(metric: Metric) -> Metric:
    about = "its value minus the human value, divided by the standard deviation between human passages"
    return Metric(f"{DISTANCE.name}_{metric.name}", metric.title, DISTANCE.unit, about)


_OF_BANS = ("violations", "withdrawn", "conceded")


class EstimateRow(NamedTuple):
    """An estimate of a metric of an arm, or, if `against` names another arm, of the comparison with that arm."""

    arm: str
    metric: Metric
    against: str | None
    estimate: Estimate


def describe_row(row: EstimateRow) -> dict[str, Any]:
    """Return a row with the columns of summary.csv."""
    *bounds, why = row.estimate
    return dict(zip(COLUMNS, (row.arm, row.metric.name, *bounds, row.metric.unit, row.against, why), strict=True))


def tally_outputs(outputs: Iterable[Output], lists: Mapping[str, BanList], *, scale: Scale | None = None) -> Tally:
    tally = Tally(scale, metrics=(*LIST_METRICS, *COST_METRICS, *METRICS))
    for output in outputs:
        hits = {name: len(bans.find(output.text, overlaps=False)) for name, bans in lists.items()}
        tally.add(output.text, group=output.key, sums={**hits, **output.sums})
    return tally


def measure_arm(arm: str, tally: Tally, lists: Collection[str], **options: Any) -> list[EstimateRow]:
    """Return the metrics of an arm alone. options: `seed` and `resamples` of the bootstrap."""
    measured = measure(tally, **options)
    distance = measure_distance(tally, **options)
    absent = {metric.name for metric in LIST_METRICS} - {*lists} | ({*_OF_BANS} if arm in UNBANNED else set())
    metrics = [metric for metric in tally.metrics if metric.name not in absent]
    return [
        *(EstimateRow(arm, metric, None, measured[metric.name]) for metric in metrics),
        EstimateRow(arm, DISTANCE, None, distance.overall),
        *(EstimateRow(arm, distance_metric(metric), None, distance.metrics[metric.name]) for metric in METRICS),
    ]


def compare_with_plain(
    arm: str, tally: Tally, plain_tally: Tally, lists: Collection[str], *, is_paired: bool, **options: Any
) -> list[EstimateRow]:
    """Return the comparisons of an arm with the plain arm; without intervals if the two answer different prompts."""
    estimates = _compare_sums(tally, plain_tally, lists, is_paired=is_paired, **options)
    rows = [
        EstimateRow(arm, metric, PLAIN, estimates[metric.name])
        for metric in (*SUPPRESSION, EXCESS, PASSES)
        if metric.name in estimates
    ]
    if is_paired:
        differences = measure_difference(tally, plain_tally, **options)
        rows += [EstimateRow(arm, metric, PLAIN, differences[metric.name]) for metric in METRICS]
    return rows


def _compare_sums(
    tally: Tally, plain_tally: Tally, lists: Collection[str], *, is_paired: bool, seed: int, resamples: int
) -> dict[str, Estimate]:
    if is_paired:
        sums = tally.sum_groups(seed=seed), plain_tally.sum_groups(tally.groups, seed=seed)
    else:  # sums of different prompts can't be resampled together: only totals are compared
        sums = _sum_all(tally.sum_groups(seed=seed)), _sum_all(plain_tally.sum_groups(seed=seed))
    hits = {metric.name: metric.ratio for metric in LIST_METRICS if metric.name in lists and metric.ratio is not None}
    reasons = {metric.name: metric.undefined for metric in SUPPRESSION}
    nll, passes = Ratio("nll", "tokens"), Ratio("forward_passes", "tokens")

    def compare(sums: Sums, plain_sums: Sums) -> dict[str, Floats]:
        found = {EXCESS.name: nll(sums) - nll(plain_sums), PASSES.name: passes(sums) / passes(plain_sums)}
        for name, ratio in hits.items():  # the percentage by which a rate fell; NaN if the plain rate is 0
            rate, plain = (each[ratio.above] / each[ratio.below] for each in (sums, plain_sums))
            found[f"{name}_suppressed"] = np.where(plain > 0, 100 * (1 - rate / plain), np.nan)
        return found

    estimates = estimate(
        sums,
        compare,
        explain=lambda name: reasons.get(name, _UNKNOWN),
        unbounded=explain_interval(tally) if is_paired else "the arms don't answer the same prompts",
        seed=seed,
        resamples=resamples,
    )
    for name, ratio in hits.items():
        suppressed = estimates[f"{name}_suppressed"]
        if suppressed.value == 100 and (bound := ratio.bound_unseen(sums[0], level=0.95)) is not None:
            rate = float(ratio(_sum_all(sums[1]))[0])
            estimates[f"{name}_suppressed"] = suppressed.widen(low=100 * (1 - bound / rate), high=100.0)
    return estimates


def _sum_all(sums: Sums) -> dict[str, Floats]:
    return {name: column.sum(keepdims=True) for name, column in sums.items()}


class ArmSize(NamedTuple):
    """The size of an arm. left_out: number of texts that were dropped, since another arm lacks their counterpart."""

    texts: int
    prompts: int | None
    words: int
    tokens: int | None
    left_out: int


class BanHits(NamedTuple):
    """A ban, its weight, and its number of matches in the texts of each arm."""

    ban: str
    weight: float
    hits: Mapping[str, int]


@dataclass(frozen=True)
class Evaluation:
    """The results of `evaluate`.

    is_paired: whether the texts of the arms answer the same prompts, so that pairs can be compared.
    bans: each ban that occurs in any arm, sorted by its hits in the first arm, the most frequent first.
    changes: for each arm, the entries whose rate differs from the plain arm, as `antislop.measure.compare` finds them.
    chances: the share of false discoveries accepted among these changes: `FALSE_SHARE`, or `HINTED_FALSE_SHARE`.
    notes: sentences about limits of the results.
    """

    sizes: Mapping[str, ArmSize]
    is_paired: bool
    rows: Sequence[EstimateRow]
    bans: Sequence[BanHits]
    changes: Mapping[str, Sequence[Change]]
    chances: Mapping[str, float]
    examples: Sequence[Example]
    notes: Sequence[str]

    def find(self, arm: str, name: str, *, against: str | None = None) -> Estimate | None:
        wanted = (arm, name, against)
        return next((row.estimate for row in self.rows if (row.arm, row.metric.name, row.against) == wanted), None)

    def find_known(self, arm: str, name: str, *, against: str | None = None) -> Estimate | None:
        """Return an estimate that has a value."""
        estimate = self.find(arm, name, against=against)
        return None if estimate is None or estimate.value is None else estimate

    def describe(self) -> dict[str, Any]:
        return {
            "arms": {arm: size._asdict() for arm, size in self.sizes.items()},
            "paired": self.is_paired,
            "metrics": [metric.describe() for metric in dict.fromkeys(row.metric for row in self.rows)],
            "rows": [describe_row(row) for row in self.rows],
            "bans": [hits._asdict() for hits in self.bans],
            "changes": {arm: [change._asdict() for change in changes] for arm, changes in self.changes.items()},
            "chances": dict(self.chances),
            "examples": [example._asdict() for example in self.examples],
            "notes": list(self.notes),
        }


def evaluate(
    arms: Mapping[str, Sequence[Output]],
    *,
    made_from: BanList,
    held_out: BanList | None = None,
    seed: int = 0,
    resamples: int = 1000,
) -> Evaluation:
    """Measure the outputs of arms, and compare each arm with the plain one.

    made_from: the list of bans under which the arms were written.
    held_out: a list that was made from other texts than `made_from`, to see effects beyond the list.
    seed, resamples: the seed and the number of resamples of the bootstrap.

    Raises `InputError` if there is no arm, or no text in an arm.
    """
    for arm, outputs in arms.items():
        if not outputs:
            raise InputError(f"the arm {arm} has no texts: there is nothing to measure")
    if not arms:
        raise InputError("no arm was passed: pass at least one, with texts")
    aligned, is_paired = align(arms)
    lists = find_lists(made_from, held_out)
    options = {"seed": seed, "resamples": resamples}
    language = recognize(output.text for outputs in aligned.values() for output in outputs) or ENGLISH
    scale = Scale.load(language)
    tallies = {arm: tally_outputs(outputs, lists, scale=scale) for arm, outputs in aligned.items()}
    rows = [row for arm, tally in tallies.items() for row in measure_arm(arm, tally, lists, **options)]
    compared_arms = [arm for arm in aligned if arm != PLAIN] if PLAIN in aligned else []
    for arm in compared_arms:
        rows += compare_with_plain(arm, tallies[arm], tallies[PLAIN], lists, is_paired=is_paired, **options)
    profiles = dict[str, Profile]()
    for arm, outputs in aligned.items() if compared_arms else ():
        texts = [Text(output.text, output.key, str(place), {}) for place, output in enumerate(outputs)]
        size = sum(len(output.text) for output in outputs)  # few texts need few counters
        profiles[arm] = profile_texts(texts, language=language.code, megabytes=min(256, 16 + size // 20_000))
    changes, chances = dict[str, list[Change]](), dict[str, float]()
    for arm in compared_arms:
        for share in (FALSE_SHARE, HINTED_FALSE_SHARE):  # if no change is certain, show hints
            if not changes.get(arm):
                changes[arm], chances[arm] = compare(profiles[PLAIN], profiles[arm], discoveries=share), share
    sizes = {arm: _measure_size(tally, outputs=len(arms[arm])) for arm, tally in tallies.items()}
    return Evaluation(
        sizes,
        is_paired,
        rows,
        bans=count_bans(aligned, made_from),
        changes=changes,
        chances=chances,
        examples=find_examples(aligned, made_from) if is_paired else [],
        notes=_note(sizes, is_paired=is_paired, lists=lists, language=language),
    )


def count_bans(arms: Mapping[str, Sequence[Output]], bans: BanList) -> list[BanHits]:
    counts = {
        arm: Counter(match.ban for output in outputs for match in bans.find(output.text))
        for arm, outputs in arms.items()
    }
    occurring = dict.fromkeys(ban for count in counts.values() for ban in count)
    rows = [BanHits(ban.text, ban.weight, {arm: count[ban] for arm, count in counts.items()}) for ban in occurring]
    return sorted(rows, key=lambda row: [-count for count in row.hits.values()])


def find_lists(made_from: BanList, held_out: BanList | None) -> dict[str, BanList]:
    """Return the lists that are not empty, by the names of `LIST_METRICS`."""
    lists = {"made_from": made_from}
    if held_out is not None:
        lists |= {"held_out": held_out, "held_out_only": BanList(made_from.diff(held_out).added)}
    return {name: bans for name, bans in lists.items() if len(bans)}


def _measure_size(tally: Tally, *, outputs: int) -> ArmSize:
    """Return the size of an arm. outputs: the number of all outputs of the arm, including those left out."""
    tokens = float(tally.sum_up()["tokens"].sum())
    return ArmSize(
        texts=len(tally),
        prompts=None if any(isinstance(group, int) for group in tally.groups) else len(tally.groups),
        words=tally.words,
        tokens=None if np.isnan(tokens) else int(tokens),
        left_out=outputs - len(tally),
    )


def _note(
    sizes: Mapping[str, ArmSize], *, is_paired: bool, lists: Mapping[str, BanList], language: Language
) -> list[str]:
    left_out = ", ".join(f"{size.left_out:,} of {arm}" for arm, size in sizes.items() if size.left_out)
    holds = {
        "foreign": not language.is_english,
        "no_plain": PLAIN not in sizes,
        "unpaired": len(sizes) > 1 and not is_paired,
        "left_out": left_out,
        "one_prompt": any(size.prompts == 1 for size in sizes.values()),
        "no_held_out": "held_out" not in lists,
    }
    notes = _DEFINED["notes"].items()
    return [note.format(language=language.name, left_out=left_out) for name, note in notes if holds[name]]
