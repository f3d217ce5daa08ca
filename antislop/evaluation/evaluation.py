"""An evaluation as plain data: what the same prompts became in several arms, and how sure that is.

Outputs go in, rows of estimates come out; pages, figures and tables are made of these. The arm "plain" is what the
others are held against. Everything is bootstrapped over prompts, since texts to one prompt are no independent
observations; over texts where their prompts are not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from antislop.datasets.samples import PLAIN, UNBANNED
from antislop.evaluation.definitions import DISTANCE, EXCESS, LISTS, PASSES, RATIOS, SUPPRESSION, Ratio, place
from antislop.evaluation.outputs import COSTS, Example, Output, align, find_examples
from antislop.lists.ban_list import BanList
from antislop.metrics.bootstrap import Floats, bootstrap, bound_unseen
from antislop.metrics.human_distance import measure_distance
from antislop.metrics.metrics import METRICS, Estimate, Metric, Tally, measure, measure_difference, widen
from antislop.metrics.segmentation import extract_words
from antislop.profiles.profiles import Change, Profile, compare, profile_texts
from antislop.records.texts import Text

Columns: TypeAlias = dict[str, "Floats | None"]
"""Sums over the texts of each prompt, [prompts], by what is summed; None where it is unknown."""

_UNKNOWN = "the outputs don't say"
CERTAIN, HINTED = 0.05, 0.5  # shares of changes that may be chance


class Row(NamedTuple):
    """What was estimated of an arm. against: the arm that it was held against, if any."""

    arm: str
    metric: Metric
    against: str | None
    estimate: Estimate


class ArmSize(NamedTuple):
    """How much an arm holds. tokens: None where unknown. left_out: texts without a counterpart in each other arm."""

    texts: int
    prompts: int | None
    words: int
    tokens: int | None
    left_out: int


class BanHits(NamedTuple):
    """How often a ban occurs in the texts of each arm. ban: its text. weight: the share of it that may stand."""

    ban: str
    weight: float
    hits: Mapping[str, int]


@dataclass(frozen=True)
class Evaluation:
    """What was found. is_paired: whether texts of the arms answer the same prompts, so that differences are of pairs.

    bans: the hits of each ban of the list that occurs in any arm, the most frequent of the first arm first.
    changes: of each arm against the plain one, as in `profiles.compare`. chances: which share of them may be chance:
    `CERTAIN`, or `HINTED` where so few texts show nothing for certain. notes: what a reader must know, in sentences.
    """

    sizes: Mapping[str, ArmSize]
    is_paired: bool
    rows: Sequence[Row]
    bans: Sequence[BanHits]
    changes: Mapping[str, Sequence[Change]]
    chances: Mapping[str, float]
    examples: Sequence[Example]
    notes: Sequence[str]

    def find(self, arm: str, name: str, *, against: str | None = None) -> Estimate | None:
        """Return what was estimated, if it was."""
        return next((row.estimate for row in self.rows if row[0] == arm and _is(row, name, against)), None)

    def metrics(self, *, against: str | None = None) -> list[Metric]:
        """Return what was measured, in order: of arms, or of arms against another."""
        return list(dict.fromkeys(row.metric for row in self.rows if row.against == against))

    def describe(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "arms": {arm: size._asdict() for arm, size in self.sizes.items()},
            "paired": self.is_paired,
            "metrics": [metric._asdict() for metric in dict.fromkeys(row.metric for row in self.rows)],
            "rows": [describe_row(row) for row in self.rows],
            "bans": [each._asdict() for each in self.bans],
            "changes": {arm: [each._asdict() for each in changes] for arm, changes in self.changes.items()},
            "chances": dict(self.chances),
            "examples": [
                {"prompt": each.prompt, "texts": {arm: [list(p) for p in texts] for arm, texts in each.texts.items()}}
                for each in self.examples
            ],
            "notes": list(self.notes),
        }


def describe_row(row: Row) -> dict[str, Any]:
    """Return a row as a flat record: that of summary.csv."""
    estimate = row.estimate
    return {
        "arm": row.arm,
        "metric": row.metric.name,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "unit": row.metric.unit,
        "against": row.against,
        "why": estimate.why,
    }


def _is(row: Row, name: str, against: str | None) -> bool:
    return row.metric.name == name and row.against == against


# -- estimates --------------------------------------------------------------------------------------------------------


def _add_up(outputs: Sequence[Output], lists: Mapping[str, BanList]) -> Columns:
    """Return what the texts of each prompt add up to."""
    keys = [number if each.key is None else each.key for number, each in enumerate(outputs)]
    order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    places = [order[key] for key in keys]

    def add(values: Sequence[float | None]) -> Floats | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        sums = np.zeros(len(order))
        np.add.at(sums, places, known)
        return sums

    columns = {name: add([len(bans.find(each.text)) for each in outputs]) for name, bans in lists.items()}
    columns["texts"] = add([1.0] * len(outputs))
    columns["words"] = add([len(extract_words(each.text)) for each in outputs])
    columns |= {name: add([each.costs.get(name) for each in outputs]) for name in COSTS}
    tokens, withdrawn = columns["tokens"], columns["withdrawn_tokens"]
    columns["drawn"] = None if tokens is None or withdrawn is None else tokens + withdrawn
    return columns


def _merge(columns: Columns) -> Columns:
    """Return sums over all prompts, as if they were one."""
    return {name: None if column is None else column.sum(keepdims=True) for name, column in columns.items()}


def _estimate(
    columns: Sequence[Floats | None],
    function: Callable[[Floats], Floats],
    *,
    why: str,
    seed: int,
    resamples: int,
) -> Estimate:
    """Return function(sums [..., columns]) of the sums over prompts, with its interval. why: what 0/0 means."""
    known = [column for column in columns if column is not None]
    if len(known) < len(columns):
        return Estimate(None, None, None, _UNKNOWN)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = bootstrap(np.stack(known, axis=1), lambda sums: function(sums)[None], seed=seed, resamples=resamples)
    value, low, high = float(found.values[0]), float(found.lows[0]), float(found.highs[0])
    if not np.isfinite(value):
        return Estimate(None, None, None, why)
    if not (np.isfinite(low) and np.isfinite(high)):
        one = len(known[0]) < 2
        return Estimate(value, None, None, f"no interval: {'one prompt' if one else 'too rare among the prompts'}")
    return Estimate(value, low, high)


def _estimate_ratio(sums: Columns, ratio: Ratio, *, seed: int, resamples: int) -> Estimate:
    def divide(totals: Floats) -> Floats:
        return ratio.factor * totals[..., 0] / totals[..., 1]

    why = f"no {ratio.below} to divide by"
    found = _estimate([sums[ratio.above], sums[ratio.below]], divide, why=why, seed=seed, resamples=resamples)
    return found if found.value != 0 else widen(found, high=_bound_unseen(sums, ratio))


def _bound_unseen(sums: Columns, ratio: Ratio) -> float:
    """Return the upper bound of the rate of events that never occurred; a prompt counts as one text of mean length."""
    below, texts = sums[ratio.below], sums["texts"]
    assert below is not None and texts is not None
    return ratio.factor * bound_unseen(float((below / texts).sum()))


def _compare(
    after: Columns,
    before: Columns,
    ratio: Ratio,
    combine: Callable[[Floats, Floats], Floats],
    *,
    why: str,
    **options: int,
) -> Estimate:
    """Return combine(ratio after, ratio before), of prompts that are drawn together."""

    def compute(totals: Floats) -> Floats:
        return combine(totals[..., 0] / totals[..., 1], totals[..., 2] / totals[..., 3])

    columns = [sums[name] for sums in (after, before) for name in (ratio.above, ratio.below)]
    return _estimate(columns, compute, why=why, seed=options["seed"], resamples=options["resamples"])


def _measure_suppression(after: Columns, before: Columns, ratio: Ratio, **options: int) -> Estimate:
    """Return by how many percent a list's hits fell; if none is left, the bound of what may be left goes into it."""
    found = _compare(after, before, ratio, _suppress, why="the plain texts hold nothing of the list", **options)
    if found.value != 100:
        return found
    hits, words = before[ratio.above], before[ratio.below]
    assert hits is not None and words is not None
    rate = ratio.factor * float(hits.sum() / words.sum())
    return widen(found, low=100 * (1 - _bound_unseen(after, ratio) / rate), high=100.0)


