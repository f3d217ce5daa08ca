"""What vLLM calls in each of its processes, by the entry point `vllm.general_plugins`.

It makes `additional_config={"antislop": {...}}` the one argument that an engine with bans needs. The others are added
where vLLM reads all arguments of an engine, since the parts of its configuration are checked against each other as they
are made from them. Engines without that key get what they asked for.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from antislop.engines.vllm.requests import KEY, LOGPROBS_MODE, list_arguments
from antislop.errors import InputError


@cache
def register() -> None:
    """Have vLLM add to the arguments of engines with bans what `banning` adds. Does nothing when called again."""
    from vllm.engine.arg_utils import EngineArgs  # which calls this function where it is imported

    create = EngineArgs.create_engine_config

    @wraps(create)
    def create_with_bans(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        config = arguments.additional_config
        if isinstance(config, dict) and KEY in config:
            add_arguments(arguments, list_arguments(config[KEY]))
        return create(arguments, *args, **kwargs)

    EngineArgs.create_engine_config = create_with_bans


def add_arguments(arguments: Any, more: dict[str, Any]) -> None:
    """Add the arguments that bans need to those of an engine, beside those that it was given.

    Raises `InputError` for another scheduler.
    """
    scheduler = arguments.scheduler_cls
    if scheduler is not None and "antislop.engines.vllm" not in _name(scheduler):
        raise InputError(
            f"bans need antislop's own scheduler, and scheduler_cls is {_name(scheduler)}: leave it out, or leave "
            f"{KEY!r} out of additional_config"
        )
    arguments.scheduler_cls = scheduler or more["scheduler_cls"]
    processors = arguments.logits_processors
    if not any("antislop.engines.vllm" in _name(processor) for processor in processors or ()):
        arguments.logits_processors = [*(processors or ()), *more["logits_processors"]]
    if LOGPROBS_MODE in more and arguments.logprobs_mode == type(arguments).logprobs_mode:
        arguments.logprobs_mode = more[LOGPROBS_MODE]


def _name(named: Any) -> str:
    return named if isinstance(named, str) else f"{named.__module__}.{named.__qualname__}"
