"""The share of each distribution that a server's alternatives cover."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antislop.decoding.row import Row

ROUNDING = 1e-5
"""Probability beyond the alternatives that is ignored as a rounding error."""


@dataclass
class Coverage:
    """The probability beyond the returned alternatives, over all distributions of one text.

    outside: its sum over the positions. outside_max: its maximum.
    ran_out: number of positions at which the settings allow a token beyond the alternatives; the others are exact.
    unreadable: number of alternatives that match no token of the tokenizer, or several; they count as beyond.
    requests: number of answered requests. retries: number of repeated requests.
    """

    distributions: int = 0
    outside: float = 0.0
    outside_max: float = 0.0
    ran_out: int = 0
    unreadable: int = 0
    requests: int = 0
    retries: int = 0

    @property
    def outside_mean(self) -> float:
        """The mean probability beyond the alternatives, per position."""
        return self.outside / max(1, self.distributions)

    def measure(self, row: Row, logits: Tensor) -> None:
        """Add distributions: logits [positions, vocab], which are -inf beyond the alternatives.

        A token beyond them has at most the remaining probability, and less than the last alternative. A position counts
        as `ran_out` if the settings keep a token with this upper bound.
        """
        positions, outside = len(logits), (1 - logits.double().exp().sum(dim=-1)).clamp(min=0)
        self.distributions += positions
        self.outside += float(outside.sum())
        self.outside_max = max(self.outside_max, float(outside.max()))
        if not row.spec.policy.do_sample:
            return
        last_alternative = logits.masked_fill(logits == -torch.inf, torch.inf).amin(dim=-1)
        bound = torch.minimum(last_alternative - 1e-4, outside.clamp(min=1e-30).log().float())
        absent_token = logits.argmin(dim=-1, keepdim=True)
        has_absent = (logits.gather(1, absent_token) == -torch.inf)[:, 0]
        trial_logits = logits.scatter(1, absent_token, bound[:, None])
        scores = row.spec.settings.process([row] * positions, [len(row.tokens)] * positions, trial_logits)
        is_allowed = scores.gather(1, absent_token)[:, 0] > -torch.inf
        self.ran_out += int((is_allowed & has_absent & (outside > ROUNDING)).sum())
