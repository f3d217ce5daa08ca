"""The naive twins: obvious, slow, and written without a look at the code they check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from toys import PROMPT, Markov, Words

from antislop.bans import Ban


def occurrences(text: str, ban: Ban, *, is_final: bool = True) -> Iterator[tuple[int, int]]:
    """Where a ban stands in an ASCII text; at the end of one that goes on, its right edge is still open."""
    where, phrase = (text, ban.phrase) if ban.case_sensitive else (text.lower(), ban.phrase.lower())
    for start in range(len(text) - len(phrase) + 1):
        end = start + len(phrase)
        if where[start:end] != phrase:
            continue
        if ban.edges == "word":
            if start and text[start].isalnum() and text[start - 1].isalnum():
                continue
            if phrase[-1].isalnum() and (text[end].isalnum() if end < len(text) else not is_final):
                continue
        yield start, end


def standing(tokens: Sequence[int], words: Words, bans: Sequence[Ban], *, is_final: bool) -> set[tuple[int, int]]:
    """(start token, index of the ban) of each ban that stands in the tokens."""
    owners = [i for i, token in enumerate(tokens) for _ in words.surface(token)]
    text = words.text(tokens)
    return {
        (owners[start], number)
        for number, ban in enumerate(bans)
        for start, _ in occurrences(text, ban, is_final=is_final)
    }


def completed(tokens: Sequence[int], words: Words, bans: Sequence[Ban], *, is_final: bool) -> list[tuple[int, int]]:
    """The bans that the last token completes, the one that starts first in front."""
    before = standing(tokens[:-1], words, bans, is_final=False)
    return sorted(standing(tokens, words, bans, is_final=is_final) - before)


def rejection_distribution(model: Markov, words: Words, bans: Sequence[Ban]) -> dict[tuple[int, ...], float]:
    """Draw; on a violation cut back to its start and draw again, with replacement: the chain, solved instead of run."""
    prefixes: list[tuple[int, ...]] = [()]
    jumps: list[tuple[tuple[int, ...], tuple[int, ...], float]] = []
    texts: list[tuple[int, ...]] = []
    for prefix in prefixes:
        for token, mass in enumerate(model.probs(PROMPT, prefix).tolist()):
            path = (*prefix, token)
            is_final = model.ends(path)
            for start, number in completed(path, words, bans, is_final=is_final):
                jumps.append((prefix, path[:start], mass * (1 - bans[number].weight)))
                mass *= bans[number].weight
            if mass > 0:
                jumps.append((prefix, path, mass))
                (texts if is_final else prefixes).append(path)
    return absorb(prefixes, jumps, texts)


def absorb(
    prefixes: Sequence[tuple[int, ...]],
    jumps: Sequence[tuple[tuple[int, ...], tuple[int, ...], float]],
    texts: Sequence[tuple[int, ...]],
) -> dict[tuple[int, ...], float]:
    """How often a chain that starts at the first prefix ends in each text."""
    row = {prefix: i for i, prefix in enumerate(prefixes)}
    among = np.eye(len(prefixes))
    for source, target, mass in jumps:
        if target in row:
            among[row[source], row[target]] -= mass
    visits = np.linalg.solve(among.T, np.eye(len(prefixes))[0])
    ends = dict.fromkeys(texts, 0.0)
    for source, target, mass in jumps:
        if target in ends:
            ends[target] += visits[row[source]] * mass
    return ends


def first_token_text(
    model: Markov, words: Words, bans: Sequence[Ban], generator: np.random.Generator
) -> tuple[int, ...]:
    """The classic rule: on a violation multiply its first token's probability by the weight, once, and draw again."""
    applied: set[tuple[tuple[int, ...], int]] = set()
    tokens: tuple[int, ...] = ()
    while not tokens or not model.ends(tokens):
        probs = model.probs(PROMPT, tokens).double().numpy().copy()
        for path, number in applied:
            if path[:-1] == tokens:
                probs[path[-1]] *= bans[number].weight
        tokens = (*tokens, int(generator.choice(len(probs), p=probs / probs.sum())))
        for start, number in completed(tokens, words, bans, is_final=model.ends(tokens)):
            if (tokens[: start + 1], number) not in applied:
                applied.add((tokens[: start + 1], number))
                tokens = tokens[:start]
                break
    return tokens
