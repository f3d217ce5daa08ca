"""Constructions match their examples and not their counter-examples, however a text is cut into pieces."""

from __future__ import annotations

import time
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, strategies as st

import antislop
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bundled import Construction, read_constructions
from antislop.core.bans.text_matcher import TextMatcher
from antislop.core.bans.token_matcher import Matcher
from antislop.errors import BanError
from tests.support.depth import sample_size
from tests.support.oracles import cut_at, find_in_pieces, matches
from tests.support.toys import Words

ALL = read_constructions()
constructions = pytest.mark.parametrize("construction", ALL, ids=[entry.name for entry in ALL])
PLAIN = (
    "The old house stood at the end of the lane. Nobody had lived there for years, and the garden was wild. "
    "On some evenings a light went through its rooms; then the dogs barked until morning."
)


@constructions
def test_every_example_contains_its_construction(construction: Construction) -> None:
    bans = BanList([construction.ban])
    assert len(set(construction.examples)) >= 12
    assert [text for text in construction.examples if not bans.find(text)] == []


@constructions
def test_no_counterexample_contains_its_construction(construction: Construction) -> None:
    bans = BanList([construction.ban])
    assert len(set(construction.counterexamples)) >= 12
    assert [text for text in construction.counterexamples if bans.find(text)] == []


@constructions
def test_curly_and_straight_apostrophes_and_quotes_are_the_same(construction: Construction) -> None:
    bans, straight = BanList([construction.ban]), str.maketrans("‘’“”", "''\"\"")
    for text in (*construction.examples, *construction.counterexamples):
        assert bool(bans.find(text.translate(straight))) == bool(bans.find(text)), text


@constructions
def test_the_match_in_an_example_does_not_depend_on_how_it_is_cut(
    construction: Construction,
) -> None:
    for text in construction.examples[: sample_size(len(construction.examples))]:
        expected = [(0, *match[1:]) for match in BanList([construction.ban]).find(text)]
        places = Random(text).sample(range(len(text)), min(len(text), sample_size(len(text))))
        for pieces in (*([text[:cut], text[cut:]] for cut in places), list(text)):
            assert find_in_pieces([construction.ban], pieces) == expected


@given(data=st.data(), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_all_constructions_together_match_as_each_does_alone(data: st.DataObject, cuts: list[int]) -> None:
    sentences = st.sampled_from([text for entry in ALL for text in (*entry.examples, *entry.counterexamples)])
    text = " ".join(data.draw(st.lists(sentences, min_size=1, max_size=5)))
    expected = sorted(
        (number, *span)
        for number, entry in enumerate(ALL)
        for span in matches(entry.ban.text, text, max_span=entry.ban.pattern.max_span)
    )
    assert find_in_pieces([entry.ban for entry in ALL], cut_at(text, cuts)) == expected


@constructions
def test_no_example_is_longer_than_the_declared_span(construction: Construction) -> None:
    longest = max(len(text) for text in construction.examples)
    assert longest <= construction.ban.pattern.max_span


def test_no_text_is_held_back_before_a_construction_begins() -> None:
    words = [f" {word}" for word in PLAIN.split()]
    matcher = Matcher(antislop.constructions(), Words(*words))
    state, held = matcher.start(), []
    for token in range(len(words)):
        state = matcher.feed(state, token)
        held += [words[token]] if state.earliest_start < state.length else []
    assert held == [" The", " and", " was", " a"]  # "The result?", "and honestly?", "was not …"; "a" may become "are"


def test_all_constructions_together_take_microseconds_per_token() -> None:
    """The bound leaves room for other work on the machine; data/README.md contains the measured time."""
    text = " ".join(text for entry in ALL for text in entry.counterexamples)
    pieces = [text[start:end] for start, end in pairwise(range(0, len(text), 4))]
    detector = TextMatcher(antislop.constructions())
    place, rest, begun = detector.phrases.start, detector.start, time.process_time()
    for piece in pieces:
        place, rest, _ = detector.read(place, rest, piece)
    assert (time.process_time() - begun) / len(pieces) < 500e-6
    assert not detector.timed_out


def test_constructions_are_chosen_by_name_and_an_unknown_name_is_refused_with_a_list_of_names() -> None:
    assert len(antislop.constructions()) == len(ALL) == len({entry.name for entry in ALL})
    assert [ban.text for ban in antislop.constructions("more-than-just")] == [
        entry.ban.text for entry in ALL if entry.name == "more-than-just"
    ]
    with pytest.raises(BanError, match="no construction 'tapestry'; there are not-x-but-y, "):
        antislop.constructions("tapestry")
