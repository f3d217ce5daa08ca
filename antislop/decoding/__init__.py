"""Tokens and probabilities: the loop, its rows and rewinds, and the protocols of models. No transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
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
        },
    )

__all__ = [
    "PAD",
    "BanningInferencer",
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
]
