"""The completions of any other server, which names tokens by their texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.streams.dialect import end_stream, name_ids
from antislop.endpoint.streams.messages import Message, StreamedToken, StreamRequest


class OpenaiStream:
    """Events hold text, and with `logprobs` the texts of its tokens.

    The log-probabilities are left out: it is undocumented of which distribution they are.
    """

    path: ClassVar[str] = "/v1/completions"
    missing: ClassVar[tuple[str, ...]] = ("typical_p",)
    cuts_min_p_first: ClassVar[bool] = False
    keeps_connection: ClassVar[bool] = True

    def __init__(self, request: StreamRequest) -> None:
        self._request = request

    def ask(self) -> dict[str, Any]:
        """Return the body of the request."""
        request, sampling = self._request, self._request.sampling
        return {
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stream": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "repeat_penalty": sampling.repetition_penalty,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "logprobs": 1,
            **({"logit_bias": name_ids(request.bias)} if request.bias else {}),
        }

    def read(self, event: Any) -> Iterable[Message]:
        """Yield the messages of one event."""
        for choice in event["choices"]:
            texts = (choice.get("logprobs") or {}).get("tokens")
            if texts is None:
                if choice.get("text"):
                    raise EndpointError(
                        "the answer does not say which tokens its text has: a server with logprobs is needed"
                    )
                texts = []
            yield from (StreamedToken(None, None, text) for text in texts)
            reason = choice.get("finish_reason")
            if reason is not None:
                yield from end_stream([], reason)
