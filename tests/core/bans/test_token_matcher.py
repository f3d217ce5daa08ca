"""The matcher finds the same as a search of the whole text, at the first token of a match, however text is cut."""

from __future__ import annotations

import codecs
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from itertools import accumulate, chain, combinations, pairwise, product
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, strategies as st

import antislop.core.bans.token_matcher
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban, distinct
from antislop.core.bans.token_matcher import Matcher, State, Violation
from antislop.errors import BanError
from tests.support.depth import first_quick
from tests.support.oracles import occurrences
from tests.support.toys import Bytes, Words

BYTES = Bytes()


def anywhere(phrase: str) -> Ban:
    return Ban(phrase, edges="anywhere", rewind="span")


def listed(*entries: str | Ban) -> BanList:
    return BanList(entries)


def states_after(matcher: Matcher, start: State, tokens: Iterable[int]) -> list[State]:
    """Return the state before the first token and after each."""
    return list(accumulate(tokens, matcher.feed, initial=start))


def read(
    bans: Iterable[Ban], words: Words, tokens: Sequence[int], *, prompt: Sequence[int] = (), lookback: bool = True
) -> list[Violation]:
    """Return every violation of a text that ends after the tokens."""
    matcher = Matcher(bans, words)
    states = states_after(matcher, matcher.start(prompt, lookback=lookback), tokens)
    return [*chain.from_iterable(state.violations for state in states[1:]), *matcher.finish(states[-1])]


def spans(
    entries: Sequence[str | Ban],
    *pieces: str | bytes | None,
    prompt: Sequence[str | bytes | None] = (),
    lookback: bool = True,
) -> list[tuple[int, int]]:
    """Return (start, end) of the violations of a text given as tokens; `None` is a special token."""
    words = Words(*prompt, *pieces)
    tokens = range(len(words))
    bans = BanList(entries)
    found = read(bans, words, tokens[len(prompt) :], prompt=tokens[: len(prompt)], lookback=lookback)
    return [(violation.start, violation.end) for violation in found]


def cuttings(whole: str | bytes) -> Iterator[list[str | bytes]]:
    """Yield every way to cut a text into pieces that are not empty."""
    for size in range(len(whole)):
        for places in combinations(range(1, len(whole)), size):
            yield [whole[start:end] for start, end in pairwise([0, *places, len(whole)])]


# Cases in which other samplers failed


