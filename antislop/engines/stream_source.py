"""Add to a text the tokens that a server has drawn, and keep a table of the probabilities that the server sent.

The server sends the probabilities of some tokens only. A violation is subtracted if those of all its tokens are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from math import log
from typing import Any

import torch

from antislop.core.loop import DenseTable, LogitsDrawing, Node, Row, add, begin
from antislop.core.trace import Drawn

LOWEST_BIAS = -100.0
"""The bias of a token of which nothing is left; servers clamp lower biases to this value."""
GREEDY_REWINDS = 8
"""Rewinds of a greedy text to one position after which tokens that begin a ban are left out there.

Many tokens may end a phrase's last word; a server that sends few of the likeliest tokens shows them one by one.
"""
ROUNDING = 1e-5
"""Largest sum of the unknown tokens' probabilities that may be due to rounding alone."""


class SparseTable:
    """The distribution of the next token at a node, as far as the server sent it.

    told: how many of the likeliest tokens the server sent at once; 0 if it sent only the drawn tokens.
    is_whole: whether all tokens are known; if their probabilities then don't add up to 1, this is due to rounding.
    is_forced: whether a grammar allows only one token, so that asking for more tokens is useless.
    """

    def __init__(self) -> None:
        self.told = 0
        self.is_whole = False
        self.is_forced = False
        self._known: dict[int, float] = {}
        self._known_mass = 0.0
        self._left: dict[int, float] = {}  # of tokens from which something was subtracted
        self._known_left: float | None = 0.0  # what is left of the known mass; None: to be computed when asked for

    def note(self, token: int, probability: float) -> None:
        """Store a token's probability, unless an earlier one is stored, to which masses already refer."""
        if token not in self._known:
            self._known[token] = probability
            self._known_mass += probability
            self._known_left = None

    def tell(self, likeliest: Sequence[tuple[int, float]]) -> None:
        """Store the probabilities of the likeliest tokens. If one is 0, tokens that are not listed have 0 as well."""
        for token, probability in likeliest:
            if probability > 0:
                self.note(token, probability)
        self.told = max(self.told, len(likeliest))
        self.is_whole = self.is_whole or any(probability == 0 for _, probability in likeliest)

    @property
    def unknown(self) -> float:
        """The probability of all unknown tokens together."""
        unknown = 1.0 - self._known_mass
        return 0.0 if self.is_whole or unknown < ROUNDING else unknown

    def draw(self, number: float) -> int | None:
        """Return the token that a random number in [0, 1) draws from what is left; None for an unknown token."""
        rest, drawn = number * self.mass_left(), None
        for token in self._known:
            if (left := self.left(token)) > 0:
                rest, drawn = rest - left, token
                if rest < 0:
                    return token
        return None if self.unknown else drawn  # `rest` may be above 0 due to rounding

    @property
    def known(self) -> Collection[int]:
        return self._known

    @property
    def touched(self) -> int:
        return len(self._left)

    @property
    def subtracted(self) -> float:
        return sum(self._known[token] - mass for token, mass in self._left.items())

    def share_left(self, token: int) -> float:
        """Return the fraction of a token's probability that was not subtracted, 0 to 1."""
        known = self._known.get(token, 0.0)
        return self.left(token) / known if known > 0 else 1.0

    def biases(self) -> dict[int, float]:
        """Return by token what a server must add to its log-probability to draw from what is left."""
        shares = {token: self.share_left(token) for token in self._left}
        return {
            token: max(LOWEST_BIAS, log(share)) if share > 0 else LOWEST_BIAS
            for token, share in shares.items()
            if share != 1
        }

    def knows(self, token: int) -> bool:
        return token in self._known

    def probability(self, token: int) -> float:
        return self._known[token]

    def left(self, token: int) -> float:
        return self._left.get(token, self._known[token])

    def set_left(self, token: int, mass: float) -> None:
        self._left[token], self._known_left = mass, None

    def clear(self, tokens: Sequence[int]) -> list[float]:
        for token in tokens:
            self.set_left(token, 0.0)
        return [self._known[token] for token in tokens]

    def mass_left(self) -> float:
        if self._known_left is None:
            self._known_left = self._known_mass if not self._left else sum(map(self.left, self._known))
        return self.unknown + self._known_left

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        left = [(token, mass) for token in self._known if (mass := self.left(token)) > 0]
        return sorted(left, key=lambda pair: pair[1], reverse=True)[:count]

    def copy(self) -> SparseTable:
        other = copy(self)
        other._known, other._left = dict(self._known), dict(self._left)
        return other


