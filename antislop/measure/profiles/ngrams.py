"""Split many texts at once into words, phrases and content n-grams, as arrays of hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import regex

from antislop.core.bans import SENTENCE_END, compose
from antislop.files.texts import AnyText, cut, hash_prompt
from antislop.measure.blocks import BLOCK_CHARACTERS, VOCABULARY, Flags, Longs, cut_blocks, hash_word
from antislop.measure.languages import ENGLISH, Language
from antislop.measure.words import WORD, straighten

Kind = Literal["word", "phrase", "content", "construction"]
Texts: TypeAlias = Callable[[], Iterable[AnyText]]
"""A function that returns all texts at each call, so that they can be read repeatedly."""
Progress: TypeAlias = Callable[[int, int, int | None], None]
"""A function that gets the number of a reading, the characters read so far, and their total if it is known."""
Hashes: TypeAlias = npt.NDArray[np.uint64]

PHRASE_WORDS = 5
CONTENT_WORDS = 3
PROMPT_GROUPS = 32  # groups of prompts by which occurrences are counted, for intervals
TOKEN = regex.compile(rf"{WORD.pattern}|[^\p{{L}}\p{{N}}\s]+|\p{{N}}+")
EXPLAINED_SHARE = {False: 0.95, True: 0.85}  # by `Language.unspaced`: without spaces, cuts vary, up to 5 % at each end
"""A longer entry explains an entry if it contains at least this share of the entry's occurrences."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio

_HARD = regex.compile(rf"\p{{N}}|{SENTENCE_END}")
_STOP, _SOFT, _HARD_BREAK = 1, 2, 3  # kinds of tokens; 0 are content words
_PART = np.uint64(0xD6E8FEB86659FD93)  # keeps n-grams of different parts apart
_CONTENT = np.uint64(0xC2B2AE3D27D4EB4F)  # keeps content n-grams apart from phrases


class Codes(dict[str, int]):
    """Maps tokens to 62 bits: a hash of the lower-case token, two bits for its kind, one if it is capitalized."""

    def __init__(self, language: Language) -> None:
        super().__init__()
        self.language = language

    def __missing__(self, token: str) -> int:
        if len(self) >= VOCABULARY:
            self.clear()  # a code depends on the token alone
        lower = token.lower()
        if WORD.match(token):
            kind = 0 if self.language.drop_stop_words([lower]) else _STOP
        else:
            kind = _HARD_BREAK if _HARD.search(token) else _SOFT
        code = self[token] = (hash_word(lower) >> 5 << 3) | kind << 1 | token[0].isupper()
        return code


class Grams(NamedTuple):
    """The n-grams of one kind and one length in a chunk."""

    kind: Kind
    length: int
    hashes: Hashes
    starts: Longs  # index of the first word of each, among all words or, for content n-grams, the content words


class Part(NamedTuple):
    """A text or a part of a text. text, prompt: the numbers of text and prompt. asked: the prompt itself."""

    text: int
    prompt: int
    content: str
    asked: str
    is_first: bool
    is_last: bool


class Chunk:
    """Some texts, split into tokens. Arrays have an element for each word, `content` for each content word.

    begins: the index of the first token of each part.
    before: how many tokens the text of the first part had in earlier chunks.
    """

    def __init__(self, parts: list[Part], codes: Codes, *, before: int) -> None:
        self.parts, self.before = parts, before
        self.tokens: list[str] = []
        self.begins: list[int] = []
        for part in parts:
            self.begins.append(len(self.tokens))
            self.tokens += TOKEN.findall(straighten(codes.language.segment(part.content)))
            self.tokens.append(".")  # no n-gram crosses two parts
        coded = np.fromiter(map(codes.__getitem__, self.tokens), np.int64, len(self.tokens))
        kinds = coded >> 1 & 3
        self.at: Longs = np.flatnonzero(kinds < _SOFT)
        self.is_capital: Flags = (coded[self.at] & 1).astype(bool)
        self.keys: Hashes = (coded[self.at] >> 3).astype(np.uint64)
        self.is_content: Flags = kinds[self.at] == 0
        self.run: Longs = np.cumsum(kinds >= _SOFT, dtype=np.int64)[self.at]
        self.sentence: Longs = np.cumsum(kinds == _HARD_BREAK, dtype=np.int64)[self.at]
        self.is_middle: Flags = np.diff(self.run, prepend=-1) == 0
        self.part: Longs = np.searchsorted(np.array(self.begins), self.at, side="right") - 1
        self.content: Longs = np.flatnonzero(self.is_content)

    @property
    def open_tokens(self) -> int:
        """How many tokens the text that goes on in the next chunk has had so far; 0 if no text goes on."""
        if self.parts[-1].is_last:
            return 0
        size = len(self.tokens) - self.begins[-1] - 1
        return size + (self.before if len(self.parts) == 1 else 0)

    def find_places(self, words: Longs, parts: Longs) -> Longs:
        """Return the index of each word among all tokens of its text. parts: the index of the part of each word."""
        begins: Longs = np.array(self.begins)
        begins[0] -= self.before
        places: Longs = self.at[words] - begins[parts]
        return places

    def grams(self, keep: Callable[[Hashes], Flags] | None = None) -> Iterator[Grams]:
        """Yield the n-grams of each kind and length. keep: chooses n-grams, of which all parts were chosen."""
        yield from _find_grams("phrase", self.keys * MULTIPLIER, self.run, PHRASE_WORDS, keep)
        contents = (self.keys * MULTIPLIER)[self.content] ^ _CONTENT
        words = _find_grams("content", contents, self.sentence[self.content], CONTENT_WORDS, keep)
        yield from (grams for grams in words if grams.length > 1)

    def find_parts(self, grams: Grams) -> Longs:
        """Return for each n-gram the index of the part of the chunk in which it is."""
        return self.part[self.content[grams.starts] if grams.kind == "content" else grams.starts]

    def hash_with_parts(self, grams: Grams) -> Hashes:
        parts = self.find_parts(grams).astype(np.uint64) + np.uint64(1)
        hashes: Hashes = grams.hashes ^ parts * _PART
        return hashes

    def spell(self, kind: Kind, length: int, start: int) -> str:
        words = range(start, start + length)
        if kind == "content":
            words = self.content[start : start + length]  # type: ignore[assignment]
        return " ".join(self.tokens[self.at[word]].lower() for word in words)


