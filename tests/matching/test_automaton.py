"""The automaton finds the same patterns as a search at every position."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from antislop.matching.automaton import ROOT, Automaton

patterns = st.lists(
    st.text("ab", min_size=1, max_size=6) | st.text("abc\U0010ffff", min_size=1, max_size=3), max_size=8
)
texts = st.text("abc\U0010ffff", max_size=25)


def walk(automaton: Automaton, text: str, *, state: int = ROOT) -> list[int]:
    """Return the state after each symbol."""
    states = []
    for symbol in text:
        state = automaton.step(state, symbol)
        states.append(state)
    return states


def patterns_at_end(patterns: list[str], text: str) -> tuple[int, ...]:
    """Return the patterns that the text ends with by a naive search: longest first, equal ones in order."""
    found = [number for number, pattern in enumerate(patterns) if text.endswith(pattern)]
    return tuple(sorted(found, key=lambda number: -len(patterns[number])))


def longest_incomplete(patterns: list[str], text: str) -> int:
    """Return the length of the longest suffix of the text with which a longer pattern begins."""
    lengths = range(len(text), 0, -1)
    return next((n for n in lengths if any(p.startswith(text[-n:]) and len(p) > n for p in patterns)), 0)


def longest_beginning(patterns: list[str], text: str) -> str:
    """Return the longest suffix of the text with which a pattern begins."""
    return next(text[n:] for n in range(len(text) + 1) if any(p.startswith(text[n:]) for p in [*patterns, ""]))


@given(patterns=patterns, text=texts)
@example(patterns=["she", "he", "hers", "he"], text="ushers")
@example(patterns=["\U0010ffff", "a\U0010ffff\U0010ffff", "a\U0010ffffb"], text="a\U0010ffff\U0010ffffa\U0010ffffb")
def test_a_state_has_every_pattern_and_every_prefix_that_the_text_ends_with(patterns: list[str], text: str) -> None:
    automaton = Automaton(patterns)
    for end, state in enumerate(walk(automaton, text), start=1):
        assert automaton.matches[state] == patterns_at_end(patterns, text[:end])
        assert automaton.longest[state] == longest_incomplete(patterns, text[:end])
        assert automaton.prefix(state) == longest_beginning(patterns, text[:end])


@given(patterns=patterns, texts=st.lists(texts, min_size=1, max_size=5))
def test_states_do_not_depend_on_earlier_texts(patterns: list[str], texts: list[str]) -> None:
    used = Automaton(patterns)
    for text in texts:
        fresh = Automaton(patterns)
        for state, other in zip(walk(used, text), walk(fresh, text), strict=True):
            assert used.prefix(state) == fresh.prefix(other)
            assert used.matches[state] == fresh.matches[other]
            assert used.longest[state] == fresh.longest[other]


@given(patterns=patterns, before=texts, away=texts, after=texts)
def test_continuing_from_an_earlier_state_gives_the_same_states(
    patterns: list[str], before: str, away: str, after: str
) -> None:
    automaton = Automaton(patterns)
    state = [ROOT, *walk(automaton, before)][-1]
    first = walk(automaton, after, state=state)
    walk(automaton, away, state=state)
    assert walk(automaton, after, state=state) == first


@given(patterns=patterns, text=texts)
def test_a_prefix_has_one_state(patterns: list[str], text: str) -> None:
    automaton = Automaton(patterns)
    states = {ROOT, *walk(automaton, text), *walk(automaton, text[::-1])}
    assert len({automaton.prefix(state) for state in states}) == len(states)


def test_nothing_is_found_without_patterns() -> None:
    automaton = Automaton([])
    assert walk(automaton, "abc") == [ROOT] * 3
    assert automaton.matches[ROOT] == () and automaton.longest[ROOT] == 0


def test_a_pattern_of_thousands_of_equal_symbols_is_found_at_each_of_its_ends() -> None:
    automaton = Automaton(["a" * 3000])
    states = walk(automaton, "a" * 3010)
    assert [len(automaton.matches[state]) for state in states] == [0] * 2999 + [1] * 11
    assert automaton.longest[states[-1]] == 2999


def test_thousands_of_patterns_may_end_at_one_position() -> None:
    count = 3000
    automaton = Automaton(["a" * k + "b" for k in range(count)])
    state = walk(automaton, "a" * (count + 10) + "b")[-1]
    assert automaton.matches[state] == tuple(range(count - 1, -1, -1))


def test_a_state_may_have_thousands_of_fallbacks_that_were_never_visited() -> None:
    """One pattern is read first, so that the states of all others are made in one step."""
    count = 3000
    automaton = Automaton(["a" * count + "c", *("a" * k + "b" for k in range(count + 1))])
    deepest = walk(automaton, "a" * count)[-1]
    assert automaton.matches[automaton.step(deepest, "b")] == tuple(range(count + 1, 0, -1))
    assert automaton.matches[automaton.step(deepest, "c")] == (0,)


def test_a_long_pattern_without_repetitions_costs_no_more_than_its_length() -> None:
    pattern = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    automaton = Automaton([pattern])
    states = walk(automaton, pattern)
    assert automaton.matches[states[-1]] == (0,)
    assert [automaton.longest[state] for state in states] == [*range(1, 3000), 0]


@pytest.mark.parametrize("count", [1, 100_000])
def test_states_are_made_only_for_visited_prefixes(count: int) -> None:
    automaton = Automaton([f"{number:06}-pattern" for number in range(count)])
    states = walk(automaton, "000000-pat")
    assert len(automaton.matches) == 1 + len({s for s in states if s != ROOT}) + _suffix_states(automaton, states)
    assert len(automaton.matches) < 30


def _suffix_states(automaton: Automaton, states: list[int]) -> int:
    """Count the states of suffixes of the text that were never states of the text itself."""
    visited = {automaton.prefix(state) for state in states}
    prefixes = {automaton.prefix(state) for state in range(len(automaton.matches))}
    suffixes = {prefix for prefix in prefixes if any(seen.endswith(prefix) for seen in visited)} - {""}
    return len(suffixes - visited)
