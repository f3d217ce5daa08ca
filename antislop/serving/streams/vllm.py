"""vLLM's `/v1/completions`.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from antislop.serving.dialects import EndpointError
from antislop.serving.streams.dialect import check_id, check_logprob, name_ids
from antislop.serving.streams.messages import Ended, Message, StreamedToken, StreamRequest


class VllmStream:
    """Events hold one token or several; the last one has a `finish_reason`, and names the end token like any other."""

    path: ClassVar[str] = "/v1/completions"
    missing: ClassVar[tuple[str, ...]] = ("typical_p",)

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
            "logprobs": 0 if request.logprobs else None,
        }
        if request.bias:
            body["logit_bias"] = name_ids(request.bias)
        if request.first_bias:
            ids, values = zip(*request.first_bias.items(), strict=True)
            body["vllm_xargs"] = {"first_ids": list(ids), "first_bias": list(values)}
        return body

    def read(self, event: Any) -> Iterable[Message]:
        """Yield the messages of one event."""
        for choice in event["choices"]:
            yield from read_choice(choice, has_logprobs=self._request.logprobs is not None)


def read_choice(choice: Any, *, has_logprobs: bool) -> Iterable[Message]:
    """Yield the messages of a part of an answer, or of one of several answers."""
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    if ids is None:
        raise EndpointError("the answer has no token ids: use vLLM 0.10.2 or later")
    logprobs = choice["logprobs"]["token_logprobs"] if has_logprobs and ids else [None] * len(ids)
    text = choice.get("text", "")
    for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        known = None if logprob is None else check_logprob(logprob)
        yield StreamedToken(check_id(token), known, "" if place else text)
    if reason is not None:
        yield end(reason, choice.get("stop_reason"), has_token=bool(ids))


def end(reason: Any, stop_reason: Any, *, has_token: bool) -> Ended:
    """Return the end of a stream; `stop_reason` is an end token other than the tokenizer's."""
    if reason not in ("stop", "length"):
        raise EndpointError(f"the server ended the text with finish_reason {reason!r}, not 'stop' or 'length'")
    token = stop_reason if isinstance(stop_reason, int) and not has_token else None
    return Ended(reason, token)
