"""Compile grammars with llguidance or xgrammar; the matchers of both have one protocol. Imports no torch.

A grammar is compiled from a JSON schema or from the text of a grammar, or found in the processor of another library.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from antislop.errors import DISTRIBUTION, InputError, first_line
from antislop.steer.grammar.schema import GrammarError, fit_schema

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


# -- matchers ----------------------------------------------------------------------------------------------------------


class GrammarMatcher(Protocol):
    """The state of a grammar after some tokens."""

    @property
    def is_complete(self) -> bool:
        """Whether only an end token may follow the accepted tokens."""

    @property
    def can_end(self) -> bool:
        """Whether the accepted tokens are a whole text of the grammar, even if more tokens may follow."""

    def accept(self, token: int) -> bool:
        """Accept the next token and return True; if the grammar does not allow it, change nothing and return False."""

    def rollback(self, count: int) -> None:
        """Undo the latest `count` accepted tokens."""

    def fill(self, bitmask: Tensor, row: int) -> None:
        """Set the bits of the tokens that may follow, in a row of `bitmask`, int32 [rows, vocab / 32] on the CPU."""

    def find_forced(self) -> list[int]:
        """Return the tokens that are certain to follow; an empty list if none are known to be."""

    def look_ahead(self, tokens: Sequence[int], *, back: int) -> Any:
        """Return a copy that reads characters, with `tokens` in place of the latest `back` tokens; None if none can."""


@dataclass(frozen=True)
class CompiledGrammar:
    """A grammar, compiled for one vocabulary.

    make_matchers: functions that make a matcher: one for each row of a batch, or a single one for all rows.
    vocab_size: number of tokens that the grammar knows; tokens with higher ids are never allowed.
    """

    make_matchers: Sequence[Callable[[], GrammarMatcher]]
    vocab_size: int

    def start(self, rows: int) -> list[GrammarMatcher]:
        if len(self.make_matchers) not in (1, rows):
            raise InputError(
                f"the grammar processor was made for a batch of {len(self.make_matchers)}, and this is one of {rows}: "
                "pass one grammar, or one for each row"
            )
        makers = self.make_matchers
        return [make_matcher() for make_matcher in (makers if len(makers) == rows else [makers[0]] * rows)]


class XGrammarMatcher:
    """A matcher of xgrammar. Any number of tokens can be rolled back."""

    def __init__(self, grammar: Any) -> None:
        self._matcher = _import("xgrammar").GrammarMatcher(grammar)

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_terminated())

    @property
    def can_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def accept(self, token: int) -> bool:
        return not self.is_complete and bool(self._matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def fill(self, bitmask: Tensor, row: int) -> None:
        if not self.is_complete:  # after the end, xgrammar's own processor does not fill the mask either
            self._matcher.fill_next_token_bitmask(bitmask, row)

    def find_forced(self) -> list[int]:
        return []  # xgrammar knows the next characters, but not by which tokens the tokenizer would write them

    def look_ahead(self, tokens: Sequence[int], *, back: int) -> Any:
        ahead = self._matcher.fork()
        ahead.rollback(back)
        for token in tokens:
            ahead.accept_token(token)
        return ahead


class LLGuidanceMatcher:
    def __init__(self, matcher: Any, byte_tokens: Sequence[int] | None = None) -> None:
        self._byte_tokens = byte_tokens
        self._matcher = matcher.deep_copy()
        self._matcher.reset()

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    @property
    def can_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def accept(self, token: int) -> bool:
        is_accepted = not self.is_complete and self._matcher.try_consume_tokens([token]) == 1
        self._check()
        return is_accepted

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self._check()

    def fill(self, bitmask: Tensor, row: int) -> None:
        words = bitmask[row]
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * words.element_size())
        self._check()

    def find_forced(self) -> list[int]:
        forced: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return forced

    def look_ahead(self, tokens: Sequence[int], *, back: int) -> ByteReader | None:
        if self._byte_tokens is None:
            return None
        ahead = self._matcher.deep_copy()
        ahead.rollback(back)
        ahead.try_consume_tokens(list(tokens))
        return ByteReader(ahead, self._byte_tokens)

    def _check(self) -> None:
        if self._matcher.is_error():  # after it hit a limit, the matcher would allow any token
            raise InputError(f"llguidance gave up on this grammar: {first_line(self._matcher.get_error())}")


@dataclass
class ByteReader:
    """A matcher of llguidance that reads characters instead of tokens, with the methods of an xgrammar matcher.

    byte_tokens: for each byte its token; -1 for a byte without a token.
    """

    matcher: Any
    byte_tokens: Sequence[int]

    def fork(self) -> ByteReader:
        return ByteReader(self.matcher.deep_copy(), self.byte_tokens)

    def find_jump_forward_string(self) -> str:
        return bytes(self.matcher.compute_ff_bytes()).decode()

    def accept_string(self, text: str | bytes, /) -> bool:
        tokens = [self.byte_tokens[byte] for byte in (text.encode() if isinstance(text, str) else text)]
        can_accept = -1 not in tokens and not self.matcher.is_stopped()
        accepted = self.matcher.try_consume_tokens(tokens) if can_accept else 0
        if 0 < accepted < len(tokens):
            self.matcher.rollback(accepted)
        return bool(accepted == len(tokens))

    def is_completed(self) -> bool:
        return bool(self.matcher.is_accepting())


# -- compiling ---------------------------------------------------------------------------------------------------------


def check_engine(engine: str) -> str:
    if engine not in ("llguidance", "xgrammar"):
        raise InputError(f"engine is {engine!r}; it is 'llguidance' or 'xgrammar'")
    return engine


def read_json_schema(schema: str, *, any_whitespace: bool = False) -> str:
    """Return the grammar of a JSON schema, as llguidance writes grammars."""
    matcher = _import("llguidance").LLMatcher
    space = "" if any_whitespace else " "  # flexible whitespace is allowed in addition to that of the separators
    options = {"whitespace_flexible": any_whitespace, "item_separator": f",{space}", "key_separator": f":{space}"}
    if _read_release("llguidance") >= (1, 7):
        options["json_allowed_escapes"] = 'nrbtf\\"'  # with \u, a key of the schema could be written in another way
    fitted = fit_schema(schema, "llguidance")
    try:
        return _validate(matcher.grammar_from_json_schema(fitted, defaults=options))
    except ValueError as error:
        raise error if isinstance(error, GrammarError) else _describe_error(str(error), "llguidance") from error


def read_for_xgrammar(schema: str) -> str:
    """Return a JSON schema rewritten so that xgrammar follows it; raise `InputError` for an old xgrammar."""
    _import("xgrammar")
    if _read_release("xgrammar") < (0, 2, 8):  # 0.2.0 writes 2 for a minimum of 3
        raise InputError("this release of xgrammar does not keep to JSON schemas: pip install 'xgrammar>=0.2.8'")
    return fit_schema(schema, "xgrammar")


def read_lark(grammar: str) -> str:
    """Check a grammar in llguidance's variant of Lark, and return it as llguidance writes grammars."""
    return _validate(_import("llguidance").LLMatcher.grammar_from_lark(grammar))


