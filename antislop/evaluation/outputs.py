"""Outputs of several arms, aligned by prompt: finished texts, their prompts, and their costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from antislop.core.bans import BanList
from antislop.datasets.samples import PLAIN
from antislop.files.journal import Record
from antislop.files.texts import Text
from antislop.files.thoughts import drop_thoughts

COSTS = ("tokens", "nll", "violations", "withdrawn_tokens", "conceded", "forward_passes")
EXAMPLE_PROMPTS = 3  # prompts whose texts are shown as examples


class Piece(NamedTuple):
    """A span of a text. kind: "kept", "conceded", "admitted", "banned", or one of `TextPiece.split_withdrawn`."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Output:
    """A finished text of one arm.

    key: identifies the prompt of the text; None if unknown.
    sample: the index of the text among the texts to the same prompt.
    costs: by the names in `COSTS`; unknown costs are absent.
    """

    key: str | None
    sample: int
    text: str
    costs: Mapping[str, float] = field(default_factory=dict)
    prompt: str = ""
    pieces: Sequence[Piece] = ()

    @property
    def sums(self) -> dict[str, float]:
        """The costs, and as "drawn" the number of drawn tokens, kept or withdrawn, if it is known."""
        costs = dict(self.costs)
        if {"tokens", "withdrawn_tokens"} <= costs.keys():
            costs["drawn"] = costs["tokens"] + costs["withdrawn_tokens"]
        return costs


def read_outputs(texts: Iterable[Text], *, arm: str) -> list[Output]:
    """Return the texts of an arm as outputs.

    If any text has this arm in its column `arm`, only texts that have it are returned. `Output.sample` is the column
    `sample`, or else counts the texts to the same prompt in the order of the file.
    """
    all_texts = list(texts)
    arm_texts = [text for text in all_texts if text.fields.get("arm") == arm]
    counts = Counter[str | None]()
    outputs = []
    for text in arm_texts or all_texts:
        sample = text.fields.get("sample")
        sample = sample if isinstance(sample, int) else counts[text.prompt]
        counts[text.prompt] += 1
        prompt = text.fields.get("prompt")
        prompt = prompt if isinstance(prompt, str) else text.prompt or ""
        outputs.append(Output(text.prompt, sample, text.text, find_costs(text.fields), prompt))
    return outputs


def find_costs(record: Mapping[str, Any]) -> dict[str, float]:
    costs = {name: record.get(name) for name in COSTS}
    costs |= {name: sum(value.values()) for name, value in costs.items() if isinstance(value, dict)}  # counts by ban
    return {name: float(value) for name, value in costs.items() if isinstance(value, (int, float))}


def make_output(record: Record) -> Output:
    """Return the output of a record; from the text, the thoughts of a reasoning model are removed."""
    pieces = [Piece(*piece) for piece in record.get("pieces", ())]
    text = drop_thoughts(record["response"], record["prompt"])
    return Output(record["key"], record["sample"], text, find_costs(record), record["prompt"], pieces)


def align(arms: Mapping[str, Sequence[Output]]) -> tuple[dict[str, list[Output]], bool]:
    """Return, in the same order for each arm, the outputs whose prompt and sample all arms have, and True.

    If prompts are unknown, or the arms have no output in common, return all outputs, and False.
    """
    keyed = {arm: {(output.key, output.sample): output for output in outputs} for arm, outputs in arms.items()}
    has_keys = all(output.key is not None for outputs in arms.values() for output in outputs)
    common = [name for name in next(iter(keyed.values()), {}) if all(name in outputs for outputs in keyed.values())]
    if not has_keys or not common:
        return {arm: list(outputs) for arm, outputs in arms.items()}, False
    return {arm: [outputs[name] for name in common] for arm, outputs in keyed.items()}, True


class Example(NamedTuple):
    prompt: str
    texts: Mapping[str, Sequence[Piece]]


def find_examples(arms: Mapping[str, Sequence[Output]], bans: BanList) -> list[Example]:
    """Return a text of each arm to the prompts whose plain texts contain the most bans. arms: from `align`."""
    plain_outputs = arms.get(PLAIN, next(iter(arms.values())))
    hits = [len(bans.find(output.text, overlaps=False)) for output in plain_outputs]
    chosen: dict[Any, int] = {}
    for place in sorted(range(len(plain_outputs)), key=lambda i: -hits[i]):
        chosen.setdefault(plain_outputs[place].key, place)
    return [
        Example(
            plain_outputs[place].prompt,
            {arm: outputs[place].pieces or mark(outputs[place].text, bans) for arm, outputs in arms.items()},
        )
        for place in list(chosen.values())[:EXAMPLE_PROMPTS]
    ]


def mark(text: str, bans: BanList) -> list[Piece]:
    """Return a text in pieces; matches of bans have the kind "banned".

    >>> mark("a cat sat", BanList(["cat"]))
    [Piece(text='a ', kind='kept'), Piece(text='cat', kind='banned'), Piece(text=' sat', kind='kept')]
    """
    merged: list[tuple[int, int]] = []  # spans that overlap or touch are one
    for match in bans.find(text):
        if merged and match.start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(match.end, merged[-1][1])
        else:
            merged.append((match.start, match.end))
    pieces, end = [], 0
    for start, stop in merged:
        pieces += [Piece(text[end:start], "kept"), Piece(text[start:stop], "banned")]
        end = stop
    return [piece for piece in [*pieces, Piece(text[end:], "kept")] if piece.text]
