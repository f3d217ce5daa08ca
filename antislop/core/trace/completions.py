"""Completions of many prompts, and checks of what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import TypeVar

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.trace.report import Report
from antislop.errors import InputError
from antislop.files.chats import is_chat

BATCH_SIZE = 16
"""Texts that are written at a time by default."""
T = TypeVar("T")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Completion:
    """A finished text.

    number: index of its prompt among the prompts.
    text: what follows the prompt's text, with the space between both if there is one.
    tokens: ids without the prompt's.
    error: why the text could not be written to its end.
    """

    number: int
    text: str
    tokens: list[int]
    report: Report
    error: Exception | None = field(default=None, kw_only=True)

    @property
    def conceded(self) -> int:
        """Bans that the text contains because nothing else was left to write."""
        return self.report.conceded


def check_many(prompts: object, *, bans: object, batch_size: object, seed: object, seeds: object) -> None:
    """Raise `InputError` for arguments of `generate_many` that can't be used, one prompt for several among them."""
    if isinstance(prompts, (str, bytes)):
        raise InputError(f"prompts is {prompts[:40]!r}, one text, and each letter would be a prompt: write [text]")
    if is_chat(prompts):
        raise InputError("prompts is one chat, and each message would be a prompt: write [messages]")
    if isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
        raise InputError(f"prompts is a {type(prompts).__name__}: pass a list of texts, of ids or of chats")
    if isinstance(bans, (str, Ban, BanList, Mapping)) or not isinstance(bans, Iterable | NoneType):
        raise InputError(
            f"bans is a {type(bans).__name__}: pass a list of bans for each prompt, bans=[list, list, …], or one list "
            "for all texts to AntiSlop"
        )
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}; a whole number, at least 1, is expected")
    if isinstance(seeds, str) or not isinstance(seeds, Iterable | NoneType):
        raise InputError(f"seeds is {seeds!r}: pass a whole number for each prompt, or a single one as seed")
    if seed is not None and seeds is not None:
        raise InputError("both seed and seeds are given: pass one seed for all prompts, or one for each")


def pair(prompts: Iterable[T], values: Iterable[Value], *, name: str) -> Iterator[tuple[T, Value]]:
    """Yield each prompt with its value, which is read after it. Raises `InputError` if values are missing."""
    rest = iter(values)
    for prompt in prompts:
        try:
            value = next(rest)
        except StopIteration:
            instead = "a single seed" if name == "seeds" else "leave them out"
            raise InputError(f"there are fewer {name} than prompts: pass one for each prompt, or {instead}") from None
        yield prompt, value
