"""vLLM's scheduler, with bans: it takes withdrawn tokens out of a request, and has vLLM read the rest again.

A text asks for its next draw through two features of vLLM: the masks of tokens that grammars allow, and the sampling
parameters of resumed requests. vLLM's scheduler is not a public interface, so an untested version of vLLM is refused if
it differs in a name that is used here.
"""

from __future__ import annotations

import copy
import math
import time
from concurrent.futures import Future, TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import vllm
from transformers import (
    AutoTokenizer,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from vllm.logger import init_logger
from vllm.outputs import RequestError
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from antislop.core.bans import BanList
from antislop.core.hf import CompiledBans, StopStrings, choose_scopes, find_response_template
from antislop.core.loop import RowSpec, seed_of
from antislop.engines.vllm.engine_text import EngineCallbacks, EngineText, Told
from antislop.engines.vllm.grammar import WORD, TextGrammar
from antislop.engines.vllm.outcomes import COUNTERS, describe, write_counts
from antislop.engines.vllm.requests import (
    KEY,
    LOGPROBS_MODE,
    NAMES,
    PARAMETERS,
    TELLS_DRAWN,
    TESTED,
    EngineSettings,
    FoundList,
    ListCache,
    RequestOptions,
    check_settings,
    read_own_lists,
)
from antislop.errors import InputError
from antislop.files.packages import find_differences
from antislop.lists import SENT_LIMITS

Request: TypeAlias = Any

logger = init_logger(__name__)

ALL = -1
"""For vLLM: log-probabilities of the whole vocabulary."""
PROMPT_LOGPROBS = {
    "prompt_logprobs_dict": "new_prompt_logprobs_tensors",
    "prompt_token_id_logprobs_dict": "prompt_token_id_logprobs",
}
"""Fields of the model runner's output, each with the field of a request's output that takes its value."""


def _check_drafts(*, is_attention: bool, use_v2_model_runner: bool) -> None:
    """Raise `InputError` for an engine where it was not tested that drafts leave the texts as likely as before."""
    if not use_v2_model_runner:
        raise InputError(
            "bans and drafts need vLLM's second model runner; the first one takes no logits processors beside drafts, "
            "and on CPUs verifies drafts at a temperature that it never sets: leave out speculative_config, or set "
            "VLLM_USE_V2_MODEL_RUNNER=1 on a GPU"
        )
    if not is_attention:
        raise InputError(
            "bans and drafts can't be combined on a model with recurrent layers, which was not tested: leave out "
            "speculative_config"
        )


def _list_warpers(params: Any) -> LogitsProcessorList:
    """Return the processors that turn the model's distribution into the one vLLM draws from, in vLLM's order."""
    temperature = float(params.temperature)  # vLLM takes integers too, which the warper refuses
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)] if temperature else [])
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    return warpers


def _explain(difference: str) -> InputError:
    return InputError(
        f"bans can't be kept inside vLLM {vllm.__version__}: {difference}. They were tested with vLLM "
        f"{' and '.join(TESTED)}: install that, or put antislop in front of the server (EndpointSampler)"
    )


