"""A result explains chosen tokens afterwards: shares, rejected attempts, and the relevance of earlier tokens."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.trace import Drawn, Rewound
from antislop.explain import ForwardResult
from tests.support.depth import DEPTH, first_quick
from tests.support.memory import find_tensors
from tests.support.models import build_model, build_tokenizer
from tests.support.refusals import refused

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[5, 6, 7, 8]])
BANS = [Ban(letters, edges="anywhere", weight=0.2) for letters in ("a", "be", "cc", "cd", "d", "f")]


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@pytest.fixture(scope="module")
def sampler() -> AntiSlop:
    return AntiSlop(TOKENIZER, BANS)


def run(sampler: AntiSlop, model: PreTrainedModel, *, seed: int = 0, **options: Any) -> ForwardResult:
    set_seed(seed)
    asked = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": True, "temperature": 2.0, "pad_token_id": 0}
    inputs = options.pop("inputs", PROMPT)
    options.setdefault("attention_mask", torch.ones_like(inputs))
    return sampler.forward_pass(model, inputs, **{**asked, **options})


def count_calls(model: PreTrainedModel) -> tuple[list[int], Any]:
    """Return a list that grows with each forward pass of a model, and its hook."""
    calls: list[int] = []
    return calls, model.register_forward_pre_hook(lambda *_: calls.append(1))


def test_the_sequences_are_those_of_generate(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    inputs, mask = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    for level in ("none", "events", "top", "full"):
        forward = run(sampler, llama, inputs=inputs, attention_mask=mask, record=level, min_new_tokens=0, top_k=0)
        set_seed(0)
        sequences = sampler.generate(
            llama,
            inputs,
            attention_mask=mask,
            max_new_tokens=40,
            do_sample=True,
            temperature=2.0,
            top_k=0,
            pad_token_id=0,
        )
        assert torch.equal(forward.complete_sequence, sequences)
        assert torch.equal(forward.generated_token_ids, sequences[:, 4:])
        assert forward.report.rewinds == sum(report.rewinds for report in forward.reports)


def test_steps_count_the_draws_of_all_rows(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    forward = run(sampler, llama, num_return_sequences=3)
    assert forward.num_steps == forward.generated_token_ids.numel() + forward.report.withdrawn_tokens
    for row, report in enumerate(forward.reports):
        drawn = [event.token for event in report.events if isinstance(event, Drawn)]
        explanations = forward.relevance_pass(row=row)
        assert [drawn[e["step_index"]] for e in explanations] == forward.generated_token_ids[row].tolist()
        assert [e["token_index"] for e in explanations] == list(range(40))
        assert [e["token_id"] for e in explanations] == forward.generated_token_ids[row].tolist()
        assert "".join(e["token"] for e in explanations) == TOKENIZER.decode(forward.generated_token_ids[row])


def test_an_explanation_has_what_was_recorded(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    forward = run(sampler, llama, record_top_k=12)
    assert forward.report.rewinds >= 20
    for explanation, kept in zip(forward.relevance_pass(top_k=12), forward.trace.rows[0].history.kept, strict=True):
        assert kept.choice is not None
        assert explanation["probability"] == kept.choice.probability
        assert explanation["share"] == kept.choice.share
        assert explanation["rank"] == kept.choice.rank
        assert explanation["relevance"] is None
        ids, shares = zip(*((a["token_id"], a["share"]) for a in explanation["alternatives"]), strict=True)
        assert tuple(zip(ids, shares, strict=True)) == kept.choice.alternatives
        assert sorted(shares, reverse=True) == list(shares)
        if explanation["rank"] <= 12:
            assert ids[explanation["rank"] - 1] == explanation["token_id"]
        assert [a["token"] for a in explanation["alternatives"]] == [TOKENIZER.decode([token]) for token in ids]
        for attempt in explanation["rejected"]:
            assert attempt["ban"] in {ban.text for ban in BANS}
            assert attempt["text"] == TOKENIZER.decode(attempt["tokens"])
            assert attempt["probability"] is not None and attempt["share"] is not None
            assert attempt["step_index"] < explanation["step_index"]
    assert json.loads(json.dumps(forward.relevance_pass())) == forward.relevance_pass()
    assert max(len(e["alternatives"]) for e in forward.relevance_pass(top_k=3)) == 3
    assert all(e["alternatives"] == [] for e in forward.relevance_pass(top_k=0))


def list_surviving(forward: ForwardResult, row: int) -> Counter[tuple[int, tuple[int, ...]]]:
    """Return the place and tokens of each attempt whose preceding tokens begin the final text, by plain replay."""
    text, attempts = list[int](), list[tuple[list[int], tuple[int, ...]]]()
    for event in forward.reports[row].events:
        if isinstance(event, Drawn):
            text.append(event.token)
        elif isinstance(event, Rewound):
            attempts.append((text[: event.length], event.withdrawn))
            text = text[: event.length]
    return Counter((len(before), withdrawn) for before, withdrawn in attempts if text[: len(before)] == before)


@pytest.mark.parametrize("seed", first_quick(range(6 * DEPTH), 2))
def test_each_attempt_on_the_surviving_path_is_rejected_exactly_once(
    llama: PreTrainedModel, sampler: AntiSlop, seed: int
) -> None:
    forward = run(sampler, llama, seed=seed, num_return_sequences=32, max_new_tokens=30, min_new_tokens=0, top_k=0)
    for row in range(32):
        rejected = Counter(
            (explanation["token_index"], tuple(attempt["tokens"]))
            for explanation in forward.relevance_pass(row=row)
            for attempt in explanation["rejected"]
        )
        count = len(forward.relevance_pass(row=row))
        rejected.update((count, tuple(attempt["tokens"])) for attempt in forward.rejected_at_end(row))
        assert rejected == list_surviving(forward, row)


def test_places_may_be_negative_repeated_and_in_any_order(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    forward = run(sampler, llama)
    every = forward.relevance_pass()
    assert len(every) == 40
    assert forward.relevance_pass([7, -1, 7, 0, -40]) == [every[7], every[39], every[7], every[0], every[0]]
    assert forward.relevance_pass(torch.tensor([3, 2])) == [every[3], every[2]]
    assert forward.relevance_pass([]) == []


def test_a_row_is_explained_without_its_padding(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    inputs, mask = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    forward = run(sampler, llama, inputs=inputs, attention_mask=mask)
    for row, start in enumerate((2, 4)):
        explanations = forward.relevance_pass([0, 5, 39], row=row, relevance="input_x_gradient")
        assert [len(e["relevance"] or []) for e in explanations] == [start, start + 5, start + 39]


def test_two_results_explain_independently(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    first = run(sampler, llama, seed=1)
    before = first.relevance_pass(relevance="input_x_gradient")
    second = run(sampler, build_model("gpt2"), seed=2)
    other = second.relevance_pass(relevance="input_x_gradient")
    assert other != before
    second.clear_traces()
    assert first.relevance_pass(relevance="input_x_gradient") == before
    assert run(sampler, llama, seed=1).relevance_pass(relevance="input_x_gradient") == before


def test_errors_come_before_the_model_runs(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    forward, batch = run(sampler, llama), run(sampler, llama, num_return_sequences=2)
    calls, hook = count_calls(llama)
    relevance: Any = "input_x_gradient"
    with hook:
        with pytest.raises(IndexError, match=r"^token index 57: 40 tokens were generated$"):
            forward.relevance_pass([0, 57], relevance=relevance)
        with pytest.raises(IndexError, match=r"^token index -41: 40 tokens were generated$"):
            forward.relevance_pass([-41], relevance=relevance)
        for result, row, sentence in (
            (forward, 1, "row 1: 1 text was"),
            (batch, 2, "row 2: 2 texts were"),
            (batch, -1, "row -1"),
        ):
            with pytest.raises(IndexError, match=f"^{sentence}"):
                result.relevance_pass([0], row=row, relevance=relevance)
        refused("record_top_k=11 to forward_pass", forward.relevance_pass, [0], relevance=relevance, top_k=11)
        for wrong in (-1, True, 2.0):
            refused(r"^top_k is", forward.relevance_pass, [0], relevance=relevance, top_k=wrong)
        for indices in (3, "03"):
            refused(r"^token_indices is", forward.relevance_pass, indices, relevance=relevance)
        refused("relevance is 'lime'; it is None or 'input_x_gradient'", forward.relevance_pass, [0], relevance="lime")
        for name in ("output_scores", "output_logits", "output_hidden_states", "output_attentions", "return_cache"):
            refused(f"^{name} is for generate", run, sampler, llama, **{name: True})
        refused("leave return_dict_in_generate out", run, sampler, llama, return_dict_in_generate=False)
        refused("record is 'all'", run, sampler, llama, record="all")
    assert not calls


@pytest.mark.parametrize("level", ["none", "events"])
def test_nothing_is_explained_that_was_not_recorded(llama: PreTrainedModel, sampler: AntiSlop, level: str) -> None:
    forward = run(sampler, llama, record=level)
    calls, hook = count_calls(llama)
    with hook, pytest.raises(RuntimeError, match='pass record="top" or "full" to forward_pass'):
        forward.relevance_pass([0], relevance="input_x_gradient")
    assert not calls
    if level == "events":
        assert forward.num_steps == 40 + forward.report.withdrawn_tokens
        assert forward.rejected_at_end() == []
        assert sum(len(kept.rejected) for kept in forward.trace.rows[0].history.kept) > 5
    else:
        for name in ("trace", "num_steps"):
            with pytest.raises(RuntimeError, match="record='none' recorded no"):
                getattr(forward, name)


def test_cleared_results_keep_counts_and_sequences_only(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    forward = run(sampler, llama)
    report, steps, sequence = forward.report, forward.num_steps, forward.complete_sequence
    forward.clear_traces()
    calls, hook = count_calls(llama)
    with hook:
        for ask in (forward.relevance_pass, forward.rejected_at_end, lambda: forward.trace):
            with pytest.raises(RuntimeError, match='the trace was cleared: call forward_pass again, with record="top"'):
                ask()
    assert not calls
    assert any(isinstance(event, Drawn) for event in report.events)
    assert not [*forward.report.events, *forward.reports[0].events]
    assert forward.report.to_dict() == report.to_dict()
    assert (forward.num_steps, forward.complete_sequence) == (steps, sequence)
    assert llama not in vars(forward).values()
    forward.clear_traces()  # twice is once
    assert "cleared" in repr(forward)


@pytest.mark.parametrize(
    "level", [pytest.param("none", marks=pytest.mark.slow), "events", pytest.param("top", marks=pytest.mark.slow)]
)
def test_nothing_of_the_vocabularys_size_is_kept(llama: PreTrainedModel, sampler: AntiSlop, level: str) -> None:
    size = llama.config.vocab_size

    before = set(map(id, find_tensors(size)))
    forward = run(sampler, llama, record=level)
    assert not [tensor.shape for tensor in find_tensors(size) if id(tensor) not in before]
    if level == "top":
        forward.relevance_pass(relevance="input_x_gradient")
        assert not [tensor.shape for tensor in find_tensors(size) if id(tensor) not in before]
    held = {name for name, value in vars(forward).items() if isinstance(value, torch.Tensor)}
    assert held == {"complete_sequence", "generated_token_ids"}
