"""Find entries of a list that another entry makes superfluous, and regexes that are too slow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

import regex

from antislop.lists.ban_list import BanList
from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.bans import Ban
from antislop.matching.patterns.incremental_regex import TIME_LIMIT, Allowance, IncrementalRegex
from antislop.matching.patterns.phrase import Phrase
from antislop.matching.patterns.regex import Regex
from antislop.matching.patterns.words import WordSequence

FindingKind = Literal["duplicate", "contained", "short", "common", "joined", "untypable", "case", "slow", "loop"]

_ANYTHING = r"(?:(?<!\\)\.|\[\^[^\]]*\]|\[\\[sSwWdD]\\[sSwWdD]\])"
_ANY_PASSAGE = regex.compile(rf"{_ANYTHING}(?:[*+]|\{{\d*,?\d*\}}).*(?:\\[1-9]|\(\?P=)", regex.S)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of one entry.

    index: of the entry, from 0. fault: a clause that begins with the entry. fix: what to do, in the imperative.
    other: the index of a second entry that the fault is about, if any.
    """

    ban: Ban
    index: int
    kind: FindingKind
    fault: str
    fix: str
    other: int | None = None


Findings: TypeAlias = Iterator[Finding]


def find_duplicates(bans: Sequence[Ban]) -> Findings:
    """Yield the entries that forbid the same as an earlier one, once folded."""
    for index, other in _find_repeats(bans).items():
        ban, first = bans[index], bans[other]
        fault, fix = f"{describe(ban)} repeats {describe(first)}", "leave it out"
        if ban.weight != first.weight:
            fault += " with another weight"
            fix = f"leave one of them out; the smaller weight, {min(ban.weight, first.weight)}, counts"
        yield Finding(ban, index, "duplicate", fault, fix, other)


def find_contained(bans: Sequence[Ban]) -> Findings:
    """Yield the entries that have no effect because they always contain another one that is forbidden everywhere."""
    repeats = _find_repeats(bans)
    containers: dict[int, tuple[int, str]] = {}
    phrases = sorted(_find_phrases_within(bans), key=lambda pair: len(bans[pair[1]].phrase))
    for pairs, relation in (
        (phrases, "contains"),
        (_find_sequences_within(bans), "is a case of"),
        (_find_regexes_within(bans), "is matched by the regex"),
    ):
        for index, other in pairs:
            is_settled = {index, other} & repeats.keys() or index in containers
            if not is_settled and not _leads_to(index, other, containers):
                clause = f"{describe(bans[index])} {relation} {describe(bans[other])}, which forbids it already"
                containers[index] = other, clause
    for index, (other, clause) in sorted(containers.items()):
        yield Finding(bans[index], index, "contained", clause, "leave it out", other)


def find_slow(bans: Sequence[Ban]) -> Findings:
    """Yield the regexes that exceed their time limit on texts made of their own letters."""
    for index, ban in enumerate(bans):
        if isinstance(ban.pattern, Regex) and (probe := _find_slow_text(ban.pattern)):
            fault = f"{describe(ban)} takes longer than {TIME_LIMIT} seconds on a text like {probe[:12] + '…'!r}"
            yield Finding(ban, index, "slow", fault, "make it simpler: no repetition within a repetition, as in (a+)+")


def find_repetitions(bans: Sequence[Ban]) -> Findings:
    """Yield the regexes that look for any passage that repeats."""
    for index, ban in enumerate(bans):
        if isinstance(ban.pattern, Regex) and _ANY_PASSAGE.search(ban.phrase):
            fault = f"{describe(ban)} looks for a passage that repeats, and withdraws the first copy too"
            yield Finding(ban, index, "loop", fault, "use Ban.loop(), which withdraws the later ones only")


def describe(ban: Ban) -> str:
    """Return a ban as a sentence names it."""
    return ban.pattern.describe()


def always_forbids(ban: Ban) -> bool:
    """Return whether a ban forbids everywhere, whatever the text."""
    return ban.weight == 0 and ban.is_unconditional


def _find_repeats(bans: Sequence[Ban]) -> dict[int, int]:
    """Return, for each entry that is not the first of its kind, the first one that forbids the same."""
    first: dict[Hashable, int] = {}
    firsts = [first.setdefault(ban.key, index) for index, ban in enumerate(bans)]
    return {index: other for index, other in enumerate(firsts) if other != index}


def _leads_to(index: int, other: int, containers: Mapping[int, tuple[int, str]]) -> bool:
    """Return whether one entry is left out on behalf of another, so that the latter has to stay."""
    while other in containers and other != index:
        other = containers[other][0]
    return other == index


