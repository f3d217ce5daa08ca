"""`generate_batch` inside `applied_to`: its texts are those of `generate` under the same bans, in every way it has."""

from __future__ import annotations

import ast
import itertools
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from antislop import AntiSlop, Ban, applied_to
from antislop.core.hf.paged import private
from antislop.core.hf.paged.texts import KEY, BatchJudge
from antislop.errors import ConcededWarning, InputError
from antislop.files.packages import find_differences, read_names
from tests.support import letters
from tests.support.batches import COMMON, PROMPTS
from tests.support.depth import DEPTH, first_quick
from tests.support.models import build_model, build_tokenizer
from tests.support.statistics import p_value

TOKENIZER = build_tokenizer()
NEVER, MANY = AntiSlop(TOKENIZER, ["zz zz"]), AntiSlop(TOKENIZER, COMMON)
END = 1
GREEDY = {"do_sample": False, "suppress_tokens": [0, END]}
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}
CONFIG = {"page_size": 4, "num_blocks": 128, "max_batch_tokens": 64}
"""Blocks of four tokens: texts begin several, and share them."""


def write(
    model: PreTrainedModel,
    sampler: AntiSlop | None,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    batching: dict[str, Any] | None = None,
    seed: int = 3,
    **settings: Any,
) -> list[list[int]]:
    """Return the generated tokens of a call of `generate_batch`, under the bans of a sampler if there is one."""
    config = GenerationConfig(**{"max_new_tokens": 24, "eos_token_id": END, **settings})
    calls: dict[str, Any] = {
        "generation_config": config,
        "continuous_batching_config": ContinuousBatchingConfig(**CONFIG | (batching or {})),
    }
    torch.manual_seed(seed)
    if sampler is None:
        outputs = model.generate_batch([*map(list, prompts)], **calls)
    else:
        with applied_to(model, sampler):
            outputs = model.generate_batch([*map(list, prompts)], **calls)
    assert [output.error for output in outputs.values()] == [None] * len(outputs)
    assert [output.prompt_ids for output in outputs.values()] == [
        [*prompt] for prompt in prompts for _ in range(settings.get("num_return_sequences", 1))
    ]
    return [output.generated_tokens for output in outputs.values()]


