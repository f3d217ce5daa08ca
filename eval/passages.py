"""Novels of the shared assets, and passages, over which human values of the metrics spread."""

from __future__ import annotations

from collections.abc import Iterator

from antislop.files.disk import read_text
from antislop.measure.words import BREAK, extract_words
from eval.speed.measuring import ASSETS

PASSAGE = 500
"""Minimum number of words of a passage, which ends with a paragraph."""


def cut_passages(text: str, *, words: int = PASSAGE) -> Iterator[str]:
    r"""Cut a text at ends of paragraphs into passages of at least `words` words; a shorter remainder is left out.

    >>> list(cut_passages("One two.\n\nThree.\n\nFour five.\n\nSix.", words=3))
    ['One two.\n\nThree.', 'Four five.\n\nSix.']
    """
    passage: list[str] = []
    length = 0
    for paragraph in filter(extract_words, map(str.strip, BREAK.split(text))):
        passage.append(paragraph)
        length += len(extract_words(paragraph))
        if length >= words:
            yield "\n\n".join(passage)
            passage, length = [], 0


def read_novels() -> list[str]:
    """Return whole novels, a text each; none if the shared assets are not beside this repository."""
    return [read_text(file) for file in sorted((ASSETS / "human").rglob("*.txt.gz"))]
