"""Run a language model for the loop: one forward pass for many rows, over a cache that follows each row's rewinds.

Knows of rows, tokens and the two protocols, `LanguageModel` and `KVCache`; neither of bans nor of what computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from antislop.decoding.loop import Ahead, Passes
from antislop.decoding.protocols import KVCache, LanguageModel, fill_left, send
from antislop.decoding.row import Row

SETTLE_EVERY = 8
"""Tokens that settle before a cache is told, which then may forget: not worth a word each."""


class BatchEngine:
    """Rows on one model and one cache. filler: the token that finished rows are fed."""

    def __init__(self, model: LanguageModel, cache: KVCache, *, filler: int = 0) -> None:
        self._model = model
        self._cache = cache
        self._filler = filler
        self._fed: list[list[int]] = []  # per row the generated tokens in the cache, its draft included
        self._bases: list[int] = []  # per row the tokens in the cache before those
        self._settled: list[int] = []  # what the cache was told
        self._is_ragged = False
        self._ahead: Tensor | None = None  # logits that were not asked for yet, [rows, queries, vocab]

    @torch.no_grad()
    def forward(self, rows: Sequence[Row]) -> Passes:
        """Return the logits after the tokens of each row and after those of its draft, right-aligned."""
        if not self._fed:
            return self._prefill(rows)
        if (known := self._take_ahead(rows)) is not None:
            return known
        # A waiting row reads on beside the others, to be cut if it ever resumes: a cut moves it in the cache, which
        # changes the last bits of all rows. Once one has happened, it is cut to its text.
        is_even = not self._is_ragged
        cut = [
            0 if row.is_finished or (row.is_waiting and is_even) else self._cut_back(p, row)
            for p, row in enumerate(rows)
        ]
        queries = [self._query(place, row) for place, row in enumerate(rows)]
        fed = [len(query) for query in queries]
        queries += [self._query_nothing(place) for place in range(len(rows), len(self._cache.lengths))]
        logits = self._model.forward(fill_left(queries), self._cache)
        return Passes(_own(logits[: len(rows)]), fed, cut)

    @torch.no_grad()
    def read_ahead(self, rows: Sequence[Row], drawn: Tensor, *, at: Sequence[int]) -> Ahead:
        """Begin to read what was drawn [n] in the rows `at`, and what the others lack; only then wait for the tokens.

        Where a text does not go on with its token, that is cut again like any other.
        """
        tokens, here, cut, queries = _begin_copy(drawn), set(at), [0] * len(rows), []
        for place, row in enumerate(rows):
            if not row.is_finished:
                cut[place] = self._cut_back(place, row, lacks=place not in here)
            queries.append([self._filler] if place in here else self._query(place, row))
        queries += [self._query_nothing(place) for place in range(len(rows), len(self._cache.lengths))]
        fed = drawn.clamp(min=0)  # a row that could draw no token ends with this pass
        logits = self._model.forward(_put(fed, queries, at=at), self._cache)
        self._ahead = _own(logits[: len(rows)])
        read = tokens()
        for place, token in zip(at, read, strict=True):
            self._fed[place].append(token)
        return Ahead(read, [len(query) for query in queries[: len(rows)]], cut)

    @torch.no_grad()
    def replace(self, rows: Sequence[Row], place: int) -> Passes:
        """Read the prompt of the new row at a place in a cache of its own, and put that into the place."""
        row = rows[place]
        while len(self._fed) <= place:
            self._fed.append([])
            self._bases.append(0)
            self._settled.append(0)
        cache = self._model.new_cache(1)
        cache.settle(0, row.prompt_length)
        logits = self._model.forward(row.ids, cache)
        self._cache.adopt(place, cache)
        self._fed[place], self._bases[place], self._settled[place] = [], row.prompt_length, 0
        self._is_ragged = True
        return Passes(_own(logits[:, -1:]), [row.prompt_length], [0])

    @torch.no_grad()
    def finish(self, row: Row) -> tuple[int, int]:
        """Leave in the cache all tokens of the only row but the last, as `generate` does; return tokens fed and cut."""
        cut, missing = self._cut_back(0, row), row.tokens[len(self._fed[0]) : -1]
        if missing:
            self._fed[0] += missing
            self._model.forward(torch.tensor([missing]), self._cache)
        return len(missing), cut

    @torch.no_grad()
    def drop_ahead(self, rows: Sequence[Row]) -> list[int]:
        """Take a pass that no row of a finished batch needed out of its cache; return the tokens read again for that.

        Where rows went apart, nobody is given the cache, and it stays as it is.
        """
        if self._ahead is None or self._is_ragged:
            return [0] * len(rows)
        end = self._cache.get_num_tokens() - 1
        kept = min(self._cache.rewind(place, end) for place in range(len(rows)))
        first, last = kept - self._bases[0], end - self._bases[0]
        if first < last:
            again = [(row.tokens + [self._filler] * last)[first:last] for row in rows]
            self._model.forward(torch.tensor(again), self._cache)
        return [len(row.tokens[first:last]) for row in rows]

    def excess(self, row: Row) -> int:
        """Return how many tokens of a finished row were read and are not in its text, nor cut yet."""
        fed, kept = self._fed[row.place], row.tokens[:-1]
        shared = next((i for i, pair in enumerate(zip(fed, kept, strict=False)) if pair[0] != pair[1]), len(kept))
        return len(fed) - min(shared, len(fed))

    def _prefill(self, rows: Sequence[Row]) -> Passes:
        held = self._cache.lengths
        for place, row in enumerate(rows):
            self._cache.settle(place, row.prompt_length)
        logits = self._model.forward(_stack(rows), self._cache)
        self._fed, self._settled = [[] for _ in rows], [0] * len(rows)
        self._bases = list(self._cache.lengths)
        fed = [after - before for after, before in zip(self._bases, held, strict=True)]
        return Passes(_own(logits[:, -1:]), fed[: len(rows)], [0] * len(rows))

    def _take_ahead(self, rows: Sequence[Row]) -> Passes | None:
        """Return the pass that was run ahead, unless no text goes on with what it read."""
        if self._ahead is None:
            return None
        logits, self._ahead = self._ahead, None
        at = [place for place, row in enumerate(rows) if self._has_read(place, row)]
        return Passes(logits, [0] * len(rows), [0] * len(rows), at) if at else None

    def _has_read(self, place: int, row: Row) -> bool:
        """Tell whether the cache holds a text that goes on, to the last token and no more.

        It never does for a row that came after the pass, the first token of which nobody has read.
        """
        return not row.is_finished and self._fed[place][row.unchanged :] == row.tokens[row.unchanged :]

    def _query(self, place: int, row: Row) -> list[int]:
        """Return what a row is fed next."""
        if row.is_finished:
            return self._query_nothing(place)
        fed = self._fed[place]
        query = row.tokens[len(fed) :]
        if row.is_waiting and not query:
            query = [self._filler]
        if row.draft.proposed:
            query += row.draft.tokens
        fed += query
        return query

    def _query_nothing(self, place: int) -> list[int]:
        """Return what a place is fed that belongs to no text any more."""
        if self._is_ragged:  # or it would grow for as long as any text of the batch does
            self._cache.rewind(place, 0)
        else:
            self._cache.settle(place, self._cache.lengths[place])
        return [self._filler]

    def _cut_back(self, place: int, row: Row, *, lacks: bool = True) -> int:
        """Take out of the cache what is not in the text; return how many tokens that was.

        lacks: the last token, too, so that there is one to read.
        """
        fed, base = self._fed[place], self._bases[place]
        most = max(0, min(len(fed), len(row.tokens) - lacks))
        shared = min(row.unchanged, most)
        while shared < most and fed[shared] == row.tokens[shared]:
            shared += 1
        if row.settled >= self._settled[place] + SETTLE_EVERY:
            self._settled[place] = min(row.settled, shared)
            self._cache.settle(place, base + self._settled[place])
        if shared == len(fed):
            return 0
        kept = self._cache.rewind(place, base + shared) - base
        cut = len(fed) - kept
        del fed[kept:]
        self._is_ragged = True
        return cut


def _begin_copy(drawn: Tensor) -> Callable[[], list[int]]:
    """Begin to copy tokens [n] to the host; return what waits for them, but for nothing that is begun after them."""
    if not drawn.is_cuda:
        return drawn.tolist
    host = torch.empty_like(drawn, device="cpu", pin_memory=True).copy_(drawn, non_blocking=True)
    copied = torch.cuda.current_stream(drawn.device).record_event()

    def wait() -> list[int]:
        copied.synchronize()
        return host.tolist()

    return wait


def _put(drawn: Tensor, queries: Sequence[Sequence[int]], *, at: Sequence[int]) -> Tensor:
    """Return queries as one tensor, with the tokens drawn [n] for the rows `at`, wherever these are."""
    if len(at) == len(queries):
        return drawn[:, None]
    ids = send(fill_left(queries), drawn.device)
    ids[:, -1].index_copy_(0, send(torch.tensor(at), drawn.device), drawn)
    return ids


def _own(logits: Tensor) -> Tensor:
    """Return logits in float32 and in memory of their own: the model's may be a prompt's, and very large."""
    return logits.to(dtype=torch.float32, copy=True)


def _stack(rows: Sequence[Row]) -> Tensor:
    """Return the prompts as one tensor, `PAD` on the left of the shorter ones."""
    if len({row.prompt_length for row in rows}) == 1:
        return torch.cat([row.ids for row in rows])
    return fill_left([row.ids[0].tolist() for row in rows])
