"""`antislop.vllm.FirstTokenBias` in a real vLLM server."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch

import antislop
from tests.support.processes import ServingProcess
from tests.support.statistics import p_value

PROMPT = "The old house at the edge of the village"
DRAWS, PER_REQUEST = 4000, 200


def complete(server: ServingProcess, **body: Any) -> list[list[int]]:
    """Return the token ids of each text."""
    body = {"model": f"{model_name(server)}", "return_token_ids": True, **body}
    request = Request(f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        return [choice["token_ids"] for choice in json.load(answer)["choices"]]


def model_name(server: ServingProcess) -> str:
    with urlopen(f"{server.url}/v1/models", timeout=30) as answer:
        return json.load(answer)["data"][0]["id"]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return antislop.tiny_model()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_first_tokens_are_drawn_from_the_biased_logits(vllm: ServingProcess, tiny: Any, temperature: float) -> None:
    model, tokenizer = tiny
    prompt = tokenizer(PROMPT)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].double()
    likeliest = logits.topk(12).indices.tolist()
    bias = {token: (-1e9, -2.0, 3.0)[number % 3] for number, token in enumerate(likeliest)}
    for token, value in bias.items():
        logits[token] += value
    expected = {(token,): share for token, share in enumerate((logits / temperature).softmax(-1).tolist())}
    drawn = Counter(
        tuple(text)
        for seed in range(0, DRAWS, PER_REQUEST)
        for text in complete(
            vllm,
            prompt=prompt,
            max_tokens=1,
            n=PER_REQUEST,
            seed=seed,
            temperature=temperature,
            vllm_xargs={"first_ids": list(bias), "first_bias": list(bias.values())},
        )
    )
    assert p_value(drawn, expected) > 1e-3


def test_later_tokens_and_other_requests_of_the_batch_have_no_bias(vllm: ServingProcess, tiny: Any) -> None:
    """Greedy texts are known: the forced first token, then what the model writes after it."""
    model, tokenizer = tiny
    prompt = tokenizer(PROMPT)["input_ids"]
    forced = [None, *range(300, 323)]

    def write(number: int) -> list[int]:
        token = forced[number]
        arguments = {} if token is None else {"vllm_xargs": {"first_ids": [token], "first_bias": [1000]}}
        return complete(vllm, prompt=prompt, max_tokens=3 + number % 7, temperature=0, **arguments)[0]

    with ThreadPoolExecutor(len(forced)) as pool:
        texts = list(pool.map(write, range(len(forced))))
    for number, (token, text) in enumerate(zip(forced, texts, strict=True)):
        start = prompt if token is None else [*prompt, token]
        length = 3 + number % 7 - len(start) + len(prompt)
        expected = model.generate(torch.tensor([start]), do_sample=False, max_new_tokens=length)[0, len(prompt) :]
        assert text == expected.tolist()


@pytest.mark.parametrize("arguments", [{"first_ids": [1]}, {"first_ids": ["a"], "first_bias": [1]}], ids=str)
def test_arguments_that_cannot_be_used_are_answered_with_400(vllm: ServingProcess, arguments: dict[str, Any]) -> None:
    with pytest.raises(HTTPError) as failure:
        complete(vllm, prompt=[0, 5], max_tokens=1, vllm_xargs=arguments)
    with failure.value as answer:
        assert answer.code == 400
        assert "vllm_xargs: first_ids" in answer.read().decode()


def test_an_id_beyond_the_vocabulary_leaves_the_engine_alive(vllm: ServingProcess) -> None:
    arguments = {"first_ids": [10**6, 300], "first_bias": [1e30, 1000]}
    (text,) = complete(vllm, prompt=[0, 5], max_tokens=1, temperature=0, vllm_xargs=arguments)
    assert text == [300]
