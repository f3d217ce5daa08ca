"""The settings by which tokens are drawn: their ranges, and what becomes of each at those who pass them on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest

from antislop.cli.options import DrawingOptions, GenerationOptions
from antislop.datasets import vllm_maker
from antislop.decoding.sampling import LIMITS, Sampling
from antislop.endpoint.dialects import DIALECTS
from antislop.endpoint.sampler import EndpointSettings
from antislop.endpoint.streams import Server, StreamRequest
from antislop.errors import InputError
from antislop.server.bodies.fields import CompletionBody, read_body
from antislop.server.request_errors import RequestError

CHANGED = Sampling(temperature=0.7, min_p=0.1, top_p=0.9, top_k=5, typical_p=0.8, repetition_penalty=1.3)
WITHOUT_TYPICAL = {name: value for name, value in vars(CHANGED).items() if name != "typical_p"}


def ask(server: Server) -> Any:
    return DIALECTS[server](StreamRequest(prompt=[1], max_tokens=1, seed=0, sampling=CHANGED)).ask()


CONSUMERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "generate": (lambda: CHANGED.generate_arguments, vars(CHANGED)),
    "dataset": (lambda: GenerationOptions(**WITHOUT_TYPICAL).settings, WITHOUT_TYPICAL),
    "antislop generate": (lambda: DrawingOptions(**WITHOUT_TYPICAL).settings, WITHOUT_TYPICAL),
    "server": (lambda: vars(read_body(CompletionBody, vars(CHANGED))[0].sampling), vars(CHANGED)),
    "endpoint": (lambda: vars(EndpointSettings.of(max_new_tokens=1, **vars(CHANGED)).sampling), vars(CHANGED)),
    "request to vLLM": (lambda: ask("vllm"), WITHOUT_TYPICAL),
    "request to SGLang": (lambda: ask("sglang")["sampling_params"], WITHOUT_TYPICAL),
    "request to others": (lambda: ask("openai"), WITHOUT_TYPICAL | {"repeat_penalty": 1.3}),
    "request to llama.cpp": (
        lambda: ask("llama.cpp") | {"repetition_penalty": None},
        vars(CHANGED) | {"repeat_penalty": 1.3, "repetition_penalty": None},
    ),
    "vLLM": (lambda: vllm_maker._make_params(WITHOUT_TYPICAL, seed=1, is_banned=True), WITHOUT_TYPICAL),
}
"""What each consumer makes of the settings, and what it is to be."""


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_each_consumer_has_every_setting_under_its_name_there(consumer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    make, expected = CONSUMERS[consumer]
    known = {*LIMITS, "repeat_penalty"}
    assert {name: value for name, value in make().items() if name in known} == expected


def test_a_setting_that_vllm_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    with pytest.raises(InputError, match="vLLM has no setting typical_p: leave it out"):
        vllm_maker._make_params({"typical_p": 0.8}, seed=1, is_banned=True)


OUTSIDE = {
    "temperature": ((-0.1, 100.1, inf, nan), "0 to 100 was expected"),
    "min_p": ((-0.1, 1.1, nan), "a probability up to 1 was expected"),
    "top_p": ((0.0, 1.1, nan), "a probability up to 1 was expected"),
    "top_k": ((-1,), "a number of tokens was expected, 0 for all"),
    "typical_p": ((0.0, 1.1, nan), "a probability up to 1 was expected"),
    "repetition_penalty": ((-1.0, 0.0, inf, nan), "a finite number above 0 was expected"),
}
READ_OTHERWISE = {("top_p", 0.0), ("top_k", -1)}
"""What clients of other servers send for the likeliest token, and for all tokens."""


@pytest.mark.parametrize("name", LIMITS)
def test_a_value_out_of_range_is_refused_by_everyone(name: str) -> None:
    values, expected = OUTSIDE[name]
    for value in values:
        for make in (Sampling, DrawingOptions, lambda **one: EndpointSettings.of(max_new_tokens=1, **one)):
            if make is not DrawingOptions or name != "typical_p":  # an option that the command line lacks
                with pytest.raises(InputError) as caught:
                    make(**{name: value})
                assert str(caught.value) == f"{name} is {value!r}; {expected}"
        if (name, value) not in READ_OTHERWISE:
            with pytest.raises(RequestError, match=f"{name} is "):
                read_body(CompletionBody, {name: value})


@pytest.mark.parametrize("name", LIMITS)
def test_the_ends_of_a_range_and_the_default_are_in_it(name: str) -> None:
    limits = LIMITS[name]
    for value in (limits.lowest, limits.highest):
        is_in = value < inf and not (limits.is_open and value == limits.lowest)
        assert limits.has(value) == is_in
    body = read_body(CompletionBody, {})[0]
    assert getattr(body.sampling, name) == getattr(body, name) == getattr(Sampling(), name)


def test_only_settings_that_change_what_is_drawn_are_in_effect() -> None:
    assert Sampling().in_effect == Sampling(temperature=0, top_k=3, typical_p=0.5).in_effect == {}
    assert CHANGED.in_effect == vars(CHANGED)
    assert CHANGED.truncates
    assert not Sampling(temperature=0, top_k=3).truncates
    processors = EndpointSettings(max_new_tokens=1, sampling=CHANGED).make_processors()
    assert len(processors) == len(vars(CHANGED))


def test_a_journal_has_four_settings_and_those_that_were_passed() -> None:
    always = {"do_sample": True, "temperature": 1.0, "min_p": 0.05, "top_p": 1.0, "top_k": 0}
    passed = {"repetition_penalty": 1.0}  # which replaces the model's own penalty
    assert GenerationOptions().settings == {"max_new_tokens": 300, **always}
    assert GenerationOptions(**passed).settings == {"max_new_tokens": 300, **always, **passed}
    assert GenerationOptions(temperature=0.0, top_k=3).settings == {"max_new_tokens": 300, "do_sample": False}
    assert DrawingOptions(greedy=True, min_p=0.1).settings == {"do_sample": False, **passed}
