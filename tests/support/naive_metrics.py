"""What metrics count in a text, text by text and word by word: the twin of `TextCounts`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import regex

from antislop.core.bans import compose
from antislop.measure.slop import Scale
from antislop.measure.words import extract_words

_SHORT = r"(?<![^\W_])(?<![^\W_]['’])(?i:mrs?|ms|dr|st|vs|prof|[a-zà-я])"  # a word that may be abbreviated
_MARK = rf"(?:[!?…。！？｡؟۔।॥།။។።։]|(?<!{_SHORT})\.)"
_CLOSERS = r"(?:\s?»)?[\"'”“’‘»«›‹)\]*_」』）]*"
_END = regex.compile(rf"[。！？｡]{_MARK}*{_CLOSERS}|{_MARK}+{_CLOSERS}(?=\s(?!»(?!\w))|$)")
_QUOTED = re.compile(
    r'"[^"]*"?|[“„][^“”]*[“”]?|«[^«»]*[«»]?|「[^」]*」?|『[^』]*』?|(?<!\S)(?:”(?=\S)[^”]*”?|»(?=\S)[^«»]*[«»]?)'
)
_DASHED = re.compile(r"^[ \t]*[—–―].*", re.MULTILINE)


def extract_paragraphs(text: str) -> list[str]:
    """Return the parts of a text between empty lines, without those that have no letters."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if extract_words(part)]


def extract_sentences(text: str) -> list[str]:
    """Return the sentences of a text with their punctuation; parts without letters are left out."""
    sentences = []
    for paragraph in extract_paragraphs(text):
        ends = [0, *(match.end() for match in _END.finditer(paragraph)), len(paragraph)]
        sentences += [paragraph[start:end].strip() for start, end in pairwise(ends)]
    return [sentence for sentence in sentences if extract_words(sentence)]


def count_dialogues(paragraphs: Iterable[str], *, has_dashes: bool = False) -> int:
    """Count the paragraphs with words between double quotes, closed or not, or in a line that begins with a dash."""
    return sum(
        any(map(extract_words, _QUOTED.findall(paragraph) + _DASHED.findall(paragraph) * has_dashes))
        for paragraph in paragraphs
    )


def count_text(text: str, scale: Scale) -> dict[str, float]:
    """Return the sums of a text."""
    text = compose(text)  # é. abbreviates, and e with an accent of its own would not
    words, sentences = extract_words(text), [len(extract_words(sentence)) for sentence in extract_sentences(text)]
    content = scale.language.drop_stop_words(words)
    listed = content if scale.over == "content" else words
    pieces = [words[start : start + 100] for start in range(0, len(words) - 99, 100)]
    grams = {n: [list(zip(*(piece[i:] for i in range(n)), strict=False)) for piece in pieces] for n in (1, 2, 3)}
    return {
        "words": len(words),
        "content_words": len(content),
        "slop_words": sum(word in scale.words for word in words),
        "slop_trigrams": sum(gram in scale.trigrams for gram in zip(listed, listed[1:], listed[2:], strict=False)),
        "sentences": len(sentences),
        "sentence_words": sum(sentences),
        "sentence_squares": sum(length * length for length in sentences),
        "paragraphs": len(extract_paragraphs(text)),
        "dialogues": count_dialogues(extract_paragraphs(text), has_dashes=scale.language.dialogue == "dashes"),
        **{f"distinct_{n}": sum(len(set(piece)) for piece in grams[n]) for n in grams},
        **{f"ngrams_{n}": sum(map(len, grams[n])) for n in grams},
    }


def count_windows(texts: Sequence[str], *, window: int = 500) -> dict[str, list[float]]:
    """Return the windows that begin in each text, and the sum of the distinct words in them."""
    words = [extract_words(text) for text in texts]
    owners = [number for number, some in enumerate(words) for _ in some]
    row = list(chain.from_iterable(words))
    counts: dict[str, list[float]] = {name: [0.0] * len(texts) for name in ("windows", "distinct_in_windows")}
    for start in range(len(row) - window + 1):
        counts["windows"][owners[start]] += 1
        counts["distinct_in_windows"][owners[start]] += len(set(row[start : start + window]))
    return counts