class _Text(EngineText):
    """A text inside vLLM: its sampling parameters, its grammar, and the log-probabilities that its caller asked for.

    params: the sampling parameters that the caller asked for.
    wanted: the request's structured output, in vLLM's words, which holds the grammar.
    prompt_logprobs: fields of the first output with log-probabilities of the prompt.
    is_plain: whether the request has no stop strings, no structured output, and asks for no log-probabilities.
    shared_blocks: how many blocks of settled text vLLM was last asked to share.
    sent: how many tokens have left the engine.
    """

    def __init__(
        self,
        spec: RowSpec,
        bans: BanList,
        params: Any,
        *,
        wanted: Any,
        tells_events: bool,
        askable: int,
        **options: Any,
    ) -> None:
        # With these, vLLM reports the listed tokens in place of the likeliest.
        askable = 0 if params.logprob_token_ids else askable
        truncates = params.top_p < 1 or params.top_k > 0 or params.min_p > 0
        self.grammar = TextGrammar(self)
        super().__init__(spec, truncates=truncates, askable=askable, look_ahead=self.grammar.look_ahead, **options)
        self.prompt_logprobs: dict[str, Any] = {}
        self.wanted = wanted
        self.bans = bans
        self._params = params
        self.tells_events = tells_events
        self.is_plain = not (params.stop or params.structured_outputs) and params.num_logprobs is None
        self.shared_blocks = -1
        self._rows: list[Any] = []  # if the caller asked: log-probabilities of tokens that the engine has not sent
        self.sent = 0
        self._resumes = 0

    def make_params(self, *, renews_seed: bool) -> Any:
        """Return the parameters of the next draws. renews_seed: whether to change the seed, so that draws differ."""
        params = copy.copy(self._params)
        params.extra_args = {name: value for name, value in (params.extra_args or {}).items() if name != KEY} or None
        if renews_seed and params.seed is not None:
            self._resumes += 1
            params.seed = seed_of(params.seed, self._resumes) % 2**31
        question = self.ask()
        if question is not None and params.logprobs != ALL:
            params.logprobs = max(question.told, params.logprobs or 0)
        if question is not None and question.is_raw:
            params.temperature, params.top_p, params.top_k, params.min_p = params.temperature and 1.0, 1.0, 0, 0.0
        return params

    def read_draw(self, token: int, row: Any) -> bool:
        """Add the token that vLLM has drawn, as `read` does. row: its log-probabilities; None if vLLM sent none."""
        told = None
        if self.grammar.forced.pop(len(self.row.tokens), None) == token:
            told = Told(1.0, np.array([token, not token]), np.array([0.0, -np.inf]), is_forced=True)
        elif row is not None and self._askable:
            # Copies, since a view would keep the log-probabilities of all requests of the step.
            tokens, logprobs = row.logprob_token_ids[0, 1:].copy(), row.logprobs[0, 1:].copy()
            told = Told(math.exp(row.logprobs[0, 0]), tokens, logprobs)
        if row is not None and self._params.num_logprobs is not None:
            self._rows.append(self._describe_draw(token, row))
        stays = self.read(token, told)
        if not stays:
            self.grammar.forced.clear()
        return stays

    def _describe_draw(self, token: int, row: Any) -> Any:
        """Return a token's log-probabilities for the caller, also if bans left only a choice of tokens to draw from."""
        width = None if self._params.num_logprobs == ALL else 1 + self._params.num_logprobs
        if self._choice is None:
            return type(row)(row.logprob_token_ids[:, :width], row.logprobs[:, :width], row.sampled_token_ranks)
        shares = self.list_shares()
        own = shares.get(token, float(np.exp(row.logprobs[0, 0])) * max(0.0, 1.0 - sum(shares.values())))
        others = sorted(shares.items(), key=lambda pair: pair[1], reverse=True)
        pairs = [(token, own), *others, *[(token, own)] * row.logprobs.shape[1]][:width]
        with np.errstate(divide="ignore"):
            logprobs = np.log([[share for _, share in pairs]], dtype=np.float32)
        unknown_rank = int(row.sampled_token_ranks[0]) if token not in shares else 1
        rank = unknown_rank + sum(share > own for share in shares.values())
        return type(row)(np.array([[other for other, _ in pairs]], np.int32), logprobs, np.array([rank]))

    def take_settled(self) -> list[int]:
        """Return the tokens that may leave the engine now."""
        row, sent = self.row, self.sent
        if self._rows:
            del self._rows[len(row.tokens) - sent :]
        self.sent = row.settled
        return row.tokens[sent : row.settled]

    def complete(self, output: Any) -> None:
        """Set the log-probabilities in an output: of its tokens, and in a text's first output also of the prompt."""
        count, output.new_logprobs = len(output.new_token_ids), None
        if rows := self._rows[:count]:
            del self._rows[:count]
            columns = (np.concatenate(parts) for parts in zip(*(row[:3] for row in rows), strict=True))
            output.new_logprobs = type(rows[0])(*columns)
        for name, value in self.prompt_logprobs.items():
            setattr(output, name, value)
        self.prompt_logprobs.clear()


