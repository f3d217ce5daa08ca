"""The attention mask of rows that start in different columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class AttentionMask:
    """Which columns hold tokens: 1 for those of a row and those to come, 0 for free columns and padding.

    prompts: [rows, columns] of the tokens held and the prompt, or None without padding.
    """

    def __init__(self, prompts: Tensor | None, *, rows: int) -> None:
        self._prompts: list[Tensor | None] = list(prompts) if prompts is not None else [None] * rows
        self._mask: Tensor | None = None  # [rows, at least the columns in use]; columns to come are 1

    def set_prompts(self, prompts: Tensor) -> None:
        """Leave the columns out of attention that are 0 in a mask of the prompts, [rows, columns]."""
        self._prompts = list(prompts)

    def clear_row(self, row: int, start: int) -> None:
        """Forget the padding of a row that starts in a column."""
        self._prompts[row] = None
        self.move_row(row, start)

    def adopt(self, row: int, other: AttentionMask, start: int) -> None:
        """Take over the padding of another mask's only row, which starts in a column here."""
        self._prompts[row] = other._prompts[0]
        self.move_row(row, start)

    def fork(self, row: int, target: int) -> None:
        """Give a row the padding of another one; a `target` behind the last row is added."""
        self._prompts[target : target + 1] = [self._prompts[row]]
        self.discard()

    def move_row(self, row: int, start: int) -> None:
        """Update a row that starts in another column now."""
        if self._mask is None:
            return
        mask, prompt = self._mask[row], self._prompts[row]
        mask[:start] = 0
        mask[start:] = 1
        if prompt is not None:
            mask[start : start + len(prompt)] = prompt[: max(len(mask) - start, 0)]  # a longer mask is made when needed

    def discard(self) -> None:
        """Make the mask anew when it is needed next, since all rows have moved."""
        self._mask = None

    def of(self, starts: Sequence[int], columns: int, *, room: int, device: torch.device) -> Tensor | None:
        """Return the mask of the first `columns` columns, int64 [rows, columns]; None if all of it is 1.

        starts: the column in which each row starts. room: the columns to make a mask for at once.
        """
        if not any(starts) and all(prompt is None for prompt in self._prompts):
            return None
        if self._mask is None or self._mask.shape[1] < columns:
            self._mask = torch.ones((len(starts), room), dtype=torch.int64, device=device)
            for row, start in enumerate(starts):
                self.move_row(row, start)
        return self._mask[:, :columns]
