"""Read the prompts of new texts: several in one forward pass, long ones in parts, a shared beginning once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from antislop.core.loop.protocols import LanguageModel, RewindableCache, SharingCache, count_shared, fill_left
from antislop.core.loop.row import Row

PART = 512
"""Tokens of prompts that are read between two steps of other texts, as in Sarathi-Serve (arXiv 2403.02310)."""
SHORTEST_SHARED = 16
"""Tokens that a beginning needs to be copied: reading fewer costs no more."""
MOST_PADDING = 32
"""Tokens of padding that cost no more than another forward pass; a pass may have an eighth of its own, if more."""


class PromptPass(NamedTuple):
    """One forward pass over prompts.

    fed: tokens that each row read.
    is_read: of each row, whether its whole prompt is read now.
    """

    fed: Sequence[int]
    is_read: Sequence[bool]


class _Prompt:
    """A prompt, and how much of it is in a row of a cache.

    donor: the place in the batch of a row that begins with the prompt's first `read` tokens, if there is one.
    """

    def __init__(self, row: Row, tokens: list[int]) -> None:
        self.row = row
        self.tokens = tokens
        self.donor = 0
        self.read = 0

    @property
    def unread(self) -> int:
        return len(self.tokens) - self.read


class ReadPrompt(NamedTuple):
    """Where a prompt was read. logits: [1, vocab], after its last token."""

    cache: RewindableCache
    row: int
    tokens: list[int]
    logits: Tensor


class PromptReader:
    """Prompts that are being read, in caches of their own.

    part: maximum tokens of a pass over several prompts, and of one beside which other texts are written.
    read: prompts that are read, until the batch takes them.
    """

    def __init__(self, model: LanguageModel, *, part: int = PART) -> None:
        self._model = model
        self._part = part
        self._group: list[_Prompt] = []  # read together
        self._cache: RewindableCache | None = None  # of the group
        self._tokens: WeakKeyDictionary[Row, list[int]] = WeakKeyDictionary()  # of the rows that wait
        self.read: dict[Row, ReadPrompt] = {}

    def run(
        self, rows: Sequence[Row], *, in_parts: bool, texts: Sequence[Sequence[int]], batch: RewindableCache
    ) -> PromptPass:
        """Read the first row's prompt, or a part of it, and the prompts that fit beside it.

        texts: the tokens that each row of `batch` holds.
        """
        if not any(prompt.row is row for prompt in self._group for row in rows):
            self._begin(rows, texts=texts, batch=batch)
        cache, group = self._cache, self._group
        assert cache is not None
        in_parts = in_parts and isinstance(cache, SharingCache) and cache.can_share
        stop = self._part if in_parts else max(prompt.unread for prompt in group)
        queries = [prompt.tokens[prompt.read : prompt.read + stop] for prompt in group]
        logits = self._model.forward(fill_left(queries), cache)
        for number, (prompt, query) in enumerate(zip(group, queries, strict=True)):
            prompt.read += len(query)
            if not prompt.unread:
                self.read[prompt.row] = ReadPrompt(
                    cache, number, prompt.tokens, copy_logits(logits[number, -1:], like=prompt.row)
                )
        if not any(prompt.unread for prompt in group):
            self._group, self._cache = [], None
        fed = {prompt.row: len(query) for prompt, query in zip(group, queries, strict=True)}
        return PromptPass([fed.get(row, 0) for row in rows], [row in self.read for row in rows])

    def _begin(self, rows: Sequence[Row], *, texts: Sequence[Sequence[int]], batch: RewindableCache) -> None:
        if isinstance(batch, SharingCache) and batch.can_share:
            prompts = [_Prompt(row, self._tokens_of(row)) for row in rows]
            for prompt in prompts:  # find the place whose row has most of its tokens
                for place, text in enumerate(texts):  # the last token must be read, for the logits after it
                    shared = min(count_shared(text, prompt.tokens), len(prompt.tokens) - 1)
                    if shared >= SHORTEST_SHARED and (copied := batch.copyable(place, shared)) > prompt.read:
                        prompt.donor, prompt.read = place, copied
            self._group = list(_gather(prompts, limit=self._part))
        else:
            self._group = [_Prompt(rows[0], self._tokens_of(rows[0]))]
        self._cache = cache = self._model.new_cache(len(self._group))
        for number, prompt in enumerate(self._group):
            if prompt.read and isinstance(cache, SharingCache):
                cache.copy(number, batch, source=prompt.donor, length=prompt.read)
            cache.settle(number, len(prompt.tokens))
        if isinstance(cache, SharingCache):
            cache.reads_prompts = True

    def _tokens_of(self, row: Row) -> list[int]:
        if row not in self._tokens:  # a device is asked once
            self._tokens[row] = row.ids_up_to(0)[0].tolist()
        return self._tokens[row]


def copy_logits(logits: Tensor, *, like: Row) -> Tensor:
    # A slice would keep the logits of a whole prompt in memory. As in `generate`, tokens are drawn where the ids are.
    return logits.to(device=like.spec.prompt.device, dtype=torch.float32, copy=True)


def _gather(prompts: Sequence[_Prompt], *, limit: int) -> Iterator[_Prompt]:
    """Yield the first prompt, and those that are read beside it in one pass of up to `limit` tokens.

    A prompt that shares its beginning with one of these waits, and then copies it.
    """
    first, group = prompts[0], [prompts[0]]
    yield first
    for prompt in sorted(prompts[1:], key=lambda prompt: abs(prompt.unread - first.unread)):
        lengths = [other.unread for other in (*group, prompt)]
        size = len(lengths) * max(lengths)
        if size > limit or size - sum(lengths) > max(MOST_PADDING, size // 8):
            continue
        shared = max(count_shared(other.tokens, prompt.tokens) for other in group)
        if shared < prompt.read + SHORTEST_SHARED:
            group.append(prompt)
            yield prompt
