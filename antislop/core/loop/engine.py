"""Run a language model for the loop: one forward pass for many rows, over a cache that follows each row's rewinds.

One pass reads several prompts of new texts, or a part of a long prompt; a beginning that prompts share is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from antislop.core.loop.protocols import LanguageModel, RewindableCache, SharingCache, count_shared, fill_left
from antislop.core.loop.row import Row
from antislop.errors import CapabilityError

PART = 512
"""Tokens of prompts that are read between two steps of other texts, as in Sarathi-Serve (arXiv 2403.02310)."""
SHORTEST_SHARED = 16
"""Least tokens of a shared beginning that is copied: to read fewer tokens again costs no more than to copy them."""
MOST_PADDING = 32
"""Most padding in a pass over several prompts: more costs as much as another pass. Large passes may pad an eighth."""
SETTLE_EVERY = 8
"""Settled tokens between two calls of the cache's `settle`: a call for each token would cost more than it saves."""


class ForwardPass(NamedTuple):
    """One forward pass of a batch.

    logits: float32 [rows, positions, vocab]; the last position follows a row's last token, or its draft's.
    fed: how many tokens the model read of each row.
    cut: how many tokens were removed from each row's cache before the pass.
    dtype: the type in which the model computed the logits.
    """

    logits: Tensor
    fed: Sequence[int]
    cut: Sequence[int]
    dtype: torch.dtype = torch.float32


class PromptPass(NamedTuple):
    """One forward pass over prompts.

    fed: how many tokens the model read of each row's prompt.
    is_read: for each row, whether its whole prompt is read now.
    """

    fed: Sequence[int]
    is_read: Sequence[bool]


class Engine(Protocol):
    """All that the loop needs of a model and its cache."""

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        """Have the model read the unread tokens of each row and of its draft; finished rows are fed fillers."""

    def read(self, rows: Sequence[Row], *, in_parts: bool) -> PromptPass:
        """Read the first row's prompt and those that fit beside it; with `in_parts`, only a part of a long prompt."""

    def replace(self, rows: Sequence[Row], places: Sequence[int]) -> ForwardPass:
        """Add the new rows at `places` of `rows`, whose prompts are read; return the logits after their prompts."""

    @property
    def can_select(self) -> bool:
        """Whether `select` may be called. Without it, a pass costs as much after most rows have finished as before."""

    def select(self, places: Sequence[int]) -> None:
        """Keep only the rows at these places, in this order. A place may be listed several times: its row is copied."""


@dataclass
class HeldRow:
    """The tokens of one row that a cache holds; `cut_back` removes those that the row's text has withdrawn.

    base: the number of tokens in the cache before `fed`.
    fed: the tokens of the text, its draft included.
    prompt: the tokens before `fed`, if the row joined a running batch; otherwise empty.
    settled: the length passed to the last `settle` of the cache.
    """

    base: int = 0
    fed: list[int] = field(default_factory=list)
    prompt: Sequence[int] = ()
    settled: int = 0

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.fed] if self.prompt else []

    def cut_back(
        self, cache: RewindableCache, place: int, tokens: Sequence[int], *, settled: int, unchanged: int = 0
    ) -> int:
        """Remove from the cache the tokens that differ from a text, and its last token, which is to be read again.

        Returns the number of removed tokens.

        settled: the length of the text below which no rewind reaches.
        unchanged: a length up to which the cache is known to hold the text.
        """
        limit = max(0, min(len(self.fed), len(tokens) - 1))
        shared = min(limit, count_shared(self.fed, tokens, start=min(unchanged, limit)))
        if settled >= self.settled + SETTLE_EVERY:
            self.settled = min(settled, shared)
            cache.settle(place, self.base + self.settled)
        if shared == len(self.fed):
            return 0
        kept = max(0, cache.rewind(place, self.base + shared) - self.base)  # 0 if no earlier state is stored
        cut = len(self.fed) - kept
        del self.fed[kept:]
        return cut


