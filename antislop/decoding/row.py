"""One text in the making: its tokens, where it stands in the tree of known distributions, and what is settled of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from antislop.decoding.ledger import Node
from antislop.decoding.protocols import send
from antislop.matching.token_matcher import State


class Settings(Protocol):
    """What was asked for: processors, and when a text ends."""

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores [n, vocab] for logits [n, vocab] after the first `lengths[i]` generated tokens of each row."""

    def is_done(self, row: Row) -> bool:
        """Tell whether a stopping criterion is met after the row's tokens."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text."""


class History(Protocol):
    """What processors and criteria were asked about the rows of a batch, where they may remember it."""

    is_together: bool
    """Whether a row may draw its token n + 1 only after `ask` was called for the first n tokens of all rows."""

    @property
    def asked(self) -> int:
        """About how many tokens of each row the criteria were asked."""

    def ask(self) -> Sequence[bool]:
        """Ask about one token more of each row; return for each whether it ends there."""

    def rewind(self, row: Row, length: int) -> None:
        """Take note that a row was taken back to `length` tokens; raise `ValueError` if that can't be followed."""

    def settle(self, length: int) -> None:
        """Take note that no row will be taken back below `length` tokens."""

    def may_ask_again(self, length: int) -> bool:
        """Tell whether the processors can be asked a second time after `length` tokens."""


class Draft(NamedTuple):
    """Tokens that may come next, and, where they were drawn, the distribution of each, [tokens, vocab].

    Only the first `read` of them are read ahead, or all. The one after those still takes part in drawing: to leave it
    out because of what it is would be a choice that the distribution knows nothing of.
    """

    proposed: list[int]
    proposals: Tensor | None = None
    read: int | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens that are read ahead."""
        return self.proposed[: self.read]


NO_DRAFT = Draft([])


class Row:
    """One text in the making.

    prompt: ids [1, tokens]. state: the matcher's after the prompt. capacity: the most tokens that may be generated.
    place: its row in the batch. generator: its own random numbers, so that it does not matter what it is batched with.
    keep_scores: remember logits and scores of the kept tokens. history: what has to follow rewinds, shared by the rows
    of a batch; None if nothing remembers the text. end: where the text ends, unless another row of the batch is
    rewritten in a way that changes that.
    """

    def __init__(
        self,
        prompt: Tensor,
        *,
        settings: Settings,
        state: State,
        capacity: int,
        place: int = 0,
        generator: torch.Generator | None = None,
        keep_scores: bool = False,
        history: History | None = None,
    ) -> None:
        self.prompt_length = prompt.shape[1]
        self._ids = torch.cat([prompt, prompt.new_zeros((1, capacity))], dim=1)
        self._written = 0  # of the tokens, how many stand in the ids already
        self.settings = settings
        self.capacity = capacity
        self.place = place
        self.generator = generator
        self.tokens: list[int] = []
        self.draft = NO_DRAFT
        self.unchanged = 0
        self.node = Node()
        self.state = state
        self.settled = 0
        self.withdrawn = 0
        self.matcher_seconds = 0.0
        self.is_finished = False
        self.is_waiting = False  # for the other rows of its batch
        self.end: int | None = None
        self.history = history
        self.kept: list[tuple[Tensor, Tensor]] | None = [] if keep_scores else None

    @property
    def is_alone(self) -> bool:
        """Whether it has random numbers of its own, and so can end in a failure while the others of its batch go on."""
        return self.generator is not None

    @property
    def ids(self) -> Tensor:
        """Prompt and tokens, [1, tokens]."""
        return self.ids_up_to(len(self.tokens))

    def ids_up_to(self, length: int) -> Tensor:
        """Prompt and the first `length` tokens, or those of the draft after them, [1, tokens]."""
        if self._written < length:
            tokens = (self.tokens + self.draft.tokens)[self._written : length]
            start = self.prompt_length + self._written
            self._ids[0, start : start + len(tokens)] = send(torch.tensor(tokens), self._ids.device)
            self._written = min(length, len(self.tokens))
        return self._ids[:, : self.prompt_length + length]

    def ids_filled(self, length: int, filler: int) -> Tensor:
        """Prompt and the first `length` tokens, [1, tokens]; those that the text does not have are the filler."""
        held = min(length, len(self.tokens) + len(self.draft.tokens))
        ids = self.ids_up_to(held)
        return ids if held == length else torch.cat([ids, ids.new_full((1, length - held), filler)], dim=1)

    def append(self, token: int, state: State) -> None:
        """Add a token to the text."""
        self.tokens.append(token)
        self.state = state
        if self.kept is not None:
            self.kept.append((self.node.logits, self.node.scores))

    def rewind(self, length: int) -> tuple[int, ...]:
        """Go back to `length` tokens and return the others."""
        withdrawn = tuple(self.tokens[length:])
        del self.tokens[length:]
        if self.kept is not None:
            del self.kept[length:]
        self.state = self.state.back_to(length)
        self.node = self.node.back_to(length)
        self.unchanged = min(self.unchanged, length)
        self._written = min(self._written, length)
        self.withdrawn += len(withdrawn)
        self.draft = self.draft._replace(proposals=None)  # each was good for one draw
        if self.history is not None:
            self.history.rewind(self, length)
        return withdrawn
