"""vLLM's plug-in for bans, called in each process: `additional_config={"antislop": {...}}` is the only argument needed.

The other arguments are added before vLLM makes its configuration of all arguments, since it checks each part at once.
Engines without that key keep their arguments.
"""

from __future__ import annotations

import warnings
from functools import cache, wraps
from importlib import import_module
from typing import Any

from antislop.engines.vllm.requests import KEY, LOGPROBS_MODE, list_arguments
from antislop.errors import InputError


@cache
def register() -> None:
    """Have vLLM add the arguments of `banning` to engines with bans. Does nothing when called again."""
    from vllm.engine.arg_utils import EngineArgs  # whose import calls this function

    create = getattr(EngineArgs, "create_engine_config", None)
    if create is None:  # an error here would end engines that ask for no bans, too
        warnings.warn("this vLLM takes bans by all arguments of antislop.engines.vllm.banning alone", stacklevel=2)
        return

    @wraps(create)
    def create_with_bans(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        config = arguments.additional_config
        if isinstance(config, dict) and KEY in config:
            more = list_arguments(config[KEY])
            scheduler, processors = arguments.scheduler_cls, [*(arguments.logits_processors or ())]
            if scheduler is not None and not _is_ours(scheduler):
                raise InputError(f"bans need antislop's scheduler: leave out scheduler_cls, which is {scheduler}")
            arguments.scheduler_cls = scheduler or more["scheduler_cls"]
            if not any(map(_is_ours, processors)):
                arguments.logits_processors = processors + more["logits_processors"]
            if arguments.logprobs_mode == type(arguments).logprobs_mode:
                arguments.logprobs_mode = more.get(LOGPROBS_MODE, arguments.logprobs_mode)
            import_module("antislop.engines.vllm.check")  # now, so that it sees the first request, too
        return create(arguments, *args, **kwargs)

    EngineArgs.create_engine_config = create_with_bans


def _is_ours(named: Any) -> bool:
    return (named if isinstance(named, str) else named.__module__).startswith("antislop.engines.vllm")
