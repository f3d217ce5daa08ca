"""The front door: an object that stands in for `model.generate`'s own loop.

`model.generate(…, custom_generate=sampler)` prepares inputs, processors and criteria as always and hands them over;
this file refuses what can't be done exactly, puts engine, matcher and loop together, and gives back what `generate`
would. What transformers hands over, and what it drops on the way, is in the docstring of `AntiSlop.__call__`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation import StopStringCriteria
from transformers.generation.streamers import BaseStreamer

from antislop.callbacks.settings import Settings
from antislop.decoding.ban_drafts import PhraseDrafter, first_of
from antislop.decoding.batch_engine import BatchEngine
from antislop.decoding.loop import decode
from antislop.decoding.row import Row
from antislop.decoding.walker import MASS_FLOOR, PROBABILITY_FLOOR, Drafter, Method, OnExhausted, Policy
from antislop.hf.arguments import Prompt, check_prompts, encode, pair, read_inputs, refuse_per_prompt
from antislop.hf.assisted import Assistant, speculate
from antislop.hf.lengths import measure_prompts, refuse_lengths, warn_if_too_long
from antislop.hf.model import DecodeMode, device_of, prompt_mask, split_arguments
from antislop.hf.private import arguments_of_generate, pad_token_of
from antislop.hf.refusals import refuse_arguments, refuse_settings, refuse_tokenizer
from antislop.hf.run import Output, ReportedOutput, Run
from antislop.hf.vocabulary import Vocabulary, encode_after
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.matching.errors import BanError
from antislop.matching.token_matcher import Matcher, State, Violation
from antislop.trace.events import Conceded, ConcededWarning, Event, Finished, Forwarded
from antislop.trace.report import Report
from antislop.trace.text_pieces import stream_text

SEED_STEP = 2654435769
"""From the seed of one text to that of the next; torch's CPU generators look at the lower 32 bits only."""

_OWN_GENERATE = (
    "{name} makes more of what it writes, in a generate() of its own, and can only hand it out as a whole: "
    "call sampler.generate(model, …) instead"
)


@dataclass(frozen=True)
class Completion:
    """A finished text.

    number: its prompt's index among the prompts. text: what follows the prompt's text, with the space between both if
    there is one. tokens: ids without the prompt's.
    error: why the text could not be written to its end; None if it was.
    """

    number: int
    text: str
    tokens: list[int]
    report: Report
    error: Exception | None = field(default=None, kw_only=True)

    @property
    def conceded(self) -> int:
        """How many bans the text contains because nothing else was left to write."""
        return self.report.conceded


