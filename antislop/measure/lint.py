"""Search a list for entries that have no effect, that forbid too much, or that look like mistakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, Protocol, cast, get_args
from warnings import catch_warnings, simplefilter

import regex

from antislop.core.bans import KINDS, Automaton, Ban, BanList, Fault, Folding, TextSearch, fold_text
from antislop.lists import NAME_KIND, find_shared_sign, find_sign
from antislop.measure.languages import ENGLISH, Language, to_zipf

FindingKind = Literal[
    "duplicate", "contained", "overlapping", "short", "common", "joined", "kind", "untypable", "case", "slow", "loop"
]

COMMON_ZIPF = 4.5
"""Zipf frequency (log10 of occurrences in a billion words) from which a word is common: 32 in a million."""
COMMONEST_ZIPF = 6.0
"""Zipf frequency from which a phrase of such words alone is common: 1,000 in a million."""
KNOWN_ZIPF = 3.0
"""Zipf frequency from which half of an unknown word counts as a known word, as in "whispertapestry"."""
KNOWN_SHORT_ZIPF = 5.5
"""`KNOWN_ZIPF` for words of up to 3 letters."""
OVERLAP_WORDS = 4
"""Two phrases are pieces of one sentence if this many words, or more, end the first and begin the second."""
OVERLAP_SHARE = 0.95
"""If the counts of two pieces of one sentence are known, the smaller is at least this share of the larger."""
LIGHT_WEIGHT = 0.1
"""From this weight on, a ban makes its matches rarer instead of forbidding them, and may hit common words."""

_WORDS = regex.compile(r"(?<!\w)[^\W\d_]+(?:['’][^\W\d_]+)*(?!\w)")
_KIND = regex.compile(rf"(?i)(?:{'|'.join(KINDS)}|re|regexp?|pattern|glob|token)\s?:\s*\S")
_LONGER = "write a longer phrase, or give it a weight such as 0.3"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of one entry.

    fault: a clause that begins with the entry.
    fix: what to do, in the imperative.
    other: index of a second entry that the fault is about.
    """

    ban: Ban
    index: int
    kind: FindingKind
    fault: str
    fix: str
    other: int | None = None


def lint(
    bans: Sequence[Ban],
    *,
    frequencies: Mapping[str, float] | None = None,
    vocabulary: VocabularySurfaces | None = None,
    language: Language = ENGLISH,
) -> list[Finding]:
    """Return the faults of the entries of a list, in order.

    frequencies: as `Language.frequencies`; needed to find common words and, in English, missing commas.
    vocabulary: of a model; needed to find what this model can't write.

    >>> [(finding.fault, finding.fix) for finding in lint([Ban("a testament to"), Ban("testament")])]
    [("'a testament to' contains 'testament', which forbids it already", 'leave it out')]
    """
    checks = [find_useless(bans), find_overlapping(bans), find_mistakes(bans)]
    if frequencies is not None:
        checks.append(find_common(bans, frequencies))
        if language.is_english:  # elsewhere, rare compounds look like two words
            checks.append(find_joined(bans, frequencies))
    if vocabulary is not None:
        checks.append(find_untypable(bans, vocabulary))
    findings: dict[int, list[Finding]] = defaultdict(list)
    for check in checks:
        for finding in check:
            hiding = {"duplicate", "contained", *(("short", "common") if finding.kind == "common" else ())}
            if hiding.isdisjoint(other.kind for other in findings[finding.index]):
                findings[finding.index].append(finding)
    return [finding for index in sorted(findings) for finding in findings[index]]


# -- entries that another one makes superfluous ------------------------------------------------------------------------


