"""The bans of requests: each list is compiled once, and memory and threads are bounded."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

import pytest

from antislop import Ban, BanError, BanList
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.engines.sent_bans import SentBans
from antislop.errors import InputError
from antislop.serve.backend import Busy
from antislop.serve.bodies import bans
from antislop.serve.bodies.bans import BanCache, find_bans, measure
from antislop.serve.bodies.fields import GenerationBody
from tests.support.models import build_tokenizer

OWN = CompiledBans.compile(BanList(["ab"]), build_tokenizer(), exempt=["cab"])


class CountingBans(CompiledBans):
    """Bans whose derived lists are counted, and compiled only while `may_compile` is set."""

    compiled: list[BanList] = []  # noqa: RUF012 - one for all, emptied by each test
    may_compile = Event()

    def with_bans(self, bans: Any) -> CompiledBans:
        assert self.may_compile.wait(timeout=60)
        self.compiled.append(bans)
        return super().with_bans(bans)


@pytest.fixture
def own() -> CountingBans:
    CountingBans.compiled.clear()
    CountingBans.may_compile.set()
    return CountingBans(**vars(OWN))


@contextmanager
def caching(**options: Any) -> Iterator[BanCache]:
    cache = BanCache(**options)
    try:
        yield cache
    finally:
        CountingBans.may_compile.set()
        cache.close()


async def compile_list(cache: BanCache, own: CompiledBans, bans: BanList) -> CompiledBans:
    return await cache.compile((own, bans), partial(own.with_bans, bans))


def list_of(number: int) -> BanList:
    return BanList([Ban(f"a{'b' * number}"), Ban("c", weight=0.25)])


def test_a_list_that_many_ask_for_at_once_is_compiled_once(own: CountingBans) -> None:
    async def ask() -> None:
        with caching() as cache:
            results = await asyncio.gather(*(compile_list(cache, own, list_of(n % 2)) for n in range(100)))
            assert len({id(result) for result in results}) == len(own.compiled) == len(cache) == 2
            assert await compile_list(cache, own, list_of(1)) is results[1]
            assert results[1].bans[0].exempt == ("cab",)

    asyncio.run(ask())


DIFFERENT = (
    BanList(["ab c"]),
    BanList([Ban("ab c", weight=0.5)]),
    BanList([Ban("ab c", edges="anywhere")]),
    BanList([Ban("ab c", case_sensitive=True)]),
    BanList([Ban("ab c", exempt=["ab c d"])]),
    BanList([Ban("ab c", from_token=1)]),
    BanList([Ban("ab c", at_most=1)]),
    BanList([Ban.regex("ab c")]),
)


def test_lists_that_differ_in_any_option_are_different_lists(own: CountingBans) -> None:
    async def ask() -> None:
        with caching() as cache:
            results = [await compile_list(cache, own, bans) for bans in DIFFERENT]
            assert [result.bans[0].weight for result in results[:2]] == [0, 0.5]
            assert len({id(result) for result in results}) == len(DIFFERENT)
            other = CountingBans(**{**vars(OWN), "exempt": ("b",)})
            assert (await compile_list(cache, other, DIFFERENT[0])).bans[0].exempt == ("b",)

    asyncio.run(ask())


def test_the_least_recently_used_lists_are_dropped_beyond_the_limit(own: CountingBans) -> None:
    async def ask() -> None:
        size = measure(OWN.with_bans(list_of(9)))
        with caching(max_size=int(3.5 * size)) as cache:
            for number in (1, 2, 3, 1, 4):
                await compile_list(cache, own, list_of(number))
            assert len(cache) == 3
            assert cache.size == 3 * size
            assert len(own.compiled) == 4
            await compile_list(cache, own, list_of(1))
            assert len(own.compiled) == 4, "used a moment ago"
            await compile_list(cache, own, list_of(2))
            assert len(own.compiled) == 5

    asyncio.run(ask())


def test_a_list_larger_than_the_limit_is_kept_while_it_is_the_last_one(own: CountingBans) -> None:
    async def ask() -> None:
        with caching(max_size=1) as cache:
            for number in (1, 1, 2, 2, 1):
                await compile_list(cache, own, list_of(number))
            assert (len(cache), len(own.compiled)) == (1, 3)

    asyncio.run(ask())


def test_a_list_that_grows_while_it_is_used_counts_with_its_growth(own: CountingBans) -> None:
    async def ask() -> None:
        with caching(max_size=300) as cache:
            matcher = (await compile_list(cache, own, list_of(1))).matcher
            state, before = matcher.start(), cache.size
            for token in range(400):
                state = matcher.feed(state, 2 + token * 7 % 40)
            await compile_list(cache, own, list_of(1))
            assert cache.size == before + 2 * matcher.transition_count > before + 60
            for number in range(2, 60):
                await compile_list(cache, own, list_of(number))
                assert cache.size <= 300
            await compile_list(cache, own, list_of(1))
            assert len(own.compiled) == 60, "dropped, and with it what it had grown by"

    asyncio.run(ask())


LARGE: dict[str, Callable[[], Sequence[str | Ban]]] = {
    "phrases": lambda: [f"{'abc'[n % 3]} {n:x} {'def'[n % 3]}" for n in range(1000)],
    "long phrases": lambda: [f"a {n:x} {'def ghi ' * 30}" for n in range(200)],
    "exempt phrases": lambda: [Ban(f"a {n:x}", exempt=[f"a {n:x} {m}" for m in range(50)]) for n in range(50)],
    "regexes": lambda: [Ban.regex(f"not {n:x} \\w+, but") for n in range(50)],
    "long regexes": lambda: [Ban.regex(f"(?:not {n:x}){{300}}") for n in range(20)],
    "nothing": list,
}


@pytest.mark.parametrize("kind", LARGE)
def test_the_size_of_a_list_follows_the_memory_that_it_takes(kind: str) -> None:
    OWN.with_bans(["to import what is imported late"])
    gc.collect()
    tracemalloc.start()
    try:
        compiled = OWN.with_bans(LARGE[kind]())
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 50 < taken / measure(compiled) < 2000


BODIES = (
    {"ban_rewind": "word"},
    {"banned_strings": ["ab"]},
    {"banned_strings": ["ab", "c"]},
    {"custom_token_bans": [5]},
    {"banned_regex": ["ab"]},
    {"banned_strings": ["ab"], "ban_weights": {"ab": 0.5}},
    {"exempt": ["ab"]},
    {"loops": True},
    {"repeats": True},
    {"use_global_bans": False},
)


def test_bodies_share_a_list_only_if_all_that_they_say_of_bans_is_equal() -> None:
    sent = [find_bans(GenerationBody(**fields)) for fields in BODIES]
    assert len({repr(each) for each in (*sent, SentBans())}) == len(BODIES) + 1
    more: dict[str, Any] = {"max_tokens": 5, "temperature": 0.5}
    assert sent == [find_bans(GenerationBody(**fields, **more)) for fields in BODIES]
    assert find_bans(GenerationBody(banned_strings=[], ban_weights={}, seed=1)) == SentBans()
    for tokens, fields in ((["ab"], {"banned_strings": ["ab"]}), ([5], {"custom_token_bans": [5]})):
        assert find_bans(GenerationBody(banned_tokens=tokens)) == find_bans(GenerationBody(**fields))


class Probe:
    """A list whose size is asked for each time that the cache looks at it."""

    def __init__(self, counts: Sequence[int] = (0, 0)) -> None:
        self.asked, self._counts = 0, counts
        self.bans, self.matcher = list_of(1), self

    @property
    def transition_count(self) -> int:
        self.asked += 1
        return self._counts[self.asked - 1]


def test_a_list_that_forgot_its_transitions_counts_with_the_most_that_it_had() -> None:
    async def ask() -> list[int]:
        probe, sizes = Probe([0, 50, 10]), []
        with caching() as cache:
            for _ in range(3):
                await cache.compile("list", lambda: probe)  # type: ignore[arg-type, return-value]
                sizes.append(cache.size)
        return sizes

    new, grown, after = asyncio.run(ask())
    assert new + 100 == grown == after


def test_a_list_is_looked_at_only_when_it_is_asked_for_however_many_are_kept() -> None:
    async def ask() -> list[int]:
        probes = [Probe() for _ in range(200)]
        with caching() as cache:
            for number, probe in [*enumerate(probes), (0, probes[0])]:
                await cache.compile(number, lambda probe=probe: probe)  # type: ignore[misc, arg-type, return-value]
            return [probe.asked for probe in probes]

    assert asyncio.run(ask()) == [2] + [1] * 199


def test_a_list_that_takes_too_long_is_refused_and_kept_once_it_is_compiled(own: CountingBans) -> None:
    async def ask() -> None:
        with caching(seconds=0.05) as cache:
            own.may_compile.clear()
            for _ in range(3):
                with pytest.raises(InputError, match=r"the list of bans took longer than 0\.05 seconds"):
                    await compile_list(cache, own, list_of(1))
            own.may_compile.set()
            while not len(cache):
                await asyncio.sleep(0.005)
            await compile_list(cache, own, list_of(1))
            assert len(own.compiled) == 1

    asyncio.run(ask())


def test_lists_that_take_too_long_do_not_pile_up(own: CountingBans, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        with caching(seconds=0.05) as cache:
            own.may_compile.clear()
            asked = (compile_list(cache, own, list_of(number)) for number in range(8))
            errors = await asyncio.gather(*asked, return_exceptions=True)
            kinds = [type(error) for error in errors]
            assert kinds == [InputError] * 2 + [Busy] * 3 + [Busy] * 3
            assert "5 lists of bans are being compiled" in str(errors[-1])
            assert "other lists" in str(errors[2])

    monkeypatch.setattr(bans, "MAX_COMPILATIONS", 5)
    asyncio.run(ask())


def test_an_error_reaches_all_who_asked_and_is_not_kept(own: CountingBans, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(*_: Any) -> CompiledBans:
        calls.append(1)
        raise BanError("the regex is broken")

    async def ask() -> None:
        with caching() as cache:
            for _ in range(2):
                asked = (compile_list(cache, own, list_of(1)) for _ in range(3))
                errors = await asyncio.gather(*asked, return_exceptions=True)
                assert [str(error) for error in errors] == ["the regex is broken"] * 3
            assert len(calls) == 2

    monkeypatch.setattr(CountingBans, "with_bans", fail)
    asyncio.run(ask())


def test_a_request_that_leaves_does_not_stop_the_work_of_the_others(own: CountingBans) -> None:
    async def ask() -> None:
        with caching() as cache:
            own.may_compile.clear()
            first, second = (asyncio.ensure_future(compile_list(cache, own, list_of(1))) for _ in range(2))
            await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.sleep(0)
            own.may_compile.set()
            assert (await second).bans[0].text == "ab"

    asyncio.run(ask())
