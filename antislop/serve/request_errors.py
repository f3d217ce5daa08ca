"""Errors that a client gets, in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from logging import getLogger
from typing import Any

from antislop.errors import InputError, first_line
from antislop.serve.backend import BackendError, Busy

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's types of errors by HTTP status. Other statuses below 500, and those from 500 on, share a type each."""

request_id: ContextVar[str] = ContextVar("request_id", default="none")
"""The id of the request that is being answered; "none" outside of requests."""

log = getLogger(__name__)


class RequestError(Exception):
    """Raised to answer a request with an error.

    message: one sentence.
    param: the field of the body that caused the error.
    code: a word for the kind of error, for programs to read.
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
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refuse_busy(message: str, *, status: int = 429, seconds: int = 1) -> RequestError:
    return RequestError(status, message, code="busy", headers={"Retry-After": str(seconds)})


@contextmanager
def translate_errors(*, param: str | None = None) -> Iterator[None]:
    try:
        yield
    except (InputError, BackendError) as error:
        raise translate(error, param) from error


def translate(error: Exception, param: str | None = None) -> RequestError:
    """Return the error to send to the client. If it isn't the client's fault, log it under the request's id."""
    match error:
        case Busy():
            return refuse_busy(first_line(error) or "the queue is full: try again later")
        case InputError():
            return RequestError(400, first_line(error), param=param)
        case BackendError():
            log.warning("request %s: %s", request_id.get(), error.__cause__ or error)
            return RequestError(503, first_line(error) or "the engine failed", code="engine_failed")
        case _:
            number = request_id.get()
            log.error("request %s failed", number, exc_info=error)
            return RequestError(500, f"the server failed; its log says why, under the request id {number}")


def shorten(value: object) -> str:
    """Return a value for a message, in at most 60 characters.

    >>> shorten("x" * 100)[-5:]
    'xxxx…'
    """
    text = repr(value[:60] if isinstance(value, (str, list)) else value)
    return text if len(text) <= 60 else text[:59] + "…"
