"""One argument, by which an engine writes under bans. `EngineArgs` is pretended; `test_inside_vllm` has a real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from antislop.engines.vllm import banning
from antislop.engines.vllm.plugin import register
from antislop.errors import InputError

OWN = "antislop.engines.vllm.BanningScheduler"


@dataclass
class EngineArgs:
    """As vLLM's, as far as bans go."""

    scheduler_cls: Any = None
    logits_processors: list[Any] | None = None
    logprobs_mode: str = "raw_logprobs"
    additional_config: Any = field(default_factory=dict)

    def create_engine_config(self, *args: Any) -> tuple[Any, ...]:
        return (self.scheduler_cls, self.logits_processors, self.logprobs_mode, *args)


@pytest.fixture(autouse=True)
def engine_args(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registered with vLLM, twice, as it may happen."""
    made = EngineArgs.create_engine_config
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", SimpleNamespace(EngineArgs=EngineArgs))
    monkeypatch.setitem(sys.modules, "antislop.engines.vllm.check", SimpleNamespace())  # imports vLLM
    register.cache_clear()
    register()
    register()
    yield
    EngineArgs.create_engine_config = made  # type: ignore[method-assign]


@pytest.mark.parametrize("options", [{}, {"method": "reject"}, {"bans": ["a"]}, {"bans": ["a"], "on_greedy": "pass"}])
def test_one_argument_is_as_good_as_all_of_them(options: dict[str, Any]) -> None:
    one = EngineArgs(additional_config={"antislop": options})
    assert one.create_engine_config() == EngineArgs(**banning(**options)).create_engine_config()
    assert one.scheduler_cls == OWN


@pytest.mark.parametrize("config", [{}, {"other": {"bans": ["a"]}}, object()])
def test_an_engine_that_does_not_ask_for_bans_gets_what_it_asked_for(config: Any) -> None:
    assert EngineArgs(additional_config=config).create_engine_config("usage") == (None, None, "raw_logprobs", "usage")


def test_a_release_that_makes_its_configuration_elsewhere_still_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", SimpleNamespace(EngineArgs=object))
    register.cache_clear()
    with pytest.warns(UserWarning, match="takes bans by all arguments of antislop.engines.vllm.banning alone"):
        register()


def test_what_an_engine_was_given_stays() -> None:
    given = EngineArgs(OWN, ["theirs:Processor"], "processed_logits", {"antislop": {}})
    assert given.create_engine_config() == (
        OWN,
        ["theirs:Processor", "antislop.engines.vllm:CheckRequestBans"],
        "processed_logits",
    )
    again = EngineArgs(**banning(["a"]))
    assert (
        again.create_engine_config()
        == again.create_engine_config()
        == (OWN, ["antislop.engines.vllm:CheckBans"], "processed_logprobs")
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"scheduler_cls": EngineArgs},
            r"bans need antislop's scheduler: leave out scheduler_cls, which is .*EngineArgs",
        ),
        ({"additional_config": {"antislop": {"bnas": []}}}, "additional_config has 'bnas', which is none of bans,"),
        ({"additional_config": {"antislop": "list.txt"}}, "additional_config is not JSON"),
    ],
)
def test_what_can_not_be_switched_on_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        EngineArgs(**{"additional_config": {"antislop": {}}, **given}).create_engine_config()
