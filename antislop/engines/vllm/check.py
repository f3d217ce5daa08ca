"""What of the bans runs outside of vLLM's scheduler: a logits processor that changes no logits.

In the front end it refuses requests that can't be written under bans while the client waits: vLLM then answers 400 with
the sentence. In a worker it has the model runner read what the scheduler asks of resumed requests.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2

from antislop.engines.vllm.requests import KEY, NO_BEAMS, PARAMETERS, check_request
from antislop.errors import InputError

FIRST_RUNNER_ARGUMENTS = 3
"""With which vLLM's first model runner makes a logits processor; the second one has two."""


@cache
def read_parameters() -> None:
    """Have vLLM's first model runner read the new parameters of requests that are resumed, as the second one does."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # in a worker; the front end does without

    update_states = GPUModelRunner._update_states

    def update(runner: Any, scheduler_output: Any) -> Any:
        for name, parameters in getattr(scheduler_output, PARAMETERS, {}).items():
            runner.requests[name].sampling_params = parameters
        return update_states(runner, scheduler_output)

    GPUModelRunner._update_states = update


def rank_once(vocabulary_size: int, device: Any) -> None:
    """Have torch compile how vLLM ranks tokens, which takes 3 to 15 s, before the first text asks for the likeliest."""
    logprobs = torch.zeros(2, vocabulary_size, device=device)
    Sampler.gather_logprobs(logprobs, 1, torch.zeros(2, dtype=torch.int64, device=device))


def refuse_beams(request_type: Any) -> None:
    """Have vLLM's server refuse a request for beams that brings bans, which vLLM would drop in silence."""
    to_beam_search_params = request_type.to_beam_search_params

    def check(request: Any, *args: Any, **kwargs: Any) -> Any:
        if KEY in (request.vllm_xargs or {}):
            raise InputError(NO_BEAMS)
        return to_beam_search_params(request, *args, **kwargs)

    request_type.to_beam_search_params = check


for _request_type in (CompletionRequest, ChatCompletionRequest):
    refuse_beams(_request_type)


class CheckRequestBans(LogitsProcessor, LogitsProcessorV2):  # type: ignore[misc]
    """Checks the bans that requests ask for, and leaves the logits alone; for both model runners of vLLM."""

    has_own_list = False

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        check_request(sampling_params, has_own_list=cls.has_own_list)

    def __init__(self, *args: Any) -> None:
        if len(args) == FIRST_RUNNER_ARGUMENTS:
            read_parameters()
            vllm_config, device, _ = args
            rank_once(vllm_config.model_config.get_vocab_size(), device)

    def add_request(self, *args: Any) -> bool:  # noqa: ARG002
        return False  # the logits of no request are changed

    def apply(self, logits: Any, *args: Any) -> Any:  # noqa: ARG002
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        pass


class CheckBans(CheckRequestBans):
    """The same for an engine with a list of its own, under which beams are refused, too."""

    has_own_list = True
