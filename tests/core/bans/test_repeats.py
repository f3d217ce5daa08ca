"""Words that stand earlier are found by their definition, in any tokens and after any rewinds."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import example, given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.repeat import Repeat, RepeatOf, RepeatSearch, RepeatState
from antislop.core.bans.scopes import Scope
from antislop.core.bans.token_matcher import Matcher, State
from antislop.errors import BanError
from antislop.lists.own import parse_ban, write_ban
from tests.support.oracles import cut_at, find_in_pieces, repeat_occurrences
from tests.support.toys import Words

VOCABULARY = Words("a", "b", " a", " B", "a ", "b. ", " a b", "\n", None)
tokens = st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=14)
repeats = st.builds(Ban.repeat, st.integers(2, 4), st.sampled_from(["text", "prompt", "both"]))


def show(ids: list[int]) -> str:
    return "".join("\0" if token in VOCABULARY.breaks else VOCABULARY.text([token]) for token in ids)


def naive_violations(
    prompt: list[int], ids: list[int], ban: Ban, *, lookback: bool, is_final: bool = False
) -> list[int]:
    """Return the first tokens of the occurrences that the last token, or the end, completes."""
    owners = [*[0] * len(show(prompt)), *(i for i, token in enumerate(ids) for _ in show([token]))]

    def find(text: str, *, is_final: bool) -> set[tuple[int, int]]:
        size = len(show(prompt))
        return set(repeat_occurrences(text, ban, prompt_size=size, lookback=lookback, is_final=is_final))

    text = show([*prompt, *ids])
    before = find(text, is_final=False) if is_final else find(show([*prompt, *ids[:-1]]), is_final=False)
    new = find(text, is_final=is_final) - before
    return sorted(owners[start] for start, end in new if end > len(show(prompt)))


@given(
    prompt=tokens,
    steps=st.lists(st.tuples(st.integers(0, 9), tokens), min_size=1, max_size=6),
    ban=repeats,
    lookback=st.booleans(),
)
@example(prompt=[], steps=[(0, [0, 1, 3, 7, 0, 1, 3, 7])], ban=Ban.repeat(2), lookback=True)  # a word in two tokens
@example(prompt=[4], steps=[(0, [5, 4, 4, 5])], ban=Ban.repeat(2), lookback=True)  # no sequence of the text begins in
@example(prompt=[0], steps=[(0, [1, 3, 7, 0, 1, 3, 7])], ban=Ban.repeat(2), lookback=True)  # a word of the prompt,
@example(prompt=[4, 1], steps=[(0, [7, 4, 1, 7])], ban=Ban.repeat(2, "prompt"), lookback=True)  # which counts there,
@example(prompt=[4, 5, 0], steps=[(0, [3, 7])], ban=Ban.repeat(2, "both"), lookback=False)  # and may begin none
def test_repeats_are_violations_by_their_definition_after_any_rewinds(
    prompt: list[int], steps: list[tuple[int, list[int]]], ban: Ban, lookback: bool
) -> None:
    matcher, ids = Matcher([ban], VOCABULARY), list[int]()
    states: list[State] = [matcher.start(prompt, lookback=lookback)]
    for back, more in steps:
        kept = max(0, len(ids) - back)
        del ids[kept:], states[kept + 1 :]
        for token in more:
            ids.append(token)
            states.append(matcher.feed(states[-1], token))
            found = [violation.start for violation in states[-1].violations]
            assert found == naive_violations(prompt, ids, ban, lookback=lookback)
            assert all(start >= state.earliest_start for start in found for state in states[:-1])
        ending = [violation.start for violation in matcher.finish(states[-1])]
        assert ending == naive_violations(prompt, ids, ban, lookback=lookback, is_final=True)
        assert all(start >= state.earliest_start for start in ending for state in states)


@given(
    text=st.text(st.sampled_from("ab Aé\u0301.東京\n'"), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=20),
    size=st.integers(2, 3),
)
def test_repeats_are_found_however_a_text_is_cut(text: str, cuts: list[int], size: int) -> None:
    bans = [Ban.repeat(size), Ban.repeat(size + 1)]
    assert find_in_pieces(bans, cut_at(text, cuts)) == find_in_pieces(bans, [text])


@pytest.mark.parametrize(
    ("words", "text", "again"),
    [
        (5, "He saw a red cat. Then he saw, a Red-cat run.", ["he saw, a Red-cat"]),
        (4, '“I don’t know.” "I don\'t know it."', ["I don't know"]),  # "don" and "t" are words
        (4, "no " * 12, ["no no no no", "no no no no"]),  # copies may overlap, occurrences don't
        (4, "東京に行く。東京に行かない。", ["東京に行"]),
        (4, "One two three. One two\n\nfour three. One two three four.", []),
    ],
)
def test_words_compare_under_folding_whatever_is_between_them(words: int, text: str, again: list[str]) -> None:
    found = BanList([Ban.repeat(words)]).find(text)
    assert [text[match.start : match.end] for match in found] == again


def test_names_and_quotes_may_be_written_again() -> None:
    text = "Sir Tom of the Old Mill sat. So Sir Tom of the Old Mill rose. “I am the lord of it.” “I am the lord of it!”"
    found = BanList([Ban.repeat(5)]).find(text)
    assert [text[match.start : match.end] for match in found] == ["Sir Tom of the Old", "I am the lord of"]
    ban = Ban.repeat(5, exempt=["Sir Tom of the Old Mill"], scopes=[Scope("outside", "quotes")])
    assert BanList([ban]).find(text) == []


def test_words_of_the_prompt_stand_in_no_text_without_one() -> None:
    text = "a b c d. a b c d."
    assert [len(BanList([Ban.repeat(4, of)]).find(text)) for of in get_args(RepeatOf)] == [1, 0, 1]


def test_a_repeat_is_saved_and_loaded_without_a_phrase() -> None:
    ban = Ban.repeat(5, of="both", weight=0.5)
    assert write_ban(ban) == "5 words of the prompt or the text again\trepeat weight=0.5 words=5 of=both"
    assert parse_ban(write_ban(ban)) == ban
    assert parse_ban("8 words of the text again\trepeat") == Ban.repeat() == Ban(Ban.repeat().pattern)
    assert BanList([Ban.repeat()]).with_options(of="both") == BanList([Ban.repeat(of="both")])


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: Ban.repeat(1), "from 2 to 1,000"),
        (lambda: Ban.repeat(1001), "from 2 to 1,000"),
        (lambda: Ban.repeat(3.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Ban.repeat(of="chat"), "of 'text', 'prompt' or 'both', not of 'chat'"),  # type: ignore[arg-type]
        (lambda: parse_ban("he ran\trepeat"), "a repeat has no text of its own"),
        (lambda: parse_ban("5 words of the text again\trepeat"), "has the options of '8 words of the text again'"),
        (lambda: parse_ban("a passage 4 times in a row\tloop"), "has the options of 'a passage 3 times in a row'"),
        (lambda: parse_ban("x\tregex words=5"), "the regex 'x' has no option words"),
    ],
)
def test_impossible_options_of_repeats_are_refused(make: Callable[[], Ban], fix: str) -> None:
    with pytest.raises(BanError, match=fix):
        make()


def test_a_text_takes_memory_for_its_words_and_little_for_its_states() -> None:
    search, draw = RepeatSearch([Repeat()]), random.Random(0)
    pieces = [f" {draw.choice('abcdefgh')}{draw.randrange(50)}" for _ in range(4000)]
    _read_all(search, pieces)  # the pieces are remembered by all searches
    tracemalloc.start()
    try:
        states = _read_all(search, pieces)
        of_all = tracemalloc.get_traced_memory()[0]
        del states[:-1]
        of_text = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert of_text < 400 * len(pieces)
    assert of_all < 1000 * len(pieces)


def _read_all(search: RepeatSearch, pieces: list[str]) -> list[RepeatState]:
    states = [search.start]
    for piece in pieces:
        states.append(search.read(states[-1], piece)[0])
    return states


def test_a_text_that_is_read_again_after_a_draft_shares_what_was_recorded() -> None:
    matcher, ids = Matcher([Ban.repeat()], VOCABULARY), [2, 3, 6, 2] * 8
    state = matcher.start()
    for token in ids:
        matcher.feed(matcher.feed(state, token), 7)  # a draft, of which the first token is accepted
        state = matcher.feed(state, token)
    assert state._rest is not None
    path = state._rest.searches[0].track.path
    assert path.edges == (0,) and len(path.record.runs) == 1


def test_a_word_that_is_new_is_not_held_back() -> None:
    search, state, held = RepeatSearch([Repeat()]), None, []
    for piece in ["the old", " door", " of", " the", " new", " door", " of", " the", ",", " ", "old"]:
        state, result = search.read(state or search.start, piece)
        held.append(max(result.open, default=0))
    assert held == [0, 0, 0, 3, 0, 4, 7, 11, 12, 13, 16]
