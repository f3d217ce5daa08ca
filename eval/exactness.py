"""How far is each way to ban phrases from rejection sampling with replacement?

The models are so small that the distribution of whole texts can be computed: for the oracle, for plain sampling, for
the first-token rule and for transformers' own processors. Only the sampler's own texts are drawn, since the sampler is
under test; the distance of equally many draws from the computed distribution is printed beside them.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor, SequenceBiasLogitsProcessor

from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Matcher
from eval.command import Work, answer_question
from eval.reporting import Answer, Cell, Table
from tests.support import oracles, toys

Tokens = tuple[int, ...]
Distribution = Mapping[Tokens, float]
State = tuple[Tokens, frozenset[tuple[Tokens, int]]]
"""A state of the first-token rule: the text, and the bans whose weights were applied to tokens."""

DRAWS = {"full": 40_000, "quick": 4_000, "smallest": 200}
RARE = 1e-9  # the probability of a state that is not followed
REPETITIONS = 200  # of the oracle's own draws
NOTHING = -1  # stands for the prompt where a processor would read it: equal to no token
QUANTILES = (2.5, 97.5)


class Case(NamedTuple):
    """A vocabulary, its bans, and the tokenizations of them that one would pass to transformers."""

    name: str
    words: toys.Words
    bans: Sequence[Ban]
    spelled: Sequence[Tokens]
    length: int = 4

    def model(self, seed: int, processors: Sequence[Any] = ()) -> toys.Markov:
        """Return a random model for it."""
        return toys.Markov(len(self.words), seed=seed, length=self.length, processors=processors)


def anywhere(phrase: str, weight: float = 0.0) -> Ban:
    """Return a ban that ignores word edges, since the vocabularies have no spaces."""
    return Ban(phrase, weight=weight, edges="anywhere")


LETTERS = toys.Words("a", "b", "c", "d")
CASES = (
    Case("single words", LETTERS, [anywhere("a")], [(0,)]),
    Case("a phrase", LETTERS, [anywhere("ab")], [(0, 1)]),
    Case(
        "overlapping", LETTERS, [anywhere("abc"), anywhere("bcd"), anywhere("cda")], [(0, 1, 2), (1, 2, 3), (2, 3, 0)]
    ),
    Case(
        "shared prefixes", LETTERS, [anywhere("ab"), anywhere("acd"), anywhere("aca")], [(0, 1), (0, 2, 3), (0, 2, 0)]
    ),
    Case("weights", LETTERS, [anywhere("ab", 0.3), anywhere("cd", 0.1)], [(0, 1), (2, 3)]),
    Case("several tokenizations", toys.Words("a", "b", "ab", "c"), [anywhere("abc")], [(2, 3)]),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("exactness", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    """Measure all methods in all cases."""
    draws = DRAWS[work.setting]
    cases = CASES[1:2] + CASES[-1:] if work.setting == "smallest" else CASES
    advance = work.begin("cases", len(cases))
    rows: list[list[Cell]] = []
    sampled: list[Sampled] = []
    for case in cases:
        found, ours = measure_case(case, draws, work.seed)
        rows += found
        sampled.append(ours)
        advance()
    columns = (
        "case",
        "method",
        "how",
        "total variation",
        "of equally many draws from the solved distribution",
        "banned texts, %",
    )
    return Answer(
        "exactness",
        "How far is the output of each method from rejection sampling with replacement, in total variation over "
        "whole texts (0: the same, 1: no text in common)?",
        [Table("Total variation to the oracle", columns, rows)],
        [judge(cases, sampled)],
        LIMITS,
        NOTES,
        {"draws": draws},
    )


NOTES = (
    "Solved: the method's distribution is computed, not sampled, so the figure has no sampling error. Drawn: texts of "
    "the sampler itself are counted. The next column is the distance of equally many draws from the solved "
    f"distribution itself: mean, and the range of the middle 95 % of {REPETITIONS} repetitions.",
    "Banned texts: the total probability of texts that contain a ban, including bans with a weight.",
    "plain bans nothing, so its distance is the whole effect of the bans; exact should have none beyond the noise.",
    "token, the first-token rule, may differ: it takes the probability from the first token, and so from all "
    "texts that begin with that token.",
    "bad_words_ids and sequence_bias may differ: they act on the last token of a given tokenization, so a text "
    "that contains the tokens before it continues with another token instead of rewinding to the start of the "
    "phrase, and other tokenizations of the phrase are not found. bad_words_ids has no weights; sequence_bias "
    "gets the logarithm of the weight, and -100 for 0.",
    "Neither the processors nor the bans see the prompt: here all of them read the output alone.",
)
LIMITS = (
    "These are Markov models of 4 tokens that write 4 tokens, sampled at temperature 1. They show the kind of "
    "error of each rule, not its size in a language model: bans are much more frequent here than in any text. A "
    "total variation within the noise does not prove that it is zero; the tests compare more cases with the same "
    "oracle by a chi-square test, and docs/exactness.md explains why it should be zero. Concessions, for which "
    "all alternatives are used up, don't occur in these cases."
)


class Sampled(NamedTuple):
    """The distance of the sampler from the oracle, and the middle 95 % of the distances of the oracle's own draws."""

    variation: float
    low: float
    high: float


