"""Models, tokenizers and calls of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.hf.in_flight import Completion
    from antislop.hf.model import TransformersModel
    from antislop.hf.pretrained import ModelSpec, load_model
    from antislop.hf.run import DecoderOnlyOutput, EncoderDecoderOutput
    from antislop.hf.vocabulary import Vocabulary
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "in_flight": ["Completion"],
            "model": ["TransformersModel"],
            "pretrained": ["ModelSpec", "load_model"],
            "run": ["DecoderOnlyOutput", "EncoderDecoderOutput"],
            "vocabulary": ["Vocabulary"],
        },
    )

__all__ = [
    "Completion",
    "DecoderOnlyOutput",
    "EncoderDecoderOutput",
    "ModelSpec",
    "TransformersModel",
    "Vocabulary",
    "load_model",
]
