"""The guide's table of what is exact where, held to the methods that the sampler chooses from what servers can do."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from itertools import product
from typing import Any, get_args

import httpx
import pytest
import torch

import antislop
import antislop.engines
import antislop.serve
from antislop.core.loop.sampling import PARTS, Sampling
from antislop.engines.endpoint.dialects import DIALECTS, LLAMA_CPP_SAMPLERS
from antislop.engines.endpoint.endpoint import ServerFeatures
from antislop.engines.endpoint.streamed_text import SERVER_TITLES, ExactMethod, plan_method
from antislop.errors import InputError
from tests.support.backends import run_server
from tests.support.documents import ROOT
from tests.support.served_streams import process
from tests.support.simulated_engine import EngineKind, SimulatedEngine
from tests.support.streaming import connect_directly, serve_streams

GUIDE = ROOT / "docs" / "guides" / "endpoints.md"
SERVERS: dict[str, tuple[EngineKind, dict[str, Any]]] = {
    "vLLM": ("vllm", {}),
    "vLLM, `processed_logprobs`": ("vllm", {"tells_drawn": True}),
    "llama.cpp": ("llama.cpp", {}),
    "other": ("openai", {}),
}
"""How the table names servers, and how they are simulated."""
SETTINGS = {
    "temperature 1": [Sampling()],
    "another temperature, up to 4": [Sampling(temperature=0.5), Sampling(temperature=4)],
    "a temperature above 4": [Sampling(temperature=4.1)],
    "`top_k`, `top_p`, `min_p`": [
        Sampling(top_k=40),
        Sampling(top_p=0.9),
        Sampling(min_p=0.05),
        Sampling(top_p=0.9, temperature=0.7),
    ],
    "`top_p` with `min_p`": [Sampling(top_p=0.9, min_p=0.05), Sampling(top_p=0.9, min_p=0.05, temperature=0.7)],
    "`typical_p`": [Sampling(typical_p=0.9)],
    "`repetition_penalty`": [Sampling(repetition_penalty=1.1), Sampling(repetition_penalty=1.1, temperature=0.7)],
    "greedy": [Sampling(temperature=0)],
    "`dry_multiplier`": [
        Sampling(dry_multiplier=0.8, dry_allowed_length=0),
        Sampling(dry_multiplier=0.8, dry_allowed_length=0, dry_base=3.0, dry_penalty_last_n=1, temperature=0.7),
    ],
    "`top_n_sigma`": [Sampling(top_n_sigma=1.0), Sampling(top_n_sigma=1.0, temperature=0.7)],
    "`min_keep`": [Sampling(min_p=0.3, min_keep=9), Sampling(top_p=0.4, min_keep=9, temperature=0.7)],
    "`xtc_probability`": [Sampling(xtc_probability=0.5), Sampling(xtc_probability=1.0, temperature=0.7)],
    "`frequency_penalty`, `presence_penalty`": [Sampling(frequency_penalty=0.5), Sampling(presence_penalty=0.5)],
    "`epsilon_cutoff`, `eta_cutoff`, `no_repeat_ngram_size`, `encoder_repetition_penalty`": [
        Sampling(epsilon_cutoff=0.01),
        Sampling(eta_cutoff=0.01),
        Sampling(no_repeat_ngram_size=3),
        Sampling(encoder_repetition_penalty=1.1),
    ],
}
"""How the table names settings."""


@lru_cache
def probe(name: str) -> ServerFeatures:
    kind, options = SERVERS[name]
    tokenizer = antislop.tiny_model()[1]
    engine = SimulatedEngine(lambda _: torch.zeros(len(tokenizer)), tokenizer, kind, **options)
    return asyncio.run(connect_directly(engine).probe())


def describe(sampling: Sampling, features: ServerFeatures) -> str:
    """Return the exact methods, those that auto takes in bold; a dash if there is none. † marks another order."""
    exact = []
    for method in get_args(ExactMethod):
        try:
            plan_method(method, sampling, features)
        except InputError:
            continue
        exact.append(method)
    if not exact:
        with pytest.raises(InputError):
            plan_method("auto", sampling, features)
        return "–"
    plan = plan_method("auto", sampling, features)
    taken = {name for name, takes in (("thin", plan.can_thin), ("bias", plan.can_bias)) if takes} or {"reject"}
    assert taken <= set(exact)
    mark = " †" if DIALECTS[features.server].cuts_min_p_first and sampling.top_p < 1 and sampling.min_p else ""
    return ", ".join(f"**{method}**" if method in taken else method for method in exact) + mark


def read_table() -> dict[str, dict[str, str]]:
    """Return the cells of the guide's table by setting and server."""
    lines = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    start = next(number for number, line in enumerate(lines) if "processed_logprobs" in line)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next((n for n, row in enumerate(rows) if len(row) != len(rows[0])), len(rows))
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:end]}


