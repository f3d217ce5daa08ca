"""`generate` of a folder that brings its bans, for `from_pretrained(FOLDER, trust_remote_code=True)`.

transformers calls it in place of its own `generate`, with all arguments as they were passed: for a model of that
folder, and for any model with `custom_generate="FOLDER"`. Folders import it from here: don't move it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from copy import copy
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import AutoTokenizer, GenerationMixin
from transformers.utils import cached_file

from antislop.core.bans import BanList
from antislop.core.hf import choose_scopes, find_response_template, revision_of
from antislop.core.sampler import AntiSlop
from antislop.errors import InputError
from antislop.lists import SENT_LIMITS

LIST = "bans.txt"
"""The name of the file with a folder's bans."""
OPTIONS = set(inspect.signature(AntiSlop).parameters) - {"tokenizer"}
SENT = ("banned_strings", "banned_regex")
"""The options that a generation config may also bring; neither can name a file."""
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

    generation_config: may have `banned_strings` and `banned_regex`, as may the model's own.
    tokenizer: the model's, or its processor; a model of a folder that brings its bans needs none.
    bans, banned_strings, banned_regex, method, on_exhausted and all other options of `antislop.AntiSlop`: what is
        banned, and how; `bans` replaces the folder's list, the others are added to it.
    All other arguments, streamer, stop_strings and assistant_model included, are those of `model.generate`, and so is
    what is returned.
    """
    arguments = {name: value for name, value in arguments.items() if name not in OF_THE_LOADER}
    if custom_generate is not None:
        # The model was loaded from such a folder, so its generate is this function: if a caller chooses another loop,
        # the class's own generate runs it. The call that antislop makes below comes here, too.
        arguments = {"custom_generate": custom_generate, "tokenizer": tokenizer, **arguments}
        return type(model).generate(model, inputs, generation_config, **arguments)
    options = {name: arguments.pop(name) for name in OPTIONS & arguments.keys()}
    for config in (generation_config, model.generation_config):
        for name, entries in read_sent(config).items():
            given = options.get(name) or []
            options[name] = [*entries, *([given] if isinstance(given, str) else given)]
    if brings_bans(model):
        source, commit = model.name_or_path, revision_of(model.config)
        if commit is None and not Path(source).is_dir():  # otherwise the Hub would be asked for this name
            raise InputError(f"{source}, which the model was loaded from, is no folder here: load it by its full path")
        if options.get("bans") is None:
            options["bans"] = find_list(source, commit)
        tokenizer = load_tokenizer(source, commit) if tokenizer is None else tokenizer
        template = find_response_template(getattr(tokenizer, "tokenizer", tokenizer), model)
        options.setdefault("scopes", choose_scopes(None, template))  # neither thoughts nor calls of tools
    if tokenizer is None:
        raise InputError("no tokenizer was passed, and bans are read in its tokens: pass tokenizer=tokenizer")
    sampler = find_sampler(getattr(tokenizer, "tokenizer", tokenizer), options)  # a processor has a tokenizer
    return sampler.generate(model, inputs, generation_config=generation_config, **arguments)


def brings_bans(model: Any) -> bool:
    """Return whether a model was loaded from a folder with this `generate`."""
    return getattr(vars(model).get("generate"), "func", None) is generate


def read_sent(config: Any) -> dict[str, list[str]]:
    """Return the bans of a generation config. A server may get it from a stranger, so no value in it names a file."""
    sent = {name: value for name, value in vars(config).items() if name in OPTIONS} if config is not None else {}
    if others := sent.keys() - set(SENT):
        raise InputError(f"generation_config has {min(others)}: it can have {' and '.join(SENT)}, and no other option")
    for name, entries in sent.items():
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"generation_config.{name} is {entries!r:.60}: a list of strings was expected")
    phrases, regexes = (sent.get(name, []) for name in SENT)
    SENT_LIMITS.check(len(phrases) + len(regexes), phrases, regexes)
    return sent


def find_list(source: str, commit: str | None) -> str:
    """Return the path of the list in a folder, or in a repository of the Hub."""
    try:
        return str(cached_file(source, LIST, revision=commit))
    except OSError as error:
        raise InputError(f"{source} has no {LIST} for its generate to obey: export the model again") from error


@lru_cache(maxsize=KEPT)
def load_tokenizer(source: str, commit: str | None) -> Any:
    return AutoTokenizer.from_pretrained(source, **({} if commit is None else {"revision": commit}))


def find_sampler(tokenizer: Any, options: dict[str, Any]) -> AntiSlop:
    """Return the sampler with these options, compiled at the first call with them, and again if their file changes."""
    options = {name: read_option(name, value) for name, value in sorted(options.items())}
    key = (len(tokenizer), *((name, _identify(value)) for name, value in options.items()))
    with LOCK:
        samplers = SAMPLERS.setdefault(tokenizer, {})
        # A copy of the tokenizer: SAMPLERS has the tokenizer as its key, and a sampler's reference would keep it alive.
        sampler = samplers.pop(key) if key in samplers else AntiSlop(copy(tokenizer), **options)
        samplers[key] = sampler  # the latest is the last
        while len(samplers) > KEPT:
            del samplers[next(iter(samplers))]
    return sampler


def read_option(name: str, value: Any) -> Any:
    """Return an option's value in a form that can be compared with the value in another call."""
    if name == "bans" and value is not None and not isinstance(value, (str, os.PathLike)):
        return value if isinstance(value, BanList) else BanList(value)
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike)) else value


def _identify(value: Any) -> Any:
    if isinstance(value, BanList):
        return tuple(value)
    if isinstance(value, (str, os.PathLike)) and (path := Path(value)).is_file():
        stat = path.stat()
        return str(value), stat.st_mtime_ns, stat.st_size
    return value


class _Withheld:
    """A method of continuous batching, which uses no sampler, so that models that bring bans appear not to have it.

    `transformers serve --continuous-batching` looks for `init_continuous_batching`, and without it calls `generate`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.original = inspect.getattr_static(GenerationMixin, name)

    def __get__(self, model: Any, owner: type) -> Any:
        if model is None or not brings_bans(model):
            return self.original.__get__(model, owner)
        if self.name == "generate_batch":
            return _refuse_batch
        raise AttributeError(f"{self.name} asks no sampler, and nothing would be banned")


def _refuse_batch(*_: Any, **__: Any) -> Any:
    raise InputError("this model brings bans, and generate_batch asks no sampler: call generate instead")


def withhold_batching() -> None:
    """Take continuous batching from models that bring bans; others keep it. A folder's `generate.py` calls this."""
    for name in ("init_continuous_batching", "generate_batch"):
        if hasattr(GenerationMixin, name) and not isinstance(inspect.getattr_static(GenerationMixin, name), _Withheld):
            setattr(GenerationMixin, name, _Withheld(name))
