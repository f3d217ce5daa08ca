"""The contract of a dialect: the format of one kind of server's requests and streamed answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from reprlib import repr as shorten
from typing import Any, ClassVar, Protocol

from antislop.endpoint.endpoint import Endpoint
from antislop.endpoint.old_dialects import LOWEST, ROUNDING, EndpointError
from antislop.endpoint.sampling import Sampling
from antislop.endpoint.streams.hidden_tokens import HiddenTokens
from antislop.endpoint.streams.messages import Ended, Message, Server, StreamedToken, StreamRequest


class StreamDialect(Protocol):
    """Reads one stream; made before the request is sent.

    path: of the URL. missing: settings that the server lacks. cuts_min_p_first: whether it cuts by `min_p` before
    `top_p`, which then leaves fewer tokens than in `generate`, where `top_p` comes first. keeps_connection: whether a
    connection can be used again after a stream; llama.cpp promises it and closes the connection.
    """

    path: ClassVar[str]
    missing: ClassVar[tuple[str, ...]]
    cuts_min_p_first: ClassVar[bool]
    keeps_connection: ClassVar[bool]

    def __init__(self, request: StreamRequest) -> None:
        """Remember the request, of which the answer is read."""

    def ask(self) -> dict[str, Any]:
        """Return the body of the request."""

    def read(self, event: Any) -> Iterable[Message | HiddenTokens]:
        """Yield the messages of one event; raises `EndpointError`, or the error of a failed lookup."""


def check_settings(sampling: Sampling, dialect: StreamDialect, *, server: Server) -> None:
    """Raise `EndpointError` for a setting that the server does not have."""
    for name in dialect.missing:
        if getattr(sampling, name) != getattr(Sampling(), name):
            raise EndpointError(f"{server} has no {name}: leave it out, or use another server")


def complete_body(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """Return a body with the endpoint's model and additional fields, of which None removes a field."""
    whole = {**body, "model": endpoint.model, **endpoint.extra}
    return {name: value for name, value in whole.items() if value is not None}


def name_ids(bias: Mapping[int, float]) -> dict[str, float]:
    """Return a bias as JSON has it, without infinities."""
    return {str(token): min(max(value, LOWEST), -LOWEST) for token, value in bias.items()}


def end_stream(tokens: Sequence[StreamedToken], reason: Any) -> Iterator[Message]:
    """Yield the last tokens of a stream and its end; the last token is the end token if the model ended the text."""
    if reason not in ("stop", "length"):
        raise EndpointError(f"the server ended the text because of {shorten(reason)}, not 'stop' or 'length'")
    if reason == "stop" and tokens:
        *tokens, last = tokens
        yield from tokens
        yield Ended(reason, last.token, last.logprob, last.alternatives)
    else:
        yield from tokens
        yield Ended(reason)


def check_id(value: Any) -> int:
    """Return the id of a token; raises `EndpointError` for any other value."""
    if type(value) is not int or value < 0:
        raise EndpointError(f"the answer has {shorten(value)} as the id of a token: a whole number is needed")
    return value


def check_logprob(value: Any) -> float:
    """Return a log-probability, from `LOWEST` to 0; raises `EndpointError` for any other value."""
    if isinstance(value, (int, float)) and value <= ROUNDING:  # False for NaN
        return min(0.0, float(max(value, LOWEST)))
    raise EndpointError(
        f"the answer has {shorten(value)} as a log-probability: numbers up to 0 are needed; "
        "check the options that the server was started with"
    )


def check_alternatives(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[int, float], ...]:
    """Return pairs of a token and its log-probability."""
    return tuple((check_id(token), check_logprob(logprob)) for token, logprob in pairs)


def read_probability(value: Any) -> float:
    """Return the logarithm of a probability."""
    if isinstance(value, (int, float)) and 0 <= value <= 1 + ROUNDING:
        return check_logprob(log(value)) if value > 0 else LOWEST
    raise EndpointError(f"the answer has {shorten(value)} as a probability: a number from 0 to 1 is needed")
