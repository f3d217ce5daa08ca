"""Grammars of xgrammar and llguidance as logits processors that rewind with the text.

    grammar = Grammar.from_json_schema(schema, tokenizer)
    ids = model.generate(**inputs, custom_generate=sampler, logits_processor=[grammar], max_new_tokens=400)

xgrammar and llguidance are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antislop.grammar.grammar import Grammar

__all__ = ["Grammar"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from antislop.grammar.grammar import Grammar

    return Grammar
