"""The stopping criteria of a batch, called as `generate` would call them, with kept text.

Transformers' own criteria look at one row and remember nothing, so they are called for each row by itself. All other
criteria are called with all rows at once, step by step: step n shows the first n tokens of every row. If a row rewinds
below n tokens, the criteria forget step n, and it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import MaxLengthCriteria, MaxTimeCriteria, StoppingCriteria, StoppingCriteriaList
from transformers.generation import ConfidenceCriteria, EosTokenCriteria, StopStringCriteria

from antislop.core.hf.callbacks.memory import Replayed, Rewindable, name_of
from antislop.core.hf.refusals import refusal
from antislop.core.loop.row import Row, ids_of
from antislop.display import describe_count
from antislop.errors import InputError, SharingError


class Criteria:
    """The stopping criteria of a batch of `rows` rows, which all begin together.

    pad: the token that finished rows are filled with; None if there is none.
    is_shared: whether the same criterion objects are also called for texts outside this batch.

    Raises `InputError` for a criterion that `generate` can't use, or whose memory of the text can't be copied.
    """

    def __init__(self, criteria: StoppingCriteriaList, *, rows: int, pad: int | None, is_shared: bool) -> None:
        eos = [criterion for criterion in criteria if type(criterion) is EosTokenCriteria]
        self.eos_token_ids = frozenset(int(i) for criterion in eos for i in criterion.eos_token_id.flatten())
        # End tokens and the length limit are compared as ints by the callbacks; only other criteria need tensors.
        others = [c for c in criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)]
        # As in `generate`: without an end token, a finished row isn't padded, but continued until all rows end.
        ends = [c for c in criteria if hasattr(c, "eos_token_id")]
        if ends and pad is None and type(ends[0]) is not EosTokenCriteria:
            raise InputError(f"{name_of(ends[0])} has an eos_token_id, and there is no pad_token_id to fill rows with")
        self._fills = bool(ends)
        built_in = (StopStrings, StopStringCriteria, MaxTimeCriteria, *([ConfidenceCriteria] if rows == 1 else []))
        self.is_lockstep = any(type(c) not in built_in for c in others) or (
            bool(others) and rows > 1 and not self._fills
        )
        self.others: list[Any] = [
            c if type(c) in built_in or isinstance(c, Rewindable) else Replayed(c, is_alone=not is_shared)
            for c in others
        ]
        self._is_shared = is_shared
        self._pad = pad or 0
        self._settled = 0  # number of first steps that are never repeated
        self._flags: list[list[bool]] = []  # for each later step, which rows are to end at that step or earlier

    @property
    def step_count(self) -> int:
        return self._settled + len(self._flags)

    def is_done(self, row: Row) -> bool:  # by stop strings, or one of transformers' own criteria
        scores = None if row.kept is None else tuple(scores for _, scores in row.kept)
        return any(
            c.end(row.tokens)  # a list on the host, unlike `row.ids`
            if isinstance(c, StopStrings) and len(row.tokens) >= c.reach
            else _to_rows(c, c(row.ids, scores), rows=1)[0]
            for c in self.others
        )

    def ask(self, rows: Sequence[Row]) -> list[bool]:
        """Show the criteria one more token of each row; return for each row whether it ends with that token."""
        step = self.step_count + 1
        ids, scores = ids_of(rows, step, filler=self._pad), None
        if rows[0].kept is not None:  # then `generate` would pass scores, too
            kept = [row.kept or [] for row in rows]
            blank = torch.zeros_like(kept[0][0][1])
            scores = tuple(torch.cat([row[i][1] if i < len(row) else blank for row in kept]) for i in range(step))
        answers = [_to_rows(criterion, criterion(ids, scores), rows=len(rows)) for criterion in self.others]
        for criterion in self.others if self._is_shared else ():
            if isinstance(criterion, Replayed) and criterion.has_changed:
                raise refusal("shared criterion", error=SharingError, name=name_of(criterion))
        flags = list(map(any, zip(*answers, strict=True))) or [False] * len(rows)
        self._flags.append(list(map(max, flags, self._flags[-1])) if self._flags else flags)
        if self._fills:
            return flags
        has_ended = (row.end is not None and row.end <= step for row in rows)
        return [all(flag or end for flag, end in zip(self._flags[-1], has_ended, strict=True))] * len(rows)

    def rewind(self, rows: Sequence[Row], length: int) -> None:
        if length >= self.step_count:
            return
        del self._flags[max(length - self._settled, 0) :]
        for criterion in self.others:
            if isinstance(criterion, Replayed):
                criterion.keep(length)
            elif isinstance(criterion, Rewindable):
                for index, row in enumerate(rows):
                    if row.end is None or row.end > length:
                        criterion.rewind(index, length)

    def settle(self, length: int) -> None:
        """Declare that steps below `length` are never repeated; step `length` still may be."""
        count = length - 1 - self._settled
        if count > 0:
            self._settled += count
            del self._flags[:count]
            for criterion in self.others:
                if isinstance(criterion, Replayed):
                    criterion.settle(length - 1)


def _to_rows(criterion: Callable[..., Any], answer: Any, *, rows: int) -> list[bool]:
    if isinstance(answer, bool):
        return [answer] * rows
    answers = torch.as_tensor(answer).flatten().tolist()
    if len(answers) not in (1, rows):
        raise InputError(
            f"{name_of(criterion)} gave {describe_count(len(answers), 'answer')} for {describe_count(rows, 'row')}: "
            "return one for all, or one for each"
        )
    return [bool(is_done) for is_done in answers] * (rows if len(answers) == 1 else 1)


class StopStrings(StoppingCriteria):  # type: ignore[misc]
    """End a text at the token that completes a stop string; the token may have more characters after it.

    spell: a function that returns the bytes of a token.
    skipped: the number of first tokens that are not searched; by default 0, so a string may begin in the prompt.
    reach: with at least so many generated tokens, no stop string that ends now can begin in the prompt.
    """

    def __init__(self, strings: Sequence[str], spell: Callable[[int], bytes], *, skipped: int = 0) -> None:
        self.stop_strings = tuple(strings)  # `StopStringCriteria` of transformers has the same attribute
        self._strings = [string.encode() for string in strings]
        self._longest = max(map(len, self._strings))
        self._spell = spell
        self._skipped = skipped
        self.reach = 0 if skipped else self._longest  # since each token has at least one byte

    @classmethod
    def read(cls, stop_strings: str | list[str], spell: Callable[[int], bytes]) -> StopStrings:
        """Return the criterion for the value of `generate`'s argument `stop_strings`.

        Raises `InputError` for an empty string, which would end each text after one token.
        """
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        if not isinstance(strings, (list, tuple)) or not all(isinstance(each, str) and each for each in strings):
            raise refusal("stop strings", value=stop_strings)
        return cls(strings, spell)

    def __call__(self, input_ids: Tensor, scores: Any = None, **kwargs: Any) -> Tensor:  # noqa: ARG002
        """Return, as bool [rows] on the host, whether each row of ids [rows, tokens] ends with its latest token."""
        latest = input_ids[:, self._skipped :][:, -self._longest :]
        return torch.tensor([self.end(tokens) for tokens in latest.tolist()])

    def end(self, tokens: Sequence[int]) -> bool:
        """Return whether the last of these tokens completes one of the stop strings."""
        latest = tail = self._spell(tokens[-1])
        for token in islice(reversed(tokens), 1, None):
            if len(tail) - len(latest) >= self._longest - 1:
                break
            tail = self._spell(token) + tail
        before = len(tail) - len(latest)
        return any(tail.find(string, max(0, before - len(string) + 1)) >= 0 for string in self._strings)
