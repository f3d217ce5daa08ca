"""How far is each way to ban phrases from rejection sampling with replacement?

The models are small enough that the distribution of whole texts is solved: that of the oracle, of plain sampling, of
the first-token rule and of transformers' own processors. Only what the sampler itself writes is drawn, since that is
what has to be tested; what the same number of draws from the solved distribution is off by stands beside it.
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
"""Of the first-token rule: what is written, and which bans' weights were applied to which tokens."""

DRAWS = {"full": 40_000, "quick": 4_000, "smallest": 200}
RARE = 1e-9  # the probability of a state that is not followed
REPETITIONS = 200  # of the oracle's own draws
NOTHING = -1  # stands for the prompt where a processor would read it: equal to no token
QUANTILES = (2.5, 97.5)


class Case(NamedTuple):
    """A vocabulary, what is banned, and the tokenizations that one would pass for it: the longest tokens first."""

    name: str
    words: toys.Words
    bans: Sequence[Ban]
    spelled: Sequence[Tokens]
    length: int = 4

    def model(self, seed: int, processors: Sequence[Any] = ()) -> toys.Markov:
        """Return a random model for it."""
        return toys.Markov(len(self.words), seed=seed, length=self.length, processors=processors)


def anywhere(phrase: str, weight: float = 0.0) -> Ban:
    """Return a ban without regard to word edges: the vocabularies have no spaces."""
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
    """Run what the command line asks for."""
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
    columns = ("case", "method", "how", "total variation", "of as many draws from the solved one", "banned texts, %")
    return Answer(
        "exactness",
        "How far is what each method writes from rejection sampling with replacement, in total variation over whole "
        "texts (0: the same, 1: nothing in common)?",
        [Table("Total variation to the oracle", columns, rows)],
        [judge(cases, sampled)],
        LIMITS,
        NOTES,
        {"draws": draws},
    )


NOTES = (
    "Solved: the method's distribution is computed, not sampled, so the figure has no sampling error. Drawn: texts of "
    "the sampler itself are counted; even draws from the very same distribution are off by the next column: mean, and "
    f"the range of the middle 95 % of {REPETITIONS} repetitions.",
    "Banned texts: the share of the probability of texts in which a ban stands, for bans with a weight too.",
    "plain is allowed everything: it bans nothing. exact is allowed nothing.",
    "token, the first-token rule, may differ: the probability that it takes from the first token is gone for all that "
    "would have begun with that token.",
    "bad_words_ids and sequence_bias may differ: they act on the last token of a given tokenization, so a text that "
    "came up to there goes on with another token instead of going back to where the phrase began, and other "
    "tokenizations of the phrase pass. bad_words_ids knows no weights; sequence_bias gets the logarithm of the weight, "
    "and -100 for 0.",
    "The processors don't see the prompt, as the bans don't: here all of them look at the output alone.",
)
LIMITS = (
    "These are Markov models of 4 tokens that write 4 tokens, sampled at temperature 1. They show what each rule does, "
    "not how much of it a language model would: bans are much more frequent here than in any text. That a total "
    "variation is within the noise does not prove it is zero; the tests hold more cases against the same oracle with a "
    "chi-square test, and docs/exactness.md says why it should be. Concessions, where all alternatives are used up, "
    "don't occur in these cases."
)


class Sampled(NamedTuple):
    """What the sampler is off by, and the middle 95 % of what draws from the oracle itself are off by."""

    variation: float
    low: float
    high: float


def measure_case(case: Case, draws: int, seed: int) -> tuple[list[list[Cell]], Sampled]:
    """Return the rows of a case, and what was drawn with method="exact"."""
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
    """Say in how many cases the exact method is within the noise."""
    outside = [case.name for case, own in zip(cases, sampled, strict=True) if own.variation > own.high]
    within = len(cases) - len(outside)
    sentence = f'method="exact" is no further off than draws from the oracle itself in {within} of {len(cases)} cases'
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
    """Return mean and middle 95 % of the total variation to what is expected of as many draws from known shares."""
    texts = sorted(set(shares) | set(expected))
    each = np.array([shares.get(text, 0.0) for text in texts])
    target = np.array([expected.get(text, 0.0) for text in texts])
    counts = np.random.default_rng(seed).multinomial(times, each / each.sum(), size=REPETITIONS)
    off = np.abs(counts / times - target).sum(axis=1) / 2
    low, high = np.percentile(off, QUANTILES)
    return float(off.mean()), float(low), float(high)


def total_variation(shares: Distribution, others: Distribution) -> float:
    """Return half the sum of the absolute differences."""
    texts = set(shares) | set(others)
    return sum(abs(shares.get(text, 0.0) - others.get(text, 0.0)) for text in texts) / 2


def banned_share(shares: Distribution, case: Case) -> float:
    """Return the probability of the texts in which a ban stands."""
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

    A state is what is written and which weights were applied where. A violation adds to the latter, a token without one
    to the former, so taking the states by both lengths meets each of them once. States less likely than `RARE` are
    dropped; what they would have written is missing in the sum.
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
    """Let a processor see something that is no token in the prompt's place."""

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        seen = ids.clone()
        seen[:, : len(toys.PROMPT)] = NOTHING
        shown: Tensor = processor(seen, scores)
        return shown

    return process


if __name__ == "__main__":
    sys.exit(main())
