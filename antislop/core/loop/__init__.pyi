from .branches import (
    BacktrackError as BacktrackError,
    Branch as Branch,
    Capabilities as Capabilities,
    CapabilityError as CapabilityError,
    Controller as Controller,
    Splice as Splice,
    Step as Step,
    TokenSet as TokenSet,
)
from .drafts import ModelDrafter as ModelDrafter
from .engine import BatchEngine as BatchEngine
from .judge import ALSO_TRIED as ALSO_TRIED
from .ledger import Node as Node
from .lockstep import advance_together as advance_together
from .loop import StepEvents as StepEvents, decode as decode, decode_in_steps as decode_in_steps
from .policy import (
    MAX_REWINDS as MAX_REWINDS,
    Exhausted as Exhausted,
    Method as Method,
    OnExhausted as OnExhausted,
    Policy as Policy,
    seed_of as seed_of,
)
from .protocols import (
    PAD as PAD,
    KVState as KVState,
    KVStates as KVStates,
    LanguageModel as LanguageModel,
    RewindableCache as RewindableCache,
    ScoreFunction as ScoreFunction,
    SharingCache as SharingCache,
    count_queries as count_queries,
    fill_left as fill_left,
    identity as identity,
)
from .row import CallbackMemory as CallbackMemory, Draft as Draft, Drafter as Drafter, Row as Row, RowSpec as RowSpec
from .sampling import (
    DEFAULT_BREAKERS as DEFAULT_BREAKERS,
    DRAWING as DRAWING,
    LIMITS as LIMITS,
    PARTS as PARTS,
    TRUNCATING as TRUNCATING,
    Sampling as Sampling,
)
from .scheduler import Scheduler as Scheduler
from .stream_source import (
    LOWEST_BIAS as LOWEST_BIAS,
    SparseTable as SparseTable,
    StreamSource as StreamSource,
    open_table as open_table,
)
from .tables import find_dense as find_dense
