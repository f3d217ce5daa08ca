"""Check what the sampler relies on in a language model and its cache: a function for each property.

>>> from antislop.engines.contract import check_language_model
>>> check_language_model(model)  # doctest: +SKIP

In a test suite, call each function of `CHECKS` with a `Subject`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor

from antislop.core.loop import PAD, KVState, LanguageModel, RewindableCache, fill_left
from antislop.engines.inferencer import KVCache

ONE, TWO, NEW = [2, 5, 9, 3, 11], [8, 8, 4, 1, 7], [3, 10, 6]


class ContractError(AssertionError):
    """Raised for a model or cache that lacks a property that the sampler relies on."""


@dataclass(frozen=True)
class Subject:
    """A model to be checked, and helpers for the checks.

    oracle: returns the logits [vocab] after some tokens, computed in another way; by default, with a new cache.
    tolerance: largest absolute difference at which logits count as equal.
    """

    model: LanguageModel
    oracle: Callable[[Sequence[int]], Tensor] | None = None
    tolerance: float = 1e-4

    @cached_property
    def vocabulary_size(self) -> int:
        size = int(self.model.forward(torch.tensor([[0]]), self.model.new_cache(1)).shape[-1])
        _expect(size >= 4, f"a vocabulary of {size} tokens where at least 4 are expected")
        return size

    def after(self, tokens: Sequence[int]) -> Tensor:
        if self.oracle is not None:
            return self.oracle(tokens)
        return self.model.forward(torch.tensor([tokens]), self.model.new_cache(1))[0, -1]

    def new_cache(self, rows: int) -> KVCache:
        """Return a cache of the model; only `STATE_CHECKS` call the methods that a `RewindableCache` may lack."""
        return cast(KVCache, self.model.new_cache(rows))

    def read(self, *rows: Sequence[int]) -> KVCache:
        """Return a cache that has read rows of equal length."""
        cache = self.new_cache(len(rows))
        self.forward(rows, cache)
        return cache

    def forward(self, rows: Sequence[Sequence[int]], cache: RewindableCache) -> Tensor:
        """Feed rows, filled on their left; return the logits [rows, queries, vocab]."""
        return self.model.forward(fill_left([self.to_ids(row) for row in rows]), cache)

    def to_ids(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of a check, reduced to the size of the model's vocabulary."""
        return [token if token == PAD else token % self.vocabulary_size for token in tokens]

    def expect_logits(self, logits: Tensor, tokens: Sequence[int]) -> None:
        expected = self.after(self.to_ids(tokens))
        if not torch.allclose(logits, expected.to(logits), atol=self.tolerance):
            difference = float((logits - expected.to(logits)).abs().max())
            raise ContractError(f"after the tokens {list(tokens)} the logits are off by up to {difference:.2g}")

    def expect_next(self, cache: RewindableCache, *rows: Sequence[int], missing: Sequence[int] = ()) -> None:
        """Feed the last token of each row, and expect the logits that follow the whole row.

        missing: for each row, how many tokens before the last one a rewind did not keep: these tokens are fed again.
        """
        pairs = zip(rows, missing or [0] * len(rows), strict=True)
        logits = self.forward([row[-1 - count :] for row, count in pairs], cache)[:, -1]
        for row_logits, row in zip(logits, rows, strict=True):
            self.expect_logits(row_logits, row)


Check = Callable[[Subject], None]


def check_end_tokens_are_a_set_of_ids(subject: Subject) -> None:
    """`eos_token_id` is a set of tokens of the vocabulary; it may be empty."""
    tokens = subject.model.eos_token_id
    _expect(isinstance(tokens, frozenset), f"eos_token_id is a {type(tokens).__name__} where a frozenset is expected")
    outside = sorted(token for token in tokens if not 0 <= token < subject.vocabulary_size)
    _expect(not outside, f"the end tokens {outside} in a vocabulary of {subject.vocabulary_size}")


def check_new_caches_give_the_same_logits(subject: Subject) -> None:
    """The logits after a prompt depend neither on caches that were used before nor on chance."""
    for tokens in (ONE, TWO, ONE):
        logits = subject.forward([tokens], subject.new_cache(1))[0, -1]
        subject.expect_logits(logits, tokens)


def check_a_new_cache_holds_nothing(subject: Subject) -> None:
    _expect_lengths(subject.new_cache(2), [0, 0])


