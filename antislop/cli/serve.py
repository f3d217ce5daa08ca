"""The command `antislop serve`: serve a model under bans, over HTTP interfaces that existing clients use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antislop.cli import options as shared
from antislop.cli.host import make_endpoint
from antislop.cli.parsing import Conflicts, When
from antislop.cli.terminal import as_input_error, console, say, warn
from antislop.core.bans import BanList
from antislop.core.trace import BATCH_SIZE
from antislop.display import describe_count
from antislop.errors import InputError, first_line
from antislop.files.disk import read_json
from antislop.files.models import ModelSpec
from antislop.serve.entry import check_packages

if TYPE_CHECKING:
    from antislop.serve.backend import Backend


@dataclass(frozen=True)
class UpstreamOptions:
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            rich_help_panel="Model",
            help="Serve the model of another server, with its /v1: vLLM, llama.cpp, others.",
        ),
    ] = None
    tokenizer: shared.TokenizerOption = None


@dataclass(frozen=True)
class ServerOptions:
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen at; 0.0.0.0: all of this machine's.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")] = 8000
    batch_size: Annotated[
        int | None, typer.Option(min=1, show_default=str(BATCH_SIZE), help="Texts generated at a time.")
    ] = None
    max_model_len: shared.MaxModelLenOption = None
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable with the key that clients must send.")
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Let the pages of a site use the server; * for all. Repeatable."),
    ] = None
    response_template: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Model",
            help="How the model writes thoughts and calls of tools: a response template of transformers, as JSON.",
            show_default="the tokenizer's",
        ),
    ] = None
    reload_bans: Annotated[bool, typer.Option(help="Read the files of --bans and --list again when they change.")] = (
        False
    )
    lists: Annotated[
        list[str] | None,
        shared.ban_option(
            "--list",
            metavar="NAME=FILE",
            help="A list that requests choose instead of the other bans, by its name; NAME= bans nothing. Repeatable.",
        ),
    ] = None

    @property
    def api_key(self) -> str | None:
        """The key that clients have to send."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise InputError(
                f"--api-key-env {self.api_key_env}: this variable is not set, or is empty: export a key in it"
            )
        return key

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of each list of --list NAME=FILE, by NAME. Raises `InputError` for an entry without =."""
        found: dict[str, list[Path]] = {}
        for entry in self.lists or ():
            name, equals, path = entry.partition("=")
            if not equals:
                raise InputError(f"--list {entry}: write NAME=FILE, or NAME= for a list without bans")
            found.setdefault(name, []).extend([Path(path)] if path else [])
        return found


CONFLICTS: Conflicts = {
    "--tokenizer has no effect without --upstream: a model brings its own tokenizer": When(
        "tokenizer", lambda o: o.upstream is None
    ),
    "--upstream needs --tokenizer, or --model with the name of the model on that server": When(
        "upstream", lambda o: o.model is None and o.tokenizer is None
    ),
    "{option} has no effect with --upstream, whose server has the model: leave it out": When(
        "dtype device device_map attention batch_size max_model_len", lambda o: o.upstream is not None
    ),
    "--reload-bans watches the files of --bans and --list: pass one of them, and not standard input": When(
        "reload_bans", lambda o: not (o.bans or o.lists) or shared.reads_stdin(o)
    ),
    **shared.TWO_LISTS,
}


def serve(model: shared.ModelOptions, upstream: UpstreamOptions, bans: shared.BanOptions, server: ServerOptions) -> int:
    """Serve a model without banned phrases, to OpenAI's clients, SillyTavern and open-webui.

    Requests may bring more bans, weights, and all settings of sampling. Ctrl-C or SIGTERM finishes the texts that are
    being written, and refuses others; the same again cuts them off.
    """
    check_packages()
    banned, key = shared.collect_bans(bans), server.api_key
    readers = {name: partial(_read_list, paths, bans) for name, paths in server.files.items()}
    lists = {name: read() for name, read in readers.items()}
    from antislop.serve.application import BanReloader, check_origins, make_app
    from antislop.serve.http_server import DrainingServer, bind
    from antislop.serve.service import check_names

    check_names(lists)
    check_origins(server.allow_origin or ())
    template = None
    if path := server.response_template:
        from antislop.core.hf import ResponseTemplate  # imports transformers

        try:
            template = ResponseTemplate(read_json(path))
        except InputError as error:
            raise InputError(f"{path}: {first_line(error)}") from error
    with bind(server.host, server.port) as listener:
        if upstream.upstream is not None:
            backend = _reach(upstream.upstream, model.spec, upstream.tokenizer, banned)
        else:
            backend = _load(model.spec, banned, server)
        backend.response_template = template or backend.response_template
        make = partial(BanReloader, say=say, warn=warn)
        own = make(bans.bans or [], partial(shared.collect_bans, bans))
        others = [make(paths, readers[name], name=name) for name, paths in server.files.items() if paths]
        reloaders = [own, *others] if server.reload_bans else []
        origins = server.allow_origin or ()
        app = make_app(backend, api_key=key, lists=lists, reloaders=reloaders, allow_origins=origins)
        running = DrainingServer(app, say=say)
        listener.listen()  # a client that comes at once waits a moment instead of being refused
        if key is None:
            _warn_of_guests(server)
        _announce(backend.name, server.host, listener.getsockname()[1], banned, lists)
        running.run(sockets=[listener])
    gc.freeze()  # or the interpreter's last collections take seconds to look at all objects once more
    return 130 if running.signal == signal.SIGINT else 0


def _load(spec: ModelSpec, bans: BanList, server: ServerOptions) -> Backend:
    with as_input_error(), console(stderr=True).status(f"loading {spec.title}"):
        from antislop.serve.local import LocalBackend

        model, tokenizer = spec.load()
        batch_size = server.batch_size or BATCH_SIZE
        options: dict[str, Any] = {"bans": bans, "batch_size": batch_size, "max_model_len": server.max_model_len}
        return LocalBackend(model, tokenizer, name=None if spec.name else spec.public_name, **options)


def _reach(url: str, spec: ModelSpec, tokenizer_name: str | None, bans: BanList) -> Backend:
    with as_input_error(), console(stderr=True).status(f"loading {spec.title}"):
        from antislop.core.sampler import AntiSlop
        from antislop.engines.endpoint.endpoint import EndpointError
        from antislop.serve.upstream import UpstreamBackend

        tokenizer = (ModelSpec(tokenizer_name) if tokenizer_name else spec).load_tokenizer()
        endpoint = make_endpoint(url, spec.name, option="--upstream")
        try:
            backend = UpstreamBackend(AntiSlop(tokenizer, bans), endpoint)
        except EndpointError as error:
            raise InputError(f"--upstream {url}: {first_line(error)}") from error
    say(backend.description)
    return backend


def _read_list(paths: Sequence[Path], options: shared.BanOptions) -> BanList:
    return BanList(
        [ban for path in paths for ban in shared.load_bans(path, lenient=options.lenient, group=options.group)]
    )


def _warn_of_guests(server: ServerOptions) -> None:
    from antislop.serve.application import is_loopback

    guests = [] if is_loopback(server.host) else [f"anybody who reaches {server.host}"]
    guests += ["any page that a browser here shows"] if "*" in (server.allow_origin or ()) else []
    for guest in guests:
        warn(f"{guest} can use this server: pass --api-key-env NAME to ask for a key")


def _announce(name: str, host: str, port: int, bans: BanList, lists: Iterable[str]) -> None:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    source = f" of {bans.source}" if bans.source else ""
    lines = [
        f"serving {name} at {url}, with {describe_count(len(bans), 'ban')}{source}",
        f"  OpenAI clients, open-webui   {url}/v1",
        f"  SillyTavern                  {url}  as TabbyAPI or KoboldCpp",
        f"  in a browser                 {url}/",
        *(["  models with other lists      " + ", ".join(f"{name}@{chosen}" for chosen in lists)] if lists else []),
        "Ctrl-C stops",
    ]
    console(stderr=True).print("\n".join(lines), soft_wrap=True)
