"""Preference pairs out of what happened in a run: what a model wanted to write, and what it wrote instead.

Folds over events: no forward pass is needed. Knows tokens only as ids and their text through a function that decodes
them; no torch, no transformers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from antislop.bans import Ban
from antislop.events import Drawn, Event, Rewound
from antislop.records import Record

Decode: TypeAlias = Callable[[Sequence[int]], str]
PairFormat = Literal["dpo", "tokens"]


class Turn(NamedTuple):
    """A place in the final text where the model had first written something else.

    place: number of tokens before it. rejected: the tokens that were withdrawn. chosen: those that stand there now, as
    many. alternatives: tokens that might have followed, with their shares.
    """

    ban: Ban
    place: int
    rejected: tuple[int, ...]
    chosen: tuple[int, ...]
    alternatives: tuple[tuple[int, float], ...]


def find_turns(events: Iterable[Event], tokens: Sequence[int]) -> Iterator[Turn]:
    """Yield the rewinds of a run whose context still stands in its final tokens.

    Of a place that was gone back to several times each withdrawn text counts, with what stands there in the end.
    """
    text: list[int] = []
    rewinds: list[tuple[Rewound, tuple[int, ...]]] = []
    for event in events:
        if isinstance(event, Drawn):
            text.append(event.token)
        elif isinstance(event, Rewound):
            del text[event.length :]
            rewinds.append((event, tuple(text)))
    for event, before in rewinds:
        place = event.length
        chosen = tuple(tokens[place : place + len(event.withdrawn)])
        began_here = place == event.violation.start  # else what was withdrawn holds more than the ban
        if began_here and before == tuple(tokens[:place]) and chosen and chosen[0] != event.withdrawn[0]:
            yield Turn(event.violation.ban, place, event.withdrawn, chosen, event.alternatives)


def make_dpo(prompt: str, turns: Iterable[Turn], tokens: Sequence[int], *, decode: Decode) -> Iterator[Record]:
    """Yield rows with the columns of TRL's preference data sets, prompt, chosen and rejected, and the ban.

    The prompt holds the text up to the rewind; https://huggingface.co/docs/trl/dataset_formats#preference.
    """
    for turn in turns:
        before = decode(tokens[: turn.place])
        chosen, rejected = (
            decode([*tokens[: turn.place], *after])[len(before) :] for after in (turn.chosen, turn.rejected)
        )
        if chosen != rejected:
            yield {"prompt": prompt + before, "chosen": chosen, "rejected": rejected, "ban": turn.ban.phrase}


def make_tokens(
    prompt: str, turns: Iterable[Turn], tokens: Sequence[int], *, decode: Decode, floor: float = 0.01
) -> Iterator[Record]:
    """Yield final-token rows: a context, the token that began a ban, and the tokens that may come instead.

    floor: the smallest share of an alternative. Rows without any are left out.
    """
    for turn in turns:
        kept = [(token, share) for token, share in turn.alternatives if share >= floor and token != turn.rejected[0]]
        if kept:
            yield {
                "context_with_chat_template": prompt + decode(tokens[: turn.place]),
                "rejected_decoded": decode([turn.rejected[0]]),
                "rejected_id": turn.rejected[0],
                "multi_chosen_decoded": [decode([token]) for token, _ in kept],
                "multi_chosen_ids": [token for token, _ in kept],
                "multi_chosen_probs": [round(share, 6) for _, share in kept],
                "ban": turn.ban.phrase,
            }


def unique(rows: Iterable[Record]) -> Iterator[Record]:
    """Yield rows whose context and rejected text did not come before."""
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        columns = ("prompt", "context_with_chat_template", "rejected", "rejected_id")
        identity = tuple(row.get(column) for column in columns)
        if identity not in seen:
            seen.add(identity)
            yield row


def balance(rows: Iterable[Record], *, most: int, seed: int = 0) -> list[Record]:
    """Keep at most so many rows of each ban, drawn at random, in their order."""
    by_ban: dict[str, list[int]] = defaultdict(list)
    every = list(rows)
    for number, row in enumerate(every):
        by_ban[row["ban"]].append(number)
    chance = random.Random(seed)
    kept = {n for numbers in by_ban.values() for n in chance.sample(numbers, min(most, len(numbers)))}
    return [row for number, row in enumerate(every) if number in kept]
