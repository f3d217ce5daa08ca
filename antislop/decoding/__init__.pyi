from .drafts import ModelDrafter as ModelDrafter
from .inferencer import (
    BanningInferencer as BanningInferencer,
    DecodeOutput as DecodeOutput,
    Inferencer as Inferencer,
    KVCache as KVCache,
    KVState as KVState,
    PrefillOutput as PrefillOutput,
    SampleStrategy as SampleStrategy,
)
from .protocols import (
    PAD as PAD,
    LanguageModel as LanguageModel,
    RewindableCache as RewindableCache,
    SharingCache as SharingCache,
    count_queries as count_queries,
    fill_left as fill_left,
)
from .row import Draft as Draft, Drafter as Drafter
