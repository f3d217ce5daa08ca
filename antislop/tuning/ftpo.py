"""Final-token preference optimization (FTPO, https://arxiv.org/abs/2510.15061): the loss, and its trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.pytorch_utils import Conv1D

from antislop.errors import InputError
from antislop.tuning.rows import FTPORow


class FTPOLoss(NamedTuple):
    """The loss of a batch, and its parts before they are weighted: means over the rows.

    preference: how far the logits of chosen tokens are from leading that of the rejected token by the margin.
    target: how far the logits of chosen and rejected tokens moved from the reference beyond the slack, squared.
    rest: how far all other logits moved, squared.
    win: the share of chosen tokens that are likelier than the rejected token; without a gradient.
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
    """Return the loss of final-token rows: each chosen token should lead the rejected token by a margin, and no more.

    logits, reference: [rows, vocab_size], of the trained and of the frozen model after each context.
    rejected: ids [rows].
    chosen: ids [rows, width]; the distinct tokens to prefer to the rejected token.
    chosen_mask: bool [rows, width]; False for padding. Each row has a True.
    margin: in logits; above 0.
    target_slack: in logits; 0 or more.

    A chosen token whose lead is the margin or more has no weight, so a row whose tokens all have that lead is left
    alone. The weights carry no gradient. A token to which both models give the logit of minus infinity takes no part:
    the loss is that of a vocabulary without this token; if it is the rejected token, all chosen tokens lead it.
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
    return (values * mask).sum(1) / mask.sum(1).clamp_min(1)


WEIGHTS = ("margin", "temperature", "target_weight", "target_slack", "rest_weight")
"""The settings of `ftpo_loss`."""
LAYERS = (nn.Linear, Conv1D)
"""The kinds of modules that an adapter changes; GPT-2 and related models have `Conv1D`."""


@dataclass
class FTPOConfig(TrainingArguments):  # type: ignore[misc]  # transformers has no type for it
    """Arguments of `transformers.TrainingArguments`, and those of the loss: see `ftpo_loss`.

    stop_at_win: training ends once this share of chosen tokens is likelier than the rejected token, over the steps
        between two lines of the log; above 1.0: only after the last epoch.
    """

    margin: float = field(default=2.0, metadata={"help": "Logits by which chosen tokens are to lead."})
    temperature: float = field(default=1.0, metadata={"help": "How soft the preference is."})
    target_weight: float = field(default=0.05, metadata={"help": "Weight of the drift of trained tokens."})
    target_slack: float = field(default=0.5, metadata={"help": "Logits by which trained tokens may drift freely."})
    rest_weight: float = field(default=0.4, metadata={"help": "Weight of the drift of all other tokens."})
    stop_at_win: float = field(default=0.85, metadata={"help": "Share of chosen tokens that lead at which to end."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.remove_unused_columns = False  # the columns are those of the loss, not of the model
        for name in (*WEIGHTS, "stop_at_win"):
            value, may_be_zero = getattr(self, name), name not in ("margin", "temperature")
            if not (value > 0 or (may_be_zero and value == 0)):
                expected = "of 0 or more" if may_be_zero else "above 0"
                raise InputError(f"{name} is {value!r}: a number {expected} was expected")


def collate(rows: Sequence[FTPORow], *, pad: int = 0) -> dict[str, Tensor]:
    """Return a batch: contexts padded on the left [rows, length], and the arguments of `ftpo_loss` on tokens."""
    length, most = max(len(row.context) for row in rows), max(len(row.chosen) for row in rows)
    mask = torch.tensor([[0] * (length - len(row.context)) + [1] * len(row.context) for row in rows])
    return {
        "input_ids": torch.tensor([[pad] * (length - len(row.context)) + list(row.context) for row in rows]),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp_min(0),
        "rejected": torch.tensor([row.rejected for row in rows]),
        "chosen": torch.tensor([list(row.chosen) + [pad] * (most - len(row.chosen)) for row in rows]),
        "chosen_mask": torch.tensor([[i < len(row.chosen) for i in range(most)] for row in rows]),
    }


class FTPOTrainer(Trainer):  # type: ignore[misc]  # transformers has no type for it
    """Train a causal language model on final-token rows.

    model: with an adapter of peft, the reference is the base of the model; without one, a copy of the model.
    args: an `FTPOConfig`.
    train_dataset: rows as `load_pairs` returns them.
    """

    def __init__(
        self, model: PreTrainedModel | nn.Module, args: FTPOConfig, *, train_dataset: Sequence[FTPORow], **kwargs: Any
    ) -> None:
        self._reference = (
            None if hasattr(model, "disable_adapter") else copy.deepcopy(model).requires_grad_(False).eval()
        )
        self._noted: list[FTPOLoss] = []
        if args.world_size > 1:
            raise InputError("FTPOTrainer runs in one process, since each would decide by itself when to stop")
        if kwargs.get("eval_dataset") is not None:
            raise InputError("FTPOTrainer evaluates no data: count hits in texts instead")
        super().__init__(model=model, args=args, train_dataset=list(train_dataset), data_collator=collate, **kwargs)
        if self._reference is not None:
            self._reference.to(args.device)
        self.add_callback(StopAtWin(args.stop_at_win))

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, FTPOLoss]:
        asked = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        logits = model(**asked, logits_to_keep=1).logits[:, -1]
        with torch.no_grad(), self._without_adapter(model) as frozen:
            reference = frozen(**asked, logits_to_keep=1).logits[:, -1]
        settings = {name: getattr(self.args, name) for name in WEIGHTS}
        loss = ftpo_loss(logits, reference, inputs["rejected"], inputs["chosen"], inputs["chosen_mask"], **settings)
        self._noted.append(FTPOLoss(*(part.detach() for part in loss)))
        return (loss.total, loss) if return_outputs else loss.total

    @contextmanager
    def _without_adapter(self, model: nn.Module) -> Iterator[nn.Module]:
        """Yield the reference model: the copy, or this model with its adapter off."""
        if self._reference is not None:
            yield self._reference
            return
        was_training = model.training
        with self.accelerator.unwrap_model(model).disable_adapter():
            yield model.eval()  # no dropout
        model.train(was_training)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self._noted and "loss" in logs:
            for name in ("preference", "target", "rest", "win"):
                logs[name] = float(torch.stack([getattr(noted, name) for noted in self._noted]).mean())
            self._noted.clear()
        super().log(logs, *args, **kwargs)


@dataclass(eq=False)
class StopAtWin(TrainerCallback):  # type: ignore[misc]  # transformers has no type for it
    """Ends training at the first line of the log whose share of wins is `share` or more."""

    share: float
    metric: str = field(default="win", kw_only=True)

    def on_log(self, *states: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        control: TrainerControl = states[2]
        if (logs or {}).get(self.metric, 0.0) >= self.share:
            control.should_training_stop = True


def unfreeze(model: PreTrainedModel, *, layers: int) -> None:
    """Make only the last layers trainable, and the head unless the head shares its weights with the embedding."""
    model.requires_grad_(False)
    for module in [*_find_layers(model)[-layers:], *_find_head(model)]:
        module.requires_grad_(True)


def make_adapter(
    model: PreTrainedModel, *, rank: int, layers: int, has_head: bool = True, revision: str | None = None
) -> Any:
    """Return the configuration of a LoRA adapter for the last layers and, with `has_head`, the head if untied.

    revision: the revision of the model on the hub, named in the configuration.
    """
    from peft import LoraConfig

    blocks, head = _find_layers(model), _find_head(model) if has_head else []
    trained = {id(part) for module in [*blocks[-layers:], *head] for part in module.modules()}
    names = [name for name, part in model.named_modules() if isinstance(part, LAYERS) and id(part) in trained]
    if not names:
        raise InputError(f"{type(model).__name__} has no linear layers for an adapter: train its weights (--full)")
    return LoraConfig(r=rank, lora_alpha=rank, target_modules=names, task_type="CAUSAL_LM", revision=revision)


def _find_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks of a model: the longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise InputError(f"{type(model).__name__} has no list of layers: tune a decoder of transformers")
    return max(([*layers] for layers in lists), key=len)


def _find_head(model: PreTrainedModel) -> list[nn.Module]:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return [] if head is None or head.weight is embedding.weight else [head]
