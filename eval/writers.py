"""The ways to write without a list of phrases, all of them under the same settings: pure sampling of so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from antislop import AntiSlop
from antislop.decoding.policy import MAX_REWINDS, Method
from antislop.hf.vocabulary import Vocabulary
from eval.naive import Phrases, write_naively
from eval.speed import measuring

OPENING = 8  # tokens of a prompt, at least
ROWS = 32  # texts that are written at once
FIRST_SEED = 10_000


@dataclass(frozen=True)
class Written:
    """Texts [prompts], in the prompts' order. violations, conceded: None if a writer can't count them.

    passes: forward passes of each text; empty if a writer doesn't count them.
    """

    texts: list[list[int]]
    violations: int | None = None
    conceded: int | None = None
    passes: Sequence[int] = ()


@dataclass(frozen=True)
class Task:
    """The task of all writers: one text for each prompt.

    advance: called for each finished text.
    """

    subject: measuring.Subject
    prompts: Sequence[Sequence[int]]
    seed: int
    advance: Callable[[], None]

    def seeds(self) -> Iterator[int]:
        return iter(range(FIRST_SEED * self.seed, FIRST_SEED * self.seed + len(self.prompts)))


def draw_prompts(subject: measuring.Subject, count: int, seed: int) -> list[list[int]]:
    """Return openings of the model's own texts, which end before a new word.

    They are drawn from the model after a beginning-of-text token, so that their continuations are typical of the model.
    """
    start = torch.full((count, 1), int(subject.tokenizer.bos_token_id))
    written = subject.write_rows(start, seed=FIRST_SEED - seed, max_new_tokens=2 * OPENING).tokens
    rows = torch.tensor(written).view(count, -1).tolist()
    surfaces = Vocabulary.of(subject.tokenizer)
    ends = [
        next((i for i in range(OPENING, len(row)) if surfaces.surface(row[i])[:1] == b" "), OPENING) for row in rows
    ]
    return [[int(start[0, 0]), *row[:end]] for row, end in zip(rows, ends, strict=True)]


def write_plain(task: Task, *, rows: int = ROWS, **settings: Any) -> Written:
    """Write with `generate` in left-padded batches; settings: further arguments of `generate`."""
    texts: list[list[int]] = []
    for first in range(0, len(task.prompts), rows):
        prompts = task.prompts[first : first + rows]
        longest = max(map(len, prompts))
        ids = torch.tensor([[task.subject.pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        seed = FIRST_SEED * task.seed + first
        written = task.subject.write_rows(ids, seed=seed, attention_mask=mask, **settings)
        texts += torch.tensor(written.tokens).view(len(prompts), -1).tolist()
        for _ in prompts:
            task.advance()
    return Written(texts)


def write_banned(
    task: Task, phrases: Sequence[str], method: Method = "exact", *, max_rewinds: int = MAX_REWINDS, **more: Any
) -> Written:
    """Write with `generate_many`. Phrases that begin in the prompt don't count, as for the oracle.

    more: further arguments of `generate`.

    Without phrases it draws as `generate` does. The sampler with phrases and the oracle use the same random numbers, so
    all texts are the same up to the first violation.
    """
    sampler = AntiSlop(
        task.subject.tokenizer, list(phrases), method=method, max_rewinds=max_rewinds, prompt_lookback=False
    )
    settings = task.subject.settings()
    del settings["return_dict_in_generate"]
    done = {}
    prompts = [list(prompt) for prompt in task.prompts]
    for text in sampler.generate_many(
        task.subject.model, prompts, batch_size=ROWS, seeds=task.seeds(), **(settings | more)
    ):
        done[text.number] = text
        task.advance()
    ordered = [done[number] for number in range(len(prompts))]
    reports = [text.report for text in ordered]
    conceded = sum(report.conceded for report in reports)
    violations, passes = sum(report.violations for report in reports), [report.forward_passes for report in reports]
    return Written([text.tokens for text in ordered], violations, conceded, passes)


def write_oracle(task: Task, phrases: Sequence[str]) -> Written:
    """Write by rejection sampling with replacement, text by text."""
    banned, model, tokenizer = Phrases(phrases), task.subject.model, task.subject.tokenizer
    found = []
    for prompt, seed in zip(task.prompts, task.seeds(), strict=True):
        found.append(write_naively(model, tokenizer, prompt, banned, tokens=task.subject.tokens, seed=seed))
        task.advance()
    violations, conceded = (sum(getattr(each, name) for each in found) for name in ("violations", "conceded"))
    return Written([each.tokens for each in found], violations, conceded)


def write_bad_words(task: Task, phrases: Sequence[str]) -> Written:
    """Write with transformers' `bad_words_ids`, by a sampler that bans nothing itself."""
    return Written(write_banned(task, (), bad_words_ids=spell(task.subject, phrases)).texts)


def spell(subject: measuring.Subject, phrases: Sequence[str]) -> list[list[int]]:
    """Return a phrase's token sequences: in lower case and capitalized, with and without a space before."""
    spellings = [space + form for phrase in phrases for form in (phrase, phrase.capitalize()) for space in ("", " ")]
    ids = subject.tokenizer(spellings, add_special_tokens=False)["input_ids"]
    return [list(each) for each in dict.fromkeys(map(tuple, ids)) if each]
