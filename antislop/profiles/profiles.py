"""Profiles: what is over-used in some texts, and what changes from one profile to another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import erfc, exp, log, sqrt
from typing import Any, NamedTuple

import regex

from antislop.errors import InputError
from antislop.files import decode, parse_json, read_json, replace_text
from antislop.lists.bundled import read_constructions
from antislop.profiles.counting import Census, Occurrences, count, cut_examples
from antislop.profiles.human_rates import Baseline, HumanRate, HumanRates
from antislop.profiles.ngrams import Kind, Progress, Texts, cut_words
from antislop.profiles.ratios import EXPLAINED, estimate_error, estimate_ratio, find_explained, find_parts, quantile
from antislop.records.texts import Text

FORMAT = "antislop profile 1"
_ADVICE = "make one with: antislop profile TEXTS -o profile.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that stands in texts, and how much more often than in people's.

    prompts: distinct ones; in a profile of more than 512 prompts at least so many.
    per_million: occurrences per million words; human_per_million likewise, an upper bound where human_count is None.
    human_count: None where there are fewer occurrences than the baseline lists.
    ratio, low, high: with a 95 % interval; None without a baseline; high is None where people's rate is a bound.
    error: the relative standard error of per_million, prompts being what varies.
    is_name: whether it is or holds a word that is mostly capitalised right after another word.
    """

    kind: Kind
    text: str
    count: int
    texts: int
    prompts: int
    per_million: float
    error: float
    human_count: int | None = None
    human_per_million: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    is_name: bool = False
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """What stands in some texts more often than in people's, most surely first.

    characters: of all texts. baseline: the name and the words of the human texts, None without any.
    """

    texts: int
    prompts: int
    words: int
    characters: int
    baseline: Mapping[str, Any] | None
    made_with: Mapping[str, Any]
    entries: tuple[Entry, ...] = field(repr=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile from a file, compressed if its name ends in .gz. Raises `InputError` where it is none."""
        return cls._of(read_json(path, advice=_ADVICE), os.fspath(path))

    @classmethod
    def parse(cls, data: bytes, *, place: str) -> Profile:
        """Read a profile from the bytes of a file, which messages call `place`. Raises `InputError`."""
        return cls._of(parse_json(decode(data, place), place, advice=_ADVICE), place)

    @classmethod
    def _of(cls, whole: Any, place: str) -> Profile:
        if not isinstance(whole, dict) or whole.get("format") != FORMAT:
            raise InputError(f"{place}: no profile of this package: {_ADVICE}")
        try:
            entries = tuple(Entry(**{**each, "examples": tuple(each["examples"])}) for each in whole["entries"])
            return cls(**{each.name: whole[each.name] for each in fields(cls)} | {"entries": entries})
        except (KeyError, TypeError) as error:
            raise InputError(f"{place}: a profile, but not whole ({error}): make it anew") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, an entry on each line, compressed if the name ends in .gz."""
        head = {"format": FORMAT} | {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "entries"
        }
        lines = (json.dumps(asdict(entry), ensure_ascii=False) for entry in self.entries)
        text = json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "entries": [\n' + ",\n".join(lines) + "\n]}\n"
        replace_text(path, text)


def profile_texts(texts: Iterable[Text], **options: Any) -> Profile:
    """Make a profile of texts in memory; options: those of `make_profile`.

    >>> texts = [Text("A testament to cats.", None, "1", {}), Text("It was a testament to.", None, "2", {})]
    >>> [entry.text for entry in profile_texts(texts, min_count=2).entries if entry.kind == "phrase"]
    ['a testament to']
    """
    held = list(texts)
    return make_profile(lambda: held, **options)


def make_profile(
    texts: Texts,
    *,
    baseline: Baseline | None = None,
    also: Sequence[Baseline] = (),
    min_count: int = 5,
    min_prompts: int = 2,
    min_ratio: float = 0.0,
    examples: bool = False,
    modern: bool = True,
    megabytes: int = 256,
    made_with: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Count what texts hold and set it against a baseline.

    texts: a function that returns them anew at each call: they are read two times, three with examples.
    baseline, also: human texts, see `HumanRates`; without any, entries have no ratio. modern: whether rates of words
        today, of wordfreq, count too.
    min_count, min_prompts: what occurs less often, or in texts to fewer prompts, is left out; so is what has a ratio
        under min_ratio, and what says no more than a longer entry (`find_explained`).
    megabytes: of counters, see `count`, which may have to raise min_count; made_with says how far.

    Raises `InputError` where there are no words, and `InputError` where texts can't be read.
    """
    census = take_census(texts, min_count=min_count, min_prompts=min_prompts, megabytes=megabytes, progress=progress)
    if not census.words:
        raise InputError("no words in the texts: there is nothing to profile")
    rates = None if baseline is None else HumanRates(baseline, also=also, modern=modern)
    entries = _weigh(census, rates, min_ratio=min_ratio)
    if examples:
        kept = {(entry.kind, entry.text) for entry in entries}
        indices = (index for index, name in enumerate(census.names) if name in kept)
        found = cut_examples(texts, (census[index] for index in indices))
        entries = [replace(entry, examples=found.get((entry.kind, entry.text), ())) for entry in entries]
    return Profile(
        texts=census.texts,
        prompts=census.prompts,
        words=census.words,
        characters=census.characters,
        baseline=None if baseline is None else {"name": baseline.name, "words": baseline.words},
        made_with={
            **(made_with or {}),
            "min_count": census.min_count,
            "min_prompts": min_prompts,
            "min_ratio": min_ratio if baseline else 0.0,
            "modern": modern and baseline is not None,
        },
        entries=tuple(entries),
    )


def take_census(texts: Texts, **options: Any) -> Census:
    """Count what texts hold, the bundled constructions too; options: those of `count`."""
    patterns = {each.name: regex.compile(each.ban.phrase) for each in read_constructions()}
    return count(texts, patterns=patterns, **options)


def _weigh(census: Census, rates: HumanRates | None, *, min_ratio: float) -> list[Entry]:
    """Return the entries, those first whose ratio is most surely high, or without ratios the most frequent."""
    humans: dict[int, HumanRate | None] = {}
    for index, (name, occurrences) in enumerate(zip(census.names, census.counts, strict=True)):
        human = rates.rate(*name) if rates else None
        if human is None or occurrences / census.words >= min_ratio * human.rate:
            humans[index] = human
    gone = find_explained({census.names[index]: census.counts[index] for index in humans})
    kept = {index: human for index, human in humans.items() if census.names[index] not in gone}
    entries = (_make_entry(census[index], census, human) for index, human in kept.items())
    return sorted(entries, key=lambda entry: (-(entry.low or 0.0), -entry.count, entry.text))


def _make_entry(each: Occurrences, census: Census, human: HumanRate | None) -> Entry:
    rate = each.count / census.words
    error = estimate_error(each.groups, census.group_words)
    figures: dict[str, Any] = {}
    if human is not None:
        clusters = int((census.group_words > 0).sum())
        ratio = estimate_ratio(rate, error, clusters, human)
        figures = {
            "human_count": human.count,
            "human_per_million": round(1e6 * human.rate, 4),
            **{name: None if value is None else round(value, 3) for name, value in ratio._asdict().items()},
        }
    return Entry(
        kind=each.kind,
        text=each.text,
        count=each.count,
        texts=each.texts,
        prompts=each.prompts,
        per_million=round(1e6 * rate, 4),
        error=round(error, 4),
        is_name=each.kind != "construction" and not census.proper.isdisjoint(cut_words(each.text)),
        **figures,
    )


# -- Comparing --------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """How a rate changed: before and after, per million words.

    A count of None: fewer than its profile lists, and the rate is the most it can be.
    ratio, low, high: after over before, with a 95 % interval.
    error: the standard error of the ratio's logarithm.
    """

    kind: Kind
    text: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    error: float
    before_count: int | None
    after_count: int | None
    is_name: bool

    @property
    def evidence(self) -> float:
        """How many standard errors the change is away from none."""
        return abs(log(self.ratio)) / self.error


def compare(before: Profile, after: Profile, *, discoveries: float = 0.05) -> list[Change]:
    """Return what fell and what rose from one profile to another, that with the best evidence first.

    discoveries: the share of false ones that is allowed for (Benjamini and Hochberg 1995, doi
        10.1111/j.2517-6161.1995.tb02031.x); changes that don't pass are left out.

    Rates are compared, so that longer texts alone change nothing. What one profile does not list is taken to be as
    frequent there as it can be. Changes that a longer entry explains are left out. Prompts of the two profiles count
    as independent, which understates the evidence where they are the same.
    """
    sides = _Side(before), _Side(after)
    keys = dict.fromkeys([*sides[0].entries, *sides[1].entries])
    changes = {key: _measure(key, *sides) for key in keys}
    evident = _discover([change for change in changes.values() if change is not None], discoveries)
    largest = {
        direction: {
            (each.kind, each.text): max(each.before_count or 0, each.after_count or 0)
            for each in evident
            if (each.ratio > 1) is direction
        }
        for direction in (False, True)
    }
    gone = {direction: find_explained(counts) for direction, counts in largest.items()}
    kept = (each for each in evident if (each.kind, each.text) not in gone[each.ratio > 1])
    return sorted(kept, key=lambda each: (-each.evidence, each.text))


class _Side:
    """One profile of a comparison: what it lists, and how much of the rest there may be."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.entries = {(entry.kind, entry.text): entry for entry in profile.entries}
        self._least = max(1, int(profile.made_with.get("min_count", 1)) - 1)
        self._ratio = float(profile.made_with.get("min_ratio", 0.0))
        self._within: dict[tuple[Kind, str], int] = {}
        for (kind, text), entry in self.entries.items():
            for part in find_parts(kind, text):
                self._within[part] = max(self._within.get(part, 0), entry.count)

    def bound(self, entry: Entry) -> float:
        """Return how often an entry of the other profile may occur: it is rare, or explained, or as people write."""
        human = self._ratio * (entry.human_per_million or 0.0) * self.profile.words / 1e6
        return max(self._least, human, self._within.get((entry.kind, entry.text), 0) / EXPLAINED)


def _measure(key: tuple[Kind, str], before: _Side, after: _Side) -> Change | None:
    """Return a change; None where it may be none: one side's bound is above the other's rate."""
    old, new = before.entries.get(key), after.entries.get(key)
    one = old or new
    assert one is not None
    rates, errors = [], []
    for side, entry in ((before, old), (after, new)):
        amount = entry.count if entry else side.bound(one)
        rates.append(1e6 * amount / side.profile.words)
        errors.append(max(entry.error, 1e-3) if entry else 1 / sqrt(amount))
    if (old is None and rates[0] >= rates[1]) or (new is None and rates[1] >= rates[0]):
        return None
    error = sqrt(errors[0] ** 2 + errors[1] ** 2)
    ratio, reach = rates[1] / rates[0], exp(quantile(0, 0.95) * error)
    return Change(
        kind=one.kind,
        text=one.text,
        before=rates[0],
        after=rates[1],
        ratio=ratio,
        low=ratio / reach,
        high=ratio * reach,
        error=error,
        before_count=old.count if old else None,
        after_count=new.count if new else None,
        is_name=one.is_name,
    )


def _discover(changes: list[Change], share: float) -> Iterator[Change] | list[Change]:
    chances = control_discoveries([erfc(each.evidence / sqrt(2)) for each in changes])
    return [each for each, chance in zip(changes, chances, strict=True) if chance <= share]


def control_discoveries(chances: Sequence[float]) -> list[float]:
    """Return the share of false discoveries if all that are as improbable as each are taken for true.

    By Benjamini and Hochberg (1995, doi 10.1111/j.2517-6161.1995.tb02031.x).

    >>> control_discoveries([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.03]
    """
    adjusted, least = list(chances), 1.0
    order = sorted(range(len(chances)), key=lambda index: -chances[index])
    for above, index in enumerate(order):
        least = min(least, chances[index] * len(chances) / (len(chances) - above))
        adjusted[index] = least
    return adjusted
