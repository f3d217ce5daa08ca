"""Look through a list for entries that do nothing, do too much, or can't be what was meant.

Text only: nothing here prints, loads a model or imports torch. How common words are comes from the package `wordfreq`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import log10
from typing import Any, Literal, TypeAlias

import regex

from antislop.lists.ban_list import BanList
from antislop.lists.lint_vocabulary import Speller, Surfaces
from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.bans import Ban
from antislop.matching.folding import BOUNDARY, find_words, fold_phrase
from antislop.matching.regexes import TIME_LIMIT, Allowance, Regex
from antislop.matching.word_sequences import split_words

Kind = Literal["duplicate", "contained", "short", "common", "joined", "untypable", "case", "slow"]

COMMON = 4.5
"""The Zipf frequency from which on a word is common: log10 of its occurrences in a billion words, 32 in a million."""
COMMONEST = 6.0
"""The same, for the words of a phrase: 1,000 in a million."""
KNOWN = 3.0
"""The same, for a word that one of two joined entries may end or begin with; short ones must be more common."""
LIGHT = 0.1
"""The weight from which on a ban makes rare and does not forbid, so that it may hit common words."""

_SHORT_KNOWN = 5.5
_LETTERS = 2  # up to which a phrase is short
_FILLER = "\ua66e"  # a letter that nobody writes: stands for any word or letters
_WORDS = regex.compile(r"(?<!\w)[^\W\d_]+(?:['’][^\W\d_]+)*(?!\w)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TWO_ENTRIES = re.compile(r"""["'“”]\s*,\s*["'“”]""")
_MARKS = {"-": "every dash, the hyphen of “well-known” too", "'": "every apostrophe", '"': "every double quote"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one entry.

    index: of the entry, from 0. fault: a clause that begins with the entry. fix: what to do, in the imperative.
    other: the index of the entry that it is about besides, if any.
    """

    ban: Ban
    index: int
    kind: Kind
    fault: str
    fix: str
    other: int | None = None


Findings: TypeAlias = Iterator[Finding]


def load_frequencies() -> Mapping[str, float]:
    """Load how often each English word is written, as a share of all words.

    Raises `ImportError` where the package `wordfreq` is not installed.
    """
    from wordfreq import get_frequency_dict

    return get_frequency_dict("en")


def lint(
    bans: Sequence[Ban], *, frequencies: Mapping[str, float] | None = None, vocabulary: Surfaces | None = None
) -> list[Finding]:
    """Return what is wrong with the entries of a list, in order.

    frequencies: of words in lower case, as `load_frequencies` loads them; without them common words and missing commas
        are not looked for. vocabulary: of the model that is to be kept from writing them.

    >>> [(finding.fault, finding.fix) for finding in lint([Ban("a testament to"), Ban("testament")])]
    [("'a testament to' contains 'testament', which forbids it already", 'leave it out')]
    """
    checks = [find_duplicates(bans), find_contained(bans), find_short(bans), find_marks(bans), find_slow(bans)]
    if frequencies is not None:
        checks += [find_common(bans, frequencies), find_joined(bans, frequencies)]
    if vocabulary is not None:
        checks.append(find_untypable(bans, vocabulary))
    found: dict[int, list[Finding]] = defaultdict(list)
    for check in checks:
        for finding in check:
            if not _says_all({each.kind for each in found[finding.index]}, finding.kind):
                found[finding.index].append(finding)
    return [finding for index in sorted(found) for finding in found[index]]


def _says_all(known: set[Kind], kind: Kind) -> bool:
    """Tell whether nothing more need be said of an entry: one to be left out has no other faults."""
    return bool(known & {"duplicate", "contained"}) or (kind == "common" and bool(known & {"short", "common"}))


def find_lines(text: str, bans: Iterable[Ban]) -> list[int | None]:
    r"""Return the line of a list's file on which each entry stands, from 1; None where that is not certain.

    >>> find_lines('["a cat", "a dog",\n "a cat"]', [Ban("a cat"), Ban("a dog"), Ban("a cat"), Ban("mice")])
    [1, 1, 2, None]
    """
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, line in enumerate(text.split("\n"), start=1):
        for column, written in _entries_in(line):
            places[written].append((number, column))
    lines: list[int | None] = []
    last = (0, 0)
    for ban in bans:
        known = places.get(ban.phrase, [])
        at = bisect_right(known, last)
        last = known[at] if at < len(known) else last
        lines.append(last[0] if at < len(known) else None)
    return lines


def _entries_in(line: str) -> Iterator[tuple[int, str]]:
    """Yield (column, text) of all that may be an entry on a line."""
    stripped = line.strip()
    if "\t" in line:  # antislop's own: what differs from a plain ban follows
        yield 0, line.split("\t")[0].strip()
    if not _QUOTED.search(line):
        yield 0, stripped.removeprefix("- ").strip()
        return
    quoted = [(match.start(), match[0]) for match in _QUOTED.finditer(line)]
    yield 0, stripped
    for column, literal in quoted:
        yield column + 1, literal[1:-1]
        if "\\" in literal:
            try:
                yield column + 1, str(json.loads(literal))
            except ValueError:
                continue
    if len(quoted) > 1:
        yield 1, " ".join(literal[1:-1] for _, literal in quoted)


# -- entries and entries ----------------------------------------------------------------------------------------------


def find_duplicates(bans: Sequence[Ban]) -> Findings:
    """Yield the entries that forbid what an earlier one forbids, once folded."""
    for index, other in _repeats(bans).items():
        ban, fault, fix = bans[index], f"{name(bans[index])} repeats {name(bans[other])}", "leave it out"
        if ban.weight != bans[other].weight:
            fault += " with another weight"
            fix = f"leave one of them out; the smaller weight, {min(ban.weight, bans[other].weight)}, counts"
        yield Finding(ban, index, "duplicate", fault, fix, other)


def _repeats(bans: Sequence[Ban]) -> dict[int, int]:
    """Return the first entry that forbids the same, for each entry that is not the first one."""
    first: dict[Any, int] = {}
    firsts = [first.setdefault(_compared(ban), index) for index, ban in enumerate(bans)]
    return {index: other for index, other in enumerate(firsts) if other != index}


def find_contained(bans: Sequence[Ban]) -> Findings:
    """Yield the entries in which another one always stands that is forbidden everywhere, so that they do nothing."""
    repeats = _repeats(bans)
    found: dict[int, tuple[int, str]] = {}
    phrases = sorted(_find_phrases_within(bans), key=lambda pair: len(bans[pair[1]].phrase))
    for pairs, fault in (
        (phrases, "contains"),
        (_find_sequences_within(bans), "is a case of"),
        (_find_regexes_within(bans), "is matched by the regex"),
    ):
        for index, other in pairs:
            if not {index, other} & repeats.keys() and index not in found and not _leads_to(index, other, found):
                found[index] = other, f"{name(bans[index])} {fault} {name(bans[other])}, which forbids it already"
    for index, (other, sentence) in sorted(found.items()):
        yield Finding(bans[index], index, "contained", sentence, "leave it out", other)


def _leads_to(index: int, other: int, found: Mapping[int, tuple[int, str]]) -> bool:
    """Tell whether an entry is left out on behalf of another, so that the other has to stay."""
    while other in found and other != index:
        other = found[other][0]
    return other == index


def _compared(ban: Ban) -> Any:
    """Return what two bans that forbid the same have in common."""
    rules = (ban.case_sensitive, ban.exempt, ban.scopes, ban.from_token, ban.at_most, ban.per_words)
    if ban.kind in ("words", "wildcard"):
        return "sequence", tuple(ban.items), ban.skip_stop_words, rules
    if ban.kind == "phrase":
        return ban.kind, fold_phrase(ban.phrase, case_sensitive=ban.case_sensitive, edges=ban.edges), rules
    return ban.kind, ban.phrase, ban.max_span, rules


def _always_forbids(ban: Ban) -> bool:
    return ban.weight == 0 and not (ban.exempt or ban.scopes or ban.from_token or ban.at_most)


def _find_phrases_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, phrase within it), by their folded symbols, of which the edges of words are some."""
    for case_sensitive in (False, True):
        within = [
            index
            for index, ban in enumerate(bans)
            if ban.kind == "phrase" and ban.case_sensitive is case_sensitive and _always_forbids(ban)
        ]
        symbols = [fold_phrase(bans[i].phrase, case_sensitive=case_sensitive, edges=bans[i].edges) for i in within]
        automaton = Automaton(symbols)
        for index, ban in enumerate(bans):
            if ban.kind in ("regex", "tokens") or (case_sensitive and not ban.case_sensitive):
                continue
            state = ROOT
            for symbol in _symbols(ban, case_sensitive=case_sensitive):
                state = automaton.step(state, symbol)
                yield from ((index, within[match]) for match in automaton.matches[state] if within[match] != index)


def _symbols(ban: Ban, *, case_sensitive: bool) -> str:
    """Return the symbols that stand wherever a ban does, what may stand between them as a letter of no use."""
    if ban.kind == "phrase":
        return fold_phrase(ban.phrase, case_sensitive=case_sensitive, edges=ban.edges)
    return _FILLER.join(
        f"{BOUNDARY}{word.replace('*', _FILLER)}{BOUNDARY}" for word in _words(ban, case_sensitive=case_sensitive)
    )


def _words(ban: Ban, *, case_sensitive: bool) -> list[str]:
    is_wildcard = ban.kind == "wildcard"
    items = split_words(ban.phrase, gap=ban.gap, is_wildcard=is_wildcard, case_sensitive=case_sensitive)
    return [item.word for item in items]


def _find_sequences_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (entry, sequence of words that it is a case of)."""
    for case_sensitive in (False, True):
        within = {
            ban: index
            for index, ban in reversed(list(enumerate(bans)))
            if ban.kind in ("words", "wildcard") and ban.case_sensitive is case_sensitive and _always_forbids(ban)
        }
        if not within:
            continue
        compiled, widest = BanList(within.keys()), max(item.most for ban in within for item in ban.items)
        for index, ban in enumerate(bans):
            if ban.kind in ("regex", "tokens") or (case_sensitive and not ban.case_sensitive):
                continue
            found = [{match.ban for match in compiled.find(text)} for text in _extremes(ban, widest=widest)]
            others = (within[other] for other in set.intersection(*found)) if found else ()
            yield from ((index, other) for other in sorted(others) if other != index)


def _extremes(ban: Ban, *, widest: int) -> list[str]:
    """Return the texts that a sequence of words must be found in if it is in every text that a ban forbids.

    widest: the widest gap of all sequences; stop words that don't count fill more than that.
    """
    if ban.kind == "phrase":
        return [ban.phrase] if ban.edges == "word" else []
    uncounted = ["the"] * (widest + 1) if ban.skip_stop_words else []
    shortest, longest = list[str](), list[str]()
    for item in ban.items:
        word = item.word.replace("*", _FILLER)
        shortest += [*[_FILLER] * item.least, word]
        longest += [*[_FILLER] * item.most, *uncounted, word]
    return [" ".join(shortest), " ".join(longest)]


def _find_regexes_within(bans: Sequence[Ban]) -> Iterator[tuple[int, int]]:
    """Yield (phrase, regex that matches it however it is written)."""
    phrases = [index for index, ban in enumerate(bans) if ban.kind == "phrase" and ban.edges == "word"]
    texts = [bans[index].phrase + ".\n" for index in phrases]
    starts = [0, *accumulate(map(len, texts))]
    joined = "".join(texts)
    for other, ban in enumerate(bans):
        if ban.kind != "regex" or not _always_forbids(ban):
            continue
        compiled, allowance = Regex(ban.phrase, max_span=ban.max_span), Allowance()
        at = {bisect_right(starts, start) - 1 for start in _search(ban.phrase, joined)}
        for index in (phrases[number] for number in sorted(at)):
            if all(_matches_within(compiled, text, allowance) for text in _ways_to_write(bans[index])):
                yield index, other


def _search(pattern: str, text: str) -> Iterator[int]:
    try:
        for match in regex.compile(pattern).finditer(text, timeout=8 * TIME_LIMIT):
            yield match.start()
    except TimeoutError:
        return


def _ways_to_write(ban: Ban) -> set[str]:
    """Return texts that compare as equal to a phrase, and that a regex tells apart."""
    curly = ban.phrase.replace("'", "’").replace('"', "”")
    ways = {ban.phrase, curly, ban.phrase.replace("’", "'"), ban.phrase.replace(" ", "\n")}
    if not ban.case_sensitive:
        ways |= {ban.phrase.lower(), ban.phrase.upper(), ban.phrase[:1].upper() + ban.phrase[1:]}
    return ways


def _matches_within(compiled: Regex, text: str, allowance: Allowance) -> bool:
    """Tell whether a regex matches within a text at the beginning of another, and in the middle of one."""
    try:
        for before, after in (("", " so"), ("so ", ", so")):
            matches = compiled.finish(before + text + after, 0, allowance)
            if not any(len(before) <= match.start and match.end <= len(before + text) for match in matches):
                return False
    except TimeoutError:
        return False
    return True


# -- entries and words ------------------------------------------------------------------------------------------------


def find_short(bans: Sequence[Ban]) -> Findings:
    """Yield the phrases of one or two letters."""
    for index, ban in enumerate(bans):
        symbols = fold_phrase(ban.phrase).replace(BOUNDARY, "").replace(" ", "")
        is_short = len(symbols) <= _LETTERS and symbols.isalnum() and find_words(symbols, is_in_word=False)[1]
        if ban.kind == "phrase" and is_short and ban.weight < LIGHT:
            count = "one letter" if len(symbols) == 1 else f"{len(symbols)} letters"
            where = "stands inside of many words" if ban.edges == "anywhere" else "means many things"
            yield Finding(
                ban, index, "short", f"{name(ban)} has only {count} and {where}", "write the longer phrase it is from"
            )


def find_marks(bans: Sequence[Ban]) -> Findings:
    """Yield the phrases that are a dash or a quote, which compare as equal to all others."""
    for index, ban in enumerate(bans):
        mark = fold_phrase(ban.phrase).strip(" ")
        if ban.kind == "phrase" and mark in _MARKS and ban.weight < LIGHT:
            fix = f"write it as a regex, {ban.phrase.strip()}, which compares characters as they are"
            yield Finding(ban, index, "common", f"{name(ban)} hits {_MARKS[mark]}", fix)


def find_common(bans: Sequence[Ban], frequencies: Mapping[str, float]) -> Findings:
    """Yield the entries that forbid common words, or stand inside of them."""
    ranked = sorted((word for word in frequencies if _zipf(word, frequencies) >= COMMON), key=lambda w: -frequencies[w])
    found: dict[int, list[str]] = defaultdict(list)
    heavy = [ban for ban in bans if ban.weight < LIGHT]
    first = {ban: index for index, ban in reversed(list(enumerate(bans)))}
    compiled = BanList(ban for ban in heavy if ban.kind not in ("regex", "tokens"))
    for word in ranked:
        for ban in dict.fromkeys(match.ban for match in compiled.find(word)):
            found[first[ban]].append(word)
    for ban in heavy:
        if ban.kind == "regex" and _always_forbids(ban):
            found[first[ban]] = _find_words(ban.phrase, ranked)
        elif ban.kind == "phrase" and ban.is_plain and _is_made_of_common_words(ban, frequencies):
            fault = f"{name(ban)} is made of the most common words alone"
            yield Finding(ban, first[ban], "common", fault, _LONGER)
    for index, words in found.items():
        if words:
            share = len(words) / len(ranked)
            yield Finding(bans[index], index, "common", *_describe(bans[index], words, frequencies, share=share))


_LONGER = "write a longer phrase, or give it a weight such as 0.3"


def _describe(ban: Ban, words: Sequence[str], frequencies: Mapping[str, float], *, share: float) -> tuple[str, str]:
    """Return the fault of a ban that hits common words, and what to do."""
    rate = f"{sum(frequencies[word] for word in words) * 1e6:,.0f} in a million words"
    shown = ", ".join(words[:3]) + (f" and {len(words) - 3:,} more" if len(words) > 3 else "")
    if ban.kind == "regex":
        what = f"matches {share:.0%} of the common words" if share > 0.2 else "matches common words"
        return f"{name(ban)} {what} ({shown}): {rate}", "make it match less, with \\b around words for instance"
    if ban.kind == "phrase" and ban.edges == "anywhere" and words != [ban.phrase.strip().lower()]:
        return f"{name(ban)} stands in common words ({shown}): {rate}", 'write whole words, with the edges "word"'
    if len(words) == 1:
        return f"{name(ban)} is a common word: {rate}", _LONGER
    return f"{name(ban)} hits common words ({shown}): {rate}", _LONGER


def _zipf(word: str, frequencies: Mapping[str, float]) -> float:
    return log10(frequencies.get(word, 1e-12)) + 9


def _find_words(pattern: str, words: Iterable[str]) -> list[str]:
    search = partial(Allowance().search, regex.compile(pattern), start=0, partial=False)
    try:
        return [word for word in words if search(word, end=len(word))]
    except TimeoutError:
        return []


def _is_made_of_common_words(ban: Ban, frequencies: Mapping[str, float]) -> bool:
    words = fold_phrase(ban.phrase).replace(BOUNDARY, "").split()
    return 2 <= len(words) <= 3 and all(_zipf(word, frequencies) >= COMMONEST for word in words)


def find_joined(bans: Sequence[Ban], frequencies: Mapping[str, float]) -> Findings:
    """Yield the entries that look like two between which a comma is missing, as in `"to" "tapestry"` in Python."""
    entries = {ban.phrase.casefold() for ban in bans if ban.kind == "phrase"}
    for index, ban in enumerate(bans):
        if ban.kind != "phrase":
            continue
        if _TWO_ENTRIES.search(ban.phrase):
            fault = f"{name(ban)} holds a comma between quotes and looks like two entries"
            yield Finding(ban, index, "joined", fault, "write one entry each")
        elif halves := _split(ban.phrase, entries, frequencies):
            fault = f"{name(ban)} looks like two entries without a comma between them"
            yield Finding(ban, index, "joined", fault, f"write {halves[0]!r} and {halves[1]!r}")


def _split(phrase: str, entries: set[str], frequencies: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the two entries that a phrase seems to be made of: one of its words is unknown, its halves are not.

    Names and compounds are like that, too: of a word that stands alone, both halves must be entries of the list.
    """
    found = []
    lower = phrase.casefold()
    for match in _WORDS.finditer(lower) if len(lower) == len(phrase) else ():
        word, start = match[0], match.start()
        if not word.isalpha() or word in frequencies:
            continue
        for at in range(start + 1, match.end()):
            listed = (lower[:at].strip() in entries) + (lower[at:].strip() in entries)
            rank = min(_rank(lower[start:at], frequencies), _rank(lower[at : match.end()], frequencies))
            if listed == 2 or (rank > 0 and word != lower.strip()):
                found.append((listed, rank, at))
    at = max(found)[2] if found else 0
    return (phrase[:at].strip(), phrase[at:].strip()) if found else None


def _rank(word: str, frequencies: Mapping[str, float]) -> float:
    """Return how common a word is, 0 if it is not known well enough to be one half of another."""
    zipf = _zipf(word, frequencies)
    return zipf if zipf >= (KNOWN if len(word) > 3 else _SHORT_KNOWN) else 0.0


# -- entries and models -----------------------------------------------------------------------------------------------


def find_untypable(bans: Sequence[Ban], vocabulary: Surfaces) -> Findings:
    """Yield the entries that no sequence of tokens of a vocabulary writes, because of their case or at all."""
    spellers = {case_sensitive: Speller(vocabulary, case_sensitive=case_sensitive) for case_sensitive in (False, True)}
    for index, ban in enumerate(bans):
        if ban.kind == "tokens" and (beyond := [i for i in ban.token_ids if i >= len(vocabulary.surfaces)]):
            fault = f"{name(ban)} holds {beyond[0]}, and the vocabulary ends at {len(vocabulary.surfaces) - 1}"
            yield Finding(ban, index, "untypable", fault, "leave it out, or write it as text")
        if ban.kind in ("tokens", "regex") or _is_written(ban, spellers[ban.case_sensitive]):
            continue
        if ban.case_sensitive and _is_written(ban, spellers[False], case_sensitive=False):
            fault = f"{name(ban)} compares letters as they are, and the model does not write them in this case"
            yield Finding(ban, index, "case", fault, "leave out case_sensitive")
            continue
        shown = ", ".join(_find_missing(ban, spellers[ban.case_sensitive]))
        why = f"no token of the model holds {shown}" if shown else "no sequence of the model's tokens makes it"
        yield Finding(ban, index, "untypable", f"{name(ban)} can't be written: {why}", "leave it out")


def _find_missing(ban: Ban, speller: Speller) -> Iterator[str]:
    """Yield the characters of a ban that no token holds."""
    for character in dict.fromkeys(ban.phrase):
        symbols = fold_phrase(character, case_sensitive=ban.case_sensitive)
        if speller.missing(symbols) and not (character == "*" and ban.kind == "wildcard"):
            yield character


def _is_written(ban: Ban, speller: Speller, *, case_sensitive: bool | None = None) -> bool:
    cased = ban.case_sensitive if case_sensitive is None else case_sensitive
    return all(speller.can_write(part) for part in _symbols(ban, case_sensitive=cased).split(_FILLER))


def find_slow(bans: Sequence[Ban]) -> Findings:
    """Yield the regexes that take longer than their time limit on texts made of what they look for."""
    for index, ban in enumerate(bans):
        if ban.kind == "regex" and (probe := _find_slow_text(ban)):
            fault = f"{name(ban)} takes longer than {TIME_LIMIT} seconds on a text like {probe[:12] + '…'!r}"
            yield Finding(ban, index, "slow", fault, "make it simpler: no repetition within a repetition, as in (a+)+")


def _find_slow_text(ban: Ban) -> str:
    """Return a text that takes too long, empty if none is found: shorter than a match may be, so searched once."""
    compiled, allowance = Regex(ban.phrase, max_span=ban.max_span), Allowance()
    parts: dict[str, None] = dict.fromkeys(regex.findall(r"\w", ban.phrase)[:12])
    phrases = (" ".join(regex.findall(r"[^\W_]+", ban.phrase)), "word ", " ", "a", "0", "a, ")
    for part in (*phrases, *parts):
        text: str = (part * ban.max_span)[: max(1, ban.max_span - 1)]
        try:
            compiled.finish(text, 0, allowance)
        except TimeoutError:
            return text
    return ""


def name(ban: Ban) -> str:
    """Return a ban as it is called in a sentence, cut where it is long."""
    if ban.kind == "tokens":
        return f"the tokens {ban.phrase}"
    return repr(ban.phrase if len(ban.phrase) <= 80 else ban.phrase[:79] + "…")
