"""The settings by which tokens are drawn: their ranges, and what becomes of each at those who pass them on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest

from antislop.cli.options import DrawingOptions, GenerationOptions
from antislop.core.loop.sampling import PARTS, Sampling
from antislop.datasets import vllm_maker
from antislop.engines.endpoint.dialects import DIALECTS
from antislop.engines.endpoint.endpoint import Server, StreamRequest
from antislop.engines.endpoint.sampler import EndpointSettings
from antislop.errors import InputError
from antislop.serve.bodies.fields import CompletionBody, read_body
from antislop.serve.request_errors import RequestError
from antislop.steer.samplers import SamplerMaker

CHANGED = Sampling(
    temperature=0.7,
    min_p=0.1,
    top_p=0.9,
    top_k=5,
    typical_p=0.8,
    repetition_penalty=1.3,
    encoder_repetition_penalty=1.1,
    no_repeat_ngram_size=4,
    epsilon_cutoff=0.0003,
    eta_cutoff=0.0004,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    dry_multiplier=0.8,
    dry_base=2.0,
    dry_allowed_length=3,
    dry_penalty_last_n=64,
    dry_sequence_breakers=("\n", "."),
    top_n_sigma=1.5,
    xtc_probability=0.25,
    xtc_threshold=0.2,
    min_keep=3,
)
OLDEST = {name: getattr(CHANGED, name) for name in ("temperature", "min_p", "top_p", "top_k", "repetition_penalty")}
COUNTING = {"presence_penalty": 0.5, "frequency_penalty": -0.25}
OWN = {name: value for name, value in vars(CHANGED).items() if name.startswith(("dry_", "top_n_", "xtc_", "min_k"))}
NO_OPTIONS = {"typical_p", "encoder_repetition_penalty", "no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff"}
"""Settings that the command line lacks."""
OPTIONS = {
    name.replace("breakers", "breaker"): list(value) if isinstance(value, tuple) else value
    for name, value in vars(CHANGED).items()
    if name not in NO_OPTIONS
}
STORED = OLDEST | COUNTING | OWN | {"dry_sequence_breakers": ["\n", "."]}
"""What a journal has of them."""
CLIENTS = vars(CHANGED) | {"epsilon_cutoff": 3.0, "eta_cutoff": 4.0, "dry_sequence_breakers": '["\\n", "."]'}
"""How clients send them."""
OFF = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


def ask(server: Server) -> Any:
    return DIALECTS[server](StreamRequest(prompt=[1], max_tokens=1, seed=0, sampling=CHANGED)).ask()


def describe_samplers(sampling: Sampling) -> dict[str, Any]:
    """Return the attributes of the processors under the names of the settings."""
    asked: list[Any] = []
    count, dry, sigma, xtc, keep = (
        vars(each) for each in SamplerMaker(lambda found: asked.append(found) or {}).make(sampling)
    )
    return {
        "presence_penalty": count["presence"],
        "frequency_penalty": count["frequency"],
        "dry_multiplier": dry["_multiplier"],
        "dry_base": dry["_base"],
        "dry_allowed_length": dry["_allowed_length"],
        "dry_penalty_last_n": dry["_last_n"],
        "dry_sequence_breakers": asked[0],
        "top_n_sigma": sigma["_n"],
        "xtc_probability": xtc["_probability"],
        "xtc_threshold": xtc["_threshold"],
        "min_keep": keep["count"],
    }


CONSUMERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "generate": (
        lambda: CHANGED.generate_arguments,
        {name: value for name, value in vars(CHANGED).items() if name not in COUNTING | OWN},
    ),
    "processors": (lambda: describe_samplers(CHANGED), COUNTING | OWN | {"dry_sequence_breakers": ("\n", ".")}),
    "dataset": (lambda: GenerationOptions(**OPTIONS).settings, STORED),
    "antislop generate": (lambda: DrawingOptions(**OPTIONS).settings, STORED),
    "server": (lambda: vars(read_body(CompletionBody, CLIENTS)[0].sampling), vars(CHANGED)),
    "endpoint": (lambda: vars(EndpointSettings.of(max_new_tokens=1, **vars(CHANGED)).sampling), vars(CHANGED)),
    "request to vLLM": (lambda: ask("vllm"), OLDEST | OFF),
    "request to others": (lambda: ask("openai"), OLDEST | OFF | {"repeat_penalty": 1.3}),
    "request to llama.cpp": (
        lambda: ask("llama.cpp") | {"repetition_penalty": None},
        OLDEST | OFF | OWN | {"typical_p": 0.8, "repeat_penalty": 1.3, "repetition_penalty": None},
    ),
    "vLLM": (lambda: vllm_maker._make_params({**OLDEST, **COUNTING}, seed=1, is_banned=True), OLDEST | COUNTING),
}
"""What each consumer makes of the settings, and what it is to be."""


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_each_consumer_has_every_setting_under_its_name_there(consumer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    make, expected = CONSUMERS[consumer]
    known = {*Sampling.limits, "repeat_penalty"}
    assert {name: value for name, value in make().items() if name in known} == expected


@pytest.mark.parametrize(
    "name", ["typical_p", "dry_multiplier", "top_n_sigma", "xtc_probability", "eta_cutoff", "min_keep"]
)
def test_a_setting_that_vllm_lacks_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    with pytest.raises(InputError, match=f"vLLM has no setting {name}: leave it out"):
        vllm_maker._make_params({"top_p": 0.5, name: getattr(CHANGED, name)}, seed=1, is_banned=True)


OUTSIDE = {
    "temperature": ((-0.1, 100.1, inf, nan), "0 to 100 was expected"),
    "min_p": ((-0.1, 1.1, nan), "a probability up to 1 was expected"),
    "top_p": ((0.0, 1.1, nan), "a probability up to 1 was expected"),
    "top_k": ((-1,), "a number of tokens was expected, 0 for all"),
    "typical_p": ((0.0, 1.1, nan), "a probability up to 1 was expected"),
    "repetition_penalty": ((-1.0, 0.0, inf, nan), "a finite number above 0 was expected"),
    "encoder_repetition_penalty": ((-1.0, 0.0, inf, nan), "a finite number above 0 was expected"),
    "no_repeat_ngram_size": ((-1,), "a number of tokens was expected, 0 for all"),
    "epsilon_cutoff": ((-0.1, 1.0, nan), "0 to 0.99 was expected"),
    "eta_cutoff": ((-0.1, 1.0, nan), "0 to 0.99 was expected"),
    "presence_penalty": ((-101.0, 101.0, inf, nan), "-100 to 100 was expected"),
    "frequency_penalty": ((-101.0, 101.0, inf, nan), "-100 to 100 was expected"),
    "dry_multiplier": ((-0.1, 101.0, inf, nan), "0 to 100 was expected"),
    "dry_base": ((0.9, 101.0, inf, nan), "1 to 100 was expected"),
    "dry_allowed_length": ((-1,), "a number of tokens was expected"),
    "dry_penalty_last_n": ((-2,), "a number of tokens was expected, -1 for all"),
    "dry_sequence_breakers": ((("x",) * 65,), "at most 64 were expected"),
    "top_n_sigma": ((-0.1, 101.0, inf, nan), "0 to 100 was expected"),
    "xtc_probability": ((-0.1, 1.1, nan), "a probability up to 1 was expected"),
    "xtc_threshold": ((-0.1, 1.1, nan), "a probability up to 1 was expected"),
    "min_keep": ((-1,), "a number of tokens was expected, 0 for no minimum"),
}
READ_OTHERWISE = {("top_p", 0.0), ("top_k", -1), ("epsilon_cutoff", 1.0), ("eta_cutoff", 1.0)}
"""What clients of other servers send for the likeliest token, for all tokens, and in units of 0.0001."""


@pytest.mark.parametrize("name", Sampling.limits)
def test_a_value_out_of_range_is_refused_by_everyone(name: str) -> None:
    values, expected = OUTSIDE[name]
    for value in values:
        for make in (Sampling, DrawingOptions, lambda **one: EndpointSettings.of(max_new_tokens=1, **one)):
            if make is not DrawingOptions or name not in NO_OPTIONS:
                option = name.replace("breakers", "breaker") if make is DrawingOptions else name
                with pytest.raises(InputError) as caught:
                    make(**{option: value})
                assert str(caught.value) == f"{name} is {value!r}; {expected}"
        if (name, value) not in READ_OTHERWISE:
            with pytest.raises(RequestError, match=f"{name} is "):
                read_body(CompletionBody, {PARTS.get(name, name): 0.5, name: value})


@pytest.mark.parametrize("name", Sampling.limits)
def test_the_ends_of_a_range_and_the_default_are_in_it(name: str) -> None:
    limits = Sampling.limits[name]
    for value in (limits.lowest, limits.highest):
        is_in = value < inf and not (limits.is_open and value == limits.lowest)
        assert limits.has(value) == is_in
    body = read_body(CompletionBody, {})[0]
    own, other = getattr(body.sampling, name), getattr(body, name)
    assert own == getattr(Sampling(), name) == (tuple(other) if isinstance(other, list) else other)


def test_only_settings_that_change_what_is_drawn_are_in_effect() -> None:
    assert Sampling().in_effect == Sampling(temperature=0, top_k=3, typical_p=0.5).in_effect == {}
    assert CHANGED.in_effect == vars(CHANGED)
    assert CHANGED.truncates
    assert not Sampling(temperature=0, top_k=3).truncates
    assert Sampling(dry_base=3, xtc_threshold=0.3, min_keep=5).in_effect == {}, "parts of what is off"
    assert Sampling(min_p=0.1, min_keep=1).in_effect == Sampling(min_p=0.1).in_effect, "one token is always left"
    assert Sampling(min_p=0.1, min_keep=2).in_effect == {"min_p": 0.1, "min_keep": 2}
    followed = replace(CHANGED, presence_penalty=0.0, frequency_penalty=0.0)
    processors = SamplerMaker(lambda _: {}).make_all(followed)
    assert [type(each).__name__ for each in processors] == [
        "RepetitionPenaltyLogitsProcessor",
        "DryLogitsProcessor",
        "TopNSigmaLogitsProcessor",
        "XtcLogitsProcessor",  # which `Settings` moves to the end
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
    ]


def test_a_journal_has_four_settings_and_those_that_were_passed() -> None:
    always = {"do_sample": True, "temperature": 1.0, "min_p": 0.05, "top_p": 1.0, "top_k": 0}
    passed = {"repetition_penalty": 1.0}  # which replaces the model's own penalty
    assert GenerationOptions().settings == {"max_new_tokens": 300, **always}
    assert GenerationOptions(**passed).settings == {"max_new_tokens": 300, **always, **passed}
    assert GenerationOptions(temperature=0.0, top_k=3).settings == {"max_new_tokens": 300, "do_sample": False}
    assert DrawingOptions(greedy=True, min_p=0.1).settings == {"do_sample": False, **passed}
