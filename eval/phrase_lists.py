"""Lists of n phrases for a model: twenty or more that it writes often, then any number that it seldom writes.

The frequent ones alone cause up to about 40 violations per 1,000 tokens; longer lists add few violations, so that the
effect of a list's length can be separated from the effect of violations.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from antislop.measure.languages import ENGLISH
from eval.speed import measuring, phrases

CORE = 20
RATE = 40  # occurrences of the core per 1,000 tokens of plain text, at most
STUDIED = 64  # texts
SAMPLES = "llm/model_samples/stories3M_T1.0.jsonl.gz"
SIMPLE = re.compile(r"[a-z]+(?:[' ][a-z]+)*")  # what any matcher, and any tokenizer, reads alike

Ranked = Sequence[tuple[str, int]]


def list_phrases(subject: measuring.Subject, plain: Sequence[str], count: int) -> list[str]:
    """Return `count` phrases; a shorter list is the beginning of a longer one.

    plain: texts of the model, by which the bundled model's published phrases are ranked; for stories3M, n-grams of its
    own samples are used instead. If there are too few phrases, phrases of random words are added.
    """
    samples = measuring.ASSETS / SAMPLES
    if subject.name == "stories3M" and samples.exists():
        with gzip.open(samples, "rt", encoding="utf-8") as lines:
            plain = [json.loads(line)["text"] for line in lines]
    ranked = count_ngrams(plain)
    tokens = sum(len(subject.tokenizer(text)["input_ids"]) for text in plain)
    core = choose_core(ranked, RATE * tokens / 1000)
    least = min(times for _, times in ranked)
    rare = [phrase for phrase, times in ranked if times == least and phrase not in core]
    found = (core + rare)[:count]
    if len(found) == count:
        return found
    made_up = phrases.invent(count, phrases.collect_words(plain, measuring.ASSETS), absent_from=plain)
    known = set(found)
    return (found + [phrase for phrase in made_up if phrase not in known])[:count]


def count_ngrams(texts: Iterable[str]) -> Ranked:
    """Count the texts' phrases of two to four words, except those of function words alone."""
    counts: Counter[str] = Counter()
    for text in texts:
        for clause in phrases.CLAUSE_END.split(text.lower()):
            words = phrases.WORD.findall(clause)
            for size in (2, 3, 4):
                counts.update(" ".join(words[i : i + size]) for i in range(len(words) - size + 1))
    return [
        pair for pair in counts.most_common() if SIMPLE.fullmatch(pair[0]) and ENGLISH.drop_stop_words(pair[0].split())
    ]


def choose_core(ranked: Ranked, occurrences: float) -> list[str]:
    """Return the most frequent phrases with at most `occurrences` in total, none of which contains another.

    They are twenty, or as many as it takes if the twenty most frequent occur less often.
    """
    for skipped in range(len(ranked)):
        chosen: dict[str, int] = {}
        for phrase, count in ranked[skipped:]:
            if any(f" {phrase} " in f" {other} " or f" {other} " in f" {phrase} " for other in chosen):
                continue
            if len(chosen) >= CORE and (skipped or sum(chosen.values()) + count > occurrences):
                break
            chosen[phrase] = count
        if sum(chosen.values()) <= occurrences:
            return list(chosen)
    return []
