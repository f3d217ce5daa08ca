"""Profiles of texts: words and phrases they overuse, compared with human writing or another profile, also as a page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import erfc, exp, log, sqrt
from typing import Any, NamedTuple

import regex

from antislop.display import describe_count, fill_page, format_number
from antislop.errors import InputError
from antislop.files.disk import decode, parse_json, read_json, replace_text
from antislop.files.texts import Text
from antislop.lists import read_constructions
from antislop.measure.languages import ENGLISH, Language, find_language
from antislop.measure.profiles import counting
from antislop.measure.profiles.counting import Census, Occurrences
from antislop.measure.profiles.ngrams import EXPLAINED_SHARE, Kind, Progress, Texts, find_explained, find_parts
from antislop.measure.profiles.rates import HumanRate, HumanRates, estimate_error, estimate_ratio, find_half_width

FORMAT = "antislop profile 1"
_ADVICE = "make one with: antislop profile TEXTS -o profile.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A word, phrase, content n-gram or construction, its rate per million words, and its ratio to the human rate.

    prompts: number of distinct prompts whose texts contain the entry; a lower bound if there are over 512 prompts.
    error: the relative standard error of per_million, over prompts.
    human_count: occurrences in the human texts; None if the baseline does not list the entry.
    human_per_million: the human rate; an upper bound if human_count and high are None.
    ratio, low, high: the ratio and a 95 % interval; None without a baseline; high is None if the human rate is a bound.
    is_name: whether the entry contains a word that is mostly capitalized where no sentence begins.
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
    """The frequent entries of texts, with a baseline compared with human writing; the most surely overused first.

    characters: number of characters of all texts.
    baseline: the name of the human texts, and their number of words; None without a baseline.
    """

    texts: int
    prompts: int
    words: int
    characters: int
    baseline: Mapping[str, Any] | None
    made_with: Mapping[str, Any]
    entries: tuple[Entry, ...] = field(repr=False)

    @property
    def language(self) -> Language:
        return find_language(self.made_with.get("language", "en"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile from a file, compressed if its name ends in .gz. Raises `InputError` for any other file."""
        return cls._of(read_json(path, advice=_ADVICE), os.fspath(path))

    @classmethod
    def parse(cls, data: bytes, *, place: str) -> Profile:
        """Read a profile from the bytes of a file, called `place` in messages. Raises `InputError`."""
        return cls._of(parse_json(decode(data, place), place, advice=_ADVICE), place)

    @classmethod
    def _of(cls, content: Any, place: str) -> Profile:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{place}: is not a profile of this package: {_ADVICE}")
        try:
            entries = tuple(Entry(**{**item, "examples": tuple(item["examples"])}) for item in content["entries"])
            return cls(**{item.name: content[item.name] for item in fields(cls)} | {"entries": entries})
        except (KeyError, TypeError) as error:
            raise InputError(f"{place}: the profile is damaged ({error}): make it again") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, an entry on each line, compressed if the name ends in .gz."""
        head = {"format": FORMAT} | {
            column.name: getattr(self, column.name) for column in fields(self) if column.name != "entries"
        }
        lines = (json.dumps(asdict(entry), ensure_ascii=False) for entry in self.entries)
        begin = json.dumps(head, ensure_ascii=False, indent=1)[:-2]
        replace_text(path, begin + ',\n "entries": [\n' + ",\n".join(lines) + "\n]}\n")


def profile_texts(texts: Iterable[Text | str], *, language: str = "en", **options: Any) -> Profile:
    """Make a profile of texts in memory; options: those of `make_profile`. language: its code of ISO 639-1.

    >>> texts = ["A testament to cats.", "It was a testament to."]
    >>> [entry.text for entry in profile_texts(texts, min_count=2).entries if entry.kind == "phrase"]
    ['a testament to']
    """
    if isinstance(texts, str):
        raise InputError("a list of texts was expected, not one text: write [text]")
    # The texts are read several times, which an iterator does not allow.
    all_texts = [Text(text, None, "", {}) if isinstance(text, str) else text for text in texts]
    return make_profile(lambda: all_texts, language=find_language(language), **options)


def make_profile(
    texts: Texts,
    *,
    rates: HumanRates | None = None,
    min_count: int = 5,
    min_prompts: int | None = None,
    min_ratio: float = 0.0,
    examples: bool = False,
    megabytes: int = counting.COUNTER_MEGABYTES,
    made_with: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    language: Language | None = None,
) -> Profile:
    """Count the entries of texts and compare them with human rates.

    texts: a function that returns the texts; called twice, with examples three times.
    rates: of human writing; without them, entries have no ratio.
    min_count, min_prompts, min_ratio: entries below are left out; so are entries that a longer entry explains.
        min_prompts is 2 by default, or 1 for a single text.
    megabytes: memory of the counters; `count` raises min_count if the candidates don't fit.
    language: of the texts and of the human texts; English by default.

    Raises `InputError` if there are no words, or if texts can't be read.
    """
    language = language or (ENGLISH if rates is None else rates.language)
    limits: dict[str, Any] = {"min_count": min_count, "min_prompts": min_prompts, "megabytes": megabytes}
    census = take_census(texts, progress=progress, language=language, **limits)
    if not census.words:
        raise InputError("no words in the texts: there is nothing to profile")
    entries = _weigh(census, rates, language, min_ratio=min_ratio)
    if examples:
        names = {(entry.kind, entry.text) for entry in entries}
        excerpts = counting.cut_examples(
            texts, (census[i] for i, name in enumerate(census.names) if name in names), language=language
        )
        entries = [replace(entry, examples=excerpts.get((entry.kind, entry.text), ())) for entry in entries]
    return Profile(
        texts=census.texts,
        prompts=census.prompts,
        words=census.words,
        characters=census.characters,
        baseline=None if rates is None else {"name": rates.baseline.name, "words": rates.baseline.words},
        made_with={
            **(made_with or {}),
            "min_count": census.min_count,
            "min_prompts": counting.choose_min_prompts(census.texts) if min_prompts is None else min_prompts,
            "min_ratio": min_ratio if rates else 0.0,
            "modern": rates is not None and rates.is_modern,
            **({} if language.is_english else {"language": language.code}),
        },
        entries=tuple(entries),
    )


def take_census(texts: Texts, *, language: Language = ENGLISH, **options: Any) -> Census:
    """Count the entries of texts, with the bundled constructions if they are English; options: those of `count`."""
    constructions = read_constructions() if language.is_english else ()
    patterns = {construction.name: regex.compile(construction.ban.text) for construction in constructions}
    return counting.count(texts, patterns=patterns, language=language, **options)


def _weigh(census: Census, rates: HumanRates | None, language: Language, *, min_ratio: float) -> list[Entry]:
    """Return the entries, sorted by the low end of their ratio or, without human rates, by count, the highest first."""
    humans: dict[int, HumanRate | None] = {}
    for index, (name, occurrences) in enumerate(zip(census.names, census.counts, strict=True)):
        human = rates.rate(*name) if rates else None
        if human is None or occurrences / census.words >= min_ratio * human.rate:
            humans[index] = human
    explained = find_explained({census.names[index]: census.counts[index] for index in humans}, language)
    unexplained = {index: human for index, human in humans.items() if census.names[index] not in explained}
    entries = (_make_entry(census[index], census, human) for index, human in unexplained.items())
    return sorted(entries, key=lambda entry: (-(entry.low or 0.0), -entry.count, entry.text))


def _make_entry(occurrences: Occurrences, census: Census, human: HumanRate | None) -> Entry:
    rate = occurrences.count / census.words
    error = estimate_error(occurrences.groups, census.group_words)
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
        kind=occurrences.kind,
        text=occurrences.text,
        count=occurrences.count,
        texts=occurrences.texts,
        prompts=occurrences.prompts,
        per_million=round(1e6 * rate, 4),
        error=round(error, 4),
        is_name=occurrences.kind != "construction" and not census.proper.isdisjoint(occurrences.text.split(" ")),
        **figures,
    )


# -- changes of rates from one profile to another ----------------------------------------------------------------------


class Change(NamedTuple):
    """The change of an entry's rate per million words, `before` in one profile and `after` in another.

    ratio, low, high: after divided by before, and the 95 % interval of this ratio.
    error: the standard error of the ratio's logarithm.
    before_count, after_count: occurrences; None if a profile does not list the entry: its rate is then an upper bound.
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
        """How many standard errors the logarithm of the ratio is away from 0, which means no change."""
        return abs(log(self.ratio)) / self.error