class _Banning(Scheduler):  # type: ignore[misc]  # mypy does not see vLLM
    """The part of a scheduler that judges texts; it is combined with vLLM's synchronous or asynchronous scheduler."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._settings = EngineSettings.read(vllm_config.additional_config.get(KEY, {}))
        model = vllm_config.model_config
        if self._settings.method == "thin" and model.logprobs_mode != TELLS_DRAWN:
            raise InputError(
                f"method='thin' needs the probabilities from which vLLM draws, and {LOGPROBS_MODE} is "
                f"{model.logprobs_mode!r}: pass {LOGPROBS_MODE}={TELLS_DRAWN!r} (--logprobs-mode {TELLS_DRAWN})"
            )
        # The first model runner gets the parameters of resumed requests only from a logits processor.
        if (
            self._settings.method == "thin"
            and not self.use_v2_model_runner
            and not any("antislop.engines.vllm" in str(processor) for processor in model.logits_processors or ())
        ):
            raise InputError(
                "method='thin' needs the logits processor of antislop: pass --logits-processors "
                "antislop.engines.vllm:CheckBans"
            )
        self._vocabulary_size = model.get_vocab_size()
        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
        )
        lists = read_own_lists(self._settings)
        self._lists = ListCache(
            CompiledBans.compile(lists.pop(""), tokenizer),
            lists=lists,
            exempt=self._settings.exempt,
            choose_scopes=partial(choose_scopes, template=find_response_template(tokenizer)),
        )
        self._opening: dict[str, tuple[Future[FoundList], float]] = {}  # by request: its list, and until when
        groups = self.kv_cache_config.kv_cache_groups
        # Of other caches, such as the states of recurrent layers, vLLM keeps only the latest.
        rewindable = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec)
        is_attention = all(type(group.kv_cache_spec) in rewindable for group in groups)
        if vllm_config.speculative_config is not None:
            _check_drafts(is_attention=is_attention, use_v2_model_runner=self.use_v2_model_runner)
        self._holds = self._settings.resume == "hold" and is_attention
        if self._holds:
            self._keep_unsettled_blocks()
        self._texts: dict[str, _Text] = {}  # by the id of their request
        self._ended: dict[str, _Text] = {}  # texts that have ended in the step under way
        self._rewound: dict[str, Request] = {}  # requests that vLLM is to read again
        self._judged: list[Request] = []  # requests whose tokens were judged in the step under way
        self._attached: dict[str, Request] = {}  # requests whose structured output is a text's grammar
        if not hasattr(self.structured_output_manager, "_grammar_bitmask"):
            raise _explain("its structured output manager has no _grammar_bitmask")
        self._output: Any = None  # of the model runner, in the step under way
        self._counts = dict.fromkeys(COUNTERS, 0.0)  # of finished texts, since the last statistics

    # -- what vLLM calls

    def add_request(self, request: Request) -> None:
        is_new = request.request_id not in self.requests
        super().add_request(request)
        if is_new and request.sampling_params is not None:
            try:
                work = self._lists.find(request.sampling_params.extra_args)
            except InputError as error:
                self._fail(request, error)
                return
            self._opening[request.request_id] = work, time.monotonic() + SENT_LIMITS.seconds
            self._is_open(request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        is_ready: bool = super()._handle_blocked_waiting_request(request) and self._is_open(request)
        if is_ready and request.use_structured_output and (text := self._texts.get(request.request_id)):
            if text.wanted.grammar is not text.grammar:  # the user's is compiled
                text.grammar.own = text.wanted.grammar
            self._attach(request)
        return is_ready

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        for request in self._rewound.values():
            text = self._texts[request.request_id]
            request.sampling_params = text.make_params(renews_seed=self.use_v2_model_runner)
            if request.status == RequestStatus.RUNNING:
                # As vLLM does for `reset_prefix_cache`: preempted, and resumed in the same step.
                self.running.remove(request)
                self.prev_step_scheduled_req_ids.discard(request.request_id)
                if self._can_hold(request):  # it keeps its cache blocks, and only its last token is read again
                    request.status = RequestStatus.PREEMPTED
                    request.num_computed_tokens = request.num_tokens - 1
                    request.num_output_placeholders = 0
                    self.reset_preempted_req_ids.add(request.request_id)
                    self.kv_holding_waiting.prepend_request(request)
                else:
                    self._preempt_request(request, time.monotonic(), drop_stale_output=True)
            self._attach(request)
        for request in self._attached.values():
            request.spec_token_ids = []  # no drafts where this package chooses the token, or after a rewind
        self._rewound.clear()
        scheduled = super().schedule(*args, **kwargs)
        # The second model runner is sent the parameters of each resumed request; the first one looks here.
        resumed = self._texts.keys() & scheduled.scheduled_cached_reqs.resumed_req_ids
        setattr(scheduled, PARAMETERS, {name: self.requests[name].sampling_params for name in resumed})
        return scheduled

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        for name, request in self._attached.items():
            count = scheduler_output.num_scheduled_tokens.get(name)
            # A step that reads all known tokens draws the next one.
            reads_all = request.num_in_flight_tokens - request.num_stale_output_tokens == count
            self._texts[name].grammar.draws_next = reads_all and not request.is_prefill_chunk
        masks = super().get_grammar_bitmask(scheduler_output)
        for name in self._attached.keys() & scheduler_output.num_scheduled_tokens.keys():
            request = self._attached[name]
            if self._texts[name].grammar.own is None and not request.is_prefill_chunk:
                # If the request kept a grammar, the next asynchronous step would wait for this step.
                self._detach(request)
        return masks

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        text = self._texts.get(request.request_id)
        before = request.status, request.stop_reason
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if text is None:
            return new_token_ids, stopped
        is_lean = text.is_plain and text.is_at_rest and len(new_token_ids) == 1 and not stopped
        if is_lean and (settled := text.pass_over(new_token_ids[0])) is not None:
            text.sent = text.row.settled
            return settled, False
        stays = True
        for token, row in zip(new_token_ids, self._find_logprobs(request, len(new_token_ids)), strict=True):
            stays = text.read_draw(token, row)
            if not stays or text.row.is_finished:
                break  # what follows was drawn behind withdrawn text, or behind the end
        is_asked = text.grammar.own is not None or request.request_id in self._attached
        if stays and not stopped and text.is_at_rest and not is_asked:
            return text.take_settled(), False
        if stays and stopped:
            stays = text.end()
        if text.row.is_finished and not (stopped and len(text.row.tokens) == request.num_output_tokens):
            # Ended by bans, or by a stop string, which the front end finds. "length" keeps the last token in the text.
            request.status, request.stop_reason, stopped = RequestStatus.FINISHED_LENGTH_CAPPED, before[1], True
        elif stopped and not text.row.is_finished:
            (request.status, request.stop_reason), stopped = before, False
        if stopped and text.report.reason == "repetition":
            request.status = RequestStatus.FINISHED_REPETITION
        if not stays or (text.asks_in_vain and self._can_hold(request)):
            # Also if no token was withdrawn: only a resumed request gets new parameters.
            self._cut(request, len(text.row.tokens))
        if not text.grammar.follow(request, self.structured_output_manager):
            request.status, stopped = RequestStatus.FINISHED_ERROR, True
        # vLLM has grammars read the tokens that leave the engine; this grammar has read all drawn tokens.
        self._detach(request)
        self._judged.append(request)
        if stopped and text.report.conceded and request.stop_reason is None:
            # The one field that clients of streams get, too.
            request.stop_reason = f"{KEY}: {text.report.conceded} conceded"
        return text.take_settled(), stopped

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self._output = model_runner_output
        for name, output_name in PROMPT_LOGPROBS.items():
            told = getattr(model_runner_output, name)
            for request_id in self._texts.keys() & told.keys():  # the text's first token may not leave the engine yet
                self._texts[request_id].prompt_logprobs[output_name] = told.pop(request_id)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for output in chain.from_iterable(each.outputs for each in outputs.values()):
            text = self._texts.get(output.request_id) or self._ended.get(output.request_id)
            if text is not None and (output.new_logprobs is not None or text.prompt_logprobs):
                text.complete(output)
        self._ended.clear()
        for request in self._judged:
            if request.request_id in self._texts:
                self._attach(request)
        self._judged.clear()
        return outputs

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            write_counts(stats, self._counts)
            self._counts = dict.fromkeys(COUNTERS, 0.0)
        return stats

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._rewound.pop(request.request_id, None)
        self._opening.pop(request.request_id, None)
        self._attached.pop(request.request_id, None)
        kv_transfer_params, *others = super()._free_request(request, *args, **kwargs)
        if text := self._texts.pop(request.request_id, None):
            self._ended[request.request_id] = text
            for name in COUNTERS:
                self._counts[name] += getattr(text.report, name, 0)
            done = describe(text.report, text.outcomes if text.tells_events else None, text.bans)
            kv_transfer_params = {**(kv_transfer_params or {}), KEY: done}
        return kv_transfer_params, *others

    # -- what bans need

    def _is_open(self, request: Request) -> bool:
        """Report whether a request's list is compiled, so that it may be written; fail the request after a deadline."""
        if request.request_id in self._opening:
            work, deadline = self._opening[request.request_id]
            if not work.done() and time.monotonic() < deadline:
                return False
            del self._opening[request.request_id]
            self._counts["list_wait_seconds"] += time.monotonic() - deadline + SENT_LIMITS.seconds
            try:
                self._open_text(request, *work.result(timeout=0))
            except FutureTimeout:
                self._fail(
                    request, f"its bans were not compiled within {SENT_LIMITS.seconds:g} seconds: shorten the list"
                )
            except InputError as error:  # `CheckBans` has said so in the front end, if it was asked
                self._fail(request, error)
        return request.request_id not in self.grammar_compile_error_reqs

    def _fail(self, request: Request, reason: object) -> None:
        """Have vLLM fail a request, as for a grammar that doesn't compile; since 0.33 vLLM sends clients the reason."""
        logger.error("request %s fails: %s", request.request_id, reason)
        if isinstance(self.grammar_compile_error_reqs, set):
            self.grammar_compile_error_reqs.add(request.request_id)
        else:
            error = RequestError(code="validation_error", message=str(reason))
            self.grammar_compile_error_reqs[request.request_id] = error

    def _open_text(self, request: Request, options: RequestOptions, bans: CompiledBans | None) -> None:
        params, settings = request.sampling_params, self._settings
        has_own_list = self._lists.has_own and settings.on_greedy == "refuse"
        check_settings(params, options, has_own_list=has_own_list, tells=settings.tells(params))
        is_greedy = params.temperature == 0
        if bans is None or (is_greedy and settings.on_greedy == "pass" and not len(options.bans)):
            return
        if request.prompt_token_ids is None or request.resumable:
            raise InputError("bans need a prompt of tokens, and a request that ends with its text")
        # The coins of bans with weights must not be the random numbers by which vLLM draws tokens.
        coins = None if params.seed is None else torch.Generator().manual_seed(seed_of(params.seed, 1))
        spec = bans.make_row(
            request.prompt_token_ids,
            policy=replace(settings.policy, do_sample=not is_greedy),
            callbacks=EngineCallbacks(
                warpers=_list_warpers(params), eos_token_ids=frozenset(params.all_stop_token_ids)
            ),
            max_new_tokens=request.max_tokens,
            generator=coins,
        )
        strings, surface = params.stop, bans.vocabulary.surface
        self._texts[request.request_id] = text = _Text(
            spec,
            bans.bans,
            params,
            wanted=request.structured_output_request or StructuredOutputRequest(params, reasoning_ended=True),
            tells_events=options.events,
            askable=self._vocabulary_size if settings.method == "thin" else 0,
            stop_strings=StopStrings(strings, surface) if strings else None,
            min_tokens=params.min_tokens,
        )
        request.sampling_params = text.make_params(renews_seed=False)

    def _find_logprobs(self, request: Request, count: int) -> list[Any]:
        """Return the log-probabilities of new tokens, one row for each; None for each if there are none."""
        logprobs, params = self._output.logprobs, request.sampling_params
        if logprobs is None or params is None or params.num_logprobs is None:
            return [None] * count
        tokens, shares, ranks = logprobs.slice_request(self._output.req_id_to_index[request.request_id], count)[:3]
        # Other requests of the step may have asked for more tokens: the result must not depend on them.
        width = None if params.num_logprobs == ALL else 1 + params.num_logprobs
        rows = zip(tokens[:, :width], shares[:, :width], ranks, strict=True)
        return [type(logprobs)(*(part[None] for part in row)) for row in rows]

    def _attach(self, request: Request) -> None:
        """Have vLLM ask for masks if a request has a user's grammar, or if its next token is to be chosen here."""
        text = self._texts[request.request_id]
        is_known = request.num_in_flight_tokens == request.num_stale_output_tokens
        if text.grammar.own is not None or (is_known and text.can_choose):
            text.wanted.grammar = text.grammar
            request.structured_output_request = text.wanted
            self._attached[request.request_id] = request
            # vLLM allocates the masks only with a compiler of grammars, which no request may have needed so far.
            manager, config = self.structured_output_manager, self.vllm_config
            if manager.backend is None and manager._grammar_bitmask is None:
                rows = config.scheduler_config.max_num_seqs * (1 + config.num_speculative_tokens)
                manager._grammar_bitmask = torch.full((rows, -(-self._vocabulary_size // WORD)), -1, dtype=torch.int32)

    def _detach(self, request: Request) -> None:
        if self._attached.pop(request.request_id, None):
            request.structured_output_request = None

    def _can_hold(self, request: Request) -> bool:
        """Report whether a request may keep its cache blocks: the token to read again is in an unshared block."""
        read, last = request.num_tokens - 1, request.num_prompt_tokens + self._texts[request.request_id].row.settled
        return self._holds and read > 0 and (read // self.block_size + 1) * self.block_size > last

    def _keep_unsettled_blocks(self) -> None:
        """Have vLLM share or free only cache blocks whose tokens no rewind reaches."""
        coordinator = self.kv_cache_manager.coordinator
        cache_blocks, remove_skipped_blocks = coordinator.cache_blocks, coordinator.remove_skipped_blocks

        def cache_settled(request: Request, num_computed_tokens: int) -> None:
            if text := self._texts.get(request.request_id):
                num_computed_tokens = min(num_computed_tokens, request.num_prompt_tokens + text.row.settled)
                shared, text.shared_blocks = text.shared_blocks, num_computed_tokens // self.hash_block_size
                if text.shared_blocks == shared:
                    return
            cache_blocks(request, num_computed_tokens)

        def remove_settled(request_id: str, processed_computed_tokens: int, *args: Any, **kwargs: Any) -> None:
            if text := self._texts.get(request_id):
                settled = self.requests[request_id].num_prompt_tokens + text.row.settled
                processed_computed_tokens = min(processed_computed_tokens, settled)
            remove_skipped_blocks(request_id, processed_computed_tokens, *args, **kwargs)

        coordinator.cache_blocks = cache_settled
        if any(isinstance(group.kv_cache_spec, SlidingWindowSpec) for group in self.kv_cache_config.kv_cache_groups):
            coordinator.remove_skipped_blocks = remove_settled

    def _cut(self, request: Request, length: int) -> None:
        """Remove all tokens of a request's text after the first `length`; have vLLM read it again at the next step."""
        kept = request.num_prompt_tokens + length
        del request._output_token_ids[length:]
        del request._all_token_ids[kept:]
        del request.block_hashes[kept // self.hash_block_size :]
        request.spec_token_ids = []
        request.drop_stale_output, request.num_stale_output_tokens = True, request.num_in_flight_tokens
        self._rewound[request.request_id] = request


class _BanningAsync(_Banning, AsyncScheduler):  # type: ignore[misc]
    pass


def BanningScheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:  # noqa: N802 - vLLM expects a class
    """Return vLLM's scheduler, which judges the tokens of requests with bans.

    Raises `InputError` if vLLM differs in a name from the one that was tested; warns if only its version does.
    """
    for difference in find_differences(Path(vllm.__file__).parent, NAMES):
        raise _explain(difference)
    if not vllm.__version__.startswith(TESTED):
        logger.warning(
            "bans inside vLLM were tested with vLLM %s, and this is %s: check some texts before you rely on it",
            " and ".join(TESTED),
            vllm.__version__,
        )
    is_async = vllm_config.scheduler_config.async_scheduling
    return (_BanningAsync if is_async else _Banning)(vllm_config, *args, **kwargs)
