"""The prefilter finds what the exact search finds, in texts and bans made of what folding treats in special ways."""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st

from antislop.core.bans import prefilter
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import BOUNDARY, fold
from antislop.core.bans.patterns.phrase import PhraseSearch
from antislop.core.bans.prefilter import Prefilter
from antislop.errors import BanError
from tests.support.ban_cases import RULES
from tests.support.depth import DEPTH, first_quick
from tests.support.oracles import cut_at, find_in_pieces

# Letters of several kinds, white space, what folds to several symbols or to none, marks, and ends of sentences.
NASTY = (
    "a", "b", "A", "ab", "a b", " ", "  ", "\n", "\u00a0", "\u3000", ".", ". ", "…", "!", "。", "’", "'", "n't", "—",
    "كت", "א", "ِ", "\u05c1", "\ufb2a", "ı", "I", "i",
    "ß", "ss", "é", "e\u0301", "\u0301", "\u0328", "\u0345", "ι", "ΐ", "ŉ", "ﬁ", "İ", "\u200b", "\u00ad", "\ufe0f",
    "ـ", "\0", "\ud83d", "🙂", "的", "の", "ｶ\uff9e", "\u0e33", "\u0e31", "กำ", "한", "\u1112\u1161", "7", "`", '"',
    "가", "🇩", "🇪", "🇩🇪", "👍", "🏽", "\u200d", "\u20e3", "ב", "ה", "ם", "ا", "ل", "م", "كتاب",
    "the", "could", "couldn't", "<t>", "</t>", "not", "*",
)  # fmt: skip
PLAIN = ("a", "b", "A", "ab", "a b", " ", "  ", "\n", ".", "!", "'", "-", "7", "the", "could", "_")
SIGNS = ("-", "–", "—", " ", "  ", "\n", "*", '"', "“", ".", "…", "...", "≠", "=\u0338", "\u200b", "🙂", "a")
places = st.lists(st.integers(0, 60), max_size=6)


def build(make: Callable[..., Ban], *arguments: object, **options: object) -> Ban | None:
    """Return a ban, or None for one that is refused, such as one without a visible character."""
    try:
        return make(*arguments, **options)
    except BanError:
        return None