def compare(before: Profile, after: Profile, *, discoveries: float = 0.05) -> list[Change]:
    """Return the entries whose rate changed from one profile to another, the strongest evidence first.

    discoveries: the accepted share of false discoveries (Benjamini and Hochberg 1995, doi
        10.1111/j.2517-6161.1995.tb02031.x); other changes are left out.

    An entry that one profile does not list counts with the upper bound of its rate there. Changes that a longer entry
    explains are left out. The prompts of both sides count as independent: the same prompts understate the evidence.
    """
    sides = _Side(before), _Side(after)
    keys = dict.fromkeys([*sides[0].entries, *sides[1].entries])
    measured = [change for key in keys if (change := _measure(key, *sides)) is not None]
    chances = control_discoveries([erfc(change.evidence / sqrt(2)) for change in measured])
    discovered = [change for change, chance in zip(measured, chances, strict=True) if chance <= discoveries]
    explained = set[tuple[Kind, str]]()
    for is_rise in (False, True):  # a rise explains no fall
        explained |= find_explained(
            {
                (change.kind, change.text): max(change.before_count or 0, change.after_count or 0)
                for change in discovered
                if (change.ratio > 1) is is_rise
            },
            after.language,
        )
    unexplained = (change for change in discovered if (change.kind, change.text) not in explained)
    return sorted(unexplained, key=lambda change: (-change.evidence, change.text))


