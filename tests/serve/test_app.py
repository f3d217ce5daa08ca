"""The HTTP server, by the clients that people use: the same texts as from the sampler, and one sentence per error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import antislop
import antislop.engines
import antislop.serve
from antislop import AntiSlop, Ban
from antislop.errors import InputError
from tests.support.backends import leave_streams, run_server, wait_until
from tests.support.processes import ServingProcess

Tiny = tuple[PreTrainedModel, PreTrainedTokenizerBase]
PROMPT = "The old house"
BANS = ["felt like", "the"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    model, tokenizer = antislop.tiny_model()
    tokenizer.chat_template = TEMPLATE
    return model, tokenizer


@pytest.fixture(scope="module")
def url(tiny: Tiny) -> Iterator[str]:
    app = antislop.serve.app(*tiny, bans=BANS, batch_size=4, name="tiny", api_key="secret")
    with run_server(app) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as connected:
        yield connected


@pytest.fixture
def post(url: str) -> Any:
    def send(body: Any, path: str = "/v1/completions", **options: Any) -> httpx.Response:
        headers = {"Authorization": "Bearer secret", **options.pop("headers", {})}
        return httpx.post(url + path, json=body, headers=headers, **options)

    return send


def settings(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 24, "seed": 3, **more}


def test_a_streamed_text_equals_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt=PROMPT, **settings())
    parts = client.completions.create(prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **settings())
    chunks = list(parts)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None and whole.usage.completion_tokens == 24


def test_a_streamed_chat_equals_the_whole_one(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "Tell a story."}]}]
    whole = client.chat.completions.create(messages=messages, **settings())
    chunks = list(client.chat.completions.create(messages=messages, stream=True, **settings()))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert whole.choices[0].message.content


def test_the_asynchronous_client_gets_the_same_texts(url: str, client: openai.OpenAI) -> None:
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as connected:
            whole = await connected.completions.create(prompt=PROMPT, **settings())
            chunks = await connected.completions.create(prompt=PROMPT, stream=True, **settings())
            return whole.choices[0].text, "".join([chunk.choices[0].text async for chunk in chunks])

    whole, streamed = asyncio.run(ask())
    assert whole == streamed == client.completions.create(prompt=PROMPT, **settings()).choices[0].text


def test_a_greedy_text_is_that_of_the_sampler(tiny: Tiny, client: openai.OpenAI) -> None:
    model, tokenizer = tiny
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    expected = AntiSlop(tokenizer, BANS).generate(model, ids, do_sample=False, max_new_tokens=24)
    text = tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True)
    for prompt in (PROMPT, ids[0].tolist()):
        answer = client.completions.create(prompt=prompt, temperature=0, logprobs=0, **settings())
        assert answer.choices[0].text == text
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == 24


def test_several_prompts_and_texts_come_in_order(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "One day"]
    answer = client.completions.create(prompt=prompts, n=2, **settings(max_tokens=8))
    first = client.completions.create(prompt=PROMPT, **settings(max_tokens=8))
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == first.choices[0].text
    assert len({choice.text for choice in answer.choices}) == 4
    assert answer.usage is not None and answer.usage.completion_tokens == 32


def test_a_trace_tells_what_was_withdrawn(client: openai.OpenAI) -> None:
    first = client.completions.create(prompt=PROMPT, **settings(extra_body={"use_global_bans": False}, max_tokens=1))
    word = first.choices[0].text
    body = settings(
        extra_body={"banned_strings": [word], "use_global_bans": False}, extra_query={"trace": "1"}, max_tokens=8
    )
    answer = client.completions.create(prompt=PROMPT, **body)
    (withdrawn,) = answer.choices[0].antislop["withdrawn"]  # type: ignore[attr-defined]
    assert withdrawn == {"text": word, "ban": word, "start": 0, "tokens": 1, "banned": [0, len(word)]}
    chunks = list(client.completions.create(prompt=PROMPT, stream=True, **body))
    assert [item for chunk in chunks for item in getattr(chunk.choices[0], "antislop", {}).get("withdrawn", [])] == [
        withdrawn
    ]
    assert answer.usage is not None and answer.usage.antislop["violations"] == 1  # type: ignore[attr-defined]


def test_bans_of_an_opening_leave_the_rest_of_the_reply_alone(post: Any) -> None:
    def write(**bans: Any) -> str:
        body = settings(prompt=PROMPT, temperature=0, max_tokens=12, use_global_bans=False, **bans)
        return str(post(body).json()["choices"][0]["text"])

    plain = write()
    first, later = plain.split()[0], plain.split()[-1]
    assert later != first and write(banned_strings=[later]) != plain
    assert write(banned_strings=[later], ban_opening="word") == plain
    assert not write(banned_strings=[first], ban_opening="word").split()[0].startswith(first)


EVERYTHING = {"banned_regex": [r"[\s\S]"], "use_global_bans": False}
"""Whatever the first token is, it completes a ban."""


def read_ends(post: Any, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the last choices of the texts of a stream, and the whole answer to the same request."""
    body = settings(prompt=PROMPT, **fields)
    lines = post({**body, "stream": True}).text.split("\n\n")[:-2]
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert all("antislop" not in choice for choice in choices if not choice["finish_reason"])
    return [choice for choice in choices if choice["finish_reason"]], post(body).json()


