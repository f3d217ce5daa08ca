"""Draft the rest of an incomplete ban, which is about to be withdrawn.

Two tokens into a phrase, its likely continuation is read in the same forward pass as the second one. The nodes along it
are then known, so that a violation costs about one pass instead of one for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antislop.decoding.row import NO_DRAFT, Draft, Drafter, Row
from antislop.matching.token_matcher import Matcher

WAYS = 8
"""Phrases that begin alike and are looked at; beyond these a guess is hardly better than none."""
TRUST = 0.5
"""How many of the tokens read ahead must have been right, for a beginning of which some were tried."""
TRIES = 2


class PhraseDrafter:
    """Drafts the rest of bans. encode: returns the tokens of a text that follows other text."""

    def __init__(self, matcher: Matcher, encode: Callable[[str], Sequence[int]]) -> None:
        self._matcher = matcher
        self._encode = encode
        self._drafts: dict[tuple[str, ...], list[int]] = {}
        self._tried: dict[tuple[int, ...], list[int]] = {}  # by draft: [times, tokens that were right]

    def propose(self, row: Row) -> Draft:
        """Return the tokens that the incomplete bans continue with, if at least two of their tokens are written."""
        start, endings = self._matcher.expect(row.state, WAYS)
        if not endings or len(row.tokens) - start < 2:
            return NO_DRAFT
        key = tuple(endings)
        if key not in self._drafts:
            self._drafts[key] = common_start([list(self._encode(ending)) for ending in endings])
        draft = self._drafts[key]
        times, right = self._tried.get(tuple(draft), (0, 0))
        return NO_DRAFT if times >= TRIES and right < TRUST * times * len(draft) else Draft(draft)

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:  # noqa: ARG002
        """Count how many of a draft's tokens were accepted."""
        tried = self._tried.setdefault(tuple(row.draft.proposed), [0, 0])
        tried[0] += 1
        tried[1] += accepted


class _FirstDrafter:
    """Asks one drafter after another until one has a guess."""

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
    """Return a drafter that takes the guess of the first one that has any; None for none."""
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
