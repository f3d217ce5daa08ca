"""Tokens and probabilities: the loop, its rows and rewinds, and the protocols of models. No transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.decoding.drafts import ModelDrafter
    from antislop.decoding.inferencer import BanningInferencer
    from antislop.decoding.protocols import (
        PAD,
        DecodeOutput,
        ForkableCache,
        Inferencer,
        KVCache,
        KVState,
        KVStates,
        LanguageModel,
        PrefillOutput,
        RewindableCache,
        SampleStrategy,
        ScoreFunction,
        count_queries,
        fill_left,
        identity,
    )
    from antislop.decoding.row import Draft, Drafter
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "drafts": ["ModelDrafter"],
            "inferencer": ["BanningInferencer"],
            "protocols": [
                "PAD",
                "DecodeOutput",
                "ForkableCache",
                "Inferencer",
                "KVCache",
                "KVState",
                "KVStates",
                "LanguageModel",
                "PrefillOutput",
                "RewindableCache",
                "SampleStrategy",
                "ScoreFunction",
                "count_queries",
                "fill_left",
                "identity",
            ],
            "row": ["Draft", "Drafter"],
        },
    )

__all__ = [
    "PAD",
    "BanningInferencer",
    "DecodeOutput",
    "Draft",
    "Drafter",
    "ForkableCache",
    "Inferencer",
    "KVCache",
    "KVState",
    "KVStates",
    "LanguageModel",
    "ModelDrafter",
    "PrefillOutput",
    "RewindableCache",
    "SampleStrategy",
    "ScoreFunction",
    "count_queries",
    "fill_left",
    "identity",
]
