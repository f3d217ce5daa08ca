"""What docs/limits.md says of each way to write is what the code does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from antislop import AntiSlop, InputError
from antislop.core.loop.sampling import Sampling
from antislop.engines.endpoint.endpoint import EndpointMethod, Logprobs, ServerFeatures
from antislop.engines.endpoint.streamed_text import plan_method
from antislop.engines.vllm.requests import EngineSettings, RequestOptions, check_request
from antislop.serve.upstream import UpstreamBackend
from antislop.steer import CountPenaltyLogitsProcessor, Grammar
from tests.support.documents import ROOT
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def call(**settings: Any) -> object:
    """Write two tokens in this process."""
    ids = torch.tensor([[0, 5, 9, 2]])
    sampler = AntiSlop(TOKENIZER, ["a b"])
    return sampler.generate(
        build_model("llama"), ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, **settings
    )


def ask_vllm(*, method: str = "thin", **more: Any) -> RequestOptions:
    params: dict[str, Any] = {"extra_args": {"antislop": {"bans": ["a"]}}, "temperature": 1.0, "max_tokens": 16}
    params |= {"structured_outputs": None, "logprobs": None, "detokenize": True, "logprob_token_ids": None}
    return check_request(SimpleNamespace(**params | more), settings=EngineSettings.read({"method": method}))


def ask_server(method: EndpointMethod = "auto", logprobs: Logprobs = "raw", **settings: Any) -> object:
    features = ServerFeatures(server="vllm", has_ids=True, has_bias=True, logprobs=frozenset({logprobs}))
    return plan_method(method, Sampling(**settings), features)


def ask_server_for_json() -> object:
    backend = SimpleNamespace(_is_closing=False, active=0, _queue_length=1)
    request = SimpleNamespace(alternatives=None, schema="{}", lark=None, logit_bias=None)
    return asyncio.run(anext(UpstreamBackend.write(backend, request)))  # type: ignore[arg-type]


def grammar_of(library: str) -> SimpleNamespace:
    return SimpleNamespace(_backend=library)


BEAM = {"max_tokens": 1, "logprobs": 8, "detokenize": False}
"""How vLLM asks for the likeliest tokens of a beam."""
TRIES: dict[str, list[dict[str, Callable[[], object]]]] = {
    "beams": [{"": lambda: call(num_beams=2)}, {"": lambda: ask_vllm(**BEAM)}, {}],
    "greedy texts": [
        {"": lambda: call(do_sample=False)},
        {"": lambda: ask_vllm(temperature=0), '`method="reject"`': lambda: ask_vllm(temperature=0, method="reject")},
        {
            "": lambda: ask_server(temperature=0),
            '`method="reject"`': lambda: ask_server("reject", temperature=0),
            "`processed_logprobs`": lambda: ask_server(logprobs="drawn", temperature=0),
        },
    ],
    "JSON by a schema": [
        {"": lambda: Grammar.from_json_schema(SCHEMA, TOKENIZER)},
        {
            "": lambda: ask_vllm(structured_outputs=grammar_of("xgrammar")),
            "a library other than xgrammar": lambda: ask_vllm(structured_outputs=grammar_of("guidance")),
        },
        {"": ask_server_for_json},
    ],
    "`frequency_penalty`": [
        {"": lambda: call(logits_processor=[CountPenaltyLogitsProcessor(frequency=0.5)])},
        {"": lambda: ask_vllm(frequency_penalty=0.5)},
        {"": lambda: ask_server(frequency_penalty=0.5)},
    ],
}


def describe(tries: dict[str, Callable[[], object]]) -> str:
    """Return a cell of the table: what happens, and with what else the text is refused."""
    outcomes = {}
    for when, attempt in tries.items():
        try:
            attempt()
            outcomes[when] = "written"
        except InputError:
            outcomes[when] = "refused"
    others = [f"with {when}" for when, outcome in outcomes.items() if when and outcome == "refused"]
    return outcomes.get("", "–") + (f"; refused {', '.join(others)}" if others else "")


def test_the_page_of_limits_says_what_is_refused_where() -> None:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    rows = re.findall(r"^  \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", text, flags=re.MULTILINE)
    assert {row[0]: [*row[1:]] for row in rows} == {name: [*map(describe, ways)] for name, ways in TRIES.items()}
