"""The loop needs no more than the protocols, which transformers' caches and a list of tokens implement."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.protocols import PAD, LanguageModel, RewindableCache, count_queries, fill_left
from antislop.core.loop.row import Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.trace.events import Rewound
from antislop.engines import contract as testing
from antislop.engines.contract import CHECKS, ONE, STATE_CHECKS, TWO, ContractError, Subject, check_language_model
from antislop.engines.inferencer import Inferencer, SampleStrategy
from tests.support.ban_cases import anywhere
from tests.support.depth import first_quick, sample_size
from tests.support.families import build
from tests.support.models import build_model, build_tokenizer
from tests.support.oracles import rejection_distribution, standing
from tests.support.statistics import p_value
from tests.support.toys import Markov, MarkovCache, MarkovModel, Words, decode, spec_of

WORDS = Words(None, "a", "b", "c", "d")
SIZE = len(WORDS)
ENGINES = Path(__file__).parents[3] / "docs" / "reference" / "engines.md"


def direct(*, seed: int = 0, length: int = 4, eos: frozenset[int] = frozenset()) -> Markov:
    """Return a Markov model that never writes token 0, of which its prompts consist."""
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
def test_a_batch_engine_on_the_protocols_writes_the_same_as_the_model_itself(case: str) -> None:
    """One loop runs both: engine, cache and padding change no text, no random number, and of reports only the costs."""
    bans = LISTS[case]
    model, matcher = direct(seed=3, length=12), Matcher(bans, WORDS)
    rewinds = 0
    for seed in range(20):
        texts = []
        for engine in (model, engine_of(model, rows=3)):
            rows = [Row(spec_of(model, matcher), number=index, index=index) for index in range(3)]
            torch.manual_seed(seed)
            events = list(decode(Scheduler(rows=rows), engine))
            texts.append(([row.tokens for row in rows], float(torch.rand(()))))
            rewinds += sum(isinstance(event, Rewound) for _, event in events)
        assert texts[0] == texts[1]
    assert rewinds > 20 or not bans


def engine_of(model: Markov, *, rows: int) -> BatchEngine:
    language_model = MarkovModel(model.table, eos=model.eos)
    return BatchEngine(language_model, language_model.new_cache(rows), filler=1)


@pytest.mark.parametrize("case", LISTS)
def test_an_inferencer_draws_as_rejection_sampling_would(case: str) -> None:
    model, bans = direct(seed=2), LISTS[case]
    expected = rejection_distribution(model, WORDS, bans)
    language_model = MarkovModel(model.table)
    inferencer = Inferencer(language_model, matcher=Matcher(bans, WORDS))
    drawn: Counter[tuple[int, ...]] = Counter()
    torch.manual_seed(0)
    rows = 50
    for _ in range(sample_size(24)):
        cache = language_model.new_cache(rows)
        language_model.forward(torch.zeros((rows, 1), dtype=torch.long), cache)
        query = torch.zeros((rows, 1), dtype=torch.long)
        inferred = inferencer.decode(query, cache, max_new_tokens=model.length, sample_strategy=SampleStrategy())
        drawn.update(map(tuple, inferred.token_ids.tolist()))
    assert p_value(drawn, expected) > 1e-4


# -- the inferencer ----------------------------------------------------------------------------------------------------


def test_prefill_and_decode_return_tokens_and_their_logits() -> None:
    """They share the cache: decode reads only the tokens that prefill chose."""
    model = MarkovModel(direct(seed=5).table)
    inferencer, cache, greedy = Inferencer(model), model.new_cache(2), SampleStrategy(do_sample=False)
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


@pytest.mark.parametrize("kind", ["Markov", "llama"])
@torch.no_grad()
def test_all_logits_are_those_after_each_query(kind: str) -> None:
    """Of prompts, which a model of transformers reads without them at first, and of later queries; 0 at `PAD`."""
    table = direct(seed=7).table
    model: LanguageModel = MarkovModel(table) if kind == "Markov" else TransformersModel(LLAMA)
    inferencer, prompts = Inferencer(model), [[3, 2, 4], [1], [2, 3]]
    greedy = SampleStrategy(do_sample=False)
    plain, cache = model.new_cache(3), model.new_cache(3)
    first = inferencer.prefill(fill_left(prompts), cache, greedy, all_logits=True)
    assert torch.equal(first.token_ids, inferencer.prefill(fill_left(prompts), plain, greedy).token_ids)
    assert first.token_logits.shape[:2] == (3, 3)
    assert first.token_logits.dtype == torch.float32
    expect_logits(model, prompts, first.token_logits)
    queries = [[int(first.token_ids[0]), 1], [int(first.token_ids[1])], [int(first.token_ids[2]), 4]]
    texts = [prompt + query for prompt, query in zip(prompts, queries, strict=True)]
    both = (fill_left(queries), cache), (fill_left(texts), model.new_cache(3))
    for (query, kv_cache), read in zip(both, (queries, texts), strict=True):
        rest = inferencer.decode(query, kv_cache, max_new_tokens=4, sample_strategy=greedy, all_logits=True)
        assert rest.token_ids.shape == (3, 4)
        assert rest.token_logits.shape[1] == query.shape[1] - 1 + 4
        written = [text + tokens[:-1] for text, tokens in zip(texts, rest.token_ids.tolist(), strict=True)]
        expect_logits(model, written, rest.token_logits, counts=[len(tokens) + 3 for tokens in read])


def expect_logits(
    model: LanguageModel, texts: Sequence[Sequence[int]], logits: Tensor, counts: Sequence[int] | None = None
) -> None:
    """The last logits of [rows, queries, vocab] follow the last tokens of a text, `counts` or all; the rest is 0."""
    for row, text in enumerate(texts):
        count = counts[row] if counts else len(text)
        assert not logits[row, : logits.shape[1] - count].any()
        for place in range(1, count + 1):
            tokens = torch.tensor([text[: len(text) - place + 1]])
            expected = model.forward(tokens, model.new_cache(1))[0, -1]
            assert torch.allclose(logits[row, -place], expected, atol=1e-4)


def test_logits_that_a_model_never_returns_are_refused() -> None:
    class Short(MarkovModel):
        def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
            return super().forward(query_token_ids, kv_cache)[:, -1:]

    model = Short(direct().table)
    with pytest.raises(ValueError, match=r"Short.forward returned the logits after 1 of 3 queries: leave out"):
        Inferencer(model).prefill(torch.tensor([[1, 2, 3]]), model.new_cache(1), SampleStrategy(), all_logits=True)


def test_end_tokens_are_those_of_the_model_and_must_exist() -> None:
    assert Inferencer(MarkovModel(direct().table, eos=frozenset({2, 3}))).eos_token_id == {2, 3}
    with pytest.raises(ValueError, match="the model has no end token: set eos_token_id"):
        _ = Inferencer(MarkovModel(direct().table)).eos_token_id


def test_states_have_names_and_are_pairs(subject: Subject) -> None:
    for state in subject.read(ONE, TWO).get_kv_states():  # type: ignore[attr-defined]
        keys, values = state
        assert state.keys is keys
        assert state.values is values


def test_rows_stop_at_an_end_token_or_at_the_limit_and_are_filled() -> None:
    model = MarkovModel(direct(seed=6).table, eos=frozenset({3, 4}))
    inferencer = Inferencer(model)
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
        Inferencer(model).decode(
            torch.tensor([[0]]), model.new_cache(1), max_new_tokens=number, sample_strategy=SampleStrategy()
        )
    assert not model.fed


def test_a_sample_strategy_sees_tokens_and_no_padding() -> None:
    seen: list[Tensor] = []

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids.clone())
        return scores

    model = MarkovModel(direct().table)
    inferencer, cache = Inferencer(model), model.new_cache(2)
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
    together = Inferencer(model).prefill(fill_left(prompts), model.new_cache(2), strategy)
    for row, prompt in enumerate(prompts):
        alone = Inferencer(model).prefill(torch.tensor([prompt]), model.new_cache(1), strategy)
        assert torch.equal(together.token_ids[row : row + 1], alone.token_ids)


def test_an_inferencer_on_transformers_writes_the_same_as_generate() -> None:
    llama = build_model("llama")
    model, prompt = TransformersModel(llama), torch.tensor([[0, 5, 9, 2, 12, 7], [0, 5, 9, 2, 12, 8]])
    asked: dict[str, Any] = {"max_new_tokens": 12, "attention_mask": torch.ones_like(prompt), "do_sample": False}
    expected = llama.generate(prompt, **asked)[:, 6:]
    inferencer, cache, greedy = Inferencer(model), model.new_cache(2), SampleStrategy(do_sample=False)
    first = inferencer.prefill(prompt, cache, greedy)
    rest = inferencer.decode(first.token_ids, cache, max_new_tokens=11, sample_strategy=greedy)
    assert torch.equal(torch.cat([first.token_ids, rest.token_ids], dim=1), expected)


def test_an_inferencer_on_transformers_writes_nothing_banned() -> None:
    llama, tokenizer = build_model("llama"), build_tokenizer()
    phrases = ["a", "b", "dd", "ea"]
    model = TransformersModel(llama)
    inferencer = Inferencer(model, matcher=Matcher(map(anywhere, phrases), Vocabulary.of(tokenizer)))
    torch.manual_seed(0)
    free, banned = (
        inferencer_.decode(
            torch.tensor([[0, 5], [0, 7], [0, 9]]),
            model.new_cache(3),
            max_new_tokens=30,
            sample_strategy=SampleStrategy(),
        ).token_ids
        for inferencer_ in (Inferencer(model), inferencer)
    )
    written = [[tokenizer.decode(row) for row in ids] for ids in (free, banned)]
    assert all(any(phrase in text for phrase in phrases) for text in written[0])
    assert not any(phrase in text for text in written[1] for phrase in phrases)


# -- the contract ------------------------------------------------------------------------------------------------------

LLAMA = build_model("llama")


def _markov() -> Subject:
    table = Markov(12, seed=0).table
    return Subject(MarkovModel(table), lambda tokens: table[(0, *tokens)[-2], tokens[-1]])


def _llama() -> Subject:
    return Subject(TransformersModel(LLAMA), lambda tokens: LLAMA(torch.tensor([tokens])).logits[0, -1])


@pytest.fixture(scope="module", params=[_markov, _llama], ids=["Markov", "llama"])
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    return made


@pytest.mark.parametrize("check", [*CHECKS, *STATE_CHECKS], ids=lambda check: check.__name__)
@torch.no_grad()
def test_every_implementation_meets_the_contract(subject: Subject, check: Callable[[Subject], None]) -> None:
    check(subject)


def test_every_check_is_listed() -> None:
    named = {
        value for name, value in vars(testing).items() if name.startswith("check_") and name != "check_language_model"
    }
    assert named == {*CHECKS, *STATE_CHECKS}


def test_an_exact_rewind_keeps_the_requested_number_of_tokens(subject: Subject) -> None:
    cache = subject.read(ONE, TWO)
    assert cache.rewind(1, 2) == 2
    with pytest.raises(ValueError, match="6"):
        cache.rewind(0, 6)
    cache.settle(0, 3)
    with pytest.raises(ValueError, match="settled"):
        cache.rewind(0, 2)
    assert cache.rewind(0, 3) == 3


def test_a_row_of_another_kind_is_refused(subject: Subject) -> None:
    cache = subject.read(ONE, TWO)
    stranger = MarkovCache(1) if not isinstance(cache, MarkovCache) else TransformersModel(LLAMA).new_cache(1)
    with pytest.raises(ValueError, match="expected"):
        cache.copy(0, stranger, source=0, length=0)
    with pytest.raises(ValueError, match="expected"):
        subject.model.forward(torch.tensor([[6]]), stranger)


class Leaves(MarkovCache):
    """A cache with one deliberate fault."""

    fault = ""

    def rewind(self, row: int, length: int) -> int:
        if self.fault == "a trace" and 0 < length < self.lengths[row]:
            self._rows[row][length - 1] = (self._rows[row][length - 1] + 1) % 12
        if self.fault == "others changed" and len(self._rows) > 1:
            self._rows[row - 1] = self._rows[row - 1][::-1]
        if self.fault == "deep rewinds":
            self._settled[row] = 0
        return super().rewind(row, length)

    def copy(self, row: int, other: Any, *, source: int, length: int) -> None:
        super().copy(row, other, source=source, length=length)
        if self.fault == "shared rows":
            self._rows[row] = other._rows[0]


@pytest.mark.parametrize("fault", ["a trace", "others changed", "deep rewinds", "shared rows"])
def test_each_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Markov(12, seed=0).table

    class Faulty(MarkovModel):
        def new_cache(self, rows: int) -> MarkovCache:
            return Leaves(rows)

    check_language_model(Faulty(table))
    monkeypatch.setattr(Leaves, "fault", fault)
    for after in (None, lambda tokens: table[(0, *tokens)[-2], tokens[-1]]):
        with pytest.raises(ContractError, match=r"^check_"):
            check_language_model(Faulty(table), after=after)


@pytest.mark.parametrize("family", first_quick(["gemma3", "falcon-h1"]))
def test_windows_and_recurrent_states_meet_the_contract(family: str) -> None:
    """Though their states can't be replaced, and a rewind of the latter keeps fewer tokens."""
    check_language_model(TransformersModel(build(family)), tolerance=1e-3)


