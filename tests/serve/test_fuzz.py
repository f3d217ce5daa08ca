"""Requests of all kinds at once, and clients that leave between them: each that stays gets its answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import antislop
from antislop.serve.application import make_app
from antislop.serve.bodies.fields import ChatBody, CompletionBody, GenerationBody
from antislop.serve.local import LocalBackend
from tests.support.backends import run_server, wait_until

SECONDS = 120.0
"""How long a request may take before it counts as one without an answer."""
ROUTES = ["/v1/completions"] * 5 + ["/v1/chat/completions"] * 3
LEAVES_AFTER = (0.0, 0.002, 0.02, 0.1)
JUNK: list[Any] = [None, True, -1, 0, 1.5, 10**30, "", "x" * 300, "[1", [], [[]], [None], {}, {"a": 1}, "é\U0001f600"]
VALUES: dict[str, list[Any]] = {
    "stream": [True, False],
    "n": [1, 2, 3],
    "temperature": [0, 0.7, 1, 2],
    "top_p": [0.5, 1],
    "top_k": [-1, 5],
    "min_p": [0, 0.1],
    "repetition_penalty": [1, 1.2],
    "presence_penalty": [0, 1.5, -3],
    "frequency_penalty": [0.5],
    "dry_multiplier": [0, 0.8, 5],
    "dry_base": [1.75, 0],
    "dry_allowed_length": [0, 2],
    "dry_penalty_last_n": [-1, 0, 30],
    "dry_sequence_breakers": [["\n", "the"], '[","]', [], "none"],
    "xtc_probability": [0, 0.5, 1],
    "xtc_threshold": [0, 0.1, 0.6],
    "top_n_sigma": [-1, 0, 1.5],
    "eta_cutoff": [3],
    "epsilon_cutoff": [0, 3],
    "typical_p": [0.5, 1],
    "min_keep": [0, 3, 10**6],
    "encoder_repetition_penalty": [1.2],
    "do_sample": [True, False],
    "no_repeat_ngram_size": [0, 3],
    "sampler_order": [[], [6, 0, 1, 3, 4, 2, 5]],
    "samplers": [["dry", "temperature"], "edkt"],
    "seed": [-1, 5],
    "stop": ["the", [".", " a"], []],
    "banned_strings": [["the", "was"], '["a", "e"]', []],
    "banned_regex": [[r"\w+ed\b"], ["so+"], ["("], []],
    "banned_tokens": [[60, 61], ["cat"]],
    "loops": [True, False],
    "repeats": [True, False],
    "ban_weights": [{"a cat": 0.5}, {"none": 0.5}],
    "custom_token_bans": [[60], "60,61"],
    "exempt": [["the cat"], '["so"]'],
    "ban_method": ["exact", "token", "text"],
    "ban_opening": ["word", "paragraph"],
    "ban_rewind": ["word", "sentence", "paragraph", "text"],
    "ban_scope": ["answer", "thinking", "all"],
    "model": ["tiny", "tiny@noir"],
    "best_of": [1, 2],
    "use_global_bans": [True, False],
    "ban_list": ["noir", "plain", "none"],
    "on_exhausted": ["concede", "stop"],
    "max_rewinds": [0, 5],
    "stream_options": [{"include_usage": True}],
    "logit_bias": [{"60": 5}, {"61": -100}, {}],
    "response_format": [{"type": "text"}, {"type": "json_object"}],
}
COMPLETION_VALUES: dict[str, list[Any]] = {"echo": [True, False], "add_bos_token": [True, False]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"enum": [{}]}}}
CHAT_VALUES: dict[str, list[Any]] = {
    "tools": [[TOOL], [TOOL, TOOL], []],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}],
    "parallel_tool_calls": [True, False],
    "chat_template_kwargs": [{"enable_thinking": False}, {"x": 1}, {"tools": []}],
    "reasoning_effort": ["none", "high"],
    "response_prefix": ["The", "a {"],
    "continue_final_message": [True, False],
    "echo": [False, True],
    "add_generation_prompt": [True, False],
    "messages": [
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The a"}],
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}],
        [{"role": "assistant", "reasoning_content": "Hm"}, {"role": "tool", "content": "5", "tool_call_id": "a"}],
    ],
}
CHAT_TEMPLATE = """{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{{ m.tool_calls }}
{% endfor %}{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% if enable_thinking %}The{% endif %}"""
RESPONSE_TEMPLATE: dict[str, Any] = {
    "start_anchor": "x",
    "fields": {
        "reasoning_content": {"open": ["The", " was"], "close": [".", ","]},
        "tool_calls": {
            "open": " a",
            "close": " the",
            "content": "json",
            "content_args": {"allow_non_json": True},
            "repeats": True,
            "transform": {"function": {"name": "f", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"\\s*!"},
    },
}
"""Thoughts and calls between words that the small model writes."""


def make_body(rng: random.Random, route: str) -> dict[str, Any]:
    """Return a body for a route; one in four has a field that can't be used."""
    if route.endswith("chat/completions"):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "One day"}],
            "top_logprobs": 2,
            "logprobs": True,
        }
        body |= {name: rng.choice(CHAT_VALUES[name]) for name in rng.sample(sorted(CHAT_VALUES), rng.randrange(4))}
    else:
        body = {"prompt": rng.choice(["One day", [60, 61], ["a", "b"], [[60], [61, 62]]]), "logprobs": 2}
        body |= {name: rng.choice(values) for name, values in COMPLETION_VALUES.items() if rng.random() < 0.2}
    body = {name: value for name, value in body.items() if "logprobs" not in name or rng.random() < 0.5}
    body |= {name: rng.choice(VALUES[name]) for name in rng.sample(sorted(VALUES), rng.randrange(5))}
    if rng.random() < 0.25:
        body[rng.choice([*body, "unknown"])] = rng.choice(JUNK)
    return body | {"max_tokens": rng.choice([1, 10, 60])}