def check_logits_follow_each_query(subject: Subject) -> None:
    cache = subject.read(ONE[:2], TWO[:2])
    logits = subject.forward([ONE[2:], TWO[2:]], cache)
    _expect(logits.shape == (2, 3, subject.vocabulary_size), f"logits of the shape {tuple(logits.shape)}")
    _expect(logits.is_floating_point(), f"logits of the type {logits.dtype}")
    for row, tokens in enumerate((ONE, TWO)):
        for query in range(3):
            subject.expect_logits(logits[row, query], tokens[: query + 3])


def check_rows_may_feed_different_numbers_of_tokens(subject: Subject) -> None:
    cache = subject.read(ONE[:2], TWO[:2])
    logits = subject.forward([ONE[2:], TWO[2:3]], cache)
    _expect_lengths(cache, [5, 3])
    subject.expect_logits(logits[0, -1], ONE)
    subject.expect_logits(logits[1, -1], TWO[:3])
    subject.expect_next(cache, [*ONE, 6], [*TWO[:3], 6])


def check_prompts_may_have_different_lengths(subject: Subject) -> None:
    """Prompts in one forward may differ in length, on the first one, too; rewinds count from the cache's `lengths`."""
    cache = subject.new_cache(2)
    logits = subject.forward([ONE, NEW], cache)
    subject.expect_logits(logits[0, -1], ONE)
    subject.expect_logits(logits[1, -1], NEW)
    targets = [length - row - 1 for row, length in enumerate(cache.lengths)]
    missing = [length - cache.rewind(row, length) for row, length in enumerate(targets)]
    subject.expect_next(cache, [*ONE[:-1], 6], [*NEW[:-2], 6], missing=missing)


def check_a_rewind_leaves_no_trace(subject: Subject) -> None:
    """A rewound row goes on as if the removed tokens had never been read; other rows go on as if nothing happened."""
    for length in range(6):
        cache = subject.read(ONE, TWO, ONE)
        kept = cache.rewind(1, length)
        _expect(0 <= kept <= length, f"a rewind to {length} tokens kept {kept}")
        _expect_lengths(cache, [5, kept, 5])
        subject.expect_next(cache, [*ONE, 6], [*TWO[:length], 6], [*ONE, 7], missing=[0, length - kept, 0])
        subject.expect_next(cache, [*ONE, 6, 1], [*TWO[:length], 6, 2], [*ONE, 7, 3])


def check_a_row_can_be_emptied_and_read_another_prompt(subject: Subject) -> None:
    """An emptied row begins at position 0, without the padding of the old prompt."""
    cache = subject.new_cache(2)
    subject.forward([ONE, NEW], cache)
    cache.rewind(1, 0)
    _expect(cache.lengths[1] == 0, f"an emptied row holds {cache.lengths[1]} tokens")
    logits = subject.forward([[6], TWO], cache)[:, -1]
    subject.expect_logits(logits[0], [*ONE, 6])
    subject.expect_logits(logits[1], TWO)


def check_a_rewind_beyond_the_row_is_refused(subject: Subject) -> None:
    """A rewind to fewer than 0 tokens, or more than the row holds, raises `ValueError` and changes nothing."""
    for length in (-1, 6):
        cache = subject.read(ONE, TWO)
        _expect_refusal(partial(cache.rewind, 0, length), f"a rewind of 5 to {length} tokens")
        subject.expect_next(cache, [*ONE, 6], [*TWO, 6])


def check_a_rewind_below_settled_tokens_is_refused(subject: Subject) -> None:
    """A rewind below the settled length raises `ValueError`, except to 0; an emptied row has no settled tokens."""
    cache = subject.read(ONE, TWO)
    cache.settle(0, 3)
    cache.settle(0, 2)  # settled once is settled
    _expect_refusal(partial(cache.rewind, 0, 2), "a rewind to 2 of 3 settled tokens")
    subject.expect_next(cache, [*ONE, 6], [*TWO, 6])
    _expect(cache.rewind(0, 0) == 0, "a rewind to 0 kept tokens")
    subject.expect_next(cache, [4], [*TWO, 6, 9])
    subject.expect_next(cache, [4, 9], [*TWO, 6, 9, 9])
    cache.rewind(0, 1)