@pytest.mark.parametrize(
    ("settings", "batching"),
    [
        (GREEDY, {}),
        (SAMPLED, {"per_request_processors": True}),
        ({**SAMPLED, "num_return_sequences": 3}, {"allow_block_sharing": False}),
        ({"do_sample": True}, {"scheduler_type": "prefill_first", "max_requests_per_batch": 2}),
    ],
)
def test_under_bans_that_never_occur_the_texts_are_those_without(
    settings: dict[str, Any], batching: dict[str, Any]
) -> None:
    model = build_model()
    plain = write(model, None, batching=batching, **settings)
    assert write(model, NEVER, batching=batching, **settings) == plain
    assert not {"generate", "init_continuous_batching"} & {*vars(model)}


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collect how far the logits of each judged token are from those of a fresh pass over its text."""
    found: list[float] = []
    judge = BatchJudge._judge

    def compare(self: BatchJudge, processor: Any, requests: list[Any], tokens: list[int]) -> Any:
        with torch.no_grad():
            for place, request in enumerate(each for each in requests if each.has_new_token):
                text = torch.tensor([request.state.initial_tokens + request.state.generated_tokens])
                fresh = self._manager.model(text).logits[0, -1]
                found.append(float((self._logits[place] - fresh).abs().max()))
        return judge(self, processor, requests, tokens)

    monkeypatch.setattr(BatchJudge, "_judge", compare)
    return found


LONG = tuple(PROMPTS[2] * 3)
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "full attention": ("llama", {"allow_block_sharing": False}),
    "a window in some layers": ("gemma3", {}),
    "a window in all layers": ("mistral", {}),
    "shared blocks": ("llama", {}),
    "prompts in parts": ("llama", {"max_batch_tokens": 8, "scheduler_type": "prefill_first"}),
    "too little memory": ("llama", {"num_blocks": 26, "safety_margin": 0.0}),
    "positions in a table": ("gpt2", {}),
}


@pytest.mark.parametrize(("family", "batching"), first_quick(WAYS.values()), ids=list(WAYS))
def test_after_a_rewind_the_next_logits_are_those_of_a_fresh_pass(
    family: str, batching: dict[str, Any], differences: list[float]
) -> None:
    """And greedy texts are those of `sampler.generate`."""
    model = build_model(family)
    prompts = [*PROMPTS, LONG, LONG, LONG[:9]]
    plain = write(model, None, prompts, batching=batching, **GREEDY)
    likely = {TOKENIZER.decode(text[place : place + 2]) for text in plain for place in range(22)}
    sampler = AntiSlop(TOKENIZER, [Ban(text, edges="anywhere") for text in sorted(likely) if text.strip()])
    texts = write(model, sampler, prompts, batching=batching, **GREEDY)
    assert max(differences) < 2e-4
    assert len(differences) > 1.05 * sum(map(len, texts)), "little was withdrawn"
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        alone = sampler.generate(model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, **GREEDY)
        assert text == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("bans", "setting"), first_quick([(bans, setting) for setting in letters.SETTINGS for bans in letters.LISTS], 3)
)
def test_texts_are_those_of_rejection_sampling(bans: str, setting: str) -> None:
    """Sixteen at once, against a solved chain."""
    sampler = AntiSlop(letters.build_tokenizer(), list(letters.LISTS[bans]), max_rewinds=10_000)
    texts = write(
        letters.build_model(),
        sampler,
        [[letters.START]] * (400 * DEPTH),
        batching={"max_requests_per_batch": 16},
        max_new_tokens=letters.LENGTH,
        do_sample=True,
        **{"top_k": 0, **letters.SETTINGS[setting]},
    )
    assert p_value(Counter(map(tuple, texts)), letters.expected_texts(bans, setting)) > 1e-3


def test_another_request_never_reads_what_was_withdrawn(differences: list[float]) -> None:
    """Its prompt is the withdrawn text. The manager is kept for it, and is that of `transformers` after the block."""
    model, prompt = build_model(), [*PROMPTS[0]]
    (withdrawn,) = write(model, None, [prompt], do_sample=True, max_new_tokens=11)
    sampler = AntiSlop(TOKENIZER, [Ban.tokens(withdrawn)])
    config = GenerationConfig(max_new_tokens=14, eos_token_id=END, do_sample=True)

    def continue_from(ids: list[int]) -> list[int]:
        torch.manual_seed(3)
        outputs = model.generate_batch(
            [ids],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(**CONFIG),
            persistent_manager=True,
        )
        (output,) = outputs.values()
        return list(output.generated_tokens)

    try:
        with applied_to(model, sampler):
            assert continue_from(prompt)[:2] != withdrawn[:2]
            count = len(differences)
            continue_from([*prompt, *withdrawn, 5])
        assert max(differences) < 2e-4
        assert count > 14, "nothing was withdrawn"
        plain = continue_from(prompt)
        with applied_to(model, AntiSlop(TOKENIZER, [Ban.tokens(plain[:3])])):
            assert continue_from(prompt)[:3] != plain[:3]
        assert continue_from(prompt) == plain
    finally:
        model.destroy_cached_continuous_batching_manager()


def test_each_sequence_of_a_prompt_is_a_text_of_its_own() -> None:
    texts = write(build_model(), MANY, PROMPTS[:2], num_return_sequences=4, do_sample=True, top_k=0)
    assert not [found for text in texts for found in MANY.bans.find(TOKENIZER.decode(text))]
    assert len({*map(tuple, texts)}) == len(texts) == 8


def test_a_text_that_can_not_go_on_ends_alone() -> None:
    """By `on_exhausted`: stop, an error of its own, or a concession with a warning."""
    model, prompts = build_model(), PROMPTS[:2]
    (first, second) = write(model, None, prompts, **GREEDY)
    anything = [Ban.regex("(?s)."), Ban.tokens(first[:1])]
    stopped = write(model, AntiSlop(TOKENIZER, anything, on_exhausted="stop"), prompts, **GREEDY)
    assert stopped == [[], []]
    with pytest.warns(ConcededWarning, match="was let through at token 0"):
        write(model, AntiSlop(TOKENIZER, anything), prompts[:1], **GREEDY)
    config = GenerationConfig(max_new_tokens=24, eos_token_id=END, **GREEDY)
    raising = AntiSlop(TOKENIZER, [Ban.tokens(first[:4])], on_exhausted="raise", max_rewinds=0)
    with applied_to(model, raising):
        outputs = model.generate_batch(
            [*map(list, prompts)],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(**CONFIG),
        )
    failed, other = outputs.values()
    assert "every alternative to the banned" in failed.error
    assert other.generated_tokens == second


def test_forced_text_is_read_and_stays() -> None:
    bans = [Ban(letter, edges="anywhere", then="force", force="hh", tries=1) for letter in "abc"]
    sampler, model = AntiSlop(TOKENIZER, bans), build_model()
    for prompt, text in zip(PROMPTS, write(model, sampler, **GREEDY), strict=True):
        ids = torch.tensor([prompt])
        alone = sampler.generate(model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, **GREEDY)
        assert text == alone[0, len(prompt) :].tolist()
        assert "hh" in TOKENIZER.decode(text)


@pytest.mark.parametrize("sampler", [NEVER, MANY, AntiSlop(TOKENIZER, COMMON, on_exhausted="stop", max_rewinds=0)])
def test_each_token_has_the_time_when_it_was_drawn(sampler: AntiSlop) -> None:
    model, config = build_model(), GenerationConfig(max_new_tokens=24, eos_token_id=END, do_sample=True)
    torch.manual_seed(3)
    with applied_to(model, sampler):
        outputs = model.generate_batch(
            [*map(list, PROMPTS)] * 3,
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(**CONFIG),
            record_timestamps=True,
        )
    for output in outputs.values():
        assert output.timestamps == sorted(output.timestamps)
        assert len(output.timestamps) == max(1, len(output.generated_tokens))  # an empty text has its end's


def test_a_canceled_request_ends_without_a_word_and_frees_its_text() -> None:
    model, config = build_model(), GenerationConfig(max_new_tokens=24, eos_token_id=END, **GREEDY)
    (expected,) = write(model, MANY, PROMPTS[:1], **GREEDY)
    with (
        applied_to(model, MANY),
        model.continuous_batching_context_manager(
            config, continuous_batching_config=ContinuousBatchingConfig(**CONFIG)
        ) as manager,
    ):
        canceled = manager.add_request([*PROMPTS[2]], max_new_tokens=None, streaming=True)
        while len((output := next(iter(manager))).generated_tokens) < 5:
            pass
        assert output.request_id == canceled
        text = manager.batch_processor.scheduler.active_requests[canceled].logit_processor_kwargs[KEY]
        row = weakref.ref(text.row)
        del text
        manager.cancel_request(canceled)
        number = manager.add_request([*PROMPTS[0]])
        ended = next(output for output in manager if output.is_finished())
        assert (ended.request_id, ended.generated_tokens) == (number, expected)
        assert not manager.batch_processor.has_pending_requests()
        assert row() is None


def test_a_stream_takes_nothing_back() -> None:
    model, prompt = build_model(), [*PROMPTS[0]]
    config = GenerationConfig(max_new_tokens=24, eos_token_id=END, **GREEDY)
    seen: list[list[int]] = []
    (expected,) = write(model, MANY, [prompt], **GREEDY)
    with (
        applied_to(model, MANY),
        model.continuous_batching_context_manager(
            config, continuous_batching_config=ContinuousBatchingConfig(**CONFIG)
        ) as manager,
    ):
        number = manager.add_request(prompt, streaming=True)
        for output in manager:
            assert output.request_id == number
            seen.append(output.generated_tokens)
            if output.is_finished():
                break
    assert seen[-1] == expected and len(seen) > 3
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("batching", "settings", "sentence"),
    [
        ({"use_async_batching": True}, {}, r"pass ContinuousBatchingConfig\(use_async_batching=False\)"),
        ({"default_compile_level": 1}, {}, r"pass ContinuousBatchingConfig\(default_compile_level=0\), and no"),
        ({"return_logprobs": True}, {}, r"pass ContinuousBatchingConfig\(return_logprobs=False\)"),
        ({}, {"num_beams": 2}, "num_beams=2 is not supported"),
    ],
)
def test_what_can_not_be_judged_is_refused(batching: dict[str, Any], settings: dict[str, Any], sentence: str) -> None:
    model = build_model()
    model.set_attn_implementation("eager")
    plain = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=3, **GREEDY)
    with pytest.raises(InputError, match=sentence):
        write(model, MANY, batching=batching, **settings)
    assert torch.equal(model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=3, **GREEDY), plain)


@pytest.mark.parametrize(
    ("graphs", "processes", "sentence"),
    [
        ((True, False), 1, r"pass ContinuousBatchingConfig\(use_cuda_graph=False\)"),
        ((False, False), 2, "spread over 2: load it without tp_plan, or call generate_many without"),
    ],
)
def test_what_a_machine_with_accelerators_has_is_refused(
    graphs: tuple[bool, bool], processes: int, sentence: str
) -> None:
    manager = build_model().init_continuous_batching(continuous_batching_config=ContinuousBatchingConfig(**CONFIG))
    private.refuse_modes(manager)
    manager.continuous_batching_config.use_cuda_graph = graphs
    manager.distributed_helper.tp_size = processes
    with pytest.raises(InputError, match=sentence):
        private.refuse_modes(manager)


def test_a_release_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.99.1")
    private.check_release.cache_clear()
    with pytest.raises(InputError, match=r"need transformers 5.23 or 5.24, and this is 5.99.1 \(it was not tested\)"):
        write(build_model(), MANY)


def test_each_name_of_transformers_is_in_the_table() -> None:
    table = Path(private.__file__).with_name("names.yaml")
    assert [*find_differences(Path(transformers.__file__).parent, table)] == []
    listed = {
        name.partition("(")[0]
        for kinds in read_names(table).values()
        for names in kinds.values()
        for name in names.split()
    }
    used = {
        node.attr
        for node in ast.walk(ast.parse(Path(private.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert used <= listed
