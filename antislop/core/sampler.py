"""`AntiSlop`, a replacement for the decoding loop of `model.generate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, overload

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from antislop.core.bans.ban_list import BanList, Bans
from antislop.core.bans.scopes import Scope
from antislop.core.bans.units import Unit
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.calls import STATES, Call, CallInput, PromptInput, call_generate, prepare_call
from antislop.core.hf.compiled_bans import CompiledBans, Terms
from antislop.core.hf.generation import CallOutput, ConcessionWarner, EventStream, Generation, ReportedOutput
from antislop.core.hf.many import WriteTexts, complete_many, read_requests, write_in_flight
from antislop.core.hf.private import arguments_of_generate, has_argument_hooks
from antislop.core.hf.refusals import check_model, refuse_at, refuse_per_prompt
from antislop.core.loop.branches import Controller, take_control
from antislop.core.loop.sampling import MASS_FLOOR, MAX_REWINDS, PROBABILITY_FLOOR, Method, OnExhausted, Policy
from antislop.core.trace.events import BATCH_SIZE, Completion
from antislop.core.trace.trace import EVENTS, NOTHING, Recording, RecordLevel
from antislop.display import describe_count, escape_html, make_visible, shorten
from antislop.errors import BanError, InputError

if TYPE_CHECKING:
    from antislop.explain.activations import ActivationCache, NamesFilter
    from antislop.explain.forward_result import ForwardResult
    from antislop.explain.kept_text import CacheRequest


class AntiSlop:
    """Generate with a model, but without banned phrases, unless almost nothing else is left to write.

    tokenizer: the tokenizer of the models that will be used.
    bans: a `BanList`, a list of phrases or `Ban`s, or the path of a file that `BanList.load` reads.
    method: "exact": the distribution of resampling each banned span from its start until none is left.
        "token": the first-token rule of published samplers, which multiplies the probability of a ban's first token.
        "text": the distribution of the model conditioned on the whole text being free of bans. Every violation rewinds
        to the first token, and nothing is streamed before the end: for short texts.
    rewind: the unit of text that is drawn again when a banned phrase was written, for bans without a unit of their own:
        the "span" of the phrase, or all from the start of the "word", "sentence" or "paragraph" in which it begins.
        Words, sentences and paragraphs are then distributed as the model writes them, conditioned on beginning no ban,
        and are streamed only when complete. "text" is method="text". Without `rewind`, the unit is "word" for a single
        word, or a part of a word, with edges="anywhere", and "span" for all other bans and for banned_strings.
    on_exhausted: what to do if every alternative to a ban is used up. "concede": leave the ban in the text, count it
        and warn once per sampler (`ConcededWarning`). "stop": end the text before it. "raise": raise `Exhausted`.
    prompt_lookback: whether a ban may begin in the prompt, which is never changed.
    banned_strings: more banned phrases, which match anywhere, ignoring case; `*` is literal.
    banned_regex: more bans, as patterns for `Ban.regex`.
    exempt: phrases inside which no ban applies, in addition to the exempt phrases of each ban.
    scopes: where bans apply, in addition to the scopes of each ban. They are not added to a ban that has a scope
        "inside" or "after", nor to bans of token ids. `chat_scope` makes a scope of a chat model's answer or thoughts.
    exempt_prompt: do not apply bans that the prompt contains.
    max_rewinds: maximum rewinds to the same token before `on_exhausted` applies. In total, at most
        16 × `max_new_tokens` tokens are withdrawn; with method="text" only the number of rewinds counts.
    mass_floor: bans are exact at a token as long as they leave at least this share of its distribution, 0.0 to 1.0.
    probability_floor: below `mass_floor`, ignore tokens whose probability under the model is lower than this.
        If `mass_floor` or `probability_floor` is 0.0, any token is taken rather than conceding.

    The bans are compiled once, for any number of calls and of models with that vocabulary. Raises `BanError` for bans
    that can't be used and `InputError` for a tokenizer whose tokens can't be read as bytes.

    >>> from antislop import AntiSlop, Ban, tiny_model
    >>> model, tokenizer = tiny_model()
    >>> sampler = AntiSlop(tokenizer, ["a testament to", Ban("tapestry", weight=0.1)])
    >>> sampler.generate(model, "The old house", max_new_tokens=8).shape
    torch.Size([1, 12])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        bans: Bans | None = None,
        *,
        banned_strings: Sequence[str] = (),
        banned_regex: Sequence[str] = (),
        exempt: Sequence[str] = (),
        scopes: Sequence[Scope] = (),
        exempt_prompt: bool = False,
        method: Method = "exact",
        rewind: Unit | None = None,
        on_exhausted: OnExhausted = "concede",
        prompt_lookback: bool = True,
        max_rewinds: int = MAX_REWINDS,
        mass_floor: float = MASS_FLOOR,
        probability_floor: float = PROBABILITY_FLOOR,
    ) -> None:
        if not hasattr(tokenizer, "get_vocab"):
            own = "processor.tokenizer" if hasattr(tokenizer, "tokenizer") else "tokenizer"
            kind = type(tokenizer).__name__
            raise InputError(f"a tokenizer was expected first, not a {kind}: write AntiSlop({own}, bans)")
        if rewind not in (None, *get_args(Unit)):
            raise InputError(f"rewind is {rewind!r}; it is one of {', '.join(map(repr, get_args(Unit)))}")
        method = "text" if rewind == "text" and method == "exact" else method
        floors = {"mass_floor": mass_floor, "probability_floor": probability_floor}
        policy = Policy(True, method, on_exhausted, max_rewinds, **floors)  # raises before bans are compiled
        for name, flag in (("exempt_prompt", exempt_prompt), ("prompt_lookback", prompt_lookback)):
            if not isinstance(flag, bool):
                raise InputError(f"{name} is {flag!r}; it is True or False")
        if bans is None and not (banned_strings or banned_regex):
            raise BanError("nothing is banned: give a list, banned_strings or banned_regex, or [] to ban nothing")
        has_units = (method, rewind) not in (("token", None), ("text", None), ("text", "text"))
        self.compiled = CompiledBans.compile(
            [] if bans is None else bans,
            tokenizer,
            strings=banned_strings,
            patterns=banned_regex,
            exempt=exempt,
            scopes=scopes,
            prompt_lookback=prompt_lookback,
            exempt_prompt=exempt_prompt,
            rewind=rewind if has_units else "span",
        )
        if method == "token" and (units := {rewind or "span", *(ban.unit for ban in self.bans)} - {"span"}):
            raise InputError(f"method='token' draws one token again, and rewind is {min(units)!r}: leave out one")
        self.options: dict[str, Any] = {
            "method": method,
            "rewind": rewind,
            "on_exhausted": on_exhausted,
            "prompt_lookback": prompt_lookback,
            "exempt_prompt": exempt_prompt,
            "max_rewinds": max_rewinds,
            **floors,
        }
        """The keyword arguments with which `AntiSlop(tokenizer, bans, …)` makes an equal sampler."""
        self.terms = Terms(self.compiled, policy, self.options, ConcessionWarner())

    @property
    def bans(self) -> BanList:
        """The compiled bans, which can't be replaced."""
        return self.compiled.bans

    @bans.setter
    def bans(self, bans: Bans) -> NoReturn:  # noqa: ARG002
        raise AttributeError(
            "a sampler's bans are compiled once: make another one for others, AntiSlop(tokenizer, bans)"
        )

    def __repr__(self) -> str:
        options = f", method={self.options['method']!r}, on_exhausted={self.options['on_exhausted']!r}>"
        bans = describe_count(len(self.bans), "ban")
        origin = f" from {make_visible(self.bans.source)}" if self.bans.source else ""
        return shorten(f"<AntiSlop: {bans}{origin}", 80 - len(options)) + options

    def _repr_html_(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        shown = f"<summary>{escape_html(repr(self))}</summary><p>{escape_html(options)}</p>{self.bans._repr_html_()}"
        return f"<details>{shown}</details>"

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor | None = None,
        *,
        stop_strings: str | list[str] | None = None,
        return_cache: bool = False,
        **prepared: Any,
    ) -> CallOutput:
        """Run the decoding loop of one `generate`, which calls this for `model.generate(…, custom_generate=sampler)`.

        transformers does not pass `streamer` and `assistant_model` on: use `AntiSlop.generate` with them. It passes
        `stop_strings` given as an argument, not those of a generation config. Raises `InputError`, before the model
        runs, for arguments that are not supported.
        """
        refuse_at("custom_generate", arguments_of_generate("streamer", "assistant_model", "synced_gpus"))
        if return_cache:
            raise InputError("generate() can't return a cache for a custom_generate: call sampler.generate(model, …)")
        if input_ids is None or "generation_config" not in prepared:
            raise InputError("write sampler.generate(model, …), or model.generate(…, custom_generate=sampler)")
        call = Call.from_generate(model, input_ids, **prepared)
        if stop_strings or stop_strings == "":
            criterion = StopStrings.read(stop_strings, self.compiled.vocabulary.spell)
            call = replace(call, stopping_criteria=StoppingCriteriaList([*call.stopping_criteria, criterion]))
        return _complete(Generation(call, self.terms, recording=_choose_recording(call)))[0]

    @overload
    def generate(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        return_dict_in_generate: Literal[True],
        **kwargs: Any,
    ) -> ReportedOutput: ...

    @overload
    def generate(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        return_dict_in_generate: Literal[False] | None = None,
        return_cache: Literal[False] = False,
        **kwargs: Any,
    ) -> Tensor: ...

    @overload
    def generate(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        return_cache: Literal[True],
        return_dict_in_generate: Literal[False] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, ActivationCache]: ...

    def generate(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        streamer: BaseStreamer | None = None,
        record: RecordLevel = "events",
        record_top_k: int = 10,
        return_cache: bool = False,
        names_filter: NamesFilter = None,
        device: torch.device | str | None = None,
        controller: Controller | None = None,
        max_forks: int = 1,
        **kwargs: Any,
    ) -> CallOutput | tuple[CallOutput, ActivationCache]:
        """Take the arguments of `model.generate`, including streamers and stop strings, and return what it returns.

        inputs: ids as for `model.generate`; or one text, to which the tokenizer adds its special tokens; or the
            messages of a chat, from which the tokenizer's chat template makes the prompt for a reply.
        streamer: gets the prompt, then tokens as soon as no rewind can reach them: at least one token late.
        record: the contents of the trace: "none"; "events"; "top", which adds the `record_top_k` likeliest alternatives
            of each draw and their shares; or "full", which adds all tokens, 100 bytes or more for each, to every draw.
        return_cache: return a pair: the result, and an `ActivationCache` of the kept text, in which padding is masked.
            `antislop.explain.run_with_cache` would return the same cache, and describes `names_filter` and `device`.
        controller: a rule of your own that cuts, forces, masks and forks the text step by step; bans hold on top. Each
            further row of a batch gets a `fork` of the controller.
        max_forks: how many texts a controller may continue at a time for each row. Forked texts are further rows of the
            output, whose reports name their parents.

        With `return_dict_in_generate=True` the output has four more fields: `report` and `trace` of all rows, and the
        lists `reports` and `texts` with an item for each row. An assistant drafts tokens under the same bans. Hidden
        states and attentions come from one more forward pass over the kept text. If a model's class has its own
        `generate` (Whisper), the result is what that method returns.

        >>> from antislop import AntiSlop, tiny_model
        >>> model, tokenizer = tiny_model()
        >>> sampler = AntiSlop(tokenizer, ["village"])
        >>> out = sampler.generate(model, "The old", max_new_tokens=20, return_dict_in_generate=True)
        >>> sampler.bans.find(out.text)
        []
        """
        request: CacheRequest | None = None
        if return_cache or names_filter is not None or device is not None or any(map(kwargs.get, STATES)):
            from antislop.explain.kept_text import request_cache  # not imported otherwise

            request = request_cache(model, kwargs, return_cache=return_cache, names_filter=names_filter, device=device)
        if controller is not None or max_forks != 1:
            kwargs |= {"controller": controller, "max_forks": max_forks}
        _, returned, cache = self._generate(model, inputs, kwargs, Recording(record, record_top_k), streamer, request)
        return returned if cache is None else (returned, cache)

    def forward_pass(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        streamer: BaseStreamer | None = None,
        record: RecordLevel = "top",
        record_top_k: int = 10,
        **kwargs: Any,
    ) -> ForwardResult:
        """Generate as `generate` does, and return a `ForwardResult`, which can explain each token afterwards.

        Takes the arguments of `generate`, except those that ask for scores, states or a cache. No probabilities of the
        whole vocabulary are kept unless `record="full"`. The result refers to the model until `clear_traces`.
        """
        from antislop.explain.forward_result import ForwardResult

        refuse_at("forward_pass", kwargs)
        if kwargs.get("return_dict_in_generate") is False:
            raise InputError("forward_pass always returns a ForwardResult: leave return_dict_in_generate out")
        kwargs["return_dict_in_generate"] = True
        return ForwardResult(self._generate(model, inputs, kwargs, Recording(record, record_top_k), streamer)[0])

    def _generate(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None,
        arguments: dict[str, Any],
        recording: Recording,
        streamer: BaseStreamer | None = None,
        request: CacheRequest | None = None,
    ) -> tuple[Generation, CallOutput, ActivationCache | None]:
        """Return the generation, the return value of the model's `generate`, and the requested cache or None."""
        control = take_control(arguments) if arguments.keys() & {"controller", "max_forks"} else None
        cache: ActivationCache | None = None
        generation: Generation

        def decode(call: Call) -> CallOutput:  # a model's own `generate` may call this several times
            nonlocal generation, cache
            generation = Generation(call, self.terms, recording=_choose_recording(call, recording), control=control)
            output, cache = _complete(generation, streamer, request)
            return output

        returned: CallOutput = call_generate(model, inputs, arguments, decode, bans=self.compiled)
        # Some models' `generate` changes what the loop returns; reports are added only to an unchanged output.
        if returned is generation.output:
            returned = generation.with_reports(returned)
        return generation, returned, cache

    def stream(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        controller: Controller | None = None,
        **kwargs: Any,
    ) -> Iterator[str]:
        """Yield one generated text piece by piece; each piece is final, and no rewind withdraws it.

        inputs, controller: as for `generate`; the controller can't fork the text.
        kwargs: what `model.generate` takes: `input_ids` and `attention_mask`, settings (`max_new_tokens`, `do_sample`,
            `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `stop_strings`, and all others),
            `generation_config`, `logits_processor`, `stopping_criteria`, `assistant_model`.
        """
        generation = self._prepare_stream(model, inputs, controller=controller, **kwargs)
        return self.compiled.vocabulary.stream(generation.events(), after=generation.rows[0].ids[0].tolist())

    def events(
        self,
        model: PreTrainedModel,
        inputs: CallInput | None = None,
        *,
        record: RecordLevel = "events",
        record_top_k: int = 10,
        controller: Controller | None = None,
        **kwargs: Any,
    ) -> EventStream:
        """Yield the events of one text as they happen.

        inputs, record, record_top_k, controller: as for `generate`; the controller can't fork the text.
        kwargs: as for `stream`.
        """
        recording = Recording(record, record_top_k)
        return EventStream(self._prepare_stream(model, inputs, recording, controller=controller, **kwargs))

    def generate_many(
        self,
        model: PreTrainedModel,
        prompts: Iterable[PromptInput],
        *,
        bans: Iterable[Bans | None] | None = None,
        batch_size: int = BATCH_SIZE,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        engine: Literal["own", "paged"] = "own",
        **kwargs: Any,
    ) -> Iterator[Completion]:
        """Generate from many prompts, `batch_size` at a time, and yield each text when it is finished.

        The next prompt takes the row of a finished text at once, while the others continue. A text whose prompt is
        empty or has ids that the model does not know, or whose logits are NaN, has an `error`; the others continue.

        prompts: an iterable, read as texts finish, of texts (to which the tokenizer adds its special tokens), ids
            [tokens], or lists of chat messages.
        bans: for each prompt a list of bans that replaces the sampler's, or None to keep these. The sampler's options
            and `exempt` phrases apply to all texts. A list object that several prompts share is compiled once.
        seed: with a prompt's number, seeds the random numbers of its text, which therefore does not depend on the other
            texts of its batch, but for the last bits of logits. None: a seed is drawn from torch's global generator.
        seeds: a seed for each prompt, instead of `seed`; the prompt's number then has no influence.
        engine: "own", or "paged", the continuous batching of transformers, whose memory has a fixed size; it takes a
            `continuous_batching_config`. Both write the same texts, but for the last bits of logits.
        kwargs: the settings of `generate`, except num_return_sequences (repeat a prompt instead), and
            `chat_template_kwargs`. `logits_processor` and `stopping_criteria` are lists for all texts, or, for objects
            that remember a text, functions that make a new list for each text.
        """
        check_model(model)
        refuse_per_prompt(kwargs)
        requests = read_requests(prompts, self.compiled, bans=bans, batch_size=batch_size, seed=seed, seeds=seeds)
        write: WriteTexts = write_in_flight
        if engine == "paged":
            from antislop.core.hf.paged.texts import write_paged  # a plain call imports no continuous batching

            write = partial(write_paged, config=kwargs.pop("continuous_batching_config", None))
        elif engine != "own":
            raise InputError(f"engine is {engine!r}; it is 'own' or 'paged'")
        return complete_many(model, requests, self.terms, max_rows=batch_size, write=write, arguments=kwargs)

    def _prepare_stream(
        self, model: PreTrainedModel, inputs: CallInput | None, recording: Recording = EVENTS, **kwargs: Any
    ) -> Generation:
        control = take_control(kwargs)
        call = prepare_call(model, inputs, kwargs, bans=self.compiled)
        refuse_at("stream", kwargs | call.requested_states)
        return Generation(call, self.terms, recording=recording, control=control)


def _choose_recording(call: Call, recording: Recording = EVENTS) -> Recording:
    """Return the recording of a call: `NOTHING` for a call that returns a tensor, which has no trace."""
    if call.config.return_dict_in_generate:
        return recording
    if recording.has_choices:
        raise InputError(
            f"record={recording.level!r} records for a trace, and a tensor has none: pass return_dict_in_generate=True"
        )
    return NOTHING


def _complete(
    generation: Generation, streamer: BaseStreamer | None = None, request: CacheRequest | None = None
) -> tuple[CallOutput, ActivationCache | None]:
    """Return the output and the requested cache. Only for a cache or states, the model reads the kept text again."""
    call, spec = generation.call, generation.rows[0].spec
    is_read_again = request is not None or bool(call.requested_states)
    if (is_read_again or spec.drafter or spec.forced) and has_argument_hooks(call.model):
        raise InputError(
            f"hooks tell the layers of {type(call.model).__name__} which tokens to change, as for an aLoRA of PEFT,"
            " so it reads them one by one: leave out drafts, then='force', hidden states, attentions and return_cache"
        )
    if not is_read_again:
        return generation.complete(streamer), None
    from antislop.explain.kept_text import complete_and_read

    return complete_and_read(generation, streamer, request)
