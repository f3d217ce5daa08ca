"""Refuse requests that can't be written under bans while the client waits: vLLM then answers 400 with the sentence."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2

from antislop.vllm.requests import check_request


class CheckRequestBans(LogitsProcessor, LogitsProcessorV2):  # type: ignore[misc]
    """Checks the bans that requests ask for, and leaves the logits alone; for both model runners of vLLM."""

    has_own_list = False

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        check_request(sampling_params, has_own_list=cls.has_own_list)

    def __init__(self, *args: Any) -> None:
        pass

    def add_request(self, *args: Any) -> bool:  # noqa: ARG002
        return False  # the logits of no request are changed

    def apply(self, logits: Any, *args: Any) -> Any:  # noqa: ARG002
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        pass


class CheckBans(CheckRequestBans):
    """The same for an engine with a list of its own, under which greedy requests are refused, too."""

    has_own_list = True
