"""Write a sentence or a paragraph again if a function rejects it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from antislop.core.loop import Branch, Capabilities, Step, TokenSet
from antislop.errors import InputError
from antislop.steer.passages import Unit, WrittenUnit, check_unit, find_unit


class Regenerate:
    """Write each sentence or paragraph again until a function accepts it; `antislop.core.loop.Controller`.

    check: returns whether a unit, stripped of spaces, may stay. Called once for each attempt.
    tokenizer: the model's, of Hugging Face.
    attempts: maximum attempts at a unit; the last one stays even if it is rejected.
    rejected: the rejected units of all texts so far.
    conceded: the rejected units that stayed.

    Sampled units are drawn again, so they are distributed as the model's units that pass. Greedy attempts must begin
    with other tokens than the rejected ones. A unit in which the text was cut is not checked. Nothing is streamed
    before the end.
    """

    needs = Capabilities()

    def __init__(
        self, check: Callable[[str], bool], tokenizer: Any, *, unit: Unit = "sentence", attempts: int = 5
    ) -> None:
        if not isinstance(attempts, int) or attempts < 1 or not callable(check):
            raise InputError(f"attempts is {attempts!r}, check {check!r:.40}; 1 or more and a function were expected")
        self._check, self._tokenizer, self._unit, self._limit = check, tokenizer, check_unit(unit), attempts
        self.rejected: list[str] = []
        self.conceded: list[str] = []
        self.start(())

    def start(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._starts = [0]  # of the accepted units, and of the one that is being written
        self._attempts: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # rejected ones, by the text before them
        self._repeating: set[tuple[int, ...]] = set()

    def fork(self) -> Regenerate:
        """Return a copy that continues independently, and adds to the same lists."""
        other = copy.copy(self)
        other._starts, other._repeating = list(self._starts), set(self._repeating)
        other._attempts = {place: list(attempts) for place, attempts in self._attempts.items()}
        return other

    def mid_process(self, step: Step) -> list[Branch]:
        while self._starts[-1] > len(step.tokens) - len(step.last_append):  # a ban removed the end of an accepted unit
            self._starts.pop()
        while (unit := self._find(step)) is not None:
            if not self._accepts(unit, step):
                start = self._starts[-1]
                return [Branch(len(step.tokens) - start, sample_mask=self._list_starts(step.tokens[:start]))]
            self._starts.append(unit.end)
        return [Branch(sample_mask=self._list_starts(step.tokens))]

    def _find(self, step: Step) -> WrittenUnit | None:
        unit = find_unit(self._tokenizer, self._prompt, step, first=self._starts[-1], unit=self._unit)
        return None if unit is None or unit.is_cut else unit

    def _accepts(self, unit: WrittenUnit, step: Step) -> bool:
        start = self._starts[-1]
        place, attempt = tuple(step.tokens[:start]), tuple(step.tokens[start : unit.end])
        rejected = self._attempts.setdefault(place, [])
        is_repeated = attempt in rejected and len(rejected) < self._limit
        if is_repeated and step.is_greedy and place not in self._repeating:
            self._repeating.add(place)  # a rejected attempt was written again: it is not counted
            return False
        if attempt not in rejected and self._check(unit.text):
            return True
        rejected.append(attempt)
        self.rejected.append(unit.text)
        if len(rejected) >= self._limit:
            self.conceded.append(unit.text)
        return len(rejected) >= self._limit

    def _list_starts(self, tokens: Sequence[int]) -> TokenSet:
        """Return the allowed next tokens: where greedy attempts repeat, exclude the first tokens of rejected ones.

        The result depends on the tokens alone: bans may bring the text back here.
        """
        place = tuple(tokens)
        ruled_out = {attempt[0] for attempt in self._attempts[place]} if place in self._repeating else ()
        return ~TokenSet(sorted(ruled_out))
