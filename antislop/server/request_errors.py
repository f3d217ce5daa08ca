"""Errors that a client gets, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's names for the errors of a status; the other ones are by their class."""


class RequestError(Exception):
    """Raised to answer a request with an error.

    message: one sentence. param: the field of the body that caused it. code: a word for programs. headers: of the
    answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refuse_busy(message: str, *, status: int = 429, seconds: int = 1) -> RequestError:
    """Return the refusal of a server that has no room, with the time after which to try again."""
    return RequestError(status, message, code="busy", headers={"Retry-After": str(seconds)})


def shorten(value: object) -> str:
    """Return a value for a message, 60 characters of it at most.

    >>> shorten("x" * 100)[-5:]
    'xxxx…'
    """
    try:
        text = repr(value[:60] if isinstance(value, (str, list)) else value)
    except RecursionError:
        return "nested deeply"
    return text if len(text) <= 60 else text[:59] + "…"