@pytest.mark.parametrize("n", [1, 3])
def test_the_end_of_each_streamed_text_has_the_counts_of_its_bans(post: Any, n: int) -> None:
    ends, whole = read_ends(post, n=n, banned_strings=[" felt", "e"])
    counts = [end["antislop"] for end in sorted(ends, key=lambda end: end["index"])]
    assert len(counts) == n and all(count["rewinds"] > 0 for count in counts)
    assert {name: sum(count[name] for count in counts) for name in counts[0]} == whole["usage"]["antislop"]


def test_what_was_withdrawn_and_the_counts_come_together(post: Any) -> None:
    plain = settings(prompt=PROMPT, use_global_bans=False, max_tokens=1)
    word = post(plain).json()["choices"][0]["text"]
    body = plain | {"banned_strings": [word], "stream": True}
    (line,) = post(body, path="/v1/completions?trace=1").text.split("\n\n")[:-2]
    own = json.loads(line.removeprefix("data: "))["choices"][0]["antislop"]
    assert [text["text"] for text in own.pop("withdrawn")] == [word]
    assert own == {"violations": 1, "withdrawn_tokens": 1, "rewinds": 1, "conceded": 0}


def test_a_stream_tells_of_bans_that_were_conceded(post: Any) -> None:
    ends, whole = read_ends(post, max_tokens=3, **EVERYTHING)
    assert (ends[0]["finish_reason"], ends[0]["antislop"]["conceded"]) == ("length", 3)
    assert whole["usage"]["antislop"] == ends[0]["antislop"]


def test_a_text_that_repeats_itself_ends_with_that_reason_streamed_or_whole(tiny: Tiny) -> None:
    loop, phrase = {"then": "stop", "tries": 0}, [Ban.regex(r"\w", then="stop", tries=0)]
    lists = {"loop": antislop.loops(copies=2, min_length=4, **loop), "phrase": phrase}
    lists["force"] = [Ban.regex("e", then="force", force="!", tries=0, at_most=1)]
    app = antislop.serve.app(*tiny, bans=[], lists=lists, name="tiny")
    reasons = set()
    with run_server(app) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="-") as connected:
        for name in lists:
            body: dict[str, Any] = {
                "model": "tiny",
                "max_tokens": 60,
                "temperature": 0,
                "extra_body": {"ban_list": name},
            }
            whole = connected.completions.create(prompt=PROMPT, **body)
            *_, last = connected.completions.create(prompt=PROMPT, stream=True, **body)
            message = [{"role": "user", "content": PROMPT}]
            chat = connected.chat.completions.create(messages=message, **body)  # type: ignore[call-overload]
            *_, part = connected.chat.completions.create(messages=message, stream=True, **body)  # type: ignore[call-overload]
            assert whole.choices[0].finish_reason == last.choices[0].finish_reason
            assert chat.choices[0].finish_reason == part.choices[0].finish_reason
            reasons |= {(name, choice.finish_reason) for choice in (whole.choices[0], chat.choices[0])}
            own = whole.usage.antislop  # type: ignore[union-attr]
            assert (own.get("forced", 0) > 0) == ("!" in whole.choices[0].text) == (name == "force")
    assert reasons > {("loop", "repetition"), ("phrase", "stop")}


