"""vLLM's scheduler, with bans: it takes withdrawn tokens out of a request, and has vLLM read the rest again.

vLLM's workers, runners, sampler and front end stay as they are. The scheduler is not public, so other versions of vLLM
than those that were tested are refused.
"""

from __future__ import annotations

import copy
import inspect
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import vllm
from transformers import AutoTokenizer
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.request import RequestStatus

from antislop.decoding.policy import seed_of
from antislop.decoding.row import RowSpec
from antislop.errors import InputError
from antislop.hf.compiled_bans import CompiledBans
from antislop.lists.ban_list import BanList
from antislop.vllm.engine_text import EngineText, NoSettings, StopStrings
from antislop.vllm.outcomes import describe
from antislop.vllm.requests import KEY, LOGPROBS_MODE, TELLS_DRAWN, EngineSettings, ListCache, check_request

Request: TypeAlias = Any

logger = init_logger(__name__)

TESTED = ("0.32",)
SIGNATURES = {
    "add_request": ("request",),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "_update_request_with_output": ("request", "new_token_ids", "is_stale"),
    "_preempt_request": ("request", "timestamp", "drop_stale_output"),
    "_free_request": ("request", "delay_free_blocks"),
}
"""Methods of vLLM's scheduler that are called or overridden, and their parameters."""
ATTRIBUTES = (
    *("requests", "running", "prev_step_scheduled_req_ids", "reset_preempted_req_ids", "kv_holding_waiting"),
    *("block_size", "hash_block_size", "encoder_cache_mismatch_reqs", "use_v2_model_runner"),
)
"""What else is read or changed."""


def check_vllm() -> None:
    """Raise `InputError` if vLLM's scheduler differs from the one that was tested."""
    for name, parameters in SIGNATURES.items():
        method = getattr(Scheduler, name, None)
        found = () if method is None else tuple(inspect.signature(method).parameters)[1:]
        if found != parameters:
            raise _explain(f"Scheduler.{name} takes ({', '.join(found)})" if method else f"it has no Scheduler.{name}")


def _explain(difference: str) -> InputError:
    return InputError(
        f"bans can't be kept inside vLLM {vllm.__version__}: {difference}. They were tested with vLLM "
        f"{' and '.join(TESTED)}: install that, or put antislop in front of the server (EndpointSampler)"
    )


class _Text(EngineText):
    """A text and what vLLM tells of its tokens.

    thins: whether the probabilities of the tokens are used.
    hides_logprobs: whether vLLM computes log-probabilities that the caller did not ask for.
    logprobs: of the tokens that have not left the engine, one row each.
    """

    def __init__(
        self,
        spec: RowSpec,
        bans: BanList,
        *,
        tells_events: bool,
        thins: bool,
        hides_logprobs: bool,
        stop_strings: StopStrings | None = None,
    ) -> None:
        super().__init__(spec, stop_strings=stop_strings)
        self._bans = bans
        self._tells_events = tells_events
        self._thins = thins
        self.hides_logprobs = hides_logprobs
        self.logprobs: list[Any] = []
        self._sent = 0

    def note_logprobs(self, output: Any, request: Request, count: int) -> list[float | None]:
        """Keep the log-probabilities of new tokens; return the probabilities from which they are judged."""
        if output.logprobs is not None and request.sampling_params.num_logprobs is not None:
            place = output.req_id_to_index[request.request_id]
            rows = output.logprobs.slice_request(place, count)
            self.logprobs += [type(rows)(*(part[i : i + 1] for part in rows[:3])) for i in range(count)]
            if self._thins:
                probabilities: list[float | None] = np.exp(rows.logprobs[:, 0]).tolist()  # the drawn token comes first
                return probabilities
        return [None] * count

    def take_settled(self) -> list[int]:
        """Return the tokens that may leave the engine now."""
        del self.logprobs[len(self.tokens) - self._sent :]
        sent, self._sent = self._sent, self.settled
        return self.tokens[sent : self.settled]

    def take_logprobs(self, count: int) -> Any:
        rows, self.logprobs = self.logprobs[:count], self.logprobs[count:]
        return type(rows[0])(*map(np.concatenate, zip(*(row[:3] for row in rows), strict=True))) if rows else None

    def describe(self) -> dict[str, Any]:
        """Return what the bans did, as the caller sees it."""
        return describe(self.report, self.outcomes if self._tells_events else None, self._bans)


