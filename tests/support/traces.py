"""Traces of toy models, without transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Violation
from antislop.trace import Conceded, Drawn, Finished, Rewound, Settled, Shortened, Trace, TracedRow
from antislop.trace.events import Event, TokenChoice
from tests.support.toys import Words


def make_trace(
    words: Words, *rows: Sequence[Event], prompt: Sequence[int] = (), about: Mapping[str, Any] | None = None
) -> Trace:
    """Return a trace of events."""
    bans = dict.fromkeys(event.violation.ban for row in rows for event in row if isinstance(event, (Rewound, Conceded)))
    return Trace(
        tuple(TracedRow(tuple(prompt), tuple(row)) for row in rows), BanList(list(bans)), words, lambda: about or {}
    )


SPLIT = Words(
    *(
        "a",
        " b",
        "\n",
        "é".encode()[:1],
        "é".encode()[1:],
        "—".encode()[:2],
        "—".encode()[2:],
        "<b>&\"'",
        None,
        "🂡",
        b"\xff",
    ),
    contents={8: "</s>"},
)
"""Tokens that divide characters, markup, a special token, and a byte that is no UTF-8."""


FALLBACK = Words(*(SPLIT.surface(token) or None for token in range(len(SPLIT))), contents={8: "</s>"})
"""The same tokens; those that are a part of a character are tokens of byte fallback."""
FALLBACK.byte_tokens = frozenset({3, 4, 10})


def make_random_events(chance: random.Random, words: Words = SPLIT, *, has_choices: bool = True) -> list[Event]:
    """Return the events of a text that is drawn, rewound, shortened, conceded and settled at random."""
    events: list[Event] = []
    tokens: list[int] = []
    settled = 0
    for _ in range(chance.randint(0, 40)):
        kind = chance.choice("DDDDDRRCSX")
        if kind == "D":
            tokens.append(chance.randrange(len(words)))
            choice = TokenChoice(0.5, 0.25, 2, ((0, 0.5), (tokens[-1], 0.25))) if has_choices else None
            events.append(Drawn(tokens[-1], choice))
        elif len(tokens) > settled:
            length = chance.randrange(settled, len(tokens))
            violation = Violation(Ban(chance.choice(["a b", "é", "x<"]), edges="anywhere"), length, len(tokens) - 1)
            if kind == "S":
                events.append(Settled(tuple(tokens[settled : length + 1])))
                settled = length + 1
            elif kind == "C":
                events.append(Conceded(violation))
            else:
                cut = tuple(tokens[length:])
                events.append(Rewound(length, cut, violation) if kind == "R" else Shortened(length, cut))
                del tokens[length:]
    return [*events, Settled(tuple(tokens[settled:])), Finished("done", 0.0)] if chance.random() < 0.8 else events