def _find_phrases_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, phrase within it), by their folded symbols, which include the edges of words."""
    for case_sensitive in (False, True):
        phrases = {
            index: ban.pattern.find_symbols(case_sensitive=case_sensitive)
            for index, ban in enumerate(bans)
            if isinstance(ban.pattern, Phrase) and ban.pattern.case_sensitive is case_sensitive and always_forbids(ban)
        }
        numbers, automaton = list(phrases), Automaton(list(phrases.values()))
        for index, ban in enumerate(bans):
            if case_sensitive and not ban.pattern.case_sensitive:
                continue
            state = ROOT
            for symbol in ban.pattern.find_symbols(case_sensitive=case_sensitive) or "":
                state = automaton.step(state, symbol)
                yield from ((index, numbers[match]) for match in automaton.matches[state] if numbers[match] != index)


def _find_sequences_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, sequence of words that it is a case of)."""
    sequences = [
        (index, ban, ban.pattern)
        for index, ban in enumerate(bans)
        if isinstance(ban.pattern, WordSequence) and always_forbids(ban)
    ]
    for case_sensitive in (False, True):
        same_case = [entry for entry in sequences if entry[2].case_sensitive is case_sensitive]
        if not same_case:
            continue
        first = {ban: index for index, ban, _ in reversed(same_case)}
        compiled = BanList(reversed(first))
        widest_gap = max(item.max_gap for _, _, pattern in same_case for item in pattern.items)
        for index, ban in enumerate(bans):
            if case_sensitive and not ban.pattern.case_sensitive:
                continue
            extremes = ban.pattern.find_extremes(widest_gap=widest_gap)
            hits = [{match.ban for match in compiled.find(text)} for text in extremes]
            others = (first[other] for other in set.intersection(*hits)) if hits else ()
            yield from ((index, other) for other in sorted(others) if other != index)


def _find_regexes_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (phrase, regex that matches it however it is written)."""
    phrases = [
        (index, ban.pattern)
        for index, ban in enumerate(bans)
        if isinstance(ban.pattern, Phrase) and ban.pattern.edges == "word"
    ]
    texts = [pattern.text + ".\n" for _, pattern in phrases]
    starts = [0, *accumulate(map(len, texts))]
    joined = "".join(texts)
    for other, ban in enumerate(bans):
        if not isinstance(ban.pattern, Regex) or not always_forbids(ban):
            continue
        compiled, allowance = ban.pattern.prepare(), Allowance()
        candidates = {bisect_right(starts, start) - 1 for start in _search(ban.phrase, joined)}
        for index, phrase in (phrases[number] for number in sorted(candidates)):
            if all(_matches_within(compiled, text, allowance) for text in _list_spellings(phrase)):
                yield index, other


def _search(pattern: str, text: str) -> Iterator[int]:
    try:
        for match in regex.compile(pattern).finditer(text, timeout=8 * TIME_LIMIT):
            yield match.start()
    except TimeoutError:
        return


def _list_spellings(phrase: Phrase) -> set[str]:
    """Return texts that compare as equal to a phrase, and that a regex distinguishes."""
    text = phrase.text
    curly = text.replace("'", "’").replace('"', "”")
    spellings = {text, curly, text.replace("’", "'"), text.replace(" ", "\n")}
    if not phrase.case_sensitive:
        spellings |= {text.lower(), text.upper(), text[:1].upper() + text[1:]}
    return spellings


def _matches_within(compiled: IncrementalRegex, text: str, allowance: Allowance) -> bool:
    """Return whether a regex matches within a text, at the beginning and in the middle of a longer one."""
    try:
        for before, after in (("", " so"), ("so ", ", so")):
            matches = compiled.finish(before + text + after, 0, allowance)
            if not any(len(before) <= match.start and match.end <= len(before + text) for match in matches):
                return False
    except TimeoutError:
        return False
    return True


def _find_slow_text(pattern: Regex) -> str:
    """Return a text that takes too long, or ""; it is shorter than `max_span`, so that it is searched once."""
    compiled, allowance = pattern.prepare(), Allowance()
    letters: dict[str, None] = dict.fromkeys(regex.findall(r"\w", pattern.text)[:12])
    words = " ".join(regex.findall(r"[^\W_]+", pattern.text))
    for part in (words, "word ", " ", "a", "0", "a, ", *letters):
        text: str = (part * pattern.max_span)[: max(1, pattern.max_span - 1)]
        try:
            compiled.finish(text, 0, allowance)
        except TimeoutError:
            return text
    return ""
