"""Make characters of the bytes that tokens add, as the decoders of tokenizers do.

The bytes of most vocabularies are one stream of UTF-8. Those of byte fallback are not: a run of tokens that are a byte
each is text only where the whole run is valid; otherwise each of its bytes becomes U+FFFD. So a run is open until a
token of another kind follows.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple, Protocol

REPLACEMENT = "\ufffd"


class Surfaces(Protocol):
    """The bytes of tokens, as in `Vocabulary`. byte_tokens: those of byte fallback, empty for other vocabularies."""

    @property
    def byte_tokens(self) -> frozenset[int]: ...
    def surface(self, token_id: int, /) -> bytes: ...


class Pending(NamedTuple):
    """Bytes that are not characters yet. ages: for each, how many tokens ago it came, 1 being the latest token."""

    data: bytes = b""
    ages: tuple[int, ...] = ()


NOTHING = Pending()


class Completed(NamedTuple):
    """What one token completes. begun: of the characters that earlier tokens began, how many tokens before this one."""

    text: str
    begun: tuple[int, ...]
    pending: Pending


def complete(surfaces: Surfaces, token_id: int, pending: Pending = NOTHING) -> Completed:
    r"""Return the characters that a token completes after bytes that were pending.

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
    """Return the characters of pending bytes where the text ends, or is cut by a special token."""
    if not surfaces.byte_tokens:
        return _complete_utf8(pending, b"", final=True)
    try:
        begins = [age for byte, age in zip(pending.data, pending.ages, strict=True) if byte & 0xC0 != 0x80]
        return Completed(pending.data.decode(), tuple(begins), NOTHING)
    except UnicodeDecodeError:
        return Completed(REPLACEMENT * len(pending.data), pending.ages, NOTHING)


def decode(surfaces: Surfaces, token_ids: Iterable[int]) -> str:
    """Return the text of tokens, special ones left out, as `decode(…, skip_special_tokens=True)` of a tokenizer does.

    But for the space that some decoders remove from the very beginning.
    """
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
