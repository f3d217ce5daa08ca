"""The texts under each unit to which bans may lead back; they are kept, so that an interrupted run goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, get_args

import antislop
from antislop import AntiSlop, Ban, BanList
from antislop.core.bans.units import Unit
from eval.loop_writers import choose_openings
from eval.prompts import HEROES, INTERESTS, TOPICS, fill, render
from eval.qualities import read_surprise
from eval.speed.measuring import Subject
from eval.writers import FIRST_SEED

PLAIN = "plain"
UNITS = get_args(Unit)
ROWS = 16  # texts that are written at once
READ = 32  # texts whose likelihood is read, the first ones
STOP_WORDS = ("the", "a", "of", "and", "in", "to", "with")
CONTRAST = 'Write a paragraph about {0}. Write sentences like "It was not just a hobby; it was a way of life."'


class Kind(NamedTuple):
    """Bans, and how many texts of how many tokens show what they cost.

    many: of plain texts, and of the two units that differ where a ban begins inside a word.
    form: of the requests, if the bans are rare in answers to others. Then only those texts are written again whose
        plain text contains a ban: the others would be the same.
    """

    bans: Callable[[], BanList]
    texts: int
    tokens: int
    many: int = 0
    form: str = ""


KINDS = {
    "the bundled list": Kind(antislop.default_bans, 16, 40),
    "the constructions": Kind(antislop.constructions, 24, 40, many=48, form=CONTRAST),
    'the letter "e"': Kind(lambda: BanList([Ban("e", edges="anywhere")]), 2, 24, many=200),
    "7 stop words": Kind(lambda: BanList(STOP_WORDS), 4, 12, many=16),
}


@dataclass(frozen=True)
class Text:
    """A text under one unit.

    number: of its opening and its random numbers.
    nll: nats per kept token under the untouched model; None if it was not read.
    """

    number: int
    text: str
    tokens: list[int]
    passes: int
    withdrawn: int
    rewinds: int
    conceded: int
    nll: float | None = None


def write_texts(
    subject: Subject, name: str, unit: str, folder: Path, *, seed: int, most: int, tokens: int
) -> list[Text]:
    """Return the texts of a kind under a unit, `most` at most; those that an earlier run wrote are read.

    If half of the first texts or more reach the sampler's limits of rewinds and so contain bans, no more are written.
    """
    kind = KINDS[name]
    has_many = kind.many and unit in ((PLAIN,) if kind.form else (PLAIN, "span", "word"))
    length, openings = min(tokens, kind.tokens), dict(enumerate(list_openings(subject, kind)))
    if kind.form and unit != PLAIN:
        plain = write_texts(subject, name, PLAIN, folder, seed=seed, most=most, tokens=tokens)
        openings = {own.number: openings[own.number] for own in plain if kind.bans().find(own.text)}
    wanted = list(islice(openings.items(), min(most, kind.many if has_many else kind.texts)))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{subject.name}-{''.join(filter(str.isalnum, name))}-{length}-{unit}-{seed}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    texts = [Text(**json.loads(line)) for line in lines]
    while len(texts) < len(wanted) and not are_limited(texts):
        batch = dict(wanted[len(texts) : len(texts) + ROWS])
        written = write_batch(subject, kind, unit, batch, tokens=length, seed=seed, reads=len(texts) < READ)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(text)) + "\n" for text in written)
        texts += written
    return texts[: len(wanted)]


def list_openings(subject: Subject, kind: Kind) -> list[str]:
    """Return the openings in any order, or requests to a chat model."""
    if not (kind.form and subject.is_chat):
        return choose_openings(subject, max(kind.many, kind.texts))
    requests = [render(subject.tokenizer, request) for request in fill((kind.form,), INTERESTS + TOPICS + HEROES)]
    random.Random(0).shuffle(requests)
    return requests


def are_limited(texts: Sequence[Text]) -> bool:
    """Return whether the unit is too dear: bans were let through in half of the texts or more."""
    return bool(texts) and 2 * sum(text.conceded > 0 for text in texts) >= len(texts)


def write_batch(
    subject: Subject, kind: Kind, unit: str, openings: Mapping[int, str], *, tokens: int, seed: int, reads: bool
) -> list[Text]:
    """Write one text for each opening, with the same random numbers under each unit."""
    settings = subject.settings() | {"max_new_tokens": tokens}
    del settings["return_dict_in_generate"]
    bans, rewind = (BanList([]), "span") if unit == PLAIN else (kind.bans(), unit)
    sampler = AntiSlop(subject.tokenizer, bans, rewind=rewind, prompt_lookback=False)  # type: ignore[arg-type]
    prompts = [list(subject.tokenizer(opening)["input_ids"]) for opening in openings.values()]
    seeds = [FIRST_SEED * seed + number for number in openings]
    done = sampler.generate_many(subject.model, prompts, batch_size=ROWS, seeds=seeds, **settings)
    ordered = sorted(done, key=lambda each: each.number)
    nll = read_surprise(subject, prompts, [each.tokens for each in ordered]).nll.tolist() if reads else []
    texts = []
    for place, (number, own) in enumerate(zip(openings, ordered, strict=True)):
        report, surprise = own.report, nll[place] if reads else None
        counts = (report.forward_passes, report.withdrawn_tokens, report.rewinds, report.conceded)
        texts.append(Text(number, own.text, own.tokens, *counts, surprise))
    return texts
