"""The ways to write without a list of phrases, all of them under the same settings: pure sampling of so many tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, takewhile
from typing import Any

import torch
from transformers import LogitsProcessor

from antislop import AntiSlop, BanList
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import MAX_REWINDS, Method
from antislop.datasets.maker import AvoidanceInstruction
from antislop.files.prompts import Prompt
from eval.naive import Naive, Phrases, fold, write_naively
from eval.speed import measuring
from eval.speed.measuring import REQUESTS

OPENING = 8  # tokens of a prompt, at least
ROWS = 32  # texts that are written at once
FIRST_SEED = 10_000
BIAS = -100.0  # what a logit bias of the servers may be at least
ROOM = 300  # tokens of a prompt with the instruction to avoid phrases


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
    """Return requests to a chat model, or openings of the model's own texts, which end before a new word.

    The openings are drawn from the model after a beginning-of-text token, or an end-of-text token if there is none, so
    that their continuations are typical of the model.
    """
    if subject.is_chat:
        return [list(subject.tokenizer(subject.prompt(number))["input_ids"]) for number in range(count)]
    begin = subject.tokenizer.bos_token_id
    start = torch.full((count, 1), int(subject.tokenizer.eos_token_id if begin is None else begin))
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
    """Write by rejection sampling with replacement."""
    banned, model, tokenizer = Phrases(phrases), task.subject.model, task.subject.tokenizer
    found, seeds = list[Naive](), task.seeds()
    for first in range(0, len(task.prompts), ROWS):
        prompts = task.prompts[first : first + ROWS]
        own = islice(seeds, len(prompts))
        found += write_naively(
            model,
            tokenizer,
            prompts,
            banned,
            tokens=task.subject.tokens,
            seeds=own,
            temperature=task.subject.temperature,
        )
        for _ in prompts:
            task.advance()
    violations, conceded = (sum(getattr(each, name) for each in found) for name in ("violations", "conceded"))
    return Written([each.tokens for each in found], violations, conceded)


def write_bad_words(task: Task, phrases: Sequence[str]) -> Written:
    """Write with transformers' `bad_words_ids`, by a sampler that bans nothing itself."""
    return Written(write_banned(task, (), bad_words_ids=spell(task.subject, phrases)).texts)


def write_biased(task: Task, phrases: Sequence[str]) -> Written:
    """Write with transformers' `sequence_bias`, a logit bias, by a sampler that bans nothing itself."""
    biases = [[tokens, BIAS] for tokens in spell(task.subject, phrases)]
    return Written(write_banned(task, (), sequence_bias=biases).texts)


def write_masked(task: Task, phrases: Sequence[str]) -> Written:
    """Write with `MaskCompletingTokens`, by a sampler that bans nothing itself."""
    return Written(write_banned(task, (), logits_processor=[MaskCompletingTokens(task.subject, phrases)]).texts)


def write_instructed(task: Task, phrases: Sequence[str]) -> Written:
    """Write without bans after prompts that begin with the instruction to avoid the phrases, as many as fit."""
    prompts, _ = instruct(task, phrases)
    return Written(write_banned(replace(task, prompts=prompts), ()).texts)


def instruct(task: Task, phrases: Sequence[str]) -> tuple[list[list[int]], int]:
    """Return the prompts with the instruction to avoid phrases, and how many phrases each names at least."""
    tokenizer: Any = task.subject.tokenizer
    avoid, room = AvoidanceInstruction(BanList(phrases), tokenizer), min(ROOM, task.subject.positions // 2)
    texts = [tokenizer.decode(prompt, skip_special_tokens=True) for prompt in task.prompts]
    if task.subject.is_chat:  # the instruction goes into the system message
        texts = [REQUESTS[number % len(REQUESTS)] for number in range(len(task.prompts))]
    told = [avoid.add_to(Prompt("", text, None, {}), room=room) for text in texts]
    return [tokenizer(prompt.text)["input_ids"] for prompt, _ in told], min(count for _, count in told)


class MaskCompletingTokens(LogitsProcessor):
    """Masks each token that would write the last letter of a banned phrase, in any tokenization.

    As in NCO (arXiv 2605.10065) the phrase's beginning stays in the text. A token that writes more letters of the same
    word is not masked. Like all processors it reads the prompt, too.
    """

    def __init__(self, subject: measuring.Subject, phrases: Sequence[str]) -> None:
        self.phrases, self._longest = sorted(phrases), max(map(len, phrases))
        self.vocabulary = Vocabulary.of(subject.tokenizer)
        surfaces = enumerate(self.vocabulary.surfaces[: int(subject.model.config.vocab_size)])
        self._tokens = sorted((fold(surface.decode(errors="replace"))[0], token) for token, surface in surfaces)
        banned = set(phrases)
        self._within = [token for surface, token in self._tokens if _holds_later(surface, banned)]
        self.find_endings = cache(self._find_endings)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, tokens in enumerate(input_ids[:, -self._longest :].tolist()):
            text = fold(self.vocabulary.join(tokens).decode(errors="replace"))[0]
            begun = [text[i:] for i in range(len(text) + 1) if not text[max(0, i - 1) : i].isalnum()]
            masked = [*self._within, *(token for start in begun for token in self.find_endings(start))]
            scores[row, masked] = -torch.inf
        return scores

    def _find_endings(self, start: str) -> list[int]:
        """Return the tokens that write the rest of the phrases that begin so."""
        phrases = self.phrases[bisect_left(self.phrases, start) :]
        rests = [phrase[len(start) :] for phrase in takewhile(lambda phrase: phrase.startswith(start), phrases)]
        spaced = [" " + rest for rest in rests if start.endswith(" ")]  # more white space counts as one space
        return [token for rest in (*rests, *spaced) if rest for token in self._find_tokens(rest)]

    def _find_tokens(self, rest: str) -> list[int]:
        """Return the tokens that begin with the rest of a phrase, unless its last word goes on in them."""
        after = (self._tokens[i] for i in range(bisect_left(self._tokens, (rest, 0)), len(self._tokens)))
        begin = takewhile(lambda pair: pair[0].startswith(rest), after)
        return [token for surface, token in begin if not surface[len(rest) :][:1].isalnum()]


def _holds_later(surface: str, phrases: Collection[str]) -> bool:
    """Return whether a token contains a phrase that begins behind a character that is no letter."""
    size = len(surface)
    edges = [i for i in range(1, size + 1) if i == size or not surface[i - 1 : i + 1].isalnum()]
    return any(surface[start:end] in phrases for start in edges for end in edges if end > start)


def spell(subject: measuring.Subject, phrases: Sequence[str]) -> list[list[int]]:
    """Return a phrase's token sequences: in lower case and capitalized, with and without a space before."""
    spellings = [space + form for phrase in phrases for form in (phrase, phrase.capitalize()) for space in ("", " ")]
    ids = subject.tokenizer(spellings, add_special_tokens=False)["input_ids"]
    return [list(each) for each in dict.fromkeys(map(tuple, ids)) if each]
