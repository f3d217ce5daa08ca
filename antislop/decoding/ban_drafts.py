"""Draft the rest of an incomplete ban, so that its withdrawal costs fewer forward passes.

Once two tokens of a phrase are written, its likely continuation is read in the same forward pass as the second one. The
nodes along it are then filled, so that a violation costs about one pass instead of one for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antislop.decoding.row import NO_DRAFT, Draft, Drafter, Row
from antislop.matching.token_matcher import Matcher

WAYS = 8
"""Phrases with the same beginning that are compared: with more of them, a guess is hardly better than none."""
TRUST = 0.5
"""The share of a draft's tokens that must have been accepted so far for it to be tried again."""
TRIES = 2
"""Trials of a draft before its share of accepted tokens decides."""


class PhraseDrafter:
    """Drafts the rest of bans. encode: returns the tokens of a text that follows other text."""

    def __init__(self, matcher: Matcher, encode: Callable[[str], Sequence[int]]) -> None:
        self._matcher = matcher
        self._encode = encode
        self._drafts: dict[tuple[str, ...], list[int]] = {}
        self._trials: dict[tuple[int, ...], list[int]] = {}  # by draft: [trials, accepted tokens]

    def propose(self, row: Row) -> Draft:
        """Return the tokens that the incomplete bans continue with, if at least two of their tokens are written."""
        start, endings = self._matcher.expect(row.state, WAYS)
        if not endings or len(row.tokens) - start < 2:
            return NO_DRAFT
        key = tuple(endings)
        if key not in self._drafts:
            self._drafts[key] = common_start([list(self._encode(ending)) for ending in endings])
        draft = self._drafts[key]
        trials, accepted = self._trials.get(tuple(draft), (0, 0))
        return NO_DRAFT if trials >= TRIES and accepted < TRUST * trials * len(draft) else Draft(draft)

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:  # noqa: ARG002
        """Count how many of a draft's tokens were accepted."""
        counts = self._trials.setdefault(tuple(row.draft.proposed), [0, 0])
        counts[0] += 1
        counts[1] += accepted


class _FirstDrafter:
    """Asks its drafters in order until one returns tokens."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters
        self._used: dict[int, Drafter] = {}

    def propose(self, row: Row) -> Draft:
        for drafter in self._drafters:
            draft = drafter.propose(row)
            if draft.proposed:
                self._used[row.place] = drafter
                return draft
        return NO_DRAFT

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        self._used[row.place].learn(row, proposed=proposed, accepted=accepted)


def first_of(drafters: Sequence[Drafter]) -> Drafter | None:
    """Return a drafter that asks several in order and takes the first draft with tokens; None for no drafters."""
    if len(drafters) < 2:
        return drafters[0] if drafters else None
    return _FirstDrafter(drafters)


def common_start(texts: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest start that more than half of the texts share.

    >>> common_start([[5, 6, 7], [5, 6], [5, 8]])
    [5, 6]
    """
    start: list[int] = []
    while True:
        following = [text[len(start)] for text in texts if list(text[: len(start)]) == start and len(text) > len(start)]
        likeliest = max(set(following), key=following.count, default=None)
        if likeliest is None or following.count(likeliest) * 2 <= len(texts):
            return start
        start.append(likeliest)
