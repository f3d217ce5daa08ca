"""vLLM's scheduler, with bans: it takes withdrawn tokens out of a request, and has vLLM read the rest again.

vLLM's workers, runners, sampler and front end stay as they are. The scheduler is not public, so other versions of vLLM
than those that were tested are refused.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from transformers import AutoTokenizer
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from antislop.decoding.row import RowSpec
from antislop.errors import InputError
from antislop.hf.compiled_bans import CompiledBans
from antislop.vllm.engine_text import EngineText, NoSettings
from antislop.vllm.requests import KEY, EngineOptions, ListCache, check_request

Request: TypeAlias = Any


if TYPE_CHECKING:
    _Base: TypeAlias = Any
else:
    _Base = object


class _Banning(_Base):  # type: ignore[misc]  # mypy does not see vLLM
    """What bans add to a scheduler."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._options = EngineOptions.read(vllm_config.additional_config.get(KEY, {}))
        model = vllm_config.model_config
        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
        )
        self._lists = ListCache(self._options, lambda bans: CompiledBans.compile(bans, tokenizer))
        self._texts: dict[str, EngineText] = {}
        self._sent: dict[str, int] = {}  # tokens of each text that have left the engine
        self._rewound: dict[str, Request] = {}

    # -- what vLLM calls

    def add_request(self, request: Request) -> None:
        is_new = request.request_id not in self.requests
        super().add_request(request)
        if is_new and request.sampling_params is not None:
            try:
                self._open_text(request)
            except InputError:  # `CheckBans` has said so in the front end, if it was asked
                self.encoder_cache_mismatch_reqs.add(request.request_id)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        for request in self._rewound.values():
            if request.status == RequestStatus.RUNNING:
                # As vLLM does for `reset_prefix_cache`: preempted, and resumed in the same step.
                self.running.remove(request)
                self._preempt_request(request, time.monotonic(), drop_stale_output=True)
                self.prev_step_scheduled_req_ids.discard(request.request_id)
        self._rewound.clear()
        return super().schedule(*args, **kwargs)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        text = self._texts.get(request.request_id)
        before = request.status, request.stop_reason
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if text is None:
            return new_token_ids, stopped
        stays = all(text.read(token) for token in new_token_ids)
        if stays and stopped:
            stays = text.end()
        if text.is_finished and not stopped:
            request.status, stopped = RequestStatus.FINISHED_STOPPED, True
        elif stopped and not text.is_finished:
            (request.status, request.stop_reason), stopped = before, False
        if not stays:
            self._cut(request, len(text.tokens))
        sent = self._sent[request.request_id]
        self._sent[request.request_id] = text.settled
        return text.tokens[sent : text.settled], stopped

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._texts.pop(request.request_id, None)
        self._sent.pop(request.request_id, None)
        self._rewound.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)

    # -- what bans need

    def _open_text(self, request: Request) -> None:
        params = request.sampling_params
        options = check_request(params, has_own_list=self._lists.has_own and self._options.on_greedy == "refuse")
        bans = self._lists.find(options) if params.temperature > 0 else None
        if bans is None:
            return
        spec = RowSpec(
            prompt=torch.tensor([request.prompt_token_ids]),
            matcher=bans.matcher,
            state=bans.read_prompt(request.prompt_token_ids),
            policy=self._options.policy,
            settings=NoSettings(),
            max_new_tokens=request.max_tokens,
            generator=None if params.seed is None else torch.Generator().manual_seed(params.seed),
        )
        self._texts[request.request_id], self._sent[request.request_id] = EngineText(spec), 0

    def _cut(self, request: Request, length: int) -> None:
        """Take all tokens from `length` on out of a request, and have the rest read again at the next step."""
        kept = request.num_prompt_tokens + length
        del request._output_token_ids[length:]
        del request._all_token_ids[kept:]
        del request.block_hashes[kept // self.hash_block_size :]
        request.spec_token_ids = []
        request.drop_stale_output, request.num_stale_output_tokens = True, request.num_in_flight_tokens
        self._rewound[request.request_id] = request


class _BanningScheduler(_Banning, Scheduler):  # type: ignore[misc]
    pass


class _BanningAsyncScheduler(_Banning, AsyncScheduler):  # type: ignore[misc]
    pass


def make_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:
    is_async = vllm_config.scheduler_config.async_scheduling
    return (_BanningAsyncScheduler if is_async else _BanningScheduler)(vllm_config, *args, **kwargs)
