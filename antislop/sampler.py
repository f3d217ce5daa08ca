"""The front door: an object that stands in for `model.generate`'s own loop.

`model.generate(…, custom_generate=sampler)` prepares inputs, processors and criteria as always and hands them over;
this file refuses what can't be done exactly, puts engine, matcher and loop together, and gives back what `generate`
would. What transformers hands over, and what it drops on the way, is in the docstring of `AntiSlop.__call__`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria
from transformers.generation.streamers import BaseStreamer

from antislop.bans import Ban, BanList
from antislop.cache import choose_cache
from antislop.decoding import Method, OnExhausted, Policy, Row, decode
from antislop.engine import Engine
from antislop.events import Event, Forwarded, Settled
from antislop.matcher import Matcher
from antislop.report import Report
from antislop.streaming import stream_text
from antislop.support import refuse_arguments, refuse_settings
from antislop.vocabulary import Vocabulary


class AntiSlop:
    """Generate as a model does, minus what is banned.

    tokenizer: the model's; its vocabulary is read once.
    bans: a `BanList`, a list of phrases or `Ban`s, or the path of a file that `BanList.load` reads.
    method: "exact": what is not banned is said exactly as often as if banned texts had been thrown away and written
        anew; "token": multiply the probability of a ban's first token, as published samplers do.
    on_exhausted: what to do where every alternative to a ban is used up: "concede" lets it stand and reports it, "stop"
        ends the text before it, "raise" raises `Exhausted`.
    prompt_lookback: whether a ban may begin in the prompt and be completed by the output. The prompt is never changed.
    max_rewinds: how often to go back to one position before it counts as exhausted. All rewinds together may withdraw
        16 tokens for each one asked for.

    Compiled once; use one sampler for any number of calls and models with that vocabulary. Raises `BanError` for bans
    that can't be used and `ValueError` for a tokenizer whose surfaces can't be read.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban] | os.PathLike[str] | str,
        *,
        method: Method = "exact",
        on_exhausted: OnExhausted = "concede",
        prompt_lookback: bool = True,
        max_rewinds: int = 100,
    ) -> None:
        _check_choice("method", method, get_args(Method))
        _check_choice("on_exhausted", on_exhausted, get_args(OnExhausted))
        if isinstance(max_rewinds, bool) or not isinstance(max_rewinds, int) or max_rewinds < 0:
            raise ValueError(f"max_rewinds is {max_rewinds!r}; it is how often to go back to one position, 0 or more")
        self.bans = _to_ban_list(bans)
        self.method: Method = method
        self.on_exhausted: OnExhausted = on_exhausted
        self.prompt_lookback = prompt_lookback
        self.max_rewinds = max_rewinds
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary.of(tokenizer)
        self._matcher = Matcher(self.bans, self._vocabulary)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Do as `generate`'s own decoding methods do, for `model.generate(…, custom_generate=sampler)`.

        `generate` never hands `streamer`, `tokenizer` and `assistant_model` to a callable: use `AntiSlop.generate` for
        streamers and stop strings. Raises `ValueError` for what is not supported, before the model runs.
        """
        _refuse_what_generate_keeps()
        run = self._prepare(
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **model_kwargs,
        )
        return run.complete()

    def generate(
        self,
        model: PreTrainedModel,
        inputs: Tensor | None = None,
        *,
        streamer: BaseStreamer | None = None,
        stop_strings: str | list[str] | None = None,
        **kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Generate with all that `model.generate` takes, streamers and stop strings too, and return the same.

        The streamer gets the prompt, then tokens as soon as they can't be taken back any more: at least one behind.
        With `return_dict_in_generate=True` the output has one field more, `report`.
        """
        run = self._start(model, inputs, stop_strings=stop_strings, **kwargs)
        return run.complete(streamer)

    def stream(self, model: PreTrainedModel, inputs: Tensor | None = None, **kwargs: Any) -> Iterator[str]:
        """Yield the text in pieces that are never taken back; takes what `generate` takes, but for the streamer."""
        return stream_text(self.events(model, inputs, **kwargs), self._vocabulary)

    def events(
        self,
        model: PreTrainedModel,
        inputs: Tensor | None = None,
        *,
        stop_strings: str | list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[Event]:
        """Yield what happens, as it happens; takes what `generate` takes, but for the streamer."""
        return self._start(model, inputs, stop_strings=stop_strings, **kwargs).events()

    def _start(self, model: PreTrainedModel, inputs: Tensor | None, **kwargs: Any) -> _Run:
        """Have `generate` prepare a run and hand it out before the first forward pass."""
        refuse_arguments(kwargs)
        config = kwargs.get("generation_config")
        stop_strings = kwargs.pop("stop_strings", None) or (config or model.generation_config).stop_strings
        if stop_strings:
            # `generate` would need the tokenizer for these, which it never hands to a callable.
            criterion = StopStringCriteria(tokenizer=self._tokenizer, stop_strings=stop_strings)
            given = kwargs.get("stopping_criteria") or []
            kwargs["stopping_criteria"] = StoppingCriteriaList([*given, criterion])
            if config is None:
                kwargs["stop_strings"] = None
            else:
                kwargs["generation_config"] = copy(config)
                kwargs["generation_config"].stop_strings = None
        run: _Run = model.generate(inputs, custom_generate=self._prepare, **kwargs)
        return run

    def _prepare(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> _Run:
        refuse_settings(model, generation_config, logits_processor, rows=input_ids.shape[0], prompt=input_ids.shape[1])
        model_kwargs["past_key_values"] = choose_cache(model_kwargs)
        engine = Engine(
            model,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            model_kwargs=model_kwargs,
        )
        capacity = generation_config.max_length - input_ids.shape[1]
        state = self._matcher.start(input_ids[0].tolist(), lookback=self.prompt_lookback)
        keep_scores = generation_config.return_dict_in_generate and (
            generation_config.output_scores or generation_config.output_logits
        )
        policy = Policy(
            do_sample=generation_config.do_sample,
            method=self.method,
            on_exhausted=self.on_exhausted,
            max_rewinds=self.max_rewinds,
            max_withdrawn=16 * capacity,
        )
        row = Row(input_ids, state=state, capacity=capacity, keep_scores=keep_scores)
        return _Run(model, engine, row, self._matcher, policy, generation_config)


@dataclass
class _Run:
    """A generation that is ready to go."""

    model: PreTrainedModel
    engine: Engine
    row: Row
    matcher: Matcher
    policy: Policy
    config: GenerationConfig

    def events(self) -> Iterator[Event]:
        with self.model._optimize_model_for_decode():
            for _, event in decode([self.row], model=self.engine, matcher=self.matcher, policy=self.policy):
                yield event

    def complete(self, streamer: BaseStreamer | None = None) -> Tensor | GenerateDecoderOnlyOutput:
        """Run to the end and return what `generate` returns."""
        report = Report()
        if streamer is not None:
            streamer.put(self.row.ids.cpu())
        for event in self.events():
            report.add(event)
            if streamer is not None and isinstance(event, Settled):
                for token in event.tokens:
                    streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
        return self._output(report) if self.config.return_dict_in_generate else self.row.ids.clone()

    def _output(self, report: Report) -> GenerateDecoderOnlyOutput:
        fed, cut = self.engine.finish(self.row)
        if fed:
            report.add(Forwarded(fed, cut))
        kept = self.row.kept or []
        output = GenerateDecoderOnlyOutput(
            sequences=self.row.ids.clone(),
            scores=tuple(scores for _, scores in kept) if self.config.output_scores else None,
            logits=tuple(logits for logits, _ in kept) if self.config.output_logits else None,
            past_key_values=self.engine.cache,
        )
        output["report"] = report
        return output


def _to_ban_list(bans: BanList | Iterable[str | Ban] | os.PathLike[str] | str) -> BanList:
    if isinstance(bans, BanList):
        return bans
    if isinstance(bans, os.PathLike) or (isinstance(bans, str) and Path(bans).is_file()):
        return BanList.load(bans)
    return BanList(bans)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")


def _refuse_what_generate_keeps() -> None:
    """Refuse what `generate` takes but silently keeps from a callable; only its own frame can tell.

    A streamer would get the prompt and then wait forever; an assistant would be ignored.
    """
    frame = sys._getframe(2)
    if frame.f_code.co_name == "generate":
        kept = ("streamer", "assistant_model", "synced_gpus")
        refuse_arguments({name: frame.f_locals.get(name) for name in kept}, hook=True)
