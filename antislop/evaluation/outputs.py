"""Outputs of several arms: finished texts, which prompt each answers, and what it cost.

They come from the records of a run or from files of texts, and are brought into one order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from antislop.datasets.samples import PLAIN
from antislop.lists.ban_list import BanList
from antislop.records.journal import Record
from antislop.records.texts import Text

COSTS = ("tokens", "nll", "violations", "withdrawn_tokens", "conceded", "forward_passes")
"""The names of costs that an output can have."""


class Piece(NamedTuple):
    """A stretch of text. kind: "kept", "withdrawn", "conceded", "admitted", or "banned"."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Output:
    """A finished text of one arm.

    key: what tells its prompt apart, None where nobody knows. sample: which of the texts to that prompt it is.
    costs: by the names in `COSTS`; what is unknown is missing.
    prompt: the text of it, for examples.
    """

    key: str | None
    sample: int
    text: str
    costs: Mapping[str, float] = field(default_factory=dict)
    prompt: str = ""
    pieces: Sequence[Piece] = ()

    @property
    def sums(self) -> dict[str, float]:
        """The costs, and the tokens that were drawn for it if they are known."""
        costs = dict(self.costs)
        if {"tokens", "withdrawn_tokens"} <= costs.keys():
            costs["drawn"] = costs["tokens"] + costs["withdrawn_tokens"]
        return costs


def read_outputs(texts: Iterable[Text], *, arm: str) -> list[Output]:
    """Return the texts of an arm as outputs.

    Records of `antislop dataset` have a column `arm`: where the arm is among them, the others are left out. Which of
    the texts to its prompt each is, says the column `sample`, or else its turn.
    """
    held = list(texts)
    own = [text for text in held if text.fields.get("arm") == arm]
    return list(_number(own or held))


def _number(texts: Iterable[Text]) -> Iterator[Output]:
    turns = Counter[str | None]()
    for text in texts:
        sample = text.fields.get("sample")
        sample = sample if isinstance(sample, int) else turns[text.prompt]
        turns[text.prompt] += 1
        prompt = text.fields.get("prompt")
        prompt = prompt if isinstance(prompt, str) else text.prompt or ""
        yield Output(text.prompt, sample, text.text, find_costs(text.fields), prompt)


def find_costs(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the costs in a record."""
    found = {name: record.get(name) for name in COSTS}
    found |= {name: sum(value.values()) for name, value in found.items() if isinstance(value, dict)}  # by ban
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def make_output(record: Record) -> Output:
    """Return a record of a run as an output."""
    pieces = [Piece(*piece) for piece in record.get("pieces", ())]
    return Output(record["key"], record["sample"], record["response"], find_costs(record), record["prompt"], pieces)


def align(arms: Mapping[str, Sequence[Output]]) -> tuple[dict[str, list[Output]], bool]:
    """Return the outputs of each arm that have a counterpart in each other one, in the same order, and True.

    Where prompts are not known or the arms share none, all outputs are returned, and False.
    """
    keyed = {arm: {(each.key, each.sample): each for each in outputs} for arm, outputs in arms.items()}
    known = all(each.key is not None for outputs in arms.values() for each in outputs)
    common = [name for name in next(iter(keyed.values()), {}) if all(name in outputs for outputs in keyed.values())]
    if not known or not common:
        return {arm: list(outputs) for arm, outputs in arms.items()}, False
    return {arm: [outputs[name] for name in common] for arm, outputs in keyed.items()}, True


class Example(NamedTuple):
    """A prompt and its texts by arm."""

    prompt: str
    texts: Mapping[str, Sequence[Piece]]


def find_examples(arms: Mapping[str, Sequence[Output]], bans: BanList, *, limit: int = 3) -> list[Example]:
    """Return the texts to the prompts whose plain texts contain the most bans, each prompt once. arms: aligned."""
    first = arms.get(PLAIN, next(iter(arms.values())))
    hits = [len(bans.find(each.text)) for each in first]
    chosen: dict[Any, int] = {}
    for place in sorted(range(len(first)), key=lambda i: -hits[i]):
        chosen.setdefault(first[place].key, place)
    return [
        Example(
            first[place].prompt,
            {arm: outputs[place].pieces or mark(outputs[place].text, bans) for arm, outputs in arms.items()},
        )
        for place in list(chosen.values())[:limit]
    ]


def mark(text: str, bans: BanList) -> list[Piece]:
    """Return a text in pieces, those that bans match as "banned".

    >>> mark("a cat sat", BanList(["cat"]))
    [Piece(text='a ', kind='kept'), Piece(text='cat', kind='banned'), Piece(text=' sat', kind='kept')]
    """
    pieces, end = [], 0
    for start, stop in _merge((match.start, match.end) for match in bans.find(text)):
        pieces += [Piece(text[end:start], "kept"), Piece(text[start:stop], "banned")]
        end = stop
    return [piece for piece in [*pieces, Piece(text[end:], "kept")] if piece.text]


def _merge(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans, which come in order, with those that overlap or touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