class BatchEngine:
    """The engine of one model, with the rows of a batch in one cache.

    filler: the token that finished rows are fed.
    grows: whether the cache gets rows as texts come, and is replaced when all rows are new: a pass over few texts then
        costs less. The cache must be a `SharingCache`.
    part: maximum tokens of a pass over several prompts, and of a part of one long prompt.

    is_ragged: whether a row was rewound or replaced, so that finished rows are no longer fed as `generate` feeds them.
    """

    def __init__(
        self, model: LanguageModel, cache: RewindableCache, *, filler: int = 0, grows: bool = False, part: int = PART
    ) -> None:
        self._model = model
        self._cache = cache
        self._filler = filler
        self._grows = grows
        self._prompts = PromptReader(model, part=part)
        self._held: list[HeldRow] = []
        self.is_ragged = False

    @torch.no_grad()
    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        if not self._held:
            return self._prefill(rows)
        # A row that waits for others is fed fillers, which are cut off only when the row resumes: a cut moves it in
        # the cache, which changes the last bits of all logits. After a first cut, further fillers are cut off at once.
        is_even, cut = not self.is_ragged, [0] * len(rows)
        for place, (row, held) in enumerate(zip(rows, self._held, strict=False)):
            if len(held.fed) == len(row.tokens) - 1 <= row.unchanged and row.settled < held.settled + SETTLE_EVERY:
                continue  # most rows in most steps: one token was added
            if not (row.is_finished or (row.is_waiting and is_even)):
                cut[place] = self._cut_back(place, row)
        queries = [self._query(place, row) for place, row in enumerate(rows)]
        fed = [len(query) for query in queries]
        queries += [self._query_nothing(place) for place in range(len(rows), len(self._cache.lengths))]
        logits = self._model.forward(fill_left(queries), self._cache)
        return ForwardPass(copy_logits(logits[: len(rows)], like=rows[0]), fed, cut, logits.dtype)

    @torch.no_grad()
    def read(self, rows: Sequence[Row], *, in_parts: bool) -> PromptPass:
        texts = [held.text for held in self._held]
        return self._prompts.run(rows, in_parts=in_parts, texts=texts, batch=self._cache)

    @torch.no_grad()
    def replace(self, rows: Sequence[Row], places: Sequence[int]) -> ForwardPass:
        if self._grows and len(places) == len(rows):  # all are new
            self._cache, self._held = self._model.new_cache(len(rows)), []
        count = len(self._cache.lengths)
        if count < len(rows) and isinstance(self._cache, SharingCache):
            self._cache.select([*range(count), *[0] * (len(rows) - count)])
        self._held += [HeldRow() for _ in range(len(self._held), len(self._cache.lengths))]
        prompts = {place: self._prompts.read.pop(rows[place]) for place in places}
        for place, prompt in sorted(prompts.items(), key=lambda item: -len(item[1].tokens)):
            length = len(prompt.tokens)
            self._cache.copy(place, prompt.cache, source=prompt.row, length=length)
            self._cache.settle(place, length)
            self._held[place] = HeldRow(length, prompt=prompt.tokens)
        self.is_ragged = True
        logits = torch.stack([prompt.logits for prompt in prompts.values()])
        return ForwardPass(logits, [0] * len(places), [0] * len(places))

    @property
    def can_select(self) -> bool:
        return isinstance(self._cache, SharingCache) and self._cache.can_select

    @torch.no_grad()
    def select(self, places: Sequence[int]) -> None:
        if not (isinstance(self._cache, SharingCache) and self._cache.can_select):
            raise CapabilityError(f"a controller forks, and this {type(self._cache).__name__} can't copy rows")
        self._cache.select(places)
        self._held = [replace(self._held[place], fed=list(self._held[place].fed)) for place in places]
        self.is_ragged = True

    @torch.no_grad()
    def finish(self, row: Row) -> tuple[int, int]:
        """Make the cache hold all tokens but the last of the only row, as `generate` does; return counts (fed, cut)."""
        cut, missing = self._cut_back(0, row), row.tokens[len(self._held[0].fed) : -1]
        if missing:
            self._held[0].fed += missing
            self._model.forward(torch.tensor([missing]), self._cache)
        return len(missing), cut

    def excess(self, row: Row) -> int:
        """Return how many tokens of a finished row are in the cache but not in its text."""
        fed = self._held[row.index].fed
        return len(fed) - count_shared(fed, row.tokens[:-1])

    def _prefill(self, rows: Sequence[Row]) -> ForwardPass:
        before = self._cache.lengths
        for place, row in enumerate(rows):
            self._cache.settle(place, row.prompt_length)
        are_even = len({row.prompt_length for row in rows}) == 1
        ids = torch.cat([row.ids for row in rows]) if are_even else fill_left([row.ids[0].tolist() for row in rows])
        logits = self._model.forward(ids, self._cache)
        self._held = [HeldRow(length) for length in self._cache.lengths]
        fed = [held.base - length for held, length in zip(self._held, before, strict=True)]
        return ForwardPass(copy_logits(logits[:, -1:], like=rows[0]), fed[: len(rows)], [0] * len(rows), logits.dtype)

    def _query(self, place: int, row: Row) -> list[int]:
        fed = self._held[place].fed
        if row.is_finished and not self.is_ragged and len(fed) == len(row.tokens) - 1:
            fed.append(row.tokens[-1])  # as in `generate`, whose logits after a row's end follow its end token
            return row.tokens[-1:]
        if row.is_finished:
            return self._query_nothing(place)
        query = row.tokens[len(fed) :]
        if row.is_waiting and not query:
            query = [self._filler]
        if row.draft.proposed:
            query += row.draft.tokens
        fed += query
        return query

    def _query_nothing(self, place: int) -> list[int]:
        if self.is_ragged:  # otherwise the row would grow until the last text is finished
            self._cache.rewind(place, 0)
            self._held[place].prompt = ()
        else:
            self._cache.settle(place, self._cache.lengths[place])
        return [self._filler]

    def _cut_back(self, place: int, row: Row) -> int:
        held = self._held[place]
        cut = held.cut_back(self._cache, place, row.tokens, settled=row.settled, unchanged=row.unchanged)
        self.is_ragged = self.is_ragged or cut > 0
        return cut


