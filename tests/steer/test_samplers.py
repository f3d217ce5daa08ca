"""The samplers that presets switch on: as their naive twins compute them, and under bans as in plain `generate`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

import antislop
from antislop import AntiSlop, Ban
from antislop.core.hf.callbacks.processors import Processors
from antislop.errors import InputError
from antislop.steer import (
    CountPenaltyLogitsProcessor,
    DryLogitsProcessor,
    MinKeepLogitsProcessor,
    TopNSigmaLogitsProcessor,
    XtcLogitsProcessor,
    find_breakers,
)
from tests.support import letters, naive_samplers as naive
from tests.support.depth import first_quick, sample_size
from tests.support.models import build_model, build_spaced_tokenizer, build_tokenizer
from tests.support.oracles import rejection_distribution
from tests.support.processors import BANS, PROMPTS, TOKENIZER, sample
from tests.support.statistics import p_value

SIZE = 6
FINITE = st.integers(-80, 80).map(lambda number: number / 16)  # so far apart that no two are equal by rounding
SCORES = st.lists(st.one_of(FINITE, FINITE, FINITE, st.just(-math.inf)), min_size=SIZE, max_size=SIZE).filter(
    lambda scores: max(scores) > -math.inf
)
IDS = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=24)


def apply(processor: Any, ids: list[int], scores: list[float]) -> list[float]:
    """Process the scores of a text, and beside it those of another one of the same length."""
    others = [(token + 1) % SIZE for token in reversed(ids)]
    given = torch.tensor([scores, [0.0] * SIZE])
    processed = processor(torch.tensor([ids, others]), given)
    assert given.tolist() == [scores, [0.0] * SIZE]
    alone: list[float] = processor(torch.tensor([ids]), torch.tensor([scores]))[0].tolist()
    assert processed[0].tolist() == alone
    return alone


@given(ids=IDS, scores=SCORES, start=st.integers(0, 24), presence=FINITE, frequency=FINITE)
def test_counts_are_those_of_generated_tokens(
    ids: list[int], scores: list[float], start: int, presence: float, frequency: float
) -> None:
    processor = CountPenaltyLogitsProcessor(presence=presence, frequency=frequency).after_prompt(start)
    expected = naive.count_penalty(ids[start:], scores, presence=presence, frequency=frequency)
    assert apply(processor, ids, scores) == pytest.approx(expected, abs=1e-4)


@given(
    seed=st.integers(0, 10_000),
    base=st.floats(1, 3),
    allowed_length=st.integers(0, 2),
    last_n=st.sampled_from([-1, -1, 0, 10, 20]),
)
def test_repetitions_are_penalized_by_their_length(seed: int, base: float, allowed_length: int, last_n: int) -> None:
    random = Random(seed)
    for _ in range(10):
        ids = random.choices(range(4), weights=[4, 4, 1, 1], k=random.randint(1, 30))
        first, other = (ids[place : place + 3] for place in random.choices(range(len(ids)), k=2))
        breakers = random.sample([first, first[:2], first[:1], other[:2]], random.randint(0, 3))
        tails = {head: [tuple(rest) for first, *rest in breakers if first == head] for head in range(4)}
        settings: Any = {"base": base, "allowed_length": allowed_length, "penalty_last_n": last_n}
        expected = naive.dry(ids, [1.0] * SIZE, breakers, multiplier=0.8, **settings)
        processor = DryLogitsProcessor(0.8, breakers=tails, **settings)
        assert apply(processor, ids, [1.0] * SIZE) == pytest.approx(expected, rel=1e-5)


@given(seed=st.integers(0, 1000), n=st.floats(0.5, 2))
def test_scores_within_n_sigma_of_the_highest_are_kept(seed: int, n: float) -> None:
    scores = torch.rand(500, generator=torch.Generator().manual_seed(seed))
    scores[::3] = -torch.inf
    expected = naive.top_n_sigma(scores.tolist(), n)
    assume(expected == naive.top_n_sigma(scores.tolist(), n * (1 + 1e-4)))
    assert TopNSigmaLogitsProcessor(n)(PROMPTS, scores[None])[0].tolist() == expected


@given(scores=SCORES, probability=st.floats(0, 1), threshold=st.floats(0, 0.6), temperature=st.sampled_from([0.5, 1.0]))
def test_the_mixture_is_that_of_a_coin_for_each_token(
    scores: list[float], probability: float, threshold: float, temperature: float
) -> None:
    assume(all(abs(share - threshold) > 1e-6 for share in naive.softmax(scores)))
    processor = XtcLogitsProcessor(probability, threshold, after=[TemperatureLogitsWarper(temperature)])
    expected = naive.xtc(
        scores,
        probability=probability,
        threshold=threshold,
        after=lambda scores: [score / temperature for score in scores],
    )
    assert [math.exp(score) for score in apply(processor, [0], scores)] == pytest.approx(expected, abs=1e-5)


def test_padding_is_no_repetition() -> None:
    scores, pad = torch.zeros(1, SIZE), 5
    processor = DryLogitsProcessor(1.0, allowed_length=1, pad_token_id=pad)
    ids = [pad, 1, 2, 3, pad, 1, 4, pad]
    alone = processor(torch.tensor([ids[1:]]), scores)
    assert float(alone[0, 1]) == -1
    for padding in range(3):
        assert torch.equal(processor(torch.tensor([[pad] * padding + ids]), scores), alone)
    assert not processor(torch.tensor([[pad, pad, pad]]), scores).any()


def test_a_long_repetition_has_a_finite_penalty() -> None:
    scores = DryLogitsProcessor(1.0)(torch.zeros(1, 3000, dtype=torch.long), torch.zeros(1, SIZE))
    assert -3.5e38 < float(scores[0, 0]) < -1e37
    assert not scores[0, 1:].any()


def test_breakers_are_tokens_that_contain_or_begin_a_string() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer.get_vocab()
    assert find_breakers(tokenizer, ["a"]) == {i: {()} for token, i in ids.items() if "a" in token}
    breakers = find_breakers(tokenizer, ["a.", "</s>", ""])
    ends = {i: {(ids["."],)} for token, i in ids.items() if token.endswith("a")}
    assert breakers == ends | {ids["</s>"]: {()}}


def test_the_rest_of_a_breaker_has_no_space_before_it() -> None:
    tokenizer = build_spaced_tokenizer()
    ids = tokenizer.get_vocab()
    assert find_breakers(tokenizer, ["ab"]) == {i: {(ids["b"],)} for token, i in ids.items() if token.endswith("a")}


def test_a_text_continues_after_the_usual_breakers() -> None:
    _, tokenizer = antislop.tiny_model()
    breakers = find_breakers(tokenizer)
    assert {tokenizer.decode(token) for token in breakers} >= {"\n", ":", '"', "*"}
    assert all(any(mark in tokenizer.decode(token) for mark in '\n:"*') for token in breakers)
    ids = tokenizer("Anna said: go. Anna said: go. Anna said:", return_tensors="pt")["input_ids"]
    scores = torch.zeros(1, len(tokenizer))
    assert DryLogitsProcessor(1.0)(ids, scores).any()
    assert not DryLogitsProcessor(1.0, breakers=breakers)(ids, scores).any()


SHARP = TemperatureLogitsWarper(0.4)
"""Put before all samplers: the texts of a tiny model repeat nothing otherwise, and no token has a share of 0.1."""
SAMPLERS: dict[str, Callable[[], list[Any]]] = {
    "counts": lambda: [SHARP, CountPenaltyLogitsProcessor(presence=1.5, frequency=0.5)],
    "DRY": lambda: [SHARP, DryLogitsProcessor(2.0, allowed_length=1, breakers={3: [()], 4: [(5,)]})],
    "top-n-sigma": lambda: [SHARP, TopNSigmaLogitsProcessor(1.0)],
    "XTC": lambda: [SHARP, XtcLogitsProcessor(0.5, 0.1)],
    "all": lambda: [
        SHARP,
        CountPenaltyLogitsProcessor(presence=0.5),
        DryLogitsProcessor(1.0),
        TopNSigmaLogitsProcessor(1.5),
        XtcLogitsProcessor(0.3, 0.1, after=[TemperatureLogitsWarper(1.3), RepetitionPenaltyLogitsProcessor(1.2)]),
    ],
}


class Apart(LogitsProcessor):  # type: ignore[misc]
    """A processor of the caller, about which nothing is known, and which knows nothing of prompts."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.processor(input_ids, scores)  # type: ignore[no-any-return]


