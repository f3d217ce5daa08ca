"""`Grammar`: a logits processor and controller that allows only texts of a grammar, and can go back with a rewind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antislop.core.loop import Branch, Capabilities, Step, TokenSet
from antislop.errors import InputError
from antislop.steer.grammar import compilation
from antislop.steer.grammar.compilation import CompiledGrammar, compile_llguidance, compile_xgrammar
from antislop.steer.grammar.schema import GrammarEngine

AnyGrammar = TypeVar("AnyGrammar", bound="Grammar")


class Grammar:
    """Mask all tokens that a grammar does not allow; an `antislop.Rewindable` and `antislop.core.loop.Controller`.

    processor: a logits processor of xgrammar (`xgrammar.contrib.hf.LogitsProcessor`) or of outlines with the backend
        xgrammar or llguidance, a `CompiledGrammar` of xgrammar, or an `LLMatcher` of llguidance. It is not changed.

    The grammar is for the generated text, without the prompt; after a text that can't continue, only end tokens are
    allowed. One `Grammar` serves any number of calls and texts of `AntiSlop`. In a plain `generate`, each new prompt
    starts the grammar anew. The masked scores equal those of `processor`, to the bit.

    As a `controller`, it also forces the tokens of text that is certain to follow, such as keys of an object: together,
    these cost one forward pass. With xgrammar, only tokens without an alternative are forced.

    Raises `InputError` for a processor whose grammar can't be found, and for a text with a token that is not allowed.
    """

    def __init__(self, processor: Any) -> None:
        is_compiled = isinstance(processor, CompiledGrammar)
        self._grammar: CompiledGrammar = processor if is_compiled else compilation.find_grammar(processor)
        self._rows: list[_Row] = []
        self._prompt: Tensor | None = None
        self._bitmask = torch.empty(0, dtype=torch.int32)
        self._shown = 0  # generated tokens that were read

    @classmethod
    def from_json_schema(
        cls,
        schema: str | dict[str, Any],
        tokenizer: PreTrainedTokenizerBase,
        *,
        engine: GrammarEngine = "llguidance",
        any_whitespace: bool = False,
        end_tokens: Sequence[int] | None = None,
    ) -> Grammar:
        """Return the grammar of all JSON values that a schema allows.

        any_whitespace: allow spaces and line breaks between values, rather than only those of `json.dumps`.
        end_tokens: tokens that end the model's texts (default: the tokenizer's end token).

        Raises `InputError` for a schema that the engine can't compile, and if the engine is not installed.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if compilation.check_engine(engine) == "llguidance":
            grammar = compilation.read_json_schema(text, any_whitespace=any_whitespace)
            return cls(compile_llguidance(grammar, tokenizer, end_tokens=end_tokens))
        fitted = compilation.read_for_xgrammar(text)
        return cls(
            compile_xgrammar(
                lambda compiler: compiler.compile_json_schema(fitted, any_whitespace=any_whitespace),
                tokenizer,
                end_tokens=end_tokens,
            )
        )

    @classmethod
    def from_lark(
        cls, grammar: str, tokenizer: PreTrainedTokenizerBase, *, end_tokens: Sequence[int] | None = None
    ) -> Grammar:
        """Return the grammar that a text in llguidance's variant of Lark describes; its first rule is `start`."""
        return cls(compile_llguidance(compilation.read_lark(grammar), tokenizer, end_tokens=end_tokens))

    @classmethod
    def from_gbnf(
        cls,
        grammar: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        engine: GrammarEngine = "llguidance",
        end_tokens: Sequence[int] | None = None,
    ) -> Grammar:
        """Return the grammar that a text in the GBNF of llama.cpp describes; its first rule is `root`."""
        if compilation.check_engine(engine) == "llguidance":
            return cls(compile_llguidance(compilation.read_gbnf(grammar), tokenizer, end_tokens=end_tokens))
        return cls(
            compile_xgrammar(lambda compiler: compiler.compile_grammar(grammar), tokenizer, end_tokens=end_tokens)
        )

    def copy(self: AnyGrammar) -> AnyGrammar:
        """Return a `Grammar` for another text, with the same compiled grammar."""
        return type(self)(self._grammar)

    def follow(self) -> Grammar:
        return self.copy() if type(self) is Grammar else self  # a subclass may have more state than a copy has

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Return whether tokens are a whole text of the grammar, with or without end tokens after the text."""
        matcher = self._grammar.start(1)[0]
        for token in tokens:
            if matcher.accept(token):
                continue
            if not matcher.is_complete:
                return False
            bitmask = self._make_bitmask(1)  # after the end, end tokens may follow, which `accept` does not take
            matcher.fill(bitmask, 0)
            return bool(bitmask[0, token // 32] >> token % 32 & 1)
        return matcher.is_complete or matcher.can_end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [rows, vocab], -inf for tokens that can't follow `input_ids` [rows, tokens]."""
        if self._is_new_text(input_ids):
            self._start(input_ids)
        else:
            self._shown += 1
            for row, token in zip(self._rows, input_ids[:, -1].tolist(), strict=True):
                row.read(token, self._shown)
        for number, row in enumerate(self._rows):
            row.matcher.fill(self._bitmask, number)
        is_allowed = torch.zeros_like(scores, dtype=torch.bool)
        size = min(self._grammar.vocab_size, scores.shape[-1])  # models may have more scores than tokens, or fewer
        is_allowed[:, :size] = _unpack(self._bitmask.to(scores.device))[:, :size]
        return scores.masked_fill(~is_allowed, -torch.inf)

    def rewind(self, row: int, length: int) -> None:
        """Forget all but the first `length` generated tokens of a row of the batch."""
        self._rows[row].rewind(length)
        self._shown = min(self._shown, length)

    def look_ahead(self, row: int, tokens: Sequence[int]) -> Any:
        """Return a matcher that reads characters after `tokens` of a row; None if the engine has no such matcher."""
        return self._rows[row].look_ahead(tokens)

    @property
    def needs(self) -> Capabilities:
        return Capabilities(backtrack=0)  # a grammar removes no tokens

    def start(self, prompt: Sequence[int]) -> None:
        """Begin a new text after a prompt."""
        self._start(torch.tensor([list(prompt)]))

    def fork(self) -> Grammar:
        """Return a `Grammar` for a text that continues independently; its first step reads the text so far."""
        other = self.copy()
        if self._prompt is not None:
            other._start(self._prompt)
        return other

    def mid_process(self, step: Step) -> list[Branch]:
        """Return a branch that forces the tokens that are certain to follow, or one that masks the next token."""
        self.rewind(0, len(step.tokens) - len(step.last_append))
        row = self._rows[0]
        for token in step.tokens[self._shown :]:
            self._shown += 1
            row.read(token, self._shown)
        if step.is_done:
            return []
        if forced := row.matcher.find_forced():
            return [Branch(ff_tokens=tuple(forced))]
        row.matcher.fill(self._bitmask, 0)
        allowed = _unpack(self._bitmask)[0, : self._grammar.vocab_size].nonzero()[:, 0]
        if len(allowed) == 1:
            return [Branch(ff_tokens=(int(allowed[0]),))]
        return [Branch(sample_mask=TokenSet(allowed))]

    def _is_new_text(self, input_ids: Tensor) -> bool:
        """Return whether the ids are new prompts; False for the known texts with one more token; else raise."""
        prompt = self._prompt
        if prompt is None or input_ids.shape[0] != prompt.shape[0] or input_ids.shape[1] <= prompt.shape[1]:
            return True
        if not torch.equal(input_ids[:, : prompt.shape[1]], prompt):
            return True
        width = prompt.shape[1] + self._shown + 1
        if input_ids.shape[1] != width:
            raise InputError(
                f"the grammar was called with ids of length {input_ids.shape[1]} that begin with the same prompt, "
                f"and expected {width}: for a new text pass grammar.copy()"
            )
        return False

    def _start(self, input_ids: Tensor) -> None:
        self._rows = [_Row(matcher) for matcher in self._grammar.start(len(input_ids))]
        self._prompt = input_ids.clone()
        self._shown = 0
        self._bitmask = self._make_bitmask(len(input_ids))

    def _make_bitmask(self, rows: int) -> Tensor:
        return torch.full((rows, (self._grammar.vocab_size + 31) // 32), -1, dtype=torch.int32)


def _unpack(words: Tensor) -> Tensor:
    """Return the bits of int32 [rows, n] as bool [rows, 32 n], lowest bits first."""
    return (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device) & 1).bool().flatten(1)


def adapt_processor(processor: Any) -> Any:
    return Grammar(processor) if compilation.can_adapt(processor) else processor


@dataclass
class _Row:
    """A row of a batch, with its matcher, which has accepted all tokens of the row up to the end of the grammar."""

    matcher: compilation.GrammarMatcher
    _accepted: int = 0
    _filler: int | None = None

    def read(self, token: int, shown: int) -> None:
        """Read token number `shown`. After a token that the grammar refuses, only the same may follow, as padding."""
        if self._accepted == shown - 1:
            if self.matcher.accept(token):
                self._accepted = shown
            else:
                self._filler = token
        elif token != self._filler and not self.matcher.is_complete:
            raise InputError(
                f"the text continues with token {token} after token {self._filler}, which the grammar does not allow "
                "there: another logits processor brought it back, or the row was not rewound"
            )

    def look_ahead(self, tokens: Sequence[int]) -> Any:
        return self.matcher.look_ahead(tokens[self._accepted :], back=max(0, self._accepted - len(tokens)))

    def rewind(self, length: int) -> None:
        if length < self._accepted:
            self.matcher.rollback(self._accepted - length)
            self._accepted = length