# -- prompts ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Prompt:
    """A prompt, and how many of its tokens were read or copied into a cache.

    donor: the place in the batch of a row that begins with the prompt's first `read` tokens, if there is one.
    """

    row: Row
    tokens: list[int]
    donor: int = 0
    read: int = 0

    @property
    def unread(self) -> int:
        return len(self.tokens) - self.read


class ReadPrompt(NamedTuple):
    """A prompt that was read: the cache and its row that hold the tokens, and the logits [1, vocab] after the last."""

    cache: RewindableCache
    row: int
    tokens: list[int]
    logits: Tensor


class PromptReader:
    """Reads the prompts of new texts, in caches apart from that of the batch.

    part: maximum tokens of a pass over several prompts, and of each prompt's part while other texts are written.
    read: prompts whose tokens are all read, by row, until the batch takes them.
    """

    def __init__(self, model: LanguageModel, *, part: int = PART) -> None:
        self._model = model
        self._part = part
        self._group: list[_Prompt] = []  # read together
        self._cache: RewindableCache | None = None  # of the group
        self._tokens: WeakKeyDictionary[Row, list[int]] = WeakKeyDictionary()  # prompts of the rows that wait
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
                last = copy_logits(logits[number, -1:], like=prompt.row)
                self.read[prompt.row] = ReadPrompt(cache, number, prompt.tokens, last)
        if not any(prompt.unread for prompt in group):
            self._group, self._cache = [], None
        fed = {prompt.row: len(query) for prompt, query in zip(group, queries, strict=True)}
        return PromptPass([fed.get(row, 0) for row in rows], [row in self.read for row in rows])

    def _begin(self, rows: Sequence[Row], *, texts: Sequence[Sequence[int]], batch: RewindableCache) -> None:
        if isinstance(batch, SharingCache) and batch.can_share:
            prompts = [_Prompt(row, self._tokens_of(row)) for row in rows]
            for prompt in prompts:  # find the place whose row holds most of the prompt's first tokens
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
        if row not in self._tokens:  # ids are copied from their device once
            self._tokens[row] = row.ids_up_to(0)[0].tolist()
        return self._tokens[row]


def copy_logits(logits: Tensor, *, like: Row) -> Tensor:
    # A slice would keep a whole prompt's logits in memory. As in `generate`, tokens are drawn on the prompt's device.
    return logits.to(device=like.spec.prompt.device, dtype=torch.float32, copy=True)


def _gather(prompts: Sequence[_Prompt], *, limit: int) -> Iterator[_Prompt]:
    """Yield the first prompt, and the prompts that are read beside it in one pass of up to `limit` tokens.

    A prompt that shares its beginning with a prompt of this pass waits for a later pass, to copy that beginning.
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