def _suppress(after: Floats, before: Floats) -> Floats:
    """Return by how many percent it fell; undefined where there was nothing."""
    return np.where(before > 0, 100 * (1 - after / before), np.nan)


def _without_interval(estimate: Estimate) -> Estimate:
    if estimate.value is None:
        return estimate
    return Estimate(estimate.value, None, None, "no interval: the arms don't answer the same prompts")


# -- the whole --------------------------------------------------------------------------------------------------------


def evaluate(
    arms: Mapping[str, Sequence[Output]],
    *,
    made_from: BanList,
    held_out: BanList | None = None,
    seed: int = 0,
    resamples: int = 1000,
) -> Evaluation:
    """Measure the outputs of arms, and of each against the plain one.

    made_from: the bans of the arms. held_out: a list made from other texts. seed, resamples: of the bootstrap.

    Raises `ValueError` where there are no texts, and where an arm has none.
    """
    for arm, outputs in arms.items():
        if not outputs:
            raise ValueError(f"the arm {arm} has no texts: there is nothing to measure")
    if not arms:
        raise ValueError("there is no arm, and so no text to measure")
    aligned, is_paired = align(arms)
    lists = find_lists(made_from, held_out)
    options = {"seed": seed, "resamples": resamples}
    sums = {arm: _add_up(outputs, lists) for arm, outputs in aligned.items()}
    tallies = {arm: _tally(outputs) for arm, outputs in aligned.items()}
    rows = [row for arm in aligned for row in _describe_arm(arm, tallies[arm], sums[arm], lists, **options)]
    others = [arm for arm in aligned if arm != PLAIN] if PLAIN in aligned else []
    for arm in others:
        rows += _hold_against_plain(arm, tallies, sums, lists, is_paired=is_paired, **options)
    profiles = {arm: _profile(outputs) for arm, outputs in aligned.items()} if others else {}
    found = {arm: _find_changes(profiles[PLAIN], profiles[arm]) for arm in others}
    changes = {arm: each for arm, (each, _) in found.items()}
    chances = {arm: chance for arm, (_, chance) in found.items()}
    sizes = {arm: _size(outputs, len(arms[arm]), sums[arm]) for arm, outputs in aligned.items()}
    examples = find_examples(aligned, made_from) if is_paired else []
    return Evaluation(
        sizes,
        is_paired,
        rows,
        count_bans(aligned, made_from),
        changes,
        chances,
        examples,
        _note(sizes, is_paired=is_paired, lists=lists),
    )


