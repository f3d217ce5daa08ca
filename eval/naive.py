"""The oracle on a real model: draw token by token; on a violation cut back to its start and draw again.

With replacement, and independent of the sampler's code: no matcher, no ledger, no cache of its own. Only for phrases
of letters, apostrophes and single spaces.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

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


@torch.no_grad()
def write_naively(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[int],
    phrases: Phrases,
    *,
    tokens: int,
    seed: int,
) -> Naive:
    """Write `tokens` tokens at temperature 1 from the whole vocabulary. Phrases starting in the prompt don't count."""
    generator = torch.Generator().manual_seed(seed)
    cache = DynamicCache()
    fed, kept, lengths = list(prompt), list[int](), [0]
    violations, conceded, here = 0, 0, 0
    while len(kept) < tokens:
        logits = model(torch.tensor([fed]), past_key_values=cache, use_cache=True).logits[0, -1]
        kept.append(int(torch.multinomial(torch.softmax(logits.float(), dim=-1), 1, generator=generator)))
        text = tokenizer.decode(kept)
        start = phrases.find(text, since=lengths[-1], is_final=len(kept) == tokens)
        lengths.append(len(text))
        violations += start is not None
        if start is not None and here < PATIENCE:
            here += 1
            first = next(i for i, end in enumerate(lengths[1:]) if end > start)
            del kept[first:], lengths[first + 1 :]
            cache.crop(-(cache.get_seq_length() - (len(prompt) + first - 1)))
        else:
            conceded += start is not None
            here = 0 if start is None else here
        fed = [[*prompt, *kept][-1]]
    return Naive(kept, violations, conceded)
