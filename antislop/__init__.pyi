from .decoding.policy import Exhausted as Exhausted
from .errors import BanError as BanError
from .hf.pretrained import tiny_model as tiny_model
from .lists.ban_list import BanList as BanList
from .lists.bundled import (
    constructions as constructions,
    dashes as dashes,
    default_bans as default_bans,
    held_out_bans as held_out_bans,
    loops as loops,
    repeats as repeats,
)
from .matching.bans import Ban as Ban, Match as Match
from .matching.scopes import Scope as Scope
from .patching import applied_to as applied_to
from .processors.rewindable import Rewindable as Rewindable
from .sampler import AntiSlop as AntiSlop
from .trace.events import ConcededWarning as ConcededWarning
from .trace.report import Report as Report

__version__: str
