"""The automaton finds the same patterns as a search at every position."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from antislop.core.bans.patterns.phrase import Automaton, TrieNode

patterns = st.lists(
    st.text("ab", min_size=1, max_size=6) | st.text("abc\U0010ffff", min_size=1, max_size=3), max_size=8
)
texts = st.text("abc\U0010ffff", max_size=25)


def walk(automaton: Automaton, text: str, *, node: TrieNode | None = None) -> list[TrieNode]:
    """Return the node after each symbol."""
    nodes, node = [], automaton.root if node is None else node
    for symbol in text:
        node = node[symbol]
        nodes.append(node)
    return nodes


def patterns_at_end(patterns: list[str], text: str) -> tuple[tuple[int, int], ...]:
    """Return the patterns that the text ends with, by a naive search, and their lengths: longest first."""
    found = [(number, len(pattern)) for number, pattern in enumerate(patterns) if text.endswith(pattern)]
    return tuple(sorted(found, key=lambda match: -match[1]))


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
def test_a_node_has_every_pattern_and_every_prefix_that_the_text_ends_with(patterns: list[str], text: str) -> None:
    automaton = Automaton(patterns)
    for end, node in enumerate(walk(automaton, text), start=1):
        assert node.matches == patterns_at_end(patterns, text[:end])
        assert node.longest == longest_incomplete(patterns, text[:end])
        assert automaton.prefix(node) == longest_beginning(patterns, text[:end])


def describe(automaton: Automaton, node: TrieNode) -> tuple[object, ...]:
    return automaton.prefix(node), node.depth, node.matches, node.longest


@given(patterns=patterns, texts=st.lists(texts, min_size=1, max_size=5), forgets=st.booleans())
def test_nodes_do_not_depend_on_earlier_texts(patterns: list[str], texts: list[str], forgets: bool) -> None:
    used = Automaton(patterns)
    for text in texts:
        fresh = Automaton(patterns)
        for node, other in zip(walk(used, text), walk(fresh, text), strict=True):
            assert describe(used, node) == describe(fresh, other)
        if forgets:
            used.forget()


@given(patterns=patterns, before=texts, away=texts, after=texts)
def test_continuing_from_an_earlier_node_gives_the_same_nodes(
    patterns: list[str], before: str, away: str, after: str
) -> None:
    automaton = Automaton(patterns)
    node = [automaton.root, *walk(automaton, before)][-1]
    first = walk(automaton, after, node=node)
    walk(automaton, away, node=node)
    assert walk(automaton, after, node=node) == first


@given(patterns=patterns, before=texts, after=texts)
def test_a_node_that_is_kept_finds_the_same_after_the_others_were_forgotten(
    patterns: list[str], before: str, after: str
) -> None:
    automaton = Automaton(patterns)
    node = [automaton.root, *walk(automaton, before)][-1]
    first = [describe(automaton, each) for each in walk(automaton, after, node=node)]
    automaton.forget()
    assert automaton.nodes == [automaton.root] and not automaton.root
    assert [describe(automaton, each) for each in walk(automaton, after, node=node)] == first


@given(patterns=patterns, text=texts)
def test_a_prefix_has_one_node(patterns: list[str], text: str) -> None:
    automaton = Automaton(patterns)
    nodes = {automaton.root, *walk(automaton, text), *walk(automaton, text[::-1])}
    assert len({automaton.prefix(node) for node in nodes}) == len(nodes)
    assert nodes <= set(automaton.nodes)


def test_nothing_is_found_without_patterns() -> None:
    automaton = Automaton([])
    assert walk(automaton, "abc") == [automaton.root] * 3
    assert automaton.root.matches == () and automaton.root.longest == 0


def test_a_pattern_of_thousands_of_equal_symbols_is_found_at_each_of_its_ends() -> None:
    automaton = Automaton(["a" * 3000])
    nodes = walk(automaton, "a" * 3010)
    assert [len(node.matches) for node in nodes] == [0] * 2999 + [1] * 11
    assert nodes[-1].longest == 2999


def test_thousands_of_patterns_may_end_at_one_position() -> None:
    count = 3000
    automaton = Automaton(["a" * k + "b" for k in range(count)])
    node = walk(automaton, "a" * (count + 10) + "b")[-1]
    assert node.matches == tuple((k, k + 1) for k in range(count - 1, -1, -1))


def test_a_node_may_have_thousands_of_fallbacks_that_were_never_visited() -> None:
    """One pattern is read first, so that the nodes of all others are made in one step."""
    count = 3000
    automaton = Automaton(["a" * count + "c", *("a" * k + "b" for k in range(count + 1))])
    deepest = walk(automaton, "a" * count)[-1]
    assert [pattern for pattern, _ in deepest["b"].matches] == list(range(count + 1, 0, -1))
    assert deepest["c"].matches == ((0, count + 1),)


def test_a_long_pattern_without_repetitions_costs_no_more_than_its_length() -> None:
    pattern = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    nodes = walk(Automaton([pattern]), pattern)
    assert nodes[-1].matches == ((0, 3000),)
    assert [node.longest for node in nodes] == [*range(1, 3000), 0]


@pytest.mark.parametrize("count", [1, 100_000])
def test_nodes_are_made_only_for_visited_prefixes(count: int) -> None:
    automaton = Automaton([f"{number:06}-pattern" for number in range(count)])
    visited = {automaton.root, *walk(automaton, "000000-pat")}
    assert len(automaton.nodes) == len(visited) + _count_suffixes(automaton, visited)
    assert len(automaton.nodes) < 30


def _count_suffixes(automaton: Automaton, visited: set[TrieNode]) -> int:
    """Count the nodes of suffixes of the text that were never nodes of the text itself."""
    seen = {automaton.prefix(node) for node in visited}
    suffixes = {prefix for node in automaton.nodes if any(s.endswith(prefix := automaton.prefix(node)) for s in seen)}
    return len(suffixes - seen)
