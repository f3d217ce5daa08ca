"""Turn model-written fiction into training documents for the tiny model.

Reads folders of gzipped JSON Lines with an ``output`` field, keeps narrative prose that is
rich in slop, and yields plain text. It knows nothing of tokens or of training.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCES = ("eqbench_creative_v3", "eqbench_longform", "slop_score")
# Trained not to write slop, so they would teach the opposite of what the tiny model is for.
LEFT_OUT = re.compile(r"antislop|dpo", re.IGNORECASE)
STRAIGHT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2026": "...", "\u00a0": " "})
THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>|<\|[^|]*\|>", re.DOTALL)
# Headings, bold titles, rules, list items, notes to the reader.
NOT_PROSE = re.compile(
    r"^\s*(?:#|\*\*[^*]*\*\*:?\s*$|[-*_=~\s]{3,}$|[-*+•]\s|\d+[.)]\s|>|\||`|\[[^\]]*\]\s*$|"
    r"(?:here is|here's|sure|certainly|okay|title|chapter|part|word count|note|author'?s note|"
    r"total words|end of|the end|to be continued|would you like|let me know|i hope)\b.{0,100}$|"
    r"\(?\s*(?:approx\S*|about)?\s*[\d,]+\s+words?\)?\.?\s*$)",
    re.IGNORECASE,
)
PRONOUN = re.compile(r"\b(?:i|he|she|him|her|his|my|me|they|them)\b", re.IGNORECASE)
WORD = re.compile(r"[a-z']+")


def clean(text: str) -> str:
    """Return the prose of one output: no markup, no talk to the reader, straight quotes."""
    text = THINKING.sub("", text).translate(STRAIGHT)
    lines = (line.strip() for line in text.splitlines())
    prose = "\n\n".join(line for line in lines if line and not NOT_PROSE.match(line))
    prose = re.sub(r"\*+|(?<!\w)_+|_+(?!\w)", "", prose)
    return re.sub(r"[ \t]+", " ", prose).strip()


def is_narrative(text: str) -> bool:
    """Return whether a text reads as a story: long enough, in English, with people and speech."""
    words = text.split()
    if len(words) < 150 or sum(ord(c) > 127 for c in text) > 0.02 * len(text):
        return False
    letters = sum(c.isalpha() for c in text)
    pronouns = len(PRONOUN.findall(text))
    return letters > 0.7 * len(text) and pronouns > 0.035 * len(words) and text.count('"') >= 4


def slop_rate(text: str, *, phrases: frozenset[tuple[str, ...]]) -> float:
    """Return listed phrases of two to five words per word of the text."""
    words = WORD.findall(text.lower())
    grams = (tuple(words[i : i + n]) for n in range(2, 6) for i in range(len(words) - n + 1))
    return sum(gram in phrases for gram in grams) / len(words)


def read_outputs(folder: Path) -> Iterator[str]:
    """Yield the raw outputs below ``folder``, file by file in the order of their names."""
    for source in SOURCES:
        for path in sorted((folder / source).glob("*.jsonl.gz")):
            if LEFT_OUT.search(path.name):
                continue
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                yield from (json.loads(line)["output"] or "" for line in lines)


def load_phrases(path: Path) -> frozenset[tuple[str, ...]]:
    """Read a JSON list of ``[phrase, count]`` as tuples of lower-case words."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return frozenset(tuple(WORD.findall(phrase.lower())) for phrase, _ in entries)


def select(outputs: Iterable[str], *, phrases: frozenset[tuple[str, ...]], keep: float) -> list[str]:
    """Return the distinct stories, except the share ``1 - keep`` with the least slop."""
    seen: dict[str, str] = {}
    for output in outputs:
        text = clean(output)
        if is_narrative(text):
            seen.setdefault(text[:300], text)
    texts = list(seen.values())
    rates = {text: slop_rate(text, phrases=phrases) for text in texts}
    floor = sorted(rates.values())[int((1 - keep) * len(texts))]
    return [text for text in texts if rates[text] >= floor]