def test_only_an_oracle_finds_what_a_new_cache_gets_wrong_too() -> None:
    table = Markov(12, seed=0).table

    class Reversed(MarkovModel):
        def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
            return super().forward(query_token_ids, kv_cache).flip(-1)

    check_language_model(Reversed(table))
    with pytest.raises(ContractError, match="off by"):
        check_language_model(Reversed(table), after=lambda tokens: table[(0, *tokens)[-2], tokens[-1]])


def test_a_model_with_dropout_and_end_tokens_beyond_the_vocabulary_are_found() -> None:
    table = Markov(12, seed=0).table

    class Noisy(MarkovModel):
        def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
            return super().forward(query_token_ids, kv_cache) + torch.rand(())

    with pytest.raises(ContractError, match=r"^check_new_caches_give_the_same_logits"):
        check_language_model(Noisy(table))
    with pytest.raises(ContractError, match=r"the end tokens \[12\] in a vocabulary of 12"):
        check_language_model(MarkovModel(table, eos=frozenset({3, 12})))


def test_queries_are_counted_from_their_padding() -> None:
    assert count_queries(fill_left([[5], [6, 7, 8]])) == [1, 3]
    for wrong, message in (([[5, PAD], [6, 7]], "right"), ([[PAD], [6]], "row 0 feeds no token")):
        with pytest.raises(ValueError, match=message):
            count_queries(torch.tensor(wrong))


def test_the_engine_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """And its model and cache work as the page claims: they write a text without bans."""
    blocks = re.findall(r"```python\n(.*?)```", ENGINES.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(ENGINES), "exec"), names)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 3
    table = names["model"].table
    check_language_model(names["model"], after=lambda tokens: table[tuple([0, *tokens][-2:])])
    assert not standing([ord(c) for c in printed], Words(*map(chr, range(128))), [anywhere("ab")], is_final=True)
