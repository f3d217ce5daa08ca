"""Draft the next tokens of texts with a smaller language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from antislop.core.bans.refusals import sentence
from antislop.core.loop.engine import HeldRow
from antislop.core.loop.protocols import LanguageModel, RewindableCache, fill_left, identity
from antislop.core.loop.row import NO_DRAFT, Draft, Row

FILLER = [0]
"""What a row is fed that has nothing to read in a forward pass."""


class ModelDrafter:
    """Drafts by a language model, usually a smaller one: one forward pass for a token of each row.

    model: the drafting model, which has the same vocabulary as the model that checks the drafts.
    length: tokens per draft, at least 1.
    process: makes scores [rows, vocab] of ids and logits, as transformers' processors do; the ids include drafted
        tokens, which may never be written.
    """

    def __init__(
        self, model: LanguageModel, *, length: int = 5, process: Callable[[Tensor, Tensor], Tensor] = identity
    ) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; drafts of at least 1 token are expected")
        self._model = model
        self._length = length
        self._process = process
        self._readers: WeakKeyDictionary[Row, BatchReader] = WeakKeyDictionary()  # one for all rows
        self._prompts: WeakKeyDictionary[Row, list[int]] = WeakKeyDictionary()

    @torch.no_grad()
    def propose(self, rows: Sequence[Row]) -> list[Draft]:
        guesses = [_Guess(row, self.limit(row), self.generator_of(row)) for row in rows]
        drafting = [guess for guess in guesses if guess.limit > 0]
        if not drafting:
            return [NO_DRAFT] * len(rows)
        reader = next(iter(self._readers.values()), None) or BatchReader(self._model)
        self._readers.update({guess.row: reader for guess in drafting})
        for guess in drafting:
            if guess.row not in self._prompts:
                self._prompts[guess.row] = self.prompt_of(guess.row)  # reading it anew would wait for its device
        queries = reader.find_unread({guess.row: self._prompts[guess.row] + guess.row.tokens for guess in drafting})
        while drafting:
            logits = reader.read(queries)
            size, kept = logits.shape[-1], drafting[0].row.kept
            if kept and size != (expected := kept[-1][0].shape[-1]):
                raise ValueError(sentence("other vocabulary", size=size, expected=expected))
            drafting = self._add(drafting, logits)
            queries = {guess.row: guess.tokens[-1:] for guess in drafting}
        return [guess.as_draft() for guess in guesses]

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        pass

    # -- what a subclass may decide --

    def limit(self, row: Row) -> int:
        """Return how many tokens to draft at most."""
        return min(self._length, row.max_new_tokens - len(row.tokens) - 1)

    def generator_of(self, row: Row) -> torch.Generator | None:
        """Return the generator that a row's draft is drawn with; None for torch's global random numbers."""
        return row.spec.generator

    def prompt_of(self, row: Row) -> list[int]:
        prompt: list[int] = row.spec.prompt[0].tolist()
        return prompt

    def score(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores [rows, vocab] for logits [rows, vocab], which follow `lengths[i]` tokens of each row."""
        texts = [row.ids_up_to(length) for row, length in zip(rows, lengths, strict=True)]
        return torch.cat([self._process(ids, each[None]) for ids, each in zip(texts, logits, strict=True)])

    def is_sure(self, row: Row, probability: float) -> bool:  # noqa: ARG002
        """Report whether to draft further tokens after one that had this probability."""
        return True

    def _add(self, guesses: Sequence[_Guess], logits: Tensor) -> list[_Guess]:
        """Draw a token for each guess, and return the guesses that get another token."""
        rows = [guess.row for guess in guesses]
        for guess in guesses:
            guess.row.draft = Draft(guess.tokens)  # so that processors read the drafted ids, too
        lengths = [len(guess.row.tokens) + len(guess.tokens) for guess in guesses]
        scores = self.score(rows, lengths, logits.to(rows[0].spec.prompt.device))
        probs = torch.softmax(scores, dim=-1)
        drawn = _draw(guesses, scores, probs)
        chosen = probs.gather(1, drawn[:, None])[:, 0]
        going, ends = [], self._model.eos_token_id
        for guess, token, p, row_probs in zip(guesses, drawn.tolist(), chosen.tolist(), probs, strict=True):
            if math.isnan(p):  # the draft ends before this token
                continue
            guess.tokens.append(token)
            guess.proposals.append(row_probs)
            if self.is_sure(guess.row, p) and len(guess.tokens) < guess.limit and token not in ends:
                going.append(guess)
        return going