def read_gbnf(grammar: str) -> str:
    """Translate a grammar from the GBNF of llama.cpp; return it as llguidance writes grammars."""
    to_lark = _import("llguidance.gbnf_to_lark").gbnf_to_lark
    try:
        lark = to_lark(grammar)
    except Exception as error:  # the translation fails with many types of errors
        raise _describe_error(str(error), "llguidance") from error
    try:
        return read_lark(lark)
    except GrammarError as error:
        raise GrammarError(str(error)) from error  # without the line number, which is that of the translation


def fingerprint_grammar(grammar: str) -> str:
    return hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def compile_llguidance(
    grammar: str, tokenizer: PreTrainedTokenizerBase, *, end_tokens: Sequence[int] | None = None
) -> CompiledGrammar:
    """Compile a grammar that `read_json_schema`, `read_lark` or `read_gbnf` returned."""
    vocabulary = _read_vocabulary(tokenizer, len(tokenizer), end_tokens and tuple(end_tokens))
    matcher = _import("llguidance").LLMatcher(vocabulary, grammar, log_level=0)  # by default, it prints errors
    if refusal := matcher.get_error():
        raise _describe_error(refusal, "llguidance")
    makers = [partial(LLGuidanceMatcher, matcher, _list_byte_tokens(vocabulary))]
    return CompiledGrammar(makers, vocab_size=vocabulary.vocab_size)


