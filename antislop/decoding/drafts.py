"""Draft what may come next: the rest of an incomplete ban, or what a smaller model would write.

The rest of a phrase is read in the same forward pass as its second token. The nodes along it are then filled, so that
a violation costs about one pass instead of one for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from antislop.decoding.protocols import LanguageModel, RewindableCache, ScoreFunction, identity
from antislop.decoding.row import NO_DRAFT, Draft, Drafter, Row
from antislop.matching.token_matcher import Matcher

MAX_ENDINGS = 8
"""Draft only if at most 8 phrases share the beginning; with more, drafts are rarely accepted."""
MIN_ACCEPTED = 0.5
"""Share of a draft's tokens that must have been accepted after `TRIALS` for it to be tried again."""
TRIALS = 2


class PhraseDrafter:
    """Drafts the rest of bans. encode: returns the tokens of a text that follows other text."""

    def __init__(self, matcher: Matcher, encode: Callable[[str], Sequence[int]]) -> None:
        self._matcher = matcher
        self._encode = encode
        self._drafts: dict[tuple[str, ...], list[int]] = {}
        self._trials: dict[tuple[int, ...], list[int]] = {}  # by draft: [trials, accepted tokens]

    def propose(self, row: Row) -> Draft:
        """Return how the incomplete bans continue, once at least two of their tokens are written."""
        start, endings = self._matcher.expect(row.state, MAX_ENDINGS)
        if not endings or len(row.tokens) - start < 2:
            return NO_DRAFT
        key = tuple(endings)
        if key not in self._drafts:
            self._drafts[key] = common_start([list(self._encode(ending)) for ending in endings])
        draft = self._drafts[key]
        trials, accepted = self._trials.get(tuple(draft), (0, 0))
        return NO_DRAFT if trials >= TRIALS and accepted < MIN_ACCEPTED * trials * len(draft) else Draft(draft)

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:  # noqa: ARG002
        counts = self._trials.setdefault(tuple(row.draft.proposed), [0, 0])
        counts[0] += 1
        counts[1] += accepted


class ModelDrafter:
    """Drafts by a language model, usually a smaller one, that reads each text in a cache of its own.

    model: with the same vocabulary as the model that it drafts for.
    length: tokens per draft, at least 1.
    process: makes scores of its logits; it sees tokens that may never be written.
    """

    def __init__(self, model: LanguageModel, *, length: int = 5, process: ScoreFunction = identity) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; drafts of at least 1 token are expected")
        self._model = model
        self._length = length
        self._process = process
        self._caches: WeakKeyDictionary[Row, tuple[RewindableCache, list[int]]] = WeakKeyDictionary()

    @torch.no_grad()
    def propose(self, row: Row) -> Draft:
        ids = row.ids[0].tolist()
        proposals, before = [], len(ids)
        for _ in range(min(self._length, row.max_new_tokens - len(row.tokens) - 1)):
            logits = self._read(row, ids)
            _refuse_other_vocabulary(row, logits.shape[-1])
            token, probs = self._draw(row, ids, logits)
            ids.append(token)
            proposals.append(probs)
            if token in self._model.eos_token_id:
                break
        return Draft(ids[before:], torch.stack(proposals) if proposals and row.spec.policy.do_sample else None)

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:  # noqa: ARG002
        if row.is_finished:
            self._caches.pop(row, None)

    def _read(self, row: Row, ids: Sequence[int]) -> Tensor:
        """Read the ids that the row's cache does not hold; return the logits [1, vocab] after them."""
        if row not in self._caches:
            self._caches[row] = self._model.new_cache(1), []
        cache, held = self._caches[row]
        kept = count_shared(held, ids[:-1])
        if kept < len(held):
            kept = cache.rewind(0, kept)
        cache.settle(0, max(0, min(kept, row.prompt_length + row.settled - 1)))
        held[kept:] = ids[kept:]
        return self._model.forward(torch.tensor([held[kept:]]), cache)[:, -1].float()

    def _draw(self, row: Row, ids: Sequence[int], logits: Tensor) -> tuple[int, Tensor]:
        device = row.ids.device
        probs = torch.softmax(self._process(torch.tensor([ids], device=device), logits.to(device)), dim=-1)
        if row.spec.policy.do_sample:
            return int(torch.multinomial(probs, num_samples=1, generator=row.spec.generator)), probs[0]
        return int(probs.argmax()), probs[0]


class _FirstDrafter:
    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters
        self._used: dict[int, Drafter] = {}

    def propose(self, row: Row) -> Draft:
        for drafter in self._drafters:
            draft = drafter.propose(row)
            if draft.proposed:
                self._used[row.index] = drafter
                return draft
        return NO_DRAFT

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        self._used[row.index].learn(row, proposed=proposed, accepted=accepted)


def _refuse_other_vocabulary(row: Row, size: int) -> None:
    expected = row.kept[-1][0].shape[-1] if row.kept else size
    if size != expected:
        raise ValueError(
            f"the drafting model has a vocabulary of {size:,} tokens, and the model one of {expected:,}: pass one with "
            "the same tokens"
        )


def first_of(drafters: Sequence[Drafter]) -> Drafter | None:
    """Return a drafter that uses the first non-empty draft of several drafters; None for none."""
    if len(drafters) < 2:
        return drafters[0] if drafters else None
    return _FirstDrafter(drafters)


def count_shared(items: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the longest start that two sequences share.

    >>> count_shared([5, 6, 7], [5, 6, 8, 9])
    2
    """
    pairs = enumerate(zip(items, others, strict=False))
    return next((place for place, (item, other) in pairs if item != other), min(len(items), len(others)))


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
