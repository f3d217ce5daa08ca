"""Explanations of kept tokens as plain data, made from the trace of a call."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TypedDict

from antislop.matching.characters import decode
from antislop.matching.token_matcher import Surfaces
from antislop.trace.traced_row import Attempt, KeptToken


class Alternative(TypedDict):
    """A token that was left to draw. share: its part of what bans had left of the distribution by then."""

    token_id: int
    token: str
    share: float


class RejectedAttempt(TypedDict):
    """Tokens that were withdrawn together, in the place of a kept token.

    tokens, text: all of them. ban: the text of the ban that they completed; None if the text was cut because of the
        other rows of its batch.
    probability, share, step_index: of the first of them, as in `Explanation`; the first two are None if they were not
        recorded.
    """

    tokens: list[int]
    text: str
    ban: str | None
    probability: float | None
    share: float | None
    step_index: int


class Explanation(TypedDict):
    """Why a token is in the text, as plain data for JSON.

    step_index: the number of tokens that were drawn for this text before it, withdrawn ones included.
    token_index: its place among the kept tokens, from 0.
    token_id, token: its id and its text; a part of a character is U+FFFD, a special token has its name.
    probability: of the token under the processed scores, which is what `generate` would draw from.
    share: its part of what bans had left of that distribution by then.
    rank: its place among the tokens left, 1 for the likeliest.
    alternatives: the likeliest tokens left, likeliest first; the token itself is among them if it is likely enough.
    rejected: the attempts that were withdrawn at this place after the same tokens, in order.
    relevance: a number for each earlier token, the prompt's without padding and then the kept ones; None if it was not
        asked for.
    """

    step_index: int
    token_index: int
    token_id: int
    token: str
    probability: float
    share: float
    rank: int
    alternatives: list[Alternative]
    rejected: list[RejectedAttempt]
    relevance: list[float] | None


def explain(
    kept: KeptToken, surfaces: Surfaces, *, top_k: int, relevance: Iterable[float] | None = None
) -> Explanation:
    """Return the explanation of a token whose distribution was recorded, with up to `top_k` alternatives."""
    choice = kept.choice
    assert choice is not None, "the distribution of this token was not recorded"
    return Explanation(
        step_index=kept.step_index,
        token_index=kept.token_index,
        token_id=kept.token,
        token=show_tokens(surfaces, [kept.token]),
        probability=choice.probability,
        share=choice.share,
        rank=choice.rank,
        alternatives=[
            Alternative(token_id=token, token=show_tokens(surfaces, [token]), share=share)
            for token, share in choice.alternatives[:top_k]
        ],
        rejected=[describe_attempt(attempt, surfaces) for attempt in kept.rejected],
        relevance=None if relevance is None else list(relevance),
    )


def describe_attempt(attempt: Attempt, surfaces: Surfaces) -> RejectedAttempt:
    """Return an attempt as plain data."""
    return RejectedAttempt(
        tokens=list(attempt.tokens),
        text=show_tokens(surfaces, attempt.tokens),
        ban=None if attempt.violation is None else attempt.violation.ban.phrase,
        probability=None if attempt.choice is None else attempt.choice.probability,
        share=None if attempt.choice is None else attempt.choice.share,
        step_index=attempt.step_index,
    )


def show_tokens(surfaces: Surfaces, tokens: Iterable[int]) -> str:
    """Return the text of tokens, special ones by their names."""
    runs = groupby(tokens, key=lambda token: token in surfaces.breaks)
    return "".join(
        "".join(map(surfaces.breaks.__getitem__, run)) if is_special else decode(surfaces, run)
        for is_special, run in runs
    )