class StreamDrawing(LogitsDrawing):
    """The `Drawing` of a row whose tokens a server draws.

    visible: how many of the likeliest tokens the server returns at most per position.
    looks_further: whether the server can be asked for the tokens that truncation hides.
    look_ahead: returns the server's grammar after some number of tokens; None if it is unknown.
    """

    def __init__(
        self, *, visible: int = 0, looks_further: bool = False, look_ahead: Callable[[int], Any] = lambda _: None
    ) -> None:
        super().__init__()
        self._visible = visible
        self.looks_further = looks_further
        self._look_ahead = look_ahead

    def walk(self, row: Row) -> None:
        """Do nothing: the server draws further tokens."""

    def has_choice(self, row: Row, node: Node, *, avoided: Node | None = None) -> bool:
        """Report what `Drawing.has_choice` does; also True where `look_further` may still find tokens."""
        may_look = not (
            isinstance(node.table, DenseTable) or (isinstance(node.table, SparseTable) and node.table.is_forced)
        )
        return (may_look and self.looks_further) or super().has_choice(row, node, avoided=avoided)

    def is_stuck(self, row: Row, start: Node) -> bool:
        """Report whether a greedy text was rewound to `start` again and again, and all visible tokens are used up."""
        is_greedy, table = not row.spec.policy.do_sample, row.node.table
        is_used_up = isinstance(table, SparseTable) and table.touched >= self._visible
        return is_greedy and start.rewinds >= GREEDY_REWINDS and is_used_up

    def look_ahead(self, row: Row, node: Node) -> Any:  # noqa: ARG002
        return self._look_ahead(node.depth)


class StreamSource:
    """Adds to a row the tokens that a server has drawn."""

    def __init__(self, row: Row, drawing: StreamDrawing) -> None:
        self.row, self._drawing = row, drawing
        begin([row], lambda _: drawing)

    @property
    def table(self) -> SparseTable:
        """The distribution of the next token, as far as it is known; raises where `dense` has taken its place."""
        node = self.row.node
        if node.table is None:
            node.table = SparseTable()
        assert isinstance(node.table, SparseTable), "the place has logits"
        return node.table

    @property
    def dense(self) -> DenseTable | None:
        """The distribution of the next token where `look_further` was called; elsewhere None."""
        table = self.row.node.table
        return table if isinstance(table, DenseTable) else None

    @property
    def must_look_further(self) -> bool:
        """Whether a rewind led to a place where almost nothing is left, and `look_further` was not called there yet."""
        node, floor = self.row.node, self.row.spec.policy.mass_floor
        return self._drawing.looks_further and node.rewinds > 0 and self.dense is None and node.is_scarce(floor)

    def look_further(self, likeliest: Sequence[tuple[int, float]]) -> None:
        """Replace the table by the model's own distribution, before truncation, from which `draw` then draws.

        likeliest: tokens and their probabilities in it; no other token is drawn. If empty, nothing is left to draw.
        """
        row, node, before = self.row, self.row.node, self.table
        ids = [*row.spec.prompt[0].tolist(), *row.tokens, *(token for token, _ in likeliest)]
        logits = torch.full((1, 1 + max(ids)), -torch.inf)
        for token, probability in likeliest:
            logits[0, token] = log(probability) if probability > 0 else -torch.inf
        table = node.table = DenseTable.of(logits, row.spec.callbacks.process([row], [node.depth], logits))
        for token, _ in likeliest:
            table.set_left(token, table.probability(token) * before.share_left(token))
        if not likeliest or not LogitsDrawing.has_choice(self._drawing, row, node):
            table.keep_only(torch.zeros(logits.shape[1], dtype=torch.bool))

    def keeps(self, token: int) -> bool:
        """Decide whether a token that the server drew from the whole distribution counts as drawn from what is left.

        A sampled token is kept with probability (left / original), a greedy one if nothing was subtracted from it.
        """
        if self.dense is not None:
            return False  # the next token comes from `draw`
        share, spec = self.table.share_left(token), self.row.spec
        return share >= 1 or (spec.policy.do_sample and float(torch.rand((), generator=spec.generator)) < share)

    def tell(self, likeliest: Sequence[tuple[int, float]]) -> None:
        """Store the probabilities of the likeliest next tokens."""
        if self.dense is None:
            self.table.tell(likeliest)

    def draw(self) -> int | None:
        """Draw the next token from what bans have left; None if a token of unknown probability is to be drawn.

        The caller must then have the server draw one of all unknown tokens, in proportion to their probabilities.
        """
        spec = self.row.spec
        if self.dense is not None:
            return self.dense.draw(do_sample=spec.policy.do_sample, generator=spec.generator)
        return self.table.draw(float(torch.rand((), dtype=torch.float64, generator=spec.generator)))

    def take(self, token: int, probability: float | None, alternatives: Sequence[tuple[int, float]] = ()) -> bool:
        """Add the next token, and return whether it stays; if not, the row was rewound or is finished.

        probability: the token's, before anything was subtracted; None if unknown.
        alternatives: the likeliest tokens and their probabilities.
        """
        if probability is not None and self.dense is None:
            self.table.note(token, probability)
        if alternatives:
            self.tell(alternatives)
        return add(self.row, Drawn.plain(token)) in ("stays", "done")
