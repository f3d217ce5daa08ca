"""`antislop.server.app`: from a model or an upstream server to an app, whose packages are imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.errors import InputError
from antislop.lists.ban_list import Bans

if TYPE_CHECKING:
    from fastapi import FastAPI
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.endpoint.endpoint import Endpoint
    from antislop.server.backend import Backend

BATCH_SIZE = 16
INSTALL = "pip install 'antislop[serve]'"
_PACKAGES = ("aiohttp", "fastapi", "prometheus_client", "sse_starlette", "uvicorn")


def app(
    model: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    upstream: Endpoint | None = None,
    bans: Bans = (),
    batch_size: int = BATCH_SIZE,
    max_model_len: int | None = None,
    queue_length: int = 128,
    name: str | None = None,
    api_key: str | None = None,
) -> FastAPI:
    """Return an app that serves a model under bans, to OpenAI's clients, SillyTavern and open-webui.

    model: nobody else may use it while it is served. None for a server elsewhere, `upstream`, whose model has this
        tokenizer.
    bans: of all texts; a request may add bans, change weights or leave these out.
    batch_size: texts that are written at a time. max_model_len: the maximum of tokens of prompt and text together; by
        default the number of positions that the model was made for. name: the model's name for clients; by default that
        of its folder. These three are for a model, not for `upstream`.
    queue_length: texts that may wait for a model, or may be under way upstream; more are answered with 429.
    api_key: the key that each request needs, except for `GET /` and `GET /health`; None for none.

    Run it by any ASGI server with one worker, such as `uvicorn.run(app)`. Raises `InputError` for a model that can't be
    served, and if a package of the extra `serve` is missing; `EndpointError` for an upstream server that can't be
    reached.
    """
    backend = open_backend(
        model,
        tokenizer,
        upstream=upstream,
        bans=bans,
        batch_size=batch_size,
        max_model_len=max_model_len,
        queue_length=queue_length,
        name=name,
    )
    from antislop.server.application import make_app
    from antislop.server.service import Service

    return make_app(Service(backend), api_key=api_key)


def open_backend(
    model: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    upstream: Endpoint | None = None,
    bans: Bans = (),
    batch_size: int = BATCH_SIZE,
    max_model_len: int | None = None,
    queue_length: int = 128,
    name: str | None = None,
) -> Backend:
    """Return what writes the texts of `app`, with the same arguments."""
    check_packages()
    if (model is None) == (upstream is None):
        raise InputError("pass either a model or upstream, the endpoint of a server elsewhere")
    if upstream is not None:
        if batch_size != BATCH_SIZE or max_model_len is not None or name is not None:
            raise InputError("batch_size, max_model_len and name are the upstream server's own: leave them out")
        from antislop.sampler import AntiSlop
        from antislop.server.upstream import UpstreamBackend

        return UpstreamBackend(AntiSlop(tokenizer, bans), upstream, queue_length=queue_length)
    from antislop.server.local import InFlightBackend

    assert model is not None
    return InFlightBackend(
        model,
        tokenizer,
        bans=bans,
        batch_size=batch_size,
        max_model_len=max_model_len,
        queue_length=queue_length,
        name=name,
    )


def check_packages() -> None:
    """Raise `InputError` if a package of the extra `serve` is missing."""
    from importlib.util import find_spec

    if missing := [package for package in _PACKAGES if find_spec(package) is None]:
        raise InputError(f"serving needs the package {missing[0]}: {INSTALL}")
