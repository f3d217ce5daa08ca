"""Make the preference pairs of finished texts; the model continues withdrawn texts to the end of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from antislop.core.bans import BanList
from antislop.core.hf import Vocabulary
from antislop.core.loop import seed_of
from antislop.core.trace import Completion, Event
from antislop.datasets.pairs import (
    PairCount,
    PairDraft,
    PairFormat,
    PairSource,
    draft_dpo,
    find_corrections,
    finish_dpo,
    make_tokens,
)
from antislop.files.journal import Record
from antislop.measure.words import find_sentence_ends

MAX_CONTINUATION_TOKENS = 64
"""Limit of tokens of a continuation; a sentence has about twenty."""
TAIL_TOKENS = 24
"""Number of latest tokens in which the end of a sentence is searched."""


class SentenceEnd(StoppingCriteria):  # type: ignore[misc]  # transformers has no type for it
    """Stop a text when its latest token shows that a sentence ended before it. Stateless."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, input_ids: Tensor, scores: object, **_: Any) -> Tensor:  # noqa: ARG002
        return torch.tensor(
            [self._has_ended(ids) for ids in input_ids[:, -TAIL_TOKENS:].tolist()], device=input_ids.device
        )

    def rewind(self, row: int, length: int) -> None:
        """Do nothing: there is no state to rewind."""

    def _has_ended(self, ids: list[int]) -> bool:
        earlier_text, text = (self._vocabulary.join(part).decode(errors="replace") for part in (ids[:-1], ids))
        return _find_last_end(text) > _find_last_end(earlier_text)


def _find_last_end(text: str) -> int:
    """Return the end of the last sentence that is surely complete; 0 if there is none."""
    return max(find_sentence_ends(text, is_complete=False), default=0)


def settings_for_continuations(settings: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Let a text end with its sentence. Stop strings stay in force; minimum lengths are removed."""
    other_settings = {name: value for name, value in settings.items() if name not in ("min_new_tokens", "min_length")}
    criteria = [*(settings.get("stopping_criteria") or []), SentenceEnd(vocabulary)]
    return {
        **other_settings,
        "max_new_tokens": MAX_CONTINUATION_TOKENS,
        "stopping_criteria": StoppingCriteriaList(criteria),
    }


@dataclass
class Pairs:
    """The pairs of one text.

    ids: the tokens of its prompt.
    rows: finished pairs; `drafts` are to be continued.
    error: why a text could not be continued.
    """

    ids: Sequence[int] = ()
    seed: int = 0
    rows: list[Record] = field(default_factory=list)
    drafts: list[PairDraft] = field(default_factory=list)
    counts: Counter[PairCount] = field(default_factory=Counter)
    error: str | None = None


class _Continuation(NamedTuple):
    pairs: Pairs
    draft: PairDraft
    seed: int

    @property
    def ids(self) -> list[int]:
        return [*self.pairs.ids, *self.draft.tokens]


@dataclass(kw_only=True)
class PairMaker:
    """Makes pairs of one format.

    bans, settings: of the texts.
    fingerprint: of the tokenizer.
    write: writes a text after each prompt, under its seed and no bans; takes also `settings`, those of `generate`.
    find_room: returns the limit of tokens of a prompt, given the number of new tokens; None if unknown.
    find_ends: returns the tokens that end a text.
    """

    kind: PairFormat
    vocabulary: Vocabulary
    bans: BanList
    fingerprint: str
    settings: Mapping[str, Any]
    write: Callable[..., Iterator[Completion]]
    find_room: Callable[[int], int | None]
    find_ends: Callable[[], Collection[int]]

    def begin(self, source: PairSource, events: Sequence[Event], *, seed: int) -> Pairs:
        """Return the finished pairs of a text, and drafts of those that need the model."""
        pairs = Pairs(source.ids, seed)
        corrections = find_corrections(events, source.tokens)
        decoder, counts = self.vocabulary, pairs.counts
        if self.kind == "dpo":
            source = source._replace(is_complete=self._is_complete(source.tokens))
            pairs.drafts.extend(draft_dpo(source, corrections, decoder=decoder, counts=counts))
        else:
            pairs.rows.extend(
                make_tokens(
                    source, corrections, bans=self.bans, decoder=decoder, tokenizer=self.fingerprint, counts=counts
                )
            )
        return pairs

    def finish(self, waiting: Iterable[Pairs]) -> None:
        """Continue the withdrawn texts of all drafts together, and finish the pairs."""
        tasks = [
            _Continuation(pairs, draft, seed_of(pairs.seed, number))
            for pairs in waiting
            for number, draft in enumerate(pairs.drafts, start=1)
        ]
        for task, completion in self._continue(tasks):
            tokens = [] if completion is None else completion.tokens
            if completion is not None and completion.error is not None:
                task.pairs.error = str(completion.error)
            pair = finish_dpo(
                task.draft,
                tokens,
                ids=task.pairs.ids,
                decoder=self.vocabulary,
                is_complete=self._is_complete([*task.draft.tokens, *tokens]),
                counts=task.pairs.counts,
            )
            task.pairs.rows.extend([] if pair is None else [pair])

    def _continue(self, tasks: Sequence[_Continuation]) -> Iterator[tuple[_Continuation, Completion | None]]:
        """Yield each task and its continuation; None if the text has ended, or if there is no room."""
        room = self.find_room(MAX_CONTINUATION_TOKENS)
        numbers = [
            number
            for number, task in enumerate(tasks)
            if not self._is_complete(task.draft.tokens) and (room is None or len(task.ids) <= room)
        ]
        settings = settings_for_continuations(self.settings, self.vocabulary)
        prompts, seeds = (tasks[number].ids for number in numbers), (tasks[number].seed for number in numbers)
        completions = self.write(prompts, seeds, settings=settings) if numbers else ()
        by_number = {numbers[completion.number]: completion for completion in completions}
        return ((task, by_number.get(number)) for number, task in enumerate(tasks))

    def _is_complete(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self.find_ends()
