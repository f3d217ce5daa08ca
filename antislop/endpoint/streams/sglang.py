"""SGLang's `/generate`.

https://docs.sglang.ai/basic_usage/native_api.html
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.streams.dialect import check_alternatives, check_id, check_logprob, end_stream, name_ids
from antislop.endpoint.streams.messages import Message, StreamedToken, StreamRequest


class SglangStream:
    """Each event holds all tokens so far, or the new ones (`--incremental-streaming-output`); both end with the latter.

    Log-probabilities are those after the temperature and before truncation, so they are left out if the settings
    truncate.
    """

    path: ClassVar[str] = "/generate"
    missing: ClassVar[tuple[str, ...]] = ("typical_p",)
    cuts_min_p_first: ClassVar[bool] = False
    keeps_connection: ClassVar[bool] = True

    def __init__(self, request: StreamRequest) -> None:
        self._request = request
        self._received = 0
        sampling = request.sampling
        self._has_logprobs = request.logprobs == "drawn" and sampling.do_sample and not sampling.truncates

    def ask(self) -> dict[str, Any]:
        """Return the body of the request. Seeds count on servers with `--enable-deterministic-inference` only."""
        request, sampling = self._request, self._request.sampling
        params = {
            "max_new_tokens": request.max_tokens,
            "sampling_seed": request.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "min_new_tokens": 0,
            "ignore_eos": False,
            "logit_bias": name_ids(request.bias) or None,
        }
        return {
            "input_ids": list(request.prompt),
            "sampling_params": params,
            "stream": True,
            "return_logprob": self._has_logprobs,
            "top_logprobs_num": request.alternatives,
            "return_text_in_logprobs": False,
        }

    def read(self, event: Any) -> Iterable[Message]:
        """Yield the messages of one event."""
        info = event["meta_info"]
        count = info["completion_tokens"] - self._received
        ids = event["output_ids"]
        if not 0 <= count <= len(ids):
            raise EndpointError(f"the answer has {len(ids)} token ids for {count} new tokens")
        self._received += count
        logprobs: list[Any] = [None] * count
        tops: list[Any] = [()] * count
        if self._has_logprobs and count:
            logprobs = [check_logprob(entry[0]) for entry in info["output_token_logprobs"][-count:]]
            if self._request.alternatives:
                tops = [((entry[1], entry[0]) for entry in top) for top in info["output_top_logprobs"][-count:]]
        tokens = [
            StreamedToken(check_id(token), logprob, "", check_alternatives(top))
            for token, logprob, top in zip(ids[len(ids) - count :], logprobs, tops, strict=True)
        ]
        reason = info.get("finish_reason")
        if reason is None:
            yield from tokens
        elif reason["type"] == "abort":
            raise EndpointError(f"the server aborted the text: {reason.get('message', 'without a message')}")
        else:
            yield from end_stream(tokens, reason["type"])
