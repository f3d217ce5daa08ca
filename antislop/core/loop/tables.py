"""Two tables of the ledger: the softmax of a model's logits, and one continuation that is certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antislop.core.bans.token_matcher import State
from antislop.core.loop.ledger import Node
from antislop.core.loop.protocols import send
from antislop.core.trace.events import Drawn, TokenChoice

KEPT_SHARE = 0.75
"""A batch is copied without the rows that nothing refers to once at most this share of its rows is left."""
BLOCK = 128
"""How many tokens make a block: a search finds a block by its sum or its largest mass, then the token in the block."""


class LogitsBatch:
    """The logits of one forward pass, for as long as a table of one of its rows is in the ledger.

    logits: [n, vocab].
    scores: float32 [n, vocab], what the processors made of the logits; the same tensor if there are none.
    dtype: in which the model computed the logits.
    probs: the softmax of the scores if a draw has computed it, until the batch is trimmed: it is a third of a rewind.
    """

    __slots__ = ("_dtype", "_is_processed", "_tables", "logits", "probs", "scores")

    def __init__(self, logits: Tensor, scores: Tensor, *, dtype: torch.dtype = torch.float32) -> None:
        self.logits, self.scores = logits, scores
        self.probs: Tensor | None = None
        self._dtype = dtype
        self._is_processed = scores is not logits
        self._tables: list[ref[DenseTable]] = []

    def add(self, table: DenseTable) -> None:
        self._tables.append(ref(table))

    def trim(self) -> bool:
        """Free the rows that no table refers to; return whether any row is left.

        The logits of those that are left are stored as the model computed them: bfloat16 takes half of the memory.
        """
        self.probs = None
        tables = [table for weak in self._tables if (table := weak()) is not None]
        if len(tables) < len(self._tables):
            self._tables = [ref(table) for table in tables]
        if tables and (len(tables) <= KEPT_SHARE * len(self.logits) or self.logits.dtype != self._dtype):
            rows = send(torch.tensor([table.row for table in tables]), self.logits.device)
            self.logits = self.logits[rows].to(self._dtype)
            self.scores = self.scores[rows] if self._is_processed else self.logits
            for row, table in enumerate(tables):
                table.row = row
        return bool(tables)


class Draws(NamedTuple):
    """One drawn token for each of n rows.

    states: the matcher's, after the tokens.
    """

    batch: LogitsBatch
    events: list[Drawn]
    states: list[State]


class DenseTable:
    """The distribution that `generate` would draw from, and what bans have left of it.

    row: of the batch.
    restrict: applied to the logits [vocab] before the processors.
    spent: bool [vocab], on the host: tokens of distributions that were given up here.

    The first draw happens on the device of the logits. After a subtraction, the rest is kept on the host and drawn from
    there, so that reading it does not wait for the device.
    """

    __slots__ = ("__weakref__", "_batch", "_before", "_left", "_probs", "_sums", "restrict", "row", "spent")

    def __init__(self, batch: LogitsBatch, row: int = 0, *, restrict: Callable[[Tensor], Tensor] | None = None) -> None:
        self._batch = batch
        self.row = row
        self._probs: Tensor | None = None  # None as long as they can be computed from the scores
        self._left: Tensor | None = None  # padded to whole blocks; None while nothing was subtracted
        self._sums: NDArray[np.float64] | None = None  # the mass left up to the end of each block; None after a change
        self._before: dict[int, float] = {}  # probabilities of tokens from which something was subtracted
        self.restrict = restrict
        self.spent: Tensor | None = None
        batch.add(self)

    @classmethod
    def of(cls, logits: Tensor, scores: Tensor) -> DenseTable:
        """Return the table of logits and scores, both [1, vocab], that no other row shares."""
        return cls(LogitsBatch(logits, scores))

    @property
    def logits(self) -> Tensor:
        """The model's, float32 [1, vocab]."""
        return self._batch.logits[self.row : self.row + 1].float()

    @property
    def scores(self) -> Tensor:
        """What the processors made of the logits, float32 [1, vocab]."""
        return self._batch.scores[self.row : self.row + 1].float()

    @property
    def probs(self) -> Tensor:
        """The distribution before anything was subtracted, [vocab], on the host."""
        if self._probs is not None:
            return self._probs
        known = self._batch.probs
        return (torch.softmax(self.scores[0], dim=-1) if known is None else known[self.row].float()).cpu()

    @property
    def remaining(self) -> Tensor:
        """The probabilities without what was subtracted, [vocab], on the host, not normalized."""
        return self._blocks[: self._batch.logits.shape[-1]]

    @property
    def _blocks(self) -> Tensor:
        if self._left is None:
            self._left = fill_blocks(self.probs)
        return self._left

    def knows(self, token: int) -> bool:
        # Always true of logits of this process. Those made of what a server sent may be too short to have the token.
        return token < self._batch.logits.shape[-1]

    def probability(self, token: int) -> float:
        if token in self._before:
            return self._before[token]
        return self.left(token) if self._probs is None else float(self._probs[token])

    def left(self, token: int) -> float:
        return float(self._blocks.numpy()[token])

    def set_left(self, token: int, mass: float) -> None:
        self._before[token] = self.probability(token)
        self._blocks.numpy()[token], self._sums = mass, None

    def clear(self, tokens: Sequence[int]) -> list[float]:
        # A few tokens of an array take 2 µs, those of a tensor 20.
        left, index = self._blocks.numpy(), np.array(tokens)
        numbers = (left if self._probs is None else self._probs.numpy())[index].tolist()
        left[index], self._sums = 0.0, None
        return [self._before.setdefault(token, number) for token, number in zip(tokens, numbers, strict=True)]

    def mass_left(self) -> float:
        if not self._before and self._probs is None:  # nothing was subtracted
            return 1.0
        return float(self._sum_blocks()[-1])

    def _sum_blocks(self) -> NDArray[np.float64]:
        if self._sums is None:  # a pass over the vocabulary, and a rewind asks five times
            self._sums = sum_blocks(self._blocks)
        return self._sums

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        return [(token, mass) for token, mass in find_largest(self._blocks, count) if mass > 0]

    def copy(self) -> DenseTable:
        other = DenseTable(self._batch, self.row, restrict=self.restrict)
        other._probs, other._before, other.spent = self._probs, dict(self._before), self.spent
        other._left, other._sums = None if self._left is None else self._left.clone(), self._sums
        return other

    def is_broken(self, *, do_sample: bool) -> bool:
        # One NaN makes all probabilities NaN.
        return bool((self.probs[0] if do_sample else self.scores.max()).isnan())

    def draw(self, *, do_sample: bool, generator: torch.Generator | None = None) -> int:
        """Draw from what is left, or take the likeliest token.

        Without a generator, the first draw is `generate`'s own, to the bit and to the random number.
        generator: of the host.
        """
        if not do_sample:
            return int((self.scores if self._left is None else self._left).argmax())
        if generator is None and self._left is None:
            return int(torch.multinomial(torch.softmax(self.scores[0], dim=-1), num_samples=1))
        assert self.mass_left() > 0, "nothing is left"
        share = 1 - draw_uniform(generator, dtype=torch.float64)
        return draw_by_share(self.remaining, share, sums=self._sum_blocks())

    def draw_beside(self, token: int, proposal: Tensor, *, generator: torch.Generator | None = None) -> int:
        """Draw from what is left, as often as possible the token that was drawn from a proposal [vocab].

        Algorithm 1 of Leviathan et al., arXiv 2211.17192.
        """
        left = self.probs if self._left is None else self.remaining / self.remaining.sum()
        proposal = proposal.cpu()
        if draw_uniform(generator) * float(proposal[token]) < float(left[token]):
            return token
        rest = (left - proposal).clamp_(min=0)
        if not rest.any():  # the two are equal up to rounding
            return self.draw(do_sample=True, generator=generator)
        return int(torch.multinomial(rest, num_samples=1, generator=generator))

    def describe_choice(self, token: int, *, alternatives: int) -> TokenChoice:
        """Return the probability of a token and, up to a number of `alternatives`, of the likeliest tokens."""
        probs = torch.softmax(self.scores, dim=-1).cpu()
        left = probs if self._left is None else self.remaining[None]
        numbers = describe_draws(probs, left, torch.tensor([token]), alternatives)
        return read_choice(numbers[0].tolist(), alternatives)

    def keep_only(self, candidates: Tensor) -> None:
        """Leave nothing of the other tokens. candidates: bool [vocab], on the host."""
        self._probs, self._sums = self.probs.clone(), None
        self.remaining.masked_fill_(~candidates, 0.0)

    def replace_distribution(self, probs: Tensor) -> None:
        """Replace the distribution by one [vocab], on the host, over tokens that could not be drawn so far."""
        self._probs, self._before = probs / probs.sum(), {}
        self._left, self._sums = fill_blocks(self._probs), None