def fit(processors: list[Any], prompt_length: int = PROMPTS.shape[1]) -> list[Any]:
    """Tell processors the length of the prompt, as plain `generate` needs it."""
    return [each.after_prompt(prompt_length) if hasattr(each, "after_prompt") else each for each in processors]


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("rows", first_quick([3, 1]))
def test_without_a_violation_the_ids_are_those_of_generate(llama: PreTrainedModel, name: str, rows: int) -> None:
    settings = {"rows": rows, "seed": 1, "top_k": 0, "max_new_tokens": 24}
    plain, free = (sample(llama, None, logits_processor=each, **settings) for each in (fit(SAMPLERS[name]()), [SHARP]))
    out = sample(llama, None, bans=["zz"], logits_processor=SAMPLERS[name](), **settings)
    assert torch.equal(out.sequences, plain.sequences)
    assert not torch.equal(out.sequences, free.sequences)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("drafts", first_quick([{"prompt_lookup_num_tokens": 3}, {}]))
def test_rewinds_and_drafts_need_nothing_of_a_sampler(
    llama: PreTrainedModel, name: str, drafts: dict[str, Any]
) -> None:
    """It writes the same as a caller's processor that computes the same, and is called for each position in order."""
    settings = {"seed": 2, "top_k": 0, "max_new_tokens": 24, "bans": BANS, **drafts}
    apart = list(map(Apart, fit(SAMPLERS[name]())))
    out, expected = (sample(llama, None, logits_processor=each, **settings) for each in (SAMPLERS[name](), apart))
    assert torch.equal(out.sequences, expected.sequences)
    assert out.report.rewinds