def check_a_row_can_be_settled_before_it_is_read(subject: Subject) -> None:
    cache = subject.new_cache(1)
    cache.settle(0, 3)
    subject.forward([ONE], cache)
    _expect_refusal(partial(cache.rewind, 0, 2), "a rewind to 2 of 3 settled tokens")
    subject.expect_next(cache, [*ONE, 6])


def check_padding_on_the_right_is_refused(subject: Subject) -> None:
    """`PAD` to the right of a token raises `ValueError`, on the first forward too, before anything is read."""
    _expect_query_is_refused(subject, [[6, PAD], [6, 7]], "a query with PAD to the right of a token")


def check_a_row_that_feeds_no_token_is_refused(subject: Subject) -> None:
    """A row of `PAD` alone raises `ValueError`, on the first forward too, before anything is read."""
    _expect_query_is_refused(subject, [[6, 7], [PAD, PAD]], "a row that feeds no token")


def check_a_row_that_is_replaced_leaves_the_others_as_they_were(subject: Subject) -> None:
    """`copy` replaces a row by a shorter or longer one, without settled tokens, and changes no other row."""
    for prompt in (NEW, [*NEW, *ONE, *NEW]):
        cache, other = subject.read(ONE, TWO, ONE), subject.read(prompt)
        cache.copy(1, other, source=0, length=len(prompt))
        cache.settle(1, 2)
        _expect_lengths(cache, [5, len(prompt), 5])
        subject.expect_next(cache, [*ONE, 6], [*prompt, 6], [*ONE, 7])
        _expect_refusal(partial(cache.rewind, 1, 1), "a rewind to 1 of 2 settled tokens of a copied row")


def check_rows_are_copied_to_a_new_cache_one_by_one(subject: Subject) -> None:
    cache = subject.new_cache(2)
    for row, tokens in enumerate((NEW, ONE)):
        cache.copy(row, subject.read(tokens), source=0, length=len(tokens))
    _expect_lengths(cache, [3, 5])
    subject.expect_next(cache, [*NEW, 6], [*ONE, 6])


def check_a_copied_row_is_the_caches_own(subject: Subject) -> None:
    cache, other = subject.read(ONE, TWO), subject.read(NEW)
    cache.copy(0, other, source=0, length=len(NEW))
    subject.forward([[6, 7]], other)
    other.rewind(0, 0)
    subject.expect_next(cache, [*NEW, 6], [*TWO, 6])


CHECKS: tuple[Check, ...] = tuple(value for name, value in globals().items() if name.startswith("check_"))
"""Checks of the properties that the sampler relies on: all functions above."""


def check_states_have_the_shape_of_the_protocol(subject: Subject) -> None:
    """`get_kv_states` returns keys and values [rows, heads, tokens, head_dim] of each layer; a new cache has none."""
    _expect(subject.new_cache(2).get_kv_states() == [], "states of a new cache")
    cache = subject.read(ONE, TWO)
    _expect(cache.get_num_tokens() == 5, "get_num_tokens() after 5 tokens")
    kinds = {type(state).__name__ for state in cache.get_kv_states() if not isinstance(state, KVState)}
    _expect(not kinds, f"states of the type {', '.join(kinds)} where KVState is expected")
    for states in (states for pair in cache.get_kv_states() for states in pair):
        _expect(states.ndim == 4 and states.shape[0] == 2 and states.shape[2] == 5, f"states of {tuple(states.shape)}")


def check_shorter_rows_are_filled_on_the_left(subject: Subject) -> None:
    cache, unchanged = subject.read(ONE, TWO), subject.read(ONE, TWO)
    cache.rewind(0, 2)
    for (keys, _), (all_keys, _) in zip(cache.get_kv_states(), unchanged.get_kv_states(), strict=True):
        _expect(keys.shape[2] == 5, f"states of {keys.shape[2]} tokens where the longest row holds 5")
        _expect(torch.equal(keys[0, :, -2:], all_keys[0, :, :2]), "states of a shorter row that don't end on the right")
        _expect(torch.equal(keys[1], all_keys[1]), "states of a row that change with a rewind of another")


