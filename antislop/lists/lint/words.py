"""Find entries of a list that hit common words, or that look like two entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import regex

from antislop.frequencies import find_zipf
from antislop.lists.ban_list import BanList
from antislop.lists.lint.entries import Finding, Findings, always_forbids, describe, is_tried
from antislop.matching.bans import Ban
from antislop.matching.folding import BOUNDARY, fold_phrase

COMMON_ZIPF = 4.5
"""Zipf frequency from which a word is common: log10 of its occurrences in a billion words, 32 in a million."""
COMMONEST_ZIPF = 6.0
"""The same for the words of a phrase: 1,000 in a million."""
KNOWN_ZIPF = 3.0
"""The same for a word that one of two joined entries may end or begin with."""
KNOWN_SHORT_ZIPF = 5.5
"""`KNOWN_ZIPF` for words of up to 3 letters."""
LIGHT_WEIGHT = 0.1
"""Weight from which a ban makes rarer instead of forbidding, so that it may hit common words."""

_WORDS = regex.compile(r"(?<!\w)[^\W\d_]+(?:['’][^\W\d_]+)*(?!\w)")
_TWO_ENTRIES = regex.compile(r"""["'“”]\s*,\s*["'“”]""")
_LONGER = "write a longer phrase, or give it a weight such as 0.3"


def find_faults(bans: Sequence[Ban]) -> Findings:
    for index, ban in enumerate(bans):
        for kind, clause, fix in ban.pattern.find_faults():
            if ban.weight < LIGHT_WEIGHT or kind not in ("short", "common"):
                yield Finding(ban, index, kind, f"{describe(ban)} {clause}", fix)


def find_common(bans: Sequence[Ban], frequencies: Mapping[str, float]) -> Findings:
    """Yield the entries that forbid common words, or occur inside them."""
    common = [word for word in frequencies if find_zipf(word, frequencies) >= COMMON_ZIPF]
    ranked = sorted(common, key=lambda word: -frequencies[word])
    hit: dict[int, list[str]] = defaultdict(list)
    heavy = [ban for ban in bans if ban.weight < LIGHT_WEIGHT]
    first = {ban: index for index, ban in reversed(list(enumerate(bans)))}
    compiled = BanList(ban for ban in heavy if not is_tried(ban.pattern))
    for word in ranked:
        for ban in dict.fromkeys(match.ban for match in compiled.find(word)):
            hit[first[ban]].append(word)
    for ban in heavy:
        if is_tried(ban.pattern) and always_forbids(ban):
            hit[first[ban]] = [ranked[number] for number in ban.pattern.find_in(ranked)]
        elif ban.pattern.is_literal and ban.is_unconditional and _is_made_of_common_words(ban, frequencies):
            fault = f"{describe(ban)} is made of the most common words alone"
            yield Finding(ban, first[ban], "common", fault, _LONGER)
    for index, words in hit.items():
        if words:
            share = len(words) / len(ranked)
            fault, fix = _describe_hits(bans[index], words, frequencies, share=share)
            yield Finding(bans[index], index, "common", fault, fix)


def find_joined(bans: Sequence[Ban], frequencies: Mapping[str, float]) -> Findings:
    """Yield the entries that look like two between which a comma is missing, as in `"to" "tapestry"` in Python."""
    literals = [(index, ban) for index, ban in enumerate(bans) if ban.pattern.is_literal]
    entries = {ban.phrase.casefold() for _, ban in literals}
    for index, ban in literals:
        if _TWO_ENTRIES.search(ban.phrase):
            fault = f"{describe(ban)} contains a comma between quotes and looks like two entries"
            yield Finding(ban, index, "joined", fault, "write one entry each")
        elif halves := _split_joined(ban.phrase, entries, frequencies):
            fault = f"{describe(ban)} looks like two entries without a comma between them"
            yield Finding(ban, index, "joined", fault, f"write {halves[0]!r} and {halves[1]!r}")


def _describe_hits(
    ban: Ban, words: Sequence[str], frequencies: Mapping[str, float], *, share: float
) -> tuple[str, str]:
    """Return the fault of a ban that hits common words, and the fix. share: of all common words."""
    rate = f"{sum(frequencies[word] for word in words) * 1e6:,.0f} in a million words"
    shown = ", ".join(words[:3]) + (f" and {len(words) - 3:,} more" if len(words) > 3 else "")
    name, pattern = describe(ban), ban.pattern
    if is_tried(pattern):
        what = f"matches {share:.0%} of the common words" if share > 0.2 else "matches common words"
        return f"{name} {what} ({shown}): {rate}", "make it match less, with \\b around words for instance"
    if getattr(pattern, "edges", "") == "anywhere" and words != [pattern.text.strip().lower()]:
        return f"{name} occurs in common words ({shown}): {rate}", 'write whole words, with the edges "word"'
    if len(words) == 1:
        return f"{name} is a common word: {rate}", _LONGER
    return f"{name} hits common words ({shown}): {rate}", _LONGER


def _is_made_of_common_words(ban: Ban, frequencies: Mapping[str, float]) -> bool:
    words = fold_phrase(ban.phrase).replace(BOUNDARY, "").split()
    return 2 <= len(words) <= 3 and all(find_zipf(word, frequencies) >= COMMONEST_ZIPF for word in words)


def _split_joined(phrase: str, entries: set[str], frequencies: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the two entries that a phrase seems to be made of: one of its words is unknown, its halves are not.

    Names and compounds look the same: both halves of a phrase of one word must be entries of the list.
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
    """Return how common a word is, 0 if it is too rare to be one half of another."""
    zipf = find_zipf(word, frequencies)
    return zipf if zipf >= (KNOWN_ZIPF if len(word) > 3 else KNOWN_SHORT_ZIPF) else 0.0
