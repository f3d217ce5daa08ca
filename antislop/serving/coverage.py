"""How much of each distribution a server's alternatives cover."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antislop.decoding.row import Row

ROUNDING = 1e-5
"""Less mass than this outside of the alternatives is rounding."""


@dataclass
class Coverage:
    """How far the returned alternatives reached for one text, over all distributions that came back.

    outside: probability that lies beyond the alternatives, all in all. outside_max: the most at one place.
    ran_out: places where a token beyond the alternatives might have been drawn, under the settings that were asked for;
        the others are exact. unreadable: alternatives that are no token of the tokenizer, or might be several; they
        count as lying beyond. requests, retries: answers of the server, and requests that had to be sent again.
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
        """The probability beyond the alternatives at a place, on average."""
        return self.outside / max(1, self.distributions)

    def measure(self, row: Row, logits: Tensor) -> None:
        """Count what lies beyond the alternatives, for logits [places, vocab] that are -inf there.

        The likeliest token beyond has at most the mass that is left, and less than the last alternative: it is tested
        whether the settings would let such a token be drawn.
        """
        places, outside = len(logits), (1 - logits.double().exp().sum(dim=-1)).clamp(min=0)
        self.distributions += places
        self.outside += float(outside.sum())
        self.outside_max = max(self.outside_max, float(outside.max()))
        if not row.spec.policy.do_sample:
            return
        least = logits.masked_fill(logits == -torch.inf, torch.inf).amin(dim=-1)
        next_best = torch.minimum(least - 1e-4, outside.clamp(min=1e-30).log().float())
        absent = logits.argmin(dim=-1, keepdim=True)
        has_absent = (logits.gather(1, absent) == -torch.inf)[:, 0]
        tried = logits.scatter(1, absent, next_best[:, None])
        scores = row.spec.settings.process([row] * places, [len(row.tokens)] * places, tried)
        is_open = scores.gather(1, absent)[:, 0] > -torch.inf
        self.ran_out += int((is_open & has_absent & (outside > ROUNDING)).sum())
