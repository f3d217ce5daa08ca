"""Each withdrawn attempt belongs to the token that was kept in its place, or is marked as one on a withdrawn path."""

from __future__ import annotations

import random

import pytest

from antislop import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Drawn, Event, Rewound, Settled, Truncated
from antislop.core.trace.trace import RowHistory, read_history
from tests.support.depth import first_quick, sample_size

BAN = Ban("a b")


def write_at_random(seed: int) -> list[Event]:
    """Return the events of a text over three tokens, so that the same path is often taken again."""
    choice, text, events = random.Random(seed), list[int](), list[Event]()
    for _ in range(choice.randrange(60)):
        if text and choice.random() < 0.25:
            length = choice.randrange(len(text))
            withdrawn = tuple(text[length:])
            violation = Violation(BAN, length, len(text) - 1)
            is_cut = choice.random() < 0.1
            events.append(Truncated(length, withdrawn) if is_cut else Rewound(length, withdrawn, violation))
            del text[length:]
        else:
            text.append(choice.randrange(3))
            events.append(Drawn(text[-1]))
    return [*events, Settled(tuple(text))]


def list_naively(events: list[Event]) -> tuple[list[int], list[tuple[int, tuple[int, ...], bool]]]:
    """Return the final tokens and, of each attempt, its place, its tokens, and whether the final text precedes it."""
    text, attempts = list[int](), list[tuple[list[int], tuple[int, ...]]]()
    for event in events:
        if isinstance(event, Drawn):
            text.append(event.token)
        elif isinstance(event, (Rewound, Truncated)):
            attempts.append((text[: event.length], tuple(text[event.length :])))
            text = text[: event.length]
    return text, [(len(before), tokens, text[: len(before)] == before) for before, tokens in attempts]


def list_rejected(history: RowHistory) -> list[tuple[int, tuple[int, ...]]]:
    groups = [*(kept.rejected for kept in history.kept), history.rejected_at_end]
    assert all(attempt.token_index == place for place, group in enumerate(groups) for attempt in group)
    return [(attempt.token_index, attempt.tokens) for group in groups for attempt in group]


@pytest.mark.parametrize("texts", first_quick([100, sample_size(1000)]))
def test_attempts_on_the_surviving_path_appear_exactly_once_in_random_texts(texts: int) -> None:
    count = 0
    for seed in range(texts):
        events = write_at_random(seed)
        history, (text, attempts) = read_history(events), list_naively(events)
        assert [kept.token for kept in history.kept] == text
        assert [(a.token_index, a.tokens, a.is_on_path) for a in history.attempts] == attempts
        surviving = [(place, tokens) for place, tokens, is_on_path in attempts if is_on_path]
        assert sorted(list_rejected(history)) == sorted(surviving)
        count += len(attempts) - len(surviving)
    assert count > texts  # attempts on withdrawn paths occur as well


def test_steps_count_all_draws_and_places_the_kept_ones() -> None:
    for seed in range(sample_size(200)):
        events = write_at_random(seed)
        drawn = [event.token for event in events if isinstance(event, Drawn)]
        history = read_history(events)
        assert [kept.token_index for kept in history.kept] == list(range(len(history.kept)))
        assert all(drawn[kept.step_index] == kept.token for kept in history.kept)
        assert all(drawn[a.step_index] == a.tokens[0] for a in history.attempts)
        steps = [kept.step_index for kept in history.kept]
        assert steps == sorted(set(steps))


def test_a_path_that_is_drawn_again_keeps_the_attempts_made_after_it_before() -> None:
    violation = Violation(BAN, 0, 1)
    events = [Drawn(1), Drawn(2), Rewound(1, (2,), violation), Drawn(0), Rewound(0, (1, 0), violation), Drawn(1)]
    history = read_history([*events, Drawn(5)])
    assert [[a.tokens for a in kept.rejected] for kept in history.kept] == [[(1, 0)], [(2,)]]
    assert all(attempt.is_on_path for attempt in history.attempts)
