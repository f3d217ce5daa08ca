"""Two halves of prompts, divided by a hash: one to make a list from, one to measure it on. No numpy."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b

from antislop.records.texts import Text


class Half(str, Enum):
    """One half of the prompts; no prompt is in both."""

    MADE_FROM = "made-from"
    HELD_OUT = "held-out"


def hash_prompt(text: Text) -> int:
    """Return a hash of 62 bits of a text's prompt, or of the text itself if it has no prompt."""
    mark, content = ("t", text.text) if text.prompt is None else ("p", text.prompt)
    data = (mark + content).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 2


def find_half(text: Text) -> Half:
    """Return the half of a text's prompt, or of the text itself if it has no prompt.

    >>> find_half(Text("A cat sat.", "Write about a cat.", "texts.jsonl:1", {})).value
    'held-out'
    """
    return Half.HELD_OUT if hash_prompt(text) & 1 else Half.MADE_FROM
