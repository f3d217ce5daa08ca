"""What real clients send, recorded from them in `recorded_requests.jsonl`: each request is understood.

`TabbyAPI` and `KoboldCpp` were not recorded: these bodies have each field that those servers define. A `note` says
where a body comes from that was not recorded as a whole.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import antislop
from antislop.core.hf.private import response_template_for
from antislop.core.loop.sampling import Sampling
from antislop.serve.application import make_app
from tests.support.backends import SlowBackend, play_tokens

RECORDED = Path(__file__).parent / "recorded_requests.jsonl"
RECORDS = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
NEUTRAL = vars(Sampling())
TOKENIZER = antislop.tiny_model()[1]
TOKENIZER.chat_template = (
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments }}]{% endfor %}{{ '\\n' }}"
    "{% endfor %}{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TOKENIZER.response_template = response_template_for("qwen3")


def post(backend: SlowBackend, route: str, body: dict[str, Any]) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(backend, lists={"noir": ["noir ban"]}))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post(route, json=body)

    return asyncio.run(send())


def make_backend() -> SlowBackend:
    return SlowBackend(TOKENIZER, lambda request: play_tokens([60, 61]), bans=["own ban"], context_length=4096)


def describe(backend: SlowBackend, answer: httpx.Response) -> dict[str, Any]:
    """Return what was understood of a request, without what is as if the client had said nothing."""
    if answer.status_code != 200:
        return {"refused": answer.json()["error"]["param"]}
    (length,) = {len(backend.written[0].prompt)}
    first = backend.written[0]
    return {
        "prompt_tokens": length,
        "max_new_tokens": first.max_new_tokens,
        **{name: value for name, value in vars(first.sampling).items() if value != NEUTRAL[name]},
        **({"bans": bans} if (bans := [ban.text for ban in first.bans.bans if ban.text != "own ban"]) else {}),
        **({"stop": list(first.stop)} if first.stop else {}),
        **({"biases": len(first.logit_bias)} if first.logit_bias else {}),
        **({"schema": json.loads(first.schema).get("properties")} if first.schema else {}),
        **({"calls": re.findall(r'\\"name\\": \\"(\w+)', first.lark)} if first.lark else {}),
        **({"alternatives": first.alternatives} if first.alternatives is not None else {}),
        **({"texts": len(backend.written)} if len(backend.written) > 1 else {}),
        **(
            {"ignored": sorted(ignored.split(", "))}
            if (ignored := answer.headers.get("X-Antislop-Ignored-Fields"))
            else {}
        ),
    }


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record['client']}: {record['route']}")
def test_the_request_of_a_client_is_understood(record: dict[str, Any]) -> None:
    backend = make_backend()
    answer = post(backend, record["route"], record["body"])
    assert answer.status_code == record.get("status", 200), answer.text
    assert describe(backend, answer) == record["expected"]


def test_sillytavern_connects_and_learns_the_context() -> None:
    """As TabbyAPI by the first two routes, as KoboldCpp by the others."""

    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(make_app(make_backend()))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            routes = ("/v1/model/list", "/v1/model", "/v1/models", "/props")
            return [(await client.get(route)).json() for route in routes]

    listed, described, models, properties = asyncio.run(ask())
    assert listed == models and [card["id"] for card in listed["data"]] == [described["id"]]
    assert described["parameters"]["max_seq_len"] == properties["default_generation_settings"]["n_ctx"] == 4096
    assert described["parameters"]["prompt_template_content"] == properties["chat_template"] == TOKENIZER.chat_template
