"""Two tables of the ledger: the softmax of a model's logits, and one continuation that is certain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from antislop.decoding.ledger import Node
from antislop.trace.events import TokenChoice


class DenseTable:
    """The distribution that `generate` would draw from, and what bans have left of it.

    logits, scores: float32, before and after the processors; `row` of [rows, vocab].
    probs: the softmax of the scores, if it was computed for the whole batch.
    restrict: applied to the logits [vocab] before the processors.
    spent: bool [vocab]: tokens of distributions that were given up here.
    """

    __slots__ = ("_batch_probs", "_left", "_logits", "_probs", "_row", "_scores", "restrict", "spent")

    def __init__(
        self,
        logits: Tensor,
        scores: Tensor,
        *,
        row: int = 0,
        probs: Tensor | None = None,
        restrict: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._logits, self._scores, self._row, self._batch_probs = logits, scores, row, probs
        self._probs: Tensor | None = None
        self._left: Tensor | None = None  # [vocab]; None while nothing was subtracted
        self.restrict = restrict
        self.spent: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The model's, [1, vocab]."""
        return self._logits[self._row : self._row + 1]

    @property
    def scores(self) -> Tensor:
        """What the processors made of the logits, [1, vocab]."""
        return self._scores[self._row : self._row + 1]

    @property
    def probs(self) -> Tensor:
        """The distribution before anything was subtracted, [1, vocab]."""
        if self._probs is None:
            batch = self._batch_probs
            self._probs = torch.softmax(self.scores, dim=-1) if batch is None else batch[self._row : self._row + 1]
        return self._probs

    @property
    def remaining(self) -> Tensor:
        """What is left, [vocab], not normalized; to be changed in place."""
        if self._left is None:
            self._left = self.probs[0].clone()
        return self._left

    def knows(self, token: int) -> bool:  # noqa: ARG002
        return True

    def probability(self, token: int) -> float:
        return float(self.probs[0, token])

    def left(self, token: int) -> float:
        return float(self.remaining[token])

    def set_left(self, token: int, mass: float) -> None:
        self.remaining[token] = mass

    def mass_left(self) -> float:
        if self._left is None:
            return 1.0
        left = self._left.cpu() if self._left.device.type == "mps" else self._left  # which has no float64
        return float(left.sum(dtype=torch.float64))

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        masses, tokens = self.remaining.topk(min(count, self.probs.shape[-1]))
        pairs = zip(tokens.tolist(), masses.tolist(), strict=True)
        return [(token, mass) for token, mass in pairs if mass > 0]

    def copy(self) -> DenseTable:
        # Logits and scores never change, and are shared.
        other = DenseTable(self._logits, self._scores, row=self._row, probs=self._batch_probs, restrict=self.restrict)
        other._probs, other.spent = self._probs, self.spent
        other._left = None if self._left is None else self._left.clone()
        return other

    def is_broken(self, *, do_sample: bool) -> bool:
        # One NaN makes all probabilities NaN.
        return bool((self.probs[0, 0] if do_sample else self.scores.max()).isnan())

    def draw(self, *, do_sample: bool, generator: torch.Generator | None = None) -> int:
        """Draw from what is left, or take the likeliest token.

        The first draw is `generate`'s own, to the bit and to the random number.
        """
        if not do_sample:
            return int((self.scores if self._left is None else self._left).argmax())
        left = self.probs if self._left is None else self._left[None]
        return int(torch.multinomial(left, num_samples=1, generator=generator))

    def draw_beside(self, token: int, proposal: Tensor, *, generator: torch.Generator | None = None) -> int:
        """Draw from what is left, as often as possible the token that was drawn from a proposal [vocab].

        Algorithm 1 of Leviathan et al., arXiv 2211.17192.
        """
        left = self.probs[0] if self._left is None else self._left / self._left.sum()
        threshold = draw_uniform(generator) * float(proposal[token])
        if threshold < float(left[token]):
            return token
        rest = (left - proposal).clamp_(min=0)
        if not rest.any():  # the two are equal up to rounding
            return self.draw(do_sample=True, generator=generator)
        return int(torch.multinomial(rest, num_samples=1, generator=generator))

    def describe_choice(self, token: int, *, top_k: int | None = None) -> TokenChoice:
        """Return how likely a token is, and the `top_k` likeliest alternatives, all if None."""
        left = self.probs[0] if self._left is None else self._left
        shares = left / left.sum()
        count = len(shares) if top_k is None else min(top_k, len(shares))
        mass, tokens = shares.topk(count)
        pairs = zip(tokens.tolist(), mass.tolist(), strict=True)
        return TokenChoice(
            probability=float(torch.softmax(self.scores[0], dim=-1)[token]),
            share=float(shares[token]),
            rank=1 + int((shares > shares[token]).sum()),
            alternatives=tuple((other, share) for other, share in pairs if share > 0),
        )

    def keep_only(self, candidates: Tensor) -> None:
        self.remaining.masked_fill_(~candidates, 0.0)

    def replace_distribution(self, probs: Tensor) -> None:
        """Replace the distribution by one [vocab] over tokens that could not be drawn so far."""
        self._left = probs / probs.sum()
        self._probs = self._left.clone()[None]


class CertainTable:
    """A token, cut or end that a controller made certain, and how much of it bans have left."""

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

    def mass_left(self) -> float:
        return self._left

    def likeliest(self, count: int) -> list[tuple[int, float]]:  # noqa: ARG002
        return []

    def copy(self) -> CertainTable:
        return CertainTable(self._left)


def find_dense(node: Node) -> DenseTable | None:
    return node.table if isinstance(node.table, DenseTable) else None


def draw_uniform(generator: torch.Generator | None, *, dtype: torch.dtype = torch.float32) -> float:
    """Draw a number in [0, 1) from a generator, or from torch's global one."""
    device = torch.device("cpu") if generator is None else generator.device
    dtype = torch.float32 if device.type == "mps" else dtype  # which has no float64
    return float(torch.rand((), dtype=dtype, device=device, generator=generator))
