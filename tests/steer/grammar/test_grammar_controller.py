"""A grammar as a controller: valid texts without bans, and what is certain costs one forward pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import antislop
from antislop import AntiSlop, Ban
from antislop.core.loop import Step
from antislop.core.trace.events import Drawn, Forwarded
from antislop.steer import Grammar
from tests.support.depth import DEPTH

MODEL, TOKENIZER = antislop.tiny_model()
KINDS = ["tale", "story"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 20}, "kind": {"enum": KINDS}},
    "required": ["title", "kind"],
    "additionalProperties": False,
}
BANS = [Ban(phrase, edges="anywhere") for phrase in ("the", "and", "was", "ed", "I'm", "ar", "A", "on")]
INPUTS = TOKENIZER(["A story as JSON: "], return_tensors="pt")
START = INPUTS["input_ids"].shape[1]


@pytest.fixture(params=["llguidance", "xgrammar"], scope="module")
def grammar(request: pytest.FixtureRequest) -> Grammar:
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return Grammar.from_json_schema(SCHEMA, TOKENIZER, engine=request.param)


def generate(seed: int = 0, bans: Any = (), inputs: Any = INPUTS, **settings: Any) -> Any:
    torch.manual_seed(seed)
    settings = {"do_sample": True, "max_new_tokens": 70, "return_dict_in_generate": True, **settings}
    return AntiSlop(TOKENIZER, list(bans)).generate(MODEL, **inputs, **settings)


def check(tokens: list[int], grammar: Grammar) -> None:
    value = json.loads(TOKENIZER.decode(tokens, skip_special_tokens=True))
    assert list(value) == list(SCHEMA["properties"])
    assert value["kind"] in KINDS
    assert grammar.accepts(tokens)


def test_every_text_is_valid_and_without_bans(grammar: Grammar) -> None:
    rewinds = 0
    for seed in range(4 * DEPTH):
        out = generate(seed, BANS, controller=grammar)
        tokens = out.sequences[0, START:].tolist()
        check(tokens, grammar)
        assert not antislop.BanList(BANS).find(TOKENIZER.decode(tokens))
        rewinds += out.report.rewinds
    assert rewinds >= 3 * DEPTH


def test_as_a_controller_it_costs_fewer_forward_passes(grammar: Grammar) -> None:
    passes = {"controller": 0, "processor": 0}
    for seed in range(3):
        passes["controller"] += generate(seed, controller=grammar).report.forward_passes
        passes["processor"] += generate(seed, logits_processor=[grammar]).report.forward_passes
    assert passes["controller"] < 0.8 * passes["processor"]


def test_forced_tokens_cost_one_forward_pass() -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    grammar = Grammar.from_json_schema(SCHEMA, TOKENIZER)
    events = generate(controller=grammar).report.events
    forced = TOKENIZER.encode('{"title": "', add_special_tokens=False)
    assert [event.token for event in events if isinstance(event, Drawn)][: len(forced)] == forced
    passes = [event.fed for event in events if isinstance(event, Forwarded)]
    assert passes[:2] == [START, len(forced)]
    assert len(passes) < len([event for event in events if isinstance(event, Drawn)]) - len(forced)


def test_each_row_of_a_batch_has_a_matcher(grammar: Grammar) -> None:
    prompts = TOKENIZER(["A lamp: ", "A story as JSON: "], return_tensors="pt", padding=True, padding_side="left")
    out = generate(1, BANS, prompts, controller=grammar)
    for ids in out.sequences[:, prompts["input_ids"].shape[1] :].tolist():
        tokens = ids[: ids.index(TOKENIZER.eos_token_id)]
        check(tokens, grammar)


def test_a_text_that_was_cut_is_no_text_of_the_grammar(grammar: Grammar) -> None:
    out = generate(controller=grammar, max_new_tokens=9)
    assert not grammar.accepts(out.sequences[0, START:].tolist())


def test_a_fork_continues_from_the_text_that_it_is_forked_in(grammar: Grammar) -> None:
    tokens = tuple(generate(controller=grammar).sequences[0, START:].tolist())
    one = grammar.fork()
    one.start([1])
    before = one.mid_process(Step(0, 0, (), None, ()))
    for length in range(1, len(tokens)):
        one.mid_process(Step(0, 0, tokens[length - 1 : length], None, tokens[:length]))
        other = one.fork()
        same = Step(0, 0, (), None, tokens[:length])
        assert other.mid_process(same) == one.mid_process(same)
    assert one.mid_process(Step(0, len(tokens) - 1, (), None, ())) == before
