"""The backend that writes texts with this library's own loop: each text is as if alone, whatever happens to others."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban
from antislop.core.bans.token_matcher import State
from antislop.core.hf import many
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.callbacks.processors import BatchCallbacks
from antislop.core.loop import step
from antislop.core.loop.drawing import LogitsDrawing
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row, RowSpec
from antislop.core.loop.sampling import Sampling
from antislop.core.loop.step import StepEvents
from antislop.core.trace.events import Drawn, Event, Report, Settled, TimedOut
from antislop.errors import InputError
from antislop.serve import local
from antislop.serve.backend import BackendError, Busy, GenerationRequest
from antislop.serve.local import LocalBackend
from tests.support.ban_cases import anywhere
from tests.support.depth import DEPTH
from tests.support.models import build_model, build_tokenizer, poisoned

T = TypeVar("T")

TOKENIZER = build_tokenizer()
BANS = [anywhere("ab"), anywhere("e", 0.3)]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A model that writes to the end of each text, without special tokens, which would separate words."""
    model = build_model("llama")
    model.generation_config.suppress_tokens = [0, 1]
    return model


@asynccontextmanager
async def serving(model: PreTrainedModel, **options: Any) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(model, TOKENIZER, **{"bans": BANS, "batch_size": 4, **options})
    try:
        yield backend
    finally:
        await backend.close(timeout=60)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; a text that never ends is an error."""
    return asyncio.run(asyncio.wait_for(work, timeout=120 * DEPTH))


def request_of(backend: LocalBackend, number: int = 0, **changes: Any) -> GenerationRequest:
    prompt = [0, *(2 + (number * step) % 15 for step in range(1, 3 + number % 4))]
    request = GenerationRequest(
        prompt=prompt, bans=backend.bans, max_new_tokens=8 + number % 9, sampling=Sampling(), seed=number
    )
    return replace(request, **changes)


async def read(backend: LocalBackend, request: GenerationRequest) -> list[Event]:
    return [event async for event in backend.write(request)]


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Settled) for token in event.tokens]


def write_alone(model: PreTrainedModel, request: GenerationRequest) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens and the counts of the same text from `generate_many`."""
    sampler = AntiSlop(TOKENIZER, request.bans.bans, method=request.method)
    settings = request.sampling.generate_arguments | {"max_new_tokens": request.max_new_tokens}
    if request.stop:
        settings["stop_strings"] = list(request.stop)
    if request.logit_bias:
        settings["sequence_bias"] = {(token,): bias for token, bias in request.logit_bias.items()}
    done = next(iter(sampler.generate_many(model, [request.prompt], seeds=[request.seed or 0], **settings)))
    return done.tokens, counts_of(done.report)


def counts_of(report: Report) -> dict[str, Any]:
    return {**report.to_dict(), "matcher_seconds": None}


SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_k=9, top_p=0.9),
    Sampling(repetition_penalty=1.4, min_p=0.02),
    Sampling(typical_p=0.8),
)


def vary(backend: LocalBackend, number: int) -> GenerationRequest:
    """Return a request with settings of its own."""
    return request_of(
        backend,
        number,
        sampling=SAMPLINGS[number % len(SAMPLINGS)],
        stop=("aa", "d") if number % 3 == 1 else (),
        logit_bias={2 + number % 9: 1.5, 11: -100.0} if number % 4 == 2 else {},
        method=("exact", "token", "text")[number % 4 % 3],
    )


def test_texts_with_different_settings_are_each_as_if_alone(model: PreTrainedModel) -> None:
    async def write() -> list[tuple[GenerationRequest, list[Event]]]:
        async with serving(model) as backend:
            requests = [vary(backend, number) for number in range(24)]
            return list(zip(requests, await asyncio.gather(*(read(backend, r) for r in requests)), strict=True))

    rewinds = 0
    for request, events in run(write()):
        tokens, counts = write_alone(model, request)
        assert tokens_of(events) == tokens
        assert counts_of(Report.of(events, surfaces=request.bans.vocabulary)) == counts
        rewinds += counts["rewinds"]
    assert rewinds > 20