def measure_case(case: Case, draws: int, seed: int) -> tuple[list[list[Cell]], Sampled]:
    """Return the rows of a case, and the distance of method="exact"."""
    model = case.model(seed)
    expected = oracles.rejection_distribution(model, case.words, case.bans)
    solved = {"plain": solve(model), "token": solve_token_rule(model, case)}
    if not any(ban.weight for ban in case.bans):
        solved["bad_words_ids"] = solve(case.model(seed, [forbid(case)]))
    solved["sequence_bias"] = solve(case.model(seed, [bias(case)]))
    rows = [
        [case.name, method, "solved", total_variation(shares, expected), None, 100 * banned_share(shares, case)]
        for method, shares in solved.items()
    ]
    targets = {"exact": expected, "token": solved["token"]}
    ours = {method: draw(model, case, method, draws, seed) for method in targets}
    floors = {method: noise(target, expected, draws, seed) for method, target in targets.items()}
    for method, drawn in ours.items():
        mean, low, high = floors[method]
        off = total_variation(drawn, expected)
        rows.append(
            [case.name, method, "drawn", off, f"{mean:.3g} ({low:.3g} … {high:.3g})", 100 * banned_share(drawn, case)]
        )
    _, low, high = floors["exact"]
    return rows, Sampled(total_variation(ours["exact"], expected), low, high)


def judge(cases: Sequence[Case], sampled: Sequence[Sampled]) -> str:
    outside = [case.name for case, own in zip(cases, sampled, strict=True) if own.variation > own.high]
    within = len(cases) - len(outside)
    sentence = f'method="exact" is no further away than draws from the oracle itself in {within} of {len(cases)} cases'
    chance = "by chance, 1 in 40 would be above it"
    return f"{sentence}: met." if not outside else f"{sentence}; above it: {', '.join(outside)} ({chance})."


def draw(model: toys.Markov, case: Case, method: str, times: int, seed: int) -> Distribution:
    """Return the shares of the texts that the sampler writes."""
    torch.manual_seed(seed)
    matcher = Matcher(case.bans, case.words)
    settings: dict[str, Any] = {"matcher": matcher, "lookback": False, "method": method}
    drawn = Counter(toys.run(model, case.words, case.bans, **settings)[0] for _ in range(times))
    return {text: count / times for text, count in drawn.items()}


def noise(shares: Distribution, expected: Distribution, times: int, seed: int) -> tuple[float, float, float]:
    """Draw from known shares; return mean and middle 95 % of the total variation to the expected shares."""
    texts = sorted(set(shares) | set(expected))
    each = np.array([shares.get(text, 0.0) for text in texts])
    target = np.array([expected.get(text, 0.0) for text in texts])
    counts = np.random.default_rng(seed).multinomial(times, each / each.sum(), size=REPETITIONS)
    off = np.abs(counts / times - target).sum(axis=1) / 2
    low, high = np.percentile(off, QUANTILES)
    return float(off.mean()), float(low), float(high)


