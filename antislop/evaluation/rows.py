"""The rows of an evaluation, and its metrics beside `METRICS`: hits of lists, costs, comparisons with the plain arm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from antislop.core.bans import BanList
from antislop.datasets.samples import PLAIN, UNBANNED
from antislop.evaluation.outputs import Output
from antislop.measure.definitions import METRICS, Metric, Ratio
from antislop.measure.estimates import Estimate, Floats, Sums, estimate_pairs
from antislop.measure.human_distance import measure_distance
from antislop.measure.metrics import Tally, explain_interval, measure, measure_difference

_UNKNOWN = "the outputs don't contain it"


def _define_cost(name: str, title: str, unit: str, about: str, ratio: Ratio) -> Metric:
    return Metric(name, title, unit, about, formula=ratio, missing=_UNKNOWN, undefined=f"no {ratio.below} to divide by")


LIST_METRICS = tuple(
    Metric(name, title, "per 1,000 words", about, formula=Ratio(name, "words", 1000, is_rate=True))
    for name, title, about in (
        (
            "made_from",
            "hits of the list",
            "occurrences of the bans of the arms; of overlapping ones the first and longest",
        ),
        (
            "held_out",
            "hits of the held-out list",
            "occurrences of a list made from other texts, including entries that are also in the arms' list",
        ),
        (
            "held_out_only",
            "hits of the held-out list alone",
            "occurrences of entries of the held-out list that are not in the arms' list",
        ),
    )
)
"""Hits of the lists that are counted, by the lists' names."""
COST_METRICS = (
    _define_cost(
        "nll",
        "negative log-likelihood",
        "nats per token",
        "−log p of the kept tokens under the model without bans, at temperature 1, given the original prompt",
        Ratio("nll", "tokens"),
    ),
    _define_cost(
        "violations",
        "violations",
        "per 1,000 tokens",
        "completed bans, per kept token",
        Ratio("violations", "tokens", 1000, is_rate=True),
    ),
    _define_cost(
        "withdrawn",
        "withdrawn tokens",
        "% of drawn",
        "withdrawn tokens, of all drawn tokens",
        Ratio("withdrawn_tokens", "drawn", 100, is_rate=True),
    ),
    _define_cost(
        "conceded",
        "conceded bans",
        "per 1,000 tokens",
        "bans that stay in the text because no alternative was left",
        Ratio("conceded", "tokens", 1000, is_rate=True),
    ),
    _define_cost(
        "passes",
        "forward passes",
        "per kept token",
        "forward passes that included the text, with that over its prompt",
        Ratio("forward_passes", "tokens"),
    ),
)
"""Metrics of sums over `Output.costs`."""

SUPPRESSION = tuple(
    Metric(
        f"{metric.name}_suppressed",
        metric.title.replace("hits", "suppression"),
        "%",
        "100 · (1 − hits per 1,000 words / those of the plain arm)",
        undefined="the plain texts contain no entry of the list",
    )
    for metric in LIST_METRICS
)
EXCESS = Metric(
    "excess_nll",
    "excess negative log-likelihood",
    "nats per token",
    "negative log-likelihood of the arm minus that of the plain arm",
)
PASSES = Metric(
    "passes_ratio", "forward passes", "× plain", "forward passes per kept token, divided by those of the plain arm"
)

_DEVIATIONS = "human standard deviations"
DISTANCE = Metric(
    "distance",
    "distance to human, overall",
    _DEVIATIONS,
    "the root mean square of the distances of the metrics, see `antislop.measure.human_distance.measure_distance`",
)


def distance_metric(metric: Metric) -> Metric:
    about = "its value minus the human value, divided by the standard deviation between human passages"
    return Metric(f"{DISTANCE.name}_{metric.name}", metric.title, _DEVIATIONS, about)


_OF_BANS = ("violations", "withdrawn", "conceded")


class EstimateRow(NamedTuple):
    """An estimate of a metric of an arm, or of its comparison with another arm."""

    arm: str
    metric: Metric
    against: str | None
    estimate: Estimate


def describe_row(row: EstimateRow) -> dict[str, Any]:
    """Return a row with the columns of summary.csv."""
    value, low, high, why = row.estimate
    return {
        "arm": row.arm,
        "metric": row.metric.name,
        "value": value,
        "low": low,
        "high": high,
        "unit": row.metric.unit,
        "against": row.against,
        "why": why,
    }


def tally_outputs(outputs: Iterable[Output], lists: Mapping[str, BanList]) -> Tally:
    tally = Tally(metrics=(*LIST_METRICS, *COST_METRICS, *METRICS))
    for output in outputs:
        hits = {name: len(bans.find(output.text, overlaps=False)) for name, bans in lists.items()}
        tally.add(output.text, group=output.key, sums={**hits, **output.sums})
    return tally


def measure_arm(arm: str, tally: Tally, lists: Collection[str], **options: Any) -> list[EstimateRow]:
    """Return the rows of an arm. options: of the bootstrap."""
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
    """Return the rows of an arm against the plain one; without intervals if the arms answer different prompts."""
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
        for name, ratio in hits.items():  # the percentage by which a rate fell; NaN if it was 0 without bans
            rate, plain = (each[ratio.above] / each[ratio.below] for each in (sums, plain_sums))
            found[f"{name}_suppressed"] = np.where(plain > 0, 100 * (1 - rate / plain), np.nan)
        return found

    estimates = estimate_pairs(
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
