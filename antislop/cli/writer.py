"""A loaded model that continues one prompt any number of times, and the options of that.

torch and transformers are imported when the model is loaded, so that bad input is refused immediately.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antislop.cli.options import SamplingOptions, StopOption, ban_option, make_processors
from antislop.cli.terminal import as_input_error, console, describe_command, read_input, say, writing
from antislop.errors import InputError
from antislop.hf.pretrained import ModelSpec, load_model
from antislop.lists.ban_list import BanList
from antislop.trace.events import Event
from antislop.trace.text_pieces import mark_conceded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.hf.run import EventStream
    from antislop.hf.vocabulary import Vocabulary


class MethodChoice(str, Enum):
    """`antislop.decoding.policy.Method` for typer, without torch."""

    EXACT = "exact"
    TOKEN = "token"
    TEXT = "text"


class OnExhaustedChoice(str, Enum):
    """`antislop.decoding.policy.OnExhausted` for typer, without torch."""

    CONCEDE = "concede"
    STOP = "stop"
    RAISE = "raise"


@dataclass(frozen=True)
class ContinuationOptions:
    """The text to continue, and the length of the continuation."""

    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from standard input.")
    ]
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the tokenizer's chat template.")] = False
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message of the chat.")] = None
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens, not counting withdrawn ones.")] = 200
    stop: StopOption = None


@dataclass(frozen=True)
class PolicyOptions:
    """The reaction to a completed ban."""

    method: Annotated[
        MethodChoice,
        ban_option(
            help="exact: resample each banned span; token: ban its first token there, as antislop-sampler does; "
            "text: resample the text from its start."
        ),
    ] = MethodChoice.EXACT
    on_exhausted: Annotated[OnExhaustedChoice, ban_option(help="The reaction if every continuation is banned.")] = (
        OnExhaustedChoice.CONCEDE
    )


@dataclass(frozen=True)
class WritingTask:
    """The options of a run. trace: the file in which all that happens with bans is saved, if any."""

    text: ContinuationOptions
    model: ModelSpec
    policy: PolicyOptions
    sampling: SamplingOptions
    grammar: str | None
    trace: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate`."""
        text = {"max_new_tokens": self.text.max_new_tokens, "stop_strings": self.text.stop or None}
        return {**text, **self.sampling.settings}


def read_prompt(prompt: str) -> str:
    if prompt == "-":
        return read_input("-").removesuffix("\n")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("the prompt is not UTF-8: save it in a UTF-8 file, and pass - with < FILE") from None
    return prompt


@dataclass
class TextWriter:
    """A loaded model that continues one prompt any number of times."""

    task: WritingTask
    bans: BanList
    prompt: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    inputs: dict[str, Tensor]
    seed: int
    stream: EventStream | None = field(default=None, init=False)

    @classmethod
    def load(cls, task: WritingTask, bans: BanList, prompt: str) -> TextWriter:
        with console(stderr=True).status("loading the model"):
            model, tokenizer = load_model(task.model)
            from antislop.hf.vocabulary import Vocabulary

            with as_input_error():
                vocabulary = Vocabulary.of(tokenizer)
        inputs = _encode(tokenizer, prompt, chat=task.text.chat, system=task.text.system)
        _check_length(model, inputs["input_ids"].shape[1], task.text.max_new_tokens)
        seed = random.randrange(2**32) if task.sampling.seed is None else task.sampling.seed
        inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        return cls(
            task=task,
            bans=bans,
            prompt=prompt,
            model=model,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            inputs=inputs,
            seed=seed,
        )

    def events(self, *, with_bans: bool = True) -> Iterator[Event]:
        """Yield the events of a run. Without bans, occurrences of the bans count as conceded."""
        import torch

        from antislop.sampler import AntiSlop

        torch.manual_seed(self.seed)
        with as_input_error():
            sampler = AntiSlop(
                self.tokenizer,
                self.bans if with_bans else [],
                method=self.task.policy.method.value,
                on_exhausted=self.task.policy.on_exhausted.value,
            )
            processors = make_processors(self.task.grammar, self.model, self.tokenizer)
            settings = {**self.inputs, **self.task.settings, "logits_processor": processors}
            self.stream = sampler.events(self.model, record="top" if self.task.trace else "events", **settings)
        return self.stream if with_bans else self._mark_conceded(self.stream)

    def save_trace(self) -> None:
        """Save what has happened in the latest run, if the task asks for it; it may have been interrupted."""
        path, trace = self.task.trace, None if self.stream is None else self.stream.trace
        if path is None or trace is None:
            return
        facts = {**trace.about, "command": describe_command(), "grammar": self.task.grammar}
        with writing(path):
            replace(trace, describe=lambda: facts).save(path)
        unfinished = "" if all(row.is_finished for row in trace.rows) else " of the unfinished text"
        say(f"saved the trace{unfinished} to {path}: look at it with antislop view {shlex.quote(str(path))}")

    def _mark_conceded(self, events: Iterator[Event]) -> Iterator[Event]:
        from antislop.matching.token_matcher import Matcher

        matcher = Matcher(self.bans, self.vocabulary)
        return mark_conceded(events, matcher, matcher.start(self.inputs["input_ids"][0].tolist()))


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool, system: str | None) -> dict[str, Tensor]:
    if not chat:
        encoded = tokenizer(prompt, return_tensors="pt")
    elif tokenizer.chat_template is None:
        raise InputError("--chat needs a chat template, which this model's tokenizer doesn't have: leave it out")
    else:
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    if encoded["input_ids"].shape[1] == 0:
        raise InputError("the prompt is empty, and this model needs at least one token to continue: write one")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}  # not every model accepts the other ones


def _check_length(model: PreTrainedModel, prompt_tokens: int, new_tokens: int) -> None:
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit is None or prompt_tokens + new_tokens <= limit:
        return
    advice = f"pass --max-new-tokens {limit - prompt_tokens} or less" if prompt_tokens < limit else "shorten the prompt"
    total = f"the prompt has {prompt_tokens:,} tokens, which with {new_tokens:,} new ones"
    raise InputError(f"{total} exceeds the model's {limit:,} positions: {advice}")
