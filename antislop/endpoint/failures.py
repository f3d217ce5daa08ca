"""What an HTTP server's refusals mean: which are sent again, after which wait, and in which words they are reported."""

from __future__ import annotations

import json
import random

from antislop.display import make_visible

RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which a request is sent again."""
MAX_WAIT = 30.0
"""Limit of seconds between two attempts."""


def choose_wait(attempt: int, *, backoff: float, server_wait: float) -> float:
    """Return the seconds to wait before a repeated attempt, from 1 on; at least what the server demands."""
    wait: float = backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
    return min(MAX_WAIT, max(server_wait, wait))


def read_seconds(header: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 for a date, which inference servers don't send."""
    return float(header) if header and header.isdecimal() else 0.0


def read_message(content: bytes) -> str:
    """Return the error message of the server."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return shorten(content) or "an empty body"
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return make_visible(message[:500]) if isinstance(message, str) else shorten(content)


def advise(status: int) -> str:
    """Return the advice that a status deserves, to be appended to the message."""
    if status in (404, 405):
        return " (base_url usually ends in /v1)"
    return " (pass api_key)" if status in (401, 403) else ""


def shorten(content: bytes) -> str:
    """Return the beginning of an answer, with its control characters made visible."""
    return make_visible(content[:200].decode(errors="replace"))
