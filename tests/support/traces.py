"""Traces of toy models, without transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace import Admitted, Conceded, Drawn, Finished, Rewound, Settled, Trace, TracedRow, Truncated
from antislop.core.trace.events import Event, TokenChoice
from tests.support.toys import Words


def make_trace(
    words: Words, *rows: Sequence[Event], prompt: Sequence[int] = (), about: Mapping[str, Any] | None = None
) -> Trace:
    """Return a trace of events."""
    bans = dict.fromkeys(
        event.violation.ban for row in rows for event in row if isinstance(event, (Rewound, Conceded, Admitted))
    )
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
                events.append(Rewound(length, cut, violation) if kind == "R" else Truncated(length, cut))
                del tokens[length:]
    return [*events, Settled(tuple(tokens[settled:])), Finished("done", 0.0)] if chance.random() < 0.8 else events


WORDS = Words("I", " saw", " a", " cat", " dog", " emu", "s", None)
CAT, DOGS = Ban("a cat"), Ban("a dog")
DOG_CHOICE = TokenChoice(0.2, 0.4, 2, ((5, 0.6), (4, 0.4)))
NESTED: list[Event] = [
    *map(Drawn, (0, 1, 2, 3)),
    Rewound(2, (2, 3), Violation(CAT, 2, 3), ((5, 0.6), (4, 0.4))),
    Drawn(2),
    Drawn(3),
    Rewound(3, (3,), Violation(CAT, 2, 3)),
    Drawn(4, DOG_CHOICE),
    Rewound(1, (1, 2, 4), Violation(DOGS, 2, 3)),
    *map(Drawn, (5, 6)),
    Settled((0, 5, 6)),
    Finished("done", 0.0),
]
"""I saw a cat -> I saw a cat -> I saw a dog -> I emus: the second cat is withdrawn on a path that is withdrawn too."""

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;\x1b[2J\u202e\u2066{{7+7}}<!--"


def make_marked(text: str) -> Trace:
    """Return a trace with a text everywhere: tokens, bans, prompt, facts."""
    words = Words(text, f" {text}", "b", None, contents={3: text})
    ban = Ban(text, edges="anywhere")
    events: list[Event] = [
        *map(Drawn, (0, 2, 1)),
        Rewound(1, (2, 1), Violation(ban, 1, 2), ((0, 0.5),)),
        Drawn(1, TokenChoice(0.5, 0.5, 1, ((1, 0.5), (0, 0.25)))),
        Conceded(Violation(ban, 1, 1)),
        Drawn(3),
        Drawn(0),
        Admitted(Violation(ban, 3, 3)),
    ]
    return make_trace(words, events, prompt=[0, 3], about={"model": {"name": text, text: text}, "criteria": [text]})
