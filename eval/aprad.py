"""Approximately aligned decoding (AprAD, arXiv 2410.01103) beside units, where all distributions can be solved.

Written from the paper's formulas. A text that contains a ban is taken out of the stored probabilities. Its tokens are
then accepted as in speculative sampling, with the probabilities before as the draft's and those after as the target's;
where one is not, a token is drawn from what the target has above the draft. ASAp is the same from the first token on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from antislop.core.bans.units import Unit
from eval.command import Work
from eval.exactness import APRAD, Case, Tokens, anywhere, constrain, divergence, draw, noise, solve
from eval.reporting import TINY, Cell, Table
from tests.support import oracles, toys

DRAWS = {"full": 6_000, "quick": 1_000, "smallest": 50}
MODELS = 5  # random ones of each case; in the paper's cases they are the same
WORDS = toys.Words(" a", " b", "c", "d")
CASES = (
    *(each.case for each in APRAD),
    Case("a letter within words", WORDS, [anywhere("d")], length=5),
    Case("two letters within words", WORDS, [anywhere("cd")], length=5),
)
UNITS: tuple[Unit, ...] = ("span", "word", "sentence")
TITLE = "Beside AprAD and ASAp, on solved models"
COLUMNS = ("case", "method", "KL to the ideal", "model calls per token", "models above AprAD's curve")


class Point(NamedTuple):
    """What a method gives and costs: the divergence from the ideal beyond that of draws, and calls per token."""

    divergence: float
    calls: float


def compare(work: Work) -> tuple[Table, str]:
    """Return AprAD's three cases and two with words, and in how many models a unit is above AprAD's curve."""
    advance, rows, verdict = work.begin("AprAD", len(CASES) * MODELS), list[list[Cell]](), list[str]()
    published = {each.case.name: each.figures for each in APRAD}
    for case in CASES:
        measured, above = list[dict[str, Point]](), Counter[str]()
        for seed in range(work.seed, work.seed + MODELS):
            points = measure_rivals(case, draws=DRAWS[work.setting], seed=seed)
            curve = [[*each] for each in zip(*points.values(), strict=True)]
            for unit in UNITS:
                points[name := f'rewind="{unit}"'] = solve_unit(case, unit, draws=DRAWS[work.setting] // 5, seed=seed)
                bound = float(np.interp(points[name].calls, curve[1], curve[0]))
                above[name] += points[name].divergence > bound + TINY
            measured.append(points)
            advance()
        for name in measured[0]:
            means = np.mean([own[name] for own in measured], axis=0).tolist()
            rows.append([case.name, name, *means, above.get(name)])
            if figures := published.get(case.name, {}).get(name):
                rows.append([case.name, f"{name}, published", *figures, None])
        verdict += [f"{case.name}: {above[name]}" for name in above if name == 'rewind="word"']
    return Table(TITLE, COLUMNS, rows), f"Of {MODELS} models, word is above AprAD's curve in: {', '.join(verdict)}."


def measure_rivals(case: Case, *, draws: int, seed: int) -> dict[str, Point]:
    """Return what constrained decoding, AprAD and ASAp give and cost: AprAD's curve."""
    ideal = oracles.conditioned_distribution(case.model(seed), case.words, case.bans)
    floor = noise(ideal, ideal, draws, seed, divergence)[0]
    points = {"constrained": Point(divergence(solve(case.model(seed, [constrain(ideal)])), ideal), 1.0)}
    for method in ("AprAD", "ASAp"):
        sampler = Sampler(case, seed, reuses=method == "AprAD")
        drawn = Counter(sampler.write() for _ in range(draws))
        off = divergence({text: count / draws for text, count in drawn.items()}, ideal) - floor
        points[method] = Point(max(0.0, off), sampler.calls / (draws * case.length))
    return points


def solve_unit(case: Case, unit: Unit, *, draws: int, seed: int) -> Point:
    own = case._replace(bans=[replace(ban, rewind=unit) for ban in case.bans])
    ideal = oracles.conditioned_distribution(case.model(seed), case.words, case.bans)
    off = divergence(oracles.rejection_distribution(case.model(seed), own.words, own.bans), ideal)
    model = own.model(seed)
    draw(model, own, "exact", draws, seed)
    return Point(max(0.0, off), len(model.fed) / (draws * case.length))


class Sampler:
    """Draws texts by AprAD, or by ASAp if `reuses` is False; each text forgets what was taken out for others.

    calls: of the model, for all texts; within one text, the same beginning is asked once.
    """

    def __init__(self, case: Case, seed: int, *, reuses: bool) -> None:
        self.case, self.reuses, self.calls = case, reuses, 0
        self._model, self._rng = case.model(seed), np.random.default_rng(seed)
        self._known: dict[Tokens, Any] = {}
        self._banned: dict[Tokens, bool] = {}

    def write(self) -> Tokens:
        self._left: dict[Tokens, Any] = {}  # after each beginning, the share of each token that is not taken out
        text: Tokens = ()
        while not (text and self._model.ends(text)):
            text = (*text, self._draw(self._find_shares(text)))
            while text and self._is_banned(text):
                text = self._go_back(text)
        self.calls += len(self._left)
        return text

    def _go_back(self, text: Tokens) -> Tokens:
        before, left = [self._find_shares(text[:place]) for place in range(len(text))], 0.0
        for place in reversed(range(len(text))):
            self._left[text[:place]][text[place]] = left
            left = float(self._ask(text[:place]) @ self._left[text[:place]])
        for place, token in enumerate(text if self.reuses else ()):
            after = self._find_shares(text[:place])
            if self._rng.random() * before[place][token] >= after[token]:
                return (*text[:place], self._draw(np.maximum(after - before[place], 0.0)))
        return ()

    def _find_shares(self, text: Tokens) -> Any:
        left = self._left.setdefault(text, np.ones(len(self.case.words)))
        shares = self._ask(text) * left
        return shares / shares.sum()

    def _ask(self, text: Tokens) -> Any:
        if text not in self._known:
            self._known[text] = self._model.probs(toys.PROMPT, text).double().numpy()
        return self._known[text]

    def _draw(self, shares: Any) -> int:
        sums = np.cumsum(shares)
        return int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right"))

    def _is_banned(self, text: Tokens) -> bool:
        if text not in self._banned:
            final = self._model.ends(text)
            self._banned[text] = bool(oracles.completed(text, self.case.words, self.case.bans, is_final=final))
        return self._banned[text]
