"""Split texts into words, sentences and paragraphs.

Bans find each of these words as a whole word. But a contraction, or a run of characters in a script without spaces, is
one word here and several for bans, and a number is no word here. Sentences end as for bans, with the same marks and not
after the same abbreviations; but bans, which can't wait for the next character, also end a sentence within "3.5".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import regex

from antislop.core.bans import SENTENCE_END, compose

_REST = r"[\p{L}\p{N}\p{M}]*+"  # of a word
WORD = regex.compile(rf"(?:\p{{L}}|(?<!\p{{N}}\p{{M}}*)\p{{N}}[\p{{N}}\p{{M}}]*+\p{{L}}){_REST}(?:'\p{{L}}{_REST})?")
"""Matches a word in a text that is composed (see `compose`) and has straight apostrophes."""
BREAK = re.compile(r"\n\s*\n")  # between paragraphs
CLOSERS = dict(zip('"“„”«»「『—–―', ['"', "“”", "“”", "”", "«»", "«»", "」", "』", *"\n\n\n"], strict=True))
"""By each mark that may begin speech, those that end it."""
_OPENERS = dict.fromkeys("”»", r"(?<!\S)%s(?=\S)") | dict.fromkeys("—–―", r"(?<![^\n])[^\S\n]*%s")
_QUOTED = [f"{_OPENERS.get(mark, '%s') % mark}[^{ends}]*[{ends}]?" for mark, ends in CLOSERS.items()]
QUOTED = {"dashes": re.compile("|".join(_QUOTED)), "quotes": re.compile("|".join(_QUOTED[:-3]))}
"""Text between double quotes, the last of which may be missing, and lines after a dash, by `Language.dialogue`."""
_ENDED = rf"(?:{SENTENCE_END})*(?:\s?»)?[\"'”“’‘»«›‹)\]*_」』）]*"
# No white space follows the marks of Chinese and Japanese. In French, some is before a » that closes.
END = re.compile(rf"{SENTENCE_END}(?:(?<=[。！？｡]){_ENDED}|{_ENDED}(?=\s(?!»(?!\w))|$))")
"""The end of a sentence within a paragraph."""
_STOP = re.compile(rf"{END.pattern}|(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)")


def extract_words(text: str) -> list[str]:
    """Return the words of a text, composed and in lower case: letters, digits beside them, and at most one apostrophe.

    >>> extract_words("It’s the 2nd Café, No. 7—isn't it?")
    ["it's", 'the', '2nd', 'café', 'no', "isn't", 'it']
    """
    words: list[str] = WORD.findall(straighten(compose(text).lower()))
    return words


def straighten(text: str) -> str:
    """Return a text with straight apostrophes, of the same length."""
    for apostrophe in "\u2018\u2019\u201b\u02bc":
        text = text.replace(apostrophe, "'")
    return text


def find_sentence_end(text: str, start: int = 0, *, is_complete: bool = True) -> int | None:
    """Return the first end of a sentence or paragraph at `start` or later, or None.

    A word that is not in lower case must follow: in “Stop!” she said, the quote does not end the sentence.
    is_complete: whether the end of the text ends its last sentence, too.

    >>> find_sentence_end("“Stop!” she said. He did")
    17
    >>> find_sentence_end("“Stop!” she said.", is_complete=False) is None
    True
    """
    ends = (end for end in find_sentence_ends(text, is_complete=is_complete) if end >= start)
    return next(ends, len(text) if is_complete and len(text) >= start else None)


def find_sentence_ends(text: str, *, is_complete: bool = True) -> Iterator[int]:
    """Yield the ends that `find_sentence_end` finds."""
    for match in _STOP.finditer(text):
        following = text[match.end() :].lstrip()[:1]
        goes_on = following.islower() or following == "\ufffd"  # \ufffd is a character that is cut
        if not match[0] or (is_complete if not following else not goes_on):  # an empty match ends a paragraph
            yield match.end()
