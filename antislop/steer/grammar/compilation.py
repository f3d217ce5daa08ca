"""Compile JSON schemas and grammars with llguidance or xgrammar, without torch and transformers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antislop.errors import DISTRIBUTION, InputError, first_line
from antislop.steer.grammar.matchers import CompiledGrammar, LLGuidanceMatcher, XGrammarMatcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class GrammarError(InputError):
    """Raised for a schema or grammar that an engine can't compile.

    line: the line of the error, if the engine names it.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def check_engine(engine: str) -> str:
    if engine not in ("llguidance", "xgrammar"):
        raise InputError(f"engine is {engine!r}; it is 'llguidance' or 'xgrammar'")
    return engine


def check_json(schema: str) -> str:
    try:
        json.loads(schema)
    except json.JSONDecodeError as error:
        raise GrammarError(f"a JSON schema was expected, and this is not JSON: {error}", line=error.lineno) from error
    return schema


def read_json_schema(schema: str, *, any_whitespace: bool = False) -> str:
    """Return the grammar of a JSON schema in llguidance's form."""
    matcher = _import("llguidance").LLMatcher
    space = "" if any_whitespace else " "  # flexible whitespace stands beside separators, not in their place
    options = {"whitespace_flexible": any_whitespace, "item_separator": f",{space}", "key_separator": f":{space}"}
    return _validate(matcher.grammar_from_json_schema(check_json(schema), defaults=options))


def read_lark(grammar: str) -> str:
    """Return a grammar in llguidance's variant of Lark in llguidance's form."""
    return _validate(_import("llguidance").LLMatcher.grammar_from_lark(grammar))


def read_gbnf(grammar: str) -> str:
    """Return a grammar in the GBNF of llama.cpp in llguidance's form."""
    to_lark = _import("llguidance.gbnf_to_lark").gbnf_to_lark
    try:
        lark = to_lark(grammar)
    except Exception as error:  # the translation fails with many types of errors
        raise _describe_error(str(error), "llguidance") from error
    try:
        return read_lark(lark)
    except GrammarError as error:
        raise GrammarError(str(error)) from error  # the line would be one of the translation


def fingerprint_grammar(grammar: str) -> str:
    return hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def compile_llguidance(
    grammar: str, tokenizer: PreTrainedTokenizerBase, *, end_tokens: Sequence[int] | None = None
) -> CompiledGrammar:
    """Compile a grammar in llguidance's form."""
    vocabulary = _read_vocabulary(tokenizer, len(tokenizer), end_tokens and tuple(end_tokens))
    matcher = _import("llguidance").LLMatcher(vocabulary, grammar, log_level=0)  # or it prints the refusal
    if refusal := matcher.get_error():
        raise _describe_error(refusal, "llguidance")
    return CompiledGrammar([partial(LLGuidanceMatcher, matcher)], vocab_size=vocabulary.vocab_size)


@lru_cache(maxsize=2)
def _read_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    count: int,  # noqa: ARG001
    end_tokens: Sequence[int] | None,
) -> Any:
    """Return a tokenizer's vocabulary for llguidance; takes a second, or 4 with a vocabulary of 262,144.

    count: the number of its tokens, to which a caller may have added some.
    """
    of_transformers = _import("llguidance.hf")
    try:
        return of_transformers.from_tokenizer(tokenizer, eos_token=end_tokens and list(end_tokens))
    except ValueError as error:
        raise InputError(f"llguidance can't read this tokenizer ({error}): use engine='xgrammar'") from error


def compile_xgrammar(
    compile_grammar: Callable[[Any], Any],
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_tokens: Sequence[int] | None = None,
) -> CompiledGrammar:
    xgrammar = _import("xgrammar")
    stop_token_ids = None if end_tokens is None else list(end_tokens)
    vocabulary = xgrammar.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=stop_token_ids)
    try:
        grammar = compile_grammar(xgrammar.GrammarCompiler(vocabulary))
    except RuntimeError as error:
        raise _describe_error(str(error), "xgrammar") from error
    return CompiledGrammar([partial(XGrammarMatcher, grammar)], vocab_size=vocabulary.vocab_size)


def _validate(grammar: str) -> str:
    refusal = _import("llguidance").LLMatcher.validate_grammar(grammar)
    if refusal and not refusal.startswith("WARNING"):
        raise _describe_error(refusal, "llguidance")
    return grammar


def _describe_error(error: str, engine: str) -> GrammarError:
    # What an engine says may begin with a time and a line of its own source.
    said = re.sub(r"^\[[\d:]+\] \S+: (Check failed: .*?: )?", "", error.strip())
    location = re.match(r"(\d+)\(\d+\): ", said) or re.search(r"\bline (\d+)\b", said)
    if location and location.start() == 0:
        said = said[location.end() :]
    reason = re.sub(r" at line \d+, .*", "", first_line(said))
    return GrammarError(f"{engine} can't compile it: {reason}", line=int(location[1]) if location else None)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        engine = name.partition(".")[0]
        extra = {"llguidance": "grammar"}.get(engine, engine)
        raise InputError(f"{engine} can't be imported ({error}): pip install '{DISTRIBUTION}[{extra}]'") from error
