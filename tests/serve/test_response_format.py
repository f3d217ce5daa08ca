"""JSON by a schema from the server: valid, without bans, and a schema that can't be followed harms nobody else."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import antislop
import antislop.engines
import antislop.serve
from antislop.serve.local import LocalBackend
from antislop.steer.grammar import compilation
from tests.support.backends import run_server
from tests.support.processes import ServingProcess

pytest.importorskip("llguidance")
Tiny = tuple[PreTrainedModel, PreTrainedTokenizerBase]
PROMPT = "A lamp: "
CROWDED: dict[str, Any] = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
"""llguidance compiles it, and gives up after the first character: too many keys may follow."""
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.2},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9},
    {"logprobs": 2, "logit_bias": {"60": 1}},
]


class Lamp(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    category: Literal["kitchen", "garden"]
    colors: list[Literal["red", "blue"]] = Field(max_length=2)


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    model, tokenizer = antislop.tiny_model()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return model, tokenizer


@pytest.fixture(scope="module")
def url(tiny: Tiny) -> Iterator[str]:
    with run_server(antislop.serve.app(*tiny, batch_size=4, name="tiny")) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def follow(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "lamp", "schema": schema, **more}}


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 40, **body}, timeout=60)


def test_the_client_parses_what_it_asks_for_by_a_class(client: openai.OpenAI) -> None:
    """And nothing of it is banned, though the model would write these letters in most of the texts."""
    banned = "hfpvw"
    rewinds = 0
    for seed in range(5):
        answer = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": PROMPT}],
            response_format=Lamp,
            seed=seed,
            max_tokens=200,
            extra_body={"banned_strings": list(banned)},
        )
        lamp = answer.choices[0].message.parsed
        assert lamp is not None and answer.choices[0].finish_reason == "stop"
        assert lamp.name and not set(lamp.name.lower()) & set(banned) and lamp.category == "garden"
        assert answer.usage is not None
        rewinds += answer.usage.antislop["rewinds"]  # type: ignore[attr-defined]
    assert rewinds >= 5


def test_all_texts_of_a_request_are_valid_streamed_or_not(url: str, client: openai.OpenAI) -> None:
    request: Any = {"model": "tiny", "prompt": [PROMPT, "One day"], "n": 3, "seed": 1, "max_tokens": 200}
    request["extra_body"] = {"response_format": follow(Lamp.model_json_schema(), strict=True)}
    whole = client.completions.create(**request)
    texts = [""] * 6
    for chunk in client.completions.create(stream=True, **request):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert len({Lamp.model_validate_json(text).model_dump_json() for text in texts}) > 1


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_object_is_json_as_far_as_it_goes(url: str, temperature: float) -> None:
    answer = post(url, response_format={"type": "json_object"}, seed=2, temperature=temperature).json()
    assert answer["choices"][0]["text"].startswith("{")
    if answer["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["choices"][0]["text"]), dict)


def test_the_format_text_changes_nothing(url: str) -> None:
    plain, named = post(url, seed=1), post(url, seed=1, response_format={"type": "text"})
    assert plain.json()["choices"] == named.json()["choices"]


@pytest.mark.parametrize(
    ("response_format", "message"),
    [
        (follow({"type": "lamp"}), "the schema can't be followed: llguidance can't compile it: Invalid type: lamp"),
        (follow({"not": {}}), "llguidance can't compile it: Unimplemented keys"),
        (follow({"$ref": "http://127.0.0.1/x"}), "llguidance can't compile it"),
        (follow({"description": "x" * 70_000}), "the schema has 70,019 characters; at most 65,536 are allowed"),
        (follow(CROWDED), "the schema can't be followed: llguidance gave up on this grammar"),
        (follow([]), "response_format.json_schema is []: an object was expected"),
        ({"type": "json_schema"}, 'has a json_schema if its type is "json_schema", and only then'),
        ({**follow({}), "type": "json_object"}, 'has a json_schema if its type is "json_schema", and only then'),
        ({"type": "xml"}, "response_format.type is 'xml'"),
        ("json", "response_format is 'json': an object was expected"),
    ],
)
def test_a_schema_that_can_not_be_followed_is_refused_with_a_sentence(
    url: str, response_format: Any, message: str
) -> None:
    answer = post(url, response_format=response_format)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text


def test_a_grammar_that_fails_ends_its_own_text_alone(url: str) -> None:
    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as connected:
            bodies = [
                {"prompt": PROMPT, "max_tokens": 60, "seed": 4},
                *({"prompt": PROMPT, "response_format": follow(CROWDED), "stream": bool(n)} for n in range(2)),
                *({"prompt": PROMPT, "response_format": follow(CROWDED), **more} for more in SETTINGS),
            ]
            return await asyncio.gather(*(connected.post("/v1/completions", json=body) for body in bodies))

    plain, *failed = asyncio.run(ask())
    assert plain.json()["choices"] == post(url, max_tokens=60, seed=4).json()["choices"]
    for answer in failed:
        assert "gave up on this grammar" in answer.text


def test_one_thread_compiles_a_schema_once_and_texts_go_on(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, is_compiling, may_end = [], threading.Event(), threading.Event()
    compiling = compilation.compile_llguidance

    def compile_slowly(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        is_compiling.set()
        assert may_end.wait(60)
        return compiling(*args, **options)

    monkeypatch.setattr("antislop.serve.local.compile_llguidance", compile_slowly)
    body = {"prompt": PROMPT, "max_tokens": 200, "n": 4, "response_format": follow(Lamp.model_json_schema())}

    async def ask(address: str) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as connected:
            waiting = [asyncio.create_task(connected.post("/v1/completions", json=body)) for _ in range(2)]
            while not is_compiling.is_set():
                await asyncio.sleep(0.01)
            plain = await connected.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3})
            may_end.set()
            assert [answer.status_code for answer in (plain, *await asyncio.gather(*waiting))] == [200, 200, 200]

    with run_server(antislop.serve.app(*tiny, batch_size=2)) as address:
        asyncio.run(ask(address))
    assert [name.partition("_")[0] for name in threads] == ["antislop-grammars"]


def test_a_schema_that_takes_too_long_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr("antislop.serve.local.GRAMMAR_SECONDS", 0.01)
    monkeypatch.setattr("antislop.serve.local.compile_llguidance", lambda *_, **__: may_end.wait(60))
    with run_server(antislop.serve.app(*tiny)) as address:
        answer = post(address, response_format=follow({}))
        may_end.set()
    assert (answer.status_code, "was not compiled within 0.01 seconds" in answer.text) == (400, True)


def test_a_missing_engine_is_named_with_its_installation(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with run_server(antislop.serve.app(*tiny)) as address:
        answer = post(address, response_format={"type": "json_object"})
    assert (answer.status_code, "pip install 'antislop-lm[grammar]'" in answer.text) == (400, True)


def test_what_another_server_would_have_to_follow_is_refused_by_name(tiny: Tiny, llama_cpp: ServingProcess) -> None:
    endpoint = antislop.engines.Endpoint(f"{llama_cpp.url}/v1")
    with run_server(antislop.serve.app(None, tiny[1], upstream=endpoint)) as address:
        for name, value in (("response_format", {"type": "json_object"}), ("logit_bias", {"5": 1}), ("logprobs", 1)):
            answer = post(address, **{name: value, "echo": True})
            assert (answer.status_code, f"leave {name} out" in answer.text) == (400, True), answer.text
        assert post(address, echo=True, max_tokens=2, temperature=0).json()["choices"][0]["text"].startswith(PROMPT)


def test_end_tokens_of_the_model_end_a_grammar(tiny: Tiny) -> None:
    """They may be others than the tokenizer's."""
    model, tokenizer = tiny
    before, model.generation_config.eos_token_id = model.generation_config.eos_token_id, [60, 61]
    try:
        maker = LocalBackend(model, tokenizer)._preparer
        grammar = maker.find_grammar('{"const": 5}')
        five = tokenizer("5", add_special_tokens=False)["input_ids"]
        assert grammar.accepts([*five, 60]) and grammar.accepts([*five, 61]) and not grammar.accepts([*five, 62])
    finally:
        model.generation_config.eos_token_id = before
