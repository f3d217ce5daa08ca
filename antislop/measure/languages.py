"""What measuring knows of a language: where its words end, which are function words, how often people write them.

Bans match in every script. Only the bans of dashes need to know of a language: whether dashes begin its dialogue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from heapq import nsmallest
from math import log10

import regex

from antislop.core.bans import stop_words
from antislop.data import FOLDER
from antislop.errors import DISTRIBUTION, InputError
from antislop.files.disk import read_json
from antislop.measure.words import WORD, extract_words

STOP_WORDS = 150
"""How many of a language's most frequent words count as its function words. English has a list of its own."""
RAREST_RATE = 1e-8
"""The smallest rate in wordfreq's large lists: one in 100 million words (https://pypi.org/project/wordfreq)."""
SAMPLE = 100_000
"""How many characters of texts are read to find their language."""
_EVIDENCE = 0.08  # least share of a text's words that are function words of its language; a list of names has none


@dataclass(frozen=True)
class Language:
    """A language, by its code of ISO 639-1.

    script: in the words of Unicode's property Script; a text is in one of the languages of its most frequent script.
    words: some function words.
    unspaced: whether no space stands between words.
    elides: whether an article or pronoun may lose its vowel and be written with the next word: l'eau.
    capitals: "names" if a capital within a sentence is a sign of a name, "nouns" if it is not.
    dialogue: "dashes" if a dash may begin a line of dialogue, "quotes" if none does.
    """

    code: str
    name: str
    script: str
    words: str = field(repr=False)
    unspaced: bool = False
    elides: bool = False
    capitals: str = "names"
    dialogue: str = "quotes"

    @property
    def is_english(self) -> bool:
        """Whether what measures English alone applies: constructions, the slop score, the distance to novels."""
        return self.code == "en"

    def segment(self, text: str) -> str:
        r"""Return a composed text with a \v between words that no space parts; no \v is added elsewhere.

        Raises `InputError` for a language without spaces if the package icu4py is not installed.
        """
        if not self.unspaced:
            return text
        try:
            from icu4py.breakers import WordBreaker
        except ImportError as error:
            advice = f"pip install '{DISTRIBUTION}[languages]'"
            raise InputError(f"words of {self.name} are found by the package icu4py: {advice}") from error
        return "\v".join(WordBreaker(text.replace("\v", " "), self.code))

    def join(self, phrase: str) -> str:
        """Return a phrase of words with spaces between them as the language writes it."""
        return phrase if not self.unspaced else regex.sub(r"(?<=\p{Lo}\p{M}*) (?=\p{Lo})", "", phrase)

    def drop_stop_words(self, words: Iterable[str]) -> list[str]:
        """Return the words without function words and, in English, their contractions.

        >>> find_language("en").drop_stop_words(["her", "voice", "was", "barely", "a", "whisper", "wasn't"])
        ['voice', 'barely', 'whisper']
        """
        stop = self._stop_words
        # A contraction that is not in the list counts as one if its parts are: it's, you're.
        return [word for word in words if not (word in stop or stop.issuperset(word.split("'")))]

    @cached_property
    def _stop_words(self) -> frozenset[str]:
        if self.is_english:
            return stop_words()
        shares = {word: share for word, share in self.frequencies.items() if WORD.fullmatch(word)}
        frequent = nsmallest(STOP_WORDS, shares, key=lambda word: (-shares[word], word))
        return frozenset([*self.words.split(), *frequent])

    @cached_property
    def frequencies(self) -> Mapping[str, float]:
        """The share of each word in all words today; none if wordfreq has no large list of the language.

        For other languages wordfreq may answer with a small list, with English, or by parts of words. Raises
        `InputError` for English if the package is not installed.
        """
        try:
            from wordfreq import available_languages, get_frequency_dict
        except ImportError as error:
            if not self.is_english:
                return {}
            advice = f"pip install '{DISTRIBUTION}[lint]'"
            raise InputError(f"rates of words today need the package wordfreq: {advice}") from error
        return get_frequency_dict(self.code) if self.code in available_languages("large") else {}

    def find_share(self, word: str) -> float:
        """Return the share of a lower-case word in all words today, 0 if it is unknown."""
        share = self.frequencies.get(word) or self.frequencies.get(word.casefold(), 0.0)  # in wordfreq, ß is ss
        return self.frequencies.get(word.split("'")[-1], 0.0) if self.elides and not share else share

    def find_zipf(self, word: str) -> float:
        """Return the Zipf frequency of a word: log10 of its occurrences in a billion words, 0 if it is unknown."""
        return to_zipf(self.find_share(word))


def to_zipf(share: float) -> float:
    return 9 + log10(share) if share else 0.0


@cache
def read_languages() -> Mapping[str, Language]:
    """Return the known languages by code."""
    return {code: Language(code, **fields) for code, fields in read_json(FOLDER / "languages.json").items()}


def find_language(code: str) -> Language:
    """Return the language of a code. Raises `InputError` for an unknown one."""
    languages = read_languages()
    if code not in languages:
        raise InputError(f"the language {code!r} is not known: pass one of {', '.join(languages)}")
    return languages[code]


def recognize(texts: Iterable[str]) -> Language | None:
    """Return the language of texts, by their script and function words; None if none is found.

    >>> recognize(["Das Haus ist alt, und der Garten auch."]).code
    'de'
    """
    sample = ""
    for text in texts:
        sample += text[: SAMPLE - len(sample)] + "\n"
        if len(sample) >= SAMPLE:
            break
    languages = read_languages()
    scripts = {one.script for one in languages.values()}
    letters = {script: len(regex.findall(rf"\p{{Script={script}}}", sample)) for script in scripts}
    letters["Hiragana"] *= 5  # Japanese has more kanji than kana, and Chinese no kana
    script = max(letters, key=lambda script: letters[script])
    among = [one for one in languages.values() if one.script == script]
    words = Counter(extract_words(sample))
    found = {one.code: sum(words[word] for word in one.words.split()) for one in among}
    code = max(found, key=lambda code: found[code])
    is_certain = len(among) == 1 or found[code] >= _EVIDENCE * words.total() > 0
    return languages[code] if letters[script] and is_certain else None


ENGLISH = find_language("en")