def find_useless(bans: Sequence[Ban]) -> Iterator[Finding]:
    """Yield a finding for each entry that repeats another entry, or contains an entry that is forbidden everywhere."""
    for index, other, relation in find_superfluous(bans):
        ban, first = bans[index], bans[other]
        fault, fix = f"{ban.pattern.describe()} {relation} {first.pattern.describe()}", "leave it out"
        if relation != "repeats":
            yield Finding(ban, index, "contained", f"{fault}, which forbids it already", fix, other)
            continue
        if ban.weight != first.weight:
            fault += " with another weight"
            fix = f"leave one of them out; the smaller weight, {min(ban.weight, first.weight)}, counts"
        yield Finding(ban, index, "duplicate", fault, fix, other)


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


def find_overlapping(bans: Sequence[Ban]) -> Iterator[Finding]:
    """Yield a finding for each phrase that seems to continue another phrase, as a piece of the same sentence.

    >>> [finding.fault for finding in find_overlapping([Ban("thick with the scent of"), Ban("with the scent of rain")])]
    ["'with the scent of rain' goes on from 'thick with the scent of', as a piece of the same sentence"]
    """
    is_phrase = [ban.pattern.is_literal and ban.is_unconditional for ban in bans]
    phrases = {index: tuple(fold_text(ban.text).split()) for index, ban in enumerate(bans) if is_phrase[index]}
    begun: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, words in phrases.items():
        begun[words[:OVERLAP_WORDS]].append(index)
    for other, words in phrases.items():
        for end in (words[start:] for start in range(1, len(words) - OVERLAP_WORDS + 1)):
            for index in begun.get(end[:OVERLAP_WORDS], ()):
                goes_on = phrases[index][: len(end)] == end and len(phrases[index]) > len(end)
                counts = [count for ban in (bans[index], bans[other]) if (count := ban.count) is not None]
                are_as_frequent = len(counts) < 2 or min(counts) >= OVERLAP_SHARE * max(counts)
                if goes_on and index != other and are_as_frequent:
                    later, earlier = bans[index].pattern.describe(), bans[other].pattern.describe()
                    fault = f"{later} goes on from {earlier}, as a piece of the same sentence"
                    yield Finding(bans[index], index, "overlapping", fault, "keep one of them", other)


# -- common words and missing commas -----------------------------------------------------------------------------------


def find_mistakes(bans: Sequence[Ban]) -> Iterator[Finding]:
    """Yield a finding for each entry that looks like a mistake, such as a phrase that looks like a regex.

    A sign that stands before or behind most entries is a fault, too, as it is when a list is read from a file.
    """
    phrases = [ban.text for ban in bans if ban.pattern.kind in ("phrase", "wildcard")]
    shared, pattern = find_shared_sign(phrases) or (None, None)
    for index, ban in enumerate(bans):
        is_light = ban.weight >= LIGHT_WEIGHT or bool(ban.opening)
        faults = [fault for fault in ban.pattern.find_faults() if not (is_light and fault.kind in ("short", "common"))]
        if ban.pattern.is_literal and _KIND.match(ban.text):
            faults.append(Fault("kind", "looks like another kind of ban", NAME_KIND))
        elif ban.pattern.kind in ("phrase", "wildcard"):
            has_shared = pattern is not None and pattern.fullmatch(ban.text)
            if sign := find_sign(ban.text) or (shared if has_shared else None):
                faults.append(Fault("kind", *sign))
        for kind, clause, fix in faults:
            yield Finding(ban, index, kind, f"{ban.pattern.describe()} {clause}", fix)


