from .drafts import ModelDrafter as ModelDrafter
from .inferencer import BanningInferencer as BanningInferencer
from .protocols import (
    PAD as PAD,
    DecodeOutput as DecodeOutput,
    Inferencer as Inferencer,
    KVCache as KVCache,
    KVState as KVState,
    KVStates as KVStates,
    LanguageModel as LanguageModel,
    PrefillOutput as PrefillOutput,
    RewindableCache as RewindableCache,
    SampleStrategy as SampleStrategy,
    ScoreFunction as ScoreFunction,
    SharingCache as SharingCache,
    count_queries as count_queries,
    fill_left as fill_left,
    identity as identity,
)
from .row import Draft as Draft, Drafter as Drafter
