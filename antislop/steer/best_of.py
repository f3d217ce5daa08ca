"""Write each paragraph n times at once, and continue the one with the highest score."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from antislop.core.loop import Branch, Capabilities, Step, TokenSet
from antislop.errors import InputError
from antislop.steer.passages import Unit, WrittenUnit, check_unit, find_unit


@dataclass
class Contest:
    """A round of `count` candidates for the next unit, shared by the copies of one text's controller.

    scores: of the candidates that are whole.
    finished: the tokens of the candidates with which their text ends.
    ended: the candidates that are not continued.
    """

    count: int
    scores: dict[int, float] = field(default_factory=dict)
    finished: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    @property
    def winner(self) -> int | None:
        """The candidate with the highest score, the first of equals; None until all are whole."""
        if len(self.scores) < self.count:
            return None
        return max(sorted(self.scores), key=lambda number: self.scores[number])

    def begin_round(self) -> None:
        self.scores.clear()
        self.finished.clear()
        self.ended.clear()


class BestOf:
    """Write n candidates of each sentence or paragraph, and continue the best one; `antislop.core.loop.Controller`.

    n: the number of candidates; call `generate` with max_forks=n, and sampled: greedy candidates are the same.
    score: returns a number for a unit, stripped of spaces; the highest one wins.
    tokenizer: the model's, of Hugging Face.

    The candidates are rows of one batch, written until all have finished the unit. Losers end there; the winner's
    continuation becomes the first candidate of the next round. The output has a row for each candidate; `winners` has
    the tokens of the best ones.
    """

    def __init__(self, n: int, score: Callable[[str], float], tokenizer: Any, *, unit: Unit = "paragraph") -> None:
        if not isinstance(n, int) or n < 1 or not callable(score):
            raise InputError(f"n is {n!r} and score {score!r:.40}; a number of 1 or more and a function were expected")
        self._score, self._tokenizer, self._unit = score, tokenizer, check_unit(unit)
        self._contest = Contest(n)
        self._contests: list[Contest] = []  # shared by all copies
        self._prompt: Sequence[int] = ()

    @property
    def needs(self) -> Capabilities:
        return Capabilities(has_forks=self._contest.count > 1)

    @property
    def winners(self) -> list[tuple[int, ...]]:
        """The winner's tokens for each prompt so far; empty for an unfinished text."""
        return [
            contest.finished.get(-1 if contest.winner is None else contest.winner, ()) for contest in self._contests
        ]

    def start(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._contest = Contest(self._contest.count)
        self._contests.append(self._contest)
        self._number: int | None = None  # among the candidates; known at the first step of a round
        self._is_open = False
        self._first = 0  # of the unit of this round
        self._end: int | None = None  # of that unit once it is whole

    def fork(self) -> BestOf:
        """Return a copy that takes part in the same contest."""
        return copy.copy(self)

    def mid_process(self, step: Step) -> list[Branch]:
        """Enter a whole unit in the contest; once all are whole, end as a loser, or open a round as the winner."""
        if not self._is_open:
            return self._open_round(step)
        if self._number is None:
            self._number = step.branch_idx
        self._forget_what_is_removed(step)
        contest, number = self._contest, self._number
        if self._end is None:
            self._enter(step, number)
        elif step.is_done and contest.winner == number:  # nothing can be written after its unit
            self._finish(step, number)
        if contest.winner is not None and (contest.winner != number or number in contest.finished):
            contest.ended.add(number)
            return []
        if contest.winner == number and len(contest.ended | contest.finished.keys()) == contest.count - 1:
            return self._open_round(step)
        if step.is_done and self._end is not None and not self._finish(step, number):  # wait: write the rest again
            return [Branch(backtrack=len(step.tokens) - self._end, sample_mask=TokenSet.all())]
        return [Branch(sample_mask=TokenSet.all())]

    def _open_round(self, step: Step) -> list[Branch]:
        """Continue here, and write the other candidates for what comes after the last round's unit."""
        if self._end is not None:
            self._first, self._end = self._end, None
            self._contest.begin_round()
        self._is_open, self._number = True, None
        other = Branch(backtrack=len(step.tokens) - self._first, sample_mask=TokenSet.all())
        own = other if step.is_done else Branch(sample_mask=TokenSet.all())
        return [own, *[other] * (self._contest.count - 1)]

    def _forget_what_is_removed(self, step: Step) -> None:
        """Take a unit out of the contest if a ban removed its end."""
        kept = len(step.tokens) - len(step.last_append)
        if self._end is not None and kept < self._end:
            self._end = None if self._contest.winner is None else kept
            if self._number is not None and self._end is None:
                self._contest.scores.pop(self._number)

    def _enter(self, step: Step, number: int) -> None:
        unit = find_unit(self._tokenizer, self._prompt, step, first=self._first, unit=self._unit)
        if unit is None and step.is_done:
            unit = WrittenUnit("", len(step.tokens))
        if unit is not None:
            self._end = unit.end
            self._contest.scores[number] = self._score(unit.text) if unit.text else -math.inf
            if step.is_done:
                self._finish(step, number)

    def _finish(self, step: Step, number: int) -> bool:
        """End the text with its unit, unless more than one token follows it; return whether it ends.

        A single token would be drawn again without a forward pass, so the other candidates could not go on meanwhile.
        """
        if len(step.tokens) - (self._end or 0) > 1:
            return False
        self._contest.finished[number] = tuple(step.tokens)
        return True
