"""Read texts from a server as a plain client does: streams without bans, ids or log-probabilities.

This is the speed that a server has on its own, and all that a client needs to reach it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import aiohttp

Engine = Literal["llama.cpp", "vllm"]


class StreamCounts(NamedTuple):
    """The texts' tokens, as the server counts them, and the number of requests."""

    kept: int
    requests: int


def read_texts(
    url: str, engine: Engine, prompts: Sequence[Sequence[int]], *, streams: int, tokens: int, seed: int
) -> StreamCounts:
    """Read a text of up to `tokens` tokens for each prompt, `streams` at once."""
    return asyncio.run(_read_all(url, engine, prompts, streams=streams, tokens=tokens, seed=seed))


async def _read_all(
    url: str, engine: Engine, prompts: Sequence[Sequence[int]], *, streams: int, tokens: int, seed: int
) -> StreamCounts:
    waiting = iter([*enumerate(prompts)])
    model = None if engine == "llama.cpp" else await _find_model(url)

    async def read_on(session: aiohttp.ClientSession) -> int:
        kept = 0
        for number, prompt in waiting:
            path, body = _make_request(engine, prompt, model=model, tokens=tokens, seed=seed + number)
            kept += await _read(session, url + path, body)
        return kept

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        kept = await asyncio.gather(*(read_on(session) for _ in range(streams)))
    return StreamCounts(sum(kept), len(prompts))


async def _find_model(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
        return str((await answer.json())["data"][0]["id"])


def _make_request(
    engine: Engine, prompt: Sequence[int], *, model: str | None, tokens: int, seed: int
) -> tuple[str, dict[str, Any]]:
    """Return a path and a body that ask for the model's own distribution."""
    body: dict[str, Any] = {"prompt": list(prompt), "stream": True, "temperature": 1.0, "seed": seed}
    if engine == "llama.cpp":
        return "/completion", {**body, "n_predict": tokens, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    usage = {"stream_options": {"include_usage": True}}
    return "/v1/completions", {**body, **usage, "model": model, "max_tokens": tokens}


async def _read(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> int:
    """Return the number of tokens of a text, which the server tells at its end."""
    kept = 0
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                kept = _count(json.loads(line[6:])) or kept
    return kept


def _count(event: dict[str, Any]) -> int:
    if "tokens_predicted" in event:
        return int(event["tokens_predicted"])
    return int((event.get("usage") or {}).get("completion_tokens", 0))


def count_written(metrics: str, engine: Engine) -> float:
    """Return the number of tokens that a server has written since its start, from its `/metrics`."""
    name = "llamacpp:tokens_predicted_total" if engine == "llama.cpp" else "vllm:generation_tokens_total"
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(name))
