"""What requests to vLLM may ask for, and what is refused in one sentence."""

from __future__ import annotations

import sys
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import antislop.engines.vllm
from antislop import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import BanScope
from antislop.core.hf.compiled_bans import CompiledBans, ResponseTemplate, chat_scope, choose_scopes
from antislop.core.hf.private import response_template_for
from antislop.engines.vllm import banning
from antislop.engines.vllm.requests import KEY, EngineSettings, ListCache, RequestOptions, check_request, read_own_lists
from antislop.errors import InputError
from antislop.serve.bodies.bans import find_bans
from antislop.serve.bodies.fields import CompletionBody
from tests.support.models import build_tokenizer
from tests.support.refusals import refused


def ask(
    config: Any = None,
    *,
    temperature: float = 1.0,
    has_own_list: bool = False,
    settings: EngineSettings | None = None,
    **more: Any,
) -> RequestOptions:
    extra_args = None if config is None else {KEY: config}
    params = {"extra_args": extra_args, "temperature": temperature, "structured_outputs": None}
    params |= {"max_tokens": 16, "logprobs": None, "detokenize": True}  # of vLLM, if they are left out
    return check_request(SimpleNamespace(**params | more), has_own_list=has_own_list, settings=settings)


METHODS = ("thin", "reject")
BEAM = {"max_tokens": 1, "logprobs": 8, "detokenize": False}
"""How vLLM asks for the likeliest tokens of a beam, without the extra arguments of the request for beams."""


def test_equal_requests_share_what_they_ask_for() -> None:
    config = {"bans": ["a cat", {"text": "d.g", "kind": "regex", "weight": 0.5}], "exempt": ["a cat's"]}
    options = ask(config)
    assert [(ban.text, ban.weight) for ban in options.bans] == [("a cat", 0.0), ("d.g", 0.5)]
    assert options.use_global_bans
    assert ask(dict(config)) is options
    assert ask('{"bans": ["a cat"], "use_global_bans": false}').use_global_bans is False
    assert len(ask().bans) == 0
    assert ask({"loops": True, "bans": ["a"], "repeats": True}).bans == BanList(["a", Ban.loop(), Ban.repeat()])


@pytest.mark.parametrize(
    ("config", "more", "sentence"),
    [
        ("{", {}, "is not JSON"),
        ([], {}, "an object was expected"),
        ({"bnas": []}, {}, "which is none of ban_list, ban_scope, banned_regex,"),
        ({"ban_scope": "thoughts"}, {}, "ban_scope is 'thoughts'; it is one of 'answer', 'thinking', 'all'"),
        ({"ban_scope": ["all"]}, {}, "ban_scope is"),
        ({"bans": "a cat"}, {}, "bans is 'a cat': pass a list"),
        ({"bans": [3]}, {}, r"a ban is a phrase \(str\), not 3"),
        ({"bans": [{"text": "a", "kind": "rex"}]}, {}, "the kind of 'a' is 'rex'; it is one of"),
        ({"bans": [{"text": "(", "kind": "regex"}]}, {}, "does not compile"),
        ({"bans": {1, 2}}, {}, "which is not JSON"),
        ({"use_global_bans": 1}, {}, "pass true or false"),
        ({"repeats": "yes"}, {}, "repeats is 'yes': pass true or false"),
        (
            {"bans": ["a"]},
            {"structured_outputs": SimpleNamespace(_backend="outlines")},
            "structured outputs of outlines",
        ),
        (None, {**BEAM, "has_own_list": True}, "bans and beam search can't be combined"),
        ({"exempt": "a"}, {}, "exempt is 'a': pass a list"),
        ({"banned_strings": "a cat"}, {}, "banned_strings is 'a cat': pass a list"),
        ({"banned_strings": [3]}, {}, r"a ban is a phrase \(str\), not 3"),
        ({"banned_regex": ["a"] * 101}, {}, "101 regexes are too many for a request: at most 100"),
        ({"custom_token_bans": "5, a"}, {}, "custom_token_bans is '5, a': pass a list of token ids"),
        ({"custom_token_bans": 5}, {}, "custom_token_bans is 5: pass a list of token ids"),
        ({"custom_token_bans": [5] * 10_001}, {}, "10,001 bans and exempt phrases are too many"),
        ({"ban_list": 3}, {}, "ban_list is 3: pass the name of a list of the engine"),
        ({"bans": ["a"] * 10_000, "exempt": ["b"]}, {}, "10,001 bans and exempt phrases are too many for a request"),
        ({"bans": [{"text": "a", "kind": "regex"}] * 101}, {}, "101 regexes are too many for a request: at most 100"),
        ({"bans": [{"text": "a", "exempt": ["b"] * 10_000}]}, {}, "10,001 bans and exempt phrases are too many"),
        ({"bans": ["a" * 257]}, {}, "257 characters in one phrase are too many for a request: at most 256, or a list"),
        ({"bans": [{"text": "a" * 257}]}, {}, "257 characters in one phrase are too many"),
        ({"exempt": ["a" * 257]}, {}, "257 characters in one phrase are too many"),
        ({"bans": [{"text": "a" * 1001, "kind": "regex"}]}, {}, "1,001 characters in one regex are too many"),
        (" " * 2**20 + "{}", {}, "1,048,578 characters of JSON are too many for a request: at most 1,048,576"),
        ({"bans": [{"text": "a", "then": "force", "force": "b"}]}, {}, "inside vLLM no text can be forced: choose"),
        ({"bans": [{"text": "a", "exempt": 5}]}, {}, "exempt of 'a' is 5; a list was expected"),
    ],
)
def test_what_can_not_be_written_is_refused(config: Any, more: dict[str, Any], sentence: str) -> None:
    refused(sentence, ask, config, **more)