def lists(phrases: st.SearchStrategy[str]) -> st.SearchStrategy[list[Ban]]:
    """Return lists of bans of all kinds, some with rules."""
    kinds = st.one_of(
        st.builds(
            lambda phrase, edges, case, code: build(Ban, phrase, edges=edges, case_sensitive=case, language=code),
            phrases, st.sampled_from(["word", "anywhere"]), st.booleans(), st.sampled_from(["", "tr"]),
        ),
        st.builds(lambda phrase, gap: build(Ban.wildcard, phrase, gap=gap), phrases, st.integers(1, 2)),
        st.builds(
            lambda words, gap, skips, case: build(
                Ban.words, words, gap=gap, skip_stop_words=skips, case_sensitive=case
            ),
            st.lists(phrases, min_size=1, max_size=3), st.integers(0, 2), st.booleans(), st.booleans(),
        ),
        st.sampled_from([Ban.regex("a.?b"), Ban.regex(r"\bb"), Ban.loop(2, 4, 9)]),
    )  # fmt: skip
    ruled = st.builds(lambda ban, rules: ban and replace(ban, **rules), kinds, st.sampled_from(({}, {}, *RULES)))
    return st.lists(ruled, min_size=1, max_size=5).map(lambda bans: [ban for ban in bans if ban])


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[Ban], list[str]]:
    """Return bans, and the pieces of a text in which they are likely to occur."""
    letters = draw(st.sampled_from([NASTY, PLAIN, SIGNS]))
    bans = draw(lists(st.lists(st.sampled_from(letters), min_size=1, max_size=4).map("".join)))
    written = [ban.text.replace("*", "a") for ban in bans if ban.pattern.is_legible]
    chunks = st.sampled_from((*letters, *written * (1 + len(letters) // max(1, len(written)))))
    text = "".join(draw(st.lists(chunks, min_size=draw(st.sampled_from([0, 20])), max_size=40)))
    return bans, cut_at(text, draw(places))


@pytest.mark.parametrize("waiting", first_quick([0, 6, prefilter.MAX_WAITING]))
@given(search=searches())
@settings(max_examples=150 * DEPTH)
@example(search=([Ban("a", edges="anywhere")], ["a a a a", " a a"]))
@example(search=([Ban("a"), Ban("a b")], ["a ab ba a bc", "a", "b a b ab"]))
@example(search=([Ban("a"), Ban("é a")], ["é a b"]))
@example(search=([Ban("a \u0e33b")], ["a \u0e33 b"]))
@example(search=([Ban("ι cat"), Ban(" cat", edges="anywhere")], ["x ι cat"]))
@example(search=([Ban("x \u0345y")], ["x \u0345", " y"]))
@example(search=([Ban("c", edges="anywhere"), Ban("bc")], ["ab", "c "]))
@example(search=([Ban(".", at_most=1)], ["…"]))
@example(search=([Ban("* -"), Ban("…")], ["*  - *\n- - — ...", "* - …"]))
@example(search=([Ban.words(["a", "b"], skip_stop_words=True)], ["a the", "\u0301 b a. the b"]))
@example(search=([Ban.words(["mount", "helens"], gap=3)], ["Mount St. He", "lens. Mount it. Helens."]))
@example(search=([Ban.words(["at", "or"], gap=3)], ["at 5 p.m. or", " at can't. or at é. or"]))
def test_the_prefilter_finds_what_the_exact_search_finds(waiting: int, search: tuple[list[Ban], list[str]]) -> None:
    bans, pieces = search
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefilter, "MAX_WAITING", waiting)
        assert find_in_pieces(bans, pieces, prefilter=Prefilter) == find_in_pieces(bans, pieces)


@pytest.mark.parametrize("step", first_quick([31, 1]))
def test_what_a_character_folds_to_has_the_bytes_of_the_character(step: int) -> None:
    codes = range(0, sys.maxunicode + 1, step)
    characters = [chr(code) for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Co") or not code % 97]
    reduce = prefilter._REDUCTION.reduce
    reduce("".join(characters))
    for character in characters:
        symbols = fold(character, final=True).symbols.replace(BOUNDARY, "")
        if symbols != character:
            assert reduce(symbols).data.tobytes() == reduce(character).data.tobytes(), ascii(character)


@given(search=searches())
def test_a_state_that_forgets_is_that_of_the_exact_search(search: tuple[list[Ban], list[str]]) -> None:
    bans, (first, *rest) = search
    patterns = [ban.pattern for ban in bans if ban.pattern.search is PhraseSearch]
    exact, quick = PhraseSearch(patterns), Prefilter(patterns, PhraseSearch)
    states = [search.forget(search.read(search.start, first)[0]) for search in (exact, quick)]
    found: list[set[tuple[int, int, int]]] = [set(), set()]
    for number, piece in enumerate([*rest, ""]):
        for index, search in enumerate((exact, quick)):
            states[index], result = search.read(states[index], piece, final=number == len(rest))
            size = sum(map(len, rest[: number + 1]))
            found[index] |= {(hit.pattern, size - hit.start_back, size - hit.end_back) for hit in result.matches}
    assert found[0] == found[1]


def test_texts_without_stops_are_searched_in_bounded_memory() -> None:
    """White space and invisible characters leave nothing to stop at, and some texts have no sentences."""
    for filler in (" " * 1000, "\u200b" * 1000, "word " * 200):
        bans = BanList(["a cat", Ban.words(["a", "dog"], gap=1)])
        steps = list(bans.search([*[filler] * 200, " a cat, a big dog. ", *[filler] * 200]))
        assert [match.ban.text for step in steps for match in step.matches] == ["a cat", "a dog"]
        settled = [step.settled for step in steps]
        assert max(after - before for before, after in pairwise(settled)) < 2 * prefilter.MAX_WAITING


def test_a_long_phrase_that_repeats_itself_is_searched_for_at_once() -> None:
    phrase = "ab " * 8000
    began = time.thread_time()
    assert len(BanList([phrase]).find(f"so {phrase}.")) == 1
    assert time.thread_time() - began < 2
