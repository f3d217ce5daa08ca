"""Decode the bytes of tokens into characters, as the decoders of tokenizers do.

In most vocabularies, the bytes of all tokens form one stream of UTF-8. With byte fallback, a run of single-byte tokens
ends where another token follows: if the whole run is valid UTF-8, it is text; otherwise each byte becomes U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

REPLACEMENT = "\ufffd"


class Surfaces(Protocol):
    """The bytes of tokens, as in `Vocabulary`. byte_tokens: those of byte fallback. breaks: special tokens' texts."""

    @property
    def byte_tokens(self) -> frozenset[int]: ...
    @property
    def breaks(self) -> Mapping[int, str]: ...
    def surface(self, token_id: int, /) -> bytes: ...


class Pending(NamedTuple):
    """The bytes of an incomplete character. ages: for each byte, how many tokens ago it was added; 1: by the latest."""

    data: bytes = b""
    ages: tuple[int, ...] = ()


NOTHING = Pending()


class Completed(NamedTuple):
    """The characters that one token completes.

    begun: for each character that an earlier token began, how many tokens earlier that was.
    """

    text: str
    begun: tuple[int, ...]
    pending: Pending


def complete(surfaces: Surfaces, token_id: int, pending: Pending = NOTHING) -> Completed:
    r"""Decode one more token; `pending` are the bytes that earlier tokens left incomplete.

    >>> class Bytes:
    ...     byte_tokens = frozenset(range(256))
    ...     def surface(self, token_id):
    ...         return bytes([token_id]) if token_id < 256 else b"cat"
    >>> open_ = complete(Bytes(), 0xA9, complete(Bytes(), 0xC3).pending)
    >>> open_
    Completed(text='', begun=(), pending=Pending(data=b'\xc3\xa9', ages=(2, 1)))
    >>> complete(Bytes(), 256, open_.pending)
    Completed(text='écat', begun=(2,), pending=Pending(data=b'', ages=()))
    """
    surface = surfaces.surface(token_id)
    if not pending.data and token_id not in surfaces.byte_tokens:
        try:
            return Completed(surface.decode(), (), NOTHING)
        except UnicodeDecodeError:
            pass  # a character continues in the next token, or never
    if not surfaces.byte_tokens:
        return _complete_utf8(pending, surface, final=False)
    if not surface or token_id in surfaces.byte_tokens:
        return Completed("", (), _append(pending, surface))
    text, begun, _ = finish(surfaces, pending)
    return Completed(text + surface.decode(errors="replace"), begun, NOTHING)


def finish(surfaces: Surfaces, pending: Pending) -> Completed:
    """Decode the pending bytes at the end of a text, or before a special token."""
    if not surfaces.byte_tokens:
        return _complete_utf8(pending, b"", final=True)
    try:
        begins = [age for byte, age in zip(pending.data, pending.ages, strict=True) if byte & 0xC0 != 0x80]
        return Completed(pending.data.decode(), tuple(begins), NOTHING)
    except UnicodeDecodeError:
        return Completed(REPLACEMENT * len(pending.data), pending.ages, NOTHING)


def decode(surfaces: Surfaces, token_ids: Iterable[int]) -> str:
    """Return the text of tokens as a tokenizer's `decode(…, skip_special_tokens=True)` does, but keep a first space."""
    pieces, pending = [], NOTHING
    for token_id in token_ids:
        text, _, pending = complete(surfaces, token_id, pending)
        pieces.append(text)
    return "".join((*pieces, finish(surfaces, pending).text))


def _complete_utf8(pending: Pending, surface: bytes, *, final: bool) -> Completed:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.setstate((pending.data, 0))
    text, rest = decoder.decode(surface, final=final), decoder.getstate()[0]
    if not text:
        return Completed("", (), _append(pending, surface))
    return Completed(text, pending.ages[:1], Pending(rest, (1,) * len(rest)))  # one character at most was pending


def _append(pending: Pending, surface: bytes) -> Pending:
    ages = (*(age + 1 for age in pending.ages), *(1 for _ in surface))
    return Pending(pending.data + surface, ages)