def test_fields_of_bodies_mean_what_they_mean_in_front_of_an_engine() -> None:
    body: dict[str, Any] = {
        "banned_strings": ["a*b", "a cat", "\nYou:", "\n\n"],
        "banned_regex": ["d.g"],
        "custom_token_bans": "5, 17",
    }
    body |= {"exempt": ["a cat's"], "loops": True}
    assert set(ask(body).bans) == set(find_bans(CompletionBody(**body)).read())


def test_a_request_chooses_one_of_the_lists_of_its_engine_by_name() -> None:
    lists = read_own_lists(EngineSettings.read({"bans": ["ab"], "lists": {"verbs": ["was"]}, "exempt": ["abc"]}))
    own = CompiledBans.compile(lists.pop(""), build_tokenizer())
    cache = ListCache(own, lists=lists)
    for config, expected in (
        ({}, ["ab"]),
        ({"ban_list": "verbs"}, ["was"]),
        ({"ban_list": "verbs", "bans": ["c"]}, ["was", "c"]),
        ({"ban_list": "verbs", "bans": ["c"], "use_global_bans": False}, ["c"]),
    ):
        compiled = find(cache, config)
        assert compiled is not None
        assert [ban.text for ban in compiled.bans] == expected
        assert all(ban.exempt == ("abc",) for ban in compiled.bans if ban.text == "was")
    refused("the engine has no list 'nouns', but 'verbs': leave ban_list out", find, cache, {"ban_list": "nouns"})
    with pytest.raises(InputError, match="the engine has no list 'nouns', but 'verbs': leave ban_list out"):
        ask({"ban_list": "nouns"}, settings=EngineSettings(lists={"verbs": ["was"]}))


def test_beams_without_bans_are_written() -> None:
    ask(**BEAM)


@pytest.mark.parametrize(
    ("config", "has_own_list"),
    [
        ({"repeats": True}, False),
        ({"bans": ["a"]}, False),
        ({"banned_strings": ["a"]}, False),
        ({"ban_list": "verbs"}, False),
        ({}, True),
    ],
)
def test_greedy_requests_under_bans_are_refused_where_the_engine_tells_no_likely_tokens(
    config: Any, has_own_list: bool
) -> None:
    thin, reject = (EngineSettings.read({"method": method, "lists": {"verbs": ["was"]}}) for method in METHODS)
    ask(config, temperature=0, has_own_list=has_own_list, settings=thin, logprob_token_ids=None)
    for settings, told in ((reject, None), (thin, [5])):
        given = {"temperature": 0, "settings": settings, "logprob_token_ids": told}
        refused("bans need sampling here, and temperature is 0", ask, config, has_own_list=has_own_list, **given)
        ask({"use_global_bans": False}, has_own_list=True, **given)


def test_an_engine_that_refuses_beams_checks_them_in_the_front_end() -> None:
    assert banning(["a"])["logits_processors"] == ["antislop.engines.vllm:CheckBans"]
    assert banning(["a"], on_greedy="pass")["logits_processors"] == ["antislop.engines.vllm:CheckRequestBans"]
    assert banning()["logits_processors"] == ["antislop.engines.vllm:CheckRequestBans"]


def find(cache: ListCache, config: Any) -> CompiledBans | None:
    return cache.find({KEY: config}).result(timeout=60)[1]


