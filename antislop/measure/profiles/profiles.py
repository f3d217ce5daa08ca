"""Profiles: the overused entries of texts, compared with human writing, as JSON and as a self-contained page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import log
from typing import Any

import regex

from antislop.core.bans import read_constructions
from antislop.display import describe_count, fill_page, format_number
from antislop.errors import InputError
from antislop.files.disk import decode, parse_json, read_json, replace_text
from antislop.files.texts import Text
from antislop.measure.profiles.counting import (
    COUNTER_MEGABYTES,
    Census,
    Occurrences,
    choose_min_prompts,
    count,
    cut_examples,
)
from antislop.measure.profiles.ngrams import Kind, Progress, Texts, cut_words, find_explained
from antislop.measure.profiles.rates import HumanRate, HumanRates, estimate_error, estimate_ratio
from antislop.measure.words import drop_stop_words

FORMAT = "antislop profile 1"
_ADVICE = "make one with: antislop profile TEXTS -o profile.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A word, phrase, content n-gram or construction, its rate per million words, and its ratio to the human rate.

    prompts: number of distinct prompts; of more than 512 prompts a lower bound.
    error: the relative standard error of per_million, over prompts.
    human_count: occurrences in the baseline; None if it does not list them.
    human_per_million: an upper bound if human_count is None.
    ratio, low, high: with a 95 % interval; None without a baseline; high is None if the human rate is a bound.
    is_name: whether it contains a word that is mostly capitalized right after another word.
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
    """The entries that some texts contain more often than human writing, the most certain first.

    characters: of all texts.
    baseline: name and number of words of the human texts; None without a baseline.
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


def profile_texts(texts: Iterable[Text], **options: Any) -> Profile:
    """Make a profile of texts in memory; options: those of `make_profile`.

    >>> texts = [Text("A testament to cats.", None, "1", {}), Text("It was a testament to.", None, "2", {})]
    >>> [entry.text for entry in profile_texts(texts, min_count=2).entries if entry.kind == "phrase"]
    ['a testament to']
    """
    all_texts = list(texts)  # which are read several times
    return make_profile(lambda: all_texts, **options)


def make_profile(
    texts: Texts,
    *,
    rates: HumanRates | None = None,
    min_count: int = 5,
    min_prompts: int | None = None,
    min_ratio: float = 0.0,
    examples: bool = False,
    megabytes: int = COUNTER_MEGABYTES,
    made_with: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Count the entries of texts and compare them with human rates.

    texts: read twice, with examples three times.
    rates: of human writing; without them, entries have no ratio.
    min_count, min_prompts, min_ratio: entries below are left out; so are those that a longer one explains.
        min_prompts is 2 by default, or 1 for a single text.
    megabytes: of counters, see `count`, which may raise min_count.

    Raises `InputError` if there are no words, or if texts can't be read.
    """
    census = take_census(texts, min_count=min_count, min_prompts=min_prompts, megabytes=megabytes, progress=progress)
    if not census.words:
        raise InputError("no words in the texts: there is nothing to profile")
    entries = _weigh(census, rates, min_ratio=min_ratio)
    if examples:
        names = {(entry.kind, entry.text) for entry in entries}
        indices = (index for index, name in enumerate(census.names) if name in names)
        excerpts = cut_examples(texts, (census[index] for index in indices))
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
            "min_prompts": choose_min_prompts(census.texts) if min_prompts is None else min_prompts,
            "min_ratio": min_ratio if rates else 0.0,
            "modern": rates is not None and rates.is_modern,
        },
        entries=tuple(entries),
    )


def take_census(texts: Texts, **options: Any) -> Census:
    """Count the entries of texts, with the bundled constructions; options: those of `count`."""
    patterns = {construction.name: regex.compile(construction.ban.text) for construction in read_constructions()}
    return count(texts, patterns=patterns, **options)


def _weigh(census: Census, rates: HumanRates | None, *, min_ratio: float) -> list[Entry]:
    """Return the entries by the lower end of their ratio, or by their count without ratios, the highest first."""
    humans: dict[int, HumanRate | None] = {}
    for index, (name, occurrences) in enumerate(zip(census.names, census.counts, strict=True)):
        human = rates.rate(*name) if rates else None
        if human is None or occurrences / census.words >= min_ratio * human.rate:
            humans[index] = human
    explained = find_explained({census.names[index]: census.counts[index] for index in humans})
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
        is_name=occurrences.kind != "construction" and not census.proper.isdisjoint(cut_words(occurrences.text)),
        **figures,
    )


# -- page --------------------------------------------------------------------------------------------------------------

SHOWN_AT_ONCE, MAX_SHOWN = 20, 500
"""Entries of a section that are shown at once, and with a click; the others are only in the profile as JSON."""

_SECTIONS = {
    "word": "Words",
    "phrase": "Phrases",
    "content": "Content words in sequence",
    "construction": "Constructions",
    "name": "Names",
    "function": "Function words alone",
}


def render_page(profile: Profile) -> str:
    sections: dict[str, list[Entry]] = {name: [] for name in _SECTIONS}
    for entry in profile.entries:
        sections[_find_section(entry)].append(entry)
    page, _ = fill_page(
        "profile.html",
        styles=("page.css", "report.css"),
        headline=make_headline(profile),
        profile=profile,
        sections=[
            {"name": name, "title": _SECTIONS[name], "size": len(entries), "entries": entries[:MAX_SHOWN]}
            for name, entries in sections.items()
            if entries
        ],
        first=SHOWN_AT_ONCE,
        max_ratio=max((entry.ratio or 1.0 for entry in profile.entries), default=1.0),
        # The width of a ratio's bar in percent: logarithmic, 0 for 1.
        scale=lambda ratio, max_ratio: round(100 * log(max(1.0, ratio)) / max(log(max_ratio), 1e-9), 1),
    )
    return page


def _find_section(entry: Entry) -> str:
    """Return where an entry is shown: apart if it depends on what a text is about, or on its person and tense."""
    if entry.kind in ("word", "phrase") and not drop_stop_words(cut_words(entry.text)):
        return "function"
    return "name" if entry.is_name and entry.kind == "word" else entry.kind


def make_headline(profile: Profile) -> str:
    """Return the number of entries, and the most certain one without names that says something, as a sentence."""
    telling = (entry for entry in profile.entries if _find_section(entry) in ("word", "phrase") and not entry.is_name)
    entry = next(telling, None)
    size = sum(_find_section(entry) != "function" for entry in profile.entries)
    if entry is None or entry.ratio is None or entry.low is None:
        return f"{describe_count(size, 'entry', 'entries')} in {describe_count(profile.words, 'word')}"
    number = describe_count(size, "entry is", "entries are")
    times = format_number(entry.ratio) if entry.high is not None else f"at least {format_number(entry.low)}"
    return f"{number} overused: “{entry.text}” occurs {times} times as often as in human writing"