@pytest.mark.parametrize("name", SAMPLERS)
def test_texts_in_flight_share_samplers_and_do_not_depend_on_each_other(llama: PreTrainedModel, name: str) -> None:
    """Their prompts have different lengths, and only what follows them is counted."""
    sampler, prompts = AntiSlop(TOKENIZER, BANS), [[0, 5, 9, 2], [0, 7, 3, 4, 4, 7, 3], [0, 2]]
    settings: dict[str, Any] = {"max_new_tokens": 16, "do_sample": True, "seed": 1, "pad_token_id": 1, "top_k": 0}
    lengths = map(len, prompts)
    asked = (
        {"batch_size": 1, "logits_processor": lambda: fit(SAMPLERS[name](), next(lengths))},
        {"batch_size": 3, "logits_processor": SAMPLERS[name]()},
    )
    alone, shared = (
        {text.number: text.tokens for text in sampler.generate_many(llama, prompts, **settings, **each)}
        for each in asked
    )
    assert alone == shared


class _Chain(letters.LettersChain):
    """The chain of the tiny Llama after samplers."""

    def __init__(self, processors: list[Any]) -> None:
        super().__init__({}, prompt_length=3)
        self._processors = processors

    def warpers(self) -> list[Callable[[Tensor, Tensor], Tensor]]:
        return self._processors


