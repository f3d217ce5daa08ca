"""Run the rows of a batch one by one, each on a cache of its own.

For models that count positions by the length of the cache, so that rows of different lengths can't share one. Slower
than a batch; the logits equal those of a row alone to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from antislop.core.loop.protocols import PAD, LanguageModel, RewindableCache


class RowwiseCache:
    def __init__(self, caches: Sequence[RewindableCache]) -> None:
        self.caches = list(caches)

    @property
    def lengths(self) -> list[int]:
        return [cache.lengths[0] for cache in self.caches]

    def rewind(self, row: int, length: int) -> int:
        return self.caches[row].rewind(0, length)

    def settle(self, row: int, length: int) -> None:
        self.caches[row].settle(0, length)

    def copy(self, row: int, other: RewindableCache, *, source: int, length: int) -> None:
        assert (source, [length]) == (0, [*other.lengths]), "a row is replaced by a whole cache of one row"
        self.caches[row] = other


class RowwiseModel:
    def __init__(self, models: Sequence[LanguageModel]) -> None:
        self._models = models

    @property
    def eos_token_id(self) -> frozenset[int]:
        return self._models[0].eos_token_id

    def new_cache(self, rows: int) -> RowwiseCache:
        return RowwiseCache([self._models[0].new_cache(1) for _ in range(rows)])

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        # Logits are 0 where a row has none.
        assert isinstance(kv_cache, RowwiseCache)
        is_new = not any(kv_cache.lengths)
        logits: list[Tensor | None] = []
        for model, cache, query in zip(self._models, kv_cache.caches, query_token_ids, strict=True):
            is_running = is_new or cache.lengths[0] > 0
            logits.append(model.forward(query[None, query != PAD], cache)[0] if is_running else None)
        example = next(row_logits for row_logits in logits if row_logits is not None)
        batch = example.new_zeros((len(logits), query_token_ids.shape[1], example.shape[-1]))
        for row, row_logits in zip(batch, logits, strict=True):
            if row_logits is not None:
                row[-row_logits.shape[0] :] = row_logits
        return batch


def slice_row(value: object, row: int, rows: int) -> object:
    """Return one row of a tensor with a row per text, also within dicts such as an encoder's output."""
    if isinstance(value, Tensor):
        return value[row : row + 1] if value.ndim and value.shape[0] == rows else value
    if isinstance(value, dict):
        return type(value)(**{name: slice_row(item, row, rows) for name, item in value.items()})
    return value
