"""`applied_to`: whoever calls `generate` inside writes what the sampler would, and the model is left alone."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from copy import copy, deepcopy
from functools import partial
from inspect import signature
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import ref

import pytest
import torch
from hypothesis import example, given, strategies as st
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    pipeline,
)

import antislop
from antislop import AntiSlop, Ban, applied_to
from antislop.errors import InputError
from tests.support.batches import COMMON
from tests.support.depth import first_quick
from tests.support.models import build_model, build_tokenizer

MODEL, TOKENIZER = build_model(), build_tokenizer()
PROMPT = "a bad cab. "
INPUTS = dict(TOKENIZER(PROMPT, return_tensors="pt"))
SAMPLED = {"max_new_tokens": 30, "do_sample": True, "min_p": 0.05, "suppress_tokens": [0, 1]}
GREEDY = {"max_new_tokens": 16, "do_sample": False, "suppress_tokens": [0, 1]}
NOTHING = AntiSlop(TOKENIZER, [])
FA = AntiSlop(TOKENIZER, [Ban("fa", edges="anywhere")])
"""Bans what the model writes greedily."""
MANY = AntiSlop(TOKENIZER, COMMON)
PIPE = pipeline("text-generation", model=MODEL, tokenizer=TOKENIZER)


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    before = list(vars(MODEL).items())
    yield
    assert list(vars(MODEL).items()) == before


def generate(**settings: Any) -> torch.Tensor:
    torch.manual_seed(3)
    return MODEL.generate(**INPUTS, **settings)


def run_in_thread(call: Callable[[], None]) -> None:
    thread = Thread(target=call)
    thread.start()
    thread.join()


def test_a_pipeline_writes_batches_and_streams() -> None:
    prompts = [PROMPT, "fade, ", "a big egg,"]
    plain = PIPE(prompts, batch_size=3, **GREEDY)
    with applied_to(MODEL, NOTHING):
        assert PIPE(prompts, batch_size=3, **GREEDY) == plain
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True)
    with applied_to(MODEL, MANY):
        (answer,) = PIPE(PROMPT, streamer=streamer, **SAMPLED)
    assert PROMPT + "".join(streamer) == answer["generated_text"]


def test_a_thread_started_inside_runs_under_the_bans() -> None:
    torch.manual_seed(3)
    expected = MANY.generate(MODEL, **INPUTS, **SAMPLED)
    streamer = TextIteratorStreamer(TOKENIZER)
    torch.manual_seed(3)
    with applied_to(MODEL, MANY):
        thread = Thread(target=MODEL.generate, kwargs={**INPUTS, **SAMPLED, "streamer": streamer})
        thread.start()
        text = "".join(streamer)
        thread.join()
    assert text == TOKENIZER.decode(expected[0])


def test_only_this_model_is_changed() -> None:
    other = build_model()
    plain = generate(**GREEDY)
    with applied_to(MODEL, FA):
        assert torch.equal(other.generate(**INPUTS, **GREEDY), plain)
        copied = deepcopy(MODEL)
        assert torch.equal(copied.generate(**INPUTS, **GREEDY), plain)
        assert torch.equal(pickle.loads(pickle.dumps(MODEL)).generate(**INPUTS, **GREEDY), plain)
        assert not torch.equal(generate(**GREEDY), plain)


def test_a_copy_that_shares_everything_has_its_own_sampler() -> None:
    plain = generate(**GREEDY)
    with applied_to(MODEL, FA):
        shallow = copy(MODEL)
        with applied_to(shallow, NOTHING):
            assert torch.equal(shallow.generate(**INPUTS, **GREEDY), plain)
            assert not torch.equal(generate(**GREEDY), plain)


def test_nothing_keeps_a_sampler_that_was_left() -> None:
    sampler = AntiSlop(TOKENIZER, FA.bans)
    kept = ref(sampler)
    with applied_to(MODEL, sampler):
        generate(**GREEDY)
    del sampler
    gc.collect()
    assert kept() is None


def test_arguments_of_a_generate_that_takes_any_are_named_as_those_of_transformers() -> None:
    class Wrapper:
        def generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return MODEL.generate(*args, **kwargs)

        device = MODEL.device
        generation_config = MODEL.generation_config

    wrapper, config = Wrapper(), GenerationConfig(**GREEDY)
    with applied_to(wrapper, FA):
        ids = wrapper.generate(INPUTS["input_ids"], config)
    assert torch.equal(ids, FA.generate(MODEL, **INPUTS, **GREEDY))
    assert not vars(wrapper)


def test_after_an_exception_the_model_is_as_before() -> None:
    plain = generate(**GREEDY)
    with pytest.raises(KeyError), applied_to(MODEL, FA), applied_to(MODEL, NOTHING):
        raise KeyError
    with applied_to(MODEL, FA), pytest.raises(ValueError, match="num_beams=2 is not supported: beams can't"):
        generate(**GREEDY, num_beams=2)
    assert torch.equal(generate(**GREEDY), plain)


def test_a_generate_of_the_instance_comes_back() -> None:
    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return type(MODEL).generate(MODEL, *args, **kwargs)

    calls: list[dict[str, Any]] = []
    MODEL.generate = own
    try:
        with applied_to(MODEL, FA):
            banned = generate(**GREEDY)
        assert MODEL.generate is own
    finally:
        del MODEL.generate
    assert torch.equal(banned, FA.generate(MODEL, **INPUTS, **GREEDY))
    assert len(calls) == 1 and calls[0]["max_new_tokens"] == GREEDY["max_new_tokens"]


def test_a_generate_that_somebody_else_put_over_it_stays() -> None:
    plain = generate(**GREEDY)
    with applied_to(MODEL, FA):
        inner = MODEL.generate
        MODEL.generate = lambda *args, **kwargs: inner(*args, **kwargs)
        theirs = MODEL.generate
        banned = generate(**GREEDY)
        with applied_to(MODEL, NOTHING):
            assert torch.equal(generate(**GREEDY), plain)
        assert MODEL.generate is theirs
    assert MODEL.generate is theirs
    assert torch.equal(generate(**GREEDY), plain)
    MODEL.generate = inner
    with applied_to(MODEL, FA):
        assert torch.equal(generate(**GREEDY), banned)
    del MODEL.generate


def test_arguments_by_position_are_those_of_generate() -> None:
    config = GenerationConfig(**GREEDY, stop_strings=["aab"])
    ids = INPUTS["input_ids"]
    steps = MaxLengthCriteria(ids.shape[1] + 9)
    penalty = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(3.0)])
    args = (ids, config, penalty, StoppingCriteriaList([steps]))
    plain = MODEL.generate(*args, tokenizer=TOKENIZER)
    assert not torch.equal(plain, MODEL.generate(ids, config, tokenizer=TOKENIZER))
    with applied_to(MODEL, NOTHING):
        assert torch.equal(MODEL.generate(*args, tokenizer=TOKENIZER), plain)
        assert torch.equal(MODEL.generate(None, *args[1:], tokenizer=TOKENIZER, input_ids=ids), plain)
        with pytest.raises(TypeError, match="got 'generation_config' by position and by name"):
            MODEL.generate(ids, config, generation_config=config)
        with pytest.raises(TypeError, match=r"takes up to \d+ arguments by position, and 40 were passed"):
            MODEL.generate(*[None] * 40)
        assert signature(MODEL.generate) == signature(type(MODEL).generate.__get__(MODEL))


def test_the_output_is_that_of_generate() -> None:
    plain = generate(**SAMPLED, return_dict_in_generate=True, output_scores=True)
    with applied_to(MODEL, NOTHING):
        out = generate(**SAMPLED, return_dict_in_generate=True, output_scores=True)
    assert isinstance(out, type(plain))
    assert torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, plain.scores, strict=True))


def test_an_assistant_drafts() -> None:
    with applied_to(MODEL, FA):
        assert torch.equal(generate(**GREEDY, assistant_model=MODEL), generate(**GREEDY))


def test_a_tokenizer_that_was_loaded_again_is_the_same(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    again = type(TOKENIZER).from_pretrained(tmp_path)
    plain = generate(**GREEDY, tokenizer=TOKENIZER, stop_strings=["aab"])
    with applied_to(MODEL, NOTHING):
        assert torch.equal(generate(**GREEDY, tokenizer=again, stop_strings=["aab"]), plain)
        again.add_tokens(["<new>"])
        with pytest.raises(ValueError, match="tokenizer is not the sampler's"):
            generate(**GREEDY, tokenizer=again, stop_strings=["aab"])


def test_a_sampler_that_is_passed_comes_first_and_any_other_loop_is_refused() -> None:
    with applied_to(MODEL, NOTHING):
        assert not FA.bans.find(TOKENIZER.decode(generate(**GREEDY, custom_generate=FA)[0]))
        assert torch.equal(FA.generate(MODEL, **INPUTS, **GREEDY), generate(**GREEDY, custom_generate=FA))
        for loop in (print, "folder"):
            with pytest.raises(InputError, match=r"custom_generate is .*, and antislop.applied_to takes that place"):
                generate(**GREEDY, custom_generate=loop)


@pytest.mark.parametrize(
    ("model", "sampler", "sentence"),
    [
        (MODEL, antislop.default_bans(), "sampler is a BanList: pass antislop.AntiSlop"),
        ("gpt2", NOTHING, "model is a str without a generate method"),
        (torch.nn.Linear(1, 1), NOTHING, "model is a Linear without a generate method"),
    ],
)
def test_what_can_not_be_applied_is_refused(model: Any, sampler: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence), applied_to(model, sampler):
        pass


def test_it_decorates_functions() -> None:
    assert not FA.bans.find(TOKENIZER.decode(applied_to(MODEL, FA)(generate)(**GREEDY)[0]))


class Named(AntiSlop):
    """A sampler that writes its name."""

    def generate(self, model: Any, inputs: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self.bans[0].text


class Plain:
    """A model that writes "plain"."""

    def generate(self, inputs: Any = None, **_: Any) -> str:
        return "plain"


NAMED = [Named(TOKENIZER, [name]) for name in ("one", "two", "three")]
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "write"]), st.integers(0, 2), st.integers(0, 9)), max_size=20
)


def choose(blocks: list[tuple[int, int, Any]], context: int) -> str:
    """Return what a context writes, by the blocks (context, sampler, block) that were entered and not left yet."""
    innermost = {where: NAMED[sampler].bans[0].text for where, sampler, _ in blocks}
    names = {innermost[context]} if context in innermost else set(innermost.values())
    return "several" if len(names) > 1 else (names or {"plain"}).pop()


@given(ACTIONS)
@example([("enter", 0, 0), ("enter", 0, 1), ("enter", 0, 2), ("leave", 1, 1)])
def test_blocks_may_be_entered_and_left_in_any_order(actions: list[tuple[str, int, int]]) -> None:
    """Contexts stand for threads; a block may be left in another one than it was entered in."""
    model, contexts = Plain(), [copy_context() for _ in range(3)]
    blocks: list[tuple[int, int, Any]] = []
    for action, context, choice in actions:
        if action == "enter":
            blocks.append((context, choice % 3, applied_to(model, NAMED[choice % 3])))
            contexts[context].run(blocks[-1][2].__enter__)
        elif action == "leave" and blocks:
            contexts[context].run(blocks.pop(choice % len(blocks))[2].__exit__, None, None, None)
        try:
            written = contexts[context].run(model.generate)
        except InputError:
            written = "several"
        assert written == choose(blocks, context)
    for _, _, block in blocks:
        block.__exit__(None, None, None)
    assert not vars(model)


def test_each_task_of_asyncio_has_its_own() -> None:
    async def write(sampler: AntiSlop) -> torch.Tensor:
        with applied_to(MODEL, sampler):
            await asyncio.sleep(0)  # until the other has entered its own
            ids = generate(**GREEDY)
            await asyncio.sleep(0)
            return ids

    async def write_all() -> list[torch.Tensor]:
        return await asyncio.gather(write(FA), write(NOTHING))

    plain = generate(**GREEDY)
    assert [torch.equal(ids, plain) for ids in asyncio.run(write_all())] == [False, True]


@pytest.mark.parametrize("order", first_quick([[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]]))
def test_four_threads_enter_and_leave_in_any_order(order: Sequence[int]) -> None:
    """Each writes with its own sampler while all four are applied; those without bans write as `generate` does."""
    sampled = {**SAMPLED, "max_new_tokens": 12}
    plain = [generate(**GREEDY), generate(**sampled)]
    banned = [FA.generate(MODEL, **INPUTS, **GREEDY), generate(**sampled, custom_generate=FA)]
    drawing = threading.Lock()  # torch's random numbers belong to all threads
    everybody_is_in = threading.Barrier(4)
    turns = [threading.Event() for _ in range(5)]
    written: list[list[torch.Tensor]] = [[]] * 4

    def write(number: int) -> None:
        with applied_to(MODEL, (NOTHING, FA)[number % 2]):
            everybody_is_in.wait()
            written[number] = [MODEL.generate(**INPUTS, **GREEDY)]
            with drawing:
                written[number].append(generate(**sampled))
            turns[order.index(number)].wait()
        turns[order.index(number) + 1].set()

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        thread.join()
    for number, texts in enumerate(written):
        assert all(map(torch.equal, texts, (plain, banned)[number % 2]))


def test_a_thread_without_a_sampler_uses_that_of_the_others_unless_they_are_several() -> None:
    outcomes: list[Any] = []

    def write() -> None:
        try:
            outcomes.append(MODEL.generate(**INPUTS, **GREEDY))
        except InputError as error:
            outcomes.append(str(error))

    def enter_another(sampler: AntiSlop) -> None:
        with applied_to(MODEL, sampler):
            run_in_thread(write)

    with applied_to(MODEL, NOTHING), applied_to(MODEL, FA):
        run_in_thread(write)
        run_in_thread(lambda: enter_another(FA))
        run_in_thread(lambda: enter_another(NOTHING))
        run_in_thread(lambda: copy_context().run(write))
        run_in_thread(partial(copy_context().run, write))
    run_in_thread(write)
    expected = FA.generate(MODEL, **INPUTS, **GREEDY)
    assert torch.equal(outcomes[0], expected)
    assert torch.equal(outcomes[1], expected)
    assert "this one has applied none: write `with antislop.applied_to(model, sampler):`" in outcomes[2]
    assert torch.equal(outcomes[3], expected)
    assert torch.equal(outcomes[4], expected)
    assert torch.equal(outcomes[5], generate(**GREEDY))


def test_a_call_that_began_inside_keeps_its_sampler() -> None:
    inside, outside = threading.Event(), threading.Event()

    class Wait(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            inside.set()
            outside.wait()
            return torch.zeros(len(input_ids), dtype=torch.bool)

    written: list[torch.Tensor] = []
    call = partial(MODEL.generate, **INPUTS, **GREEDY, stopping_criteria=[Wait()])
    with applied_to(MODEL, FA):
        thread = Thread(target=lambda: written.append(MODEL.generate(*call.args, **call.keywords)))
        thread.start()
        inside.wait()
    outside.set()
    thread.join()
    assert torch.equal(written[0], FA.generate(MODEL, **INPUTS, **GREEDY))


def test_wrappers_of_a_model() -> None:
    model = build_model()
    compiled, plain = torch.compile(model, backend="eager"), generate(**GREEDY)
    for wrapped in (model, compiled, torch.nn.DataParallel(model)):
        with applied_to(wrapped, FA):
            for called in (model, compiled):
                assert not torch.equal(called.generate(**INPUTS, **GREEDY), plain)
        assert torch.equal(compiled.generate(**INPUTS, **GREEDY), plain)


@pytest.mark.filterwarnings("ignore")  # some of peft's
def test_a_peft_model() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    plain = build_model()
    adapted = peft.get_peft_model(plain, config).eval()
    for model in (adapted, adapted.get_base_model()):
        expected = adapted.generate(**INPUTS, **GREEDY)
        with applied_to(model, NOTHING):
            assert torch.equal(adapted.generate(**INPUTS, **GREEDY), expected)
        banned = AntiSlop(TOKENIZER, [Ban(TOKENIZER.decode(expected[0, -2:]), edges="anywhere")])
        with applied_to(model, banned):
            ids = adapted.generate(**INPUTS, **GREEDY)
            assert torch.equal(adapted.get_base_model().generate(**INPUTS, **GREEDY), ids)  # as trainers may call it
        assert not torch.equal(ids, expected)
        assert torch.equal(ids, banned.generate(adapted, **INPUTS, **GREEDY))
        assert torch.equal(adapted.generate(**INPUTS, **GREEDY), expected)
    assert not [
        name for name in ("generate", "init_continuous_batching") if name in vars(plain) or name in vars(adapted)
    ]
