"""What the protocols ask for is enough for the loop, and transformers' caches and a list of tokens both keep to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from antislop.decoding.batch_engine import BatchEngine
from antislop.decoding.inferencer import BanningInferencer
from antislop.decoding.loop import Policy, Row, decode
from antislop.decoding.protocols import (
    PAD,
    Inferencer,
    KVCache,
    LanguageModel,
    SampleStrategy,
    count_queries,
    fill_left,
)
from antislop.hf.model import TransformersModel
from antislop.hf.vocabulary import Vocabulary
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Finished, Forwarded, Rewound
from tests.conftest import DEPTH
from tests.decoding.test_exactness import p_value
from tests.support.markov import MarkovCache, MarkovModel
from tests.support.models import build_model, build_tokenizer
from tests.support.oracles import rejection_distribution, standing
from tests.support.toys import Markov, Words

WORDS = Words(None, "a", "b", "c", "d")
SIZE = len(WORDS)
ENGINES = Path(__file__).parents[2] / "docs" / "engines.md"


def anywhere(phrase: str, weight: float = 0.0) -> Ban:
    return Ban(phrase, weight=weight, edges="anywhere")


def direct(*, seed: int = 0, length: int = 4, eos: frozenset[int] = frozenset()) -> Markov:
    """A Markov model that never says token 0, of which its prompts are made."""
    bias = torch.tensor([-torch.inf, *[0.0] * (SIZE - 1)])
    return Markov(SIZE, seed=seed, length=length, eos=eos, bias=bias)


LISTS: dict[str, list[Ban]] = {
    "nothing": [],
    "one phrase": [anywhere("ab")],
    "nested starts with weights": [anywhere("abcd"), anywhere("bb"), anywhere("ca", 0.3)],
    "phrases and a token": [anywhere("abc"), anywhere("cd"), anywhere("d")],
}


# -- the protocols are enough ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LISTS)
def test_a_batch_engine_on_the_protocols_writes_what_the_model_itself_does(case: str) -> None:
    """The same loop on both: engine, cache and padding change no text, no report but its costs, no random number."""
    bans = LISTS[case]
    model, matcher = direct(seed=3, length=12), Matcher(bans, WORDS)
    rewinds = 0
    for seed in range(20):
        texts = []
        for engine in (model, engine_of(model, rows=3)):
            rows = [row_of(model, matcher, prompt) for prompt in ((0, 0), (0, 0), (0, 0))]
            torch.manual_seed(seed)
            events = list(decode(rows, engine=engine, matcher=matcher, policy=EXACT))
            texts.append(([row.tokens for row in rows], float(torch.rand(()))))
            rewinds += sum(isinstance(event, Rewound) for _, event in events)
        assert texts[0] == texts[1]
    assert rewinds > 20 or not bans


EXACT = Policy(True, "exact", "concede", max_rewinds=100)


def engine_of(model: Markov, *, rows: int) -> BatchEngine:
    language_model = MarkovModel(model.table, eos=model.eos)
    return BatchEngine(language_model, language_model.new_cache(rows), filler=1)


def row_of(model: Markov, matcher: Matcher, prompt: Sequence[int], *, seed: int | None = None) -> Row:
    return Row(
        torch.tensor([prompt]),
        settings=model,
        state=matcher.start(prompt),
        capacity=model.length,
        generator=None if seed is None else torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("places", [1, 3, 8])
@pytest.mark.parametrize("case", LISTS)
def test_texts_in_flight_are_those_that_each_prompt_gets_alone(case: str, places: int) -> None:
    """Prompts of 2 to 7 tokens, texts that end apart, more prompts than places and fewer."""
    model, matcher = direct(seed=1, length=10, eos=frozenset({4})), Matcher(LISTS[case], WORDS)
    prompts = [(0,) * (2 + 3 * n % 6) for n in range(7)]
    alone = []
    for seed, prompt in enumerate(prompts):
        row = row_of(model, matcher, prompt, seed=seed)
        alone.append([event for _, event in decode([row], engine=model, matcher=matcher, policy=EXACT)])
    engine = engine_of(model, rows=places)
    queue = (row_of(model, matcher, prompt, seed=seed) for seed, prompt in enumerate(prompts))
    together: list[list[Any]] = [[] for _ in prompts]
    for number, event in decode([], engine=engine, matcher=matcher, policy=EXACT, queue=queue, places=places):
        together[number].append(event)
    assert list(map(without_cost, together)) == list(map(without_cost, alone))
    assert len({len(events) for events in alone}) > 1


def without_cost(events: Sequence[Any]) -> list[Any]:
    return [event for event in events if not isinstance(event, Forwarded | Finished)]


def test_a_queue_takes_the_places_of_given_rows() -> None:
    model, matcher = direct(seed=1, length=10, eos=frozenset({4})), Matcher([anywhere("ab")], WORDS)
    texts: list[list[list[int]]] = []
    for engine in (model, engine_of(model, rows=2)):
        rows = [row_of(model, matcher, (0, 0), seed=seed) for seed in range(5)]
        list(decode(rows[:2], engine=engine, matcher=matcher, policy=EXACT, queue=rows[2:]))
        texts.append([row.tokens for row in rows])
    assert texts[0] == texts[1]


def test_more_places_than_given_rows_are_filled_from_the_queue() -> None:
    model, matcher = direct(seed=1, length=10, eos=frozenset({4})), Matcher([anywhere("ab")], WORDS)
    texts: list[list[list[int]]] = []
    for engine in (model, engine_of(model, rows=3)):
        rows = [row_of(model, matcher, (0, 0), seed=seed) for seed in range(5)]
        list(decode(rows[:1], engine=engine, matcher=matcher, policy=EXACT, queue=rows[1:], places=3))
        texts.append([row.tokens for row in rows])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("case", LISTS)
def test_an_inferencer_draws_as_rejection_sampling_would(case: str) -> None:
    model, bans = direct(seed=2), LISTS[case]
    expected = rejection_distribution(model, WORDS, bans)
    language_model = MarkovModel(model.table)
    inferencer: Inferencer = BanningInferencer(language_model, matcher=Matcher(bans, WORDS))
    drawn: Counter[tuple[int, ...]] = Counter()
    torch.manual_seed(0)
    rows = 50
    for _ in range(24 * DEPTH):
        cache = language_model.new_cache(rows)
        language_model.forward(torch.zeros((rows, 1), dtype=torch.long), cache)
        query = torch.zeros((rows, 1), dtype=torch.long)
        inferred = inferencer.decode(query, cache, max_new_tokens=model.length, sample_strategy=SampleStrategy())
        drawn.update(map(tuple, inferred.token_ids.tolist()))
    assert p_value(drawn, expected) > 1e-4


# -- the inferencer ----------------------------------------------------------------------------------------------------


def test_prefill_and_decode_give_tokens_and_the_logits_that_they_were_chosen_from() -> None:
    """With the cache in between: decode reads only what prefill chose."""
    model = MarkovModel(direct(seed=5).table)
    inferencer, cache, greedy = BanningInferencer(model), model.new_cache(2), SampleStrategy(do_sample=False)
    first = inferencer.prefill(fill_left([[0, 0, 2], [0, 3]]), cache, greedy)
    assert first.token_ids.shape == (2, 1)
    assert first.token_ids.dtype == torch.int64
    assert first.token_logits.shape == (2, 1, SIZE)
    rest = inferencer.decode(first.token_ids, cache, max_new_tokens=6, sample_strategy=greedy)
    assert rest.token_ids.shape == (2, 6)
    assert rest.token_logits.shape == (2, 6, SIZE)
    assert rest.token_logits.dtype == torch.float32
    for prompt, tokens, logits in (
        ([0, 0, 2], first.token_ids[0].tolist() + rest.token_ids[0].tolist(), rest.token_logits[0]),
        ([0, 3], first.token_ids[1].tolist() + rest.token_ids[1].tolist(), rest.token_logits[1]),
    ):
        path = prompt + tokens
        for place in range(len(prompt), len(path)):
            assert path[place] == int(model._table[path[place - 2], path[place - 1]].argmax())
        for step, place in enumerate(range(len(prompt) + 1, len(path))):
            assert torch.equal(logits[step], model._table[path[place - 2], path[place - 1]])
    assert model.fed == [[3, 2], *[[1, 1]] * 6]


def test_rows_stop_at_an_end_token_or_at_the_limit_and_are_filled() -> None:
    model = MarkovModel(direct(seed=6).table, eos=frozenset({3, 4}))
    inferencer = BanningInferencer(model)
    lengths = Counter[int]()
    torch.manual_seed(0)
    query = torch.zeros((40, 2), dtype=torch.long)
    inferred = inferencer.decode(query, model.new_cache(40), max_new_tokens=5, sample_strategy=SampleStrategy())
    for tokens, logits in zip(inferred.token_ids.tolist(), inferred.token_logits, strict=True):
        end = next((place for place, token in enumerate(tokens) if token in (3, 4)), 4) + 1
        lengths[end] += 1
        assert set(tokens[end:]) <= {3}
        assert not logits[end:].any()
        assert logits[:end].any(dim=-1).all()
    assert len(lengths) == 5


@pytest.mark.parametrize("number", [0, -1])
def test_max_new_tokens_must_be_positive(number: int) -> None:
    model = MarkovModel(direct().table)
    with pytest.raises(ValueError, match=f"max_new_tokens is {number}; at least 1"):
        BanningInferencer(model).decode(
            torch.tensor([[0]]), model.new_cache(1), max_new_tokens=number, sample_strategy=SampleStrategy()
        )
    assert not model.fed


def test_a_sample_strategy_sees_tokens_and_no_padding() -> None:
    seen: list[Tensor] = []

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids.clone())
        return scores

    model = MarkovModel(direct().table)
    inferencer, cache = BanningInferencer(model), model.new_cache(2)
    strategy = SampleStrategy(process=process)
    first = inferencer.prefill(fill_left([[0, 0, 2], [3]]), cache, strategy)
    inferencer.decode(
        fill_left([[1, int(first.token_ids[0])], [int(first.token_ids[1])]]),
        cache,
        max_new_tokens=3,
        sample_strategy=strategy,
    )
    assert seen
    assert all((ids != PAD).all() for ids in seen)


def test_processors_of_transformers_read_unequal_prompts() -> None:
    model = MarkovModel(direct().table)
    strategy = SampleStrategy(False, RepetitionPenaltyLogitsProcessor(100.0))
    prompts = [[0, 0, 2], [3]]
    together = BanningInferencer(model).prefill(fill_left(prompts), model.new_cache(2), strategy)
    for row, prompt in enumerate(prompts):
        alone = BanningInferencer(model).prefill(torch.tensor([prompt]), model.new_cache(1), strategy)
        assert torch.equal(together.token_ids[row : row + 1], alone.token_ids)


def test_an_inferencer_on_transformers_writes_what_generate_does() -> None:
    llama = build_model("llama")
    model, prompt = TransformersModel(llama), torch.tensor([[0, 5, 9, 2, 12, 7], [0, 5, 9, 2, 12, 8]])
    asked: dict[str, Any] = {"max_new_tokens": 12, "attention_mask": torch.ones_like(prompt), "do_sample": False}
    expected = llama.generate(prompt, **asked)[:, 6:]
    inferencer, cache, greedy = BanningInferencer(model), model.new_cache(2), SampleStrategy(do_sample=False)
    first = inferencer.prefill(prompt, cache, greedy)
    rest = inferencer.decode(first.token_ids, cache, max_new_tokens=11, sample_strategy=greedy)
    assert torch.equal(torch.cat([first.token_ids, rest.token_ids], dim=1), expected)


def test_an_inferencer_on_transformers_writes_nothing_banned() -> None:
    llama, tokenizer = build_model("llama"), build_tokenizer()
    phrases = ["a", "b", "dd", "ea"]
    model = TransformersModel(llama)
    inferencer = BanningInferencer(model, matcher=Matcher(map(anywhere, phrases), Vocabulary.of(tokenizer)))
    torch.manual_seed(0)
    free, banned = (
        inferencer_.decode(
            torch.tensor([[0, 5], [0, 7], [0, 9]]),
            model.new_cache(3),
            max_new_tokens=30,
            sample_strategy=SampleStrategy(),
        ).token_ids
        for inferencer_ in (BanningInferencer(model), inferencer)
    )
    written = [[tokenizer.decode(row) for row in ids] for ids in (free, banned)]
    assert all(any(phrase in text for phrase in phrases) for text in written[0])
    assert not any(phrase in text for text in written[1] for phrase in phrases)


# -- the contract ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """An implementation of both protocols, and the logits [vocab] that it gives after some tokens and nothing else."""

    model: LanguageModel
    after: Callable[[Sequence[int]], Tensor]
    vocabulary: int

    def read(self, *rows: Sequence[int]) -> KVCache:
        """A cache that has read rows of equal length."""
        cache = self.model.new_cache(len(rows))
        self.model.forward(torch.tensor(rows), cache)
        return cache

    def goes_on(self, cache: KVCache, *rows: Sequence[int]) -> bool:
        """Whether the cache gives the right logits after one more token, the last of each of these rows."""
        logits = self.model.forward(torch.tensor([row[-1:] for row in rows]), cache)[:, -1]
        expected = torch.stack([self.after(row) for row in rows])
        return torch.allclose(logits, expected, atol=1e-4)


def _markov() -> Kind:
    table = Markov(12, seed=0).table
    return Kind(MarkovModel(table), lambda tokens: table[(0, *tokens)[-2], tokens[-1]], 12)


def _llama() -> Kind:
    llama = build_model("llama")
    return Kind(TransformersModel(llama), lambda tokens: llama(torch.tensor([tokens])).logits[0, -1], 48)


@pytest.fixture(scope="module", params=[_markov, _llama], ids=["Markov", "llama"])
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param()
    return made


ONE, TWO, NEW = [2, 5, 9, 3, 11], [8, 8, 4, 1, 7], [3, 10, 6]


class TestContract:
    """What every implementation of the protocols keeps to."""

    def test_a_new_cache_holds_nothing(self, kind: Kind) -> None:
        cache = kind.model.new_cache(2)
        assert list(cache.lengths) == [0, 0]
        assert cache.get_num_tokens() == 0
        assert cache.get_kv_states() == []

    def test_states_have_the_shape_that_the_protocol_says(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        assert list(cache.lengths) == [5, 5]
        assert cache.get_num_tokens() == 5
        for keys, values in cache.get_kv_states():
            assert keys.ndim == values.ndim == 4
            assert keys.shape[0] == values.shape[0] == 2
            assert keys.shape[2] == values.shape[2] == 5

    def test_states_of_unequal_rows_are_as_long_as_the_longest_and_end_together(self, kind: Kind) -> None:
        cache, whole = kind.read(ONE, TWO), kind.read(ONE, TWO)
        cache.rewind(0, 2)
        for (keys, _), (all_keys, _) in zip(cache.get_kv_states(), whole.get_kv_states(), strict=True):
            assert keys.shape[2] == 5
            assert torch.equal(keys[0, :, -2:], all_keys[0, :, :2])
            assert torch.equal(keys[1], all_keys[1])

    def test_logits_follow_each_query_counted_from_the_right(self, kind: Kind) -> None:
        cache = kind.read(ONE[:2], TWO[:2])
        logits = kind.model.forward(torch.tensor([ONE[2:], TWO[2:]]), cache)
        assert logits.shape == (2, 3, kind.vocabulary)
        assert logits.is_floating_point()
        for row, tokens in enumerate((ONE, TWO)):
            for place in range(3):
                assert torch.allclose(logits[row, place], kind.after(tokens[: place + 3]), atol=1e-4)

    def test_rows_may_feed_different_numbers_of_tokens(self, kind: Kind) -> None:
        cache = kind.read(ONE[:2], TWO[:2])
        logits = kind.model.forward(fill_left([ONE[2:], TWO[2:3]]), cache)
        assert list(cache.lengths) == [5, 3]
        assert torch.allclose(logits[0, -1], kind.after(ONE), atol=1e-4)
        assert torch.allclose(logits[1, -1], kind.after(TWO[:3]), atol=1e-4)
        assert kind.goes_on(cache, [*ONE, 6], [*TWO[:3], 6])

    def test_prompts_may_have_different_lengths(self, kind: Kind) -> None:
        cache = kind.model.new_cache(2)
        logits = kind.model.forward(fill_left([ONE, NEW]), cache)[:, -1]
        assert torch.allclose(logits, torch.stack([kind.after(ONE), kind.after(NEW)]), atol=1e-4)
        cache.rewind(0, cache.lengths[0] - 1)
        cache.rewind(1, cache.lengths[1] - 2)
        assert kind.goes_on(cache, [*ONE[:-1], 6], [*NEW[:-2], 6])

    @pytest.mark.parametrize("number", [-1, 6])
    def test_a_crop_of_less_than_nothing_or_more_than_all_is_refused(self, kind: Kind, number: int) -> None:
        cache = kind.read(ONE, TWO)
        with pytest.raises(ValueError, match=str(number)):
            cache.crop(number)
        assert kind.goes_on(cache, [*ONE, 6], [*TWO, 6])

    def test_a_crop_asks_what_the_shortest_row_holds(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        cache.rewind(0, 2)
        with pytest.raises(ValueError):
            cache.crop(3)
        cache.crop(1)
        assert list(cache.lengths) == [1, 4]
        assert kind.goes_on(cache, [*ONE[:1], 6], [*TWO[:4], 6])

    @pytest.mark.parametrize("number", [0, 1, 4, 5])
    def test_what_was_cropped_was_never_read(self, kind: Kind, number: int) -> None:
        cache = kind.read(ONE, TWO)
        cache.crop(number)
        assert cache.get_num_tokens() == 5 - number
        assert kind.goes_on(cache, [*ONE[: 5 - number], 6], [*TWO[: 5 - number], 7])

    @pytest.mark.parametrize("length", range(6))
    def test_a_rewind_of_one_row_leaves_the_others_as_they_were(self, kind: Kind, length: int) -> None:
        cache = kind.read(ONE, TWO, ONE)
        assert cache.rewind(1, length) == length
        assert list(cache.lengths) == [5, length, 5]
        assert kind.goes_on(cache, [*ONE, 6], [*TWO[:length], 6], [*ONE, 7])
        assert kind.goes_on(cache, [*ONE, 6, 1], [*TWO[:length], 6, 2], [*ONE, 7, 3])

    def test_a_row_whose_prompt_was_filled_can_be_emptied_and_read_another(self, kind: Kind) -> None:
        cache = kind.model.new_cache(2)
        kind.model.forward(fill_left([ONE, NEW]), cache)
        cache.rewind(1, 0)
        assert cache.lengths[1] == 0
        logits = kind.model.forward(fill_left([[6], TWO]), cache)[:, -1]
        assert torch.allclose(logits, torch.stack([kind.after([*ONE, 6]), kind.after(TWO)]), atol=1e-4)

    @pytest.mark.parametrize("length", [-1, 6])
    def test_a_rewind_to_what_is_not_there_is_refused(self, kind: Kind, length: int) -> None:
        cache = kind.read(ONE, TWO)
        with pytest.raises(ValueError, match=str(length)):
            cache.rewind(0, length)
        assert kind.goes_on(cache, [*ONE, 6], [*TWO, 6])

    def test_a_rewind_below_what_is_settled_is_refused_but_to_nothing(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        cache.settle(0, 3)
        cache.settle(0, 2)  # settled once is settled
        with pytest.raises(ValueError, match="settled"):
            cache.rewind(0, 2)
        assert cache.rewind(1, 2) == 2
        assert cache.rewind(0, 3) == 3
        assert kind.goes_on(cache, [*ONE[:3], 6], [*TWO[:2], 6])
        assert cache.rewind(0, 0) == 0
        assert kind.goes_on(cache, [4], [*TWO[:2], 6, 9])
        assert kind.goes_on(cache, [4, 9], [*TWO[:2], 6, 9, 9])
        assert cache.rewind(0, 1) == 1, "an emptied row has nothing settled"

    def test_a_row_can_be_settled_before_it_is_read(self, kind: Kind) -> None:
        cache = kind.model.new_cache(1)
        cache.settle(0, 3)
        kind.model.forward(torch.tensor([ONE]), cache)
        with pytest.raises(ValueError, match="settled"):
            cache.rewind(0, 2)
        cache.rewind(0, 3)
        assert kind.goes_on(cache, [*ONE[:3], 6])

    def test_a_cache_given_its_own_states_goes_on_as_before(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        cache.update(cache.get_kv_states())
        assert list(cache.lengths) == [5, 5]
        assert kind.goes_on(cache, [*ONE, 6], [*TWO, 6])
        cache.rewind(0, 2)
        assert kind.goes_on(cache, [*ONE[:2], 6], [*TWO, 6, 7])

    def test_a_new_cache_given_the_states_of_another_goes_on_as_that_would(self, kind: Kind) -> None:
        cache = kind.model.new_cache(2)
        cache.update(kind.read(ONE, TWO).get_kv_states())
        assert cache.get_num_tokens() == 5
        assert kind.goes_on(cache, [*ONE, 6], [*TWO, 6])

    def test_states_that_were_set_aside_can_be_given_back_after_more_was_read(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        states = [(keys.clone(), values.clone()) for keys, values in cache.get_kv_states()]
        cache.settle(0, 5)
        cache.crop(0)
        kind.model.forward(fill_left([[6, 7, 8], [9]]), cache)
        cache.update(states)
        assert list(cache.lengths) == [5, 5]
        assert kind.goes_on(cache, [*ONE, 6], [*TWO, 6])
        cache.rewind(0, 1)

    def test_given_no_states_a_cache_holds_nothing(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        cache.update([])
        assert cache.get_num_tokens() == 0
        assert kind.goes_on(cache, [4], [6])

    def test_states_that_do_not_agree_are_refused(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        states = cache.get_kv_states()
        keys, values = states[0]
        for wrong in (
            [(keys[:1], values[:1]), *((k[:1], v[:1]) for k, v in states[1:])],
            [(keys, values[:, :, 1:]), *states[1:]],
            [(keys, values[:1]), *states[1:]],
            [*states, states[0]],
        ):
            with pytest.raises(ValueError):
                cache.update(wrong)
        assert kind.goes_on(cache, [*ONE, 6], [*TWO, 6])

    @pytest.mark.parametrize("is_new", [True, False])
    def test_padding_on_the_right_is_refused(self, kind: Kind, is_new: bool) -> None:
        cache = kind.model.new_cache(2) if is_new else kind.read(ONE, TWO)
        with pytest.raises(ValueError, match="right"):
            kind.model.forward(torch.tensor([[6, PAD], [6, 7]]), cache)
        assert cache.get_num_tokens() == (0 if is_new else 5)

    @pytest.mark.parametrize("is_new", [True, False])
    def test_a_row_that_feeds_nothing_is_refused(self, kind: Kind, is_new: bool) -> None:
        cache = kind.model.new_cache(2) if is_new else kind.read(ONE, TWO)
        with pytest.raises(ValueError, match="row 1 feeds no token"):
            kind.model.forward(torch.tensor([[6, 7], [PAD, PAD]]), cache)
        assert cache.get_num_tokens() == (0 if is_new else 5)

    @pytest.mark.parametrize("prompt", [NEW, [*NEW, *ONE, *NEW]], ids=["shorter", "longer"])
    def test_a_row_that_takes_the_place_of_another_leaves_the_rest_as_it_was(
        self, kind: Kind, prompt: list[int]
    ) -> None:
        cache, other = kind.read(ONE, TWO, ONE), kind.read(prompt)
        other.settle(0, 2)
        cache.adopt(1, other)
        assert list(cache.lengths) == [5, len(prompt), 5]
        assert kind.goes_on(cache, [*ONE, 6], [*prompt, 6], [*ONE, 7])
        with pytest.raises(ValueError, match="settled"):
            cache.rewind(1, 1)
        cache.rewind(1, 2)
        assert kind.goes_on(cache, [*ONE, 6, 1], [*prompt[:2], 6], [*ONE, 7, 2])

    def test_a_new_cache_takes_in_rows_one_by_one(self, kind: Kind) -> None:
        cache = kind.model.new_cache(2)
        for row, tokens in enumerate((NEW, ONE)):
            cache.adopt(row, kind.read(tokens))
        assert list(cache.lengths) == [3, 5]
        assert kind.goes_on(cache, [*NEW, 6], [*ONE, 6])

    def test_what_a_cache_adopts_is_its_own(self, kind: Kind) -> None:
        cache, other = kind.read(ONE, TWO), kind.read(NEW)
        cache.adopt(0, other)
        kind.model.forward(torch.tensor([[6, 7]]), other)
        other.rewind(0, 0)
        assert kind.goes_on(cache, [*NEW, 6], [*TWO, 6])

    def test_only_a_row_of_the_same_kind_is_adopted(self, kind: Kind) -> None:
        cache = kind.read(ONE, TWO)
        stranger = MarkovCache(1) if not isinstance(cache, MarkovCache) else TransformersModel(LLAMA).new_cache(1)
        for other in (stranger, kind.read(ONE, TWO)):
            with pytest.raises(ValueError, match="one row"):
                cache.adopt(0, other)
        with pytest.raises(ValueError, match="expected"):
            kind.model.forward(torch.tensor([[6]]), stranger)


LLAMA = build_model("llama")


def test_queries_are_counted_from_their_padding() -> None:
    assert count_queries(fill_left([[5], [6, 7, 8]])) == [1, 3]
    for wrong, message in (([[5, PAD], [6, 7]], "right"), ([[PAD], [6]], "row 0 feeds no token")):
        with pytest.raises(ValueError, match=message):
            count_queries(torch.tensor(wrong))


def test_the_engine_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """And its model and cache do what the page says: they write, and nothing banned."""
    blocks = re.findall(r"```python\n(.*?)```", ENGINES.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(ENGINES), "exec"), names)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 3
    assert not standing([ord(c) for c in printed], Words(*map(chr, range(128))), [anywhere("ab")], is_final=True)
