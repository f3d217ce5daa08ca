"""A language model, minus the phrases you never want to read again, unless nothing else is left to write.

    sampler = AntiSlop(tokenizer, ["a testament to", Ban("tapestry", weight=0.1)])
    ids = model.generate(**inputs, custom_generate=sampler, max_new_tokens=400)

Everything is imported when it is first used. `Ban` and `BanList` need neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

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
    from antislop.replaying import ReplayError, replay
    from antislop.sampler import AntiSlop
    from antislop.trace.events import ConcededWarning
    from antislop.trace.report import Report
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "callbacks.rewindable": ["Rewindable"],
            "decoding.policy": ["Exhausted"],
            "hf.pretrained": ["tiny_model"],
            "lists.ban_list": ["BanList"],
            "lists.bundled": ["constructions", "default_bans", "held_out_bans", "loops"],
            "matching.bans": ["Ban", "Match"],
            "matching.errors": ["BanError"],
            "matching.scopes": ["Scope"],
            "patching": ["applied_to"],
            "replaying": ["ReplayError", "replay"],
            "sampler": ["AntiSlop"],
            "trace.events": ["ConcededWarning"],
            "trace.report": ["Report"],
        },
    )

__version__ = "0.1.0"
__all__ = [
    "AntiSlop",
    "Ban",
    "BanError",
    "BanList",
    "ConcededWarning",
    "Exhausted",
    "Match",
    "ReplayError",
    "Report",
    "Rewindable",
    "Scope",
    "applied_to",
    "constructions",
    "default_bans",
    "held_out_bans",
    "loops",
    "replay",
    "tiny_model",
]