def check_a_crop_leaves_no_trace(subject: Subject) -> None:
    """`crop` removes tokens from all rows, but refuses fewer than 0 and more than the shortest row holds."""
    for number in (0, 1, 4, 5):
        cache = subject.read(ONE, TWO)
        cache.crop(number)
        _expect_lengths(cache, [5 - number] * 2)
        subject.expect_next(cache, [*ONE[: 5 - number], 6], [*TWO[: 5 - number], 7])
    cache = subject.read(ONE, TWO)
    cache.rewind(0, 2)
    for number in (-1, 3, 6):
        _expect_refusal(partial(cache.crop, number), f"a crop of 2 tokens by {number}")
    cache.crop(1)
    _expect_lengths(cache, [1, 4])
    subject.expect_next(cache, [*ONE[:1], 6], [*TWO[:4], 6])


def check_states_can_be_put_into_a_cache(subject: Subject) -> None:
    """`update` takes a cache's own states, another cache's, and clones of earlier states; or it refuses all three."""
    cache = subject.read(ONE, TWO)
    states = [KVState(keys.clone(), values.clone()) for keys, values in cache.get_kv_states()]
    try:
        cache.update(cache.get_kv_states())
    except ValueError:  # it also stores something else
        subject.expect_next(cache, [*ONE, 6], [*TWO, 6])
        return
    subject.expect_next(cache, [*ONE, 6], [*TWO, 6])
    cache.settle(0, 5)
    subject.forward([[6, 7, 8], [9]], cache)
    for target in (cache, subject.new_cache(2)):
        target.update(states)
        _expect_lengths(target, [5, 5])
        subject.expect_next(target, [*ONE, 6], [*TWO, 6])
        target.rewind(0, 1)
    cache.update([])
    subject.expect_next(cache, [4], [6])


def check_states_that_do_not_agree_are_refused(subject: Subject) -> None:
    """States whose rows, tokens or layers disagree raise `ValueError`, and change nothing."""
    cache = subject.read(ONE, TWO)
    states = cache.get_kv_states()
    keys, values = states[0]
    for wrong in (
        [(k[:1], v[:1]) for k, v in states],
        [(keys, values[:, :, 1:]), *states[1:]],
        [(keys, values[:1]), *states[1:]],
        [*states, states[0]],
    ):
        _expect_refusal(partial(cache.update, wrong), "an update with states that disagree")
    subject.expect_next(cache, [*ONE, 6], [*TWO, 6])


STATE_CHECKS: tuple[Check, ...] = tuple(
    value for name, value in globals().items() if name.startswith("check_") and value not in CHECKS
)
"""Checks of the further properties that a `KVCache` promises: all functions between `CHECKS` and here."""


@torch.no_grad()
def check_language_model(
    model: LanguageModel, *, after: Callable[[Sequence[int]], Tensor] | None = None, tolerance: float = 1e-4
) -> None:
    """Run all checks on a model and its caches; raise `ContractError` at the first property that is missing.

    after: returns the logits [vocab] after some tokens, computed in another way. By default the model reads the
        tokens in a new cache: errors that it makes there, too, are not found.
    tolerance: largest absolute difference at which logits count as equal.

    The methods of `KVCache` are checked, too, if the caches have them and can be rewound to any length.
    """
    subject = Subject(model, after, tolerance)
    cache = subject.read(ONE)
    has_states = hasattr(cache, "get_kv_states") and cache.rewind(0, 2) == 2
    for check in [*CHECKS, *(STATE_CHECKS if has_states else ())]:
        try:
            check(subject)
        except ContractError as error:
            raise ContractError(f"{check.__name__}: {error}") from error


def _expect(condition: bool, found: str) -> None:
    if not condition:
        raise ContractError(f"found {found}")


def _expect_lengths(cache: RewindableCache, lengths: list[int]) -> None:
    _expect(list(cache.lengths) == lengths, f"rows of {list(cache.lengths)} tokens where {lengths} are expected")


def _expect_refusal(call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except ValueError:
        return
    raise ContractError(f"{what} raised no ValueError")


def _expect_query_is_refused(subject: Subject, query: list[list[int]], what: str) -> None:
    for cache, lengths in ((subject.new_cache(2), [0, 0]), (subject.read(ONE, TWO), [5, 5])):
        ids = torch.tensor([subject.to_ids(row) for row in query])
        _expect_refusal(partial(subject.model.forward, ids, cache), what)
        _expect_lengths(cache, lengths)
