"""Read from events which attempts were withdrawn at each token that was kept. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antislop.matching.token_matcher import Violation
from antislop.trace.events import Drawn, Event, Rewound, Shortened, TokenChoice


class Attempt(NamedTuple):
    """Tokens that were withdrawn together.

    token_index: the place of the first of them in the text. step_index: the number of tokens drawn before it, withdrawn
        ones included. choice: the distribution that it was drawn from, if that was recorded.
    violation: the cause; None if the text was cut because of the other rows of its batch.
    is_on_path: whether the kept text begins with all that preceded the attempt. If not, the tokens before the attempt
        were themselves withdrawn.
    """

    tokens: tuple[int, ...]
    token_index: int
    step_index: int
    choice: TokenChoice | None
    violation: Violation | None
    is_on_path: bool


class KeptToken(NamedTuple):
    """A token of the final text.

    token_index: its place in the text. step_index, choice: as in `Attempt`. rejected: the attempts that were withdrawn
        at this place after the same tokens, in order.
    """

    token: int
    token_index: int
    step_index: int
    choice: TokenChoice | None
    rejected: tuple[Attempt, ...]


class RowHistory(NamedTuple):
    """The kept tokens of one text, and all attempts.

    rejected_at_end: attempts that were withdrawn behind the last kept token, before the text ended there.
    attempts: all attempts, in order, those on withdrawn paths included.
    """

    kept: tuple[KeptToken, ...]
    rejected_at_end: tuple[Attempt, ...]
    attempts: tuple[Attempt, ...]


@dataclass(eq=False)
class _Prefix:
    """One sequence of tokens that the text began with at some time; the numbers of the attempts made after it."""

    parent: _Prefix | None = None
    children: dict[int, _Prefix] = field(default_factory=dict)
    attempts: list[int] = field(default_factory=list)


class _Token(NamedTuple):
    """A token of the text as it is at one time."""

    token: int
    step_index: int
    choice: TokenChoice | None


def read_history(events: Iterable[Event]) -> RowHistory:
    """Return the kept tokens of a text and the attempts that were withdrawn, from all of its events.

    >>> history = read_history([Drawn(5), Drawn(7), Shortened(1, (7,)), Drawn(8)])
    >>> [(kept.token, kept.token_index, kept.step_index, len(kept.rejected)) for kept in history.kept]
    [(5, 0, 0, 0), (8, 1, 2, 1)]
    """
    prefix, text, steps = _Prefix(), list[_Token](), 0
    withdrawn: list[tuple[tuple[_Token, ...], int, Violation | None]] = []
    for event in events:
        if isinstance(event, Drawn):
            text.append(_Token(event.token, steps, event.choice))
            steps += 1
            prefix = prefix.children.setdefault(event.token, _Prefix(prefix))
        elif isinstance(event, (Rewound, Shortened)):
            for _ in text[event.length :]:
                assert prefix.parent is not None
                prefix = prefix.parent
            prefix.attempts.append(len(withdrawn))
            cause = event.violation if isinstance(event, Rewound) else None
            withdrawn.append((tuple(text[event.length :]), event.length, cause))
            del text[event.length :]
    path = [prefix]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    path.reverse()
    surviving = {number for prefix in path for number in prefix.attempts}
    attempts = [_make_attempt(*parts, is_on_path=i in surviving) for i, parts in enumerate(withdrawn)]
    rejected = [tuple(attempts[number] for number in prefix.attempts) for prefix in path]
    kept = [KeptToken(token.token, i, token.step_index, token.choice, rejected[i]) for i, token in enumerate(text)]
    return RowHistory(tuple(kept), rejected[-1], tuple(attempts))


def _make_attempt(
    tokens: Sequence[_Token], token_index: int, violation: Violation | None, *, is_on_path: bool
) -> Attempt:
    first = tokens[0]
    ids = tuple(token.token for token in tokens)
    return Attempt(ids, token_index, first.step_index, first.choice, violation, is_on_path)