def test_the_guides_table_is_what_the_sampler_does() -> None:
    table = read_table()
    assert list(table) == [*SETTINGS]
    for server in SERVERS:
        features = probe(server)
        for setting, samplings in SETTINGS.items():
            cells = {describe(sampling, features) for sampling in samplings}
            assert cells == {table[setting][server]}, f"{setting} on {server}"


NO_LOGPROBS = "it needs the log-probabilities of the written tokens, which this server does not return"
CAUSES = {"other": "this server takes no logit_bias", "vLLM, `processed_logprobs`": NO_LOGPROBS}
"""Why greedy texts are not exact."""
NO_FIELD = "{name} can't be followed on {title}, whose requests lack that field: leave it out, or use llama.cpp"
REFUSALS = {
    "`typical_p`": NO_FIELD,
    "`dry_multiplier`": NO_FIELD,
    "`top_n_sigma`": NO_FIELD,
    "`min_keep`": NO_FIELD,
    "`xtc_probability`": NO_FIELD,
    "`epsilon_cutoff`, `eta_cutoff`, `no_repeat_ngram_size`, `encoder_repetition_penalty`": "{name} can't be followed "
    "on {title}, whose requests lack that field: leave it out, or use a model in this process",
    "`frequency_penalty`, `presence_penalty`": "{name} can't be exact on {title}, which counts the tokens of one "
    "answer, and the kept text is in the prompt after a rewind: leave it out, or use a model in this process",
    "`repetition_penalty`": "repetition_penalty can't be exact on {title}, which may not count the prompt, where the "
    "kept text is after a rewind: leave it out, or use vLLM or llama.cpp",
    "greedy": "greedy texts (do_sample=False) can't be exact on {title} here, because {cause}: sample, "
    "or use llama.cpp, or vLLM with its default --logprobs-mode",
}
"""What the sampler says where the table has a dash."""
DASHES = [(row, server) for row, cells in read_table().items() for server in cells if cells[server] == "–"]


@pytest.mark.parametrize(("setting", "server"), DASHES)
def test_a_dash_is_a_refusal_that_names_the_setting_the_reason_and_a_way_out(setting: str, server: str) -> None:
    features = probe(server)
    title = SERVER_TITLES[features.server]
    for sampling in SETTINGS[setting]:
        with pytest.raises(InputError) as caught:
            plan_method("auto", sampling, features)
        names = [name for name in sampling.in_effect if name != "temperature" and name in setting]
        name = names[0] if names else None
        assert str(caught.value) == REFUSALS[setting].format(title=title, cause=CAUSES.get(server), name=name)


def test_what_a_server_of_an_unknown_kind_can_not_do_exactly_is_refused_before_a_text_begins() -> None:
    tokenizer = antislop.tiny_model()[1]
    engine = SimulatedEngine(lambda _: torch.zeros(len(tokenizer)), tokenizer, "openai")
    with serve_streams(engine) as server:
        sampler = antislop.engines.EndpointSampler(antislop.AntiSlop(tokenizer, ["the"]), server.endpoint)
        for settings in ({"typical_p": 0.9}, {"repetition_penalty": 1.1}, {"do_sample": False}):
            with pytest.raises(InputError, match=rf"{next(iter(settings))}.* a server of an unknown kind"):
                list(sampler.generate_many(["The"], max_new_tokens=3, **settings))  # type: ignore[arg-type]
        assert all(body is None or body["max_tokens"] == 8 for _, body in server.requests), "the probe alone"