def test_a_text_may_end_before_a_ban_instead(post: Any) -> None:
    ends, whole = read_ends(post, max_tokens=3, on_exhausted="stop", **EVERYTHING)
    (choice,) = whole["choices"]
    assert (ends[0]["finish_reason"], choice["finish_reason"], choice["text"]) == ("stop", "stop", "")
    assert ends[0]["antislop"] == whole["usage"]["antislop"]
    assert ends[0]["antislop"]["exhausted"] == 1 and ends[0]["antislop"]["conceded"] == 0


def test_a_limit_of_rewinds_is_that_of_the_request(post: Any) -> None:
    bans = {"banned_strings": ["e", "o"], "use_global_bans": False}
    free, none = (read_ends(post, max_rewinds=limit, **bans)[1]["usage"]["antislop"] for limit in (100, 0))
    assert free["rewinds"] > 0 and free["conceded"] == 0
    assert none["rewinds"] == 0 and none["conceded"] > 0
    stopped = read_ends(post, max_rewinds=0, on_exhausted="stop", **bans)[1]
    assert stopped["usage"]["antislop"]["exhausted"] == 1
    assert not set("eo") & set(stopped["choices"][0]["text"])


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt=PROMPT, **settings()).choices[0].text
    stop = whole[30:36]
    answer = client.completions.create(prompt=PROMPT, stop=stop, **settings()).choices[0]
    assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"X-Api-Key": "secret"}, 200),
        ({"Authorization": "Bearer sécret".encode()}, 401),
    ],
)
def test_only_the_key_opens(url: str, headers: Any, status: int) -> None:
    answer = httpx.get(f"{url}/v1/models", headers=headers)
    assert answer.status_code == status
    assert "secret" not in answer.text
    assert httpx.get(f"{url}/health", headers=headers).json() == {"status": "ok", "active": 0}, "which needs none"


def test_the_log_probabilities_are_those_of_what_bans_leave(tiny: Tiny, client: openai.OpenAI) -> None:
    model, tokenizer = tiny
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    logits = model(ids).logits[0, -1].detach().double()
    likeliest = int(logits.argmax())
    banned = {"custom_token_bans": [likeliest], "use_global_bans": False}
    answer = client.completions.create(
        prompt=PROMPT, temperature=0, logprobs=3, extra_body=banned, **settings(max_tokens=1)
    )
    logits[likeliest] = -torch.inf
    expected = logits.log_softmax(0).topk(3)
    found = answer.choices[0].logprobs
    assert found is not None and found.top_logprobs and found.token_logprobs
    assert list(found.top_logprobs[0].values()) == pytest.approx(expected.values.tolist(), abs=1e-4)
    assert found.token_logprobs[0] == pytest.approx(float(expected.values[0]), abs=1e-4)
    assert found.tokens == [tokenizer.decode(expected.indices[0])]


def test_a_bias_is_added_to_the_logits_before_all_else(tiny: Tiny, client: openai.OpenAI) -> None:
    """Then come repetition penalty, temperature and truncation, in the order of `generate`."""
    model, tokenizer = tiny
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    logits = model(ids).logits[0, -1].detach().double()
    house = int(ids[0, -1])
    bias = {str(house): round(float(logits.max() - logits[house])) + 10, str(int(logits.argmax())): -100, "60": 2.5}
    answer = client.completions.create(
        prompt=PROMPT,
        logprobs=5,
        temperature=0.5,
        logit_bias=bias,
        extra_body={"repetition_penalty": 1.7, "top_k": 3, "use_global_bans": False},
        **settings(max_tokens=1),
    )
    for token, value in bias.items():
        logits[int(token)] += value
    seen = ids[0].unique()
    logits[seen] = torch.where(logits[seen] > 0, logits[seen] / 1.7, logits[seen] * 1.7)
    expected = (logits / 0.5).topk(3).values.log_softmax(0)
    found = answer.choices[0].logprobs
    assert found is not None and found.top_logprobs
    assert list(found.top_logprobs[0].values()) == pytest.approx(expected.tolist(), abs=1e-4)
    assert tokenizer.decode(house) in found.top_logprobs[0]


