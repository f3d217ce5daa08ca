"""A language model, minus the phrases you never want to read again, unless nothing else is left to write.

    sampler = AntiSlop(tokenizer, ["a testament to", Ban("tapestry", weight=0.1)])
    ids = model.generate(**inputs, custom_generate=sampler, max_new_tokens=400)

Everything is imported when it is first used. `Ban` and `BanList` need neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antislop.callbacks.rewindable import Rewindable
    from antislop.decoding.policy import Exhausted
    from antislop.hf.pretrained import tiny_model
    from antislop.lists.ban_list import BanList
    from antislop.lists.bundled import constructions, default_bans, held_out_bans, loops
    from antislop.matching.bans import Ban, Match
    from antislop.matching.errors import BanError
    from antislop.matching.scopes import Scope
    from antislop.patching import applied_to
    from antislop.sampler import AntiSlop
    from antislop.trace.events import ConcededWarning
    from antislop.trace.report import Report

__version__ = "0.1.0"
__all__ = [
    "AntiSlop",
    "Ban",
    "BanError",
    "BanList",
    "ConcededWarning",
    "Exhausted",
    "Match",
    "Report",
    "Rewindable",
    "Scope",
    "applied_to",
    "constructions",
    "default_bans",
    "held_out_bans",
    "loops",
    "tiny_model",
]

_LATER = {
    "AntiSlop": "sampler",
    "Ban": "matching.bans",
    "BanError": "matching.errors",
    "BanList": "lists.ban_list",
    "ConcededWarning": "trace.events",
    "Exhausted": "decoding.policy",
    "Match": "matching.bans",
    "Report": "trace.report",
    "Rewindable": "callbacks.rewindable",
    "Scope": "matching.scopes",
    "applied_to": "patching",
    "constructions": "lists.bundled",
    "default_bans": "lists.bundled",
    "held_out_bans": "lists.bundled",
    "loops": "lists.bundled",
    "tiny_model": "hf.pretrained",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'antislop' has no attribute {name!r}")
    return getattr(import_module(f"antislop.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
