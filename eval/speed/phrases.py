"""Make ban lists for the benchmarks: phrases that never occur in the timed texts, and phrases that often do."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from antislop import BanList

PUBLISHED = "lists/antislop_sampler_slop_phrase_prob_adjustments_full_list.json.gz"
WORD = re.compile(r"[A-Za-z'\u2019]+")
CLAUSE_END = re.compile(r'[.,;:!?"\n]+|<[^>]*>')  # or a special token


def collect_words(texts: Iterable[str], assets: Path) -> list[str]:
    """Return the words of the texts and, if the shared assets exist, of the largest published list.

    With the texts' own words nearly every word of the output begins some phrase, which is the hard case.
    """
    words = {word.lower() for text in texts for word in WORD.findall(text)}
    if (assets / PUBLISHED).exists():
        entries = json.loads(gzip.decompress((assets / PUBLISHED).read_bytes()))
        words.update(word.lower() for phrase, *_ in entries for word in WORD.findall(phrase))
    return sorted(word for word in words if word.strip("'"))


def invent(count: int, words: Sequence[str], *, absent_from: Sequence[str]) -> list[str]:
    """Return `count` different phrases of two to four words that occur in none of the texts."""
    rng = random.Random(count)
    phrases: dict[str, None] = {}
    while len(phrases) < count:
        phrases.setdefault(" ".join(rng.choices(words, k=rng.choice((2, 3, 3, 4)))))
        if len(phrases) == count:
            bans = BanList(list(phrases))
            for text in absent_from:
                for match in bans.find(text):
                    phrases.pop(match.ban.text, None)
    return list(phrases)


def rank_frequent(texts: Iterable[str], *, most: int) -> list[tuple[str, int]]:
    """Return phrases of one to four words with their counts: lengths in turn, the most frequent first.

    Phrases with more than `most` occurrences are left out, so that a rate can be approached in small steps; so are
    single letters, such as parts of markup, beside which a model may have nothing else to write.
    """
    counts: dict[int, Counter[str]] = {length: Counter() for length in (1, 2, 3, 4)}
    for text in texts:
        for clause in CLAUSE_END.split(text.lower()):
            words = WORD.findall(clause)
            for length, counter in counts.items():
                counter.update(" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
    ranked = [
        [pair for pair in counter.most_common() if 2 <= pair[1] <= most and len(pair[0]) > 1]
        for counter in counts.values()
    ]
    return [pair for group in zip_longest(*ranked) for pair in group if pair]


def choose_frequent(ranked: Iterable[tuple[str, int]], occurrences: float) -> list[str]:
    """Return the first phrases with about `occurrences` in total, none of which contains another."""
    chosen: list[str] = []
    for phrase, count in ranked:
        if occurrences <= 0:
            break
        if not any(f" {phrase} " in f" {other} " or f" {other} " in f" {phrase} " for other in chosen):
            chosen.append(phrase)
            occurrences -= count
    return chosen