def find_common(bans: Sequence[Ban], frequencies: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for each entry that forbids common words, or parts of them, not only in the opening of a text."""
    common = [word for word, share in frequencies.items() if share >= 10 ** (COMMON_ZIPF - 9)]
    ranked = sorted(common, key=lambda word: -frequencies[word])
    hit: dict[int, list[str]] = defaultdict(list)
    heavy = [ban for ban in bans if ban.weight < LIGHT_WEIGHT and not ban.opening]
    first = {ban: index for index, ban in reversed(list(enumerate(bans)))}
    compiled = BanList(ban for ban in heavy if not ban.pattern.is_opaque)
    for word in ranked:
        for ban in dict.fromkeys(match.ban for match in compiled.find(word)):
            hit[first[ban]].append(word)
    for ban in heavy:
        if ban.pattern.is_opaque and ban.weight == 0 and ban.is_unconditional:
            hit[first[ban]] = [ranked[number] for number in ban.pattern.find_in(ranked)]
        elif ban.pattern.is_literal and ban.is_unconditional:
            parts = fold_text(ban.text).split()
            if 2 <= len(parts) <= 3 and all(to_zipf(frequencies.get(part, 0.0)) >= COMMONEST_ZIPF for part in parts):
                fault = f"{ban.pattern.describe()} is made of the most common words alone"
                yield Finding(ban, first[ban], "common", fault, _LONGER)
    for index, words in hit.items():
        if words:
            share = len(words) / len(ranked)
            yield Finding(bans[index], index, "common", *_describe_hits(bans[index], words, frequencies, share=share))


def find_joined(bans: Sequence[Ban], frequencies: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for each entry that looks like two entries without a comma between them."""
    literals = [(index, ban) for index, ban in enumerate(bans) if ban.pattern.is_literal]
    entries = {ban.text.casefold() for _, ban in literals}
    for index, ban in literals:
        if halves := _split_joined(ban.text, entries, frequencies):
            fault = f"{ban.pattern.describe()} looks like two entries without a comma between them"
            yield Finding(ban, index, "joined", fault, f"write {halves[0]!r} and {halves[1]!r}")


def _describe_hits(
    ban: Ban, words: Sequence[str], frequencies: Mapping[str, float], *, share: float
) -> tuple[str, str]:
    """Return fault and fix of a ban that matches words. share: of these words among all common words."""
    rate = f"{sum(frequencies[word] for word in words) * 1e6:,.0f} in a million words"
    shown = ", ".join(words[:3]) + (f" and {len(words) - 3:,} more" if len(words) > 3 else "")
    name, pattern = ban.pattern.describe(), ban.pattern
    if pattern.is_opaque:
        what = f"matches {share:.0%} of the common words" if share > 0.2 else "matches common words"
        return f"{name} {what} ({shown}): {rate}", "make it match less, with \\b around words for instance"
    if getattr(pattern, "edges", "") == "anywhere" and words != [pattern.text.strip().lower()]:
        return f"{name} occurs in common words ({shown}): {rate}", 'write whole words, with the edges "word"'
    if len(words) == 1:
        return f"{name} is a common word: {rate}", _LONGER
    return f"{name} hits common words ({shown}): {rate}", _LONGER


def _split_joined(phrase: str, entries: set[str], frequencies: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the two entries that a phrase seems to join within a word that is unknown while both its halves are known.

    A name may look like two joined words, so both halves of a single word must be entries of the list.
    """
    candidates = []
    lower = phrase.casefold()
    for match in _WORDS.finditer(lower) if len(lower) == len(phrase) else ():
        word, start = match[0], match.start()
        if not word.isalpha() or word in frequencies:
            continue
        for cut in range(start + 1, match.end()):
            listed = (lower[:cut].strip() in entries) + (lower[cut:].strip() in entries)
            rank = min(_rank(lower[start:cut], frequencies), _rank(lower[cut : match.end()], frequencies))
            if listed == 2 or (rank > 0 and word != lower.strip()):
                candidates.append((listed, rank, cut))
    cut = max(candidates)[2] if candidates else 0
    return (phrase[:cut].strip(), phrase[cut:].strip()) if candidates else None


def _rank(word: str, frequencies: Mapping[str, float]) -> float:
    """Return the Zipf frequency of a word; 0 if the word is too rare to be half of a joined word."""
    zipf = to_zipf(frequencies.get(word, 0.0))
    return zipf if zipf >= (KNOWN_ZIPF if len(word) > 3 else KNOWN_SHORT_ZIPF) else 0.0


# -- what a model can't write ------------------------------------------------------------------------------------------


def find_untypable(bans: Sequence[Ban], vocabulary: VocabularySurfaces) -> Iterator[Finding]:
    """Yield a finding for each entry that the vocabulary can't spell, in the case of the entry or in any case."""
    make_speller, size = cache(partial(Speller, vocabulary)), len(vocabulary.surfaces)
    for index, ban in enumerate(bans):
        name, folding = ban.pattern.describe(), ban.pattern.folding
        if beyond := [i for i in ban.pattern.token_ids if i >= size]:
            fault = f"{name} contain {beyond[0]}, and the vocabulary ends at {size - 1}"
            yield Finding(ban, index, "untypable", fault, "leave it out, or write it as text")
        speller, parts = make_speller(folding), ban.pattern.find_parts(folding)
        if all(map(speller.can_write, parts)):  # as far as is known, each match contains them
            continue
        if folding == "cased" and all(map(make_speller("caseless").can_write, ban.pattern.find_parts("caseless"))):
            fault = f"{name} compares letters as they are, and the model does not write them in this case"
            yield Finding(ban, index, "case", fault, "leave out case_sensitive")
            continue
        needed = "\0".join(parts)
        letters = {letter: fold_text(letter, folding=folding) for letter in ban.text}
        missing = [letter for letter, folded in letters.items() if folded in needed and speller.find_missing(folded)]
        shown = ", ".join(missing)
        why = f"no token of the model contains {shown}" if shown else "no sequence of the model's tokens makes it"
        yield Finding(ban, index, "untypable", f"{name} can't be written: {why}", "leave it out")


_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))


