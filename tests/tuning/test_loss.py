"""The loss is that of a loop over rows, and leaves rows alone whose margins are met."""

from __future__ import annotations

from math import exp, inf, log1p
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies
from torch import Tensor

from antislop.tuning import FTPOLoss, ftpo_loss

OPTIONS = {"margin": 2.0, "temperature": 1.0, "target_weight": 0.05, "target_slack": 0.5, "rest_weight": 0.4}


def loop(
    y: Tensor, ref: Tensor, rejected: Tensor, chosen: Tensor, mask: Tensor, *, weights: Any = None, **o: float
) -> tuple[float, list[list[float]]]:
    """Return the total and the weights of all rows. weights: constants in place of those."""
    total, used = 0.0, []
    for n in range(len(y)):
        written = {i for i in range(y.shape[1]) if max(y[n, i], ref[n, i]) > -inf}
        r, c = int(rejected[n]), [int(token) for token, counts in zip(chosen[n], mask[n], strict=True) if counts]
        c = [i for i in c if i in written]
        short = [o["margin"] - (float(y[n, i] - y[n, r]) if r in written else inf) for i in c]
        used.append([min(1.0, max(0.0, gap / o["margin"])) for gap in short] if weights is None else weights[n])
        soft = [log1p(exp(gap / o["temperature"])) for gap in short]
        weight = sum(used[n])
        preference = sum(w * s for w, s in zip(used[n], soft, strict=True)) / weight if weight else 0.0
        drift = {i: float(y[n, i] - ref[n, i]) for i in written}
        targets, rest = {*c, r} & written, written - {*c, r}
        target = sum(max(abs(drift[i]) - o["target_slack"], 0) ** 2 for i in targets) / max(1, len(targets))
        others = sum(drift[i] ** 2 for i in rest) / max(1, len(rest))
        total += preference + o["target_weight"] * target + o["rest_weight"] * others
    return total / len(y), used


def draw(seed: int, *, rows: int = 3, vocab: int = 9, most: int = 4) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    y, ref = torch.randn(2, rows, vocab, dtype=torch.float64) * 2
    tokens = torch.stack([torch.randperm(vocab)[: most + 1] for _ in range(rows)])
    mask = torch.arange(most) < torch.randint(1, most + 1, (rows, 1))
    return y, ref, tokens[:, 0], tokens[:, 1:], mask


def check(y: Tensor, *others: Tensor, **options: float) -> None:
    """Compare the loss and its gradient at some places with those of the loop."""
    y.requires_grad_()
    loss = ftpo_loss(y, *others, **options).total  # type: ignore[arg-type]
    expected, weights = loop(y.detach(), *others, **options)  # type: ignore[misc, arg-type]
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    loss.backward()
    for place in [(0, 0), (1, 3), (2, int(others[1][2])), (0, int(others[2][0, 0]))]:
        moved = []
        for step in (1e-5, -1e-5):
            other = y.detach().clone()
            other[place] += step
            moved.append(loop(other, *others, weights=weights, **options)[0])  # type: ignore[misc, arg-type]
        assert float(y.grad[place]) == pytest.approx((moved[0] - moved[1]) / 2e-5, abs=1e-5), "weights are constants"


@given(strategies.integers(0, 10**6), strategies.sampled_from([0.5, 1.0, 3.0]))
@settings(max_examples=50, deadline=None)
def test_the_loss_and_its_gradient_are_those_of_a_loop(seed: int, scale: float) -> None:
    check(*draw(seed), **{name: value * scale for name, value in OPTIONS.items()})


@given(strategies.integers(0, 10**6), strategies.sampled_from([0.1, 0.4, 0.8]))
@settings(max_examples=50, deadline=None)
def test_tokens_that_neither_model_writes_take_no_part(seed: int, share: float) -> None:
    y, ref, *others = draw(seed)
    for logits in (y, ref):
        logits[torch.rand(y.shape, generator=torch.Generator().manual_seed(seed)) < share] = -inf
    check(y, ref, *others, **OPTIONS)


def test_tokens_that_neither_model_writes_change_nothing_for_the_others() -> None:
    y, ref, *others = draw(3)
    wide = [torch.cat([logits, torch.full((3, 5), -inf)], dim=1) for logits in (y, ref)]
    assert ftpo_loss(*wide, *others) == ftpo_loss(y, ref, *others)  # type: ignore[call-arg]


def met(gap: float) -> tuple[Tensor, FTPOLoss]:
    """The loss where the one chosen token leads by a gap, without drift."""
    y = torch.tensor([[0.0, gap, 1.0]], requires_grad=True)
    args = torch.tensor([0]), torch.tensor([[1, 2]]), torch.tensor([[True, False]])  # the padding leads
    return y, ftpo_loss(y, y.detach(), *args)


def test_a_row_whose_margins_are_met_is_left_alone() -> None:
    y, loss = met(2.0)
    loss.total.backward()
    assert loss.preference.item() == 0 and not y.grad.any() and loss.win.item() == 1  # type: ignore[union-attr]
    y, loss = met(1.9)
    loss.total.backward()
    assert loss.preference.item() > 0 and y.grad.any()  # type: ignore[union-attr]


def test_wins_are_counted_over_the_chosen_tokens_that_count() -> None:
    assert float(met(-0.1)[1].win) == 0


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_changes_the_loss(name: str) -> None:
    args = draw(1)
    assert float(ftpo_loss(*args, **OPTIONS).total) == float(ftpo_loss(*args).total), "these are the defaults"
    changed = OPTIONS | {name: OPTIONS[name] * 1.5}
    assert float(ftpo_loss(*args, **changed).total) != float(ftpo_loss(*args).total)


def test_weights_of_half_precision_are_computed_in_single() -> None:
    y, ref, *others = draw(2)
    half = ftpo_loss(y.bfloat16(), ref.bfloat16(), *others)
    assert half.total.dtype == torch.float32
    assert float(half.total) == pytest.approx(float(ftpo_loss(y, ref, *others).total), rel=0.05)
