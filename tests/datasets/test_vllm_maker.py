"""Texts that are asked of one engine at the same time reach those who asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from antislop.datasets.vllm_maker import Dispatcher


class EchoingEngine:
    """As vLLM's `LLMEngine`, but each step writes a token in some of the texts: that of the prompt, `params` times."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self.texts: dict[str, list[int]] = {}
        self._asked: dict[str, tuple[list[int], int]] = {}

    def add_request(self, name: str, prompt: dict[str, list[int]], params: int) -> None:
        assert name not in self.texts, "a request of that name is open"
        self.texts[name], self._asked[name] = [], (prompt["prompt_token_ids"], params)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.texts[name]

    def step(self) -> list[Any]:
        assert self.texts, "no request is open"
        chosen = [name for name in self.texts if self._chance.random() < 0.5]
        outputs = []
        for name in chosen:
            prompt, length = self._asked[name]
            self.texts[name].append(prompt[0])
            finished, written = len(self.texts[name]) == length, SimpleNamespace(token_ids=self.texts[name])
            outputs.append(
                SimpleNamespace(request_id=name, finished=finished, prompt_token_ids=prompt, outputs=[written])
            )
            if finished:
                del self.texts[name]
        return outputs


def write(engine: Dispatcher, prompts: list[int], *, depth: int) -> Iterator[list[int]]:
    """Write a text for each prompt. After each, `depth` times nested, write others while the rest waits."""
    places = {engine.add([prompt], 1 + prompt % 5, ()): prompt for prompt in prompts}
    try:
        while places:
            for name in engine.finish(places):
                prompt = places.pop(name)
                tokens = list(engine.take(name).outputs[0].token_ids)
                assert tokens == [prompt] * (1 + prompt % 5)
                for inner in (
                    write(engine, [prompt + 100, prompt + 200, prompt + 300], depth=depth - 1) if depth else ()
                ):
                    assert inner[0] % 100 == prompt % 100
                yield tokens
    finally:
        engine.abort(places)


@pytest.mark.parametrize("seed", range(5))
def test_each_text_reaches_the_writer_that_asked_while_others_write(seed: int) -> None:
    engine = EchoingEngine(seed)
    texts = [*write(Dispatcher(engine), [*range(1, 30)], depth=2)]
    assert sorted(text[0] for text in texts) == [*range(1, 30)]
    assert engine.texts == {}


def test_a_writer_that_is_left_early_ends_its_texts_and_no_others() -> None:
    engine = EchoingEngine(0)
    dispatcher = Dispatcher(engine)
    kept = dispatcher.add([7], 50, ())
    left = write(dispatcher, [*range(20)], depth=0)
    next(left)
    left.close()
    assert [*engine.texts] == [kept]
    assert dispatcher.finish([kept]) == [kept]
    assert dispatcher.take(kept).outputs[0].token_ids == [7] * 50


def test_a_criterion_ends_a_text_of_its_own_writer() -> None:
    engine = EchoingEngine(0)
    dispatcher = Dispatcher(engine)

    def is_long(ids: torch.Tensor, scores: None) -> torch.Tensor:
        return torch.tensor([ids.shape[1] >= 4])

    short, long = dispatcher.add([5], 20, [is_long]), dispatcher.add([6], 20, ())
    assert dispatcher.finish([long]) == [long]
    assert len(dispatcher.take(short).outputs[0].token_ids) == 3
