"""The vocabulary of a tokenizer: for each token its surface, which is the bytes that the token adds to a text.

The surfaces of a text's tokens, joined and decoded as UTF-8, are the text; some decoders remove a first space.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.core.bans.characters import decode
from antislop.core.hf.refusals import refusal
from antislop.core.trace.events import Event
from antislop.core.trace.text_pieces import stream_text

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of all tokens of a tokenizer.

    surfaces: for each token id, the bytes that it adds to a text; b"" for special tokens.
    breaks: the names of special tokens, such as "<think>", by id; a special token separates words.
    drops_space: whether the decoder removes a space at the start of a text (SentencePiece, WordPiece).
    byte_tokens: the ids of byte-fallback tokens; a run of them is text if valid UTF-8, else U+FFFD for each byte.
    count: the size of the tokenizer. names: the bytes of special tokens in a text that shows them.
    """

    surfaces: Sequence[bytes]
    breaks: Mapping[int, str]
    drops_space: bool = False
    byte_tokens: frozenset[int] = frozenset()
    count: int = 0
    names: Mapping[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        """Return the vocabulary of a tokenizer that is backed by the `tokenizers` library.

        Raises `InputError` unless it is a byte-level BPE, SentencePiece (BPE or Unigram) or WordPiece tokenizer.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise refusal("slow tokenizer", kind=type(tokenizer).__name__)
        # Only the decoder is serialized: a whole tokenizer of 262,144 tokens is 33 MB of JSON.
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
        parts: list[dict[str, Any]] = decoder.get("decoders", [decoder])
        to_bytes = _choose_reader(backend, parts, type(tokenizer).__name__)
        tokens: dict[str, int] = tokenizer.get_vocab()
        special = {i for i, added in tokenizer.added_tokens_decoder.items() if added.special}
        special |= set(tokenizer.all_special_ids)
        surfaces = [b""] * (max(tokens.values()) + 1)
        for token, token_id in tokens.items():
            if token_id not in special:
                surfaces[token_id] = to_bytes(token)
        breaks = {token_id: token for token, token_id in tokens.items() if token_id in special}
        has_fallback = any(part.get("type") == "ByteFallback" for part in parts)
        byte_tokens = {i for token, i in tokens.items() if has_fallback and i not in special and _BYTE.fullmatch(token)}
        names = {token_id: to_bytes(token) for token_id, token in breaks.items()}
        return cls(surfaces, breaks, any(map(_drops_space, parts)), frozenset(byte_tokens), len(tokenizer), names)

    def refuse_changes(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise `InputError` if tokens were added to the tokenizer after this vocabulary was read from it."""
        count = len(tokenizer)
        if count == self.count and self.breaks.keys() >= set(tokenizer.all_special_ids):
            return
        what = f"has {count:,} tokens and had {self.count:,}" if count != self.count else "has more special tokens than"
        raise refusal("changed tokenizer", what=what)

    def join(self, token_ids: Iterable[int]) -> bytes:
        """Return the joined bytes of the tokens; special tokens add none."""
        return b"".join(map(self.surface, token_ids))

    def surface(self, token_id: int) -> bytes:
        """Return the bytes of one token; b"" for a special token and for an id beyond the vocabulary."""
        return self.surfaces[token_id] if token_id < len(self.surfaces) else b""

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token, or of a special token's name; for an unknown id 0xFF, which is in no text."""
        return self.surface(token_id) or self.names.get(token_id, b"\xff")

    def decode(self, token_ids: Iterable[int], *, after: Sequence[int] = ()) -> str:
        """Return the text of tokens that follow the prompt tokens `after`, so that prompt + text is the whole text.

        With `drops_space`, `tokenizer.decode` of these tokens alone would lose the space between prompt and text. Bytes
        that form no character become U+FFFD.
        """
        text = decode(self, token_ids)
        return text.removeprefix(" ") if self.drops_space_after(after) else text

    def stream(self, events: Iterable[Event], *, after: Sequence[int]) -> Iterator[str]:
        """Yield the text that follows the prompt tokens `after`, in pieces, as events settle its tokens."""
        return stream_text(events, self, drops_space=self.drops_space_after(after))

    def drops_space_after(self, prompt: Sequence[int]) -> bool:
        """Return whether the first space of a text after these prompt tokens is dropped, as at the start of a text."""
        return self.drops_space and (not prompt or prompt[-1] in self.breaks)

    def encode_after(self, tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
        """Return the tokens of a text that follows other text without a space; [] if they don't spell it exactly."""
        anchor, ids = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (".", "." + text))
        tokens: list[int] = ids[len(anchor) :]
        is_clean = ids[: len(anchor)] == anchor and self.join(tokens) == text.encode()
        return tokens if is_clean else []


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    tokens = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(tokens.encode()).hexdigest()[:16]


def _drops_space(part: dict[str, Any]) -> bool:
    if part.get("type") == "Metaspace":
        return bool(part.get("prepend_scheme", "always") != "never")
    return part.get("type") == "WordPiece" or (part.get("content"), bool(part.get("start"))) == (" ", True)


def _choose_reader(backend: Any, parts: list[dict[str, Any]], tokenizer: str) -> Callable[[str], bytes]:
    kinds = {part.get("type") for part in parts}
    if kinds == {"ByteLevel"}:
        return _read_byte_level
    if kinds == {"WordPiece"}:
        # The decoder decides whether a token is joined to the previous token or follows a space.
        return lambda token: str(backend.decoder.decode(["a", token]))[1:].encode()
    spaces = {part["replacement"] for part in parts if part.get("type") == "Metaspace"}
    replaced = [part for part in parts if part.get("type") == "Replace"]
    spaces |= {part["pattern"].get("String") if part["content"] == " " else None for part in replaced}
    space, *others = spaces or {None}
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and space is not None and not others:
        return partial(_read_sentence_piece, space, "ByteFallback" in kinds)
    raise refusal("unknown decoder", kind=tokenizer, parts=", ".join(sorted(map(str, kinds))))


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_MOVED = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_MOVED)}
"""The alphabet of byte-level BPE: a printable Latin-1 byte is its own character, others are characters from 256."""


def _read_byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_CHAR.__getitem__, token))
    except KeyError:  # an added token, which is in the vocabulary as it is written
        return token.encode()


def _read_sentence_piece(space: str, has_byte_fallback: bool, token: str) -> bytes:
    if has_byte_fallback and (byte := _BYTE.fullmatch(token)):
        return bytes([int(byte[1], 16)])
    return token.replace(space, " ").encode()
