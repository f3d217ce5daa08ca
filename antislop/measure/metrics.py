"""Measure slop, repetition and variety of texts, alone or against other texts."""

from __future__ import annotations

from antislop.errors import InputError
from antislop.measure.definitions import compute_metrics
from antislop.measure.estimates import Estimate, Sums, estimate, estimate_pairs
from antislop.measure.tally import Tally, check_tallies


def measure(tally: Tally, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> dict[str, Estimate]:
    """Return each of the tally's metrics by name, with an interval over groups of texts.

    seed: draws the resamples and the texts of self-BLEU.

    With texts grouped by prompt, the interval covers other prompts; without groups, only other texts to the same
    prompts. A rate of 0 is bounded by the rule of three. A lower value is not better in itself: compare it with human
    writing, see `measure_distance`.
    """
    check_tallies(tally)
    if not tally.words:
        return _explain_empty(tally)
    sums = tally.sum_groups(seed=seed)
    metrics = {metric.name: metric for metric in tally.metrics}
    estimates = estimate(
        sums,
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
    check_tallies(after, before)
    _check_pairs(after, before)
    if not (after.words and before.words):
        return _explain_empty(after, before)
    sums = after.sum_groups(seed=seed), before.sum_groups(after.groups, seed=seed)
    metrics = {metric.name: metric for metric in after.metrics}

    def subtract(*totals: Sums) -> Sums:
        after_values, before_values = (compute_metrics(after.metrics, side, after.scale) for side in totals)
        return {name: value - before_values[name] for name, value in after_values.items()}

    estimates = estimate_pairs(
        sums,
        subtract,
        explain=lambda name: metrics[name].explain(*sums),
        unbounded=explain_interval(after),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    unseen = set.intersection(*(set(bound_unseen_rates(after, side, level=level)) for side in sums))
    estimates |= {name: estimates[name].without_interval("it occurs on neither side") for name in unseen}
    for tally in (before, after):
        estimates = {name: value.with_caution(warn_of_short_texts(name, tally)) for name, value in estimates.items()}
    return estimates


def _check_pairs(after: Tally, before: Tally) -> None:
    ungrouped = [sum(isinstance(group, int) for group in tally.groups) for tally in (after, before)]
    if ungrouped[0] != ungrouped[1]:
        raise InputError(f"{ungrouped[0]} texts after and {ungrouped[1]} before have no group: pass texts in pairs")
    unpaired = sorted(map(str, {*after.groups} ^ {*before.groups}))
    if unpaired:
        raise InputError(
            f"the group {unpaired[0]!r} is on one side only: pass texts of the same groups after and before"
        )
    names = [{metric.name for metric in tally.metrics} for tally in (after, before)]
    if after.scale != before.scale or names[0] != names[1]:
        raise InputError("the tallies have different scales, metrics or lists of bans: make both with the same")


def bound_unseen_rates(tally: Tally, sums: Sums, *, level: float) -> dict[str, float]:
    """Return by name the upper bounds of rates whose events never occurred. sums: [groups] of the tally."""
    return {
        metric.name: bound
        for metric in tally.metrics
        if metric.ratio is not None and (bound := metric.ratio.bound_unseen(sums, level=level)) is not None
    }


def warn_of_short_texts(name: str, tally: Tally) -> str | None:
    """Return a caution if most texts are shorter than what a metric reads of each: it then depends on their length."""
    reads = next((metric.reads for metric in tally.metrics if metric.name == name), 0)
    short = sum(length < reads for length in tally.lengths) if reads else 0
    if 2 * short <= len(tally):
        return None
    return f"{short:,} of {len(tally):,} texts are shorter than the {reads} words that it reads of each"


def explain_interval(tally: Tally) -> str:
    if len(tally) < 2:
        return "one text"
    if len(tally.groups) < 2:
        return "all texts are of one group, such as one prompt"
    return "too few texts or groups that it is defined for, or no resamples"


def _explain_empty(*tallies: Tally) -> dict[str, Estimate]:
    reason = "no words in the texts" if all(len(tally) for tally in tallies if not tally.words) else "no texts"
    return {metric.name: Estimate.undefined(reason) for metric in tallies[0].metrics}