class CertainTable:
    """The one choice that a controller leaves (a token, a cut or the end), and the share of it that bans have left."""

    __slots__ = ("_left",)

    def __init__(self, left: float = 1.0) -> None:
        self._left = left

    def knows(self, token: int) -> bool:  # noqa: ARG002
        return True

    def probability(self, token: int) -> float:  # noqa: ARG002
        return 1.0

    def left(self, token: int) -> float:  # noqa: ARG002
        return self._left

    def set_left(self, token: int, mass: float) -> None:  # noqa: ARG002
        self._left = mass

    def clear(self, tokens: Sequence[int]) -> list[float]:
        self._left = 0.0
        return [1.0] * len(tokens)

    def mass_left(self) -> float:
        return self._left

    def likeliest(self, count: int) -> list[tuple[int, float]]:  # noqa: ARG002
        return []

    def copy(self) -> CertainTable:
        return CertainTable(self._left)


def find_dense(node: Node) -> DenseTable | None:
    return node.table if isinstance(node.table, DenseTable) else None


def draw_uniform(generator: torch.Generator | None, *, dtype: torch.dtype = torch.float32) -> float:
    """Draw a number in [0, 1) on the host, where no device is waited for, from a generator or the global numbers."""
    return float(torch.rand((), dtype=dtype, generator=generator))


