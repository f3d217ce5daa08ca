"""Reinforcement learning: a reward that falls with banned phrases, and rollouts that are written under bans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import inf, log
from typing import Any, TypeAlias

import torch

from antislop.core.bans import BanList, Bans, read_bans
from antislop.core.hf import PromptInput, encode
from antislop.core.sampler import AntiSlop
from antislop.display import shorten
from antislop.errors import InputError
from antislop.files.chats import list_replies, list_turns
from antislop.measure.words import extract_words

TextOrChat: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What a model wrote: a text, or the messages of a chat."""


@dataclass(frozen=True)
class BanReward:
    """A reward function with the arguments that TRL passes; `ban_reward` makes it. Can be pickled."""

    bans: BanList
    per: float

    __name__ = "ban_reward"  # the name under which TRL logs it

    def __call__(
        self,
        prompts: Sequence[Any],  # noqa: ARG002 - trainers pass it by this name
        completions: Sequence[TextOrChat],
        **_columns: Any,
    ) -> list[float]:
        """Return the reward of each completion, 0.0 or less.

        completions: texts, or lists of messages; of these, only messages of the assistant count.

        Raises `InputError` for a completion of another shape, and `BanError` for a regex that takes too long.
        """
        if isinstance(completions, str) or not isinstance(completions, Sequence):
            raise InputError(f"completions is {shorten(repr(completions), 40)}: pass a list of texts or of chats")
        rewards = []
        for number, completion in enumerate(completions, start=1):
            texts = _read_texts(completion, number)
            cost = sum(1 - match.ban.weight for text in texts for match in self.bans.find(text))
            words = sum(len(extract_words(text)) for text in texts)
            rewards.append(-self.per * cost / max(1, words) if cost else 0.0)  # not -0.0
        return rewards


def ban_reward(bans: Bans, *, per: float = 1000) -> BanReward:
    """Return a reward function for TRL's trainers: minus the number of bans per `per` words of a completion.

    bans: a `BanList`, a list of phrases or `Ban`s, or the path of a file that `BanList.load` reads.
    per: bans are counted per so many words; a larger number gives more weight beside other rewards.

    An occurrence of a ban with weight w costs 1 - w. Words are those of `antislop measure`. An empty completion gets
    0.0: add a reward for what a completion should contain. Raises `BanError` for bans that can't be used, and
    `InputError` for bans of token ids, which occur in no text, and for an invalid `per`.

    >>> from antislop import Ban
    >>> reward = ban_reward(["a testament to", Ban("tapestry", weight=0.5)])
    >>> texts = ["It was a testament to her will, I suppose", "A torn, pale tapestry.", "She left."]
    >>> reward(prompts=["", "", ""], completions=texts)
    [-111.11111111111111, -125.0, 0.0]
    """
    if not 0 < per < inf:
        raise InputError(f"per is {per!r}; it is a number of words above 0, such as 1000")
    ban_list = read_bans(bans)
    for ban in ban_list:
        if ban.pattern.search is None:
            raise InputError(f"{ban!r} has token ids, which occur in no text: ban the text that they spell")
    return BanReward(ban_list, per)


def _read_texts(completion: TextOrChat, number: int) -> list[str]:
    if isinstance(completion, str):
        return [completion]
    try:
        turns = list_turns(completion)
        if turns is not None:
            is_bare = [isinstance(turn, Mapping) and not turn.keys() & {"role", "from"} for turn in turns]
            named = zip(turns, is_bare, strict=True)  # TRL leaves out the role of a reply that it has parsed
            return list_replies([{**turn, "role": "assistant"} if bare else turn for turn, bare in named])
        raise InputError(f"{completion!r:.40} is neither a text nor a list of messages")
    except InputError as error:
        raise InputError(f"completion {number} can't be read: {error}") from error


@dataclass(frozen=True)
class Rollout:
    """A `rollout_func` with the arguments that TRL's `GRPOTrainer` passes; `rollout` makes it."""

    sampler: AntiSlop

    def __call__(self, prompts: Sequence[PromptInput], trainer: Any) -> dict[str, list[Any]]:
        """Return one completion for each prompt, as columns: ids, log-probabilities, and what bans did.

        prompts: texts or chats, each repeated for each completion that is wanted.

        Raises `InputError` for a trainer whose model `generate` can't reach, and for tools.
        """
        from trl.models import unwrap_model_for_generation

        for name, is_set, advice in (  # with these, not all text would be under bans
            ("use_vllm=True", trainer.use_vllm, "leave it out, or write a rollout_func for an engine under bans"),
            ("tools", trainer.tools, "the trainer itself goes on after calls of tools: use antislop.applied_to"),
            ("FSDP", trainer.is_fsdp_enabled, "use antislop.applied_to"),
        ):
            if is_set:
                raise InputError(f"antislop.datasets.rollout does not write with {name}: {advice}")
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
    each token was drawn from: the model's under the trainer's settings, without what bans had removed by then.

    >>> from antislop import AntiSlop, tiny_model
    >>> rollout(AntiSlop(tiny_model()[1], ["a testament to"]))
    Rollout(sampler=<AntiSlop: 1 ban, method='exact', on_exhausted='concede'>)
    """
    if not isinstance(sampler, AntiSlop):
        raise InputError(f"sampler is a {type(sampler).__name__}: pass antislop.AntiSlop(tokenizer, bans)")
    return Rollout(sampler)
