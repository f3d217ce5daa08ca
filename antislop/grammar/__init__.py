"""Grammars of xgrammar and llguidance as logits processors that rewind with the text.

    grammar = Grammar.from_json_schema(schema, tokenizer)
    ids = model.generate(**inputs, custom_generate=sampler, logits_processor=[grammar], max_new_tokens=400)

xgrammar and llguidance are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.grammar.grammar import Grammar
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "grammar": ["Grammar"],
        },
    )

__all__ = [
    "Grammar",
]