def _list_byte_tokens(vocabulary: Any) -> list[int]:
    """Return for each byte the token that writes this byte alone; -1 for a byte without such a token."""
    spelled = [(bytes([byte]), vocabulary.tokenize_bytes(bytes([byte]))) for byte in range(256)]
    return [tokens[0] if vocabulary.decode_bytes(tokens[:1]) == byte else -1 for byte, tokens in spelled]


@lru_cache(maxsize=2)
def _read_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    count: int,  # noqa: ARG001
    end_tokens: Sequence[int] | None,
) -> Any:
    """Return a tokenizer's vocabulary for llguidance; takes a second, or 4 seconds with a vocabulary of 262,144.

    count: number of tokens now; if tokens were added, it differs, so that the cached result is not used.
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
    # An engine's message may begin with a time and a line of the engine's source.
    said = re.sub(r"^\[[\d:]+\] \S+: (Check failed: .*?: )?", "", error.strip())
    location = re.match(r"(\d+)\(\d+\): ", said) or re.search(r"\bline (\d+)\b", said)
    if location and location.start() == 0:
        said = said[location.end() :]
    reason = re.sub(r" at line \d+, .*", "", first_line(said))
    if "oneOf" in reason:  # the engine's advice names an option that our callers don't have
        reason = "a value may fit two schemas of a 'oneOf': write 'anyOf' if none does, or if that is no harm"
    return GrammarError(f"{engine} can't compile it: {reason}", line=int(location[1]) if location else None)


def _read_release(package: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version(package))[:3])


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        engine = name.partition(".")[0]
        extra = {"llguidance": "grammar"}.get(engine, engine)
        raise InputError(f"{engine} can't be imported ({error}): pip install '{DISTRIBUTION}[{extra}]'") from error


# -- other libraries' processors ---------------------------------------------------------------------------------------


def can_adapt(processor: object) -> bool:
    """Return whether `find_grammar` knows the class of a processor; a subclass, with more state, is not known."""
    return _name_of(processor) in _FIND


def find_grammar(processor: Any) -> CompiledGrammar:
    """Return the grammar of a processor, compiled grammar or matcher that another library made."""
    name = _name_of(processor)
    if name == "outlines.backends.outlines_core.OutlinesCoreLogitsProcessor":
        raise InputError(
            "outlines_core's guide can't be rewound without limit: choose the backend llguidance or xgrammar of "
            "outlines, or antislop.steer.Grammar.from_json_schema"
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


def _from_llguidance(matcher: Any, vocabulary: Any = None) -> CompiledGrammar:
    if error := matcher.get_error():
        raise InputError(f"llguidance can't use this grammar: {first_line(error)}")
    vocab_size = len(matcher.deep_copy().compute_logit_bias())  # a byte for each token
    byte_tokens = None if vocabulary is None else _list_byte_tokens(vocabulary)  # a matcher doesn't tell them
    return CompiledGrammar([partial(LLGuidanceMatcher, matcher, byte_tokens)], vocab_size=vocab_size)


def _from_xgrammar_processor(processor: Any) -> CompiledGrammar:
    grammars = list(processor.compiled_grammars)  # a called processor has repeated a single grammar for each row
    return _from_xgrammar(*(grammars if any(grammar is not grammars[0] for grammar in grammars) else grammars[:1]))


_FIND: dict[str, Callable[[Any], CompiledGrammar]] = {
    "xgrammar.contrib.hf.LogitsProcessor": _from_xgrammar_processor,
    "xgrammar.compiler.CompiledGrammar": _from_xgrammar,
    "builtins.LLMatcher": _from_llguidance,
    "outlines.backends.xgrammar.XGrammarLogitsProcessor": lambda processor: _from_xgrammar(processor.compiled_grammar),
    "outlines.backends.llguidance.LLGuidanceLogitsProcessor": lambda processor: _from_llguidance(
        _import("llguidance").LLMatcher(processor.llg_tokenizer, processor.grammar), processor.llg_tokenizer
    ),
}