def test_what_the_model_says_itself_holds_beside_a_request() -> None:
    """Settings of its generation config that no request names."""
    model = build_model("llama")
    model.generation_config.update(min_new_tokens=6, suppress_tokens=[7], bad_words_ids=[[9, 10]], stop_strings=["a"])

    async def write() -> list[tuple[GenerationRequest, list[int]]]:
        async with serving(model) as backend:
            requests = [request_of(backend, number, max_new_tokens=40) for number in range(6)]
            return [(request, tokens_of(await read(backend, request))) for request in requests]

    texts = run(write())
    assert [tokens for _, tokens in texts] == [write_alone(model, request)[0] for request, _ in texts]
    assert sum(len(tokens) < 40 for _, tokens in texts) > 2


def test_a_stop_string_ends_the_answer_that_contains_it_and_is_not_found_in_the_prompt(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, bans=[]) as backend:
            request = request_of(backend, prompt=[0, 11], max_new_tokens=12, seed=1)
            tokens = tokens_of(await read(backend, request))
            texts = [TOKENIZER.decode(token) for token in (11, *tokens)]
            assert texts[0] not in texts[1:]
            begun, within = texts[0] + texts[1], texts[4] + texts[5][:1]
            assert tokens_of(await read(backend, replace(request, stop=[begun]))) == tokens
            assert tokens_of(await read(backend, replace(request, stop=[begun, within]))) == tokens[:5]
            assert len(write_alone(model, replace(request, stop=[begun]))[0]) == 1, "as in `generate`"

    run(write())


def test_nothing_is_kept_of_stop_strings_and_they_take_little_memory(model: PreTrainedModel) -> None:
    """SillyTavern's contain the names of a chat's characters: each chat has others."""

    async def write() -> None:
        async with serving(model) as backend:
            tokens = tokens_of(await read(backend, request_of(backend)))
            tracemalloc.start()
            for chat in range(3):
                stop = [f"\n{chat} {name}:".rjust(256, "a") for name in range(64)]
                assert tokens_of(await read(backend, request_of(backend, stop=stop))) == tokens
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 1_000_000
            for _ in range(100):  # the writing thread lets go of a text some time after its end was read
                gc.collect()
                if not (kept := [each for each in gc.get_objects() if type(each) is StopStrings]):
                    break
                del kept[:]
                await asyncio.sleep(0.02)
            else:
                pytest.fail("stop strings of a text that has ended are kept")

    run(write())


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"prompt": []}, "an empty prompt"),
    ({"prompt": [0, 48]}, "not in the vocabulary, 0 to 47"),
    ({"prompt": [-1]}, "not in the vocabulary"),
    ({"max_new_tokens": 0}, "at least 1"),
    ({"max_new_tokens": 511}, "the context has 512 tokens"),
)


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_can_not_be_served_is_refused(model: PreTrainedModel, changes: dict[str, Any], message: str) -> None:
    async def write() -> None:
        async with serving(model) as backend:
            with pytest.raises(InputError, match=message):
                await read(backend, request_of(backend, **changes))
            assert backend.active == 0

    run(write())


def test_texts_beyond_the_queue_are_refused(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, batch_size=2, queue_length=1) as backend:
            texts = [asyncio.ensure_future(read(backend, request_of(backend, n))) for n in range(3)]
            await asyncio.sleep(0)
            assert backend.active == 3
            with pytest.raises(Busy, match="no more texts than the limit of 3 may be written"):
                await read(backend, request_of(backend))
            assert all(await asyncio.gather(*texts))

    run(write())


LISTS: tuple[list[Ban], ...] = (
    [],
    *([Ban(letter, edges="anywhere")] for letter in "abcdef"),
    [Ban("ab", edges="anywhere"), Ban("ba", edges="anywhere"), Ban("cd", edges="anywhere")],
    [Ban.regex("[bdf][ace]")],
    [Ban("ea", edges="anywhere"), Ban.wildcard("a*")],
)


def test_lists_in_one_batch_never_mix(model: PreTrainedModel) -> None:
    """Each text is the text alone with its own list, and contains none of its own bans."""

    async def write() -> list[tuple[GenerationRequest, list[Event]]]:
        async with serving(model, batch_size=8, queue_length=1000 * DEPTH) as backend:
            lists, rng = [backend.bans.with_bans(bans) for bans in LISTS], Random(DEPTH)
            requests = [
                request_of(backend, rng.randrange(10**6), bans=rng.choice(lists), sampling=rng.choice(SAMPLINGS))
                for _ in range(100 * DEPTH)
            ]
            return list(zip(requests, await asyncio.gather(*(read(backend, r) for r in requests)), strict=True))

    rewinds = 0
    for request, events in run(write()):
        tokens, counts = write_alone(model, request)
        assert tokens_of(events) == tokens
        begin, text = (request.bans.vocabulary.decode(ids) for ids in (request.prompt, [*request.prompt, *tokens]))
        assert counts["conceded"] or not [m for m in request.bans.bans.find(text) if m.end > len(begin)]
        rewinds += counts["rewinds"]
    assert rewinds > 50 * DEPTH


