"""Split texts into words, content words, sentences and paragraphs.

Metrics and profiles count these parts. For languages with spaces between words; in other languages a run of letters is
one word. Bans are matched differently: `matching` reads a text while it is being generated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from antislop.matching.patterns.word_search import stop_words

_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\uff07", "'"))
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_BREAK = re.compile(r"\n\s*\n")
# A full stop after these, or after an initial such as "J.", does not end a sentence.
_ABBREVIATED = r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bvs)(?<!\bProf)(?<!\b[A-Z])"
_QUOTED = re.compile(r'"[^"]*"?|[“„][^“”]*[“”]?')
_CLOSERS = "[\"'”’»)\\]*_]*"
_END = re.compile(rf"(?:[!?…。！？]|{_ABBREVIATED}\.)+{_CLOSERS}(?=\s|$)")
_STOP = re.compile(rf"{_END.pattern}|[。！？｡]+[\"'”’»)\]*_」』）]*|(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)")


class Segments(NamedTuple):
    """A text and its parts.

    words, content_words: in lower case. sentences: number of words of each sentence.
    """

    text: str
    words: list[str]
    content_words: list[str]
    sentences: list[int]
    paragraphs: list[str]

    @classmethod
    def of(cls, text: str) -> Segments:
        """Split a text."""
        words = extract_words(text)
        sentences = [len(extract_words(sentence)) for sentence in extract_sentences(text)]
        return cls(text, words, drop_stop_words(words), sentences, extract_paragraphs(text))


def extract_words(text: str) -> list[str]:
    """Return the words of a text, in lower case: letters with at most one apostrophe within, made straight.

    Digits separate words.

    >>> extract_words("It’s the 2nd Café—isn't it?")
    ["it's", 'the', 'nd', 'café', "isn't", 'it']
    """
    return _WORD.findall(text.lower().translate(_APOSTROPHES))


def drop_stop_words(words: Iterable[str]) -> list[str]:
    """Return the words without English function words and their contractions, such as "didn't".

    >>> drop_stop_words(["her", "voice", "was", "barely", "a", "whisper", "wasn't"])
    ['voice', 'barely', 'whisper']
    """
    return [word for word in words if not _is_stop_word(word)]


def _is_stop_word(word: str) -> bool:
    stop = stop_words()
    return word in stop or ("'" in word and all(part in stop for part in word.split("'")))


def extract_sentences(text: str) -> list[str]:
    r"""Return the sentences of a text with their punctuation; the last of a paragraph may have none.

    A full stop ends a sentence before white space, but not after titles and initials. Parts without letters are left
    out.

    >>> extract_sentences("“Mr. Hyde!” she said. He left…\n\nThe end")
    ['“Mr. Hyde!”', 'she said.', 'He left…', 'The end']
    """
    sentences = []
    for paragraph in extract_paragraphs(text):
        start = 0
        for end in [*(match.end() for match in _END.finditer(paragraph)), len(paragraph)]:
            sentence = paragraph[start:end].strip()
            if _WORD.search(sentence):
                sentences.append(sentence)
            start = end
    return sentences


def find_sentence_end(text: str, start: int = 0, *, is_complete: bool = True) -> int | None:
    """Return the first end of a sentence or paragraph at `start` or later, or None.

    Within a paragraph, the next word must be present and not in lower case: in “Stop!” she said, the quote does not end
    the sentence. If `is_complete`, the end of the text ends its last sentence.

    >>> find_sentence_end("“Stop!” she said. He did")
    17
    >>> find_sentence_end("“Stop!” she said.", is_complete=False) is None
    True
    """
    ends = (end for end in find_sentence_ends(text, is_complete=is_complete) if end >= start)
    return next(ends, len(text) if is_complete and len(text) >= start else None)


def find_sentence_ends(text: str, *, is_complete: bool = True) -> Iterator[int]:
    """Yield the ends of the sentences and paragraphs of a text, as `find_sentence_end` defines them."""
    return (match.end() for match in _STOP.finditer(text) if _is_certain(match, is_complete=is_complete))


def _is_certain(match: re.Match[str], *, is_complete: bool) -> bool:
    if not match[0]:
        return True  # the end of a paragraph
    following = match.string[match.end() :].lstrip()[:1]
    return is_complete if not following else not (following.islower() or following == "\ufffd")


def extract_paragraphs(text: str) -> list[str]:
    r"""Return the paragraphs of a text, separated by empty lines, without those that have no letters.

    >>> extract_paragraphs("One\nof two lines.\n\n***\n\nTwo.")
    ['One\nof two lines.', 'Two.']
    """
    return [part.strip() for part in _BREAK.split(text) if _WORD.search(part)]


def count_dialogues(paragraphs: Iterable[str]) -> int:
    """Count the paragraphs with speech: words between double quotes, straight or curly.

    A quote that is not closed in its paragraph counts; single quotes don't.

    >>> count_dialogues(["“Yes,” she said.", 'He said "no" to it.', "It was late."])
    2
    """
    return sum(any(map(_WORD.search, _QUOTED.findall(paragraph))) for paragraph in paragraphs)
