"""Files of records in, journals out. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.records.journal import read_records
    from antislop.records.prompts import Prompt, read_prompts
    from antislop.records.texts import Text, read_texts
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "journal": ["read_records"],
            "prompts": ["Prompt", "read_prompts"],
            "texts": ["Text", "read_texts"],
        },
    )

__all__ = [
    "Prompt",
    "Text",
    "read_prompts",
    "read_records",
    "read_texts",
]
