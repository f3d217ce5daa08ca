"""`applied_to`: whoever calls `generate` inside writes what the sampler would, and the model is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
from transformers import TextIteratorStreamer, pipeline

import antislop
from antislop import AntiSlop, applied_to

MODEL, TOKENIZER = antislop.tiny_model()
PROMPT = "The old house at the edge of the village"
INPUTS = dict(TOKENIZER(PROMPT, return_tensors="pt"))
SAMPLED = {"max_new_tokens": 80, "do_sample": True, "min_p": 0.05}
GREEDY = {"max_new_tokens": 40, "do_sample": False}
NOTHING = AntiSlop(TOKENIZER, [])
SLOP = AntiSlop(TOKENIZER, antislop.default_bans())
PIPE = pipeline("text-generation", model=MODEL, tokenizer=TOKENIZER)
SETTINGS = pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    before = list(vars(MODEL).items())
    yield
    assert list(vars(MODEL).items()) == before


def generate(**settings: Any) -> torch.Tensor:
    torch.manual_seed(3)
    return MODEL.generate(**INPUTS, **settings)


def generate_text(**settings: Any) -> str:
    torch.manual_seed(3)
    return PIPE(PROMPT, **settings)[0]["generated_text"]


def run_in_thread(call: Callable[[], None]) -> None:
    thread = Thread(target=call)
    thread.start()
    thread.join()


@SETTINGS
def test_without_bans_the_ids_are_those_of_generate(settings: dict[str, Any]) -> None:
    plain = generate(**settings)
    with applied_to(MODEL, NOTHING):
        assert torch.equal(generate(**settings), plain)


@SETTINGS
@pytest.mark.parametrize("stop", [{}, {"stop_sequence": [" and", "the sea"]}], ids=["", "stop"])
def test_without_bans_a_pipeline_writes_the_same(settings: dict[str, Any], stop: dict[str, Any]) -> None:
    plain = generate_text(**settings, **stop)
    with applied_to(MODEL, NOTHING):
        assert generate_text(**settings, **stop) == plain


def test_a_pipeline_writes_what_the_sampler_writes_and_nothing_that_is_banned() -> None:
    plain = generate_text(**SAMPLED)
    assert SLOP.bans.find(plain)
    with applied_to(MODEL, SLOP):
        text = generate_text(**SAMPLED)
    assert not SLOP.bans.find(text)
    assert text == generate_text(**SAMPLED, custom_generate=SLOP)
    assert generate_text(**SAMPLED) == plain


def test_a_thread_started_inside_runs_under_the_bans() -> None:
    torch.manual_seed(3)
    expected = SLOP.generate(MODEL, **INPUTS, **SAMPLED)
    streamer = TextIteratorStreamer(TOKENIZER)
    torch.manual_seed(3)
    with applied_to(MODEL, SLOP):
        thread = Thread(target=MODEL.generate, kwargs={**INPUTS, **SAMPLED, "streamer": streamer})
        thread.start()
        text = "".join(streamer)
        thread.join()
    assert text == TOKENIZER.decode(expected[0])
