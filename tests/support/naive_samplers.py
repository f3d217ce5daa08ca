"""The naive twins of `antislop.core.hf`: one text, lists of numbers, and the definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Scores = list[float]


def count_penalty(generated: Sequence[int], scores: Scores, *, presence: float, frequency: float) -> Scores:
    counts = [generated.count(token) for token in range(len(scores))]
    return [score - frequency * count - presence * (count > 0) for score, count in zip(scores, counts, strict=True)]


def dry(
    ids: list[int],
    scores: Scores,
    breakers: Sequence[list[int]],
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    penalty_last_n: int,
) -> Scores:
    """Penalize each token that followed an earlier copy of the latest tokens."""
    seen = ids if penalty_last_n == -1 else ids[max(len(ids) - penalty_last_n, 0) :]
    found = [(i, i + len(each)) for i in range(len(seen)) for each in breakers if seen[i : i + len(each)] == each]
    _, begin = max(found, default=(0, 0))  # the longest of those that begin last
    penalized = list(scores)
    for token in range(len(scores)):
        lengths = [
            length
            for place in range(1, len(seen))
            for length in range(min(place, len(seen) - begin) + 1)
            if seen[place] == token and seen[place - length : place] == seen[len(seen) - length :]
        ]
        longest = max(lengths, default=-1)
        if longest >= allowed_length and [token] not in breakers:
            penalized[token] -= multiplier * base ** (longest - allowed_length)
    return penalized


def top_n_sigma(scores: Scores, n: float) -> Scores:
    finite = [score for score in scores if score > -math.inf]
    mean = sum(finite) / len(finite)
    sigma = math.sqrt(sum((score - mean) ** 2 for score in finite) / len(finite))
    return [score if score >= max(finite) - n * sigma else -math.inf for score in scores]


def softmax(scores: Scores) -> list[float]:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def xtc(
    scores: Scores, *, probability: float, threshold: float, after: Callable[[Scores], Scores] = lambda scores: scores
) -> list[float]:
    """Return the probabilities of the tokens: a coin decides whether all top choices but the least likely go."""
    shares = softmax(scores)
    top = sorted((share, token) for token, share in enumerate(shares) if share >= threshold and share > 0)
    excluded = [token for _, token in top[1:]]
    left = [-math.inf if token in excluded else score for token, score in enumerate(scores)]
    pairs = zip(softmax(after(scores)), softmax(after(left)), strict=True)
    return [(1 - probability) * plain + probability * rest for plain, rest in pairs]