def test_a_bias_of_100_writes_a_token_and_one_of_minus_100_none(tiny: Tiny, client: openai.OpenAI) -> None:
    forced = client.completions.create(prompt=PROMPT, logit_bias={"60": 100}, **settings(max_tokens=3))
    assert (
        forced.choices[0].text
        == 3 * client.completions.create(prompt=[60], echo=True, **settings(max_tokens=0)).choices[0].text
    )
    messages: Any = [{"role": "user", "content": "Hello."}]
    plain = client.chat.completions.create(messages=messages, temperature=0, logprobs=True, **settings(max_tokens=1))
    listed = plain.choices[0].logprobs
    assert listed is not None and listed.content
    tokenizer = tiny[1]
    ids = [token for token in range(4096) if tokenizer.decode(token) == listed.content[0].token]
    other = client.chat.completions.create(
        messages=messages, temperature=0, logit_bias={str(token): -100 for token in ids}, **settings(max_tokens=1)
    )
    assert other.choices[0].message.content != plain.choices[0].message.content


def test_the_log_probabilities_of_a_chat_have_bytes(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    answer = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, **settings())
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert (
        b"".join(bytes(token.bytes or []) for token in logprobs.content).decode() == answer.choices[0].message.content
    )
    assert {len(token.top_logprobs) for token in logprobs.content} == {2}


def test_a_regex_that_takes_too_long_is_counted_and_not_logged(tiny: Tiny) -> None:
    """The warning would contain what a client sent; here it would be an error."""
    body = {"prompt": "a" * 60, "max_tokens": 2, "banned_regex": ["(([a-z ,.])+)+[0-9é][^-]"]}
    with run_server(antislop.serve.app(*tiny, bans=BANS, batch_size=1)) as address:
        usage = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()["usage"]
    assert usage["antislop"]["timed_out_regexes"] == 1


def test_streams_that_are_cut_off_leave_no_row_of_the_model(tiny: Tiny) -> None:
    app = antislop.serve.app(*tiny, bans=BANS, batch_size=4, queue_length=60)
    with run_server(app) as address:
        asyncio.run(leave_streams(address, 30))
        wait_until(lambda: httpx.get(f"{address}/health").json()["active"] == 0)
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT, "max_tokens": 3}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_model_or_an_upstream_is_served_not_both(tiny: Tiny) -> None:
    model, tokenizer = tiny
    endpoint = antislop.engines.Endpoint("http://127.0.0.1:1/v1")
    for chosen, upstream in ((None, None), (model, endpoint)):
        with pytest.raises(InputError, match="either a model or upstream"):
            antislop.serve.app(chosen, tokenizer, upstream=upstream)


def test_a_server_elsewhere_is_served_under_bans(tiny: Tiny, llama_cpp: ServingProcess) -> None:
    """Greedy, since the random numbers are the other server's."""
    _, tokenizer = tiny
    app = antislop.serve.app(None, tokenizer, upstream=antislop.engines.Endpoint(f"{llama_cpp.url}/v1"), bans=BANS)
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "banned_strings": ["smell"]}
    with run_server(app) as address, httpx.Client(base_url=address, timeout=60) as connected:
        whole = connected.post("/v1/completions", json=body).json()
        lines = connected.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")[:-2]
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        refused = connected.post("/v1/completions", json={**body, "logprobs": 1})
        assert connected.get("/v1/models").json()["data"][0]["max_model_len"] == 512
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert "smell" not in whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 24
    assert chunks[-1]["choices"][0]["antislop"] == whole["usage"]["antislop"]
    assert (refused.status_code, "leave logprobs out" in refused.text) == (400, True)


def test_a_server_elsewhere_is_served_with_the_lists_and_limits_of_requests(
    tiny: Tiny, llama_cpp: ServingProcess
) -> None:
    endpoint = antislop.engines.Endpoint(f"{llama_cpp.url}/v1")
    app = antislop.serve.app(None, tiny[1], upstream=endpoint, bans=["a", "e", "i", "o"], lists={"plain": []})
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "max_rewinds": 0}
    with run_server(app) as address, httpx.Client(base_url=address, timeout=60) as connected:
        name = connected.get("/v1/models").json()["data"][1]["id"]
        conceded, stopped, plain = (
            connected.post("/v1/completions", json=body | more).json()
            for more in ({}, {"on_exhausted": "stop"}, {"model": name})
        )
    assert conceded["usage"]["antislop"]["conceded"] > 0 and conceded["usage"]["antislop"]["rewinds"] == 0
    assert stopped["usage"]["antislop"]["exhausted"] == 1 and stopped["choices"][0]["finish_reason"] == "stop"
    assert plain["usage"]["antislop"]["violations"] == 0