class Fuzzer:
    """Clients of one server. counts: of the statuses, and of the clients that left."""

    def __init__(self, url: str, *, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._url = url
        self._rng = random.Random(seed)

    async def run(self, count: int, *, clients: int = 12) -> None:
        """Send requests, `clients` at a time."""
        numbers = iter(range(count))
        await asyncio.gather(*(self._be_client(numbers, f"client-{name}") for name in range(clients)))

    async def _be_client(self, numbers: Iterator[int], name: str) -> None:
        options: dict[str, Any] = {"base_url": self._url, "headers": {"User-Agent": name}, "timeout": SECONDS}
        limits = httpx.Limits(keepalive_expiry=1)  # by default 5 seconds, when the server, too, closes the connection
        async with httpx.AsyncClient(limits=limits, **options) as client:
            for _ in numbers:
                route = self._rng.choice(ROUTES)
                body = make_body(self._rng, route)
                if self._rng.random() < 0.2:
                    await self._leave(client, route, body, self._rng.choice(LEAVES_AFTER))
                else:
                    answer = await client.post(route, json=body)
                    self.counts[str(answer.status_code)] += 1
                    check(answer, body)

    async def _leave(self, client: httpx.AsyncClient, route: str, body: dict[str, Any], seconds: float) -> None:
        try:
            await asyncio.wait_for(client.post(route, json=body), seconds)
        except asyncio.TimeoutError:
            self.counts["left"] += 1


def check(answer: httpx.Response, body: dict[str, Any]) -> None:
    """Fail unless an answer is whole: each text ended once, or a refusal in a sentence."""
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, (answer.status_code, answer.text, body)
        assert answer.json()["error"]["message"], body
        return
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert all(choice["finish_reason"] for choice in answer.json().get("choices", [])), body
        return
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]", body
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    ended = [choice["index"] for choice in choices if choice["finish_reason"]]
    assert sorted(ended) == sorted({choice["index"] for choice in choices}), body


def fuzz(count: int, *, seed: int) -> Counter[str]:
    """Send requests to a server with the small model, and return what was counted; no text is left behind."""
    model, tokenizer = antislop.tiny_model()
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    backend = LocalBackend(model, tokenizer, bans=["a cat"], batch_size=8)
    with run_server(make_app(backend, lists={"noir": ["dark"], "plain": []})) as url:
        fuzzer = Fuzzer(url, seed=seed)
        asyncio.run(fuzzer.run(count))
        wait_until(lambda: backend.active == 0)
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "active": 0}
        assert "antislop_texts_active 0.0" in httpx.get(f"{url}/metrics").text
    return fuzzer.counts


@pytest.mark.slow
def test_each_of_many_requests_is_answered_beside_clients_that_leave() -> None:
    counts = fuzz(80, seed=27)
    assert counts["200"] >= 30
    assert counts["400"] >= 10
    assert counts["left"] >= 1


@pytest.mark.parametrize(("kind", "own"), [(CompletionBody, COMPLETION_VALUES), (ChatBody, CHAT_VALUES)])
def test_every_field_of_a_body_is_among_them(kind: type[GenerationBody], own: dict[str, Any]) -> None:
    assert kind.model_fields.keys() - {"prompt", "logprobs", "top_logprobs", "max_tokens"} - VALUES.keys() <= own.keys()
