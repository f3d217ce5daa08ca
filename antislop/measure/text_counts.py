"""Count the words, sentences and paragraphs of many texts at once, as arrays, in bounded memory.

Of a sentence, paragraph or text that goes on in the next block, only numbers are kept.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import regex

from antislop.core.bans import compose
from antislop.measure import blocks
from antislop.measure.blocks import Flags, Longs
from antislop.measure.diversity import count_distinct, count_distinct_ngrams
from antislop.measure.slop import Scale
from antislop.measure.words import BREAK, CLOSERS, END, QUOTED, WORD, straighten

WINDOW_WORDS = 500  # words of a window of MATTR
PIECE_WORDS = 100  # words of a piece of distinct-n
BEGINNING_WORDS = 200  # words of a text that self-BLEU reads

_SENTENCE, _PARAGRAPH, _TEXT = "\0", "\1", "\2"  # marks at the end of each
_MARKS = {_SENTENCE: 0, _PARAGRAPH: 1, _TEXT: 2}
_OTHER = "\3"  # replaces marks that a text contains; like them, not white space and in no word
_TOKEN = regex.compile(rf"{WORD.pattern}|[{_SENTENCE}{_PARAGRAPH}{_TEXT}]")
_CONTENT, _SLOP, _THIRD = 1, 2, 4  # content words, slop words, and third words of trigrams of the scale
_HASHED = blocks.BASE // 2  # numbers from here on are hashes of words


class WordNumbers(dict[str, int]):
    """Maps each word to a number, in the order of first occurrence."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(_MARKS)
        self.kinds = np.full(blocks.BASE, _CONTENT, np.uint8)  # by number, the sum of the kinds of the word
        self._slop, self._trigrams, self._language = scale.words, scale.trigrams, scale.language
        self._thirds = {third for _, _, third in scale.trigrams}
        self._listed = {*scale.words, *chain.from_iterable(chain(scale.trigrams, *scale.human.values()))}

    def __missing__(self, word: str) -> int:
        is_content = bool(self._language.drop_stop_words([word]))
        if len(self) >= blocks.VOCABULARY and is_content and word not in self._listed:
            return _HASHED + blocks.hash_word(word) % _HASHED
        number = self[word] = len(self)
        self.kinds[number] = _CONTENT * is_content + _SLOP * (word in self._slop) + _THIRD * (word in self._thirds)
        return number

    def find_trigrams(self, words: Longs) -> Flags:
        """Return whether each word is the third of a trigram of the scale."""
        _, listed = blocks.encode_known(self._trigrams, self, 3)
        candidates = np.flatnonzero(self.kinds[words[2:]] & _THIRD)
        is_third = np.zeros(len(words), bool)
        is_third[2 + candidates[np.isin(blocks.encode_ngrams(words, 3)[candidates], listed)]] = True
        return is_third


