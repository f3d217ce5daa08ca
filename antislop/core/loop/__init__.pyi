from .branches import (
    Branch as Branch,
    Capabilities as Capabilities,
    Controller as Controller,
    Splice as Splice,
    Step as Step,
    TokenSet as TokenSet,
)
from .drafts import ModelDrafter as ModelDrafter
from .drawing import LogitsDrawing as LogitsDrawing
from .judge import ALSO_TRIED as ALSO_TRIED
from .ledger import Node as Node
from .protocols import (
    PAD as PAD,
    KVState as KVState,
    LanguageModel as LanguageModel,
    RewindableCache as RewindableCache,
    SharingCache as SharingCache,
    count_queries as count_queries,
    fill_left as fill_left,
    identity as identity,
)
from .row import Callbacks as Callbacks, Draft as Draft, Drafter as Drafter, Row as Row, RowSpec as RowSpec
from .sampling import (
    Method as Method,
    OnExhausted as OnExhausted,
    Policy as Policy,
    Sampling as Sampling,
    seed_of as seed_of,
)
from .step import advance_together as advance_together, write_rows as write_rows
from .tables import DenseTable as DenseTable
from .writing import add as add, begin as begin, end_at as end_at
