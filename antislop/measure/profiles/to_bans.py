"""Ban lists made from profiles, with weights that make entries as rare as in human writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import floor, log10
from typing import NamedTuple, get_args

from antislop.core.bans import Ban, BanList
from antislop.display import describe_count
from antislop.errors import BanError
from antislop.lists import read_constructions
from antislop.measure.languages import ENGLISH, Language
from antislop.measure.lint import OVERLAP_WORDS, find_overlapping, lint
from antislop.measure.profiles.counting import choose_min_prompts
from antislop.measure.profiles.ngrams import Kind, find_parts
from antislop.measure.profiles.profiles import Entry, Profile

KINDS: tuple[Kind, ...] = ("word", "phrase")
DISTINCTIVE_ZIPF = 4.5
"""Zipf frequency below which one content word makes a phrase distinctive: 32 per million words."""
COMMON_ZIPF = 5.3
"""Zipf frequency from which a word is never distinctive: 200 per million words."""
# A phrase that begins with a linking word, or ends with one of these words, is a fragment.
_LINKING = frozenset(("and", "but", "or", "that", "which", "who"))
_CUT = _LINKING | {"a", "an", "the"}
_REPEATED = ("duplicate", "contained", "overlapping")  # another entry forbids them already
_POSSESSIVE = frozenset(("my", "your", "his", "her", "its", "our", "their"))


@dataclass(frozen=True, slots=True)
class Choice:
    """The conditions for an entry of a profile to become a ban.

    min_ratio: the least that the low end of the interval of an entry's ratio to the human rate may be.
    names: which names become bans: "all", "none", "words" for names of one word, or "only" for names and nothing else.
    max_zipf: excludes single words of this Zipf frequency or more: log10 of occurrences per billion English words.
    min_prompts: the fewest prompts of an entry; by default 2, or 1 for the profile of a single text.
    top: limit of bans, the largest excess over human usage first.
    forbid: give all bans the weight 0.
    """

    min_ratio: float = 10.0
    kinds: Collection[str] = KINDS
    names: str = "all"
    max_zipf: float | None = None
    min_prompts: int | None = None
    top: int | None = None
    forbid: bool = False


class Chosen(NamedTuple):
    """A list of bans, and for each reason the number of entries that were left out for it."""

    bans: BanList
    left_out: Counter[str]


def choose_bans(profile: Profile, choice: Choice, *, source: str | None = None) -> Chosen:
    """Make a list of bans out of a profile, with the weights of `weigh`.

    Leaves out phrases that are not distinctive, entries that contain another entry, all but one phrase of those that
    overlap in one sentence, entries that `antislop.lint` reports, and entries not found in their own examples.

    Raises `BanError` for a profile without ratios, and if no entry is left.
    """
    if profile.baseline is None:
        raise BanError("the profile has no baseline, and so no ratios: make it with antislop profile --baseline HUMAN")
    if not profile.entries:
        names = [name for name in ("min_count", "min_prompts", "min_ratio") if name in profile.made_with]
        limits = ", ".join(f"--{name.replace('_', '-')} {profile.made_with[name]:g}" for name in names)
        raise BanError(
            f"the profile of {describe_count(profile.words, 'word')} has no entries ({limits or 'no limits'}): make it "
            "of more texts, or with smaller limits"
        )
    if unknown := set(choice.kinds) - set(get_args(Kind)):
        raise BanError(f"{min(unknown)!r} is not a valid kind of entry: take one of {', '.join(get_args(Kind))}")
    if "content" in choice.kinds and not profile.language.is_english:
        raise BanError("bans of content words skip English words between them: leave content out of --kinds")
    if choice.names != "all" and profile.language.capitals == "nouns":
        raise BanError(
            f"{profile.language.name} writes all nouns with a capital, so names are not known: leave names out"
        )
    if choice.min_prompts is None:
        choice = replace(choice, min_prompts=choose_min_prompts(profile.texts))
    chosen, left_out = _choose(profile, choice)
    if not chosen:
        kept: dict[str, str] = {}
        for option, weaker in _relax(choice):
            name = option.split()[0]
            if name not in kept and (count := len(_choose(profile, weaker)[0])):
                kept[name] = f"{option} would keep {count:,}"
        advice = ", ".join(kept.values()) or "profile more texts"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.most_common() if number)
        raise BanError(f"no entry of {len(profile.entries):,} is left ({reasons or 'there are none'}): {advice}")
    return Chosen(BanList(chosen, source=source), +left_out)


def _choose(profile: Profile, choice: Choice) -> tuple[list[Ban], Counter[str]]:
    language = profile.language
    check = partial(lint, frequencies=language.frequencies or None, language=language)
    reasons = {(entry.kind, entry.text): _refuse(entry, choice, language) for entry in profile.entries}
    left_out = Counter(reason for reason in reasons.values() if reason)
    candidates = [entry for entry in profile.entries if not reasons[entry.kind, entry.text]]
    # The largest excess over human usage first.
    candidates.sort(key=lambda entry: (-entry.count * (1 - 1 / max(1.0, entry.ratio or 1.0)), entry.text))
    # Old profiles have words cut at combining marks. Content n-grams are not looked up: an example may end too early.
    shown = [entry for entry in candidates if entry.examples and entry.kind in KINDS]
    lost = {entry for entry in shown if not any(map(BanList([make_ban(entry, language)]).find, entry.examples))}
    left_out["not found in their own examples"] += len(lost)
    candidates = [entry for entry in candidates if entry not in lost]
    bans = [make_ban(entry, language, forbid=choice.forbid) for entry in candidates]
    lint_kinds = {finding.index: finding.kind for finding in check(bans) if finding.kind not in _REPEATED}
    left_out.update(f"lint: {kind}" for kind in lint_kinds.values())
    unlinted = [entry for index, entry in enumerate(candidates) if index not in lint_kinds]
    minimal = list(drop_containing(unlinted, language, forbid=choice.forbid))
    left_out["contains another entry"] += len(unlinted) - len(minimal)
    remaining = [
        make_ban(entry, language, forbid=choice.forbid) for entry in drop_overlapping(minimal, profile.entries)
    ]
    left_out["of a sentence with another entry"] += len(minimal) - len(remaining)
    lint_kinds = {finding.index: finding.kind for finding in check(remaining)}
    left_out.update(f"lint: {kind}" for kind in lint_kinds.values())
    chosen = [ban for index, ban in enumerate(remaining) if index not in lint_kinds][: choice.top]
    left_out["beyond the top"] += len(remaining) - len(lint_kinds) - len(chosen)
    return chosen, left_out


def _relax(choice: Choice) -> Iterator[tuple[str, Choice]]:
    """Yield (option, choice with weaker conditions): smaller --min-ratio, then smaller --min-prompts."""
    ratio, prompts = choice.min_ratio, choice.min_prompts or 1
    while (ratio := float(f"{ratio / 2:.2g}")) > 1:  # below, an entry is as frequent in human writing
        yield f"--min-ratio {ratio:g}", replace(choice, min_ratio=ratio)
    while prompts := prompts // 2:
        yield f"--min-prompts {prompts}", replace(choice, min_prompts=prompts)


def _refuse(entry: Entry, choice: Choice, language: Language) -> str | None:
    if entry.kind not in choice.kinds:
        return f"not of --kinds {','.join(choice.kinds)}"
    if (entry.low or 0.0) < choice.min_ratio:
        return f"below --min-ratio {choice.min_ratio:g}"
    if entry.prompts < (choice.min_prompts or 0):
        return f"from fewer than --min-prompts {choice.min_prompts}"
    is_left_out = choice.names == "none" or (choice.names == "words" and entry.kind != "word")
    if (not entry.is_name) if choice.names == "only" else (entry.is_name and is_left_out):
        return f"{'names' if entry.is_name else 'no names'} by --names {choice.names}"
    if entry.kind == "word" and entry.text.endswith("'s"):
        return "possessives"
    if entry.kind == "word" and choice.max_zipf is not None and language.find_zipf(entry.text) >= choice.max_zipf:
        return f"common by --max-zipf {choice.max_zipf:g}"
    if entry.kind in ("phrase", "content") and not is_distinctive(entry.text, language):
        return "fragments and phrases without a distinctive word"
    return None


def is_distinctive(phrase: str, language: Language) -> bool:
    """Return whether a phrase is distinctive enough for a ban, rather than everyday English or a fragment.

    "a testament to" is; "we need to" and "barely a" are not.
    """
    words = phrase.split(" ")
    content = language.drop_stop_words(words)
    is_cut = language.is_english and (words[0] in _LINKING or words[-1] in _CUT | _POSSESSIVE)
    if is_cut or not content:
        return False
    rarest = min(language.find_zipf(word) for word in content)
    return rarest < COMMON_ZIPF if len(content) > 1 else len(words) > 2 and rarest < DISTINCTIVE_ZIPF


def weigh(entry: Entry, *, forbid: bool = False) -> float:
    """Return the weight of an entry: 1 / ratio to two digits, as rare as in human writing; 0 if human texts lack it."""
    is_bounded = entry.human_count is None and entry.high is None  # the human rate is only an upper bound
    if forbid or is_bounded or not entry.ratio:
        return 0.0
    weight = min(1.0, 1 / entry.ratio)
    return round(weight, 1 - floor(log10(weight)))


def make_ban(entry: Entry, language: Language = ENGLISH, *, forbid: bool = False) -> Ban:
    """Return the ban of an entry; the ban of a content n-gram skips English stop words."""
    weight = weigh(entry, forbid=forbid)
    if entry.kind == "construction":
        (construction,) = read_constructions(entry.text)
        return replace(construction.ban, weight=weight, count=entry.count)
    if entry.kind == "content":
        return Ban.words(entry.text.split(" "), skip_stop_words=True, weight=weight, count=entry.count)
    return Ban(language.join(entry.text), weight=weight, count=entry.count, language=language.code)


def drop_containing(entries: Iterable[Entry], language: Language = ENGLISH, *, forbid: bool = False) -> Iterator[Entry]:
    """Yield each entry that contains no other entry, or has the weight 0 while those within it have larger weights.

    The weights of two bans in one place are multiplied: the longer entry would become rarer than in human writing.
    """
    all_entries = list(entries)
    weights = {(entry.kind, entry.text): weigh(entry, forbid=forbid) for entry in all_entries}
    for entry in all_entries:
        weight = weights[entry.kind, entry.text]
        part_weights = [weights[part] for part in find_parts(entry.kind, entry.text, language) if part in weights]
        if not part_weights or (weight == 0 and min(part_weights) > 0):
            yield entry


def drop_overlapping(entries: Iterable[Entry], all_entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries with one entry for each overused sentence: a ban of any piece of a sentence stops all of it.

    all_entries: also the pieces that may link two of `entries` to one sentence.
    """
    pieces = [entry for entry in all_entries if entry.kind == "phrase" and entry.text.count(" ") >= OVERLAP_WORDS]
    findings = find_overlapping([make_ban(piece) for piece in pieces])
    previous = {finding.ban.text: pieces[finding.other].text for finding in findings if finding.other is not None}
    paths: dict[Entry, list[str]] = {}  # from each entry back to the first piece of its sentence
    for entry in entries:
        path = paths[entry] = [entry.text]
        while (text := previous.get(path[-1], entry.text)) not in path:  # pieces may go round in a circle
            path.append(text)
    earliest: dict[tuple[str, str], Entry] = {}
    for entry in sorted(paths, key=lambda entry: len(paths[entry])):
        earliest.setdefault((entry.kind, paths[entry][-1]), entry)
    return [entry for entry, path in paths.items() if earliest[entry.kind, path[-1]] is entry]
