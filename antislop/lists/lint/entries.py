"""Find entries of a list that another entry makes superfluous."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast
from warnings import catch_warnings, simplefilter

from antislop.lists.ban_list import BanList
from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.bans import Ban
from antislop.matching.patterns.pattern import Pattern, TextSearch

FindingKind = Literal["duplicate", "contained", "short", "common", "joined", "untypable", "case", "slow", "loop"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of one entry.

    index: of the entry, from 0.
    fault: a clause that begins with the entry.
    fix: what to do, in the imperative.
    other: index of a second entry that the fault is about, if any.
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
    literals = sorted(_find_literals_within(bans), key=lambda pair: len(bans[pair[1]].phrase))
    for pairs, relation in (
        (literals, "contains"),
        (_find_sequences_within(bans), "is a case of"),
        (_find_others_within(bans), "is matched by the {kind}"),
    ):
        for index, other in pairs:
            is_settled = {index, other} & repeats.keys() or index in containers
            if not is_settled and not _leads_to(index, other, containers):
                named = relation.format(kind=bans[other].pattern.kind)
                clause = f"{describe(bans[index])} {named} {describe(bans[other])}, which forbids it already"
                containers[index] = other, clause
    for index, (other, clause) in sorted(containers.items()):
        yield Finding(bans[index], index, "contained", clause, "leave it out", other)


def describe(ban: Ban) -> str:
    return ban.pattern.describe()


def always_forbids(ban: Ban) -> bool:
    return ban.weight == 0 and ban.is_unconditional


def is_tried(pattern: Pattern) -> bool:
    """Return whether to try a pattern on texts by itself, since no symbols of its occurrences are known."""
    return pattern.occurs_in_text and not pattern.is_legible


def _find_repeats(bans: Sequence[Ban]) -> dict[int, int]:
    """Return, for each entry that repeats another one, the first that forbids the same."""
    first: dict[Hashable, int] = {}
    firsts = [first.setdefault(ban.key, index) for index, ban in enumerate(bans)]
    return {index: other for index, other in enumerate(firsts) if other != index}


def _leads_to(index: int, other: int, containers: Mapping[int, tuple[int, str]]) -> bool:
    """Return whether `other` is left out because of `index`, which has to stay then."""
    while other in containers and other != index:
        other = containers[other][0]
    return other == index


def _find_literals_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, phrase within it), by their folded symbols, which include the edges of words."""
    for case_sensitive in (False, True):
        literals = {
            index: ban.pattern.find_symbols(case_sensitive=case_sensitive) or ""
            for index, ban in enumerate(bans)
            if ban.pattern.is_literal and ban.pattern.case_sensitive is case_sensitive and always_forbids(ban)
        }
        numbers, automaton = list(literals), Automaton(list(literals.values()))
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
        (index, ban)
        for index, ban in enumerate(bans)
        if ban.pattern.is_legible and not ban.pattern.is_literal and always_forbids(ban)
    ]
    for case_sensitive in (False, True):
        same_case = [(index, ban) for index, ban in sequences if ban.pattern.case_sensitive is case_sensitive]
        if not same_case:
            continue
        first = {ban: index for index, ban in reversed(same_case)}
        compiled = BanList(reversed(first))
        widest_gap = max(ban.pattern.widest_gap for _, ban in same_case)
        for index, ban in enumerate(bans):
            if case_sensitive and not ban.pattern.case_sensitive:
                continue
            extremes = ban.pattern.find_extremes(widest_gap=widest_gap)
            found = [{match.ban for match in compiled.find(text)} for text in extremes]
            others = (first[other] for other in set.intersection(*found)) if found else ()
            yield from ((index, other) for other in sorted(others) if other != index)


def _find_others_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (phrase, ban such as a regex that matches it however it is written)."""
    spellings = {index: texts for index, ban in enumerate(bans) if (texts := ban.pattern.list_spellings())}
    numbers, firsts = list(spellings), [texts[0] for texts in spellings.values()]
    for other, ban in enumerate(bans):
        if not is_tried(ban.pattern) or not always_forbids(ban):
            continue
        search = cast("type[TextSearch[Any]]", ban.pattern.search)([ban.pattern])
        for index in (numbers[i] for i in ban.pattern.find_in([text + ".\n" for text in firsts])):
            if all(_matches_within(search, text) for text in spellings[index]):
                yield index, other


def _matches_within(search: TextSearch[Any], text: str) -> bool:
    """Return whether a pattern occurs within a text, at the beginning and in the middle of a longer one."""
    for before, after in (("", " so"), ("so ", ", so")):
        with catch_warnings():
            simplefilter("ignore")  # a regex that times out just does not match
            matches = search.read(search.start, before + text + after, final=True)[1].matches
        rest, size = len(after), len(text + after)
        if not any(match.start_back <= size and match.end_back > rest for match in matches):
            return False
    return True
