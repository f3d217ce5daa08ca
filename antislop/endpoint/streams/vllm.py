"""vLLM's `/v1/completions`.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.streams.dialect import check_alternatives, check_id, check_logprob, end_stream, name_ids
from antislop.endpoint.streams.messages import Message, StreamedToken, StreamRequest


class VllmStream:
    """Events hold one token or several; the last one has a `finish_reason`, and the end token as its last one."""

    path: ClassVar[str] = "/v1/completions"
    missing: ClassVar[tuple[str, ...]] = ("typical_p",)
    cuts_min_p_first: ClassVar[bool] = True
    keeps_connection: ClassVar[bool] = True

    def __init__(self, request: StreamRequest) -> None:
        self._request = request

    def ask(self) -> dict[str, Any]:
        """Return the body of the request. `logprobs: 0` returns the log-probability of the written token alone."""
        request, sampling = self._request, self._request.sampling
        body: dict[str, Any] = {
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stream": True,
            "return_token_ids": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "min_tokens": 0,
            "ignore_eos": False,
            "logprobs": request.alternatives if request.logprobs else None,
            "return_tokens_as_token_ids": bool(request.alternatives),
        }
        if request.bias:
            body["logit_bias"] = name_ids(request.bias)
        if request.first_bias:
            first_bias = name_ids(request.first_bias)
            body["vllm_xargs"] = {"first_ids": [*request.first_bias], "first_bias": [*first_bias.values()]}
        return body

    def read(self, event: Any) -> Iterable[Message]:
        """Yield the messages of one event."""
        for choice in event["choices"]:
            tokens, reason = list(self._read_tokens(choice)), choice.get("finish_reason")
            yield from tokens if reason is None else end_stream(tokens, reason)

    def _read_tokens(self, choice: Any) -> Iterable[StreamedToken]:
        ids, text = choice.get("token_ids"), choice.get("text", "")
        if ids is None:
            raise EndpointError("the answer has no token ids: use vLLM 0.10.2 or later")
        logprobs = choice["logprobs"] if self._request.logprobs and ids else None
        for place, token in enumerate(ids):
            written = StreamedToken(check_id(token), None, "" if place else text)
            if logprobs is not None:
                written = written._replace(logprob=check_logprob(logprobs["token_logprobs"][place]))
            if logprobs is not None and self._request.alternatives:
                written = written._replace(alternatives=_read_alternatives(logprobs["top_logprobs"][place]))
            yield written


def _read_alternatives(top: Any) -> tuple[tuple[int, float], ...]:
    """Return the alternatives at a place, whose names are of the form "token_id:5"."""
    return check_alternatives((int(name.removeprefix("token_id:")), logprob) for name, logprob in top.items())