class AntiSlop:
    """Generate as a model does, minus what is banned: it is never written, unless nothing else is left to write.

    tokenizer: the model's; its vocabulary is read once.
    bans: a `BanList`, a list of phrases or `Ban`s, or the path of a file that `BanList.load` reads.
    method: "exact": what is not banned is said exactly as often as if banned texts had been thrown away and written
        anew; "token": multiply the probability of a ban's first token, as published samplers do.
    on_exhausted: what to do where every alternative to a ban is used up: "concede" lets it through, counts it in the
        report and warns once per sampler (`ConcededWarning`), "stop" ends the text before it, "raise" raises
        `Exhausted`.
    prompt_lookback: whether a ban may begin in the prompt and be completed by the output. The prompt is never changed.
    draft_bans: read the rest of a ban ahead where two of its tokens are written. Violations of long phrases then cost
        fewer forward passes; what is written has the same distribution, but not the same bits of its logits.
    banned_strings, banned_regex: more bans under the names that other samplers have: strings that match anywhere,
        without regard to case, and patterns as for `Ban.regex`.
    exempt: phrases inside which no ban counts, beside those of each ban.
    exempt_prompt: let the model write what stands in the prompt, banned or not.
    max_rewinds: how often to go back to one position before it counts as exhausted. All rewinds together may withdraw
        16 tokens for each one asked for.
    mass_floor: bans are exact at a position as long as they leave at least this share of its distribution, 0.0 to 1.0.
    probability_floor: where they leave less, tokens to which the model itself gives less than this are no alternative.
        With 0.0 for either, the least likely token is preferred to conceding.

    Compiled once; use one sampler for any number of calls and models with that vocabulary. Raises `BanError` for bans
    that can't be used and `ValueError` for a tokenizer whose surfaces can't be read.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban] | os.PathLike[str] | str | None = None,
        *,
        banned_strings: Sequence[str] = (),
        banned_regex: Sequence[str] = (),
        exempt: Sequence[str] = (),
        exempt_prompt: bool = False,
        method: Method = "exact",
        on_exhausted: OnExhausted = "concede",
        prompt_lookback: bool = True,
        max_rewinds: int = 100,
        draft_bans: bool = False,
        mass_floor: float = MASS_FLOOR,
        probability_floor: float = PROBABILITY_FLOOR,
    ) -> None:
        _check_choice("method", method, get_args(Method))
        _check_choice("on_exhausted", on_exhausted, get_args(OnExhausted))
        if isinstance(max_rewinds, bool) or not isinstance(max_rewinds, int) or max_rewinds < 0:
            raise ValueError(f"max_rewinds is {max_rewinds!r}; it is how often to go back to one position, 0 or more")
        _check_share("mass_floor", mass_floor)
        _check_share("probability_floor", probability_floor)
        if bans is None and not (banned_strings or banned_regex):
            raise BanError("nothing is banned: give a list, banned_strings or banned_regex, or [] to ban nothing")
        self.bans = _combine(
            _to_ban_list([] if bans is None else bans), strings=banned_strings, patterns=banned_regex, exempt=exempt
        )
        self.exempt_prompt = exempt_prompt
        self.method: Method = method
        self.on_exhausted: OnExhausted = on_exhausted
        self.prompt_lookback = prompt_lookback
        self.max_rewinds = max_rewinds
        self.draft_bans = draft_bans
        self.mass_floor = mass_floor
        self.probability_floor = probability_floor
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary.of(tokenizer)
        self._matcher = Matcher(self.bans, self._vocabulary)
        self._has_warned = False

    def __repr__(self) -> str:
        origin = f" from {self.bans.source}" if self.bans.source else ""
        bans = "1 ban" if len(self.bans) == 1 else f"{len(self.bans):,} bans"
        return f"<AntiSlop: {bans}{origin}, method={self.method!r}, on_exhausted={self.on_exhausted!r}>"

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        stop_strings: str | list[str] | None = None,
        **model_kwargs: Any,
    ) -> Output:
        """Do as `generate`'s own decoding methods do, for `model.generate(…, custom_generate=sampler)`.

        `generate` never hands `streamer` and `assistant_model` to a callable: use `AntiSlop.generate` for those. It
        hands on `stop_strings` because they are named here, but not those of a generation config. Raises `ValueError`
        for what is not supported, before the model runs.
        """
        refuse_arguments(arguments_of_generate("streamer", "assistant_model", "synced_gpus"), hook=True)
        if stop_strings:
            stopping_criteria = self._add_stop_strings(stopping_criteria, stop_strings)
        run = self._prepare(
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **model_kwargs,
        )
        return run.complete()

    @overload
    def generate(
        self,
        model: PreTrainedModel,
        inputs: str | Tensor | None = None,
        *,
        return_dict_in_generate: Literal[True],
        **kwargs: Any,
    ) -> ReportedOutput: ...

    @overload
    def generate(
        self,
        model: PreTrainedModel,
        inputs: str | Tensor | None = None,
        *,
        return_dict_in_generate: Literal[False] | None = None,
        **kwargs: Any,
    ) -> Tensor: ...

    def generate(
        self,
        model: PreTrainedModel,
        inputs: str | Tensor | None = None,
        *,
        streamer: BaseStreamer | None = None,
        stop_strings: str | list[str] | None = None,
        assistant_model: PreTrainedModel | None = None,
        assistant_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> Output:
        """Generate with all that `model.generate` takes, streamers and stop strings too, and return the same.

        inputs: as for `model.generate`, or one text, which the tokenizer turns into ids with its special tokens.
        The streamer gets the prompt, then tokens as soon as they can't be taken back any more: at least one behind.
        An assistant drafts tokens that are read ahead, under the same bans. With `return_dict_in_generate=True` the
        output has two fields more: `report`, and `reports` with one for each row. Type checkers know what comes back
        where that argument is written out as True, and nothing of a generation config that holds it. A model with a
        `generate` of its own (Whisper) returns what that makes of the output.
        """
        done: list[tuple[Run, Output]] = []

        def complete(run: Run) -> Output:
            done.append((run, run.complete(streamer)))
            return done[-1][1]

        output: Output = self._enter(
            model,
            inputs,
            complete,  # within `generate`: some models make more of what it returns
            stop_strings=stop_strings,
            assistant_model=assistant_model,
            assistant_tokenizer=assistant_tokenizer,
            **kwargs,
        )
        run, own = done[-1]
        return run.with_reports(output) if output is own else output

    def stream(self, model: PreTrainedModel, inputs: str | Tensor | None = None, **kwargs: Any) -> Iterator[str]:
        """Yield the text in pieces that are never taken back; takes what `generate` takes, but for the streamer."""
        run = self._start(model, inputs, **kwargs)
        drops_space = self._vocabulary.drops_space_after(run.rows[0].ids[0].tolist())
        return stream_text(run.events(), self._vocabulary, drops_space=drops_space)

    def events(
        self,
        model: PreTrainedModel,
        inputs: str | Tensor | None = None,
        *,
        stop_strings: str | list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[Event]:
        """Yield what happens, as it happens; takes what `generate` takes, but for the streamer."""
        return self._start(model, inputs, stop_strings=stop_strings, **kwargs).events()

    def generate_many(
        self,
        model: PreTrainedModel,
        prompts: Iterable[Prompt],
        *,
        batch_size: int = 16,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> Iterator[Completion]:
        """Generate from many prompts, `batch_size` at a time, and yield each text when it is finished.

        A finished text's place is taken by the next prompt at once, while the others go on. prompts: texts, which the
        tokenizer turns into ids with its special tokens, or ids [tokens]; read as they are needed. seed: together with
        a prompt's number it decides its random numbers, so it does not matter what a text is batched with, but for the
        last bits of its logits; without a seed, torch's global generator gives one. seeds: one for each prompt, which
        then decides alone, read after its prompt. kwargs: the settings that `generate` takes; instead of asking for
        several sequences, repeat a prompt. Where the model gives no probabilities, NaN for instance, that text ends
        with an `error`, and the others go on. logits_processor, stopping_criteria: a list for all texts, or, for
        those that remember a text, a function that makes a list for each.
        """
        check_prompts(prompts)
        refuse_per_prompt(kwargs)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is expected")
        if seed is not None and seeds is not None:
            raise ValueError("both seed and seeds are given: one seed for all, or one for each prompt")
        return self._complete_many(model, prompts, batch_size=batch_size, seed=seed, seeds=seeds, **kwargs)

    def _complete_many(
        self,
        model: PreTrainedModel,
        prompts: Iterable[Prompt],
        *,
        batch_size: int,
        seed: int | None,
        seeds: Iterable[int] | None,
        **kwargs: Any,
    ) -> Iterator[Completion]:
        if seeds is None:
            seeds = count(int(torch.randint(2**31, ())) if seed is None else seed, SEED_STEP)
        runs = (self._start_one(model, prompt, own, **kwargs) for prompt, own in pair(prompts, seeds))
        first = list(islice(runs, batch_size))
        if first:
            yield from self._run_in_flight(model, first, chain(first, runs))

    def _start_one(self, model: PreTrainedModel, prompt: Prompt, seed: int, **kwargs: Any) -> Run:
        """Prepare one text with its own random numbers."""
        inputs = encode(prompt, self._tokenizer, device_of(model))[None]
        shared = {name for name in ("logits_processor", "stopping_criteria") if isinstance(kwargs.get(name), list)}
        for name in {"logits_processor", "stopping_criteria"} - shared:
            kwargs[name] = make() if (make := kwargs.get(name)) else None
        run = self._start(model, inputs, shared=shared, **{**kwargs, "attention_mask": torch.ones_like(inputs)})
        if run.config.prompt_lookup_num_tokens is not None or run.config.assistant_early_exit is not None:
            raise ValueError("drafts of transformers are for one prompt at a time: use generate, or leave them out")
        if run.rows[0].kept is not None:
            raise ValueError(
                "generate_many keeps no scores: leave output_scores and output_logits out, or use generate"
            )
        if len(run.rows) > 1:
            raise ValueError("num_return_sequences is 1 here: pass a prompt as often as texts are wanted from it")
        refuse_lengths(model, run.prompts, new=run.rows[0].capacity, in_flight=True)
        run.rows[0].generator = torch.Generator(device_of(model)).manual_seed(seed)
        return run

    def _run_in_flight(self, model: PreTrainedModel, first: Sequence[Run], runs: Iterable[Run]) -> Iterator[Completion]:
        if model.config.is_encoder_decoder:
            raise ValueError("encoder-decoder models can't take new prompts in flight: use generate on a batch")
        language_model, shared = first[0].language_model, first[0].rows[0].settings
        engine = BatchEngine(language_model, language_model.new_cache(len(first)), filler=first[0].pad)
        rows: dict[int, Row] = {}
        reports: dict[int, Report] = defaultdict(partial(Report, surfaces=self._vocabulary))

        def queue() -> Iterator[Row]:
            for number, run in enumerate(runs):
                rows[number] = row = run.rows[0]
                if isinstance(shared, Settings) and shared.fits_any_prompt:
                    row.settings = shared
                yield row

        events = decode(
            [],
            engine=engine,
            matcher=self._matcher,
            policy=first[0].policy,
            queue=queue(),
            places=len(first),
            drafter=first_of(self._draft_bans()),
        )
        try:
            for number, event in events:
                reports[number].add(event)
                if isinstance(event, Conceded):
                    self._warn_once(event.violation)
                elif isinstance(event, Finished):
                    row = rows.pop(number)
                    reports[number].add(Forwarded(0, engine.excess(row)))
                    tokens = row.tokens
                    warn_if_too_long(model, len(tokens) + row.prompt_length)
                    text = self._vocabulary.decode(tokens, after=row.ids[0, : row.prompt_length].tolist())
                    error = _describe_failure(row) if event.reason == "failed" else None
                    yield Completion(number, text, tokens, reports.pop(number), error=error)
        finally:
            first[0].decode_mode.leave()

    def _start(self, model: PreTrainedModel, inputs: str | Tensor | None, **kwargs: Any) -> Run:
        """Have `generate` prepare a run and hand it out before the first forward pass."""
        runs: list[Run] = []

        def keep(run: Run) -> Run:
            runs.append(run)
            return run

        try:
            out = self._enter(model, inputs, keep, **kwargs)
        except Exception as error:
            if not runs:
                raise
            raise ValueError(_OWN_GENERATE.format(name=type(model).__name__)) from error
        if not isinstance(out, Run):
            raise ValueError(_OWN_GENERATE.format(name=type(model).__name__))
        return out

    def _enter(
        self,
        model: PreTrainedModel,
        inputs: str | Tensor | None,
        use: Callable[[Run], Any],
        *,
        shared: Collection[str] = (),
        **kwargs: Any,
    ) -> Any:
        """Have `generate` prepare a run and return what it makes of `use(run)`.

        shared: the lists of processors and criteria that other texts use at the same time.
        """
        refuse_arguments(kwargs, tokenizer=self._tokenizer)
        inputs, kwargs = read_inputs(inputs, kwargs, self._tokenizer, device_of(model))
        assistant = Assistant(kwargs.pop("assistant_model", None), kwargs.pop("assistant_tokenizer", None))
        config = kwargs.get("generation_config")
        stop_strings = kwargs.pop("stop_strings", None) or (config or model.generation_config).stop_strings
        if stop_strings:
            # `generate` would need the tokenizer for these, which it never hands to a callable.
            kwargs["stopping_criteria"] = self._add_stop_strings(kwargs.get("stopping_criteria") or [], stop_strings)
            if config is None:
                kwargs["stop_strings"] = None
            else:
                kwargs["generation_config"] = copy(config)
                kwargs["generation_config"].stop_strings = None
        used = []

        def prepare_and_use(model: PreTrainedModel, input_ids: Tensor, **prepared: Any) -> Any:
            used.append(True)
            return use(self._prepare(model, input_ids, assistant=assistant, shared=shared, **prepared))

        out = model.generate(inputs, custom_generate=prepare_and_use, **kwargs)
        if not used:
            raise ValueError(
                f"{type(model).__name__}.generate() wrote the text by itself and never called the sampler: "
                "leave out what makes it do so, or take another model"
            )
        return out

    def _add_stop_strings(self, criteria: Iterable[Any], stop_strings: str | list[str]) -> StoppingCriteriaList:
        own = StopStringCriteria(tokenizer=self._tokenizer, stop_strings=stop_strings)
        return StoppingCriteriaList([*criteria, own])

    def _prepare(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        assistant: Assistant | None = None,
        shared: Collection[str] = (),
        **model_kwargs: Any,
    ) -> Run:
        prompts, mask = input_ids.shape[0], prompt_mask(model, model_kwargs)
        refuse_tokenizer(model, self._tokenizer)
        self._vocabulary.refuse_changes(self._tokenizer)
        refuse_settings(model, generation_config, logits_processor)
        speculation = speculate(
            model,
            input_ids,
            assistant=assistant,
            tokenizer=self._tokenizer,
            logits_processor=logits_processor,
            generation_config=generation_config,
            model_kwargs=model_kwargs,
        )
        if input_ids.shape[1] == 0 and model_kwargs.get("inputs_embeds") is None:
            raise ValueError("an empty prompt was passed: pass at least one token, the bos token for instance")
        capacity = generation_config.max_length - input_ids.shape[1]
        lengths = measure_prompts(input_ids, mask, generation_config, model_kwargs)
        refuse_lengths(model, lengths, new=capacity)
        drafters = [*self._draft_bans(), *speculation]
        settings = Settings(
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            rows=prompts,
            pad=pad_token_of(generation_config),
            is_drafted=bool(drafters),
            shares_processors="logits_processor" in shared,
            shares_criteria="stopping_criteria" in shared,
        )
        mode = DecodeMode(model)
        language_model, cache = split_arguments(model, generation_config, model_kwargs, rows=prompts, decode_mode=mode)
        keep_scores = generation_config.return_dict_in_generate and (
            generation_config.output_scores or generation_config.output_logits
        )
        rows = [
            Row(
                input_ids[place : place + 1],
                settings=settings,
                state=self._read_prompt(input_ids[place], mask, place=place),
                capacity=capacity,
                place=place,
                keep_scores=keep_scores,
            )
            for place in range(prompts)
        ]
        settings.follow(rows)
        return Run(
            model,
            language_model,
            cache,
            mode,
            rows,
            lengths,
            self._matcher,
            self._policy(do_sample=generation_config.do_sample),
            generation_config,
            self._warn_once,
            self._vocabulary,
            drafter=first_of(drafters),
        )

    def _warn_once(self, violation: Violation) -> None:
        """Warn of the first concession of this sampler, in the line of the code that called it."""
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"the banned {violation.ban.phrase!r} was let through at token {violation.start}, since nothing else was "
            "left to write: report.conceded and Completion.conceded count such places, of which this is the sampler's "
            "first; on_exhausted='stop' or 'raise' lets none through",
            ConcededWarning,
            stacklevel=_find_caller(),
        )

    def _draft_bans(self) -> list[Drafter]:
        encode = partial(encode_after, self._tokenizer, self._vocabulary)
        return [PhraseDrafter(self._matcher, encode)] if self.draft_bans else []

    def _read_prompt(self, ids: Tensor, mask: Tensor | None, *, place: int) -> State:
        """Return the matcher's state after a prompt, whose padding is no part of its text."""
        if mask is not None and mask.ndim == 2 and mask.shape == (mask.shape[0], len(ids)):
            ids = ids[mask[min(place, mask.shape[0] - 1)] != 0]
        return self._matcher.start(ids.tolist(), lookback=self.prompt_lookback, exempt_prompt=self.exempt_prompt)

    def _policy(self, *, do_sample: bool) -> Policy:
        return Policy(
            do_sample=do_sample,
            method=self.method,
            on_exhausted=self.on_exhausted,
            max_rewinds=self.max_rewinds,
            mass_floor=self.mass_floor,
            probability_floor=self.probability_floor,
        )


