"""Compile JSON schemas and grammars with llguidance or xgrammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.errors import InputError, first_line
from antislop.grammar.matchers import CompiledGrammar, LLGuidanceMatcher, XGrammarMatcher


class GrammarError(InputError):
    """A schema or grammar that the engine can't compile; `line` is the line of the error, if the engine names one."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def compile_json_schema(
    schema: str | dict[str, Any], tokenizer: PreTrainedTokenizerBase, *, engine: str, any_whitespace: bool
) -> CompiledGrammar:
    """Compile a JSON schema; see `Grammar.from_json_schema`."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise GrammarError(f"the JSON schema is no JSON: {error}", line=error.lineno) from error
    if _check_engine(engine) == "xgrammar":
        return _compile_xgrammar(
            lambda compiler: compiler.compile_json_schema(text, any_whitespace=any_whitespace), tokenizer
        )
    options = {"whitespace_flexible": any_whitespace, "item_separator": ", ", "key_separator": ": "}
    return _compile_llguidance(lambda matcher: matcher.grammar_from_json_schema(text, defaults=options), tokenizer)


def compile_lark(grammar: str, tokenizer: PreTrainedTokenizerBase) -> CompiledGrammar:
    """Compile a grammar in llguidance's variant of Lark."""
    return _compile_llguidance(lambda matcher: matcher.grammar_from_lark(grammar), tokenizer)


def compile_gbnf(grammar: str, tokenizer: PreTrainedTokenizerBase, *, engine: str) -> CompiledGrammar:
    """Compile a grammar in the GBNF of llama.cpp."""
    if _check_engine(engine) == "xgrammar":
        return _compile_xgrammar(lambda compiler: compiler.compile_grammar(grammar), tokenizer)
    to_lark = _import("llguidance.gbnf_to_lark").gbnf_to_lark
    try:
        lark = to_lark(grammar)
    except Exception as error:
        raise _describe(str(error), engine) from error
    return compile_lark(lark, tokenizer)


def _check_engine(engine: str) -> str:
    if engine not in ("llguidance", "xgrammar"):
        raise InputError(f"engine is {engine!r}; it is 'llguidance' or 'xgrammar'")
    return engine


def _compile_llguidance(make_grammar: Callable[[Any], str], tokenizer: PreTrainedTokenizerBase) -> CompiledGrammar:
    llguidance, of_transformers = _import("llguidance"), _import("llguidance.hf")
    try:
        vocabulary = of_transformers.from_tokenizer(tokenizer)
    except ValueError as error:
        raise InputError(f"llguidance can't read this tokenizer ({error}): use engine='xgrammar'") from error
    matcher = llguidance.LLMatcher(vocabulary, make_grammar(llguidance.LLMatcher))
    if refusal := matcher.get_error():
        raise _describe(refusal, "llguidance")
    return CompiledGrammar([partial(LLGuidanceMatcher, matcher)], vocab_size=vocabulary.vocab_size)


def _compile_xgrammar(compile_grammar: Callable[[Any], Any], tokenizer: PreTrainedTokenizerBase) -> CompiledGrammar:
    xgrammar = _import("xgrammar")
    vocabulary = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    try:
        grammar = compile_grammar(xgrammar.GrammarCompiler(vocabulary))
    except RuntimeError as error:
        raise _describe(str(error), "xgrammar") from error
    return CompiledGrammar([partial(XGrammarMatcher, grammar)], vocab_size=vocabulary.vocab_size)


def _describe(error: str, engine: str) -> GrammarError:
    """Return the error for what an engine says, which may begin with a time and a line of its own source."""
    said = re.sub(r"^\[[\d:]+\] \S+: (Check failed: .*?: )?", "", error.strip())
    place = re.match(r"(\d+)\(\d+\): ", said) or re.search(r"\bline (\d+)\b", said)
    first = first_line(said.removeprefix(place[0] if place and place.start() == 0 else ""))
    return GrammarError(f"{engine} can't compile the grammar: {first}", line=int(place[1]) if place else None)


def _import(name: str) -> Any:
    """Import a module of an engine; raise `InputError` with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        engine = name.partition(".")[0]
        extra = {"llguidance": "grammar"}.get(engine, engine)
        raise InputError(
            f"{engine} is not installed or can't be imported ({error}): pip install 'antislop[{extra}]'"
        ) from error