@pytest.mark.parametrize("name", first_quick(SAMPLERS, 2))
def test_rows_of_a_batch_have_the_distribution_of_rejection_sampling(name: str) -> None:
    bans = letters.LISTS["nested starts"] + [Ban("da", edges="anywhere", weight=0.5)]
    processors = SAMPLERS[name]()
    chain: Any = _Chain(fit(processors, 3))
    expected = rejection_distribution(chain, chain.words, bans)
    sampler = AntiSlop(letters.build_tokenizer(), bans, max_rewinds=10_000)
    torch.manual_seed(0)
    drawn: Counter[tuple[int, ...]] = Counter()
    settings = {"max_new_tokens": letters.LENGTH, "do_sample": True, "top_k": 0, "logits_processor": processors}
    for _ in range(2):
        out = sampler.generate(letters.build_model(), torch.zeros(sample_size(400), 3, dtype=torch.long), **settings)
        for row in out[:, 3:].tolist():
            drawn[tuple(row[: row.index(letters.END) + 1] if letters.END in row else row)] += 1
    assert p_value(drawn, expected) > 1e-4


def test_xtc_acts_after_temperature_and_truncation(llama: PreTrainedModel) -> None:
    """An `AntiSlop` calls it last, where a plain `generate` needs a list of all."""
    listed = [TemperatureLogitsWarper(0.6), TopKLogitsWarper(12), XtcLogitsProcessor(0.5, 0.1)]
    plain = sample(llama, None, logits_processor=listed, top_k=0)
    for bans, is_same in ((["zz"], True), (None, False)):
        out = sample(llama, XtcLogitsProcessor(0.5, 0.1), bans=bans, temperature=0.6, top_k=12)
        assert torch.equal(out.sequences, plain.sequences) == is_same


def test_truncations_keep_the_least_number_that_a_list_has() -> None:
    """At a top-p of nearly 0 all of them keep exactly that many, and plain `generate` says that it can't."""
    logits = 9 * torch.randn(3, SIZE, generator=torch.Generator().manual_seed(0))
    few = [TopPLogitsWarper(1e-9), MinPLogitsWarper(1.0), TypicalLogitsWarper(1e-9), EpsilonLogitsWarper(0.99)]
    for warper in [*few, EtaLogitsWarper(0.99)]:
        for count in (1, 4):
            (changed,) = MinKeepLogitsProcessor.change_others([MinKeepLogitsProcessor(count), warper])
            assert (changed(None, logits) > -torch.inf).sum(-1).tolist() == [count] * 3
        assert warper.min_tokens_to_keep == 1, "the caller's own is not changed"
    kept = (
        MinKeepLogitsProcessor.change_others([MinKeepLogitsProcessor(4), TopKLogitsWarper(2)])[0](None, logits)
        > -torch.inf
    )
    assert kept.sum(-1).tolist() == [2] * 3
    with pytest.raises(InputError, match="min_tokens_to_keep, as logits_processor"):
        MinKeepLogitsProcessor(4)(torch.zeros(1, 1), logits)


def test_samplers_take_the_path_of_those_of_transformers() -> None:
    def put(*processors: Any, rows: int = 2) -> Processors:
        return Processors(LogitsProcessorList(processors), rows=rows, pad=0, is_shared=True)

    for name in SAMPLERS:
        assert not put(*SAMPLERS[name]()).user_processors
    assert put(TopNSigmaLogitsProcessor(1), XtcLogitsProcessor(0.5, 0.1, after=[TemperatureLogitsWarper(0.5)])).is_blind
    assert not put(XtcLogitsProcessor(0.5, 0.1, after=[RepetitionPenaltyLogitsProcessor(1.2)])).is_blind
    assert put(XtcLogitsProcessor(0.5, 0.1, after=[Apart(TopKLogitsWarper(3))]), rows=1).user_processors


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: DryLogitsProcessor(0.8, base=0.5), "base=0.5"),
        (lambda: DryLogitsProcessor(0.8, penalty_last_n=-2), "penalty_last_n=-2"),
        (lambda: TopNSigmaLogitsProcessor(0), "n=0"),
        (lambda: XtcLogitsProcessor(1.5, 0.1), r"probability=1\.5"),
        (lambda: apply(CountPenaltyLogitsProcessor(), [0], [0.0] * SIZE), "prompt_length"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Callable[[], Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make()