async def leave(backend: LocalBackend, request: GenerationRequest, *, after: int) -> None:
    """Read a text's first events and leave; after 0 events before it begins."""
    if after == 0:
        task = asyncio.ensure_future(read(backend, request))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return
    events = backend.write(request)
    for _ in range(after):
        await anext(events, None)
    await events.aclose()


def test_texts_whose_readers_leave_free_their_rows_and_change_no_others(model: PreTrainedModel) -> None:
    async def write() -> tuple[list[GenerationRequest], list[list[Event]]]:
        async with serving(model, batch_size=4, queue_length=400 * DEPTH) as backend:
            rng, kept = Random(1), [vary(backend, number) for number in range(12)]
            leaving = [
                leave(backend, vary(backend, rng.randrange(100)), after=rng.randrange(30)) for _ in range(60 * DEPTH)
            ]
            works = [*(read(backend, request) for request in kept), *leaving]
            rng.shuffle(leaving)
            results = await asyncio.gather(*works)
            assert backend.active == 0
            assert await became_idle(backend)
            return kept, [result for result in results if result is not None]

    for request, events in zip(*run(write()), strict=True):
        assert tokens_of(events) == write_alone(model, request)[0]


async def became_idle(backend: LocalBackend) -> bool:
    for _ in range(1000):
        if not backend._scheduler.rows:
            return True
        await asyncio.sleep(0.01)
    return False


