"""Find the grammar in a logits processor of another library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from antislop.errors import InputError, first_line
from antislop.grammar.matchers import CompiledGrammar, LLGuidanceMatcher, XGrammarMatcher


def can_adapt(processor: object) -> bool:
    """Return whether a processor is exactly of a class whose grammar can be found, not of a subclass of the user's."""
    return _name_of(processor) in _FIND


def find_grammar(processor: Any) -> CompiledGrammar:
    """Return the grammar of a processor of xgrammar or outlines, of a compiled grammar or of an `LLMatcher`.

    Raises `InputError` for anything else.
    """
    name = _name_of(processor)
    if name == "outlines.backends.outlines_core.OutlinesCoreLogitsProcessor":
        raise InputError(
            "outlines_core's guide can't be rewound without limit: choose the backend llguidance or xgrammar of "
            "outlines, or antislop.grammar.Grammar.from_json_schema"
        )
    if name not in _FIND:
        raise InputError(
            f"Grammar adapts {', '.join(sorted(_FIND))}; this is {name}: give a processor of your own a method "
            "rewind(row, length), see antislop.Rewindable"
        )
    return _FIND[name](processor)


def _name_of(processor: object) -> str:
    return f"{type(processor).__module__}.{type(processor).__qualname__}"


def _from_xgrammar(*grammars: Any) -> CompiledGrammar:
    makers = [partial(XGrammarMatcher, grammar) for grammar in grammars]
    return CompiledGrammar(makers, vocab_size=grammars[0].tokenizer_info.vocab_size)


def _from_llguidance(matcher: Any) -> CompiledGrammar:
    if error := matcher.get_error():
        raise InputError(f"llguidance can't use this grammar: {first_line(error)}")
    vocab_size = len(matcher.deep_copy().compute_logit_bias())  # a byte for each token
    return CompiledGrammar([partial(LLGuidanceMatcher, matcher)], vocab_size=vocab_size)


def _from_outlines_llguidance(processor: Any) -> CompiledGrammar:
    import llguidance

    return _from_llguidance(llguidance.LLMatcher(processor.llg_tokenizer, processor.grammar))


def _from_xgrammar_processor(processor: Any) -> CompiledGrammar:
    grammars = list(processor.compiled_grammars)  # repeated for each row once the processor was called
    return _from_xgrammar(*(grammars if any(grammar is not grammars[0] for grammar in grammars) else grammars[:1]))


_FIND: dict[str, Callable[[Any], CompiledGrammar]] = {
    "xgrammar.contrib.hf.LogitsProcessor": _from_xgrammar_processor,
    "xgrammar.compiler.CompiledGrammar": _from_xgrammar,
    "builtins.LLMatcher": _from_llguidance,
    "outlines.backends.xgrammar.XGrammarLogitsProcessor": lambda processor: _from_xgrammar(processor.compiled_grammar),
    "outlines.backends.llguidance.LLGuidanceLogitsProcessor": _from_outlines_llguidance,
}