@dataclass
class _Guess:
    """The draft of a row while its tokens are drawn. limit: how many tokens it may have."""

    row: Row
    limit: int
    generator: torch.Generator | None
    tokens: list[int] = field(default_factory=list)
    proposals: list[Tensor] = field(default_factory=list)

    def as_draft(self) -> Draft:
        if not self.tokens:
            return NO_DRAFT
        return Draft(self.tokens, torch.stack(self.proposals) if self.row.spec.policy.do_sample else None)


def _draw(guesses: Sequence[_Guess], scores: Tensor, probs: Tensor) -> Tensor:
    """Draw a token for each guess, [guesses], from scores and probabilities [guesses, vocab]; NaN gives any token."""
    probs = probs.nan_to_num(nan=1.0)  # torch would refuse all rows because of one
    sampled = [number for number, guess in enumerate(guesses) if guess.row.spec.policy.do_sample]
    shared = [number for number in sampled if guesses[number].generator is None]
    if len(shared) == len(guesses):
        return torch.multinomial(probs, num_samples=1)[:, 0]
    drawn = scores.argmax(dim=-1)
    if shared:
        drawn[shared] = torch.multinomial(probs[shared], num_samples=1)[:, 0]
    for number in sampled:
        if (generator := guesses[number].generator) is not None:
            own = probs[number].to(generator.device)
            drawn[number] = torch.multinomial(own, num_samples=1, generator=generator)[0]
    return drawn


class BatchReader:
    """Reads the texts of many rows with one language model, in one cache; refers to rows only weakly."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._seats: list[ref[Row]] = []  # by place in the cache
        self._held: list[HeldRow] = []
        self._cache: RewindableCache

    def find_unread(self, texts: Mapping[Row, list[int]]) -> dict[Row, list[int]]:
        """Remove withdrawn tokens from the cache; return the ids of each text that it lacks, at least the last one."""
        self._seat(texts)
        unread = {}
        for row, ids in texts.items():
            place = self._place_of(row)
            held = self._held[place]
            held.base = self._cache.lengths[place] - len(held.fed)  # the padding of a first pass over several texts
            held.cut_back(self._cache, place, ids, settled=len(ids) - len(row.tokens) + row.settled - 1)
            unread[row] = ids[len(held.fed) :]
        return unread

    def read(self, queries: Mapping[Row, list[int]]) -> Tensor:
        """Read the next ids of some rows; return the logits after each row's last one, [rows, vocab]."""
        places = {self._place_of(row): ids for row, ids in queries.items()}
        for place, row in enumerate(self._rows()):
            if row is None:
                self._held[place] = HeldRow()
                self._cache.rewind(place, 0)
            # A row that drafts no more is fed a filler, which `find_unread` removes.
            self._held[place].fed += places.get(place, FILLER)
        unread = [places.get(place, FILLER) for place in range(len(self._held))]
        logits = self._model.forward(fill_left(unread), self._cache)[:, -1].float()
        return logits if list(places) == list(range(len(unread))) else logits[list(places)]

    def _seat(self, texts: Mapping[Row, list[int]]) -> None:
        """Give each row a place: that of a finished text, or if these are too few, one in a new cache for all."""
        seated = self._rows()
        new = [row for row in texts if row not in seated]
        free = [place for place, row in enumerate(seated) if row is None]
        if len(new) > len(free) or len(free) == len(seated):
            rows = [row for row in seated if row is not None] + new
            self._seats, self._held = [ref(row) for row in rows], [HeldRow() for _ in rows]
            self._cache = self._model.new_cache(len(rows))
            return
        for place, row in zip(free, new, strict=False):
            read, prompt_length = texts[row][:-1], len(texts[row]) - len(row.tokens)
            cache = self._model.new_cache(1)
            cache.settle(0, prompt_length)
            self._model.forward(torch.tensor([read]), cache)
            self._cache.copy(place, cache, source=0, length=len(read))
            self._cache.settle(place, prompt_length)
            self._seats[place], self._held[place] = ref(row), HeldRow(fed=read)

    def _rows(self) -> list[Row | None]:
        """Return the unfinished row at each place; None where there is none."""
        return [row if row is not None and not row.is_finished else None for row in (seat() for seat in self._seats)]

    def _place_of(self, row: Row) -> int:
        return next(place for place, seat in enumerate(self._seats) if seat() is row)
