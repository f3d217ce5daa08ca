"""The logits processors of bans inside vLLM, which change no logits, but bring code into vLLM's other processes.

In the front end, this code has the server read bans in plain fields of a body, and at once refuses requests that
can't be written under bans: vLLM then answers 400 with the error's sentence. In a worker, it has the model runner read
the parameters that the scheduler sets for resumed requests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2

from antislop.engines.vllm.outcomes import show_counts
from antislop.engines.vllm.requests import FIELDS, KEY, NO_BEAMS, PARAMETERS, TELLS_DRAWN, EngineSettings, check_request
from antislop.errors import InputError

FIRST_RUNNER_ARGUMENTS = 3
"""How many arguments vLLM's first model runner makes a logits processor with; the second runner passes two."""


@cache
def read_parameters() -> None:
    """Have vLLM's first model runner read the new parameters of requests that are resumed, as the second one does."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # in a worker; the front end does without

    update_states = GPUModelRunner._update_states

    def update(runner: Any, scheduler_output: Any) -> Any:
        for name, parameters in getattr(scheduler_output, PARAMETERS, {}).items():
            runner.requests[name].sampling_params = parameters
        runner.sampler.antislop_batch = runner.input_batch  # made anew with the cache
        return update_states(runner, scheduler_output)

    GPUModelRunner._update_states = update


@cache
def rank_only_what_is_asked() -> None:
    """Have vLLM's first sampler take logarithms and rank tokens for the requests that ask: few of a step, under bans.

    The sampler draws as before, and tells these requests the same. Its own ranking, which torch compiles in 3 to 15 s
    when it is first used, is not called.
    """
    forward = Sampler.forward

    def draw(sampler: Any, logits: Any, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        count, is_own = sampling_metadata.max_num_logprobs, hasattr(sampler, "antislop_batch")
        if args or kwargs or not is_own or sampler.logprobs_mode != TELLS_DRAWN or sampling_metadata.logprob_token_ids:
            return forward(sampler, logits, sampling_metadata, *args, **kwargs)  # of drafts, too
        told_whole = sampling_metadata if count is None else replace(sampling_metadata, max_num_logprobs=-1)
        sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = "processed_logits"
        try:
            output = forward(sampler, logits, told_whole)
        finally:
            sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = TELLS_DRAWN
        if count is not None:
            batch = sampler.antislop_batch
            rows = torch.tensor([batch.req_id_to_index[name] for name in batch.num_logprobs])
            rows = rows.to(logits.device, non_blocking=True)
            logprobs = output.logprobs_tensors.logprobs[rows].log_softmax(-1, dtype=torch.float32)
            drawn, likeliest = output.sampled_token_ids[rows].long(), logprobs.topk(count)
            own = logprobs.gather(-1, drawn)
            tokens = torch.cat([drawn, likeliest.indices], 1).to(torch.int32)
            told = tokens, torch.cat([own, likeliest.values], 1), (logprobs >= own).sum(-1)
            output.logprobs_tensors = spread(told, rows, len(logits))
        return output

    Sampler.forward = draw


@cache
def rank_only_what_is_asked_of_second_runner() -> None:
    """Do the same in vLLM's second sampler, which takes no logarithms, but ranks all texts when one of them asks."""
    from vllm.v1.worker.gpu.sample import sampler as module  # in a worker; it needs Triton

    find_dims, rank_all = module.Sampler.get_logprobs_dims, module.compute_topk_scores

    def find_asking(sampler: Any, idx_mapping_np: Any, *args: Any, **kwargs: Any) -> Any:
        asking = sampler.sampling_states.num_logprobs[idx_mapping_np] >= 0
        sampler.logprob_token_ids_state.antislop_rows = asking.nonzero()[0]  # which the next function gets
        return find_dims(sampler, idx_mapping_np, *args, **kwargs)

    def rank(logits: Any, num_logprobs: int, sampled: Any, cu_num_logits: Any = None, **options: Any) -> Any:
        asking = options["logprob_token_ids_state"].antislop_rows
        if cu_num_logits is not None or options["max_per_req_token_ids"] or len(asking) == len(logits):
            return rank_all(logits, num_logprobs, sampled, cu_num_logits, **options)
        rows = torch.from_numpy(asking).to(logits.device, non_blocking=True)
        return spread(rank_all(logits[rows], num_logprobs, sampled[rows], **options), rows, len(logits))

    module.Sampler.get_logprobs_dims, module.compute_topk_scores = find_asking, rank


