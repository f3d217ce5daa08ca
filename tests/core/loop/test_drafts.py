"""Drafts don't change the distribution of texts; good drafts take fewer forward passes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban, tiny_model
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf import assisted
from antislop.core.hf.assisted import CandidateDrafter
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.drafts import ModelDrafter
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.protocols import LanguageModel, fill_left
from antislop.core.loop.row import NO_DRAFT, Draft, Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.tables import DenseTable, LogitsBatch
from antislop.core.trace.events import Drafted, Finished
from antislop.engines.inferencer import Inferencer, SampleStrategy
from tests.support.ban_cases import CASES, LETTERS, anywhere, expected_of
from tests.support.depth import DEPTH, first_quick, in_turn, quick_if, sample_size
from tests.support.families import build
from tests.support.models import VOCABULARY, build_model, build_tokenizer, counted_calls
from tests.support.oracles import rejection_distribution
from tests.support.statistics import p_value
from tests.support.toys import EXACT, PROMPT, Markov, MarkovModel, Words, decode, run, spec_of

TOKENIZER = build_tokenizer()
INPUTS = torch.tensor([[0, 5, 9, 2, 12, 7]])
TIMES = sample_size(1000)
"""Texts drawn per case, as many as without drafts."""


class Guesses:
    """Random drafts. reports: each token is drawn from a distribution that is reported with the draft."""

    def __init__(self, size: int, *, longest: int = 3, reports: bool, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.size, self.longest, self.reports = size, longest, reports
        self.proposed = self.accepted = 0

    def propose(self, rows: Sequence[Row]) -> list[Draft]:
        return [self.guess(row) for row in rows]

    def guess(self, row: Row) -> Draft:
        length = int(self.random.integers(self.longest + 1))
        if not length:
            return NO_DRAFT
        proposals = self.random.dirichlet(np.full(self.size, 0.5), size=length)
        tokens = [int(self.random.choice(self.size, p=row)) for row in proposals]
        return Draft(tokens, torch.tensor(proposals, dtype=torch.float32) if self.reports else None)

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        assert 0 <= accepted <= proposed
        self.proposed += proposed
        self.accepted += accepted


class Oracle(Guesses):
    """Drafts that are the text of the greedy model."""

    def __init__(self, model: Markov) -> None:
        super().__init__(model.size, reports=False)
        self.model = model

    def guess(self, row: Row) -> Draft:
        tokens = list(row.tokens)
        for _ in range(self.longest):
            tokens.append(int(self.model.probs(PROMPT, tokens).argmax()))
        return Draft(tokens[len(row.tokens) :])


def draw(model: Markov, words: Words, bans: Sequence[Ban], drafter: Guesses, *, times: int) -> Counter[tuple[int, ...]]:
    torch.manual_seed(0)
    matcher = Matcher(bans, words)
    return Counter(run(model, words, bans, matcher=matcher, lookback=False, drafter=drafter)[0] for _ in range(times))


@pytest.mark.parametrize(("case", "drafts"), first_quick(in_turn(CASES, ["guessed", "drawn"]), 2))
def test_random_drafts_change_nothing_about_the_distribution(case: str, drafts: str) -> None:
    words, bans = CASES[case]
    model, guesses = Markov(len(words), seed=1), Guesses(len(words), reports=drafts == "drawn")
    assert p_value(draw(model, words, bans, guesses, times=TIMES), expected_of(case, seed=1)) > 1e-4
    assert guesses.accepted > TIMES / 20, "drafts were hardly tried"


def test_a_drafted_ban_is_drawn_by_its_own_probability() -> None:
    """The draft mostly proposes a ban; resampling only after a ban would favor tokens that it seldom proposes."""
    model = Markov(4, seed=5, length=3)
    bans = [anywhere("b"), anywhere("ac", 0.5)]
    expected = rejection_distribution(model, LETTERS, bans)

    class Biased(Guesses):
        def guess(self, row: Row) -> Draft:
            proposal = np.array([0.05, 0.8, 0.1, 0.05])
            token = int(self.random.choice(4, p=proposal))
            return Draft([token], torch.tensor(proposal, dtype=torch.float32)[None])

    assert p_value(draw(model, LETTERS, bans, Biased(4, reports=True), times=3 * TIMES), expected) > 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_a_token_that_is_drawn_beside_a_proposal_has_its_own_probability(seed: int) -> None:
    """Whatever is proposed; as often as possible the token is the proposed one."""
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.full(4, 0.5), size=2)
    if seed == 0:
        q = p  # then each proposal is accepted
    scores, proposal = torch.tensor(p, dtype=torch.float32).log()[None], torch.tensor(q, dtype=torch.float32)
    torch.manual_seed(seed)
    proposed = random.choice(4, p=q, size=TIMES).tolist()
    drawn = [DenseTable(LogitsBatch(scores, scores)).draw_beside(token, proposal) for token in proposed]
    assert p_value(Counter((token,) for token in drawn), {(token,): p[token] for token in range(4)}) > 1e-4
    accepted = sum(map(int.__eq__, drawn, proposed)) / TIMES
    assert accepted == pytest.approx(np.minimum(p, q).sum(), abs=4 * 0.5 / TIMES**0.5)


def test_a_correct_draft_saves_passes() -> None:
    model = Markov(4, seed=2, length=40)
    plain, report = run(model, LETTERS, [anywhere("ab")], do_sample=False)
    drafted, fewer = run(model, LETTERS, [anywhere("ab")], do_sample=False, drafter=Oracle(model))
    assert drafted == plain
    assert fewer.forward_passes * 2 < report.forward_passes
    assert fewer.accepted_tokens <= fewer.drafted_tokens


def test_a_draft_never_reads_past_a_ban_or_the_end() -> None:
    model = Markov(4, seed=2, length=10)
    seen: list[list[int]] = []
    forward = model.forward

    def watch(rows: Sequence[Row]) -> object:
        seen.extend(row.tokens + row.draft.tokens for row in rows)
        return forward(rows)

    model.forward = watch  # type: ignore[method-assign, assignment]
    for seed in range(30):
        run(model, LETTERS, [anywhere("ab")], drafter=Guesses(4, longest=6, reports=False, seed=seed))
    assert any(len(tokens) > 3 for tokens in seen)
    assert all("ab" not in LETTERS.text(tokens) and len(tokens) < 10 for tokens in seen)


def test_a_draft_never_reads_past_a_weighted_ban() -> None:
    """Only a coin decides whether the token that completes it is kept, so the draft ends before that token."""
    model, bans = Markov(4, seed=3, length=12), [anywhere("ab", 0.5), anywhere("c", 0.9)]
    drafts: list[tuple[str, str, str]] = []
    forward, accepted = model.forward, 0

    def watch(rows: Sequence[Row]) -> object:
        parts = ((row.tokens, row.draft.tokens, row.draft.proposed) for row in rows)
        drafts.extend((LETTERS.text(text)[-1:], LETTERS.text(draft), LETTERS.text(full)) for text, draft, full in parts)
        return forward(rows)

    model.forward = watch  # type: ignore[method-assign, assignment]
    for seed in range(20):
        torch.manual_seed(seed)
        accepted += run(model, LETTERS, bans, drafter=Guesses(4, longest=5, reports=True, seed=seed))[1].accepted_tokens
    assert accepted > 20
    for ban in ("ab", "c"):
        assert any((last + proposed).count(ban) > last.count(ban) for last, _, proposed in drafts)
        assert all((last + draft).count(ban) == last.count(ban) for last, draft, _ in drafts)


def test_a_continuation_is_encoded_without_a_space_before_it() -> None:
    _, tokenizer = tiny_model()
    vocabulary = Vocabulary.of(tokenizer)
    for text in (" to behold", " of the", "'s"):
        tokens = vocabulary.encode_after(tokenizer, text)
        assert vocabulary.join(tokens).decode() in (text, "")
    assert vocabulary.encode_after(tokenizer, " to the house")


# transformers' candidate generators


SETTINGS = {"max_new_tokens": 40, "return_dict_in_generate": True, "attention_mask": torch.ones_like(INPUTS)}
COMMON = [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde")]
SOURCES = {
    "a model": {"assistant_model": build_model("llama", seed=3)},
    "itself": {},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "early exit": {"assistant_early_exit": 1},
}


@pytest.mark.filterwarnings("ignore")
def test_drafts_of_the_model_itself_are_almost_always_accepted() -> None:
    """If its cache were off by one token, after a rewind for instance, hardly any draft would be accepted."""
    model = build_model("llama")
    torch.manual_seed(1)
    out = AntiSlop(TOKENIZER, COMMON).generate(
        model, INPUTS, do_sample=True, top_k=0, assistant_model=model, **SETTINGS
    )
    assert out.report.rewinds >= 3
    assert out.report.accepted_tokens >= 0.8 * out.report.drafted_tokens > 5


# Batches and prompts in flight

PROMPTS = torch.tensor([[0, 5, 9, 2, 12, 7], [1, 1, 1, 8, 3, 4], [1, 6, 2, 11, 5, 5], [0, 2, 2, 9, 8, 3]])
MASK = (torch.arange(6) >= torch.tensor([0, 3, 1, 0])[:, None]).long()
BATCH = {**SETTINGS, "attention_mask": MASK, "max_new_tokens": 20}
ALONE = [ids[mask != 0] for ids, mask in zip(PROMPTS, MASK, strict=True)]
MODEL = build_model("llama")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "source"),
    [
        pytest.param(family, source, marks=quick_if(family == "llama" or (family, source) == ("gemma3", "a model")))
        for family in ("llama", "gemma3", "mistral")
        for source in SOURCES
    ],
)
def test_greedy_texts_are_the_same_with_every_drafter_and_at_every_door(family: str, source: str) -> None:
    """Alone, in a batch, and in flight, where seven texts take four rows in turn, each with a generator of its own."""
    model, sampler = build_model(family), AntiSlop(TOKENIZER, COMMON)
    drafts = SOURCES[source] or {"assistant_model": model}
    plain = sampler.generate(model, PROMPTS, **BATCH)
    assert plain.report.rewinds
    batch = sampler.generate(model, PROMPTS, **BATCH, **drafts)
    assert torch.equal(batch.sequences, plain.sequences)
    alone = sampler.generate(model, INPUTS, **{**SETTINGS, "max_new_tokens": 20}, **drafts)
    assert alone.report.tokens_fed == alone.sequences.shape[1] + alone.report.cut_tokens - 1
    in_flight = list(sampler.generate_many(model, (ALONE * 2)[:7], batch_size=4, max_new_tokens=20, **drafts))
    texts = [(0, alone.sequences[0, 6:].tolist()), *((done.number % 4, list(done.tokens)) for done in in_flight)]
    for number, tokens in texts:
        assert tokens == plain.sequences[number, 6:].tolist()[: len(tokens)]
    assert all(report.drafted_tokens for report in (alone.report, *batch.reports, *(done.report for done in in_flight)))


SHARP = 0.2  # a temperature


class Narrow:
    """A model of transformers that writes 3 tokens after `INPUTS`, of the 3 likeliest, as oracles expect a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    @torch.no_grad()
    def probs(self, _: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        logits = self.model(torch.tensor([[*INPUTS[0].tolist(), *tokens]])).logits[0, -1] / SHARP
        return torch.softmax(logits.masked_fill(logits < logits.topk(3).values[-1], -torch.inf), dim=-1)

    def ends(self, tokens: Sequence[int]) -> bool:
        return len(tokens) == 3 or tokens[-1] == 1


@pytest.mark.filterwarnings("ignore")
def test_an_assistant_changes_nothing_about_the_distribution_of_a_batch_and_in_flight() -> None:
    vocabulary = Vocabulary.of(TOKENIZER)
    words = Words(None, None, *map(vocabulary.surface, range(2, len(TOKENIZER))))
    narrow = Narrow(MODEL)
    first = int(narrow.probs((), ()).argmax())
    second = int(narrow.probs((), (first,)).topk(2).indices[1])
    bans = [anywhere(words.text([first, second])), anywhere(words.text([second]), 0.5)]
    expected = rejection_distribution(narrow, words, bans)  # type: ignore[arg-type]
    sampler = AntiSlop(TOKENIZER, bans, prompt_lookback=False)
    drafts = {
        "assistant_model": similar(MODEL),
        "do_sample": True,
        "top_k": 3,
        "max_new_tokens": 3,
        "temperature": SHARP,
    }
    torch.manual_seed(0)
    batch, in_flight, accepted, times = Counter[tuple[int, ...]](), Counter[tuple[int, ...]](), 0, 4 * sample_size(40)
    mask = torch.ones((4, 6), dtype=torch.long)
    for _ in range(times // 4):
        out = sampler.generate(MODEL, INPUTS.repeat(4, 1), attention_mask=mask, return_dict_in_generate=True, **drafts)
        batch.update(tuple(cut_at_end(ids)) for ids in out.sequences[:, 6:].tolist())
        accepted += out.report.accepted_tokens
    for done in sampler.generate_many(MODEL, [INPUTS[0]] * times, batch_size=4, seed=0, **drafts):
        in_flight[tuple(done.tokens)] += 1
        accepted += done.report.accepted_tokens
    assert accepted > times / 10
    for drawn in (batch, in_flight):
        assert sum(drawn.values()) == times
        assert p_value(drawn, expected) > 1e-4


def similar(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with noise in its head, many of whose drafts are accepted, but not all."""
    copy = deepcopy(model)
    with torch.no_grad():
        weight = copy.get_output_embeddings().weight
        weight += 0.8 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    copy.generation_config.update(assistant_confidence_threshold=0.0, num_assistant_tokens=3)
    return copy


def cut_at_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(1) + 1] if 1 in tokens else tokens


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [{"encoder_repetition_penalty": 1.5}, {"prefix_allowed_tokens_fn": lambda row, _: [2 + row, 9, 12, 20 + row]}],
    ids=["encoder_repetition_penalty", "prefix_allowed_tokens_fn"],
)
def test_processors_that_depend_on_the_row_of_a_batch_are_left_out_of_drafts(settings: dict[str, object]) -> None:
    sampler = AntiSlop(TOKENIZER, COMMON)
    plain = sampler.generate(MODEL, PROMPTS, **BATCH, **settings)
    for drafts in ({"assistant_model": MODEL}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(sampler.generate(MODEL, PROMPTS, **BATCH, **settings, **drafts).sequences, plain.sequences)


def test_generators_are_dropped_with_their_texts() -> None:
    made: list[Row] = []

    class Generator:
        def __init__(self, row: Row) -> None:
            made.append(row)

        def get_candidates(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
            return torch.cat([ids, ids[:, :1]], dim=1), None

        def update_candidate_strategy(self, *_: object) -> None:
            pass

    drafter = CandidateDrafter(Generator, do_sample=False)  # type: ignore[arg-type]
    matcher = Matcher([], LETTERS)
    rows = [Row(spec_of(Markov(4), matcher), number=number, index=0) for number in range(3)]
    for row in (*rows, *rows):
        assert drafter.propose([row])[0].proposed == [0]
        drafter.learn(row, proposed=1, accepted=1)
    assert made == rows
    assert len(drafter._sources) == 3
    rows[0].is_finished = True
    drafter.learn(rows[0], proposed=1, accepted=0)
    made.clear()
    del rows[1:], row
    gc.collect()
    assert len(drafter._sources) == 0


# A language model that drafts, on the protocols


def protocol_model(kind: str, *, seed: int) -> LanguageModel:
    if kind != "Markov":
        return TransformersModel(build(kind, seed=seed))
    return MarkovModel(Markov(VOCABULARY, seed=seed, sharpness=2.0).table)


@pytest.mark.parametrize("kind", first_quick(["Markov", "llama", "gemma3", "mamba", "falcon-h1"], 2))
def test_a_drafting_model_proposes_as_if_it_read_each_text_anew(kind: str) -> None:
    """After rewinds of any rows, in any order, also with windows and recurrent states, and beside any others."""
    model, random = protocol_model(kind, seed=1), np.random.default_rng(0)
    matcher = Matcher([], Words(*("a" * VOCABULARY)))

    def begin() -> Row:
        prompt = tuple(random.integers(VOCABULARY, size=random.integers(1, 6)).tolist())
        greedy = replace(EXACT, do_sample=False)
        return Row(spec_of(Markov(4), matcher, prompt, policy=greedy, max_new_tokens=30))

    rows, drafter, longest = [begin() for _ in range(3)], ModelDrafter(model, length=3), 0
    for _ in range(20 * DEPTH):
        for row in rows:
            if random.integers(2) and row.tokens:
                row.rewind(int(random.integers(row.settled, len(row.tokens) + 1)))
            else:
                row.settled = max(row.settled, len(row.tokens) - 4)
            for token in random.integers(VOCABULARY, size=random.integers(1, 4)).tolist():
                row.append(token, matcher.feed(row.state, token)) if len(row.tokens) < 26 else None
        if random.integers(4) == 0:  # its place is taken by another text
            place = int(random.integers(3))
            rows[place].is_finished, rows[place] = True, begin()
            rows[place].append(1, matcher.feed(rows[place].state, 1))
        some = [row for row in rows if random.integers(3)]
        drafts = drafter.propose(some)
        assert drafts == [ModelDrafter(model, length=3).propose([row])[0] for row in some]
        longest = max(longest, *(len(draft.proposed) for draft in drafts), 0)
    assert longest == 3


@pytest.mark.filterwarnings("ignore")
def test_an_assistant_drafts_for_all_rows_in_one_forward_pass_and_saves_passes_of_the_model() -> None:
    """In a batch, and in flight, where a new text takes one pass more."""
    sampler, assistant, texts = AntiSlop(TOKENIZER, COMMON[:1]), deepcopy(MODEL), [ALONE[0]] * 8
    assistant.generation_config.update(assistant_confidence_threshold=0.0, num_assistant_tokens=3)
    plain: dict[str, Any] = {"max_new_tokens": 40, "suppress_tokens": [1]}
    settings = {**plain, "assistant_model": assistant}
    with counted_calls(MODEL) as undrafted:
        sampler.generate(MODEL, INPUTS.repeat(8, 1), **plain)
    with counted_calls(assistant) as one:
        sampler.generate(MODEL, INPUTS, **settings)
    with counted_calls(assistant) as batch, counted_calls(MODEL) as drafted:
        sampler.generate(MODEL, INPUTS.repeat(8, 1), **settings)
    assert len(batch) == len(one)
    assert len(drafted) * 2 < len(undrafted)
    with counted_calls(assistant) as in_flight, counted_calls(MODEL) as drafted:
        list(sampler.generate_many(MODEL, texts, batch_size=4, **settings))
    assert len(in_flight) == 2 * len(one)
    assert len(drafted) < len(undrafted)  # of two rounds of four texts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    first_quick(
        [
            {"assistant_model": build_model("llama", seed=3)},
            {"assistant_model": build_model("llama", seed=3), "temperature": 0.5, "repetition_penalty": 1.3},
            {"assistant_early_exit": 1},
        ]
    ),
    ids=["plain", "processed", "early exit"],
)
def test_an_assistant_drafts_for_one_text_what_that_of_transformers_drafts(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens from the same random numbers: torch's, and in flight the text's own."""
    sampler, outputs = AntiSlop(TOKENIZER, COMMON), []
    settings = {"do_sample": True, "top_k": 0, **settings}
    for is_together in (True, False):
        monkeypatch.setattr(assisted, "writes_drafts", lambda _, answer=is_together: answer)
        torch.manual_seed(0)
        alone = sampler.generate(MODEL, INPUTS, **SETTINGS, **settings)
        in_flight = sampler.generate_many(MODEL, ALONE, batch_size=1, seed=3, max_new_tokens=40, **settings)
        tokens = [(done.tokens, done.report.accepted_tokens, done.report.drafted_tokens) for done in in_flight]
        assert alone.report.rewinds
        outputs.append((alone.sequences.tolist(), alone.report.drafted_tokens, tokens, int(torch.randint(2**31, ()))))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("kind", ["Markov", "llama"])
def test_a_drafting_model_changes_no_greedy_text_and_saves_passes(kind: str) -> None:
    model, drafter = protocol_model(kind, seed=1), ModelDrafter(protocol_model(kind, seed=1))
    words = Words(None, None, *map(Vocabulary.of(TOKENIZER).surface, range(2, VOCABULARY)))
    matcher, prompts = Matcher(COMMON[:2], words), fill_left([ids.tolist() for ids in ALONE])
    texts, passes, forward = [], [], type(model).forward
    for speculation in ({}, {"drafter": drafter}):
        calls = [0]

        def count(*arguments: Any, calls: list[int] = calls) -> torch.Tensor:
            calls[0] += 1
            return forward(model, *arguments)

        model.forward = count  # type: ignore[method-assign]
        inferencer = Inferencer(model, matcher=matcher, **speculation)
        out = inferencer.decode(
            prompts, model.new_cache(4), max_new_tokens=30, sample_strategy=SampleStrategy(do_sample=False)
        )
        texts.append(out.token_ids)
        passes.append(calls[0])
    assert torch.equal(*texts)
    assert passes[1] * 2 < passes[0]
    assert not drafter._readers


def test_a_drafting_model_changes_nothing_about_the_distribution() -> None:
    """On the protocols: in a batch of an inferencer, and in flight."""
    words, bans, times = Words(None, *"abcd"), [anywhere("ab"), anywhere("cc", 0.3)], 8 * sample_size(125)
    toy = Markov(5, seed=1, bias=torch.tensor([-torch.inf, 0, 0, 0, 0]))  # prompts consist of token 0
    matcher, expected = Matcher(bans, words), rejection_distribution(toy, words, bans)
    model, drafter = MarkovModel(toy.table), ModelDrafter(MarkovModel(Markov(5, seed=4).table), length=2)
    torch.manual_seed(0)
    inferencer, batch, in_flight = Inferencer(model, matcher=matcher, drafter=drafter), Counter(), Counter()
    query = torch.tensor([PROMPT]).repeat(4, 1)
    for _ in range(times // 8):
        strategy = SampleStrategy()
        out = inferencer.decode(query, model.new_cache(4), max_new_tokens=toy.length, sample_strategy=strategy)
        batch.update(map(tuple, out.token_ids.tolist()))
    engine, accepted = BatchEngine(model, model.new_cache(4), filler=1), 0
    specs = (spec_of(toy, matcher, seed=seed, drafter=drafter) for seed in range(times // 2))
    for row, event in decode(Scheduler(specs, max_rows=4), engine):
        accepted += event.accepted if isinstance(event, Drafted) else 0
        if isinstance(event, Finished):
            in_flight[tuple(row.tokens)] += 1
    assert accepted > times / 8
    for drawn in (batch, in_flight):
        assert sum(drawn.values()) == times // 2
        assert p_value(drawn, expected) > 1e-4


def test_a_drafting_model_with_another_vocabulary_is_refused() -> None:
    model, other = MarkovModel(Markov(4).table), MarkovModel(Markov(5).table)
    inferencer, strategy = Inferencer(model, drafter=ModelDrafter(other)), SampleStrategy()
    with pytest.raises(ValueError, match="the drafting model has a vocabulary of 5 tokens, and the model one of 4"):
        inferencer.decode(torch.tensor([[0]]), model.new_cache(1), max_new_tokens=5, sample_strategy=strategy)


def test_a_draft_ends_with_an_end_token_and_before_the_limit() -> None:
    table = Markov(4, seed=0).table
    table[..., 2] = 9.0
    for eos, capacity, expected in ((frozenset({2}), 9, [2]), (frozenset[int](), 4, [2, 2]), (frozenset[int](), 2, [])):
        row = Row(
            spec_of(Markov(4), Matcher([], LETTERS), policy=replace(EXACT, do_sample=False), max_new_tokens=capacity)
        )
        row.append(0, row.state)
        assert ModelDrafter(MarkovModel(table, eos=eos)).propose([row])[0].proposed == expected
    with pytest.raises(ValueError, match="length is 0; drafts of at least 1 token"):
        ModelDrafter(MarkovModel(table), length=0)
