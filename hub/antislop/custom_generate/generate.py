"""`generate` without the phrases that you ban, for `model.generate(…, custom_generate=…, trust_remote_code=True)`.

transformers calls `generate` below in the place of its own, with all arguments as they were passed. The work is done by
the package antislop, which must be installed: https://github.com/antislop/antislop
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from copy import copy
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from antislop import AntiSlop, BanList

OPTIONS = set(inspect.signature(AntiSlop).parameters) - {"tokenizer"}
OF_THE_LOADER = {"cache_dir", "force_download", "local_files_only", "proxies", "repo_type", "revision", "token"}
KEPT = 8
SAMPLERS: WeakKeyDictionary[Any, dict[tuple[Any, ...], AntiSlop]] = WeakKeyDictionary()
"""The latest samplers of each tokenizer, at most KEPT, since a list is compiled once. They die with the tokenizer."""
LOCK = Lock()


def generate(
    inputs: Any = None,
    generation_config: Any = None,
    *,
    model: Any,
    tokenizer: Any = None,
    custom_generate: Any = None,
    **arguments: Any,
) -> Any:
    """Generate as `model.generate` does, without writing what is banned.

    tokenizer: the model's; required.
    bans, banned_strings, banned_regex, method, on_exhausted and all other options of `antislop.AntiSlop`: what is
        banned, and how; bans is a list of phrases and `Ban`s, or the path of a list.
    All other arguments, streamer, stop_strings and assistant_model included, are those of `model.generate`, and so is
    what is returned.
    """
    arguments = {name: value for name, value in arguments.items() if name not in OF_THE_LOADER}
    if custom_generate is not None:
        # The model was loaded from a folder with this file in it, and its generate is this function: a caller's choice
        # of another loop is for the class's own generate. So is the call that antislop makes below.
        arguments = {"custom_generate": custom_generate, "tokenizer": tokenizer, **arguments}
        return type(model).generate(model, inputs, generation_config, **arguments)
    options = {name: arguments.pop(name) for name in OPTIONS & arguments.keys()}
    if tokenizer is None:
        raise ValueError("no tokenizer was passed, and bans are read in its tokens: pass tokenizer=tokenizer")
    sampler = find_sampler(tokenizer, options)
    return sampler.generate(model, inputs, generation_config=generation_config, **arguments)


def find_sampler(tokenizer: Any, options: dict[str, Any]) -> AntiSlop:
    """Return the sampler of these options, compiled at the first call with them."""
    options = {name: read_option(name, value) for name, value in sorted(options.items())}
    key = (len(tokenizer), *((name, tuple(v) if isinstance(v, BanList) else v) for name, v in options.items()))
    with LOCK:
        samplers = SAMPLERS.setdefault(tokenizer, {})
        # A copy of the tokenizer: a sampler that refers to its own key would keep it alive.
        sampler = samplers.pop(key) if key in samplers else AntiSlop(copy(tokenizer), **options)
        samplers[key] = sampler  # the latest is the last
        while len(samplers) > KEPT:
            del samplers[next(iter(samplers))]
    return sampler


def read_option(name: str, value: Any) -> Any:
    """Return a value that can be compared with that of another call; a file is read each time, since it may change."""
    if name == "bans" and isinstance(value, (str, os.PathLike)):
        return BanList.load(value)
    if name == "bans" and value is not None:
        return value if isinstance(value, BanList) else BanList(value)
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