def spread(told: Sequence[torch.Tensor], rows: torch.Tensor, count: int) -> LogprobsTensors:
    """Return log-probabilities of all `count` rows of a step, with zeros in the rows that did not ask for them."""
    return LogprobsTensors(*(part.new_zeros((count, *part.shape[1:])).index_copy_(0, rows, part) for part in told[:3]))


def find_plain_bans(request: Any) -> dict[str, Any]:
    """Return the plain fields of a request's body that ask for bans; other servers read the same fields."""
    found = {name: value for name, value in (request.model_extra or {}).items() if name in FIELDS}
    found = {name: value for name, value in found.items() if value not in (None, "", [])}
    if found and KEY in (request.vllm_xargs or {}):
        raise InputError(f"bans came as {next(iter(found))} and in vllm_xargs[{KEY!r}]: send them in one place")
    return found


def read_plain_bans(request_type: Any) -> None:
    """Have vLLM's server read bans in plain fields, too, and refuse bans with beam search, where it would drop them."""
    to_sampling_params, to_beam_search_params = request_type.to_sampling_params, request_type.to_beam_search_params

    def add_bans(request: Any, *args: Any, **kwargs: Any) -> Any:
        params = to_sampling_params(request, *args, **kwargs)
        if found := find_plain_bans(request):
            params.extra_args = {**(params.extra_args or {}), KEY: json.dumps(found)}
        return params

    def check(request: Any, *args: Any, **kwargs: Any) -> Any:
        if find_plain_bans(request) or KEY in (request.vllm_xargs or {}):
            raise InputError(NO_BEAMS)
        return to_beam_search_params(request, *args, **kwargs)

    request_type.to_sampling_params, request_type.to_beam_search_params = add_bans, check


def check_requests() -> None:
    """Have vLLM's front end refuse requests by the engine's settings, which a logits processor does not get."""
    validate = InputProcessor._validate_params

    def check(front: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        validated = validate(front, params, *args, **kwargs)
        config = front.vllm_config.additional_config
        if isinstance(config, dict) and KEY in config and isinstance(params, SamplingParams):
            processors = map(str, front.model_config.logits_processors or ())
            has_own_list = any(name.endswith(f":{CheckBans.__name__}") for name in processors)
            try:
                check_request(params, has_own_list=has_own_list, settings=EngineSettings.read(config[KEY]))
            except InputError as error:
                raise VLLMValidationError(str(error)) from error  # other errors are 500 here
        return validated

    InputProcessor._validate_params = check


for _request_type in (CompletionRequest, ChatCompletionRequest):
    read_plain_bans(_request_type)
check_requests()
show_counts()


class CheckRequestBans(LogitsProcessor, LogitsProcessorV2):  # type: ignore[misc]
    """Checks the bans that requests ask for, and leaves the logits alone; for both model runners of vLLM."""

    has_own_list = False

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        check_request(sampling_params, has_own_list=cls.has_own_list)

    def __init__(self, *args: Any) -> None:
        if len(args) == FIRST_RUNNER_ARGUMENTS:
            read_parameters()
            rank_only_what_is_asked()
        else:
            rank_only_what_is_asked_of_second_runner()

    def add_request(self, *args: Any) -> bool:  # noqa: ARG002
        return False  # the logits of no request are changed

    def apply(self, logits: Any, *args: Any) -> Any:  # noqa: ARG002
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        pass


class CheckBans(CheckRequestBans):
    """`CheckRequestBans` for an engine with a list of its own, under which beam search is refused, too."""

    has_own_list = True
