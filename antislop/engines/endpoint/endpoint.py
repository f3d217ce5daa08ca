"""The address of a server with a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from antislop.errors import InputError


class EndpointError(RuntimeError):
    """Raised if an endpoint gives no usable answer; the same request may succeed later."""


@dataclass(frozen=True)
class Endpoint:
    """A completions endpoint. Makes no requests, and uses no proxies.

    base_url: the URL before `/completions`, such as "http://127.0.0.1:8000/v1".
    model: its name on the server; some servers need none.
    api_key: sent as a bearer token.
    timeout: seconds to connect, and between two parts of an answer.
    retries: maximum number of repeated requests after a failed connection, a time-out, 429 or 5xx.
    backoff: seconds before the first of them, doubled each time, less up to half at random; a longer `Retry-After` is
        obeyed, up to 30 seconds.
    extra: additional fields of each request; `None` removes one that is sent by default.

    Raises `InputError` for an unusable URL, key or field, without the secrets in them.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 0.5
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if not (isinstance(self.timeout, int | float) and isfinite(self.timeout) and self.timeout > 0):
            raise InputError(f"timeout is {self.timeout!r}; seconds above 0 are expected")
        if not isinstance(self.retries, int) or self.retries < 0 or not (isfinite(self.backoff) and self.backoff >= 0):
            raise InputError(f"retries is {self.retries!r} and backoff {self.backoff!r}; neither can be below 0")
        if not _is_plain(self.api_key or ""):
            raise InputError("the API key contains white space or a character that is not ASCII: pass the key alone")
        if not isinstance(self.extra, Mapping):
            raise InputError(f"extra is {self.extra!r:.40}; the fields of requests are expected: pass a dict")
        if self.extra.get("id_slot") is not None:
            raise InputError("extra names a slot (id_slot), with which llama.cpp draws wrong tokens: leave it out")


def _check_url(base_url: str) -> None:
    if set("@?#") & set(str(base_url)):
        raise InputError(
            "base_url contains a user name, a password, a query or a fragment, none of which would be sent: remove "
            "all text up to '@' and from '?' or '#'; pass a key as api_key"
        )
    example = "something like http://127.0.0.1:8000/v1 is expected"
    try:
        parts = urlsplit(str(base_url))
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise InputError(f"base_url is {base_url!r}, whose host or port is invalid ({error}): {example}") from None
    if not is_url or not _is_plain(base_url):
        raise InputError(f"base_url is {base_url!r}; {example}")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text
