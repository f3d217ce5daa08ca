"""Prompts that are echoed, as clients score texts by them: log-probabilities of one pass of the untouched model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import antislop
import antislop.engines
import antislop.serve
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import Sampling
from antislop.core.trace.events import Drawn
from antislop.errors import InputError
from antislop.serve.application import make_app
from antislop.serve.backend import BackendError, GenerationRequest, PromptChoices
from antislop.serve.chunk_maker import Echo
from antislop.serve.local import LocalBackend, score_prompt
from tests.support.backends import SlowBackend, play_tokens, run_server, send
from tests.support.families import ENCODER_DECODER, FAMILIES, MULTIMODAL, build
from tests.support.models import build_model, build_spaced_tokenizer, build_tokenizer

Tiny = tuple[PreTrainedModel, PreTrainedTokenizerBase]
PROMPT = "The old house was thé dark."
TEXTS = [PROMPT, "A cat", "One day she said that it would be fine, and it was"]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return antislop.tiny_model()


@pytest.fixture(scope="module")
def url(tiny: Tiny) -> Iterator[str]:
    with run_server(antislop.serve.app(*tiny, bans=["the", "old house"], batch_size=4, name="tiny")) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def read_directly(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities [tokens - 1, vocab] of one forward pass over a prompt."""
    logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return logits.detach().double().log_softmax(dim=-1)


def likelihood(choice: Any, context: int) -> tuple[float, bool]:
    """Return what lm-eval's `local-completions` reads of a choice: of all tokens after the context but the written one.

    The sum of their log-probabilities, and whether each is the likeliest at its place.
    """
    listed = choice.logprobs
    drawn, likeliest = listed.token_logprobs[context:-1], listed.top_logprobs[context:-1]
    return sum(drawn), all(one == max(top.values()) for one, top in zip(drawn, likeliest, strict=True))


@pytest.mark.parametrize("as_ids", [False, True])
def test_the_log_probabilities_of_prompts_are_those_of_a_forward_pass(
    tiny: Tiny, client: openai.OpenAI, as_ids: bool
) -> None:
    """Whatever is banned, and at any temperature."""
    model, tokenizer = tiny
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    answer = client.completions.create(
        model="tiny", prompt=prompts if as_ids else TEXTS, echo=True, logprobs=3, max_tokens=0, temperature=0.3
    )
    for text, ids, choice in zip(TEXTS, prompts, answer.choices, strict=True):
        logs, listed = read_directly(model, ids), choice.logprobs
        assert listed is not None and listed.token_logprobs and listed.top_logprobs and listed.text_offset
        assert listed.token_logprobs[0] is None and listed.top_logprobs[0] is None
        expected = [float(row[token]) for row, token in zip(logs, ids[1:], strict=True)]
        assert listed.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        for row, token, top in zip(logs, ids[1:], listed.top_logprobs[1:], strict=True):
            values, tokens = row.topk(3)
            names = {tokenizer.decode(other): float(value) for other, value in zip(tokens, values, strict=True)}
            assert top == pytest.approx({**names, tokenizer.decode(token): float(row[token])}, abs=1e-4)
        assert choice.text == text and choice.finish_reason == "length"
        starts = [*listed.text_offset, len(text)]
        assert [text[a:b] for a, b in pairwise(starts)] == listed.tokens
    assert answer.usage is not None and answer.usage.completion_tokens == 0


