"""One text of a trace: its prompt and events, the tokens that were kept, and each withdrawn attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from antislop.matching.token_matcher import Violation
from antislop.trace.events import Drawn, Event, Finished, Rewound, TokenChoice, Truncated


class Attempt(NamedTuple):
    """Tokens that were withdrawn together.

    token_index: of the first of them in the text.
    step_index: the number of tokens drawn before it, withdrawn ones included.
    choice: of the first token, if it was recorded.
    violation: None if a controller or the other rows of the batch cut the text.
    is_on_path: whether the final text begins with all that preceded the attempt.
    """

    tokens: tuple[int, ...]
    token_index: int
    step_index: int
    choice: TokenChoice | None
    violation: Violation | None
    is_on_path: bool


class KeptToken(NamedTuple):
    """A token of the final text; fields as in `Attempt`.

    rejected: the attempts that were withdrawn at this place after the same tokens, in order.
    """

    token: int
    token_index: int
    step_index: int
    choice: TokenChoice | None
    rejected: tuple[Attempt, ...]


class RowHistory(NamedTuple):
    """The kept tokens of one text, and all attempts, in order.

    rejected_at_end: attempts that were withdrawn behind the last kept token.
    attempts: those on withdrawn paths included.
    """

    kept: tuple[KeptToken, ...]
    rejected_at_end: tuple[Attempt, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class TracedRow:
    """One text of a trace.

    prompt: its ids as the model read them, padding included.
    events: in order; those of an unfinished text don't end with `Finished`.
    mask: for each id of the prompt 0 if it is padding, else 1; None if none is.
    """

    prompt: tuple[int, ...]
    events: Sequence[Event]
    mask: tuple[int, ...] | None = None

    @cached_property
    def history(self) -> RowHistory:
        return read_history(self.events)

    @property
    def is_finished(self) -> bool:
        """Whether the text came to its end, and was not interrupted."""
        return any(isinstance(event, Finished) for event in self.events)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the final text, without the prompt's."""
        return [kept.token for kept in self.history.kept]

    @property
    def sequence(self) -> list[int]:
        """The tokens of prompt and text, without padding."""
        return [*self.prompt_tokens, *self.tokens]

    @property
    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt, without padding."""
        mask = self.mask or (1,) * len(self.prompt)
        return [token for token, is_read in zip(self.prompt, mask, strict=True) if is_read]


@dataclass(eq=False)
class _Prefix:
    """Tokens that the text began with at some time; the numbers of the attempts made after them."""

    parent: _Prefix | None = None
    children: dict[int, _Prefix] = field(default_factory=dict)
    attempts: list[int] = field(default_factory=list)


def read_history(events: Iterable[Event]) -> RowHistory:
    """Return the kept tokens of a text and the withdrawn attempts, from all of its events.

    >>> history = read_history([Drawn(5), Drawn(7), Truncated(1, (7,)), Drawn(8)])
    >>> [(kept.token, kept.token_index, kept.step_index, len(kept.rejected)) for kept in history.kept]
    [(5, 0, 0, 0), (8, 1, 2, 1)]
    """
    prefix = _Prefix()
    text: list[tuple[int, Drawn]] = []  # step index and event of each token
    withdrawn: list[tuple[list[tuple[int, Drawn]], int, Violation | None]] = []
    steps = 0
    for event in events:
        match event:
            case Drawn(token):
                text.append((steps, event))
                steps += 1
                prefix = prefix.children.setdefault(token, _Prefix(prefix))
            case Rewound(length) | Truncated(length):
                for _ in text[length:]:
                    assert prefix.parent is not None
                    prefix = prefix.parent
                prefix.attempts.append(len(withdrawn))
                violation = event.violation if isinstance(event, Rewound) else None
                withdrawn.append((text[length:], length, violation))
                del text[length:]
    path = [prefix]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    path.reverse()
    surviving = {number for prefix in path for number in prefix.attempts}
    attempts = []
    for number, (draws, index, violation) in enumerate(withdrawn):
        step, first = draws[0]
        tokens = tuple(draw.token for _, draw in draws)
        attempts.append(Attempt(tokens, index, step, first.choice, violation, number in surviving))
    rejected = [tuple(attempts[number] for number in prefix.attempts) for prefix in path]
    kept = [KeptToken(draw.token, index, step, draw.choice, rejected[index]) for index, (step, draw) in enumerate(text)]
    return RowHistory(tuple(kept), rejected[-1], tuple(attempts))
