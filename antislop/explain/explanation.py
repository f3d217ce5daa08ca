"""Explanations of kept tokens as plain data, made from the trace of a call."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TypedDict

from antislop.core.bans import Surfaces, decode
from antislop.core.trace import Attempt, TracedRow


class Alternative(TypedDict):
    """A token that was left to draw.

    share: its part of what bans had left of the distribution by then.
    """

    token_id: int
    token: str
    share: float


class RejectedAttempt(TypedDict):
    """Tokens that were withdrawn together, in place of a kept token.

    ban: the text of the ban that they completed; None if other rows of the batch caused the rewind.
    probability: of the first token, as in `Explanation`; None if it was not recorded.
    share: of the first token, as in `Explanation`; None if it was not recorded.
    step_index: of the first token, as in `Explanation`.
    """

    tokens: list[int]
    text: str
    ban: str | None
    probability: float | None
    share: float | None
    step_index: int


class Explanation(TypedDict):
    """Why a token is in the text, as plain data for JSON.

    step_index: number of tokens drawn for this text before it, including withdrawn ones.
    token_index: index among the kept tokens, from 0.
    token: its text; a part of a character is U+FFFD, a special token has its name.
    probability: under the processed scores, which `generate` would draw from.
    share: its part of what bans had left of that distribution by then.
    rank: among the tokens left, 1 for the likeliest.
    alternatives: the likeliest tokens left, likeliest first, including the token itself if it is likely enough.
    rejected: attempts that were withdrawn here after the same tokens, in order.
    relevance: a number for each earlier token, the prompt's without padding and then the kept ones; None if it was not
        requested.
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
    row: TracedRow, index: int, surfaces: Surfaces, *, top_k: int, relevance: Iterable[float] | None = None
) -> Explanation:
    """Explain a kept token whose distribution was recorded, with up to `top_k` alternatives."""
    kept = row.history.kept[index]
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
    return RejectedAttempt(
        tokens=list(attempt.tokens),
        text=show_tokens(surfaces, attempt.tokens),
        ban=None if attempt.violation is None else attempt.violation.ban.text,
        probability=None if attempt.choice is None else attempt.choice.probability,
        share=None if attempt.choice is None else attempt.choice.share,
        step_index=attempt.step_index,
    )


def show_tokens(surfaces: Surfaces, tokens: Iterable[int]) -> str:
    """Return the text of tokens, with the names of special ones."""
    runs = groupby(tokens, key=lambda token: token in surfaces.breaks)
    return "".join(
        "".join(map(surfaces.breaks.__getitem__, run)) if is_special else decode(surfaces, run)
        for is_special, run in runs
    )
