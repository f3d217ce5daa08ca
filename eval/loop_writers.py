"""The ways to write texts that may loop, and the texts, which are kept so that an interrupted run goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import antislop
from antislop import AntiSlop, BanList
from antislop.steer import DryLogitsProcessor, find_breakers
from eval.prompts import list_openings, list_requests, render
from eval.speed.measuring import Subject
from eval.writers import FIRST_SEED, Task, write_plain

ROWS = 25  # texts that are written at once


@dataclass(frozen=True)
class Text:
    """What one way wrote after one opening.

    ended: whether it ended by itself.
    """

    opening: str
    text: str
    tokens: list[int]
    ended: bool
    withdrawn: int = 0
    conceded: int = 0


class Arm(NamedTuple):
    """A way to write: a sampler with bans, or settings of `generate` without one."""

    label: str
    bans: Callable[[], BanList] | None = None
    settings: Callable[[Subject], dict[str, Any]] = lambda _: {}


def make_dry(subject: Subject) -> dict[str, Any]:
    """Return the setting for DRY as it is usual: 0.8, 1.75 and 2, over the whole text, with llama.cpp's breakers."""
    breakers = find_breakers(subject.tokenizer)
    return {"logits_processor": [DryLogitsProcessor(0.8, breakers=breakers, pad_token_id=subject.pad)]}


ARMS = {
    "plain": Arm("plain"),
    "penalty": Arm("repetition_penalty 1.1", settings=lambda _: {"repetition_penalty": 1.1}),
    "ngrams": Arm("no_repeat_ngram_size 4", settings=lambda _: {"no_repeat_ngram_size": 4}),
    "dry": Arm("DRY 0.8 / 1.75 / 2", settings=make_dry),
    "loops": Arm("loops()", bans=antislop.loops),
    "stop": Arm('loops(then="stop")', bans=lambda: antislop.loops(then="stop")),
    "repeats": Arm("repeats()", bans=antislop.repeats),
}
GREEDY = 0.0
TEMPERATURES = {GREEDY: "greedy", 0.3: "temperature 0.3"}


def choose_openings(subject: Subject, count: int) -> list[str]:
    """Return openings of texts in any order, or requests to a chat model; fewer are the first of more."""
    openings = [render(subject.tokenizer, each) for each in list_requests()] if subject.is_chat else list_openings()
    random.Random(0).shuffle(openings)
    return openings[:count]


def write_texts(
    subject: Subject, arm: str, temperature: float, openings: Sequence[str], folder: Path, *, seed: int
) -> list[Text]:
    """Return a text for each opening; those that an earlier run wrote are read from the folder.

    Texts end with the model's end token, or at `subject.tokens`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{subject.name}-{subject.tokens}-{temperature}-{arm}-{seed}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    texts = [Text(**json.loads(line)) for line in lines]
    write = _write_with_bans if ARMS[arm].bans else _write_without
    while len(texts) < len(openings):
        batch = openings[len(texts) : len(texts) + ROWS]
        written = list(write(subject, ARMS[arm], temperature, batch, seed=seed * FIRST_SEED + len(texts)))
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(text)) + "\n" for text in written)
        texts += written
    return texts[: len(openings)]


def _write_without(
    subject: Subject, arm: Arm, temperature: float, openings: Sequence[str], *, seed: int
) -> Iterator[Text]:
    prompts = [list(subject.tokenizer(opening)["input_ids"]) for opening in openings]
    task = Task(subject, prompts, seed, lambda: None)
    settings = _choose_settings(subject, temperature) | arm.settings(subject)
    ends = settings["eos_token_id"]
    for opening, row in zip(openings, write_plain(task, rows=len(prompts), **settings).texts, strict=True):
        length = next((i for i, token in enumerate(row) if token == ends), len(row))
        text = str(subject.tokenizer.decode(row[:length], skip_special_tokens=True))
        yield Text(opening, text, row[:length], length < len(row))


def _write_with_bans(
    subject: Subject, arm: Arm, temperature: float, openings: Sequence[str], *, seed: int
) -> Iterator[Text]:
    assert arm.bans is not None
    sampler = AntiSlop(subject.tokenizer, arm.bans())
    settings = subject.settings() | _choose_settings(subject, temperature)
    del settings["return_dict_in_generate"]
    written = sampler.generate_many(
        subject.model, list(openings), batch_size=len(openings), seeds=range(seed, seed + len(openings)), **settings
    )
    for done in sorted(written, key=lambda text: text.number):
        report, ends = done.report, settings["eos_token_id"]
        tokens = [token for token in done.tokens if token != ends]
        ended = len(tokens) < subject.tokens
        yield Text(openings[done.number], done.text, tokens, ended, report.withdrawn_tokens, report.conceded)


def _choose_settings(subject: Subject, temperature: float) -> dict[str, Any]:
    end: Any = subject.model.generation_config.eos_token_id  # type: ignore[union-attr]
    drawn = {"do_sample": True, "temperature": temperature} if temperature > GREEDY else {"do_sample": False}
    return {"eos_token_id": end, "temperature": None, "top_k": 0, **drawn}
