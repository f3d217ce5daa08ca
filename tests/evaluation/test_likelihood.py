"""Texts are as likely as the model says token by token, whatever they are batched with, and scoring costs no time."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from antislop import Ban, BanList
from antislop.datasets.samples import Arm, plan_samples
from antislop.evaluation import likelihood
from antislop.evaluation.likelihood import PromptedTokens, ScoredMaker, measure_nll
from antislop.files.journal import Record
from antislop.files.prompts import Prompt
from tests.support.depth import first_quick
from tests.support.models import EACH_FAMILY, build_model, build_tokenizer, poisoned

TOKENIZER = build_tokenizer()
MODEL = build_model("llama")
BANS = [Ban(phrase, edges="anywhere") for phrase in ("ab", "c", "fe", "ea")]
GENERATION = {"max_new_tokens": 20, "do_sample": True, "min_p": 0.1, "temperature": 0.7, "suppress_tokens": [0]}
PROMPTS = [Prompt(f"p{i}", text, None, {}) for i, text in enumerate(["a b", "c", "d d d", "ef ", "g", "ha"])]


def measure_slowly(model: PreTrainedModel, text: PromptedTokens) -> float:
    """The oracle: one token after another, each time the whole text anew, without a cache."""
    total = 0.0
    for place, token in enumerate(text.tokens):
        read = [*text.prompt, *text.tokens[:place]]
        logits = model(torch.tensor([read]), use_cache=False).logits[0, -1].float()
        total -= float(logits.log_softmax(-1)[token])
    return total


def make(arm: Arm, **options: Any) -> list[Record]:
    options = {"settings": GENERATION, "batch_size": 3, "seed": 5, "arms": (arm,), **options}
    maker = ScoredMaker(MODEL, TOKENIZER, BANS, **options)
    return [made.record for made in maker.make(plan_samples(PROMPTS, samples=2, arm=arm), arm=arm)]


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_a_text_is_as_likely_as_its_tokens_one_by_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "PASS", 64)  # several passes, of several texts each
    model, dice = build_model(family), random.Random(0)
    texts = [
        PromptedTokens(
            [dice.randrange(2, 48) for _ in range(dice.randint(1, 9))], [dice.randrange(1, 48) for _ in range(n)]
        )
        for n in (0, 1, 2, 7, 7, 13, 30, 80)
    ]
    slow = [measure_slowly(model, text) for text in texts]
    assert measure_nll(model, texts) == pytest.approx(slow, rel=1e-4, abs=1e-6)
    assert measure_nll(model, texts[::-1]) == pytest.approx(slow[::-1], rel=1e-4, abs=1e-6)


def test_texts_that_can_not_be_scored_are_refused() -> None:
    with pytest.raises(ValueError, match="a prompt has no token"):
        measure_nll(MODEL, [PromptedTokens([], [3])])
    assert measure_nll(MODEL, []) == []


@pytest.mark.parametrize("arm", first_quick(["plain", "banned", "token", "prompt-only"], 2))
def test_records_say_how_likely_their_tokens_are_after_the_prompt_of_the_data_set(arm: Arm) -> None:
    seen: dict[Any, PromptedTokens] = {}

    class Watched(ScoredMaker):
        def make_record(self, order: Any, done: Any, **more: Any) -> Record:
            prompt = TOKENIZER(order.prompt.text)["input_ids"]
            seen[order.identity] = PromptedTokens(prompt, done.tokens)
            return super().make_record(order, done, **more)

    maker = Watched(MODEL, TOKENIZER, BANS, settings=GENERATION, batch_size=3, seed=5, arms=(arm,))
    records = [made.record for made in maker.make(plan_samples(PROMPTS, samples=2, arm=arm), arm=arm)]
    assert len(records) == 12
    for record in records:
        text = seen[record["key"], record["sample"], record["arm"]]
        assert record["nll"] == pytest.approx(measure_slowly(MODEL, text), rel=1e-4)
        assert record["tokens"] == len(text.tokens)
        assert record["forward_passes"] >= record["tokens"]


def test_pieces_are_the_text_and_the_withdrawn_texts() -> None:
    records = make("banned")
    for kind in ("withdrawn", "beside", "space"):  # red, gray, and not struck through
        assert any(kind == other for record in records for _, other in record["pieces"])
    for record in records:
        assert all(text.strip() for text, kind in record["pieces"] if kind == "withdrawn")
        kept = "".join(text for text, kind in record["pieces"] if kind not in ("withdrawn", "beside", "space"))
        assert kept.replace("</s>", "") == record["response"]
        assert not BanList(BANS).find(record["response"])
    assert "pieces" not in make("plain")[0]


def test_a_text_that_failed_half_way_has_no_likelihood() -> None:
    maker = ScoredMaker(MODEL, TOKENIZER, BANS, settings=GENERATION, arms=("banned",))
    with poisoned(MODEL, TOKENIZER("j")["input_ids"][0]):
        made = list(maker.make(plan_samples([Prompt("bad", "j", None, {}), PROMPTS[0]], samples=1, arm="banned")))
    by_key = {each.record["key"]: each.record for each in made}
    assert by_key["bad"]["status"] == "error" and "nll" not in by_key["bad"]
    assert "nll" in by_key[PROMPTS[0].key]


def test_a_record_with_an_error_has_no_likelihood() -> None:
    maker = ScoredMaker(MODEL, TOKENIZER, BANS, settings=GENERATION, arms=("plain",))
    bad = [Prompt("bad", "", None, {}, error="p:3: not JSON"), PROMPTS[0]]
    records = [made.record for made in maker.make(plan_samples(bad, samples=1, arm="plain"), arm="plain")]
    assert [("nll" in record, record["status"]) for record in records] in (
        [(False, "error"), (True, "ok")],
        [(True, "ok"), (False, "error")],
    )