Row: TypeAlias = tuple[list[str | Ban], list[str | bytes | None], list[tuple[int, int]]]
SPANS: dict[str, list[Row]] = {
    "a hit inside one token is the whole token and nothing before it": [
        (["forbidden"], ["It is", " a forbidden sentence", "."], [(1, 1)]),
    ],
    "case folding that changes the length keeps the start": [
        (["straße"], ["die ", "STR", "ASS", "E"], [(1, 3)]),
        (["strasse"], ["die ", "stra", "ß", "e"], [(1, 3)]),
        (["delve"], ["İİ", "İİ", " ", "del", "ve"], [(3, 4)]),
        (["delve"], ["ﬁﬁ…ŉ ", "DEL", "VE"], [(1, 2)]),
        (["ss"], ["a ", "ß"], [(1, 1)]),
    ],
    "a phrase finds itself in every case, and a case-sensitive one only itself": [
        (["Elara"], ["Elara", " ELARA", " elara", " eLARA"], [(0, 1), (1, 2), (2, 3), (3, 3)]),
        ([Ban("Elara", case_sensitive=True)], ["Elara", " ELARA", " elara", " eLARA"], [(0, 1)]),
        (["a bright light"], ["A Bright", " Light"], [(0, 1)]),
    ],
    "a space before the phrase belongs to its token": [
        (["Elara"], ["It", " was", " El", "ara", "."], [(2, 4)]),
        (["Elara"], [" El", "ara"], [(0, 1)]),
        (["Elara"], [" ", "El", "ara"], [(1, 2)]),
    ],
    "a word is found when its edge is decided, and not in another word": [
        (["cat"], ["cat", "egory"], []),
        (["cat"], ["cat", "."], [(0, 1)]),
        (["cat"], ["cat"], [(0, 0)]),
        (["cat"], ["bob", "cat", "."], []),
        (["cat"], ["cat", "2"], []),
        (["cat"], ["cat", "\u0301s"], []),
        (["cat["], ["cat", "[", "x"], [(0, 1)]),
    ],
    "a phrase inside words is found only with edges anywhere": [
        (["ice bag"], ["n", "ice", " bag"], []),
        ([anywhere("ice bag")], ["n", "ice", " bags"], [(1, 2)]),
        ([anywhere("ice bag")], ["nice", " bags"], [(0, 1)]),
    ],
    "an incomplete longer phrase does not move the start of a shorter one": [
        (["a b c d e x", "d e f"], ["a", "b", "c", "d", "e", "f", ""], []),
        (["a b c d e x", "d e f"], ["a ", "b ", "c ", "d ", "e ", "f"], [(3, 5)]),
    ],
    "an incomplete phrase does not hide a complete one": [
        (["f g h", "d e f"], ["d ", "e ", "f"], [(0, 2)]),
        (["f g h", "d e f"], ["d ", "e ", "f", None], [(0, 3)]),
        (["d e f g", "e f"], ["d ", "e ", "f", " g"], [(1, 3), (0, 3)]),
    ],
    "a phrase that begins another one is found before it and with it": [
        (["once", "once upon", "upon"], ["once", " ", "upon", " "], [(0, 1), (0, 3), (2, 3)]),
    ],
    "several hits that one token completes are ordered by their start": [
        (["c d", "b c d", "d", "a b c d"], ["a", " b", " c", " d."], [(0, 3), (1, 3), (2, 3), (3, 3)]),
        (["d", Ban("b c d", case_sensitive=True), "a b c d"], ["a", " b", " c", " d."], [(0, 3), (1, 3), (3, 3)]),
    ],
    "a hit by the last token, and by the one before the end of text, is caught": [
        (["the cat"], ["the", " cat"], [(0, 1)]),
        (["the cat"], ["the", " cat", None], [(0, 2)]),
        (["well..."], ["well", "...", None], [(0, 1)]),
        ([anywhere("é")], [b"\xc3", b"\xa9"], [(0, 1)]),
        (["caf\u00e9"], ["cafe", b"\xcc", b"\x81"], [(0, 2)]),
    ],
    "a mere prefix at the end is not a hit": [
        (["a testament to"], ["a", " testament", " t"], []),
        (["a testament to"], ["a", " testament", " t", None], []),
        (["word " * 1000 + "end", "word"], ["word", " word"], [(0, 1), (1, 1)]),
    ],
    "special tokens separate words and phrases": [
        (["cat"], ["ca", None, "t"], []),
        (["the cat"], ["the ", None, "cat"], []),
        (["cat"], ["bob", None, "cat", None, "s"], [(2, 3)]),
        ([anywhere("\ufffd")], [b"\xc3", None, b"\xa9"], [(0, 1), (2, 2)]),
        (["cafe"], ["cafe", None, "\u0301"], [(0, 1)]),
    ],
    "a conceded hit does not hide a later one": [
        (["cat", "cat cat"], ["cat", " ", "cat", " ", "cat."], [(0, 1), (0, 3), (2, 3), (2, 4), (4, 4)]),
    ],
    "one character is a ban": [
        (["—"], ["so", " —", " no"], [(1, 1)]),
        (["i"], ["I", "'m in"], [(0, 1)]),
    ],
    "hits are counted in the sampled tokens, not in others that spell the same text": [
        (["cat"], ["the ", "cat", "."], [(1, 2)]),
        (["cat"], ["t", "h", "e c", "a", "t", "."], [(2, 5)]),
        (["cat"], ["", "", "the ", "", "ca", "", "t", "", "."], [(4, 8)]),
    ],
    "a ban of weight 1 is ignored": [
        ([Ban("cat", weight=1.0), Ban("dog", weight=0.99)], ["cat", " dog"], [(1, 1)]),
    ],
}


@pytest.mark.parametrize("rule", SPANS)
def test_a_phrase_is_found_in_the_tokens_of_its_match(rule: str) -> None:
    for entries, pieces, expected in SPANS[rule]:
        assert spans(entries, *pieces) == expected


