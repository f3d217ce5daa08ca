"""A language model, minus the phrases you never want to read again, unless nothing else is left to write.

    sampler = AntiSlop(tokenizer, ["a testament to", Ban("tapestry", weight=0.1)])
    ids = model.generate(**inputs, custom_generate=sampler, max_new_tokens=400)

Everything is imported when it is first used. `Ban` and `BanList` need neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antislop.bans import Ban, BanError, Match
    from antislop.bundled import constructions, default_bans, held_out_bans, tiny_model
    from antislop.events import ConcededWarning
    from antislop.lists import BanList
    from antislop.report import Report
    from antislop.rewindable import Rewindable
    from antislop.sampler import AntiSlop
    from antislop.scopes import Scope
    from antislop.walker import Exhausted

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
    "constructions",
    "default_bans",
    "held_out_bans",
    "tiny_model",
]

_LATER = {
    "AntiSlop": "sampler",
    "Ban": "bans",
    "BanError": "bans",
    "BanList": "lists",
    "ConcededWarning": "events",
    "Exhausted": "walker",
    "Match": "bans",
    "Report": "report",
    "Rewindable": "rewindable",
    "Scope": "scopes",
    "constructions": "bundled",
    "default_bans": "bundled",
    "held_out_bans": "bundled",
    "tiny_model": "bundled",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'antislop' has no attribute {name!r}")
    return getattr(import_module(f"antislop.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
