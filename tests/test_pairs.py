"""Preference pairs say what a model wanted to write and what it wrote instead, in a context that stands there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import Markov, Words, run

from antislop.bans import Ban
from antislop.events import Drawn, Rewound
from antislop.matcher import Violation
from antislop.pairs import balance, find_turns, make_dpo, make_tokens, unique

WORDS = Words("a", "b", "c", "d")
BANS = [Ban("ab", edges="anywhere"), Ban("cc", edges="anywhere"), Ban("da", edges="anywhere")]


def decode(tokens: Sequence[int]) -> str:
    return WORDS.text(tokens)


def rewound(length: int, withdrawn: tuple[int, ...], ban: Ban = BANS[0]) -> Rewound:
    return Rewound(length, withdrawn, Violation(ban, length, length + 1), ((2, 0.6), (3, 0.39), (1, 0.005)))


EVENTS = [Drawn(3), Drawn(0), Drawn(1), rewound(1, (0, 1)), Drawn(2), Drawn(3), Drawn(3)]


def test_a_pair_is_what_was_withdrawn_and_what_stands_there_now() -> None:
    tokens = [3, 2, 3, 3]
    (turn,) = find_turns(EVENTS, tokens)
    assert (turn.place, turn.rejected, turn.chosen) == (1, (0, 1), (2, 3))
    assert list(make_dpo("so ", [turn], tokens, decode=decode)) == [
        {"prompt": "so d", "chosen": "cd", "rejected": "ab", "ban": "ab"}
    ]


def test_a_final_token_pair_holds_the_alternatives_above_a_floor() -> None:
    tokens = [3, 2, 3, 3]
    (row,) = make_tokens("so ", find_turns(EVENTS, tokens), tokens, decode=decode)
    assert row == {
        "context_with_chat_template": "so d",
        "rejected_decoded": "a",
        "rejected_id": 0,
        "multi_chosen_decoded": ["c", "d"],
        "multi_chosen_ids": [2, 3],
        "multi_chosen_probs": [0.6, 0.39],
        "ban": "ab",
    }
    assert not list(make_tokens("", find_turns(EVENTS, tokens), tokens, decode=decode, floor=0.9))


def test_a_rewind_whose_context_was_withdrawn_later_makes_no_pair() -> None:
    events = [*EVENTS, rewound(0, (3, 2, 3, 3)), Drawn(2), Drawn(0)]
    assert [turn.place for turn in find_turns(events, [2, 0])] == [0]


@given(seed=st.integers(0, 500))
def test_every_pair_of_a_run_holds_a_ban_in_what_is_rejected_and_none_in_what_is_chosen(seed: int) -> None:
    torch.manual_seed(seed)
    tokens, report = run(Markov(4, seed=seed, length=12), WORDS, BANS)
    turns = list(find_turns(report.events, tokens))
    for row, turn in zip(make_dpo("", turns, tokens, decode=decode), turns, strict=True):
        text = row["prompt"] + row["chosen"]
        assert decode(tokens).startswith(text)
        assert row["chosen"][0] != row["rejected"][0]
        assert row["rejected"].startswith(row["ban"]) or turn.place == 0
        assert abs(sum(share for _, share in turn.alternatives) - 1) < 1e-5, "they are shares of what is left"


def test_pairs_with_the_same_context_and_the_same_rejected_text_come_once() -> None:
    a, b = ({"prompt": "p", "chosen": chosen, "rejected": "r"} for chosen in "xy")
    assert list(unique([a, b])) == [a]


def test_balancing_keeps_so_many_of_each_ban_in_order_and_at_random() -> None:
    pairs = [{"ban": BANS[i % 3 if i < 9 else 0].phrase, "prompt": str(i)} for i in range(30)]
    kept = balance(pairs, most=3, seed=1)
    assert sorted(row["ban"] for row in kept) == ["ab"] * 3 + ["cc"] * 3 + ["da"] * 3
    assert [int(row["prompt"]) for row in kept] == sorted(int(row["prompt"]) for row in kept)
    assert len({tuple(p["prompt"] for p in balance(pairs, most=3, seed=s)) for s in range(9)}) > 3
    assert balance(pairs, most=99) == pairs