class TextCounts:
    """The sums of texts over their words, sentences and paragraphs."""

    def __init__(self, scale: Scale) -> None:
        self.numbers = WordNumbers(scale)
        self.sums = {name: array("d") for name in SUMS}  # a number for each text
        self.beginnings = array("i")  # numbers of the first words of each text, up to `BEGINNING_WORDS`
        self.content = array("i")  # numbers of all content words
        self._skips_stop_words, self._language = scale.over == "content", scale.language
        self._parts: list[str] = []
        self._size = 0
        self._text = 0  # the number of the text that is open where the next block begins
        self._sentence = self._paragraph = 0  # words of the open sentence and paragraph there
        self._speech = _Speech(QUOTED[scale.language.dialogue])
        self._latest, self._latest_listed = _Latest(WINDOW_WORDS - 1), _Latest(2)

    def add(self, pieces: Iterable[str]) -> None:
        """Count a text, which comes in pieces."""
        for column in self.sums.values():
            column.append(0.0)
        for block in map(compose, blocks.cut_blocks(pieces)):
            for mark in _MARKS:  # which a text may contain itself
                block = block.replace(mark, _OTHER)
            self._gather(self._language.segment(block))
        self._gather(f" {_TEXT}")

    def flush(self) -> None:
        """Count the text that was added since the last call."""
        block, self._parts, self._size = "".join(self._parts), [], 0
        if not block:
            return
        self._add("dialogues", np.array(list(self._speech.find(block, text=self._text)), np.int64))
        tokens = _TOKEN.findall(straighten(BREAK.sub(_PARAGRAPH, END.sub(rf"\g<0>{_SENTENCE}", block)).lower()))
        numbers = np.fromiter(map(self.numbers.__getitem__, tokens), np.int64, len(tokens))
        is_text_end, is_word = numbers == _MARKS[_TEXT], numbers >= len(_MARKS)
        texts = self._text + np.cumsum(is_text_end) - is_text_end
        self._count_runs(numbers, is_word, texts)
        if is_word.any():
            self._count_words(numbers[is_word], texts[is_word])
        self._text += int(is_text_end.sum())

    def _gather(self, part: str) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size >= blocks.BLOCK_CHARACTERS:
            self.flush()

    def _count_runs(self, numbers: Longs, is_word: Flags, texts: Longs) -> None:
        words = np.cumsum(is_word, dtype=np.int64)
        ends = np.flatnonzero(~is_word)
        lengths, self._sentence = _measure_runs(words, ends, self._sentence)
        texts_of_sentences, lengths = texts[ends][lengths > 0], lengths[lengths > 0]
        self._add("sentences", texts_of_sentences)
        self._add("sentence_words", texts_of_sentences, lengths)
        self._add("sentence_squares", texts_of_sentences, lengths * lengths)
        ends = ends[numbers[ends] != _MARKS[_SENTENCE]]
        lengths, self._paragraph = _measure_runs(words, ends, self._paragraph)
        self._add("paragraphs", texts[ends][lengths > 0])

    def _count_words(self, words: Longs, texts: Longs) -> None:
        places = blocks.count_up(texts) + np.frombuffer(self.sums["words"])[texts].astype(np.int64)
        self._add("words", texts)
        self.beginnings.frombytes(words[places < BEGINNING_WORDS].astype(np.int32).tobytes())
        kinds = self.numbers.kinds[words]
        is_content = (kinds & _CONTENT).astype(bool)
        self._add("slop_words", texts[kinds & _SLOP > 0])
        self._add("content_words", texts[is_content])
        self.content.frombytes(words[is_content].astype(np.int32).tobytes())
        is_listed = is_content if self._skips_stop_words else np.ones(len(words), bool)
        _, (listed, owners) = self._latest_listed.extend(words[is_listed], texts[is_listed])
        is_found = self.numbers.find_trigrams(listed)
        is_found[2:] &= owners[2:] == owners[:-2]  # a trigram lies in one text
        self._add("slop_trigrams", owners[is_found])
        self._count_distinct(words, texts, places)

    def _count_distinct(self, words: Longs, texts: Longs, places: Longs) -> None:
        latest, (words, texts, places) = self._latest.extend(words, texts, places)
        distinct = count_distinct(words, window=WINDOW_WORDS)
        self._add("windows", texts[: len(distinct)])
        self._add("distinct_in_windows", texts[: len(distinct)], distinct)
        begins = np.flatnonzero(places % PIECE_WORDS == 0)
        begins = begins[(begins + PIECE_WORDS > latest) & (begins + PIECE_WORDS <= len(words))]
        begins = begins[texts[begins] == texts[begins + PIECE_WORDS - 1]]
        pieces = words[begins[:, None] + np.arange(PIECE_WORDS)]
        for n in (1, 2, 3):
            self._add(f"distinct_{n}", texts[begins], count_distinct_ngrams(pieces, n))
            self._add(f"ngrams_{n}", texts[begins], np.full(len(begins), PIECE_WORDS + 1 - n))

    def _add(self, name: str, texts: Longs, amounts: Longs | None = None) -> None:
        if len(texts):
            added = np.bincount(texts - texts[0], amounts)
            np.frombuffer(self.sums[name])[texts[0] : texts[0] + len(added)] += added


SUMS = (
    *("words", "content_words", "slop_words", "slop_trigrams", "sentences", "sentence_words", "sentence_squares"),
    *("paragraphs", "dialogues", "windows", "distinct_in_windows"),
    *(f"{name}_{n}" for n in (1, 2, 3) for name in ("distinct", "ngrams")),
)


@dataclass
class _Latest:
    """The last words of the previous blocks: windows and n-grams that end in the next block may begin there."""

    size: int
    columns: tuple[Longs, ...] = ()

    def extend(self, *columns: Longs) -> tuple[int, tuple[Longs, ...]]:
        """Return how many words were kept, and each column of new words with the kept words put before them."""
        number = len(self.columns[0]) if self.columns else 0
        joined = tuple(map(np.concatenate, zip(self.columns, columns, strict=True))) if number else columns
        self.columns = tuple(column[-self.size :].copy() for column in joined)
        return number, joined


@dataclass
class _Speech:
    """Finds paragraphs with words between double quotes, closed in it or not, or after a dash that begins a line."""

    quoted: re.Pattern[str]
    before: str = ""  # what stands for the paragraph so far: the quote that is open, if any, and a full stop
    is_found: bool = False

    def find(self, block: str, *, text: int) -> Iterator[int]:
        """Yield for each paragraph with speech the number of its text; `text` is the number of the first text."""
        for number, part in enumerate(block.split(_TEXT), start=text):
            for index, paragraph in enumerate(BREAK.split(part)):
                if number > text or index:
                    self.before, self.is_found = "", False
                if self.is_found:
                    continue
                quoted = self.quoted.findall(self.before + paragraph)
                last = quoted[-1].lstrip() if quoted else '""'
                is_closed = len(last) > 1 and last[-1] in CLOSERS[last[0]]
                self.before = "." if is_closed else last[0] + "."
                self.is_found = any(map(WORD.search, quoted))
                if self.is_found:
                    yield number


def _measure_runs(words: Longs, ends: Longs, before: int) -> tuple[Longs, int]:
    """Return the number of words of each run (a sentence or paragraph), and of the last run, which goes on.

    words: the number of words up to each token.
    ends: the indices of the tokens that end a run.
    before: the number of words of the first run in earlier blocks.
    """
    lengths = np.diff(words[ends], prepend=-before)
    return lengths, int(words[-1] - words[ends[-1]]) if len(ends) else before + int(words[-1:].sum())