def test_a_phrase_split_in_every_possible_way_is_the_same_hit() -> None:
    for pieces in cuttings(" a bat to"):
        begins = [0, *accumulate(map(len, pieces))]
        start = max(number for number, begin in enumerate(begins) if begin <= 3)
        assert spans(["bat to"], *pieces) == [(start, len(pieces) - 1)]


def test_a_hit_starts_at_the_token_of_its_first_byte() -> None:
    for pieces in cuttings("x🚀é".encode()):
        begins = [0, *accumulate(map(len, pieces))]
        start = max(number for number, begin in enumerate(begins) if begin <= 1)
        assert spans([anywhere("🚀É")], *pieces) == [(start, len(pieces) - 1)]


def test_a_character_spread_over_tokens_is_never_a_replacement_character() -> None:
    assert read(listed(anywhere("\ufffd")), BYTES, "aé猫🚀\u0301".encode()) == []


def test_invalid_bytes_are_a_replacement_character_at_their_first_token() -> None:
    found = read(listed(anywhere("\ufffd")), BYTES, b"a\xf0\x9fb\xe7")
    assert [(violation.start, violation.end) for violation in found] == [(1, 3), (4, 4)]


def test_a_word_at_the_current_end_is_neither_a_hit_nor_released() -> None:
    words = Words("a ", "cat", "\u200b", "s", ".")
    matcher = Matcher(listed("cat"), words)
    undecided = states_after(matcher, matcher.start(), [0, 1, 2, 2])[2:]
    assert [state.violations for state in undecided] == [()] * 3
    assert [state.earliest_start for state in undecided] == [1] * 3
    free, hit = matcher.feed(undecided[-1], 3), matcher.feed(undecided[-1], 4)
    assert (free.violations, free.earliest_start) == ((), 5)
    assert hit.violations == (Violation(Ban("cat"), 1, 4),)


def test_equal_entries_are_one_ban() -> None:
    bans = listed("cat", "CAT", Ban("Cat", weight=0.5), "cat")
    assert read(bans, Words("cat"), [0]) == [Violation(Ban("cat"), 0, 0)]


def test_a_ban_with_and_one_without_case_are_found_independently() -> None:
    bans = listed("cat", Ban("Cat", case_sensitive=True))
    assert [len(read(bans, Words(surface), [0])) for surface in ("cat", "Cat", "CAT")] == [1, 2, 1]


def test_a_phrase_that_begins_in_the_prompt_is_found_only_with_lookback() -> None:
    prompt = ["It is", " a", " test"]
    assert spans(["a testament to"], "ament", " to", ".", prompt=prompt) == [(0, 2)]
    assert spans(["a testament to"], "ament", " to", ".", prompt=prompt, lookback=False) == []
    assert spans(["a testament to"], "ament", " to", prompt=prompt) == [(0, 1)]


@pytest.mark.parametrize("lookback", [True, False])
def test_a_word_may_extend_from_the_prompt_into_the_output(lookback: bool) -> None:
    assert spans(["cat"], "cat", ".", prompt=["bob"], lookback=lookback) == []
    assert spans(["cat"], "cat", ".", prompt=["bob", None], lookback=lookback) == [(0, 1)]
    assert spans(["cat"], "cat", ".", prompt=["bob "], lookback=lookback) == [(0, 1)]
    assert spans(["cat"], "cat", ".", prompt=[], lookback=lookback) == [(0, 1)]
    assert spans([" a"], " ", "a", prompt=["b "], lookback=lookback) == ([(0, 1)] if lookback else [])


@pytest.mark.parametrize("lookback", [True, False])
def test_a_phrase_within_the_prompt_is_not_a_hit(lookback: bool) -> None:
    for output in (".", "s", None, " ", "\u200b", b"\xff"):
        assert spans(["the cat", "cat", "cat."], output, prompt=["the cat", "\u200b"], lookback=lookback) == (
            [(0, 0)] if output == "." and lookback else []
        )
    assert spans(["café"], ".", prompt=["cafe\u0301"], lookback=lookback) == []


def test_an_empty_list_finds_nothing_and_holds_nothing() -> None:
    matcher = Matcher([], BYTES)
    states = states_after(matcher, matcher.start(b"abc"), b"any text")
    assert [state.violations for state in states] == [()] * 9
    assert [state.earliest_start for state in states] == list(range(9))
    assert matcher.finish(states[-1]) == ()


