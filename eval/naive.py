"""The oracle on a real model: draw token by token; on a violation cut back to its start and draw again.

With replacement, and independent of the sampler's code: no matcher, no ledger, no cache of its own. Only for phrases
of letters, apostrophes and single spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.hf.private import CACHE

PATIENCE = 10_000  # violations at a place before one is let through
MARGIN = 8  # characters beside the longest phrase: what white space may add
STRAIGHT = {"\u2019": "'", "\u2018": "'", "\u02bc": "'"}


@dataclass(frozen=True)
class Naive:
    """A text, and its counts.

    conceded: violations that were let through, since their position had too many.
    """

    tokens: list[int]
    violations: int
    conceded: int


class Phrases:
    """The banned phrases, by length."""

    def __init__(self, phrases: Collection[str]) -> None:
        self.all = frozenset(phrases)
        self.lengths = sorted({len(phrase) for phrase in self.all}, reverse=True)

    def find(self, text: str, *, since: int, is_final: bool) -> int | None:
        """Return the first start of a phrase, among the phrases whose end is decided after `since`.

        A phrase must not be followed by a letter or digit, so the next character or the end of the text decides it.
        """
        offset = max(0, since - max(self.lengths, default=0) - MARGIN)
        offset -= offset and text[offset - 1].isspace()  # so that a space before a phrase is seen
        folded, places = fold(text[offset:])
        starts = [
            end - length
            for end in range(1, len(folded) + is_final)
            if end == len(folded) or (offset + places[end] >= since and not folded[end].isalnum())
            for length in self.lengths
            if length <= end and folded[end - length : end] in self.all
        ]
        free = [start for start in starts if (offset + places[start] == 0) or not folded[start - 1].isalnum()]
        return min((offset + places[start] for start in free), default=None)


def fold(text: str) -> tuple[str, list[int]]:
    """Return a text in lower case with straight apostrophes and single spaces, and each character's original place."""
    folded: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        character = " " if character.isspace() else STRAIGHT.get(character, character.lower())
        if character == " " and folded and folded[-1] == " ":
            continue
        folded.append(character if len(character) == 1 else "\ufffd")
        places.append(place)
    return "".join(folded), places


class Row:
    """A text that is being written.

    slots: places in the shared cache of the tokens before the next one, from the prompt's last token on.
    """

    def __init__(self, prompt: Sequence[int], seed: int) -> None:
        self.prompt = list(prompt)
        self.generator = torch.Generator().manual_seed(seed)
        self.kept: list[int] = []
        self.lengths = [0]
        self.slots: list[int] = []
        self.violations = self.conceded = self._here = 0

    def draw(self, logits: torch.Tensor, phrases: Phrases, decode: Callable[[list[int]], str], *, tokens: int) -> int:
        """Draw a token; on a violation cut back to its start. Return how many slots stay."""
        sums = torch.softmax(logits.float(), dim=-1).flatten().double().cumsum(dim=0)
        share = 1 - torch.rand((), dtype=torch.float64, generator=self.generator)
        self.kept.append(int(torch.searchsorted(sums, share * sums[-1])))
        text = decode(self.kept)
        start = phrases.find(text, since=self.lengths[-1], is_final=len(self.kept) == tokens)
        self.lengths.append(len(text))
        self.violations += start is not None
        if start is None or self._here >= PATIENCE:
            self.conceded += start is not None
            self._here = 0 if start is None else self._here
            return len(self.slots)
        self._here += 1
        first = next(i for i, end in enumerate(self.lengths[1:]) if end > start)
        del self.kept[first:], self.lengths[first + 1 :]
        return first  # the token before the violation is read again, in a new slot


@torch.no_grad()
def write_naively(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    phrases: Phrases,
    *,
    tokens: int,
    seeds: Iterable[int],
    temperature: float = 1.0,
) -> list[Naive]:
    """Write `tokens` tokens from the whole vocabulary. Phrases starting in the prompt don't count.

    Nothing is cut out of the cache that the texts share: what was withdrawn is masked, and its slot stays empty. So a
    sliding window must be longer than all that is drawn.
    """
    rows = [Row(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
    width = max(map(len, prompts))
    fed = torch.tensor([[0] * (width - len(row.prompt)) + row.prompt for row in rows])
    mask = torch.tensor([[0] * (width - len(row.prompt)) + [1] * len(row.prompt) for row in rows])
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    cache = DynamicCache()
    while any(len(row.kept) < tokens for row in rows):
        output = model(fed, attention_mask=mask, position_ids=places, **{CACHE: cache}, logits_to_keep=1)
        for number, row in enumerate(rows):
            row.slots.append(mask.shape[1] - 1)
            if len(row.kept) < tokens:
                logits = output.logits[number, -1] / temperature
                stay = row.draw(logits, phrases, tokenizer.decode, tokens=tokens)
                mask[number, row.slots[stay:]] = 0
                del row.slots[stay:]
        fed = torch.tensor([[[*row.prompt, *row.kept][-1]] for row in rows])
        places = torch.tensor([[len(row.prompt) + len(row.kept) - 1] for row in rows])
        mask = torch.cat([mask, torch.ones_like(fed)], dim=1)
    return [Naive(row.kept, row.violations, row.conceded) for row in rows]
