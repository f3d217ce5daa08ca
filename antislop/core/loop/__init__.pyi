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
from .protocols import (
    PAD as PAD,
    KVState as KVState,
    LanguageModel as LanguageModel,
    RewindableCache as RewindableCache,
    SharingCache as SharingCache,
    count_queries as count_queries,
    fill_left as fill_left,
)
from .row import Draft as Draft, Drafter as Drafter
