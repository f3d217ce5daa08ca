from . import (
    core as core,
    datasets as datasets,
    engines as engines,
    explain as explain,
    files as files,
    lists as lists,
    measure as measure,
    serve as serve,
    steer as steer,
    tuning as tuning,
)
from .core.bans.ban_list import BanList as BanList
from .core.bans.bans import Ban as Ban, Match as Match
from .core.bans.scopes import Scope as Scope
from .core.hf.callbacks.memory import Rewindable as Rewindable
from .core.patching import applied_to as applied_to
from .core.sampler import AntiSlop as AntiSlop
from .core.trace.events import Report as Report
from .errors import (
    BanError as BanError,
    ConcededWarning as ConcededWarning,
    Exhausted as Exhausted,
    InputError as InputError,
)
from .files.models import tiny_model as tiny_model
from .lists.bundled import (
    constructions as constructions,
    dashes as dashes,
    default_bans as default_bans,
    held_out_bans as held_out_bans,
    loops as loops,
    repeats as repeats,
)
from .steer.fixing import fix as fix

__version__: str
