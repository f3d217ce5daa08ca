"""The tokens that bans and the user's grammar allow in a request, in the form in which vLLM asks a grammar for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from antislop.engines.vllm.engine_text import EngineText

WORD = 32
"""Tokens in one number of a mask."""


class TextGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # mypy does not see vLLM
    """Allows what a text's bans and its user's grammar allow.

    vLLM has drafts read here, too, and rolls them back. No draft is cut before a ban that it would complete: whether a
    drafted token is verified must not depend on which token it is, or drafts would change the distribution of texts.

    own: the grammar that the user asked for.
    forced: tokens that are the only ones the user's grammar allows, by the length of the text before them.
    draws_next: whether the step for which vLLM asks a mask draws the next token of the text as it is now.
    """

    def __init__(self, text: EngineText, own: StructuredOutputGrammar | None = None) -> None:
        self._text = text
        self.own = own
        self.draws_next = False
        self.forced: dict[int, int] = {}
        self._accepted = 0  # tokens that the user's grammar has accepted
        self._begin = 0  # the length of the text before the first accepted token
        self._read = 0  # tokens of the text that `follow` has read
        self._ahead = 0  # drafted tokens behind the text

    def follow(self, request: Any, manager: Any) -> bool:
        """Have the user's grammar read new tokens, or roll back withdrawn ones; return whether it allows the text.

        manager: vLLM's structured output manager, which knows where thoughts end, to which no grammar applies.
        """
        tokens, wanted = self._text.row.tokens, request.structured_output_request
        read, self._read = self._read, len(tokens)
        if self.own is None or read == len(tokens):
            return True
        if read > len(tokens):
            count = self._accepted - max(0, len(tokens) - self._begin)
            if count > 0:
                self.rollback(count)
            if wanted.reasoner is not None and wanted.reasoning_ended:
                wanted.reasoning_ended = wanted.reasoner.is_reasoning_end(request.all_token_ids)
            is_allowed = True
        else:
            is_allowed = manager.accept_tokens(request, tokens[read:])
        self._ahead = 0
        return is_allowed

    def look_ahead(self, length: int) -> Any:
        """Return the user's grammar after the text's first `length` tokens; None if it begins later in the text."""
        back = self._accepted - (length - self._begin)
        if self.own is None or not back <= self._accepted > 0:
            return None
        ahead = self.own.matcher.fork()  # of xgrammar: other grammars are refused
        ahead.rollback(back)
        return ahead

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        if self._accepted == 0:
            self._begin = len(self._text.row.tokens) - len(tokens)
        for token in tokens:
            if self.own is not None and not self.own.is_terminated():
                if not self.own.accept_tokens(request_id, [token]):
                    return False
                self._accepted += 1
            self._ahead += 1
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens if self.own is None else self.own.validate_tokens(tokens)

    def rollback(self, num_tokens: int) -> None:
        if self.own is not None:
            self.own.rollback(num_tokens)
            self._accepted -= num_tokens
        self._ahead -= num_tokens

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        row = bitmask[batch_index].numpy()
        row.fill(-1)
        if self.own is not None:
            self.own.fill_bitmask(bitmask, batch_index)
            words = np.flatnonzero(row)
            bits = int(row[words[0]]) & 0xFFFFFFFF if len(words) == 1 else 0
            if bits.bit_count() == 1:  # the grammar allows a single token
                self.forced[len(self._text.row.tokens) + self._ahead] = int(words[0]) * WORD + bits.bit_length() - 1
        if self._ahead or not self.draws_next:
            return
        if choice := self._text.choose():
            is_allowed = np.full(row.size * WORD, choice.is_excluded)
            is_allowed[list(choice.tokens)] = not choice.is_excluded
            both = row & np.packbits(is_allowed, bitorder="little").view(np.int32)
            if both.any():
                row[:] = both
            else:  # due to rounding: all tokens that the grammar allows are known, but the choice leaves them out
                self._text.forgo_choice()

    def is_terminated(self) -> bool:
        return self.own is not None and bool(self.own.is_terminated())

    def reset(self) -> None:
        if self.own is not None:
            self.own.reset()
        self._accepted = self._read = self._ahead = 0
