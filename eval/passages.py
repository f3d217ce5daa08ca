"""Cut books into passages, over which human values of the metrics spread."""

from __future__ import annotations

from collections.abc import Iterator

from antislop.metrics.segmentation import extract_paragraphs, extract_words

PASSAGE = 500
"""Minimum number of words of a passage, which ends with a paragraph."""


def cut_passages(text: str, *, words: int = PASSAGE) -> Iterator[str]:
    r"""Cut a text at ends of paragraphs into passages of at least `words` words; a shorter remainder is left out.

    >>> list(cut_passages("One two.\n\nThree.\n\nFour five.\n\nSix.", words=3))
    ['One two.\n\nThree.', 'Four five.\n\nSix.']
    """
    passage: list[str] = []
    length = 0
    for paragraph in extract_paragraphs(text):
        passage.append(paragraph)
        length += len(extract_words(paragraph))
        if length >= words:
            yield "\n\n".join(passage)
            passage, length = [], 0
