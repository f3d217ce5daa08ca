"""Entries of a list that another entry makes superfluous, for `antislop lint`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast, get_args
from warnings import catch_warnings, simplefilter

from antislop.core.bans import Automaton, Ban, BanList, Folding, TextSearch


def find_superfluous(bans: Sequence[Ban]) -> list[tuple[int, int, str]]:
    """Return (index, index of another entry, verb) for each entry that another entry makes superfluous.

    First come entries that repeat an earlier entry, with the verb "repeats"; then entries whose occurrences all contain
    an occurrence of another, always forbidden entry. Without all of these entries, the list forbids the same.
    """
    first: dict[Hashable, int] = {}
    firsts = [first.setdefault(ban.key, index) for index, ban in enumerate(bans)]
    repeats = {index: other for index, other in enumerate(firsts) if other != index}
    containers: dict[int, tuple[int, str]] = {}
    literals = sorted(_find_literals_within(bans), key=lambda pair: len(bans[pair[1]].text))
    for pairs, relation in (
        (literals, "contains"),
        (_find_sequences_within(bans), "is a case of"),
        (_find_others_within(bans), "is matched by the {kind}"),
    ):
        for index, other in pairs:
            kept = other
            while kept in containers and kept != index:
                kept = containers[kept][0]
            # If leaving out `other` relies on `index`, directly or through others, `index` has to stay.
            if kept != index and not {index, other} & repeats.keys() and index not in containers:
                containers[index] = other, relation.format(kind=bans[other].pattern.kind)
    return [*((*pair, "repeats") for pair in repeats.items()), *((i, *containers[i]) for i in sorted(containers))]


def _always_forbids(ban: Ban) -> bool:
    return ban.weight == 0 and ban.is_unconditional


def _find_literals_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, phrase that the entry contains), compared by folded symbols, edges of words included."""
    for folding in get_args(Folding):
        literals = {
            index: ban.pattern.find_symbols(folding) or ""
            for index, ban in enumerate(bans)
            if ban.pattern.is_literal and ban.pattern.folding == folding and _always_forbids(ban)
        }
        numbers, automaton = list(literals), Automaton(list(literals.values()))
        for index, ban in enumerate(bans):
            if folding not in ("caseless", ban.pattern.folding):
                continue
            node = automaton.root
            for symbol in ban.pattern.find_symbols(folding) or "":
                node = node[symbol]
                yield from ((index, numbers[match]) for match, _ in node.matches if numbers[match] != index)


def _find_sequences_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, sequence of words with gaps that matches each occurrence of the entry)."""
    sequences = [
        (index, ban)
        for index, ban in enumerate(bans)
        if ban.pattern.is_legible and not ban.pattern.is_literal and _always_forbids(ban)
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
            samples = ban.pattern.find_samples(widest_gap=widest_gap)
            found = [{match.ban for match in compiled.find(text)} for text in samples]
            others = (first[other] for other in set.intersection(*found)) if found else ()
            yield from ((index, other) for other in sorted(others) if other != index)


def _find_others_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (phrase, other ban, such as a regex, that matches each spelling of the phrase)."""
    spellings = {index: texts for index, ban in enumerate(bans) if (texts := ban.pattern.list_spellings())}
    numbers, firsts = list(spellings), [texts[0] for texts in spellings.values()]
    for other, ban in enumerate(bans):
        if not ban.pattern.is_opaque or not _always_forbids(ban):
            continue
        search = cast("type[TextSearch[Any]]", ban.pattern.search)([ban.pattern])
        for index in (numbers[i] for i in ban.pattern.find_in([text + ".\n" for text in firsts])):
            if all(_matches_within(search, text) for text in spellings[index]):
                yield index, other


def _matches_within(search: TextSearch[Any], text: str) -> bool:
    """Return whether a pattern occurs within a text, both at the start and in the middle of a longer text."""
    for before, after in (("", " so"), ("so ", ", so")):
        with catch_warnings():
            simplefilter("ignore")  # a regex that times out just does not match
            matches = search.read(search.start, before + text + after, final=True)[1].matches
        rest, size = len(after), len(text + after)
        if not any(match.start_back <= size and match.end_back > rest for match in matches):
            return False
    return True
