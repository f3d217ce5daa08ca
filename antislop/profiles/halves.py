"""Two halves of prompts, divided by a hash: one to make a list from, one to measure it on. No numpy."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from itertools import chain

from antislop.records.texts import AnyText, cut


class Half(str, Enum):
    """One half of the prompts; no prompt is in both."""

    MADE_FROM = "made-from"
    HELD_OUT = "held-out"


def hash_prompt(text: AnyText) -> int:
    """Return a hash of 62 bits of a text's prompt, or of the text itself if it has no prompt."""
    digest = blake2b(digest_size=8)
    parts = chain("t", cut(text)) if text.prompt is None else ("p", text.prompt)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "little") >> 2


def find_half(text: AnyText) -> Half:
    """Return the half of a text's prompt, or of the text itself if it has no prompt.

    >>> from antislop.records.texts import Text
    >>> find_half(Text("A cat sat.", "Write about a cat.", "texts.jsonl:1", {})).value
    'held-out'
    """
    return Half.HELD_OUT if hash_prompt(text) & 1 else Half.MADE_FROM
