"""Requests of real clients and their presets are understood; a sampler is followed, or named in a header."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import LogitsProcessor, MinPLogitsWarper, TopPLogitsWarper

import antislop
import antislop.serve
from antislop.core.hf.private import response_template_for
from antislop.core.loop.sampling import Sampling, seed_of
from antislop.serve.application import make_app
from antislop.serve.bodies.fields import CompletionBody, read_body
from antislop.serve.request_errors import RequestError
from antislop.steer import (
    CountPenaltyLogitsProcessor,
    DryLogitsProcessor,
    TopNSigmaLogitsProcessor,
    XtcLogitsProcessor,
    find_breakers,
)
from tests.support.backends import SlowBackend, play_tokens, run_server, send
from tests.support.depth import first_quick

MODEL, TOKENIZER = antislop.tiny_model()
BANS = ["the", "of"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with run_server(antislop.serve.app(MODEL, TOKENIZER, bans=BANS)) as url:
        yield url


def dry(*breakers: str, **options: Any) -> LogitsProcessor:
    return DryLogitsProcessor(2.0, breakers=find_breakers(TOKENIZER, breakers), **options)


EACH: dict[str, tuple[dict[str, Any], dict[str, Any], list[LogitsProcessor]]] = {
    "penalties": (
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {},
        [CountPenaltyLogitsProcessor(presence=1.5, frequency=0.5)],
    ),
    "DRY, breakers as JSON in a string, a range of 0": (
        {"dry_multiplier": 2, "dry_allowed_length": 0, "dry_sequence_breakers": '[",", "."]', "dry_penalty_last_n": 0},
        {},
        [dry(",", ".", allowed_length=0)],
    ),
    "DRY without breakers, by TabbyAPI's name": (
        {"dry_multiplier": 2, "dry_allowed_length": 0, "dry_base": 1.1, "dry_sequence_breakers": [], "dry_range": 20},
        {},
        [dry(allowed_length=0, base=1.1, penalty_last_n=20)],
    ),
    "top-n-sigma": ({"nsigma": 1.5, "temperature": 1.5}, {"temperature": 1.5}, [TopNSigmaLogitsProcessor(1.5)]),
    "XTC": ({"xtc_probability": 0.5, "xtc_threshold": 0.05}, {}, [XtcLogitsProcessor(0.5, 0.05)]),
    "min-keep": (
        {"top_p": 0.2, "min_keep": 4, "min_p": 0.7, "xtc_probability": 1, "xtc_threshold": 0.05},
        {"top_p": None, "min_p": None},
        [
            TopPLogitsWarper(0.2, min_tokens_to_keep=4),
            MinPLogitsWarper(0.7, min_tokens_to_keep=4),
            XtcLogitsProcessor(1, 0.05, min_tokens_to_keep=4),
        ],
    ),
    "all, and temperature, greedily": (
        {"dry_multiplier": 2, "dry_allowed_length": 1, "presence_penalty": 1, "xtc_probability": 1, "do_sample": False},
        {"do_sample": False},
        [CountPenaltyLogitsProcessor(presence=1.0), dry("\n", ":", '"', "*", allowed_length=1)],
    ),
    "generate's own": (
        {"eta_cutoff": 10.78, "epsilon_cutoff": 3, "no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.3},
        {
            "eta_cutoff": 0.001078,
            "epsilon_cutoff": 0.0003,
            "no_repeat_ngram_size": 2,
            "encoder_repetition_penalty": 1.3,
        },
        [],
    ),
}
"""Fields of a body, and the arguments and processors of `generate` that mean the same."""


@pytest.mark.parametrize("name", first_quick(EACH, 2))
def test_a_request_is_what_the_sampler_writes_with_the_processors(name: str, address: str) -> None:
    fields, arguments, processors = EACH[name]
    body = {"prompt": "The old house", "max_tokens": 60, "seed": 5, "banned_strings": [" was"]}
    answers = [httpx.post(f"{address}/v1/completions", json={**body, **more}, timeout=60) for more in (fields, {})]
    sampler = antislop.AntiSlop(TOKENIZER, [*BANS, antislop.Ban(" was", edges="anywhere")])
    settings = Sampling().generate_arguments | {"max_new_tokens": 60, **arguments}
    prompts, seeds = ["The old house"], [seed_of(5, 0) % 2**63]
    (done,) = sampler.generate_many(MODEL, prompts, seeds=seeds, logits_processor=processors, **settings)
    text, plain = (answer.json()["choices"][0]["text"] for answer in answers)
    assert text == done.text
    assert text != plain, "the setting has no effect on this text"
    assert done.report.rewinds > 0
    assert "X-Antislop-Ignored-Fields" not in answers[0].headers


@pytest.mark.parametrize(
    ("name", "sent", "meant"),
    [
        *(("seed", -1, None), ("top_k", -1, 0), ("top_n_sigma", -1, 0.0), ("dry_penalty_last_n", 0, -1)),
        *(("logprobs", False, None), ("logprobs", 0, 0)),
    ],
)
def test_a_value_is_read_as_other_servers_mean_it(name: str, sent: Any, meant: Any) -> None:
    body = read_body(CompletionBody, {"dry_multiplier": 1, name: sent})[0]
    assert (getattr(body, name), type(getattr(body, name))) == (meant, type(meant))


def test_parts_of_what_is_off_are_not_read() -> None:
    body = {"dry_base": 0.0, "dry_allowed_length": -3, "dry_sequence_breakers": "[", "xtc_threshold": 7}
    assert read_body(CompletionBody, body)[0].sampling == Sampling()
    for name in body:
        with pytest.raises(RequestError, match=f"^{name} is "):
            read_body(CompletionBody, {"dry_multiplier": 1, "xtc_probability": 1, name: body[name]})


WARM = {"temperature": 0.7, "top_k": 9, "top_p": 0.9}
ORDERS: list[tuple[dict[str, Any], bool]] = [
    ({"temperature_last": False}, True),
    ({"temperature_last": True}, False),
    ({"temperature_last": True, "temperature": 1}, True),
    ({"temperature_last": True, "top_k": 0, "top_p": 1, "nsigma": 1}, True),
    ({"temperature_last": True, "top_k": 0, "top_p": 1, "xtc_probability": 0.5}, False),
    ({"sampler_order": []}, True),
    ({"sampler_order": [6, 0, 1, 3, 4, 2, 5]}, False),
    ({"sampler_order": [5, 6, 0, 1, 2, 3, 4]}, True),
    ({"sampler_order": [5, 6, 0, 1, 2, 3, 4], "rep_pen": 1.1}, False),
    ({"sampler_order": "6,0"}, False),
    ({"sampler_order": [{}]}, False),
    (
        {"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "xtc", "top_p", "min_p", "temperature"]},
        False,
    ),
    ({"samplers": ["penalties", "dry", "top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typ_p", "xtc"]}, True),
    ({"sampler_priority": ["presence_penalty", "dry", "temperature", "quadratic_sampling", "top_k", "top_p"]}, True),
    ({"sampler_priority": ["temperature", "top_k", "top_p", "min_p", "mirostat", "dry"], "dry_multiplier": 1}, False),
    ({"samplers_priorities": ["penalties", "temperature", "top_nsigma", "top_p_top_k", "min_p"]}, True),
    ({"samplers_priorities": ["temperature", "top_nsigma", "top_p_top_k"], "nsigma": 1}, False),
]


@pytest.mark.parametrize(("fields", "is_ours"), ORDERS, ids=str)
def test_an_order_is_followed_if_it_is_ours_and_named_otherwise(fields: dict[str, Any], is_ours: bool) -> None:
    ignored = read_body(CompletionBody, WARM | fields)[1]
    assert ignored == ([] if is_ours else [next(iter(fields))])


KOBOLD = [6, 0, 1, 3, 4, 2, 5]
PRESETS: dict[str, dict[str, Any]] = {
    "Asterism": {"temp": 1.68, "top_p": 0.17, "top_k": 77, "rep_pen": 1.02, "top_a": 0.42, "tfs": 0.97},
    "Big O": {"temp": 0.87, "top_p": 0.99, "top_k": 85, "typical_p": 0.68, "rep_pen": 1.01, "tfs": 0.68},
    "Contrastive Search": {"top_k": 4, "penalty_alpha": 0.6, "do_sample": False},
    "Default": {"top_p": 0.95, "min_p": 0.01, "rep_pen": 1.1},
    "Deterministic": {"temp": 0, "top_p": 0, "top_k": 1, "do_sample": False},
    "InfermaticAI": {"temp": 0.7, "top_p": 0.95, "top_k": 40, "typical_p": 0.95, "rep_pen": 1.2, "rep_pen_range": 1024},
    "Kobold (Godlike)": {"temp": 0.7, "top_p": 0.5, "typical_p": 0.19, "rep_pen": 1.1},
    "Kobold (Liminal Drift)": {"temp": 0.66, "typical_p": 0.6, "rep_pen": 1.1},
    "Miro Bronze": {"temp": 1.06, "mirostat_mode": 2, "mirostat_tau": 9.61, "mirostat_eta": 1},
    "Mixtral8x7B-Instruct0.1-Preset1.0": {"temp": 1.5, "min_p": 0.1, "rep_pen_range": 2048, "temperature_last": False},
    "Naive": {"temp": 0.7, "top_p": 0.85, "top_k": 50},
    "Neutral": {},
    "NovelAI (Best Guess)": {"temp": 0.8, "top_p": 0.9, "top_k": 100, "rep_pen": 1.15},
    "NovelAI (Decadence)": {"temp": 1.99, "top_k": 100, "typical_p": 0.97},
    "NovelAI (Ouroboros)": {"temp": 1.07, "top_k": 100, "rep_pen": 1.05},
    "NovelAI (Sphinx Moth)": {"temp": 1.99, "top_p": 0.18, "top_k": 30, "rep_pen": 1.15},
    "NovelAI (Storywriter)": {"temp": 0.72, "top_p": 0.73, "rep_pen": 1.1},
    "Space Alien": {"temp": 1.31, "top_p": 0.29, "top_k": 72, "rep_pen": 1.09},
    "TFS-with-Top-A": {"temp": 0.7, "rep_pen": 1.15, "top_a": 0.2, "tfs": 0.95},
    "Titanic": {
        "temp": 1.01,
        "top_p": 0.21,
        "top_k": 91,
        "rep_pen": 1.21,
        "top_a": 0.75,
        "eta_cutoff": 10.78,
        "encoder_rep_pen": 1.07,
    },
    "Universal-Creative": {"temp": 1.5, "min_p": 0.1, "temperature_last": False},
    "Universal-Light": {"temp": 1.25, "min_p": 0.1, "temperature_last": False},
    "Universal-Super-Creative": {"temp": 2, "min_p": 0.1, "temperature_last": False},
    "Yara": {"temp": 0.82, "top_p": 0.21, "top_k": 72, "rep_pen": 1.19},
    "simple-proxy-for-tavern": {"temp": 0.65, "top_p": 0.47, "top_k": 42, "rep_pen": 1.18},
    "a preset of a user": {
        "min_p": 0.02,
        "temperature_last": False,
        "dry_multiplier": 0.8,
        "xtc_probability": 0.5,
        "nsigma": 1.5,
        "freq_pen": 0.1,
        "presence_pen": 0.2,
    },
}
"""What the text completion presets that SillyTavern comes with change of `Neutral`, under their names there."""
NAMES = {
    "temp": ("temperature",),
    "typical_p": ("typical_p", "typical"),
    "rep_pen": ("repetition_penalty", "rep_pen", "repeat_penalty"),
    "rep_pen_range": ("rep_pen_range", "repetition_penalty_range", "repeat_last_n"),
    "mirostat_mode": ("mirostat_mode", "mirostat"),
    "nsigma": ("nsigma", "top_n_sigma"),
    "freq_pen": ("frequency_penalty",),
    "presence_pen": ("presence_penalty",),
    "encoder_rep_pen": ("encoder_repetition_penalty",),
}
"""What SillyTavern calls them in a request, if that differs."""
RECORDED = Path(__file__).parent / "recorded_requests.jsonl"
RECORDS = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
"""`TabbyAPI` and `KoboldCpp` were not recorded: their bodies have each field that those servers define. A `note` says
where a body comes from that was not recorded as a whole."""
BODIES = {
    client: next(r["body"] for r in RECORDS if r["client"] == f"SillyTavern 1.19.0, {client}, preset Default")
    for client in ("TabbyAPI", "KoboldCpp")
}
OF_WEBUI = {"do_sample", "penalty_alpha", "eta_cutoff", "encoder_rep_pen"}
"""What it sends to text-generation-webui alone."""
LACKING = {"top_a", "tfs", "penalty_alpha", "mirostat", "mirostat_mode", *NAMES["rep_pen_range"]}
"""What is named in the header."""


def make_body(client: str, preset: dict[str, Any]) -> dict[str, Any]:
    """Return what SillyTavern sends to a kind of server."""
    neutral = {"temp": 1, "top_p": 1, "top_k": 0, "typical_p": 1, "min_p": 0, "rep_pen": 1, "rep_pen_range": 0}
    values = neutral | {"temperature_last": True} | preset
    order = {"sampler_order": KOBOLD if values["temperature_last"] else [5, 6, 0, 1, 2, 3, 4]}
    if client == "KoboldCpp":
        values = {name: value for name, value in values.items() if name != "temperature_last"} | order
    if client != "text-generation-webui":
        values = {name: value for name, value in values.items() if name not in OF_WEBUI}
    named = {other: value for name, value in values.items() for other in NAMES.get(name, (name,))}
    return {**BODIES["KoboldCpp" if client == "KoboldCpp" else "TabbyAPI"], **named}


@pytest.mark.parametrize("client", ["TabbyAPI", "KoboldCpp", "text-generation-webui"])
@pytest.mark.parametrize("name", PRESETS)
def test_the_presets_of_sillytavern_run_without_a_refusal(name: str, client: str) -> None:
    body = make_body(client, PRESETS[name])
    backend = SlowBackend(TOKENIZER, lambda _: play_tokens([60, 61]), context_length=4096)
    answer = send(make_app(backend), json=body)
    assert answer.status_code == 200, answer.text
    ignored = set(filter(None, answer.headers.get("X-Antislop-Ignored-Fields", "").split(", ")))
    lacking = {other for key in PRESETS[name] for other in NAMES.get(key, (key,))} & LACKING & {*body}
    sampling = backend.written[0].sampling
    assert lacking <= ignored
    assert not ignored & vars(sampling).keys()
    if body["temperature"] not in (0, 1) and sampling.truncates and PRESETS[name].get("temperature_last", True):
        assert ignored & {"temperature_last", "sampler_order"}
    if body["temperature"] in (0, 1) or not PRESETS[name].get("temperature_last", True):
        assert not ignored & {"temperature_last", "sampler_order"}
    assert sampling.repetition_penalty == body["repetition_penalty"]
    assert sampling.dry_multiplier == PRESETS[name].get("dry_multiplier", 0)


NEUTRAL = vars(Sampling())
CHATTY = antislop.tiny_model()[1]
CHATTY.chat_template = (
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments }}]{% endfor %}{{ '\\n' }}"
    "{% endfor %}{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CHATTY.response_template = response_template_for("qwen3")


def make_backend() -> SlowBackend:
    return SlowBackend(CHATTY, lambda request: play_tokens([60, 61]), bans=["own ban"], context_length=4096)


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
    answer = send(make_app(backend, lists={"noir": ["noir ban"]}), path=record["route"], json=record["body"])
    assert answer.status_code == record.get("status", 200), answer.text
    assert describe(backend, answer) == record["expected"]


def test_sillytavern_connects_and_learns_the_context() -> None:
    """As TabbyAPI by the first two routes, as KoboldCpp by the others."""
    app, routes = make_app(make_backend()), ("/v1/model/list", "/v1/model", "/v1/models", "/props")
    listed, described, models, properties = (send(app, "GET", route).json() for route in routes)
    assert listed == models and [card["id"] for card in listed["data"]] == [described["id"]]
    assert described["parameters"]["max_seq_len"] == properties["default_generation_settings"]["n_ctx"] == 4096
    assert described["parameters"]["prompt_template_content"] == properties["chat_template"] == CHATTY.chat_template