class _Side:
    """One profile of a comparison, with upper bounds for the counts of entries that this profile does not list."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.entries = {(entry.kind, entry.text): entry for entry in profile.entries}
        self._unlisted_count = max(1, int(profile.made_with.get("min_count", 1)) - 1)
        self._ratio = float(profile.made_with.get("min_ratio", 0.0))
        self._share = EXPLAINED_SHARE[profile.language.unspaced]
        self._container_counts: dict[tuple[Kind, str], int] = {}
        for (kind, text), entry in self.entries.items():
            for part in find_parts(kind, text, profile.language):
                self._container_counts[part] = max(self._container_counts.get(part, 0), entry.count)

    def bound(self, entry: Entry) -> float:
        human = self._ratio * (entry.human_per_million or 0.0) * self.profile.words / 1e6
        explained = self._container_counts.get((entry.kind, entry.text), 0) / self._share
        return max(self._unlisted_count, human, explained)


def _measure(key: tuple[Kind, str], before: _Side, after: _Side) -> Change | None:
    """Return the change of an entry; None if one side's rate is only a bound, which reaches the other side's rate."""
    old_entry, new_entry = before.entries.get(key), after.entries.get(key)
    listed_entry = old_entry or new_entry
    assert listed_entry is not None
    rates, errors = [], []
    for side, entry in ((before, old_entry), (after, new_entry)):
        amount = entry.count if entry else side.bound(listed_entry)
        rates.append(1e6 * amount / side.profile.words)
        errors.append(max(entry.error, 1e-3) if entry else 1 / sqrt(amount))
    if (old_entry is None and rates[0] >= rates[1]) or (new_entry is None and rates[1] >= rates[0]):
        return None
    error = sqrt(errors[0] ** 2 + errors[1] ** 2)
    ratio, reach = rates[1] / rates[0], exp(find_half_width(0) * error)
    return Change(
        kind=listed_entry.kind,
        text=listed_entry.text,
        before=rates[0],
        after=rates[1],
        ratio=ratio,
        low=ratio / reach,
        high=ratio * reach,
        error=error,
        before_count=old_entry.count if old_entry else None,
        after_count=new_entry.count if new_entry else None,
        is_name=listed_entry.is_name,
    )


def control_discoveries(chances: Sequence[float]) -> list[float]:
    """Return for each p-value the share of false discoveries if all p-values up to this p-value are accepted."""
    adjusted, minimum = list(chances), 1.0
    order = sorted(range(len(chances)), key=lambda index: -chances[index])
    for above, index in enumerate(order):
        minimum = min(minimum, chances[index] * len(chances) / (len(chances) - above))
        adjusted[index] = minimum
    return adjusted


# -- page --------------------------------------------------------------------------------------------------------------

SHOWN_AT_ONCE, MAX_SHOWN = 20, 500
"""How many entries of a section are shown at once, and how many after a click; further entries are only in the JSON."""


def render_page(profile: Profile) -> str:
    sections: dict[str, list[Entry]] = {}
    for entry in profile.entries:
        sections.setdefault(_find_section(entry, profile.language), []).append(entry)
    page, _ = fill_page(
        "profile.html",
        styles=("page.css", "report.css"),
        headline=make_headline(profile),
        profile=profile,
        sections=sections,
        first=SHOWN_AT_ONCE,
        most=MAX_SHOWN,
        max_ratio=max((entry.ratio or 1.0 for entry in profile.entries), default=1.0),
        # The width of a ratio's bar in percent: logarithmic, 0 for 1.
        scale=lambda ratio, max_ratio: round(100 * log(max(1.0, ratio)) / max(log(max_ratio), 1e-9), 1),
    )
    return page


def _find_section(entry: Entry, language: Language) -> str:
    """Return the section of the page for an entry: names, and function words alone, have sections of their own."""
    if entry.kind in ("word", "phrase") and not language.drop_stop_words(entry.text.split(" ")):
        return "function"
    return "name" if entry.is_name and entry.kind == "word" else entry.kind


def make_headline(profile: Profile) -> str:
    """Return a sentence: the number of entries, and the most certain entry that is no name and not function words."""
    telling = (
        entry
        for entry in profile.entries
        if _find_section(entry, profile.language) in ("word", "phrase") and not entry.is_name
    )
    entry = next(telling, None)
    size = sum(_find_section(entry, profile.language) != "function" for entry in profile.entries)
    if entry is None or entry.ratio is None or entry.low is None:
        return f"{describe_count(size, 'entry', 'entries')} in {describe_count(profile.words, 'word')}"
    number = describe_count(size, "entry is", "entries are")
    times = format_number(entry.ratio) if entry.high is not None else f"at least {format_number(entry.low)}"
    return f"{number} overused: “{entry.text}” occurs {times} times as often as in human writing"
