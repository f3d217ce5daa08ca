"""The function `antislop.serve.app`, which imports the packages of the extra `serve` only when it is called."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from antislop.core.bans import Bans
from antislop.core.trace import BATCH_SIZE
from antislop.errors import DISTRIBUTION, InputError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.engines.endpoint.endpoint import Endpoint

_PACKAGES = ("aiohttp", "fastapi", "prometheus_client", "sse_starlette", "uvicorn")


def app(
    model: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    upstream: Endpoint | None = None,
    bans: Bans = (),
    lists: Mapping[str, Bans] | None = None,
    batch_size: int = BATCH_SIZE,
    max_model_len: int | None = None,
    queue_length: int = 128,
    name: str | None = None,
    api_key: str | None = None,
) -> FastAPI:
    """Return an app that serves a model under bans; run it by any ASGI server with one worker, such as uvicorn.

    model: no other code may use it while it is served; None with `upstream`.
    upstream: a server elsewhere with a model of this tokenizer, and with its own batch size, length and name.
    bans: for all requests; a request may add bans, change weights, or turn these bans off.
    lists: other lists by name; a request chooses one instead of `bans`, by `ban_list` or as the model NAME@LIST.
    batch_size: texts generated at a time.
    max_model_len: maximum tokens of prompt and text together; by default the model's positions.
    queue_length: requests that may wait for a model, or run upstream; more are answered with 429.
    name: the model's name for clients; by default its folder's.
    api_key: required in each request except `GET /` and `GET /health`; None for no key.

    Raises `InputError` for a model or bans that can't be used, and if a package of the extra `serve` is missing;
    `EndpointError` for an upstream server that can't be reached.
    """
    check_packages()
    from antislop.serve.application import make_app

    make = partial(make_app, api_key=api_key, lists=lists)
    if model is not None and upstream is None:
        from antislop.serve.local import LocalBackend

        local = LocalBackend(
            model,
            tokenizer,
            bans=bans,
            batch_size=batch_size,
            max_model_len=max_model_len,
            queue_length=queue_length,
            name=name,
        )
        return make(local)
    if upstream is None or model is not None:
        raise InputError("pass either a model or upstream, the endpoint of a server elsewhere")
    if batch_size != BATCH_SIZE or max_model_len is not None or name is not None:
        raise InputError("batch_size, max_model_len and name are the upstream server's own: leave them out")
    from antislop.core.sampler import AntiSlop
    from antislop.serve.upstream import UpstreamBackend

    return make(UpstreamBackend(AntiSlop(tokenizer, bans), upstream, queue_length=queue_length))


def check_packages() -> None:
    """Raise `InputError` if a package of the extra `serve` is missing."""
    if missing := [package for package in _PACKAGES if importlib.util.find_spec(package) is None]:
        raise InputError(f"serving needs the package {missing[0]}: pip install '{DISTRIBUTION}[serve]'")
