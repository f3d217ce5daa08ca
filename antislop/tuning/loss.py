"""Final-token preference optimization (FTPO): https://arxiv.org/abs/2510.15061."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus


class FTPOLoss(NamedTuple):
    """The loss of a batch, and its parts before they are weighted: means over the rows.

    preference: how far chosen tokens are from leading the rejected one by the margin.
    target: how far the logits of chosen and rejected tokens moved from the reference beyond the slack, squared.
    rest: how far all other logits moved, squared.
    win: the share of chosen tokens that are likelier than the rejected one; without a gradient.
    """

    total: Tensor
    preference: Tensor
    target: Tensor
    rest: Tensor
    win: Tensor


def ftpo_loss(
    logits: Tensor,
    reference: Tensor,
    rejected: Tensor,
    chosen: Tensor,
    chosen_mask: Tensor,
    *,
    margin: float = 2.0,
    temperature: float = 1.0,
    target_weight: float = 0.05,
    target_slack: float = 0.5,
    rest_weight: float = 0.4,
) -> FTPOLoss:
    """Return the loss of final-token rows: chosen tokens are to lead the rejected one by a margin, and no more.

    logits, reference: [rows, vocab_size], of the trained and of the frozen model after each context.
    rejected: ids [rows].
    chosen: ids [rows, width]; the distinct tokens to prefer to the rejected one.
    chosen_mask: bool [rows, width]; False for padding. Each row has a True.
    margin: in logits; above 0.
    target_slack: in logits; 0 or more.

    A chosen token whose lead is the margin or more has no weight, so a row whose tokens all have that lead is left
    alone. The weights carry no gradient. A token to which both models give the logit of minus infinity takes no part:
    the loss is that of a vocabulary without this token, and a rejected one is behind all others.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    is_written = ~(logits.isneginf() & reference.isneginf())
    logits, reference = (part.to(dtype).masked_fill(~is_written, 0) for part in (logits, reference))
    chosen_mask = chosen_mask & is_written.gather(1, chosen)
    lead = logits.gather(1, chosen) - logits.gather(1, rejected[:, None])
    lead = lead.masked_fill(~is_written.gather(1, rejected[:, None]), torch.inf)
    weights = ((margin - lead) / margin).clamp(0, 1).detach() * chosen_mask
    missing = (weights * softplus((margin - lead) / temperature)).sum(1)
    preference = missing / weights.sum(1).clamp_min(torch.finfo(weights.dtype).tiny)

    targets = torch.where(chosen_mask, chosen, rejected[:, None])
    is_target = torch.zeros_like(logits, dtype=torch.bool).scatter(1, targets, value=True)
    is_target = is_target.scatter(1, rejected[:, None], value=True)
    drift = logits - reference
    target = _mean_where(is_target & is_written, (drift.abs() - target_slack).clamp_min(0).square())
    rest = _mean_where(~is_target & is_written, drift.square())

    means = preference.mean(), target.mean(), rest.mean()
    total = means[0] + target_weight * means[1] + rest_weight * means[2]
    return FTPOLoss(total, *means, ((lead > 0) & chosen_mask).sum() / chosen_mask.sum().clamp_min(1))


def _mean_where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the mean of each row's values where the mask is true."""
    return (values * mask).sum(1) / mask.sum(1).clamp_min(1)