def count_bans(arms: Mapping[str, Sequence[Output]], bans: BanList) -> list[BanHits]:
    """Return the hits of each ban that occurs in any arm, the most frequent of the first arm first."""
    counts = {
        arm: Counter(match.ban for each in outputs for match in bans.find(each.text)) for arm, outputs in arms.items()
    }
    seen = dict.fromkeys(ban for count in counts.values() for ban in count)
    found = [BanHits(ban.phrase, ban.weight, {arm: count[ban] for arm, count in counts.items()}) for ban in seen]
    return sorted(found, key=lambda each: [-count for count in each.hits.values()])


def find_lists(made_from: BanList, held_out: BanList | None) -> dict[str, BanList]:
    """Return the lists whose hits are counted, by the names in `LISTS`; an empty one counts nothing and is left out."""
    lists = {"made_from": made_from}
    if held_out is not None:
        lists |= {"held_out": held_out, "held_out_only": BanList(made_from.diff(held_out).added)}
    return {name: bans for name, bans in lists.items() if len(bans)}


def _tally(outputs: Iterable[Output]) -> Tally:
    tally = Tally()
    for output in outputs:
        tally.add(output.text, group=output.key)
    return tally


def _profile(outputs: Sequence[Output]) -> Profile:
    texts = [Text(each.text, each.key, str(place), {}) for place, each in enumerate(outputs)]
    size = sum(len(each.text) for each in outputs)
    return profile_texts(texts, megabytes=min(256, 16 + size // 20_000))  # counters for few texts need no more


def _find_changes(before: Profile, after: Profile) -> tuple[list[Change], float]:
    """Return what changed for certain, or else what seems to, and which share of it may be chance."""
    certain = compare(before, after, discoveries=CERTAIN)
    return (certain, CERTAIN) if certain else (compare(before, after, discoveries=HINTED), HINTED)


def _describe_arm(
    arm: str, tally: Tally, sums: Columns, lists: Mapping[str, BanList], *, seed: int, resamples: int
) -> list[Row]:
    measured = measure(tally, seed=seed, resamples=resamples)
    distance = measure_distance(tally, seed=seed, resamples=resamples)
    absent = {*LISTS} - {*lists} | ({"violations", "withdrawn", "conceded"} if arm in UNBANNED else set())
    own = [ratio for ratio in RATIOS if ratio.metric.name not in absent]
    return [
        *(Row(arm, r.metric, None, _estimate_ratio(sums, r, seed=seed, resamples=resamples)) for r in own),
        *(Row(arm, metric, None, measured[metric.name]) for metric in METRICS),
        Row(arm, DISTANCE, None, distance.overall),
        *(Row(arm, place(metric), None, distance.metrics[metric.name]) for metric in METRICS),
    ]


def _hold_against_plain(
    arm: str,
    tallies: Mapping[str, Tally],
    sums: Mapping[str, Columns],
    lists: Mapping[str, BanList],
    *,
    is_paired: bool,
    **options: int,
) -> list[Row]:
    """Return what is the arm's in relation to the plain one; of arms that are not paired without intervals."""
    ratios = {ratio.metric.name: ratio for ratio in RATIOS}
    after, before = sums[arm], sums[PLAIN]
    found: list[tuple[Metric, Estimate]] = []
    if not is_paired:  # sums of different prompts can't be drawn together: only the totals are compared
        after, before = _merge(after), _merge(before)
    for name, metric in zip(LISTS, SUPPRESSION, strict=True):
        if name in lists:
            found.append((metric, _measure_suppression(after, before, ratios[name], **options)))
    for name, metric, combine in (("nll", EXCESS, np.subtract), ("passes", PASSES, np.divide)):
        found.append((metric, _compare(after, before, ratios[name], combine, why=_UNKNOWN, **options)))
    if not is_paired:
        return [Row(arm, metric, PLAIN, _without_interval(estimate)) for metric, estimate in found]
    differences = measure_difference(tallies[arm], tallies[PLAIN], **options)
    rest = [(metric, differences[metric.name]) for metric in METRICS]
    return [Row(arm, metric, PLAIN, estimate) for metric, estimate in [*found, *rest]]


def _size(outputs: Sequence[Output], had: int, sums: Columns) -> ArmSize:
    keys = {each.key for each in outputs}
    words, tokens = sums["words"], sums["tokens"]
    assert words is not None
    return ArmSize(
        texts=len(outputs),
        prompts=None if None in keys else len(keys),
        words=int(words.sum()),
        tokens=None if tokens is None else int(tokens.sum()),
        left_out=had - len(outputs),
    )


def _note(sizes: Mapping[str, ArmSize], *, is_paired: bool, lists: Mapping[str, BanList]) -> list[str]:
    notes = []
    if PLAIN not in sizes:
        notes.append("There is no plain arm, so nothing says what the bans changed.")
    if len(sizes) > 1 and not is_paired:
        notes.append(
            "The arms don't answer the same prompts as far as the outputs say: they are compared as a whole, "
            "and differences have no interval."
        )
    left_out = {arm: size.left_out for arm, size in sizes.items() if size.left_out}
    if left_out:
        named = ", ".join(f"{count:,} of {arm}" for arm, count in left_out.items())
        notes.append(f"Texts without a counterpart in each other arm were left out: {named}.")
    if any(size.prompts == 1 for size in sizes.values()):
        notes.append("There is one prompt only: nothing says how other prompts would have fared.")
    if "held_out" not in lists:
        notes.append("There is no held-out list: nothing says whether slop beyond the list fell or rose.")
    return notes
