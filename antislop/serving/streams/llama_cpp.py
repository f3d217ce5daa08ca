"""llama.cpp's `/completion`.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from antislop.serving.dialects import EndpointError
from antislop.serving.streams.dialect import check_id, check_logprob, name_ids, read_probability
from antislop.serving.streams.hidden_tokens import HiddenTokens
from antislop.serving.streams.messages import Ended, Message, StreamedToken, StreamRequest

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""In the order of `generate`; the server's own order has the temperature last."""
REASONS: dict[str, Literal["stop", "length"]] = {"eos": "stop", "limit": "length"}


class LlamaCppStream:
    """One event per token, and one for the end, without a token. The end token is sent like any other."""

    path: ClassVar[str] = "/completion"
    missing: ClassVar[tuple[str, ...]] = ()

    def __init__(self, request: StreamRequest) -> None:
        self._request = request
        self._received = 0

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
            "n_probs": 1 if request.logprobs else 0,
            "post_sampling_probs": request.logprobs == "drawn",
            "logit_bias": name_ids(request.bias),
        }

    def read(self, event: Any) -> Iterable[Message | HiddenTokens]:
        """Yield the messages of one event."""
        tokens = [check_id(token) for token in event["tokens"]]
        hidden = event["tokens_predicted"] - self._received - len(tokens)
        self._received = event["tokens_predicted"]
        if hidden < 0:
            raise EndpointError("the answer has more tokens than were predicted: use another version of llama.cpp")
        if hidden:
            yield HiddenTokens(hidden, event["content"], tokens, read_reason(event) if event["stop"] else None)
        logprobs = read_logprobs(event) if self._request.logprobs else {}
        for token in tokens:
            yield StreamedToken(token, logprobs.get(token), "" if hidden else event["content"])
        if event["stop"]:
            yield Ended(read_reason(event))


def read_logprobs(event: Any) -> dict[int, float]:
    """Return the log-probability of the token of an event, which has one at most; empty if the server tells none."""
    return {
        check_id(entry["id"]): read_probability(entry["prob"]) if "prob" in entry else check_logprob(entry["logprob"])
        for entry in event.get("completion_probabilities", ())
    }


def read_reason(event: Any) -> Literal["stop", "length"]:
    """Return why a text ended."""
    try:
        return REASONS[event["stop_type"]]
    except KeyError:
        raise EndpointError(f"the server ended the text with stop_type {event['stop_type']!r}") from None