@pytest.mark.parametrize("server", ["vLLM", "llama.cpp"])
@pytest.mark.parametrize("sampling", [sampling for samplings in SETTINGS.values() for sampling in samplings])
def test_servers_draw_from_what_generate_draws_from_but_where_a_dagger_is(server: str, sampling: Sampling) -> None:
    logits = torch.linspace(3.0, -4.0, 60)
    features, kind = probe(server), SERVERS[server][0]
    if not sampling.do_sample or sampling.xtc_probability or describe(sampling, features) == "–":
        return  # the coin of XTC is in `test_dialects`
    engine = SimulatedEngine(lambda _: logits, antislop.tiny_model()[1], kind)
    asked = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
    asked |= {"typical_p": sampling.typical_p, "order": ["bias", *LLAMA_CPP_SAMPLERS] if kind == "llama.cpp" else None}
    asked |= {name: value for name, value in vars(sampling).items() if name.startswith(("dry_", "top_n_", "min_k"))}
    drawn = torch.as_tensor(next(engine.draw([1, 5], asked, count=1, seed=0)).drawn).exp()
    expected = process(logits, [1, 5], sampling)
    assert (float((drawn - expected).abs().sum()) > 0.01) == describe(sampling, features).endswith("†")


def test_every_setting_of_a_sampling_is_in_the_table() -> None:
    text = " ".join(read_table())
    assert [name for name in {*Sampling.limits} - {*PARTS} if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("server", SERVERS)
def test_several_settings_at_once_allow_what_each_of_them_allows(server: str) -> None:
    features = probe(server)

    def list_exact(sampling: Sampling) -> set[str]:
        return set(describe(sampling, features).replace("*", "").split(", ")) - {"–"}

    for temperature, top_p, typical_p, penalty in product((0.0, 1.0, 0.7, 5.0), (1.0, 0.9), (1.0, 0.9), (1.0, 1.1)):
        alone = [Sampling(temperature=temperature), Sampling(repetition_penalty=penalty)]
        if temperature:  # truncation changes no greedy text
            alone += [Sampling(top_p=top_p), Sampling(typical_p=typical_p)]
        together = Sampling(
            temperature=temperature,
            top_p=top_p if temperature else 1.0,
            typical_p=typical_p if temperature else 1.0,
            repetition_penalty=penalty,
        )
        assert list_exact(together) == set.intersection(*map(list_exact, alone)), together


@pytest.mark.parametrize("server", ["vLLM", "llama.cpp"])
def test_a_server_in_front_names_the_order_that_it_can_not_keep(server: str) -> None:
    kind, options = SERVERS[server]
    tokenizer = antislop.tiny_model()[1]
    logits = torch.zeros(len(tokenizer))
    body = {"prompt": "A cat", "max_tokens": 2, "sampler_order": []}
    with serve_streams(SimulatedEngine(lambda _: logits, tokenizer, kind, **options)) as upstream:
        endpoint = antislop.engines.Endpoint(f"{upstream.url}/v1")
        with run_server(antislop.serve.app(None, tokenizer, upstream=endpoint)) as address:
            for settings in ({"top_p": 0.9, "min_p": 0.1}, {"top_p": 0.9}, {"min_p": 0.1}):
                answer = httpx.post(f"{address}/v1/completions", json={**body, **settings}, timeout=60)
                assert answer.status_code == 200, answer.text
                expected = "sampler_order" if len(settings) == 2 and server == "vLLM" else None
                assert answer.headers.get("X-Antislop-Ignored-Fields") == expected
