"""An evaluation as plain data: the texts of several arms to the same prompts, measured and compared.

Outputs go in, rows of estimates come out; pages, figures and tables are made of these. The arm "plain" is what the
others are held against. Everything is bootstrapped over prompts, since texts to one prompt are no independent
observations; over texts where their prompts are not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from antislop.datasets.samples import PLAIN
from antislop.evaluation.outputs import Example, Output, align, find_examples
from antislop.evaluation.rows import EstimateRow, compare_with_plain, describe_row, measure_arm, tally_outputs
from antislop.lists.ban_list import BanList
from antislop.metrics.definitions import Metric
from antislop.metrics.estimates import Estimate
from antislop.metrics.tally import Tally
from antislop.profiles.changes import Change, compare
from antislop.profiles.profiles import Profile, profile_texts
from antislop.records.texts import Text

CERTAIN, HINTED = 0.05, 0.5  # shares of changes that may be chance


class ArmSize(NamedTuple):
    """The size of an arm. tokens: None if unknown. left_out: texts without a counterpart in each other arm."""

    texts: int
    prompts: int | None
    words: int
    tokens: int | None
    left_out: int


class BanHits(NamedTuple):
    """The matches of a ban in the texts of each arm. ban: its text. weight: the share of its occurrences to keep."""

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
    rows: Sequence[EstimateRow]
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
            "metrics": [metric.describe() for metric in dict.fromkeys(row.metric for row in self.rows)],
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


def _is(row: EstimateRow, name: str, against: str | None) -> bool:
    return row.metric.name == name and row.against == against


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
    tallies = {arm: tally_outputs(outputs, lists) for arm, outputs in aligned.items()}
    rows = [row for arm, tally in tallies.items() for row in measure_arm(arm, tally, lists, **options)]
    others = [arm for arm in aligned if arm != PLAIN] if PLAIN in aligned else []
    for arm in others:
        rows += compare_with_plain(arm, tallies[arm], tallies[PLAIN], lists, is_paired=is_paired, **options)
    profiles = {arm: _profile(outputs) for arm, outputs in aligned.items()} if others else {}
    changes = {arm: _find_changes(profiles[PLAIN], profiles[arm]) for arm in others}
    sizes = {arm: _measure_size(tally, outputs=len(arms[arm])) for arm, tally in tallies.items()}
    return Evaluation(
        sizes,
        is_paired,
        rows,
        bans=count_bans(aligned, made_from),
        changes={arm: certain for arm, (certain, _) in changes.items()},
        chances={arm: chance for arm, (_, chance) in changes.items()},
        examples=find_examples(aligned, made_from) if is_paired else [],
        notes=_note(sizes, is_paired=is_paired, lists=lists),
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


def _profile(outputs: Sequence[Output]) -> Profile:
    texts = [Text(each.text, each.key, str(place), {}) for place, each in enumerate(outputs)]
    size = sum(len(each.text) for each in outputs)
    return profile_texts(texts, megabytes=min(256, 16 + size // 20_000))  # counters for few texts need no more


def _find_changes(before: Profile, after: Profile) -> tuple[list[Change], float]:
    """Return what changed for certain, or else what seems to, and which share of it may be chance."""
    certain = compare(before, after, discoveries=CERTAIN)
    return (certain, CERTAIN) if certain else (compare(before, after, discoveries=HINTED), HINTED)


def _measure_size(tally: Tally, *, outputs: int) -> ArmSize:
    """Return the size of an arm. outputs: how many it had before those without a counterpart were left out."""
    tokens = float(tally.sum_up()["tokens"].sum())
    return ArmSize(
        texts=len(tally),
        prompts=None if any(isinstance(group, int) for group in tally.groups) else len(tally.groups),
        words=tally.words,
        tokens=None if np.isnan(tokens) else int(tokens),
        left_out=outputs - len(tally),
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