def test_equal_lists_are_compiled_once_and_others_in_threads_of_their_own() -> None:
    own = CompiledBans.compile(BanList(["ab"]), build_tokenizer())
    cache = ListCache(own, exempt=["cab"])
    assert cache.find(None).done() and cache.find({"other": 1}).result()[1] is own
    assert find(cache, {}) is own
    assert find(cache, {"use_global_bans": False}) is None
    first = find(cache, {"bans": ["c"]})
    assert first is not None and [ban.text for ban in first.bans] == ["ab", "c"]
    assert first.bans[1].exempt == ("cab",)
    assert find(cache, '{"bans": ["c"]}') is first
    assert cache.find({KEY: {"bans": ["c"]}}).done()
    alone = find(cache, {"bans": ["c"], "use_global_bans": False})
    assert alone is not None and [ban.text for ban in alone.bans] == ["c"]
    refused("pass a list", find, cache, {"bans": "c"})


def test_bans_hold_in_the_part_that_a_request_names_as_on_the_server() -> None:
    template: dict[str, Any] = response_template_for("qwen3") or {}
    choose = partial(choose_scopes, template=ResponseTemplate(template))
    cache = ListCache(CompiledBans.compile(BanList(["ab"]), build_tokenizer()), choose_scopes=choose)
    for config, where in ((None, "answer"), *(({"ban_scope": where}, where) for where in get_args(BanScope))):
        compiled = find(cache, {**(config or {}), "bans": ["c"]})
        assert compiled is not None
        assert [ban.scopes for ban in compiled.bans] == [(chat_scope(template, where),)] * 2
        own = find(cache, config or {})
        assert own is not None and [ban.scopes for ban in own.bans] == [(chat_scope(template, where),)]
        assert find(cache, {**(config or {}), "events": True}) is own
    assert cache.find(None).result()[1] is find(cache, {})
    without = ListCache(
        CompiledBans.compile(BanList(["ab"]), build_tokenizer()), choose_scopes=partial(choose_scopes, template=None)
    )
    refused("bans can't hold in 'thinking' alone", find, without, {"ban_scope": "thinking"})


def test_an_engine_without_a_list_has_none_for_requests_that_bring_none() -> None:
    cache = ListCache(CompiledBans.compile(BanList([]), build_tokenizer()))
    assert not cache.has_own and cache.find(None).result()[1] is None and find(cache, {}) is None


def test_a_request_waits_for_its_own_list_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that takes long is compiled beside those of others, and requests without one wait for nothing."""
    cache = ListCache(CompiledBans.compile(BanList(["ab"]), build_tokenizer()))
    may_compile, with_bans = Event(), CompiledBans.with_bans

    def wait(self: CompiledBans, bans: BanList) -> CompiledBans:
        assert "slow" not in [ban.text for ban in bans] or may_compile.wait(timeout=60)
        return with_bans(self, bans)

    monkeypatch.setattr(CompiledBans, "with_bans", wait)
    slow = cache.find({KEY: {"bans": ["slow"]}})
    assert find(cache, {"bans": ["c"]}) is not None and cache.find(None).done() and not slow.done()
    may_compile.set()
    assert slow.result(timeout=60)[1] is not None


def test_without_the_modules_of_vllm_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "antislop.engines.vllm.scheduler", raising=False)
    with pytest.raises(InputError, match=r"need its module vllm, which isn't installed here: install vLLM 0\.32"):
        antislop.engines.vllm.BanningScheduler  # noqa: B018 - vLLM asks for it by its name


def test_a_release_without_a_name_that_is_imported_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise ImportError("cannot import name 'RequestError' from 'vllm.outputs'", name="vllm.outputs")

    monkeypatch.setattr(antislop.engines.vllm, "_load", load)
    with pytest.raises(InputError, match=r"a name that its module vllm.outputs lacks here .*: install vLLM 0\.32"):
        antislop.engines.vllm.BanningScheduler  # noqa: B018 - vLLM asks for it by its name


@pytest.mark.parametrize(
    ("call", "given", "sentence"),
    [
        (EngineSettings.read, {"on_greedy": "write"}, "on_greedy is 'write'; it is one of 'refuse', 'pass'"),
        (EngineSettings.read, {"on_exhausted": "raise"}, "on_exhausted is 'raise'; it is one of 'concede', 'stop'"),
        (EngineSettings.read, {"resume": "cut"}, "resume is 'cut'"),
        (EngineSettings.read, {"max_rewind": 3}, "has 'max_rewind', which is none of"),
        (EngineSettings.read, {"lists": ["a.txt"]}, r"lists is \['a.txt'\]: pass an object of names"),
        (banning, [Ban("a", then="force", force="b")], "'a' has then='force', and inside vLLM no text can be forced"),
    ],
)
def test_what_an_engine_can_not_use_is_refused(call: Any, given: Any, sentence: str) -> None:
    refused(sentence, call, given)
