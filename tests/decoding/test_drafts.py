"""Drafts don't change the distribution of texts; good drafts take fewer forward passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban, tiny_model
from antislop.decoding.ban_drafts import PhraseDrafter, common_start
from antislop.decoding.ledger import Node
from antislop.decoding.row import NO_DRAFT, Draft, Row
from antislop.hf.vocabulary import Vocabulary, encode_after
from antislop.matching.token_matcher import Matcher
from tests.conftest import DEPTH
from tests.decoding.test_exactness import CASES, LETTERS, TIMES, anywhere, expected_of, p_value
from tests.support.depth import in_turn
from tests.support.models import build_model, build_tokenizer
from tests.support.oracles import rejection_distribution
from tests.support.toys import PROMPT, Markov, Words, run, spec_of

TOKENIZER = build_tokenizer()
INPUTS = torch.tensor([[0, 5, 9, 2, 12, 7]])


class Guesses:
    """Random drafts. reports: each token is drawn from a distribution that is reported with the draft."""

    def __init__(self, size: int, *, longest: int = 3, reports: bool, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.size, self.longest, self.reports = size, longest, reports
        self.proposed = self.accepted = 0

    def propose(self, row: Row) -> Draft:
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

    def propose(self, row: Row) -> Draft:
        tokens = list(row.tokens)
        for _ in range(self.longest):
            tokens.append(int(self.model.probs(PROMPT, tokens).argmax()))
        return Draft(tokens[len(row.tokens) :])


def draw(model: Markov, words: Words, bans: Sequence[Ban], drafter: Guesses, *, times: int) -> Counter[tuple[int, ...]]:
    torch.manual_seed(0)
    matcher = Matcher(bans, words)
    return Counter(run(model, words, bans, matcher=matcher, lookback=False, drafter=drafter)[0] for _ in range(times))


@pytest.mark.parametrize(("case", "drafts"), in_turn(CASES, ["guessed", "drawn"]))
def test_random_drafts_change_nothing_about_the_distribution(case: str, drafts: str) -> None:
    words, bans = CASES[case]
    model, guesses = Markov(len(words), seed=1), Guesses(len(words), reports=drafts == "drawn")
    assert p_value(draw(model, words, bans, guesses, times=TIMES), expected_of(case, seed=1)) > 1e-4
    assert guesses.accepted > 100


def test_a_drafted_ban_is_drawn_by_its_own_probability() -> None:
    """The draft mostly proposes a ban; resampling only after a ban would favor tokens that it seldom proposes."""
    model = Markov(4, seed=5, length=3)
    bans = [anywhere("b"), anywhere("ac", 0.5)]
    expected = rejection_distribution(model, LETTERS, bans)

    class Biased(Guesses):
        def propose(self, row: Row) -> Draft:
            proposal = np.array([0.05, 0.8, 0.1, 0.05])
            token = int(self.random.choice(4, p=proposal))
            return Draft([token], torch.tensor(proposal, dtype=torch.float32)[None])

    assert p_value(draw(model, LETTERS, bans, Biased(4, reports=True), times=3000 * DEPTH), expected) > 1e-4


@given(
    left=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    proposal=st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
)
def test_drawing_beside_a_proposal_draws_from_the_remaining_probability(
    left: list[float], proposal: list[float]
) -> None:
    """Summed over proposals, a token has its own probability; with equal distributions, all proposals are accepted."""
    if sum(left) < 0.1:
        return
    p, q = (np.array(weights) / sum(weights) for weights in (left, proposal))
    rest = np.clip(p - q, 0, None)
    accepted = np.minimum(p, q)
    rejected = 1 - accepted.sum()
    assert np.allclose(accepted + (rejected * rest / rest.sum() if rest.sum() > 1e-9 else 0), p, atol=1e-6)
    node = Node()
    scores = torch.tensor(p, dtype=torch.float32).log()[None]
    node.fill(scores, scores)
    torch.manual_seed(0)
    token = int(np.argmax(p))
    assert node.draw_beside(token, torch.tensor(p, dtype=torch.float32)) == token


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


# The rest of a ban


def test_the_rest_of_a_long_ban_is_read_in_one_pass() -> None:
    """The model writes "a b c d e f g" whenever it can; each violation costs fewer passes if the rest is drafted."""
    words = Words(*"abcdefgh")
    model = Markov(8, sharpness=0.0, length=30)
    model.table[:] = 0
    for token in range(7):
        model.table[:, token, (token + 1) % 8] = 6.0
    model.table[:, 7, 0] = 6.0
    bans = [anywhere("abcdefg")]
    torch.manual_seed(1)
    _, plain = run(model, words, bans, prompt=(7, 7))
    torch.manual_seed(1)
    matcher = Matcher(bans, words)
    drafter = PhraseDrafter(matcher, lambda text: ["abcdefgh".index(letter) for letter in text])
    _, drafted = run(model, words, bans, prompt=(7, 7), matcher=matcher, drafter=drafter)
    assert plain.violations and drafted.violations
    assert drafted.accepted_tokens > 0
    assert drafted.forward_passes / (30 + drafted.withdrawn_tokens) < 0.7 * (
        plain.forward_passes / (30 + plain.withdrawn_tokens)
    )


def test_nothing_is_drafted_before_two_tokens_of_a_ban() -> None:
    words = Words(*"abcd")
    matcher = Matcher([anywhere("abcd")], words)
    drafter = PhraseDrafter(matcher, lambda text: ["abcd".index(letter) for letter in text])
    model = Markov(4)
    row = Row(spec_of(model, matcher, (3, 3), capacity=9))
    assert drafter.propose(row) == NO_DRAFT
    row.append(0, matcher.feed(row.state, 0))
    assert drafter.propose(row) == NO_DRAFT
    row.append(1, matcher.feed(row.state, 1))
    assert drafter.propose(row).proposed == [2, 3]


def test_a_draft_that_is_never_accepted_is_given_up() -> None:
    words = Words(*"abcd")
    matcher = Matcher([anywhere("abcd")], words)
    drafter = PhraseDrafter(matcher, lambda text: ["abcd".index(letter) for letter in text])
    row = Row(spec_of(Markov(4), matcher, (3, 3), capacity=9))
    for token in (0, 1):
        row.append(token, matcher.feed(row.state, token))
    for _ in range(2):
        row.draft = drafter.propose(row)
        assert row.draft.proposed
        drafter.learn(row, proposed=2, accepted=0)
    assert drafter.propose(row) == NO_DRAFT


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=6))
def test_the_common_start_is_shared_by_more_than_half(texts: list[list[int]]) -> None:
    start = common_start(texts)
    if start:
        assert sum(text[: len(start)] == start for text in texts) * 2 > len(texts)
    for token in range(3):
        assert sum(text[: len(start) + 1] == [*start, token] for text in texts) * 2 <= len(texts)


def test_a_continuation_is_encoded_without_a_space_before_it() -> None:
    _, tokenizer = tiny_model()
    vocabulary = Vocabulary.of(tokenizer)
    for text in (" to behold", " of the", "'s"):
        tokens = encode_after(tokenizer, vocabulary, text)
        assert vocabulary.join(tokens).decode() in (text, "")
    assert encode_after(tokenizer, vocabulary, " to the house")


# transformers' candidate generators


SETTINGS = {"max_new_tokens": 40, "return_dict_in_generate": True, "attention_mask": torch.ones_like(INPUTS)}
COMMON = [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde")]
SOURCES = {
    "a model": {"assistant_model": build_model("llama", seed=3)},
    "itself": {},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "early exit": {"assistant_early_exit": 1},
}


def settings_of(source: str, model: PreTrainedModel) -> dict[str, object]:
    return {**SETTINGS, **SOURCES[source], **({"assistant_model": model} if source == "itself" else {})}


@pytest.mark.filterwarnings("ignore")  # transformers warns of the settings of its assistants
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_greedy_texts_are_the_same_with_every_drafter(family: str, source: str) -> None:
    model = build_model(family)
    sampler = AntiSlop(TOKENIZER, COMMON)
    plain = sampler.generate(model, INPUTS, **SETTINGS)
    drafted = sampler.generate(model, INPUTS, **settings_of(source, model))
    assert torch.equal(drafted.sequences, plain.sequences)
    assert drafted.report.drafted_tokens > 0
    report = drafted.report
    assert report.tokens_fed == drafted.sequences.shape[1] + report.cut_tokens - 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES)
def test_sampled_drafts_follow_the_same_bans(source: str) -> None:
    model = build_model("llama")
    sampler = AntiSlop(TOKENIZER, COMMON)
    rewinds = 0
    for seed in range(4):
        torch.manual_seed(seed)
        out = sampler.generate(model, INPUTS, do_sample=True, top_k=0, **settings_of(source, model))
        assert not sampler.bans.find(TOKENIZER.decode(out.sequences[0, 6:]))
        rewinds += out.report.rewinds
    assert rewinds


@pytest.mark.filterwarnings("ignore")
def test_drafts_of_the_model_itself_are_almost_always_accepted() -> None:
    """If its cache were off by one token, after a rewind for instance, hardly any draft would be accepted."""
    model = build_model("llama")
    torch.manual_seed(0)
    out = AntiSlop(TOKENIZER, COMMON).generate(model, INPUTS, do_sample=True, top_k=0, **settings_of("itself", model))
    assert out.report.rewinds >= 3
    assert out.report.accepted_tokens >= 0.8 * out.report.drafted_tokens > 5


def test_prompt_lookup_drafts_for_all_rows_of_a_batch() -> None:
    model, prompts = build_model("llama"), INPUTS.repeat(3, 1)
    prompts[1:, 2] = torch.tensor([8, 3])
    settings_of = {"max_new_tokens": 30, "attention_mask": torch.ones_like(prompts), "return_dict_in_generate": True}
    sampler = AntiSlop(TOKENIZER, COMMON)
    plain = sampler.generate(model, prompts, **settings_of)
    drafted = sampler.generate(model, prompts, prompt_lookup_num_tokens=3, **settings_of)
    assert torch.equal(drafted.sequences, plain.sequences)
    assert drafted.report.accepted_tokens > 0