def test_lm_eval_reads_the_likelihood_of_a_continuation(tiny: Tiny, client: openai.OpenAI) -> None:
    """Its request writes a token, which it leaves out; also where the model ends the text at once."""
    model, tokenizer = tiny
    greedy = model.generate(**tokenizer("The", return_tensors="pt"), do_sample=False, max_new_tokens=3)[0].tolist()
    context = len(tokenizer("The")["input_ids"])
    ends_at_once = {"logit_bias": {str(tokenizer.eos_token_id): 100}}
    for ids, more in ((greedy, {}), (greedy, ends_at_once), ([*greedy[:context], 60, 61], {})):
        request: Any = {"max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True, "temperature": 0, **more}
        answer = client.completions.create(model="tiny", prompt=[ids], **request)
        logs = read_directly(model, ids)
        expected = sum(float(logs[place - 1, ids[place]]) for place in range(context, len(ids)))
        is_greedy = ids[context:] == logs.argmax(dim=-1)[context - 1 :].tolist()
        assert likelihood(answer.choices[0], context) == (pytest.approx(expected, abs=1e-4), is_greedy)


def test_an_echoed_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    request: Any = {"model": "tiny", "prompt": TEXTS, "echo": True, "n": 2, "seed": 3, "max_tokens": 9, "logprobs": 1}
    whole = client.completions.create(**request)
    texts: list[str] = [""] * 6
    starts: list[list[int]] = [[] for _ in texts]
    for chunk in client.completions.create(stream=True, **request):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                starts[choice.index] += choice.logprobs.text_offset or []
    assert texts == [choice.text for choice in whole.choices]
    assert starts == [choice.logprobs.text_offset for choice in whole.choices if choice.logprobs]
    assert all(text.startswith(TEXTS[number // 2]) for number, text in enumerate(texts))


def test_places_count_from_the_beginning_of_an_echo(client: openai.OpenAI) -> None:
    request: Any = {"model": "tiny", "prompt": PROMPT, "seed": 3, "max_tokens": 30, "logprobs": 1}
    request |= {"extra_query": {"trace": "1"}, "extra_body": {"banned_strings": ["e", "a"]}}
    plain = client.completions.create(**request).choices[0]
    echoed = client.completions.create(echo=True, **request).choices[0]
    assert echoed.text == PROMPT + plain.text
    moved = [{**item, "start": item["start"] + len(PROMPT)} for item in plain.antislop["withdrawn"]]  # type: ignore[attr-defined]
    assert moved and echoed.antislop["withdrawn"] == moved  # type: ignore[attr-defined]
    assert plain.logprobs and echoed.logprobs and plain.logprobs.text_offset and echoed.logprobs.text_offset
    count = len(plain.logprobs.text_offset)
    assert echoed.logprobs.text_offset[-count:] == [start + len(PROMPT) for start in plain.logprobs.text_offset]
    assert echoed.logprobs.token_logprobs and plain.logprobs.token_logprobs
    assert echoed.logprobs.token_logprobs[-count:] == plain.logprobs.token_logprobs


def test_an_echo_needs_no_log_probabilities(url: str, client: openai.OpenAI) -> None:
    for ids, text in (([5, 6, 7], "$%&"), (PROMPT, PROMPT)):
        answer = client.completions.create(model="tiny", prompt=ids, echo=True, max_tokens=0)
        assert (answer.choices[0].text, answer.choices[0].logprobs) == (text, None)
    refused = httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 0})
    assert (refused.status_code, "pass echo: true" in refused.text) == (400, True)


def test_an_echoed_prompt_may_fill_the_context(client: openai.OpenAI) -> None:
    request: Any = {"model": "tiny", "prompt": [60] * 512, "echo": True, "logprobs": 0}
    answer = client.completions.create(max_tokens=0, **request)
    assert answer.choices[0].logprobs and len(answer.choices[0].logprobs.token_logprobs or []) == 512
    with pytest.raises(openai.BadRequestError, match="send a shorter prompt"):
        client.completions.create(max_tokens=1, **request)


def test_a_server_in_front_of_another_echoes_texts_only() -> None:
    backend = SlowBackend(antislop.tiny_model()[1], lambda _: play_tokens([60, 61]))
    app = make_app(backend)
    for more in ({"max_tokens": 2}, {"max_tokens": 0}):
        text = send(app, json={"prompt": "A cat", "echo": True, **more}).json()["choices"][0]["text"]
        assert text.startswith("A cat") and (text == "A cat") == (not more["max_tokens"])


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ENCODER_DECODER | MULTIMODAL])
def test_a_prompt_read_in_parts_is_scored_as_in_one_pass(family: str) -> None:
    model = build(family)
    ids = [0, *(2 + number * number % 15 for number in range(40))]
    choices = score_prompt(TransformersModel(model), ids, alternatives=2, size=7)
    logs = read_directly(model, ids)
    assert choices[0] is None and len(choices) == len(ids)
    for choice, row, token in zip(choices[1:], logs, ids[1:], strict=True):
        assert choice is not None
        assert choice.share == pytest.approx(float(row[token].exp()), rel=2e-3, abs=1e-6)
        assert choice.rank == 1 + int((row > row[token]).sum())
        assert [share for _, share in choice.alternatives] == pytest.approx(row.topk(2).values.exp().tolist(), rel=2e-3)