def _to_ban_list(bans: BanList | Iterable[str | Ban] | os.PathLike[str] | str) -> BanList:
    if isinstance(bans, BanList):
        return bans
    if isinstance(bans, os.PathLike) or (isinstance(bans, str) and os.path.isfile(bans)):  # noqa: PTH113 - never raises
        return BanList.load(bans)
    if isinstance(bans, str):
        raise BanError(
            f"the bans are {bans[:40]!r}, which is one string and no file: pass a list, [phrase], or the path of a file"
        )
    return BanList(bans)


def _combine(bans: BanList, *, strings: Sequence[str], patterns: Sequence[str], exempt: Sequence[str]) -> BanList:
    """Return the bans together with those that came under other names, all with the exempt phrases."""
    for name, value in (("banned_strings", strings), ("banned_regex", patterns), ("exempt", exempt)):
        if isinstance(value, str):
            raise BanError(
                f"{name} is {value[:40]!r}, one string, and each of its characters would count: write [{name}]"
            )
    if not (strings or patterns or exempt):
        return bans
    more = [*(Ban(string, edges="anywhere") for string in strings), *map(Ban.regex, patterns)]
    exempted = (
        replace(ban, exempt=(*ban.exempt, *exempt)) if ban.pattern.occurs_in_text else ban for ban in (*bans, *more)
    )
    return BanList(exempted, source=bans.source)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}; it is a share of probability, 0.0 to 1.0")


def _find_caller() -> int:
    """Return the stack level, as `warnings.warn` counts it in the function above, of who called the library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    return level


_LIBRARIES = {"antislop", "contextlib", "torch", "transformers"}


def _describe_failure(row: Row) -> ValueError:
    """Return the error of a text that ended because no token could be drawn."""
    broken = int((~row.node.logits.isfinite()).sum())
    of_whom = f"{broken:,} of the model's {row.node.logits.numel():,} logits are" if broken else "the scores are all"
    return ValueError(
        f"no token could be drawn after {len(row.tokens):,} tokens, since {of_whom} NaN or infinite: leave the prompt "
        "out, load the model in another dtype, or change its logits processors"
    )
