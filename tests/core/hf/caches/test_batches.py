"""Batches in place of `generate`: bit-identical without bans, rows that rewind alone, costs, prompts in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.hf.caches import cache as cache_module, layers as layers_module
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.caches.layers import SPARE_COLUMNS, SPARE_COLUMNS_IN_WINDOW, GrowingLayer
from antislop.core.hf.caches.positions import AttentionMask
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.private import CACHE
from antislop.core.loop.protocols import fill_left
from antislop.core.trace.events import Completion, Conceded, Drawn, Report, Rewound
from tests.support.batches import (
    COMMON,
    EOS,
    LIKELY_TO_END,
    NEVER,
    NO_END,
    PAD_ID,
    PROMPTS,
    TOKENIZER,
    counting,
    generate,
    pad,
    sample,
    texts_of,
)
from tests.support.depth import DEPTH, SHARE, first_quick
from tests.support.families import build
from tests.support.models import EACH_FAMILY, FAMILIES, VOCABULARY, WINDOW, build_model, poisoned

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "exponential_decay_length_penalty": (4, 1.2)},
    "sampling": {"do_sample": True},
    "top-k, min-p, repetition penalty": {"do_sample": True, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2},
    "greedy with repetition penalty": {"do_sample": False, "repetition_penalty": 1.3},
    "length penalty on the end": {"do_sample": True, "exponential_decay_length_penalty": (4, 1.2)},
}


@pytest.fixture(scope="module", params=EACH_FAMILY)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build_model(request.param)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@pytest.fixture(scope="module")
def mistral() -> PreTrainedModel:
    return build_model("mistral")


# -- no bans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", first_quick(SETTINGS, 2))
def test_if_nothing_matches_a_batch_is_that_of_generate(model: PreTrainedModel, name: str) -> None:
    """Prompts of 1 to 13 tokens, rows that end at different steps; the mask is passed, or derived from the padding."""
    sampler, lengths = AntiSlop(TOKENIZER, NEVER), set()
    settings = {**LIKELY_TO_END, **SETTINGS[name]}
    for seed in range(2):
        expected = generate(model, seed=seed, **settings)
        random_after = torch.rand(1)
        lengths |= set(map(len, texts_of(expected)))
        for mask in ({}, {"attention_mask": None}):
            assert torch.equal(generate(model, seed=seed, custom_generate=sampler, **mask, **settings), expected)
            assert torch.equal(torch.rand(1), random_after), "the same random numbers are used up"
    assert len(lengths) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_batches_equal_generate_too(dtype: torch.dtype) -> None:
    half = build_model("llama", dtype=dtype)
    settings = {**LIKELY_TO_END, "do_sample": True, "min_p": 0.05}
    assert torch.equal(
        generate(half, custom_generate=AntiSlop(TOKENIZER, NEVER), **settings), generate(half, **settings)
    )


def test_logits_and_scores_equal_those_of_generate_also_after_a_row_ends(model: PreTrainedModel) -> None:
    settings = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True, "top_k": 9}
    settings |= {**LIKELY_TO_END, "do_sample": True}
    theirs, ours = generate(model, **settings), sample(NEVER, model, **settings)
    assert torch.equal(ours.sequences, theirs.sequences)
    lengths = [len(text) for text in texts_of(theirs.sequences)]
    assert len(set(lengths)) > 1
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(theirs[name]) == max(lengths)
        for row, length in enumerate(lengths):
            for step, (our, their) in enumerate(zip(ours[name], theirs[name], strict=True)):
                assert our.dtype == torch.float32
                assert torch.equal(our[row], their[row]), (name, row, step, length)


@torch.no_grad()
def test_with_bans_logits_after_a_rows_end_are_those_of_pad_tokens_or_0(model: PreTrainedModel) -> None:
    found = set[bool]()
    for seed in range(6):
        out = sample(COMMON, model, seed=seed, do_sample=True, **LIKELY_TO_END)
        for row, (prompt, text) in enumerate(zip(PROMPTS, texts_of(out.sequences), strict=True)):
            after = [step[row] for step in out.logits[len(text) :]]
            ids = torch.tensor([[*prompt, *text, *[PAD_ID] * len(after)]])
            expected = model(ids).logits[0, len(prompt) + len(text) - 1 : -1]
            for logits, own in zip(after, expected, strict=True):
                found.add(bool(logits.any()))
                assert not logits.any() or torch.allclose(logits, own, atol=1e-4)
    assert found == {True, False}


def test_several_texts_of_a_prompt_equal_those_of_generate_and_the_prompt_is_read_once(model: PreTrainedModel) -> None:
    settings = {**LIKELY_TO_END, "do_sample": True, "num_return_sequences": 3}
    for bans in ([], COMMON):
        expected = generate(model, **settings)
        random_after = torch.rand(1)
        with counting(model) as fed:
            ours = sample(bans, model, **settings)
        random_after_ours = torch.rand(1)
        assert fed[0] == len(PROMPTS) * max(map(len, PROMPTS)), "twelve rows, but four prompts"
        assert len(ours.reports) == 12
        if not bans:
            assert torch.equal(ours.sequences, expected)
            assert torch.equal(random_after_ours, random_after)
            assert fed[1:] == [12] * (ours.sequences.shape[1] - max(map(len, PROMPTS)) - 1)
        else:
            prompts = [prompt for prompt in PROMPTS for _ in range(3)]
            assert ours.report.rewinds > 5
            assert_as_if_alone(model, ours, prompts)


# -- rows that rewind alone --------------------------------------------------------------------------------------------


@torch.no_grad()
def assert_as_if_alone(model: PreTrainedModel, out: Any, prompts: Sequence[Sequence[int]]) -> None:
    """Check the kept logits of each row against one forward pass over that row alone, within 5 times the floor."""
    texts, dtype = texts_of(out.sequences, prompts), next(model.parameters()).dtype
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        ids = torch.tensor([[*prompt, *text]])
        fresh = model(ids).logits[0, len(prompt) - 1 : -1].float()
        cache, pieces = (
            DynamicCache(),
            [ids[:, : len(prompt)], *(ids[:, place : place + 1] for place in range(len(prompt), ids.shape[1] - 1))],
        )
        passes = [model(piece, **{CACHE: cache}).logits[:, -1].float() for piece in pieces]
        floor = max(float((torch.cat(passes) - fresh).abs().max()), torch.finfo(dtype).eps * float(fresh.abs().max()))
        kept = torch.stack([step[row] for step in out.logits[: len(text)]])
        assert float((kept - fresh).abs().max()) <= 5 * floor, row


def banned(out: Any, bans: Sequence[Ban], prompts: Sequence[Sequence[int]] = PROMPTS) -> list[bool]:
    """Return for each row whether its generated text contains a ban."""
    texts = [TOKENIZER.decode(text, skip_special_tokens=True) for text in texts_of(out.sequences, prompts)]
    return [any(ban.text in text for ban in bans) for text in texts]


@pytest.mark.parametrize("dtype", first_quick([torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("ending", [NO_END, LIKELY_TO_END], ids=["all to the limit", "some end"])
def test_after_any_rewinds_each_row_is_as_if_alone(family: str, dtype: torch.dtype, ending: dict[str, Any]) -> None:
    model = build_model(family, dtype=dtype)
    out = sample(COMMON, model, do_sample=True, max_new_tokens=3 * WINDOW, seed=4, **ending)
    assert_as_if_alone(model, out, PROMPTS)
    assert out.report.rewinds > 3
    assert out.report.conceded == 0
    assert not any(banned(out, COMMON))
    free = sample(NEVER, model, do_sample=True, max_new_tokens=3 * WINDOW, **ending)
    assert any(banned(free, COMMON))


@pytest.fixture(params=EACH_FAMILY)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_report_of_a_text_counts_each_pass(llama: PreTrainedModel) -> None:
    for ending in (NO_END, LIKELY_TO_END):
        for seed in range(4):
            with counting(llama) as fed:
                out = sample(COMMON, llama, PROMPTS[:1], seed=seed, do_sample=True, **ending)
            assert out.report.forward_passes == len(fed)
            assert out.report.tokens_fed == sum(fed)


@pytest.mark.parametrize("ending", first_quick([LIKELY_TO_END, NO_END]), ids=["some end", "all to the limit"])
def test_each_row_reads_its_prompt_and_all_kept_and_cut_tokens_but_the_last(
    model: PreTrainedModel, ending: dict[str, Any]
) -> None:
    """The padding of a prompt is included."""
    longest, checked = max(map(len, PROMPTS)), 0
    for seed in range(8 * DEPTH):
        out = sample(COMMON, model, seed=seed, do_sample=True, **ending)
        assert out.report == Report.total(out.reports)
        for report, text in zip(out.reports, texts_of(out.sequences), strict=True):
            assert sum(isinstance(event, Drawn) for event in report.events) - report.withdrawn_tokens == len(text)
            assert report.tokens_fed == longest + len(text) + report.cut_tokens - 1
            assert report.cut_tokens <= report.withdrawn_tokens
            checked += report.cut_tokens > 0
    assert checked > 3


def test_a_row_rewinds_20_to_200_times(family: str) -> None:
    """200 times at full depth for Gemma, which has layers of both kinds, and for other families beyond it."""
    number = 200 if DEPTH > 1 or (family == "gemma3" and SHARE >= 1) else 50 if SHARE >= 1 else 20
    bans, model = [Ban(letter, edges="anywhere") for letter in "abcdefg"], build_model(family)
    out = sample(bans, model, PROMPTS[:2], do_sample=True, max_new_tokens=number * 13 // 10, **NO_END)
    assert max(report.rewinds for report in out.reports) >= number
    assert not any(banned(out, bans, PROMPTS[:2]))
    assert_as_if_alone(model, out, PROMPTS[:2])


def test_every_row_can_be_rewound_to_its_first_token(model: PreTrainedModel) -> None:
    """Also with prompts of one token, and of about the length of a window."""
    prompts = [(5,), (7,), *(tuple(range(2, 2 + length)) for length in (WINDOW - 1, WINDOW, WINDOW + 1))]
    bans, first = [Ban(letter, edges="anywhere") for letter in "abcdefgh"], set[int]()
    for seed in range(4):
        out = sample(bans, model, prompts, seed=seed, do_sample=True, max_new_tokens=6, **NO_END)
        assert_as_if_alone(model, out, prompts)
        for row, report in enumerate(out.reports):
            assert not banned(out, bans, prompts)[row] or any(isinstance(e, Conceded) for e in report.events)
            if any(isinstance(event, Rewound) and event.length == 0 for event in report.events):
                first.add(row)
    assert first == set(range(len(prompts)))


@torch.no_grad()
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1])
def test_every_rewind_near_the_end_of_a_window_is_exact(family: str, length: int) -> None:
    """One row rewinds to each of its earlier lengths, the other does not rewind."""
    model = build_model(family)
    language_model = TransformersModel(model)
    set_seed(0)
    texts = torch.randint(2, VOCABULARY, (2, length + 2))
    written = language_model.new_cache(2)
    language_model.forward(texts[:, :2], written)
    for place in range(2, length):
        language_model.forward(texts[:, place : place + 1], written)
    for kept in range(1, length):
        cache = deepcopy(written)
        cache.rewind(0, kept)
        logits = language_model.forward(torch.tensor([[7], [9]]), cache)[:, -1]
        for row, size, token in ((0, kept, 7), (1, length, 9)):
            ids = torch.cat([texts[row : row + 1, :size], torch.tensor([[token]])], dim=1)
            assert torch.allclose(logits[row], model(ids).logits[0, -1], atol=1e-4), kept


def test_without_rewinds_the_cache_of_a_batch_is_returned_as_generate_leaves_it(family: str) -> None:
    """Texts of 4 windows, so that windows have dropped tokens; with rewinds, a cache is returned without an error."""
    model, prompts = build_model(family), [PROMPTS[0], PROMPTS[0][::-1]]
    settings = {"do_sample": True, "max_new_tokens": 4 * WINDOW, **NO_END}
    theirs = generate(model, prompts, return_dict_in_generate=True, **settings).past_key_values
    ours = sample(NEVER, model, prompts, **settings).past_key_values
    for layer, other in zip(ours.layers, theirs.layers, strict=True):
        assert type(layer) is type(other)
        assert torch.equal(layer.keys, other.keys)
        assert torch.equal(layer.values, other.values)
    out = sample(COMMON, model, prompts, **settings)
    assert all(report.rewinds for report in out.reports)


# -- in flight ---------------------------------------------------------------------------------------------------------


def unequal_prompts(number: int) -> list[list[int]]:
    """Prompts of 2 to 40 tokens."""
    set_seed(7)
    lengths = [2, 40, 3, 25, 2, 13, 12, 11, 30, 5, 2, 18][:number]
    return [torch.randint(2, VOCABULARY, (length,)).tolist() for length in lengths]


MANY: dict[str, Any] = {"max_new_tokens": 20, "do_sample": True, "sequence_bias": [[[EOS], 1.5]], "seed": 13}


def complete(model: PreTrainedModel, prompts: Any, *, bans: Sequence[Ban] = COMMON, **kwargs: Any) -> list[Completion]:
    done = AntiSlop(TOKENIZER, bans).generate_many(model, prompts, **{**MANY, **kwargs})
    return sorted(done, key=lambda completion: completion.number)


def test_greedy_texts_in_flight_equal_those_of_generate(model: PreTrainedModel) -> None:
    prompts = unequal_prompts(7)
    settings = {"do_sample": False, "repetition_penalty": 1.2, "max_new_tokens": 12, "sequence_bias": [[[EOS], 1.5]]}
    done = complete(model, prompts, bans=[], batch_size=3, **settings)
    for completion, prompt in zip(done, prompts, strict=True):
        assert completion.tokens == texts_of(generate(model, [prompt], **settings), [prompt])[0]


@pytest.mark.parametrize("do_sample", first_quick([True, False]))
def test_a_prompt_without_probabilities_fails_alone(model: PreTrainedModel, do_sample: bool) -> None:
    """A former fault: one NaN ended all texts in flight. Nor does it remain in memory that the next prompt reuses."""
    bad = TOKENIZER("j")["input_ids"][0]
    settings = {**MANY, "do_sample": do_sample, "suppress_tokens": [bad], "batch_size": 3}
    good = [[token for token in prompt if token != bad] for prompt in unequal_prompts(8)]
    sampler = AntiSlop(TOKENIZER, COMMON)
    expected = list(sampler.generate_many(model, good, **{**settings, "seed": None, "seeds": range(8)}))
    texts = {completion.number: completion.tokens for completion in expected}
    prompts, seeds = [[bad], *good[:5], [5, bad, 6], [bad], *good[5:]], [90, 0, 1, 2, 3, 4, 91, 92, 5, 6, 7]
    with poisoned(model, bad):
        done = list(sampler.generate_many(model, prompts, **{**settings, "seed": None, "seeds": seeds}))
    failed = {completion.number: completion for completion in done if completion.error is not None}
    assert failed.keys() == {0, 6, 7}
    assert "no token could be drawn after 0 tokens, since 48 of the model's 48 logits are NaN" in str(failed[6].error)
    assert {completion.report.reason for completion in failed.values()} == {"failed"}
    assert {seeds[c.number]: c.tokens for c in done if c.error is None} == texts


@pytest.mark.parametrize("drafts", ["none", "assistant"])
def test_a_text_that_loses_its_probabilities_half_way_fails_alone(llama: PreTrainedModel, drafts: str) -> None:
    """An assistant loses its own by the same token, which ended all texts, and so did a draft with that token."""
    sampler, prompts = AntiSlop(TOKENIZER, COMMON), unequal_prompts(6)
    assistant = build_model("llama", seed=1)
    settings = {**MANY, "batch_size": 3, **({"assistant_model": assistant} if drafts == "assistant" else {})}
    complete_texts = {completion.number: completion for completion in sampler.generate_many(llama, prompts, **settings)}
    usable = {*range(2, VOCABULARY)}.difference(*prompts)  # token 0 fills rows
    written = [token for text in complete_texts.values() for token in text.tokens]
    bad = max(usable, key=written.count)
    with poisoned(llama, bad), poisoned(assistant, bad):
        done = list(sampler.generate_many(llama, prompts, **settings))
    failed = [completion for completion in done if completion.error is not None]
    assert 0 < len(failed) < len(done) == 6
    assert all(bad in completion.tokens for completion in failed)
    for completion in done:
        if completion.error is None and drafts != "assistant":  # drafts use up random numbers
            assert completion.tokens == complete_texts[completion.number].tokens


def test_one_batch_refuses_nan_as_generate_does(llama: PreTrainedModel) -> None:
    prompt = torch.tensor([[5, 2]])
    with poisoned(llama, 2):
        for generate_ in (llama.generate, partial(AntiSlop(TOKENIZER, COMMON).generate, llama)):
            with pytest.raises(RuntimeError, match="nan"):
                generate_(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=3)


def test_a_prompt_may_be_far_longer_than_a_window(model: PreTrainedModel) -> None:
    """A former fault: an error, since memory was allocated for the window alone."""
    set_seed(0)
    prompt = torch.randint(2, VOCABULARY, (WINDOW + SPARE_COLUMNS + 9,)).tolist()
    settings = {"do_sample": False, "max_new_tokens": 8, **NO_END}
    done = next(AntiSlop(TOKENIZER, NEVER).generate_many(model, [prompt], **settings))
    assert list(done.tokens) == texts_of(generate(model, [prompt], **settings), [prompt])[0]


def test_prompts_come_as_texts_lists_and_tensors(llama: PreTrainedModel) -> None:
    ids = TOKENIZER("abc")["input_ids"]
    tokens = [complete(llama, [prompt])[0].tokens for prompt in ("abc", ids, torch.tensor(ids))]
    assert tokens[0] == tokens[1] == tokens[2]


def test_prompts_are_read_as_they_are_needed(llama: PreTrainedModel) -> None:
    read = 0

    def prompts() -> Iterator[list[int]]:
        nonlocal read
        for prompt in unequal_prompts(12):
            read += 1
            yield prompt

    done = AntiSlop(TOKENIZER, COMMON).generate_many(llama, prompts(), batch_size=2, **MANY)
    next(done)
    assert read <= 3
    assert len(list(done)) == 11


def test_without_prompts_nothing_is_generated(llama: PreTrainedModel) -> None:
    assert list(AntiSlop(TOKENIZER, COMMON).generate_many(llama, [])) == []


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_texts_that_end_immediately_free_their_rows(llama: PreTrainedModel, batch_size: int) -> None:
    """First if all texts do, then if every second one does."""
    prompts = unequal_prompts(7)
    at_once = complete(llama, prompts, batch_size=batch_size, sequence_bias=[[[EOS], 80.0]])
    assert [(completion.tokens, completion.text) for completion in at_once] == [([EOS], "")] * 7
    prompts = [[place % 2 + 4, *prompt] for place, prompt in enumerate(prompts)]

    def allowed(row: int, ids: Tensor) -> list[int]:
        return [EOS] if ids[0] == 4 else list(range(2, VOCABULARY))

    done = complete(llama, prompts, batch_size=batch_size, prefix_allowed_tokens_fn=allowed)
    assert [len(completion.tokens) for completion in done] == [1, 20] * 3 + [1]
    assert all(completion.report.reason == "done" for completion in done)


# -- memory ------------------------------------------------------------------------------------------------------------


def columns_after(
    model: PreTrainedModel, bans: Sequence[str | Ban], prompts: Sequence[Sequence[int]], **kwargs: Any
) -> tuple[list[int], list[int]]:
    """Return the columns in memory after a run, for layers with a window and for all others."""
    set_seed(0)
    run = AntiSlop(TOKENIZER, bans)._prepare_stream(model, **pad(prompts), do_sample=True, **kwargs)
    for _ in run._decode():
        pass
    layers = list(run.cache.layers)  # at the end of a run, those of transformers replace them
    kept: tuple[list[int], list[int]] = [], []
    for layer in layers:
        kept[type(layer) is GrowingLayer].append(layer._keys.shape[2])
    return kept


@pytest.mark.parametrize(
    ("rows", "ending", "bans"),
    first_quick([(3, NO_END, COMMON), (1, NO_END, COMMON), (3, NO_END, NEVER), (3, LIKELY_TO_END, COMMON)]),
    ids=["all to the limit", "one row", "no rewinds", "some end"],
)
def test_memory_is_the_window_and_the_horizon_or_the_text(
    family: str, rows: int, ending: dict[str, Any], bans: Sequence[str | Ban]
) -> None:
    """One row writes 160 tokens, more than a window and its horizon; the others may end earlier."""

    def allowed(row: int, ids: Tensor) -> list[int]:
        return list(range(1 if row else 2, VOCABULARY))  # the first row can't end

    settings = {**ending, "prefix_allowed_tokens_fn": allowed, "max_new_tokens": 160}
    windowed, full = columns_after(build_model(family), bans, PROMPTS[:rows], **settings)
    assert windowed or full
    assert all(columns <= WINDOW + SPARE_COLUMNS_IN_WINDOW + 16 for columns in windowed)
    assert all(columns <= max(map(len, PROMPTS[:rows])) + 160 for columns in full)


def test_rows_that_all_rewind_far_need_no_more_memory(llama: PreTrainedModel) -> None:
    """They rewind in turn: the row that rewinds is moved to the end of the others."""
    language_model = TransformersModel(llama)
    limit = 100
    cache = TransformersCache(DynamicCache(config=llama.config), rows=2, capacity=limit)
    set_seed(0)
    language_model.forward(torch.randint(2, VOCABULARY, (2, 50)), cache)
    for row in (0, 1) * 5:
        cache.rewind(row, 10)
        for _ in range(40 if row else 1):
            language_model.forward(torch.randint(2, VOCABULARY, (2, 1)), cache)
        cache.rewind(row, 10)
        language_model.forward(torch.randint(2, VOCABULARY, (2, 1)), cache)
    while max(cache.lengths) < limit:
        language_model.forward(torch.randint(2, VOCABULARY, (2, 1)), cache)
    assert all(layer._keys.shape[2] <= limit for layer in cache.layers)


@pytest.mark.parametrize("bans", first_quick([COMMON, []]), ids=["rewinds", "no rewinds"])
def test_a_long_queue_needs_no_more_memory_than_a_short_one(
    family: str, bans: Sequence[Ban], monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[TransformersCache] = []
    new_cache = TransformersModel.new_cache
    monkeypatch.setattr(
        TransformersModel, "new_cache", lambda self, rows: (caches.append(new_cache(self, rows)), caches[-1])[1]
    )
    prompts = unequal_prompts(4)[2:3] * 40
    done = complete(build_model(family), prompts, bans=bans, batch_size=2, max_new_tokens=16)
    assert len(done) == 40
    assert all(layer._keys.shape[2] <= 400 for layer in caches[0].layers)
    assert caches[0].columns.end <= 150


# -- any sequence of steps ---------------------------------------------------------------------------------------------

LENGTHS = st.integers(1, 5)


@pytest.mark.parametrize("name", first_quick(["gemma3", "lfm2", "llama", "mistral"]))
@settings(print_blob=True)
@given(data=st.data())
@torch.no_grad()
def test_after_any_steps_each_row_is_a_fresh_pass_over_its_tokens(name: str, data: st.DataObject) -> None:
    """Rows read unequal numbers of tokens, rewind, settle, are replaced, copied and selected; memory is small."""
    model = (build_model if name in FAMILIES else build)(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "SPARE_COLUMNS", data.draw(st.integers(0, 8), label="ahead"))
        patch.setattr(layers_module, "SPARE_COLUMNS_IN_WINDOW", data.draw(st.integers(0, 8), label="ahead in windows"))
        patch.setattr(cache_module, "UNUSED_COLUMNS", data.draw(st.integers(1, 8), label="trim"))
        run = _Steps(model, data)
        for _ in range(data.draw(st.integers(1, 8), label="steps")):
            for row in range(run.rows):
                run.change(row)
            if data.draw(st.integers(0, 3), label="select") == 0:
                run.select()
            run.feed()


def test_a_padded_row_may_move_beyond_the_columns_of_the_mask() -> None:
    """A former fault: an error, when another row fed more tokens than the mask was made ahead for."""
    mask, device = AttentionMask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]), rows=2), torch.device("cpu")
    mask.of([0, 0], 4, room=4, device=device)
    mask.move_row(0, 5)
    moved = mask.of([5, 0], 9, room=9, device=device)
    assert moved is not None
    assert moved.tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 1], [1] * 9]


class _Steps:
    """A cache, and the expected content of its rows: `fills` columns of padding, then `texts`."""

    def __init__(self, model: PreTrainedModel, data: st.DataObject) -> None:
        self.model, self.data = model, data
        self.rows = data.draw(st.integers(1, 3), label="rows")
        self.chance = torch.Generator().manual_seed(data.draw(st.integers(0, 99), label="seed"))
        self.language_model = TransformersModel(model)
        self.cache = self.language_model.new_cache(self.rows)
        self.texts = [self.tokens(data.draw(st.integers(1, 30), label="prompt")) for _ in range(self.rows)]
        longest = max(map(len, self.texts))
        self.fills = [longest - len(text) if self.cache.is_recurrent else 0 for text in self.texts]
        self.settled = [0] * self.rows
        if data.draw(st.booleans(), label="settle prompts"):
            for row, (fill, text) in enumerate(zip(self.fills, self.texts, strict=True)):
                self.settled[row] = fill + len(text)
                self.cache.settle(row, self.settled[row])
        self.check(self.language_model.forward(fill_left(self.texts), self.cache), [1] * self.rows)

    def tokens(self, number: int) -> list[int]:
        tokens: list[int] = torch.randint(2, VOCABULARY, (number,), generator=self.chance).tolist()
        return tokens

    def change(self, row: int) -> None:
        action = self.data.draw(
            st.sampled_from(["nothing", "rewind", "rewind", "empty", "settle", "replace", "copy"]), label="do"
        )
        size = self.fills[row] + len(self.texts[row])
        if action == "rewind":
            lowest = max(self.settled[row], self.fills[row] + 1)
            if size > lowest:
                length = self.data.draw(st.integers(lowest, size), label="length")
                kept = self.cache.rewind(row, length)
                assert kept == length or (self.cache.is_recurrent and 0 <= kept < length)
                if kept == 0:
                    self.fills[row] = self.settled[row] = 0
                del self.texts[row][max(kept - self.fills[row], 0) :]
        elif action == "empty":
            assert self.cache.rewind(row, 0) == 0
            self.texts[row], self.fills[row], self.settled[row] = [], 0, 0
        elif action == "settle" and size:
            self.settled[row] = max(self.settled[row], self.data.draw(st.integers(0, size), label="settle at"))
            self.cache.settle(row, self.settled[row])
        elif action == "replace":
            self.texts[row] = self.tokens(self.data.draw(st.integers(1, 40), label="new prompt"))
            self.fills[row] = 0
            other = self.language_model.new_cache(1)
            self.settled[row] = self.data.draw(st.sampled_from([0, 1, len(self.texts[row])]), label="settle at")
            other.settle(0, self.settled[row])
            self.language_model.forward(torch.tensor([self.texts[row]]), other)
            self.cache.copy(row, other, source=0, length=len(self.texts[row]))
            self.cache.settle(row, self.settled[row])
        elif action == "copy":
            self.copy(row)

    def copy(self, row: int) -> None:
        """Replace a row by the beginning of a row of this cache or of a new one, if that is still there."""
        other, texts = self.cache, self.texts
        if self.data.draw(st.booleans(), label="from new prompts"):
            texts = [self.tokens(self.data.draw(st.integers(1, 40), label="new prompt")) for _ in range(2)]
            other = self.language_model.new_cache(2)
            self.language_model.forward(fill_left(texts), other)
        source = self.data.draw(st.integers(0, len(texts) - 1), label="source")
        length = self.data.draw(st.integers(0, len(texts[source])), label="copy")
        if (other is not self.cache or source != row) and other.copyable(source, length) == length > 0:
            self.cache.copy(row, other, source=source, length=length)
            self.texts[row], self.fills[row], self.settled[row] = texts[source][:length], 0, 0

    def select(self) -> None:
        rows = self.data.draw(st.lists(st.integers(0, self.rows - 1), min_size=1, max_size=4), label="rows")
        self.cache.select(rows)
        self.texts = [list(self.texts[row]) for row in rows]
        self.fills, self.settled = ([numbers[row] for row in rows] for numbers in (self.fills, self.settled))
        self.rows = len(rows)

    def feed(self) -> None:
        new = [self.tokens(self.data.draw(LENGTHS, label="feed")) for _ in range(self.rows)]
        for text, more in zip(self.texts, new, strict=True):
            text += more
        self.check(self.language_model.forward(fill_left(new), self.cache), list(map(len, new)))

    def check(self, logits: Tensor, counts: Sequence[int]) -> None:
        assert self.cache.lengths == tuple(fill + len(text) for fill, text in zip(self.fills, self.texts, strict=True))
        for row, (text, count) in enumerate(zip(self.texts, counts, strict=True)):
            fresh = self.model(torch.tensor([text])).logits[0, -count:]
            error = float((logits[row, -count:] - fresh).abs().max())
            assert error < 1e-4, (row, error)


def test_a_seed_for_each_prompt_decides_its_text_alone() -> None:
    sampler, model = AntiSlop(TOKENIZER, COMMON), build_model("llama")
    settings = {"max_new_tokens": 12, "do_sample": True, **NO_END}
    prompts, seeds = [list(prompt) for prompt in PROMPTS], [7, 5, 7, 9]
    texts = {done.number: done.tokens for done in sampler.generate_many(model, prompts, seeds=seeds, **settings)}
    order = [2, 0, 3, 1]
    others = sampler.generate_many(
        model, [prompts[i] for i in order], seeds=(seeds[i] for i in order), batch_size=2, **settings
    )
    assert {order[done.number]: done.tokens for done in others} == texts
    with pytest.raises(ValueError, match="both seed and seeds"):
        next(sampler.generate_many(model, prompts, seed=1, seeds=seeds, **settings))


def test_equal_prompts_make_different_texts() -> None:
    settings = {"max_new_tokens": 12, "do_sample": True, "top_k": 0, **NO_END}
    texts = AntiSlop(TOKENIZER, COMMON).generate_many(build_model("llama"), [[5, 9]] * 20, seed=1, **settings)
    assert len({tuple(done.tokens) for done in texts}) == 20
