"""Make the preference pairs of finished texts; the model continues withdrawn texts to the end of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
"""How many of the latest tokens of a text are searched for the end of a sentence."""


@dataclass(eq=False)
class SentenceEnd(StoppingCriteria):  # type: ignore[misc]  # transformers has no type for it
    """Stop a text once its latest token shows that a sentence has ended. Remembers nothing between calls."""

    vocabulary: Vocabulary

    def __call__(self, input_ids: Tensor, scores: object, **_: Any) -> Tensor:  # noqa: ARG002
        has_ended = []
        for ids in input_ids[:, -TAIL_TOKENS:].tolist():
            texts = (self.vocabulary.join(part).decode(errors="replace") for part in (ids[:-1], ids))
            # The end of the last sentence that is surely complete, without the latest token and with it.
            before, after = (max(find_sentence_ends(text, is_complete=False), default=0) for text in texts)
            has_ended.append(after > before)
        return torch.tensor(has_ended, device=input_ids.device)

    def rewind(self, row: int, length: int) -> None:
        """Do nothing: there is no state to rewind."""


def settings_for_continuations(settings: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return settings with which a text ends at the end of its sentence: stop strings stay, minimum lengths go."""
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

    ids: the token ids of the prompt of the text.
    rows, drafts: finished pairs, and pairs whose rejected text the model has still to continue.
    error: why a rejected text could not be continued.
    """

    ids: Sequence[int] = ()
    seed: int = 0
    rows: list[Record] = field(default_factory=list)
    drafts: list[PairDraft] = field(default_factory=list)
    counts: Counter[PairCount] = field(default_factory=Counter)
    error: str | None = None


@dataclass(kw_only=True)
class PairMaker:
    """Makes preference pairs of one format.

    bans, settings: the bans and the arguments of `generate` that the texts were written with.
    fingerprint: of the tokenizer.
    write: yields a text without bans for each prompt, drawn with the seed of the prompt; see `RecordMakerBase.write`.
    find_room: returns how many tokens a prompt may have, given how many are to follow; None if unknown.
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
        """Return the pairs of a text: finished pairs, or drafts whose rejected text the model has still to continue."""
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
        """Continue the rejected texts of all drafts in the same batches, and add the pairs to `Pairs.rows`."""
        drafts, prompts, seeds = list[tuple[Pairs, PairDraft]](), dict[int, list[int]](), list[int]()
        room = self.find_room(MAX_CONTINUATION_TOKENS)
        for pairs in waiting:
            for number, draft in enumerate(pairs.drafts, start=1):
                prompt = [*pairs.ids, *draft.tokens]
                # A text that has ended, or that leaves no room, is not continued.
                if not self._is_complete(draft.tokens) and (room is None or len(prompt) <= room):
                    prompts[len(drafts)] = prompt
                    seeds.append(seed_of(pairs.seed, number))
                drafts.append((pairs, draft))
        settings = settings_for_continuations(self.settings, self.vocabulary)
        completions = self.write(iter(prompts.values()), iter(seeds), settings=settings) if prompts else ()
        places = list(prompts)
        written = {places[completion.number]: completion for completion in completions}
        for place, (pairs, draft) in enumerate(drafts):
            completion = written.get(place)
            tokens = [] if completion is None else completion.tokens
            if completion is not None and completion.error is not None:
                pairs.error = str(completion.error)
            pair = finish_dpo(
                draft,
                tokens,
                ids=pairs.ids,
                decoder=self.vocabulary,
                is_complete=self._is_complete([*draft.tokens, *tokens]),
                counts=pairs.counts,
            )
            pairs.rows.extend([] if pair is None else [pair])

    def _is_complete(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self.find_ends()