# Against a search of the whole text

STRANGE = "كتآٌِאָ\ufb2aaAbB2 .-'ßİıée\u0301\u0323\u0345’—…\u00a0\n\u200b\ufeff猫ー🚀\u034f\U0010ffff"
raw_texts = (
    st.text(st.sampled_from(STRANGE), max_size=14).map(str.encode)
    | st.text("ab ", max_size=20).map(str.encode)
    | st.binary(max_size=12)
    | st.lists(st.sampled_from([b"a", "é".encode(), "🚀".encode(), b"\xf0\x9f", b"\xcc", b"\x81", b"\xff", b" "])).map(
        b"".join
    )
)


def decode(raw: bytes) -> tuple[str, list[int]]:
    """Return a text and, for each of its characters, the index of its first byte."""
    broken: dict[int, int] = {}

    def replace(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        broken[error.start] = error.end
        return "\ufffd", error.end

    codecs.register_error("noting", replace)
    text, begins, at = raw.decode(errors="noting"), [], 0
    for char in text:
        begins.append(at)
        at = broken.get(at, at + len(char.encode()))
    return text, begins


def cut(raw: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the pieces of a text, some of which may be empty."""
    edges = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    return [raw[start:end] for start, end in pairwise(edges)]


def owner(pieces: Sequence[bytes], byte: int) -> int:
    """Return the number of the piece that contains a byte."""
    return next(number for number, end in enumerate(accumulate(map(len, pieces))) if byte < end)


def check_against_find(bans: BanList, pieces: Sequence[bytes]) -> None:
    """Check that the violations are those of `find`, and that none starts before an earlier horizon."""
    text, begins = decode(b"".join(pieces))
    matcher = Matcher(bans, Words(*pieces))
    states = states_after(matcher, matcher.start(), range(len(pieces)))
    found = [*chain.from_iterable(state.violations for state in states), *matcher.finish(states[-1])]
    expected = {(match.ban, owner(pieces, begins[match.start])) for match in bans.find(text)}
    assert {(violation.ban, violation.start) for violation in found} == expected
    for violation in found:
        assert 0 <= violation.start <= violation.end < len(pieces)
        assert all(state.earliest_start <= violation.start for state in states[: violation.end + 1])
    for violation in matcher.finish(states[-1]):
        assert states[-1].earliest_start <= violation.start


def some_bans_of(text: str, places: Sequence[tuple[int, int]]) -> Iterator[Ban]:
    for number, (start, length) in enumerate(places):
        try:
            yield Ban(
                text[start : start + length], edges="anywhere" if number % 3 else "word", case_sensitive=number == 4
            )
        except BanError:
            continue


@given(
    raw=raw_texts,
    places=st.lists(st.integers(0, 60), max_size=14),
    slices=st.lists(st.tuples(st.integers(0, 14), st.integers(1, 5)), max_size=5),
)
@example(raw="e\u0301 x".encode(), places=[1, 2, 3], slices=[(0, 1), (1, 1), (1, 2)])
@example(raw=b"\xf0\x9f\xf0\x9f\x9a\x80", places=[1, 2, 3, 4, 5], slices=[(0, 1), (0, 2), (1, 1)])
@example(raw="a -— ‘x’\n- 1–2".encode(), places=list(range(1, 22)), slices=[(1, 2), (3, 1), (1, 1), (8, 2), (5, 1)])
@example(raw="a\u0301\u0323\u0301b".encode(), places=list(range(1, 8)), slices=[(0, 1), (0, 4), (1, 2), (2, 1), (3, 2)])
def test_violations_do_not_depend_on_how_a_text_is_cut(
    raw: bytes, places: list[int], slices: list[tuple[int, int]]
) -> None:
    text, _ = decode(raw)
    check_against_find(BanList(some_bans_of(text, slices)), cut(raw, places))


@given(
    text=st.lists(st.integers(0, 13), max_size=5),
    phrases=st.lists(
        st.sampled_from(["a", "ab", "a b", "é", "ba", "b é", "\ufffd", "\ufffda"]), min_size=1, max_size=4
    ),
    edges=st.sampled_from(["word", "anywhere"]),
    rules=st.sampled_from([[], [Ban.regex("b+")], [Ban.tokens([1, 2])]]),
    apart=st.booleans(),
)
# One token completes a character that another one breaks.
@example(text=[12], phrases=["\ufffda", "a"], edges="anywhere", rules=[], apart=False)
@example(text=[13], phrases=["\ufffd", "a"], edges="anywhere", rules=[], apart=False)
def test_a_group_has_the_tokens_that_complete_the_same_as_each_by_itself(
    text: list[int], phrases: list[str], edges: Any, rules: list[Ban], apart: bool
) -> None:
    halves = [b"\xa9", b"\xa9a", b"\xc3", b"\xf0\x9f"]
    words = Words("a", "b", " ", "ab", "a b", " a", "é", "éa", None, b"\x9fa", *halves)
    matcher = Matcher(distinct([*(Ban(each, edges=edges, rewind="span") for each in phrases), *rules]), words)
    state = states_after(matcher, matcher.start(), text)[-1]
    grouped = {
        each: after.violations for after, group in matcher.group(state, range(14), apart=apart) for each in group
    }
    alone = {token: matcher.feed(state, token).violations for token in range(14)}
    assert {token: found for token, found in grouped.items() if found} == {t: v for t, v in alone.items() if v}


@pytest.mark.parametrize("count", first_quick([1, 10, 1000, 8000], 2))
def test_lists_of_any_size_give_the_same_violations_for_every_cutting(count: int) -> None:
    drawn = random.Random(count)
    vocabulary = [*"abcdefg", "café", "straße", "it's", "well…", "ここ"]
    phrases = {" ".join(drawn.choices(vocabulary, k=drawn.randint(2, 5))) for _ in range(3 * count)}
    bans = BanList(sorted(phrases)[:count] if count > 1 else ["a b"])
    assert len(bans) == count
    raw = " ".join(drawn.choices(vocabulary, k=400)).upper().encode()
    for pieces in (cut(raw, [drawn.randrange(len(raw)) for _ in range(300)]), [raw], cut(raw, range(len(raw)))):
        check_against_find(bans, pieces)


# Against naive definitions, token by token

Path = tuple[int, ...]
# Without white space, which the naive search does not fold.
ALPHABETS = {
    "letters": Words("a", "b", "-"),
    "longer tokens": Words("a", "b", "-", "ab", "a-b", "ba-"),
    "with a special token": Words("a", "b", "-", None),
}
phrases = st.sampled_from(["a", "b", "ab", "ba", "aa", "aab", "a-b", "b-a", "-a", "b-", "bab", "-"])
spans_anywhere = st.builds(Ban, phrases, edges=st.sampled_from(["word", "anywhere"]), rewind=st.just("span"))
ban_lists = st.lists(spans_anywhere, max_size=4).map(distinct)


class Naive:
    """The expected results of the matcher, from `occurrences` in the text alone."""

    def __init__(self, words: Words, bans: Sequence[Ban], prompt: Path, *, lookback: bool) -> None:
        self.words, self.bans, self.prompt, self.lookback = words, bans, prompt, lookback
        self.matches = cache(self._matches)
        self.starts = cache(self._starts)

    def _matches(self, path: Path, *, is_final: bool) -> frozenset[tuple[int, int, int]]:
        """Return (start token, character, ban) of the matches in a text that is cut at special tokens."""
        found, tokens = set(), (*self.prompt, *path)
        breaks = [i for i, token in enumerate(tokens) if token in self.words.breaks]
        for begin, end in pairwise([-1, *breaks, len(tokens)]):
            owners = [i for i in range(begin + 1, end) for _ in self.words.surface(tokens[i])]
            text = self.words.text(tokens[begin + 1 : end])
            for number, ban in enumerate(self.bans):
                for first, beyond in occurrences(text, ban, is_final=is_final or end < len(tokens)):
                    start, last = owners[first] - len(self.prompt), owners[beyond - 1] - len(self.prompt)
                    if last >= 0 and (start >= 0 or self.lookback):
                        found.add((max(0, start), first + (begin + 1) * 100, number))
        return frozenset(found)

    def violations(self, path: Path, *, is_final: bool = False) -> set[tuple[int, Ban]]:
        """Return the matches that the last token, or the end of the text after it, completes."""
        before = self.matches(path if is_final else path[:-1], is_final=False)
        return {(start, self.bans[ban]) for start, _, ban in self.matches(path, is_final=is_final) - before}

    def _starts(self, path: Path, *, further: int) -> frozenset[int]:
        """Return the starts of matches that up to `further` more tokens, or an end of the text, may complete."""
        before = self.matches(path, is_final=False)
        return frozenset(
            start
            for length in range(further + 1)
            for rest in product(range(len(self.words)), repeat=length)
            for start, _, _ in self.matches((*path, *rest), is_final=True) - before
            if start < len(path)
        )

    def reach(self, path: Path, *, further: int, extra: bool) -> int:
        """Return the least length after any chain of rewinds. extra: one of them may drop one more token."""
        seen, ahead = set(), [(len(path), extra)]
        for length, may in ahead:
            if (length, may) in seen:
                continue
            seen.add((length, may))
            starts = self.starts(path[: max(0, length)], further=further) if length >= 0 else ()
            ahead += [(start, may) for start in starts]
            ahead += [(start - 1, False) for start in (*starts, length) if may]
        return min(length for length, _ in seen)


def paths_of(words: Words, choices: Sequence[int]) -> Path:
    return tuple(choice % len(words) for choice in choices)


@given(
    alphabet=st.sampled_from(sorted(ALPHABETS)),
    bans=ban_lists,
    prompt=st.lists(st.integers(0, 59), max_size=4),
    output=st.lists(st.integers(0, 59), max_size=10),
    lookback=st.booleans(),
)
@example(alphabet="letters", bans=[Ban("a"), Ban("a-b")], prompt=[0], output=[2, 1], lookback=True)
def test_every_token_completes_the_bans_of_a_naive_search(
    alphabet: str, bans: list[Ban], prompt: list[int], output: list[int], lookback: bool
) -> None:
    words = ALPHABETS[alphabet]
    before, path = paths_of(words, prompt), paths_of(words, output)
    naive, matcher = Naive(words, bans, before, lookback=lookback), Matcher(bans, words)
    states = states_after(matcher, matcher.start(before, lookback=lookback), path)
    assert states[0].violations == ()
    for end, state in enumerate(states[1:], start=1):
        assert state.length == end
        assert {(v.start, v.ban) for v in state.violations} == naive.violations(path[:end])
        assert {(v.start, v.ban) for v in matcher.finish(state)} == naive.violations(path[:end], is_final=True)
        for found in (state.violations, matcher.finish(state)):
            assert [v.start for v in found] == sorted(v.start for v in found)
            assert {v.end for v in found} <= {end - 1}


@given(
    alphabet=st.sampled_from(sorted(ALPHABETS)),
    bans=ban_lists,
    prompt=st.lists(st.integers(0, 59), max_size=2),
    output=st.lists(st.integers(0, 59), max_size=6),
    lookback=st.booleans(),
)
@example(alphabet="letters", bans=[anywhere("aab"), anywhere("ba")], prompt=[], output=[0, 0, 1, 0], lookback=True)
@example(alphabet="letters", bans=[anywhere("ab"), anywhere("ba")], prompt=[], output=[0, 1, 0, 1, 0], lookback=True)
def test_horizon_and_hold_are_the_farthest_reach_of_a_chain_of_rewinds(
    alphabet: str, bans: list[Ban], prompt: list[int], output: list[int], lookback: bool
) -> None:
    """Every phrase can be completed with these tokens, so that the horizon is not only safe but exact."""
    words = ALPHABETS[alphabet]
    before, path = paths_of(words, prompt), paths_of(words, output)
    naive, matcher = Naive(words, bans, before, lookback=lookback), Matcher(bans, words)
    for state in states_after(matcher, matcher.start(before, lookback=lookback), path):
        kept = path[: state.length]
        # Two more tokens spell the rest of any phrase, and the end of the text closes its word.
        assert state.earliest_start == naive.reach(kept, further=2, extra=False)
        assert state.settled_length == naive.reach(kept, further=2, extra=True)


@given(bans=ban_lists, output=st.lists(st.integers(0, 1), max_size=7))
def test_horizon_and_hold_are_safe_if_a_phrase_can_not_be_completed(bans: list[Ban], output: list[int]) -> None:
    words = Words("a", "-")
    path = tuple(output)
    naive, matcher = Naive(words, bans, (), lookback=True), Matcher(bans, words)
    for state in states_after(matcher, matcher.start(), path):
        assert state.earliest_start <= naive.reach(path[: state.length], further=3, extra=False)
        assert state.settled_length <= naive.reach(path[: state.length], further=3, extra=True)


def test_the_horizon_follows_chains_of_rewinds() -> None:
    """After "cab", "bd" rewinds to "ca", then "ac" rewinds to "c", then "cb" rewinds to the beginning."""
    matcher = Matcher([anywhere("bd"), anywhere("ac"), anywhere("cb")], Words("a", "b", "c", "d"))
    states = states_after(matcher, matcher.start(), [2, 0, 1])
    assert [state.earliest_start for state in states] == [0, 0, 0, 0]
    assert [state.settled_length for state in states] == [-1, -1, -1, -1]


def test_incomplete_characters_and_waiting_marks_are_held() -> None:
    matcher = Matcher([anywhere("\u0301"), anywhere("🚀")], BYTES)
    states = states_after(matcher, matcher.start(), "a🚀b".encode())
    assert [state.earliest_start for state in states] == [0, 1, 1, 1, 1, 1, 6]
    states = states_after(matcher, matcher.start(), "e\u0301 ".encode())
    assert [state.earliest_start for state in states] == [0, 1, 1, 1, 4]
    assert states[-1].violations == (Violation(anywhere("\u0301"), 1, 3),)


@pytest.mark.parametrize("is_known", [True, False], ids=["known tokens", "first look"])
@pytest.mark.parametrize("ends", ["end", ""])
def test_a_long_phrase_of_repetitions_costs_no_more_per_token_than_a_short_one(ends: str, is_known: bool) -> None:
    """Counted in lines of Python; jumps are logarithmic."""

    def count_lines(repetitions: int) -> int:
        matcher = Matcher([Ban("ha " * repetitions + ends)], Words(" ha"))
        states = states_after(matcher, matcher.start(), [0] * (repetitions + (30 if is_known else -10)))
        counted = 0

        def count(*_: object) -> object:
            nonlocal counted
            counted += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)  # type: ignore[arg-type]
        states_after(matcher, states[repetitions - 10], [0] * 20)
        sys.settrace(before)
        return counted

    assert count_lines(400) < 2 * count_lines(25)


def test_white_space_of_any_length_within_a_phrase_is_counted() -> None:
    wide = " " * 1_200_000
    matcher = Matcher([Ban("a b c d")], Words("a", wide, "b ", "c", " d", "."))
    state = states_after(matcher, matcher.start(), [5, 0, 1, 2, 3, 1, 4, 5])[-1]
    assert state.violations == (Violation(Ban("a b c d"), 1, 7),)


# States are values


@given(
    bans=ban_lists,
    output=st.lists(st.integers(0, 5), max_size=8),
    branches=st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(0, 5), max_size=4)), max_size=4),
)
def test_feeding_a_state_again_gives_the_same(
    bans: list[Ban], output: list[int], branches: list[tuple[int, list[int]]]
) -> None:
    words = ALPHABETS["longer tokens"]
    matcher = Matcher(bans, words)
    states = states_after(matcher, matcher.start(), output)
    known = list(map(describe(matcher), states))
    for place, branch in branches:
        place = min(place, len(output))
        again = states_after(matcher, states[place], branch)
        assert states[-1].back_to(place) is states[place]
        fresh = Matcher(bans, words)
        whole = states_after(fresh, fresh.start(), [*output[:place], *branch])[place:]
        assert list(map(describe(matcher), again)) == list(map(describe(fresh), whole))
    assert list(map(describe(matcher), states)) == known


def describe(matcher: Matcher) -> Callable[[State], tuple[object, ...]]:
    return lambda state: (
        state.length,
        state.earliest_start,
        state.settled_length,
        state.violations,
        matcher.finish(state),
    )


def test_rewinding_a_state_to_its_length_or_more_returns_it() -> None:
    matcher = Matcher(listed("cat"), BYTES)
    states = states_after(matcher, matcher.start(b"the "), b"cat.")
    assert states[4].back_to(4) is states[4]
    assert states[4].back_to(9) is states[4]
    assert states[4].back_to(0) is states[0]
    assert states[0].length == 0


KINDS = [Ban.regex("c.t"), Ban.words(["the", "cat"]), Ban("a cat", exempt=["a cat sat"]), Ban.tokens([99, 97])]


@given(
    raw=raw_texts | st.text("act he", max_size=20).map(str.encode),
    places=st.lists(st.integers(0, 60), max_size=14),
    slices=st.lists(st.tuples(st.integers(0, 14), st.integers(1, 5)), max_size=5),
    kinds=st.lists(st.sampled_from(KINDS), max_size=2),
    kept=st.integers(1, 4),
)
@example(raw=b"a cat, the cat: acat cat", places=list(range(1, 24)), slices=[(2, 3), (7, 7)], kinds=[], kept=3)
def test_what_was_read_before_or_forgotten_changes_nothing(
    raw: bytes, places: list[int], slices: list[tuple[int, int]], kinds: list[Ban], kept: int
) -> None:
    """One matcher reads a text twice, the other forgets everything after a few transitions."""
    pieces, bans = cut(raw, places), [*kinds, *some_bans_of(decode(raw)[0], slices)]
    words, tokens = Words(*pieces), range(len(pieces))
    used, forgetful = Matcher(bans, words), Matcher(bans, words)
    first, again = (states_after(used, used.start(), tokens) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(antislop.core.bans.token_matcher, "TRANSITIONS_KEPT", kept)
        forgot = states_after(forgetful, forgetful.start(), tokens)
        expected = list(map(describe(used), first))
        assert list(map(describe(used), again)) == expected
        assert list(map(describe(forgetful), forgot)) == expected


def test_a_matcher_that_forgets_keeps_no_more_than_its_latest_transitions_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(antislop.core.bans.token_matcher, "TRANSITIONS_KEPT", 100)
    matcher = Matcher(
        [Ban(f"{first}{second} {third}") for first, second, third in product("abcdefgh", repeat=3)], BYTES
    )
    chance, sizes, state = random.Random(0), set(), matcher.start()
    for _ in range(2000):
        state = matcher.feed(state, ord(chance.choice("abcdefgh ")))
        (track,) = matcher._texts.phrases._tracks
        sizes.add(len(track.automaton.nodes))
    assert len(sizes) > 10
    assert max(sizes) <= 1 + 3 * 100
    assert len(matcher._situations) <= 101 and len(matcher._transitions) <= 100


def test_a_matcher_remembers_no_more_transitions_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that grows with each text ends a server that runs for weeks."""
    monkeypatch.setattr(antislop.core.bans.token_matcher, "TRANSITIONS_KEPT", 5)
    matcher = Matcher(listed("cat"), BYTES)
    state, remembered = matcher.start(), set[int]()
    for token in bytes(range(32, 127)):
        state = matcher.feed(state, token)
        remembered.add(matcher.transition_count)
    assert remembered == {1, 2, 3, 4, 5}


def test_a_state_of_a_very_long_text_can_be_dropped() -> None:
    """A chain of a hundred thousand states must not be taken apart by recursion."""
    matcher = Matcher(listed("cat"), BYTES)
    state = matcher.start()
    for token in b"a cat " * 17_000:
        state = matcher.feed(state, token)
    assert state.length == 102_000
    del state


@pytest.mark.parametrize(
    "copied", [deepcopy, lambda matcher: pickle.loads(pickle.dumps(matcher))], ids=["deep", "pickle"]
)
def test_a_matcher_that_has_read_much_can_be_copied_and_the_copy_finds_the_same(copied: Callable[[Any], Any]) -> None:
    """Its 2,000 cached steps in a row are nested more deeply than pickle can recurse."""
    chance = random.Random(0)
    text = "".join(chance.choice("abcdefgh") for _ in range(2000))
    matcher = Matcher([anywhere(text), Ban("cat")], Bytes())

    def read(one: Matcher) -> tuple[Violation, ...]:
        state = one.start()
        for token in f"a cat {text[:-1]}".encode():
            state = one.feed(state, token)
        return one.feed(state, ord(text[-1])).violations

    found = read(matcher)
    assert [violation.start for violation in found] == [6]
    assert read(copied(matcher)) == found
