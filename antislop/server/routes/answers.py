"""The shapes of answers: OpenAI's completions and chats, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Protocol
from uuid import uuid4

from antislop.server.chunk_maker import FinishReason, SettledToken, TextChunk, WithdrawnText
from antislop.trace.report import Report

LOWEST_LOGPROB = -9999.0
"""In the place of minus infinity, which JSON does not have."""

TokenBytes = Callable[[int], bytes]


def make_id(prefix: str) -> str:
    """Return the name of an answer."""
    return f"{prefix}-{uuid4().hex}"


class AnswerFormat(Protocol):
    """The differences between the answers of two routes."""

    whole: str
    part: str
    prefix: str

    def begin(self) -> dict[str, Any] | None:
        """Return the first chunk's choice; None for no such chunk."""

    def write_part(self, chunk: TextChunk, logprobs: Any) -> dict[str, Any]:
        """Return a chunk's choice, without its number and its reason."""

    def write_whole(self, text: str, logprobs: Any) -> dict[str, Any]:
        """Return a whole choice, without its number and its reason."""

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]:
        """Return the log-probabilities of tokens."""


class CompletionFormat:
    """The shapes of /v1/completions."""

    whole = part = "text_completion"
    prefix = "cmpl"

    def begin(self) -> dict[str, Any] | None:
        """Return no first chunk."""
        return None

    def write_part(self, chunk: TextChunk, logprobs: Any) -> dict[str, Any]:
        """Return a chunk's choice."""
        return {"text": chunk.text, "logprobs": logprobs}

    def write_whole(self, text: str, logprobs: Any) -> dict[str, Any]:
        """Return a whole choice."""
        return {"text": text, "logprobs": logprobs}

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]:
        """Return parallel lists."""
        return {
            "tokens": [write_token(read(token.token)) for token in tokens],
            "token_logprobs": [None if token.choice is None else write_logprob(token) for token in tokens],
            "top_logprobs": [None if token.choice is None else _list_likeliest(token, read) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }


class ChatFormat:
    """The shapes of /v1/chat/completions."""

    whole, part = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    def begin(self) -> dict[str, Any] | None:
        """Return the role."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def write_part(self, chunk: TextChunk, logprobs: Any) -> dict[str, Any]:
        """Return a chunk's choice."""
        return {"delta": {"content": chunk.text} if chunk.text else {}, "logprobs": logprobs}

    def write_whole(self, text: str, logprobs: Any) -> dict[str, Any]:
        """Return a whole choice."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}, "logprobs": logprobs}

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]:
        """Return an entry for each token."""

        def describe(token: int, logprob: float) -> dict[str, Any]:
            data = read(token)
            return {"token": write_token(data), "logprob": logprob, "bytes": list(data)}

        content = [
            {
                **describe(token.token, write_logprob(token)),
                "top_logprobs": [describe(other, _log(share)) for other, share in list_alternatives(token)],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def write_token(data: bytes) -> str:
    r"""Return the text of a token; bytes that are no whole character are written as OpenAI writes them.

    >>> write_token(b"\xc3")
    'bytes:\\xc3'
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def write_logprob(token: SettledToken) -> float:
    """Return the logarithm of a token's share of what it was drawn from."""
    return LOWEST_LOGPROB if token.choice is None else _log(token.choice.share)


def list_alternatives(token: SettledToken) -> list[tuple[int, float]]:
    """Return the likeliest tokens with their shares, the likeliest first."""
    return [] if token.choice is None else list(token.choice.alternatives)


def _list_likeliest(token: SettledToken, read: TokenBytes) -> dict[str, float]:
    """Return the log-probabilities of the likeliest tokens and of the token itself, by their texts."""
    likeliest: dict[str, float] = {}
    for other, share in list_alternatives(token):
        likeliest.setdefault(write_token(read(other)), _log(share))
    likeliest.setdefault(write_token(read(token.token)), write_logprob(token))
    return likeliest


def _log(share: float) -> float:
    return max(LOWEST_LOGPROB, log(share)) if share > 0 else LOWEST_LOGPROB


@dataclass
class CollectedText:
    """A text as a whole."""

    text: str = ""
    tokens: list[SettledToken] = field(default_factory=list)
    withdrawn: list[WithdrawnText] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, chunk: TextChunk) -> None:
        """Add the next chunk."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.withdrawn += chunk.withdrawn
        self.finish_reason = chunk.finish_reason


@dataclass(frozen=True)
class AnswerWriter:
    """Write the answer to one request.

    read: the bytes of a token. has_logprobs, has_trace: whether the request asked for them.
    """

    format: AnswerFormat
    model: str
    read: TokenBytes
    has_logprobs: bool
    has_trace: bool
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def write_whole(self, texts: Sequence[CollectedText], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        choices = []
        for number, text in enumerate(texts):
            choice = self.format.write_whole(text.text, self._write_logprobs(text.tokens))
            choice |= {"index": number, "finish_reason": text.finish_reason}
            choices.append(choice | (self._write_trace(text.withdrawn) if self.has_trace else {}))
        return {**self._head(self.format.whole), "choices": choices, "usage": usage}

    def write_first(self, number: int) -> dict[str, Any] | None:
        """Return the chunk that begins a text, if the format has one."""
        choice = self.format.begin()
        return None if choice is None else self._write_chunk(choice, number, None)

    def write_part(self, number: int, chunk: TextChunk) -> dict[str, Any]:
        """Return a chunk of the text of that number."""
        logprobs = self._write_logprobs(chunk.tokens) if chunk.tokens else None
        choice = self.format.write_part(chunk, logprobs)
        if self.has_trace and chunk.withdrawn:
            choice |= self._write_trace(chunk.withdrawn)
        return self._write_chunk(choice, number, chunk.finish_reason)

    def write_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk that says what was used."""
        return {**self._head(self.format.part), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _write_chunk(self, choice: dict[str, Any], number: int, reason: FinishReason | None) -> dict[str, Any]:
        return {**self._head(self.format.part), "choices": [{**choice, "index": number, "finish_reason": reason}]}

    def _write_logprobs(self, tokens: Sequence[SettledToken]) -> dict[str, Any] | None:
        return self.format.write_logprobs(tokens, self.read) if self.has_logprobs else None

    def _write_trace(self, withdrawn: Iterable[WithdrawnText]) -> dict[str, Any]:
        return {"antislop": {"withdrawn": [text.to_dict() for text in withdrawn]}}


def write_usage(prompt: int, kept: int, reports: Iterable[Report]) -> dict[str, Any]:
    """Return the usage of an answer. prompt, kept: numbers of tokens."""
    total = Report.total(list(reports))
    counts = {name: getattr(total, name) for name in ("violations", "withdrawn_tokens", "rewinds", "conceded")}
    dropped = {"dropped_regexes": len(total.dropped)} if total.dropped else {}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": kept,
        "total_tokens": prompt + kept,
        "antislop": counts | dropped,
    }