@contextmanager
def counting(model: PreTrainedModel, *, fail_at: Collection[int] = ()) -> Iterator[list[int]]:
    """Count a model's forward passes, and let some of them fail; yield the numbers of tokens that were read."""
    passes: list[int] = []

    def count(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        passes.append(kwargs["input_ids"].numel())
        if len(passes) - 1 in fail_at:
            raise RuntimeError("out of memory\nwith details")

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield passes
    finally:
        hook.remove()


def test_a_text_whose_reader_leaves_is_written_for_one_pass_more_at_most(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, batch_size=2) as backend:
            for number in range(8):
                events = backend.write(request_of(backend, number, max_new_tokens=400))
                for _ in range(5 + number):
                    await anext(events)
                with counting(model) as passes:
                    await events.aclose()
                    assert await became_idle(backend)
                    await asyncio.sleep(0.02)
                    assert len(passes) <= 2, "the running one, and one that had begun to be prepared"

    run(write())


def test_a_pass_computes_no_more_rows_than_texts_were_written_together(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, batch_size=16) as backend:
            for count in (1, 5, 1):
                requests = [request_of(backend, number, max_new_tokens=20) for number in range(count)]
                with counting(model) as passes:
                    texts = await asyncio.gather(*(read(backend, request) for request in requests))
                    assert await became_idle(backend)
                    steps = passes[-10:]
                assert max(steps) < 2 * count + 1
                for request, events in zip(requests, texts, strict=True):
                    assert tokens_of(events) == write_alone(model, request)[0]

    run(write())


def test_a_failing_pass_ends_the_texts_that_are_written_and_no_others(
    model: PreTrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    async def write() -> tuple[list[GenerationRequest], list[Any]]:
        async with serving(model, batch_size=3) as backend:
            requests = [request_of(backend, number) for number in range(10)]
            with counting(model, fail_at=[16]):
                return requests, await asyncio.gather(*(read(backend, r) for r in requests), return_exceptions=True)

    requests, results = run(write())
    errors = [result for result in results if isinstance(result, BaseException)]
    assert 1 <= len(errors) <= 3
    assert {type(error) for error in errors} == {BackendError}
    assert {str(error) for error in errors} == {"the model failed; the server's log says why"}
    assert "RuntimeError: out of memory" in caplog.text
    for request, result in zip(requests, results, strict=True):
        if not isinstance(result, BaseException):
            assert tokens_of(result) == write_alone(model, request)[0]


def test_an_error_that_meets_no_text_is_survived_once_but_not_for_ever(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(failures: int) -> list[Event]:
        async with serving(model) as backend:
            close_gaps, left = backend._scheduler.drop_canceled, iter(range(failures))

            def fail() -> None:
                if next(left, None) is not None:
                    raise RuntimeError("a fault of the loop")
                close_gaps()

            monkeypatch.setattr(backend._scheduler, "drop_canceled", fail)
            return await read(backend, request_of(backend))

    assert tokens_of(run(write(1)))
    with pytest.raises(BackendError, match="the model failed"):
        run(write(2))


def test_a_text_whose_end_was_lost_in_an_error_fails_and_the_log_names_its_request(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = step._release

    def fail(rows: Sequence[Row]) -> StepEvents:
        if any(row.is_finished for row in rows):
            monkeypatch.setattr(step, "_release", release)
            raise RuntimeError("a fault of the loop")
        return release(rows)

    async def write() -> list[Any]:
        async with serving(model) as backend:
            monkeypatch.setattr(step, "_release", fail)
            requests = [request_of(backend, n, max_new_tokens=3 + 9 * n, request_id=f"id-{n}") for n in range(2)]
            results = await asyncio.gather(*(read(backend, r) for r in requests), return_exceptions=True)
            return [*results, await read(backend, requests[0])]

    *lost, again = run(write())
    assert {type(result) for result in lost} == {BackendError}
    assert tokens_of(again)
    assert "requests that it ended: id-0, id-1" in caplog.text


def test_a_model_that_always_fails_fails_each_text_and_hangs_none(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, batch_size=3) as backend:
            requests = [request_of(backend, number) for number in range(10)]
            with counting(model, fail_at=range(1000)):
                results = await asyncio.gather(*(read(backend, r) for r in requests), return_exceptions=True)
            assert {type(result) for result in results} == {BackendError}
            assert tokens_of(await read(backend, requests[0])), "usable again"

    run(write())


@pytest.mark.parametrize("way", ["prepared", "read in parts", "refused", "scored"])
def test_the_only_reader_may_leave_at_any_step_while_another_request_is_prepared(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The second request gets what it would get alone, and the backend serves others afterwards."""
    changes: dict[str, Any] = {"prompt": [0, *range(2, 17)] * 2} if way == "read in parts" else {}
    if way == "scored":
        changes |= {"echo": "", "alternatives": 2, "max_new_tokens": 0}
    monkeypatch.setattr(many, "PART", 10)

    async def write() -> None:
        async with serving(model, batch_size=2) as backend:
            moment = "score_prompt" if way == "scored" else "prepare"
            prepare = getattr(backend._preparer, moment)
            for after in range(1, 6):
                events = backend.write(request_of(backend, max_new_tokens=400))
                for _ in range(after):
                    await anext(events)
                (left,) = backend._pending

                def leave(request: GenerationRequest, left: int = left, **options: Any) -> Any:
                    backend._leave(left)
                    if way == "refused":
                        raise ValueError("no")
                    return prepare(request, **options)

                monkeypatch.setattr(backend._preparer, moment, leave)
                request = request_of(backend, 2, **changes)
                (result,) = await asyncio.gather(read(backend, request), return_exceptions=True)
                monkeypatch.setattr(backend._preparer, moment, prepare)
                await events.aclose()
                await backend.check()
                if way == "refused":
                    assert isinstance(result, InputError)
                else:
                    assert not isinstance(result, BaseException)
                    assert tokens_of(result) == (write_alone(model, request)[0] if way != "scored" else [])

    run(write())


@pytest.mark.parametrize("cutoff", [0.0, 0.1])
def test_a_text_without_probabilities_fails_alone(model: PreTrainedModel, cutoff: float) -> None:
    async def write() -> tuple[GenerationRequest, list[Any]]:
        async with serving(model) as backend:
            sampling = Sampling(eta_cutoff=cutoff)  # by which transformers raises an error for NaN
            requests = [request_of(backend, n, prompt=[0, 16 if n == 1 else 3], sampling=sampling) for n in range(4)]
            banned = backend.bans.with_bans([Ban.tokens([16])])
            requests = [replace(request, bans=banned) for request in requests]
            with poisoned(model, 16):
                return requests[2], await asyncio.gather(*(read(backend, r) for r in requests), return_exceptions=True)

    request, results = run(write())
    assert [isinstance(result, BackendError) for result in results] == [False, True, False, False]
    assert "NaN or infinite" in str(results[1])
    assert tokens_of(results[2]) == write_alone(model, request)[0]


def test_closing_finishes_the_texts_under_way_and_refuses_others(model: PreTrainedModel) -> None:
    async def write() -> None:
        backend = LocalBackend(model, TOKENIZER, bans=BANS, batch_size=2)
        texts = [asyncio.ensure_future(read(backend, request_of(backend, number))) for number in range(6)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(backend.close())
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="shutting down"):
            await read(backend, request_of(backend))
        assert all(tokens_of(events) for events in await asyncio.gather(*texts))
        await closing
        assert backend._thread is not None
        assert not backend._thread.is_alive()
        await backend.close()

    run(write())


def test_closing_cuts_off_what_takes_too_long(model: PreTrainedModel) -> None:
    async def write() -> None:
        backend = LocalBackend(model, TOKENIZER, bans=BANS, batch_size=2)
        texts = [
            asyncio.ensure_future(read(backend, request_of(backend, number, max_new_tokens=500))) for number in range(6)
        ]
        await asyncio.sleep(0.05)
        await backend.close(timeout=0.05)
        results = await asyncio.gather(*texts, return_exceptions=True)
        assert {type(result) for result in results} == {BackendError}
        assert backend.active == 0
        assert backend._thread is not None
        assert not backend._thread.is_alive()

    run(write())


def test_a_backend_that_wrote_nothing_closes_at_once(model: PreTrainedModel) -> None:
    async def write() -> None:
        backend = LocalBackend(model, TOKENIZER)
        await backend.close()
        with pytest.raises(Busy):
            await read(backend, request_of(backend))

    run(write())


def count_live() -> Counter[str]:
    gc.collect()
    kinds = (Row, RowSpec, Node, State, BatchCallbacks, LogitsDrawing, TransformersCache, Report)
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds)


async def count_left(before: Counter[str]) -> Counter[str]:
    """Return what is live beside what was before; the worker's thread may still hold the last step for a moment."""
    for _ in range(50):
        left = count_live() - before
        if set(left) <= {"TransformersCache"}:
            break
        await asyncio.sleep(0.1)
    return left


def test_nothing_of_a_text_stays_behind(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, batch_size=4, queue_length=500) as backend:
            counts, before = [], count_live()  # other tests of this process may have left some
            for turn in range(3 * DEPTH):
                rng = Random(turn)
                works: list[Coroutine[Any, Any, Any]] = [read(backend, vary(backend, n)) for n in range(10)]
                works += [leave(backend, vary(backend, n), after=rng.randrange(20)) for n in range(10)]
                await asyncio.gather(*works)
                del works
                assert await became_idle(backend)
                counts.append(await count_left(before))
            assert set(counts[-1]) == {"TransformersCache"}
            assert counts[-1] == counts[0]
            assert not backend._pending

    run(write())


def test_the_choices_of_a_text_are_recorded_for_it_alone(model: PreTrainedModel) -> None:
    async def write() -> list[list[Event]]:
        async with serving(model) as backend:
            requests = [request_of(backend, number, alternatives=(None, 0, 3)[number]) for number in range(3)]
            return list(await asyncio.gather(*(read(backend, request) for request in requests)))

    for events, size in zip(run(write()), (None, 0, 3), strict=True):
        choices = [event.choice for event in events if isinstance(event, Drawn)]
        assert choices
        assert {None if choice is None else len(choice.alternatives) for choice in choices} == {size}


def test_a_regex_that_one_text_made_too_slow_is_searched_for_again_later(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the text of one client would end a ban of the server for all others."""

    async def write() -> list[list[str]]:
        async with serving(model) as backend:
            bans = backend.bans.with_bans([Ban.regex("a+b")])
            bans.matcher._texts._searches[0][1]._drop(0)
            dropped = []
            for after in (60.0, 60.0, 0.0):
                monkeypatch.setattr(local, "RESTORE_AFTER", after)
                events = await read(backend, request_of(backend, bans=bans))
                dropped.append([event.ban.text for event in events if isinstance(event, TimedOut)])
            return dropped

    with pytest.warns(RuntimeWarning, match="took longer"):
        assert run(write()) == [["a+b"], ["a+b"], []]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "at least 1"),
        ({"queue_length": -1}, "queue_length -1"),
        ({"max_model_len": 600}, "max_model_len is 600; 2 to 512 tokens"),
    ],
)
def test_options_that_make_no_sense_are_refused(model: PreTrainedModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LocalBackend(model, TOKENIZER, **options)
