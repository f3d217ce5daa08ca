"""llama.cpp's `/completion`.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.streams.dialect import check_id, check_logprob, end_stream, name_ids, read_probability
from antislop.endpoint.streams.hidden_tokens import HiddenTokens
from antislop.endpoint.streams.messages import Message, StreamedToken, StreamRequest

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""In the order of `generate`; the server's own order has the temperature last."""
REASONS: dict[str, Literal["stop", "length"]] = {"eos": "stop", "limit": "length"}


class LlamaCppStream:
    """One event per token, and one for the end, without a token. The end token has an event like any other."""

    path: ClassVar[str] = "/completion"
    missing: ClassVar[tuple[str, ...]] = ()
    cuts_min_p_first: ClassVar[bool] = False
    keeps_connection: ClassVar[bool] = False

    def __init__(self, request: StreamRequest) -> None:
        self._request = request
        self._received = 0
        self._held: list[StreamedToken] = []
        """Tokens without text, of which the last one may be the end token."""

    def ask(self) -> dict[str, Any]:
        """Return the body of the request; `post_sampling_probs` asks for the drawn distribution."""
        request, sampling = self._request, self._request.sampling
        return {
            "prompt": list(request.prompt),
            "n_predict": request.max_tokens,
            "seed": request.seed,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "samplers": list(SAMPLERS),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": sampling.typical_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": len(request.prompt) + request.max_tokens,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "ignore_eos": False,
            "n_probs": max(1, request.alternatives) if request.logprobs else 0,
            "post_sampling_probs": request.logprobs == "drawn",
            "logit_bias": name_ids(request.bias),
        }

    def read(self, event: Any) -> Iterable[Message | HiddenTokens]:
        """Yield the messages of one event."""
        ids, held = [check_id(token) for token in event["tokens"]], self._held
        hidden = event["tokens_predicted"] - self._received - len(ids)
        self._received, self._held = event["tokens_predicted"], []
        if hidden < 0:
            raise EndpointError("the answer has more tokens than were predicted: use another version of llama.cpp")
        if hidden:
            yield from held
            held = []
            yield HiddenTokens(hidden, event["content"], ids, read_reason(event) if event["stop"] else None)
        held += self._read_tokens(event, ids)
        if event["stop"]:
            yield from end_stream(held, read_reason(event))
        elif event["content"]:
            yield from held
        else:
            self._held = held

    def _read_tokens(self, event: Any, ids: Sequence[int]) -> list[StreamedToken]:
        """Return the tokens of an event, of which only an answer that is not streamed has several."""
        known = event.get("completion_probabilities", ()) if self._request.logprobs else ()
        if len(known) != len(ids):
            return [StreamedToken(token) for token in ids]
        return [
            StreamedToken(token, _read_logprob(entry), event["content"], self._read_alternatives(entry))
            for token, entry in zip(ids, known, strict=True)
        ]

    def _read_alternatives(self, entry: Any) -> tuple[tuple[int, float], ...]:
        top = entry.get("top_probs", entry.get("top_logprobs", ()))
        return tuple((check_id(other["id"]), _read_logprob(other)) for other in top[: self._request.alternatives])


def _read_logprob(entry: Any) -> float:
    return read_probability(entry["prob"]) if "prob" in entry else check_logprob(entry["logprob"])


def read_reason(event: Any) -> Literal["stop", "length"]:
    """Return why a text ended."""
    try:
        return REASONS[event["stop_type"]]
    except KeyError:
        raise EndpointError(f"the server ended the text with stop_type {event['stop_type']!r}") from None