class VocabularySurfaces(Protocol):
    """The bytes of each token, by id."""

    @property
    def surfaces(self) -> Sequence[bytes]: ...


class Speller:
    """Spell folded symbols with the surfaces (bytes) of tokens; the symbols may begin and end within a surface.

    A vocabulary with tokens for parts of characters is assumed to write anything.

    >>> class Two:
    ...     surfaces = (b" cat", b"s")
    >>> speller = Speller(Two(), "caseless")
    >>> speller.can_write("cats"), speller.can_write("scat"), speller.find_missing("scar")
    (True, False, ['r'])
    """

    def __init__(self, vocabulary: VocabularySurfaces, folding: Folding) -> None:
        surfaces = {surface for surface in vocabulary.surfaces if surface}
        spells_bytes = all(bytes([byte]) in surfaces for byte in _UTF8)
        self._writes_anything = spells_bytes or any("\ufffd" in each.decode(errors="replace") for each in surfaces)
        texts = [] if self._writes_anything else [surface.decode() for surface in surfaces]
        pieces = self._pieces = frozenset(fold_text(text, folding=folding) for text in texts)
        self._joined = "\0".join(pieces)  # \0 is in no piece
        self._longest = max(map(len, pieces), default=0)
        self._alphabet = frozenset(" ").union(*pieces)
        self._suffixes = frozenset(piece[start:] for piece in pieces for start in range(len(piece)))
        self._prefixes = frozenset(piece[:end] for piece in pieces for end in range(1, len(piece) + 1))

    def can_write(self, symbols: str) -> bool:
        """Return whether the symbols of a phrase occur in some sequence of surfaces."""
        if self._writes_anything:
            return True
        text = symbols.strip(" ")
        size = len(text)
        reached = {0, *(end for end in range(1, size + 1) if text[:end] in self._suffixes)}
        for start in range(size):
            if start in reached:
                again = " " if text[:start].endswith(" ") else ""  # one more space changes nothing
                if {text[start:], again + text[start:]} & self._prefixes:
                    return True
                ends = range(start + 1, min(size, start + self._longest) + 1)
                reached.update(end for end in ends if {text[start:end], again + text[start:end]} & self._pieces)
        return size in reached or text in self._joined

    def find_missing(self, symbols: str) -> list[str]:
        return [each for each in dict.fromkeys(symbols) if not (self._writes_anything or each in self._alphabet)]
