"""Rollouts for reinforcement learning: what a model in training writes under bans."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import log
from typing import Any

import torch

from antislop.core.hf import PromptInput, encode
from antislop.core.sampler import AntiSlop
from antislop.errors import InputError


@dataclass(frozen=True)
class Rollout:
    """A `rollout_func` as TRL's `GRPOTrainer` calls it; `rollout` makes it."""

    sampler: AntiSlop

    def __call__(self, prompts: Sequence[PromptInput], trainer: Any) -> dict[str, list[Any]]:
        """Return one completion for each prompt: its ids, those of the prompt, log-probabilities, and what bans did.

        prompts: texts or chats, as often as a completion is wanted.

        Raises `InputError` for a trainer whose model `generate` can't reach, and for tools.
        """
        from trl.models import unwrap_model_for_generation

        _check_trainer(trainer)
        config, device = copy(trainer.generation_config), trainer.accelerator.device
        config.return_dict_in_generate = True
        tokenizer, variables = self.sampler.compiled.tokenizer, trainer.chat_template_kwargs
        ids = [
            encode(prompt, tokenizer, variables=None if isinstance(prompt, str) else variables) for prompt in prompts
        ]
        width = max(map(len, ids))
        padded = torch.full((len(ids), width), int(config.pad_token_id), device=device)  # [rows, tokens]
        mask = torch.zeros_like(padded)
        for row, tokens in enumerate(ids):
            padded[row, width - len(tokens) :], mask[row, width - len(tokens) :] = torch.tensor(tokens), 1
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
                generation_kwargs=trainer.generation_kwargs,
                gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
            ) as unwrapped,
            torch.no_grad(),
        ):
            settings: dict[str, Any] = {"generation_config": config, "record": "top", "record_top_k": 1}
            out = self.sampler.generate(unwrapped, padded, attention_mask=mask, **settings)
        kept = [row.history.kept for row in out.trace.rows]
        return {
            "prompt_ids": ids,
            "completion_ids": [[each.token for each in row] for row in kept],
            "logprobs": [[log(each.choice.share) for each in row] for row in kept],
            "rewinds": [report.rewinds for report in out.reports],
            "conceded": [report.conceded for report in out.reports],
        }


def rollout(sampler: AntiSlop) -> Rollout:
    """Return a `rollout_func` for TRL's `GRPOTrainer`, by which a trainer writes its completions under bans.

    Reward functions get `rewinds` and `conceded`, a number for each completion. `logprobs` are of the distribution that
    each token was drawn from: the model's under the trainer's settings, without what bans had taken by then.

    >>> from antislop import AntiSlop, tiny_model
    >>> rollout(AntiSlop(tiny_model()[1], ["a testament to"]))
    Rollout(sampler=<AntiSlop: 1 ban, method='exact', on_exhausted='concede'>)
    """
    if not isinstance(sampler, AntiSlop):
        raise InputError(f"sampler is a {type(sampler).__name__}: pass antislop.AntiSlop(tokenizer, bans)")
    return Rollout(sampler)


def _check_trainer(trainer: Any) -> None:
    """Refuse what would write a part of the completions without bans, or can't be reached."""
    for name, is_set, advice in (
        ("use_vllm=True", trainer.use_vllm, "leave it out, or write a rollout_func for an engine under bans"),
        ("tools", trainer.tools, "the trainer itself goes on after calls of tools: use antislop.applied_to"),
        ("FSDP", trainer.is_fsdp_enabled, "use antislop.applied_to"),
    ):
        if is_set:
            raise InputError(f"antislop.datasets.rollout does not write with {name}: {advice}")