def _find_grams(
    kind: Kind, keys: Hashes, runs: Longs, max_length: int, keep: Callable[[Hashes], Flags] | None
) -> Iterator[Grams]:
    hashes, is_kept = keys, np.ones(len(keys), bool)
    for length in range(1, max_length + 1):
        if length > 1:
            hashes = hashes[:-1] * MULTIPLIER + keys[length - 1 :]
            is_kept = is_kept[:-1] & is_kept[1:] & (runs[: len(hashes)] == runs[length - 1 :])
        starts = np.flatnonzero(is_kept)
        chosen = hashes[starts]
        if keep is not None and not (kind == "content" and length == 1):
            passed = keep(chosen)
            is_kept[starts[~passed]] = False
            starts, chosen = starts[passed], chosen[passed]
        yield Grams("word" if length == 1 else kind, length, chosen, starts)


class Reading:
    def __init__(
        self, texts: Texts, codes: Codes, progress: Progress | None, *, number: int, total: int | None = None
    ) -> None:
        self._source, self._codes, self._progress = texts, codes, progress
        self._number, self._total = number, total
        self.texts = self.characters = 0
        self.prompts: dict[int, int] = {}
        self.group_words: Longs = np.zeros(PROMPT_GROUPS, np.int64)

    def __iter__(self) -> Iterator[Chunk]:
        gathered: list[Part] = []
        size = tokens = 0
        for text in self._source():
            prompt = self.prompts.setdefault(hash_prompt(text), len(self.prompts))
            asked = compose(text.asked)
            for content, is_first, is_last in mark_ends(map(compose, cut_blocks(cut(text)))):
                gathered.append(Part(self.texts, prompt, content, asked, is_first, is_last))
                size += len(content)
                if size >= BLOCK_CHARACTERS or not is_last:  # so that a chunk has one part of a text at most
                    chunk = self._take(gathered, size, tokens)
                    yield chunk
                    gathered, size, tokens = [], 0, chunk.open_tokens
            self.texts += 1
        if gathered:
            yield self._take(gathered, size, tokens)

    def _take(self, gathered: list[Part], size: int, before: int) -> Chunk:
        chunk = Chunk(gathered, self._codes, before=before)
        self.characters += size
        groups = np.array([part.prompt % PROMPT_GROUPS for part in gathered])
        self.group_words += np.bincount(groups[chunk.part], minlength=PROMPT_GROUPS)
        if self._progress is not None:
            self._progress(self._number, self.characters, self._total)
        return chunk


def mark_ends(parts: Iterable[str]) -> Iterator[tuple[str, bool, bool]]:
    ahead = iter(parts)
    part, is_first = next(ahead), True
    for following in ahead:
        yield part, is_first, False
        part, is_first = following, False
    yield part, is_first, True


def find_explained(counts: Mapping[tuple[Kind, str], int], language: Language = ENGLISH) -> set[tuple[Kind, str]]:
    """Return the entries whose occurrences nearly all (`EXPLAINED_SHARE`) lie within those of a longer entry.

    "barely above a whisper" explains "above a whisper". An explained entry explains no other.

    >>> find_explained({("phrase", "a testament to"): 90, ("phrase", "testament to"): 94, ("word", "testament"): 150})
    {('phrase', 'testament to')}
    """
    explained: set[tuple[Kind, str]] = set()
    share = EXPLAINED_SHARE[language.unspaced]
    for entry, count in sorted(counts.items(), key=lambda pair: -pair[0][1].count(" ")):
        if entry not in explained:
            explained |= {part for part in find_parts(*entry, language) if count >= share * counts.get(part, inf)}
    return explained


def find_parts(kind: Kind, text: str, language: Language = ENGLISH) -> Iterable[tuple[Kind, str]]:
    """Yield the shorter entries that each occurrence of an entry contains.

    >>> list(find_parts("phrase", "a deep breath"))[:3]
    [('content', 'deep breath'), ('word', 'a'), ('phrase', 'a deep')]
    """
    if kind not in ("phrase", "content"):
        return
    words = text.split(" ")
    if kind == "phrase":
        yield "content", " ".join(language.drop_stop_words(words))
    for begin in range(len(words)):
        for end in range(begin + 1, len(words) + 1):
            if end - begin < len(words) and (kind == "phrase" or end - begin > 1):
                yield ("word" if end - begin == 1 else kind), " ".join(words[begin:end])
