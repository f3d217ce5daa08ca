"""The benchmark of the server's backend: requests at once against `generate_many` on the same texts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from transformers import MaxLengthCriteria

from antislop import AntiSlop, Ban, BanList
from antislop.core.loop.sampling import Sampling
from antislop.core.trace.events import Report, Settled
from antislop.serve.backend import GenerationRequest
from antislop.serve.local import LocalBackend
from eval.speed.batches import PLACES, Order, take_orders
from eval.speed.cases import Bench
from eval.speed.measuring import Contestant, Result, Subject, Written, compare, figures

REQUESTS = 32
LISTS, LISTED = 4, 5
GOAL = 0.9
SAMPLINGS = {
    "one sampling": [Sampling(temperature=0.9)],
    "three samplings": [Sampling(temperature=0.9), Sampling(top_p=0.95), Sampling(temperature=0.8, min_p=0.05)],
}
"""How the texts are drawn, in turn; `generate_many` has one setting for all and always uses the first."""


def measure_server(bench: Bench) -> Iterator[Result]:
    """Compare requests of mixed lengths and lists, sent at once, with `generate_many` on the same prompts and lists."""
    subject, orders = bench.subject, take_orders(bench)[:REQUESTS]
    lists = choose_lists(bench.studied)
    with without_end(subject):
        for case, samplings in SAMPLINGS.items():
            backend = LocalBackend(subject.model, subject.tokenizer, batch_size=PLACES)
            contestants = {
                "generate_many": partial(_write_many, subject, orders, lists, samplings[0]),
                "backend": partial(_write_requests, backend, orders, lists, samplings),
            }
            laps = bench.short_race.run({name: _follow(bench, write) for name, write in contestants.items()})
            asyncio.run(backend.close())
            cost = {name: figures(own) for name, own in laps.items()}
            speeds = " and ".join(f"{cost[name]['tokens_per_second']:.0f}" for name in ("backend", "generate_many"))
            yield Result(
                subject.name,
                "server",
                f"{REQUESTS} requests, {LISTS} lists, {case} / generate_many",
                compare(laps["backend"], laps["generate_many"]),
                "×",
                GOAL,
                note=f"{laps['backend'][0].kept:,} tokens, {speeds} tokens/s; "
                f"{cost['backend']['violations_per_1000']:.0f} violations per 1,000 kept tokens",
                figures={f"{name}_{key}": value for name, own in cost.items() for key, value in own.items()},
            )


def choose_lists(texts: Sequence[str]) -> list[BanList]:
    """Return lists of words that occur in texts, each of other ones."""
    counts = Counter(word.strip(".,!?\"'").lower() for text in texts for word in text.split())
    words = [word for word, _ in counts.most_common() if word.isalpha() and len(word) > 3]
    return [BanList([Ban(word) for word in words[20 + start :: LISTS][:LISTED]]) for start in range(LISTS)]


@contextmanager
def without_end(subject: Subject) -> Iterator[None]:
    """Have the model's texts end at their full lengths only."""
    config = subject.model.generation_config
    before = config.eos_token_id, config.pad_token_id
    config.eos_token_id, config.pad_token_id = subject.end, subject.pad
    try:
        yield
    finally:
        config.eos_token_id, config.pad_token_id = before


def _follow(bench: Bench, write: Callable[[int], Written]) -> Contestant:
    return bench.subject.follow(write, bench.race.clock)


def _write_many(
    subject: Subject, orders: Sequence[Order], lists: Sequence[BanList], sampling: Sampling, seed: int
) -> Written:
    prompts = [order.prompt.tolist() for order in orders]
    lengths = iter([len(order.prompt) + order.wanted for order in orders])
    texts = AntiSlop(subject.tokenizer, []).generate_many(
        subject.model,
        prompts,
        bans=[lists[number % LISTS] for number in range(len(orders))],
        seeds=_seeds(seed, orders),
        batch_size=PLACES,
        max_new_tokens=max(order.wanted for order in orders),
        stopping_criteria=lambda: [MaxLengthCriteria(next(lengths))],
        **sampling.generate_arguments,
    )
    return _count([(text.tokens, text.report) for text in texts])


def _write_requests(
    backend: LocalBackend,
    orders: Sequence[Order],
    lists: Sequence[BanList],
    samplings: Sequence[Sampling],
    seed: int,
) -> Written:
    compiled = [backend.bans.with_bans(bans) for bans in lists]
    requests = [
        GenerationRequest(
            prompt=order.prompt.tolist(),
            bans=compiled[number % LISTS],
            max_new_tokens=order.wanted,
            sampling=samplings[number % len(samplings)],
            seed=text_seed,
        )
        for number, (order, text_seed) in enumerate(zip(orders, _seeds(seed, orders), strict=True))
    ]

    async def write() -> list[tuple[list[int], Report]]:
        return list(await asyncio.gather(*(_read(backend, request) for request in requests)))

    return _count(asyncio.run(write()))


async def _read(backend: LocalBackend, request: GenerationRequest) -> tuple[list[int], Report]:
    report, tokens = Report(), list[int]()
    async for event in backend.write(request):
        report.add(event)
        if isinstance(event, Settled):
            tokens += event.tokens
    return tokens, report


def _seeds(seed: int, orders: Sequence[Order]) -> range:
    return range(seed * REQUESTS, seed * REQUESTS + len(orders))


def _count(texts: Sequence[tuple[list[int], Report]]) -> Written:
    return Written(
        [token for tokens, _ in texts for token in tokens],
        sum(report.forward_passes for _, report in texts),
        sum(report.violations for _, report in texts),
        sum(report.matcher_seconds for _, report in texts),
    )


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"server": measure_server}
