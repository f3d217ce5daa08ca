"""The real llama.cpp server of the tests serves the bundled model: the same ids, the same probabilities."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from hypothesis import example, given, strategies as st
from transformers import PreTrainedTokenizerBase

import antislop
from antislop.core.loop.sampling import Sampling
from antislop.engines import Endpoint
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import StreamRequest
from antislop.files.models import ModelSpec
from tests.support.llama_cpp import serve_llama_cpp

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp is not tested")
from tests.support.gguf_file import write_gguf

LARGEST_DIFFERENCE = 2e-4  # nats; 3e-5 was measured
PROMPT = "The old house at the edge of the village"


def post(server: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, PreTrainedTokenizerBase]:
    return antislop.tiny_model()


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
@example("")
@example(" It's 12345 — café!\n\n  ok 🙂\t")
def test_the_server_tokenizes_as_transformers_does(llama_cpp: Any, tiny: Any, text: str) -> None:
    tokens = post(llama_cpp, "/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    assert tokens == tiny[1](text)["input_ids"]


def check_ids_and_log_probabilities(server: Any, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = tokenizer(PROMPT)["input_ids"]
    body = {"prompt": prompt, "n_predict": 60, "temperature": 0, "return_tokens": True, "n_probs": 20}
    answer = post(server, "/completion", body)
    text = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=60)[0]
    assert answer["tokens"] == text[len(prompt) :].tolist()
    with torch.no_grad():
        logprobs = model(text[None, :-1]).logits[0, len(prompt) - 1 :].log_softmax(-1)
    for position, expected in zip(answer["completion_probabilities"], logprobs, strict=True):
        for token in position["top_logprobs"]:
            assert token["logprob"] == pytest.approx(float(expected[token["id"]]), abs=LARGEST_DIFFERENCE)


def test_greedy_ids_and_log_probabilities_are_those_of_transformers(llama_cpp: Any, tiny: Any) -> None:
    check_ids_and_log_probabilities(llama_cpp, *tiny)


def test_a_tokenizer_as_sentencepiece_makes_them_is_written_too(assets: Path, tmp_path: Path) -> None:
    model, tokenizer = ModelSpec(str(assets / "models" / "stories3M")).load()
    write_gguf(model, tokenizer, tmp_path / "stories3M.gguf")
    with serve_llama_cpp(tmp_path / "stories3M.gguf", slots=1) as server:
        check_ids_and_log_probabilities(server, model, tokenizer)
        for text in ("", " It's 12345 — café!\n\n  ok 🙂\t"):
            assert (
                post(server, "/tokenize", {"content": text, "add_special": True})["tokens"] == tokenizer(text).input_ids
            )


def test_a_server_ends_with_its_context(tmp_path: Path, tiny: Any) -> None:
    write_gguf(*tiny, tmp_path / "tiny.gguf")
    with serve_llama_cpp(tmp_path / "tiny.gguf", slots=1) as server:
        assert post(server, "/tokenize", {"content": "a"})["tokens"]
    with pytest.raises(OSError, match="refused"):
        post(server, "/tokenize", {"content": "a"})


def test_texts_that_follow_each_other_need_no_second_attempts(llama_cpp: Any, tiny: Any) -> None:
    """The server closes the connection after a stream, although its answer keeps it alive."""

    async def read() -> int:
        vocabulary = antislop.AntiSlop(tiny[1], ["a testament to"]).compiled.vocabulary
        client = StreamingClient(Endpoint(f"{llama_cpp.url}/v1", retries=0), tiny[1], vocabulary)
        request = StreamRequest(prompt=[0, 5], max_tokens=3, seed=1, sampling=Sampling(), logprobs="raw")
        try:
            for _ in range(4):
                messages = [message async for message in client.stream(request)]
            return len(messages)
        finally:
            await client.close()

    assert asyncio.run(read()) == 4