def total_variation(shares: Distribution, others: Distribution) -> float:
    texts = set(shares) | set(others)
    return sum(abs(shares.get(text, 0.0) - others.get(text, 0.0)) for text in texts) / 2


def banned_share(shares: Distribution, case: Case) -> float:
    return sum(
        share
        for text, share in shares.items()
        if share and oracles.standing(text, case.words, case.bans, is_final=True)
    )


def solve(model: toys.Markov) -> Distribution:
    """Return the probability of each text of a model, its processors included."""
    texts: dict[Tokens, float] = {}
    prefixes: list[tuple[Tokens, float]] = [((), 1.0)]
    for prefix, mass in prefixes:
        for token, probability in enumerate(model.probs(toys.PROMPT, prefix).tolist()):
            path, share = (*prefix, token), mass * probability
            if model.ends(path):
                texts[path] = share
            elif share:
                prefixes.append((path, share))
    return texts


def solve_token_rule(model: toys.Markov, case: Case) -> Distribution:
    """Return the probability of each text under `oracles.first_token_text`, whose states can only grow.

    A state is the text, and the weights that were applied to tokens. A violation adds weights, and any other token
    extends the text, so visiting the states in the order of both lengths visits each state once. States less likely
    than `RARE` are dropped; the probability of their texts is missing in the sum.
    """
    step = cache(lambda tokens: list(_follow(model, case, tokens)))
    texts: dict[Tokens, float] = {}
    levels: dict[tuple[int, int], dict[State, float]] = {(0, 0): {((), frozenset()): 1.0}}
    while levels:
        for (tokens, applied), mass in _likely(levels.pop(min(levels))):
            shares = [probability * _weigh(path, applied, case) for path, probability, _, _ in step(tokens)]
            for share, (path, _, found, is_final) in zip(shares, step(tokens), strict=True):
                back = next((each for each in found if each not in applied), None)
                after = (path, applied) if back is None else (back[0][:-1], applied | {back})
                if back is None and is_final:
                    texts[path] = texts.get(path, 0.0) + mass * share / sum(shares)
                elif share:
                    level = levels.setdefault((len(after[1]), len(after[0])), {})
                    level[after] = level.get(after, 0.0) + mass * share / sum(shares)
    return texts


def _likely(states: Mapping[State, float]) -> list[tuple[State, float]]:
    return [(state, mass) for state, mass in states.items() if mass > RARE]


def _follow(
    model: toys.Markov, case: Case, tokens: Tokens
) -> Iterator[tuple[Tokens, float, list[tuple[Tokens, int]], bool]]:
    """Yield each longer text with its token's probability, the first tokens of the bans completed, and if it ends."""
    for token, probability in enumerate(model.probs(toys.PROMPT, tokens).tolist()):
        path = (*tokens, token)
        found = oracles.completed(path, case.words, case.bans, is_final=model.ends(path))
        yield path, probability, [(path[: start + 1], number) for start, number in found], model.ends(path)


def _weigh(path: Tokens, applied: frozenset[tuple[Tokens, int]], case: Case) -> float:
    return math.prod(ban.weight for number, ban in enumerate(case.bans) if (path, number) in applied)


def forbid(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Return transformers' `bad_words_ids` for a case."""
    return hide_prompt(NoBadWordsLogitsProcessor([list(tokens) for tokens in case.spelled]))


def bias(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Return transformers' `sequence_bias` for a case: the logarithm of the weight."""
    biases = [math.log(ban.weight) if ban.weight else -100.0 for ban in case.bans]
    pairs = zip(case.spelled, biases, strict=True)
    return hide_prompt(SequenceBiasLogitsProcessor([[list(tokens), each] for tokens, each in pairs]))


def hide_prompt(processor: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Replace the prompt that a processor sees by ids that equal no token."""

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        seen = ids.clone()
        seen[:, : len(toys.PROMPT)] = NOTHING
        shown: Tensor = processor(seen, scores)
        return shown

    return process


if __name__ == "__main__":
    sys.exit(main())
