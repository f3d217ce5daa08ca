"""Read a body of JSON strictly: its size, its encoding, its numbers and its keys."""

from __future__ import annotations

import json
from collections import Counter
from math import isfinite
from typing import Any

from starlette.requests import ClientDisconnect, Request

from antislop.server.request_errors import RequestError

BODY_LIMIT = 2**20
"""Bytes of a body."""


async def read_object(request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the object of a request's body, without the keys that are null. Raises `RequestError`."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = await _read_bytes(request)
    if not data and may_be_empty:
        return {}
    if content_type != "application/json":  # which a page of another site can't send without asking first
        raise RequestError(415, f"the content type is {content_type!r}; send JSON with Content-Type: application/json")
    value = parse(data)
    if not isinstance(value, dict):
        raise RequestError(400, f"the body is a JSON {type(value).__name__}; an object was expected")
    return {key: item for key, item in value.items() if item is not None}


async def _read_bytes(request: Request) -> bytes:
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            pieces.append(piece)
            size += len(piece)
            if size > BODY_LIMIT:
                raise RequestError(413, f"the body has more than {BODY_LIMIT:,} bytes: send a shorter prompt or list")
    except ClientDisconnect:
        raise RequestError(499, "the client closed the connection") from None
    return b"".join(pieces)


def parse(data: bytes) -> Any:
    """Return the value of a JSON text. Raises `RequestError` for what standard JSON in UTF-8 does not contain.

    >>> parse(b'{"n": 1}')
    {'n': 1}
    """
    try:
        text = data.decode()
        value = json.loads(
            text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant, parse_float=_read_float
        )
        if "\\u" in text:  # the only way to write half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is not UTF-8 ({error.reason} at byte {error.start})") from None
    except UnicodeEncodeError:
        raise RequestError(400, "the body contains half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            400, f"the body is not JSON ({error.msg} in line {error.lineno}, column {error.colno})"
        ) from None
    except ValueError:  # an integer of more digits than Python converts
        raise RequestError(400, "the body contains a number with too many digits") from None
    return value


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RequestError(400, f"the body contains the key {twice[:60]!r} twice")
    return value


def _refuse_constant(name: str) -> float:
    raise RequestError(400, f"the body contains {name}, which is no JSON")


def _read_float(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise RequestError(400, f"the body contains {digits[:60]}, a number that is too large")
    return value
