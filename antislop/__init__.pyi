from . import (
    control as control,
    datasets as datasets,
    decoding as decoding,
    endpoint as endpoint,
    grammar as grammar,
    hf as hf,
    interpret as interpret,
    lists as lists,
    matching as matching,
    metrics as metrics,
    processors as processors,
    profiles as profiles,
    records as records,
    server as server,
    testing as testing,
    trace as trace,
    tuning as tuning,
    vllm as vllm,
)
from .decoding.policy import Exhausted as Exhausted
from .errors import BanError as BanError, InputError as InputError
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
