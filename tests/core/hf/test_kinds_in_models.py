"""Bans of every kind work in batches and streams of a model, under all names of their options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban, BanError, BanList, Scope
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.loop.sampling import Method
from tests.support.depth import first_quick
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
MODEL = build_model("llama")
PROMPTS = torch.tensor([[1, 1, 5, 9, 2, 12], [11, 4, 8, 3, 30, 22], [1, 1, 1, 1, 21, 3]])
MASK = (PROMPTS != 1).long()
KINDS = [
    Ban.regex("a.?b"),
    Ban.regex(r"c+(?!d)"),
    Ban.words(["e", "a"], gap=2),
    Ban.wildcard("b* d"),
    Ban("e", edges="anywhere", rewind="span", exempt=["ea"]),
    Ban("f", edges="anywhere", rewind="span", at_most=1, per_words=5),
    Ban("d", edges="anywhere", rewind="span", scopes=[Scope("inside", (".", ","))]),
    Ban.tokens([10, 11]),
]


def settings_with(**more: Any) -> dict[str, Any]:
    never_end = {"suppress_tokens": [0, 1], "pad_token_id": 1}
    return {"attention_mask": MASK, "max_new_tokens": 60, "do_sample": True, "top_k": 0, **never_end, **more}


def texts_of(sequences: torch.Tensor) -> list[str]:
    return [str(TOKENIZER.decode(row[PROMPTS.shape[1] :], skip_special_tokens=True)) for row in sequences]


@pytest.mark.parametrize("seed", first_quick(range(4)))
def test_no_row_of_a_batch_contains_a_ban_and_plain_rows_do(seed: int) -> None:
    sampler = AntiSlop(TOKENIZER, KINDS, prompt_lookback=False)
    set_seed(seed)
    out = sampler.generate(MODEL, PROMPTS, return_dict_in_generate=True, **settings_with())
    assert [report.conceded for report in out.reports] == [0, 0, 0]
    assert all(report.rewinds for report in out.reports)
    for row, text in zip(out.sequences, texts_of(out.sequences), strict=True):
        assert BanList(KINDS).find(text) == []
        assert (10, 11) not in list(zip(row.tolist(), row.tolist()[1:], strict=False))[PROMPTS.shape[1] :]
    set_seed(seed)
    plain = texts_of(MODEL.generate(PROMPTS, **settings_with()))
    assert all(BanList(KINDS).find(text) for text in plain)


@pytest.mark.parametrize("seed", first_quick(range(4)))
def test_a_stream_under_all_kinds_is_the_text_and_is_never_withdrawn(seed: int) -> None:
    sampler, asked = AntiSlop(TOKENIZER, KINDS), settings_with(attention_mask=MASK[1:2])
    set_seed(seed)
    pieces = list(sampler.stream(MODEL, PROMPTS[1:2], **asked))
    set_seed(seed)
    expected = texts_of(sampler.generate(MODEL, PROMPTS[1:2], **asked))
    assert ["".join(pieces)] == expected
    assert len(pieces) > 5


def test_a_text_in_flight_does_not_depend_on_its_batch_under_all_kinds() -> None:
    sampler, prompts = AntiSlop(TOKENIZER, KINDS), [[5, 9, 2], [11], [21, 3, 8, 4]]
    asked = {name: value for name, value in settings_with(max_new_tokens=30).items() if name != "attention_mask"}
    texts = [
        {done.number: done.text for done in sampler.generate_many(MODEL, prompts, batch_size=size, seed=3, **asked)}
        for size in (1, 3)
    ]
    assert texts[0] == texts[1]


def test_bans_can_be_passed_under_the_names_of_other_samplers() -> None:
    sampler = AntiSlop(TOKENIZER, banned_strings=["Ab"], banned_regex=["c.d"], exempt=["dab"])
    assert list(sampler.bans) == [
        Ban("Ab", edges="anywhere", rewind="span", exempt=["dab"]),
        Ban.regex("c.d", exempt=["dab"]),
    ]
    assert len(AntiSlop(TOKENIZER, ["x"], banned_strings=["y"]).bans) == 2
    sampler = AntiSlop(TOKENIZER, ["a *b"], banned_strings=["a *b"])
    assert list(sampler.bans) == [Ban.wildcard("a *b"), Ban(Phrase("a *b", edges="anywhere"), rewind="span")]


@pytest.mark.parametrize("method", ["exact", "token", "text"])
def test_only_the_exact_method_has_units_by_default(method: Method) -> None:
    sampler = AntiSlop(TOKENIZER, [Ban("ab", edges="anywhere"), "c"], banned_strings=["d"], method=method)
    assert sampler.compiled.with_bans([Ban("ab", edges="anywhere")]).bans[0] == sampler.bans[0]
    assert [ban.unit for ban in sampler.bans] == ["word" if method == "exact" else "span", "span", "span"]


@pytest.mark.parametrize("name", ["banned_strings", "banned_regex", "exempt"])
def test_one_string_instead_of_a_list_is_refused(name: str) -> None:
    with pytest.raises(BanError, match=rf"^{name} is 'abc', one string"):
        AntiSlop(TOKENIZER, ["x"], **{name: "abc"})  # type: ignore[arg-type]


def test_a_sampler_without_a_list_is_refused_and_an_empty_list_is_not() -> None:
    with pytest.raises(BanError, match=r"^nothing is banned"):
        AntiSlop(TOKENIZER)
    assert len(AntiSlop(TOKENIZER, []).bans) == 0


def test_exempt_prompt_allows_words_of_the_prompt() -> None:
    model: PreTrainedModel = MODEL
    prompt = torch.tensor([TOKENIZER("a ").input_ids])
    bans = [Ban("a", edges="anywhere"), Ban("b", edges="anywhere")]
    texts = []
    for exempt_prompt in (False, True):
        set_seed(0)
        sampler = AntiSlop(TOKENIZER, bans, exempt_prompt=exempt_prompt)
        ids = sampler.generate(model, prompt, **settings_with(attention_mask=torch.ones_like(prompt)))
        texts.append(TOKENIZER.decode(ids[0, prompt.shape[1] :]))
    assert [("a" in text, "b" in text) for text in texts] == [(False, False), (True, False)]