if TYPE_CHECKING:
    _Base: TypeAlias = Any
else:
    _Base = object


class _Banning(_Base):  # type: ignore[misc]  # mypy does not see vLLM
    """What bans add to a scheduler."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        if missing := [name for name in ATTRIBUTES if not hasattr(self, name)]:
            raise _explain(f"its scheduler has no {missing[0]}")
        self._settings = EngineSettings.read(vllm_config.additional_config.get(KEY, {}))
        model = vllm_config.model_config
        if self._settings.method == "thin" and model.logprobs_mode != TELLS_DRAWN:
            raise InputError(
                f"method='thin' needs the probabilities from which vLLM draws, and {LOGPROBS_MODE} is "
                f"{model.logprobs_mode!r}: pass {LOGPROBS_MODE}={TELLS_DRAWN!r} (--logprobs-mode {TELLS_DRAWN})"
            )
        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
        )
        self._lists = ListCache(self._settings, lambda bans: CompiledBans.compile(bans, tokenizer))
        groups = self.kv_cache_config.kv_cache_groups
        is_attention = all(type(group.kv_cache_spec) in (FullAttentionSpec, SlidingWindowSpec) for group in groups)
        self._holds = self._settings.resume == "hold" and is_attention
        if self._holds:
            self._keep_unsettled_blocks()
        self._texts: dict[str, _Text] = {}  # by the id of their request
        self._ended: dict[str, _Text] = {}  # whose last tokens are handed out
        self._rewound: dict[str, Request] = {}  # that are to be read again
        self._output: Any = None  # of the model runner, while it is handed out

    # -- what vLLM calls

    def add_request(self, request: Request) -> None:
        is_new = request.request_id not in self.requests
        super().add_request(request)
        if is_new and request.sampling_params is not None:
            try:
                self._open_text(request)
            except InputError as error:  # `CheckBans` has said so in the front end, if it was asked
                logger.error("request %s fails: %s", request.request_id, error)
                self.encoder_cache_mismatch_reqs.add(request.request_id)  # vLLM's list of requests to fail

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        for request in self._rewound.values():
            if request.status == RequestStatus.RUNNING:
                # As vLLM does for `reset_prefix_cache`: preempted, and resumed in the same step.
                self.running.remove(request)
                self.prev_step_scheduled_req_ids.discard(request.request_id)
                if self._can_hold(request):
                    self._hold(request)
                else:
                    self._preempt_request(request, time.monotonic(), drop_stale_output=True)
        self._rewound.clear()
        return super().schedule(*args, **kwargs)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        text = self._texts.get(request.request_id)
        known = text.note_logprobs(self._output, request, len(new_token_ids)) if text is not None else []
        before = request.status, request.stop_reason
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if text is None:
            return new_token_ids, stopped
        stays = all(map(text.read, new_token_ids, known))
        if stays and stopped:
            stays = text.end()
        if text.is_finished and not stopped:
            # By a stop string, which the front end finds, or by bans. "length" keeps the last token in the text.
            request.status, stopped = RequestStatus.FINISHED_LENGTH_CAPPED, True
        elif stopped and not text.is_finished:
            (request.status, request.stop_reason), stopped = before, False
        if not stays:
            self._cut(request, len(text.tokens))
        return text.take_settled(), stopped

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self._output = model_runner_output
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for output in chain.from_iterable(each.outputs for each in outputs.values()):
            if (text := self._texts.get(output.request_id) or self._ended.get(output.request_id)) and text.logprobs:
                logprobs = text.take_logprobs(len(output.new_token_ids))
                output.new_logprobs = None if text.hides_logprobs else logprobs
        self._ended.clear()
        return outputs

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._rewound.pop(request.request_id, None)
        kv_transfer_params, *others = super()._free_request(request, *args, **kwargs)
        if text := self._texts.pop(request.request_id, None):
            self._ended[request.request_id] = text
            kv_transfer_params = {**(kv_transfer_params or {}), KEY: text.describe()}
        return kv_transfer_params, *others

    # -- what bans need

    def _open_text(self, request: Request) -> None:
        params = request.sampling_params
        options = check_request(params, has_own_list=self._lists.has_own and self._settings.on_greedy == "refuse")
        bans = self._lists.find(options) if params.temperature > 0 else None
        if bans is None:
            return
        if request.prompt_token_ids is None or request.resumable:
            raise InputError("bans need a prompt of tokens, and a request that ends with its text")
        # Weights toss coins, which must not be the numbers that vLLM draws tokens by.
        coins = None if params.seed is None else torch.Generator().manual_seed(seed_of(params.seed, 1))
        spec = RowSpec(
            prompt=torch.tensor([request.prompt_token_ids]),
            matcher=bans.matcher,
            state=bans.read_prompt(request.prompt_token_ids),
            policy=self._settings.policy,
            settings=NoSettings(),
            max_new_tokens=request.max_tokens,
            generator=coins,
        )
        thins = self._settings.method == "thin"
        if hides_logprobs := thins and params.num_logprobs is None:
            request.sampling_params = copy.copy(params)
            request.sampling_params.logprobs = 0  # of the tokens that are drawn
        strings, surface = params.stop, bans.vocabulary.surface
        stop_strings = StopStrings(strings, surface, min_tokens=params.min_tokens) if strings else None
        self._texts[request.request_id] = _Text(
            spec,
            bans.bans,
            tells_events=options.events,
            thins=thins,
            hides_logprobs=hides_logprobs,
            stop_strings=stop_strings,
        )

    def _can_hold(self, request: Request) -> bool:
        """Report whether a request may keep its blocks: the token to read again is in one of its own."""
        read, last = request.num_tokens - 1, request.num_prompt_tokens + self._texts[request.request_id].settled
        return self._holds and read > 0 and (read // self.block_size + 1) * self.block_size > last

    def _hold(self, request: Request) -> None:
        """Preempt a request that keeps its blocks: only its last token is read again."""
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_tokens - 1
        request.num_output_placeholders = 0
        if self.log_stats:
            request.record_event(EngineCoreEventType.PREEMPTED, time.monotonic())
        self.reset_preempted_req_ids.add(request.request_id)
        self.kv_holding_waiting.prepend_request(request)

    def _keep_unsettled_blocks(self) -> None:
        """Have blocks shared with other requests, or freed, only as far as no rewind reaches."""
        coordinator = self.kv_cache_manager.coordinator
        cache_blocks, remove_skipped_blocks = coordinator.cache_blocks, coordinator.remove_skipped_blocks

        def cache_settled(request: Request, num_computed_tokens: int) -> None:
            cache_blocks(request, self._limit(request.request_id, num_computed_tokens))

        def remove_settled(request_id: str, processed_computed_tokens: int, *args: Any, **kwargs: Any) -> None:
            remove_skipped_blocks(request_id, self._limit(request_id, processed_computed_tokens), *args, **kwargs)

        coordinator.cache_blocks, coordinator.remove_skipped_blocks = cache_settled, remove_settled

    def _limit(self, request_id: str, tokens: int) -> int:
        text = self._texts.get(request_id)
        return tokens if text is None else min(tokens, self.requests[request_id].num_prompt_tokens + text.settled)

    def _cut(self, request: Request, length: int) -> None:
        """Take all tokens from `length` on out of a request, and have the rest read again at the next step."""
        kept = request.num_prompt_tokens + length
        del request._output_token_ids[length:]
        del request._all_token_ids[kept:]
        del request.block_hashes[kept // self.hash_block_size :]
        request.spec_token_ids = []
        if self.use_v2_model_runner and request.sampling_params.seed is not None:
            # Its noise depends on the seed and the position only: the same token would be drawn again and again.
            request.sampling_params = copy.copy(request.sampling_params)
            request.sampling_params.seed = seed_of(request.sampling_params.seed, 1) % 2**31
        request.drop_stale_output, request.num_stale_output_tokens = True, request.num_in_flight_tokens
        self._rewound[request.request_id] = request


class _BanningScheduler(_Banning, Scheduler):  # type: ignore[misc]
    pass


class _BanningAsyncScheduler(_Banning, AsyncScheduler):  # type: ignore[misc]
    pass


def BanningScheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:  # noqa: N802 - for vLLM it is a class
    """Return vLLM's scheduler, which judges the tokens of requests with bans."""
    check_vllm()
    is_async = vllm_config.scheduler_config.async_scheduling
    return (_BanningAsyncScheduler if is_async else _BanningScheduler)(vllm_config, *args, **kwargs)
