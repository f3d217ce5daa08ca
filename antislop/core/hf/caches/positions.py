"""The positions, token types and attention mask of the next forward pass over a batch.

They are computed from each row's first column and length, so a rewind has nothing to restore here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from antislop.core.hf.caches.layers import SPARE_COLUMNS, Columns
from antislop.core.loop.protocols import send


class Positions:
    """The positions of a batch, and the token types of generated tokens.

    offsets: for each row, the position of a token minus its index in the row: negative after a padded prompt, possibly
        not 0 after an image. int64 [rows]; [axes, rows] for models with several positions per token; [1] if all rows
        have the same; None before a prompt is read, and for models that take no positions.
    """

    def __init__(self, columns: Columns, *, rows: int) -> None:
        self.offsets: Tensor | None = None
        self._columns = columns
        self._rows = rows
        self._first_offset = 0  # an int on the host: reading it does not wait for a device
        self._steps: Tensor | None = None
        self._types: dict[str, Tensor] = {}  # [rows, 1] by name

    def start(self, position_ids: Tensor | None, token_types: Mapping[str, Tensor]) -> None:
        """Continue a prompt that has these positions, [rows, tokens] or [axes, rows, tokens], and token types."""
        if position_ids is not None:
            self._set_offsets(position_ids[..., -1] + 1 - position_ids.shape[-1])
        self._types = {
            name: torch.zeros_like(types[:, -1:]) if name.startswith("mm_") else types[:, -1:]
            for name, types in token_types.items()
            if types is not None
        }

    def restart(self) -> None:
        """From now on, number the positions of each row from 0."""
        if self.offsets is not None:
            self._set_offsets(self.offsets.new_zeros(1))

    def restart_row(self, row: int) -> None:
        if self.offsets is not None:
            self._set_row(row, torch.zeros_like(self.offsets[..., :1]))

    def copy(self, row: int, other: Positions, source: int) -> None:
        if other.offsets is not None:
            offset = other.offsets[..., source] if other.offsets.shape[-1] > 1 else other.offsets[..., 0]
            self._set_row(row, offset[..., None])

    def select(self, rows: Sequence[int]) -> None:
        if self.offsets is not None and self.offsets.shape[-1] == self._rows > 1:
            self._set_offsets(self.offsets[..., rows])
        self._rows = len(rows)
        self._types = {name: types[rows] for name, types in self._types.items()}

    def of(self, lengths: Sequence[int], queries: int, *, row: int | None = None) -> Tensor | None:
        """Return the positions of the next queries, [rows, queries] or [axes, rows, queries]; None without offsets.

        lengths: number of tokens in each row.
        row: the only row of this forward pass, which has one query; None if all rows are run.

        If a row feeds fewer queries than others, the positions to the left of its queries are undefined.
        """
        if self.offsets is None:
            return None
        offsets, counts = self.offsets, self._columns.counts or [queries] * self._rows
        firsts = [length + count - queries for length, count in zip(lengths, counts, strict=True)]
        if row is not None:
            offsets, firsts = offsets[..., min(row, offsets.shape[-1] - 1)][..., None], [lengths[row]]
        is_even = min(firsts) == max(firsts)
        if self.offsets.shape == (1,) and is_even:
            first = firsts[0] + self._first_offset
            # Slicing before adding an axis gives the strides of a new tensor, on which compiled models depend.
            return self._count_up_to(first + queries, like=offsets)[first : first + queries][None]
        steps = self._count_up_to(queries, like=offsets)[:queries]
        starts = firsts[0] if is_even else send(torch.tensor(firsts), steps.device)
        return ((offsets + starts)[..., None] + steps).clamp_(min=0)

    def token_types(self, queries: int, *, row: int | None = None) -> dict[str, Tensor]:
        """Return the token types of the next queries, as a dict from argument names to tensors [rows, queries]."""
        types = {name: last.expand(-1, queries) for name, last in self._types.items()}
        return types if row is None else {name: of_rows[row : row + 1] for name, of_rows in types.items()}

    def _set_offsets(self, offsets: Tensor) -> None:
        self.offsets = offsets
        self._first_offset = int(offsets.flatten()[0])

    def _set_row(self, row: int, offset: Tensor) -> None:  # [1] or [axes, 1]
        if self._rows > 1:
            before = offset if self.offsets is None else self.offsets
            offsets = before.expand(*before.shape[:-1], self._rows).clone()
            offsets[..., row] = offset[..., 0]
            offset = offsets
        self._set_offsets(offset)

    def _count_up_to(self, count: int, *, like: Tensor) -> Tensor:
        if self._steps is None or self._steps.shape[0] < count:  # from 0 to at least `count`
            self._steps = torch.arange(self._columns.room(count) + SPARE_COLUMNS, device=like.device)
        return self._steps


class AttentionMask:
    """The attention mask of a batch: 0 in padding and left of a row's first column, 1 elsewhere and in free columns."""

    def __init__(self, prompts: Tensor | None, *, rows: int) -> None:
        # For each row, the mask [columns] of its prompt and of tokens that the cache held before; None without padding.
        self._prompts: list[Tensor | None] = list(prompts) if prompts is not None else [None] * rows
        self._mask: Tensor | None = None  # [rows, columns]; 1 in columns that are not in use yet
        self._numbers: Tensor | None = None  # column numbers of a static cache

    def clear_row(self, row: int) -> None:
        self._prompts[row] = None
        self.move_row(row, 0)

    def copy(self, row: int, other: AttentionMask, source: int, start: int) -> None:
        """Replace a row by row `source` of another mask; the row starts in column `start` here."""
        self._prompts[row] = other._prompts[source]
        self.move_row(row, start)

    def select(self, rows: Sequence[int]) -> None:
        self._prompts = [self._prompts[row] for row in rows]
        self.discard()

    def move_row(self, row: int, start: int) -> None:
        if self._mask is None:
            return
        mask, prompt = self._mask[row], self._prompts[row]
        mask[:start] = 0
        mask[start:] = 1
        if prompt is not None:
            mask[start : start + len(prompt)] = prompt[: max(len(mask) - start, 0)]  # `of` makes longer masks if needed

    def discard(self) -> None:
        self._mask = None

    def of(self, starts: Sequence[int], columns: int, *, room: int, device: torch.device) -> Tensor | None:
        """Return the mask of the first `columns` columns, int64 [rows, columns]; None if all of it is 1.

        starts: the first column of each row.
        room: the number of columns to allocate if a new mask is needed.
        """
        if not any(starts) and all(prompt is None for prompt in self._prompts):
            return None
        if self._mask is None or self._mask.shape[1] < columns:
            self._mask = torch.ones((len(starts), room), dtype=torch.int64, device=device)
            for row, start in enumerate(starts):
                self.move_row(row, start)
        return self._mask[:, :columns]

    def of_static(self, starts: Sequence[int], columns: int, *, capacity: int, device: torch.device) -> Tensor:
        """Return the mask of one query per row, bool [rows, 1, 1, capacity]: False in masked and in free columns."""
        if self._numbers is None:
            self._numbers = torch.arange(capacity, device=device)
        is_used, mask = self._numbers < columns, self.of(starts, capacity, room=capacity, device=device)
        is_used = is_used.expand(len(starts), -1) if mask is None else is_used & (mask != 0)
        return is_used[:, None, None].contiguous()