def fill_blocks(masses: Tensor) -> Tensor:
    """Return a copy of masses [vocab] with zeros up to the end of the last block."""
    return torch.nn.functional.pad(masses.detach(), (0, -len(masses) % BLOCK))


def sum_blocks(masses: Tensor) -> NDArray[np.float64]:
    """Return the sums of all masses up to the end of each block."""
    # numpy converts in parts; a copy in float64 would take longer than the sum.
    sums: NDArray[np.float64] = masses.numpy().reshape(-1, BLOCK).sum(axis=-1, dtype=np.float64).cumsum()
    return sums


def find_largest(masses: Tensor, count: int) -> list[tuple[int, float]]:
    """Return the tokens with the largest masses, the largest first; of equal masses, any."""
    # They are in the blocks with the largest maxima. `topk` itself copies all: of 151,936 tokens, that takes 5 times as
    # long; of few tokens less.
    if len(masses) < 8 * BLOCK * count:
        numbers, index = masses.topk(min(count, len(masses)))
        return list(zip(index.tolist(), numbers.tolist(), strict=True))
    blocks = masses.view(-1, BLOCK)
    chosen = blocks.amax(dim=-1).topk(count).indices
    numbers, index = blocks[chosen].flatten().topk(count)
    firsts = [BLOCK * block for block in chosen.tolist()]
    pairs = zip(index.tolist(), numbers.tolist(), strict=True)
    return [(firsts[place // BLOCK] + place % BLOCK, mass) for place, mass in pairs]


def draw_by_share(masses: Tensor, share: float, *, sums: NDArray[np.float64]) -> int:
    """Draw from masses in blocks, not normalized: the first up to which there is a share, in (0, 1], of all.

    sums: of all masses up to the end of each block.
    Never a token without mass: of .2, 0, .5, .3 the shares (0, .2] draw token 0, and (.2, .7] token 2.
    torch.multinomial, a clock for each token, takes 10 times as long as one running sum over the vocabulary.
    """
    reached = share * sums[-1]
    block = min(int(sums.searchsorted(reached)), len(sums) - 1)  # beyond the last one if there is a NaN
    before = sums[block - 1] if block else 0.0
    within = masses[BLOCK * block : BLOCK * (block + 1)].numpy().cumsum(dtype=np.float64)
    return BLOCK * block + int(within.searchsorted(min(reached - before, within[-1])))  # the sums differ by rounding


def describe_draws(probs: Tensor, left: Tensor, drawn: Tensor, alternatives: int) -> Tensor:
    """Return what `read_choice` reads of each row, as one tensor, which takes one wait for a device.

    probs, left: [n, vocab], before anything was subtracted and after.
    drawn: tokens [n].
    """
    shares = left / left.sum(dim=-1, keepdim=True)
    share = shares.gather(1, drawn[:, None])
    rank = 1 + (shares > share).sum(dim=-1, keepdim=True)
    masses, tokens = shares.topk(min(alternatives, shares.shape[-1]))
    # float32 counts the tokens of a vocabulary exactly: up to 2 to the power of 24.
    return torch.cat([probs.gather(1, drawn[:, None]), share, rank.float(), tokens.float(), masses], dim=1)


def read_choice(numbers: Sequence[float], alternatives: int) -> TokenChoice:
    """Return the choice that one row of `describe_draws` describes, with at most so many alternatives."""
    probability, share, rank = numbers[:3]
    count = len(numbers) // 2 - 1
    tokens, masses = map(int, numbers[3 : 3 + min(count, alternatives)]), numbers[3 + count :]
    pairs = zip(tokens, masses, strict=False)
    return TokenChoice(probability, share, int(rank), tuple(pair for pair in pairs if pair[1] > 0))
