"""The place of a job's model: this process, the workers of a Ray cluster, or a server."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from antislop.cli.options import GenerationOptions, MaxModelLenOption, TokenizerOption, limit_bans
from antislop.cli.terminal import as_input_error, say
from antislop.core.bans import BanList, BanScope
from antislop.engines.endpoint.endpoint import EndpointMethod
from antislop.errors import InputError
from antislop.files.models import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.datasets.pairs import PairFormat
    from antislop.datasets.samples import RecordMaker
    from antislop.engines.endpoint.endpoint import Endpoint


_Made: TypeAlias = "tuple[RecordMaker, PreTrainedTokenizerBase, BanList]"
EngineName = Literal["transformers", "ray", "openai", "vllm"]
_engine_option = partial(typer.Option, rich_help_panel="Engine")


@dataclass(frozen=True)
class EngineOptions:
    engine: Annotated[
        EngineName,
        _engine_option(
            metavar="NAME", help="transformers, vllm: in this process; ray: on a cluster; openai: on a server."
        ),
    ] = "transformers"
    workers: Annotated[
        int | None,
        _engine_option(
            min=1, help="Workers of ray, each with a model or vllm.", show_default="one per GPU, or machine"
        ),
    ] = None
    address: Annotated[
        str | None, _engine_option(metavar="ADDRESS", help="The Ray cluster: auto, or host:port.", show_default="local")
    ] = None
    base_url: Annotated[
        str | None, _engine_option(metavar="URL", help="The server of openai or of ray's workers, with /v1.")
    ] = None
    tokenizer: TokenizerOption = None
    endpoint_method: Annotated[
        EndpointMethod | None,
        _engine_option(
            metavar="NAME", help="How a server keeps bans: auto, reject, thin or bias.", show_default="auto"
        ),
    ] = None
    tp: Annotated[
        int | None, _engine_option(min=1, help="GPUs that vllm spreads the model over.", show_default="1")
    ] = None
    max_model_len: MaxModelLenOption = None

    @property
    def uses_cluster(self) -> bool:
        is_asked_for = self.workers is not None or self.address is not None
        return self.engine == "ray" or (self.engine == "vllm" and is_asked_for)


def uses_server(options: Any) -> bool:
    """Return whether a server runs the model: with --engine openai, or with --engine ray and --base-url."""
    return options.engine == "openai" or (options.engine == "ray" and options.base_url is not None)


@dataclass(frozen=True)
class ModelHost:
    """Starts or reaches the model of a job. scope: the part of the model's replies in which bans apply."""

    options: EngineOptions
    model: ModelSpec
    scope: BanScope | None = None

    def make(
        self, bans: BanList, generation: GenerationOptions, *, pairs: PairFormat | None, grammar: str | None
    ) -> _Made:
        """Return the maker of records, the model's tokenizer, and the bans, limited to `scope`.

        grammar: as `GrammarOptions.read` returns it.
        """
        options = {
            "seed": generation.seed,
            "batch_size": generation.batch_size,
            "settings": generation.settings,
            "pairs": pairs,
            **({} if grammar is None else {"grammar": grammar}),
        }
        with as_input_error():
            if self.options.engine == "transformers":
                return self._load(bans, options)
            model = self.model
            if uses_server(self.options):  # which may have the model under another name than that of its tokenizer
                model = replace(model, name=self.options.tokenizer or model.name)
            tokenizer = model.load_tokenizer()
            bans = limit_bans(bans, self.scope, tokenizer)
            return self._start(model, tokenizer, bans, options), tokenizer, bans

    def _load(self, bans: BanList, options: dict[str, Any]) -> _Made:
        from antislop.datasets.maker import ModelRecordMaker

        model, tokenizer = self.model.load()
        bans = limit_bans(bans, self.scope, tokenizer)
        return ModelRecordMaker(model, tokenizer, bans, **options), tokenizer, bans

    def _start(
        self, model: ModelSpec, tokenizer: PreTrainedTokenizerBase, bans: BanList, options: dict[str, Any]
    ) -> RecordMaker:
        """Return a maker that runs vLLM, reaches a server, or has workers that do so or load the model."""
        if uses_server(self.options):
            options["endpoint"] = make_endpoint(self.options.base_url or "", self.model.name, option="--base-url")
            options["method"] = self.options.endpoint_method or "auto"
        if self.options.engine == "vllm":
            options["vllm"] = {
                "model": model.find_source(),
                "revision": model.revision,
                "dtype": model.dtype,
                "trust_remote_code": model.trust_remote_code,
                "tensor_parallel_size": self.options.tp or 1,
                "max_model_len": self.options.max_model_len,
            }
        if self.options.uses_cluster:
            from antislop.core.sampler import AntiSlop
            from antislop.datasets.ray_cluster import Cluster
            from antislop.steer.grammar.compilation import compile_llguidance

            cluster = Cluster(model, bans, workers=self.options.workers, address=self.options.address, **options)
            AntiSlop(tokenizer, bans)  # raises now what workers would raise later
            if "grammar" in options:
                compile_llguidance(options["grammar"], tokenizer)
            return cluster
        if "vllm" in options:
            from antislop.datasets.vllm_maker import VllmMaker

            return VllmMaker(options.pop("vllm"), tokenizer, bans, **options)
        from antislop.datasets.maker import EndpointMaker

        maker = EndpointMaker(tokenizer=tokenizer, bans=bans, **options)
        say(maker.describe_server())
        return maker


def make_endpoint(url: str, model: str | None, *, option: str) -> Endpoint:
    """Return the endpoint at a URL. Raises `InputError` with the name of the option that gave the URL."""
    from antislop.engines.endpoint.endpoint import Endpoint

    try:
        return Endpoint(url, model, api_key=os.environ.get("OPENAI_API_KEY"))
    except InputError as error:
        raise InputError(str(error).replace("base_url", option).replace("api_key", "OPENAI_API_KEY")) from error
