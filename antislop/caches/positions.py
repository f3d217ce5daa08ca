"""The positions and token types of the next queries, which follow from the length of each row.

A rewind has nothing to restore here: a token's position is its index in the row plus the row's offset. The offset is
negative if the prompt was padded, and may differ from 0 after an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from antislop.caches.layers import AHEAD, Columns
from antislop.caches.recurrent_states import put_copy
from antislop.decoding.protocols import send


class Positions:
    """The positions of a batch of `rows` rows, and the token types of generated tokens.

    offsets: int64 [rows], [axes, rows] for models whose tokens have several positions each, or [1] for all rows; None
    until a prompt is read, and for models that take no positions.
    """

    def __init__(self, columns: Columns, *, rows: int) -> None:
        self.offsets: Tensor | None = None
        self._columns = columns
        self._rows = rows
        self._first_offset = 0  # on the host, so that reading it does not wait for a device
        self._steps: Tensor | None = None
        self._types: dict[str, Tensor] = {}  # [rows, 1] by name

    def start(self, position_ids: Tensor | None, token_types: Mapping[str, Tensor]) -> None:
        """Continue a prompt of these positions, [rows, tokens] or [axes, rows, tokens], and token types."""
        if position_ids is not None:
            self._set_offsets(position_ids[..., -1] + 1 - position_ids.shape[-1])
        self._types = {
            name: torch.zeros_like(types[:, -1:]) if name.startswith("mm_") else types[:, -1:]
            for name, types in token_types.items()
            if types is not None
        }

    def clear(self) -> None:
        """Forget all offsets: the rows hold states whose positions are unknown."""
        self.offsets = None

    def restart_row(self, row: int) -> None:
        """Count a row's positions from 0."""
        if self.offsets is not None:
            self._set_row(row, torch.zeros_like(self.offsets[..., :1]))

    def adopt(self, row: int, other: Positions) -> None:
        """Take over the offset of another batch's only row."""
        if other.offsets is not None:
            self._set_row(row, other.offsets)

    def fork(self, row: int, target: int) -> None:
        """Give a row the positions of another one; a `target` behind the last row is added."""
        before, self._rows = self._rows, max(self._rows, target + 1)
        if self.offsets is not None and self.offsets.shape[-1] == before > 1:
            index = [*range(before), *([row] if target == before else [])]
            offsets = self.offsets[..., index].clone()
            offsets[..., target] = self.offsets[..., row]
            self._set_offsets(offsets)
        self._types = {name: put_copy(types, row, target) for name, types in self._types.items()}

    def of(self, lengths: Sequence[int], queries: int, *, row: int | None = None) -> Tensor | None:
        """Return the positions of the next queries, [rows, queries] or [axes, rows, queries]; None without offsets.

        lengths: the tokens in each row. Where a row feeds fewer queries than others, those to the left of its own have
        undefined positions. row: the one row that is run, which feeds one query.
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
            return self._count_up_to(first + queries, like=offsets)[None, first : first + queries]
        steps = self._count_up_to(queries, like=offsets)[:queries]
        starts = firsts[0] if is_even else send(torch.tensor(firsts), steps.device)
        return ((offsets + starts)[..., None] + steps).clamp_(min=0)

    def token_types(self, queries: int, *, row: int | None = None) -> dict[str, Tensor]:
        """Return the token types of the next queries, [rows, queries], by name."""
        types = {name: last.expand(-1, queries) for name, last in self._types.items()}
        return types if row is None else {name: of_rows[row : row + 1] for name, of_rows in types.items()}

    def _set_offsets(self, offsets: Tensor) -> None:
        self.offsets = offsets
        self._first_offset = int(offsets.flatten()[0])

    def _set_row(self, row: int, offset: Tensor) -> None:
        """Set the offset of one row, [1] or [axes, 1]."""
        if self._rows > 1:
            before = offset if self.offsets is None else self.offsets
            offsets = before.expand(*before.shape[:-1], self._rows).clone()
            offsets[..., row] = offset[..., 0]
            offset = offsets
        self._set_offsets(offset)

    def _count_up_to(self, count: int, *, like: Tensor) -> Tensor:
        """Return the numbers from 0 to at least `count`, on the device of `like`."""
        if self._steps is None or self._steps.shape[0] < count:
            self._steps = torch.arange(self._columns.room(count) + AHEAD, device=like.device)
        return self._steps