def test_a_prompt_of_one_token_has_no_log_probability() -> None:
    model = TransformersModel(build_model())
    assert score_prompt(model, [3], alternatives=1) == [None]
    assert len(score_prompt(model, [3, 4], alternatives=1)) == 2


def request_of(backend: LocalBackend, **changes: Any) -> GenerationRequest:
    request = GenerationRequest(
        prompt=[0, 5, 6, 7],
        bans=backend.bans,
        max_new_tokens=0,
        sampling=Sampling(),
        alternatives=1,
        echo="abc",
        seed=1,
    )
    return replace(request, **changes)


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_goes_on_while_prompts_are_scored(length: int) -> None:
    """At most a pass for each free row comes between two of its tokens, however many prompts wait."""
    model = build_model()
    model.generation_config.suppress_tokens = [0, 1]
    backend = LocalBackend(model, build_tokenizer(), batch_size=3, queue_length=100)
    order: list[str] = []

    async def note(items: AsyncIterator[Any], kind: type) -> None:
        async for item in items:
            order.extend([kind.__name__] if isinstance(item, kind) else [])

    async def write() -> None:
        text = backend.write(request_of(backend, max_new_tokens=60, alternatives=None, echo=None))
        prompt = request_of(backend, max_new_tokens=length)
        await anext(text)
        await asyncio.gather(note(text, Drawn), *(note(backend.write(prompt), PromptChoices) for _ in range(40)))
        await backend.close()

    asyncio.run(write())
    assert order.count("PromptChoices") == 40
    waits = "".join("t" if name == "Drawn" else "p" for name in order).split("t")
    assert max(map(len, waits)) <= 2 * 3  # the event loop may have missed a wake-up
    assert not waits[-1]


def test_a_model_that_fails_on_a_prompt_ends_that_text_alone() -> None:
    model = build_model()

    def fail(_: torch.nn.Module, read: tuple[torch.Tensor]) -> None:
        if (read[0] == 9).any():
            raise RuntimeError("out of memory")

    hook = model.get_input_embeddings().register_forward_pre_hook(fail)
    backend = LocalBackend(model, build_tokenizer(), batch_size=2)

    async def write() -> None:
        other = asyncio.create_task(collect(request_of(backend, max_new_tokens=8, logit_bias={9: -100})))
        with pytest.raises(BackendError, match="could not be prepared; the server's log says why"):
            await collect(request_of(backend, prompt=[0, 9, 9]))
        assert isinstance((await other)[0], PromptChoices)
        await backend.close()

    async def collect(request: GenerationRequest) -> list[Any]:
        return [item async for item in backend.write(request)]

    asyncio.run(write())
    hook.remove()


def test_an_empty_text_needs_a_scored_prompt() -> None:
    backend = LocalBackend(build_model(), build_tokenizer())

    async def write() -> None:
        with pytest.raises(InputError, match="0 tokens are asked for"):
            await anext(backend.write(request_of(backend, alternatives=None)))
        await backend.close()

    asyncio.run(write())


def test_tokens_are_found_in_the_text_of_their_prompt() -> None:
    """With special tokens that the text contains or not, and where the tokenizer adds a space in front of it."""
    plain, spaced = antislop.tiny_model()[1], build_spaced_tokenizer()
    for tokenizer, text in ((plain, "a thé 😀 cat"), (plain, "<|endoftext|>a cat"), (spaced, "ab ba"), (spaced, "")):
        ids = tokenizer(text)["input_ids"]
        echo = Echo.of(Vocabulary.of(tokenizer), ids, text)
        offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        for start, (first, last) in zip(echo.starts, offsets, strict=True):
            assert start in (first, max(first - 1, 0)) or first == last, (
                text
            )  # whether a space belongs to the next word
        assert echo.text == text
