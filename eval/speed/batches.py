"""The benchmarks of batches: their steps, their violations, the cost of a rewind, and prompts in flight."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, StoppingCriteria

from antislop import AntiSlop, applied_to, default_bans
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.model import TransformersModel
from antislop.core.loop.engine import PART
from antislop.core.loop.protocols import fill_left
from eval.speed.cases import RATES, Bench, describe
from eval.speed.measuring import Contestant, Lap, Result, Skipped, Subject, Written, compare, figures, timed

ROWS = (1, 8, 32)
CONTEXTS = (64, 256, 512, 1024)
STEPS = 32  # new tokens per text
FAST = {
    (8, 512): 1.18,
    (32, 256): 1.5,
}  # rows and context at which memory set aside ahead should show, where the model is large
LARGEST = 32 * 512  # tokens of a batch of random weights' prompts, without --full
QUICK = 2048  # tokens of a batch's prompts that allow for several texts per round
LISTED = 500
MANY, MANY_STEPS = 48, 48  # texts, three times the places, and tokens of each
MANY_GOALS = {"generate_many, no bans": 1.0, "generate_many, bundled list": 0.82}
BATCH = 8
START = 16  # tokens of a prompt
BACK = 5  # tokens that are taken back
REWINDS = 24  # per round, fewer if the rows would run out of tokens
PROMPTS, PLACES = 200, (16, 64)
IN_FLIGHT_GOALS = {"generate_batch": 1.0, "static batches of generate": 2.0}  # the others are for comparison
VIOLATED = 25  # violations per 1,000 kept tokens of a list in continuous batching
FEW_PROMPTS = 50  # of a large model without --full, so that a round takes about a minute
LONGEST = 1500  # tokens of a prompt in flight
PAGE = 256  # tokens of a page of continuous batching, as by default
KEY = 8  # tokens by which a prompt is known


def measure_batches(bench: Bench) -> Iterator[Result]:
    """Compare batches of several sizes and prompt lengths, without a violation, with `generate`."""
    sampler = bench.sampler(bench.absent[:LISTED])
    too_long = [context for context in CONTEXTS if context + STEPS > bench.subject.positions]
    for context in (context for context in CONTEXTS if context not in too_long):
        for rows in ROWS:
            if bench.is_full or not bench.subject.is_random or rows * context <= LARGEST:
                yield _measure_batch(bench, sampler, rows, context)
    if too_long:
        raise Skipped(
            f"its positions end at {bench.subject.positions}, so batches are not measured "
            f"at a context of {' and '.join(map(str, too_long))}."
        )


def _measure_batch(bench: Bench, sampler: AntiSlop, rows: int, context: int) -> Result:
    ids = bench.pool[:rows, :context]
    contestants = {
        name: _contestant(bench, ids, own, max_new_tokens=STEPS)
        for name, own in {"generate": None, "ours": sampler}.items()
    }
    race = bench.race if ids.numel() <= QUICK else bench.short_race
    if bench.subject.is_random:
        race = replace(bench.short_race, warm_up=int(ids.numel() <= QUICK))
    laps = race.run(contestants)
    whole = compare(laps["ours"], laps["generate"])
    same = all(mine.texts == other.texts for mine, other in zip(laps["ours"], laps["generate"], strict=True))
    own, other = (_step_ms(laps[name]) for name in ("ours", "generate"))
    return Result(
        bench.subject.name,
        "batches",
        f"{rows} × {context} tokens / generate, decoding",
        compare(laps["ours"], laps["generate"], speed="decoding_speed"),
        "×",
        FAST.get((rows, context), 1.0) if bench.subject.is_random else 1.0,
        note=f"whole calls {_spread(whole)}; a step {own:.2f} ms, generate {other:.2f} ms; {_tell_same(same)}",
        figures={"whole_call": statistics.median(whole), "step_ms": own, "generate_step_ms": other},
    )


def measure_batch_violations(bench: Bench) -> Iterator[Result]:
    """Compare lists that a batch often violates with `generate` on the same batch; only kept tokens count."""
    if bench.subject.is_random:
        raise Skipped("batch-violations is for models that write text, so it is not measured.")
    tokens = min(bench.subject.tokens, bench.subject.positions - START)
    groups = bench.pool[:, :START].reshape(-1, BATCH, START)

    def make(sampler: AntiSlop | None) -> Contestant:
        def write(seed: int) -> Written:
            ids = groups[seed % len(groups)]
            return bench.subject.write_rows(ids, seed=seed, sampler=sampler, max_new_tokens=tokens)

        return bench.subject.follow(write, bench.race.clock)

    def make_from(phrases: Sequence[str]) -> Contestant:
        return make(bench.sampler(phrases))

    lists = {rate: bench.calibrate(aim, make_from, (100, 101)) for rate, aim, _ in RATES}
    contestants = {"generate": make(None)} | {f"{rate}": make_from(phrases) for rate, phrases in lists.items()}
    laps = bench.short_race.run(contestants)
    goals = {rate: goal for rate, _, goal in RATES}
    for rate, phrases in lists.items():
        own = laps[f"{rate}"]
        cost = figures(own) | {"calls": sum(lap.calls for lap in own) / sum(lap.calls for lap in laps["generate"])}
        yield Result(
            bench.subject.name,
            "batch violations",
            f"{BATCH} rows, about {rate} per 1,000 / generate",
            compare(own, laps["generate"]),
            "×",
            goals[rate],
            note=f"{len(phrases)} phrases; {describe(cost)}; {cost['calls']:.3f} times as many runs of the model",
            figures=cost,
        )


def measure_many(bench: Bench) -> Iterator[Result]:
    """Compare batches that wait for their slowest row with `generate_many`, whose rows wait for none."""
    if bench.subject.is_random:
        raise Skipped("many is for models that write text, so it is not measured.")
    subject, race, places = replace(bench.subject, tokens=MANY_STEPS), bench.short_race, PLACES[0]
    samplers = {"no bans": AntiSlop(subject.tokenizer, []), "bundled list": AntiSlop(subject.tokenizer, default_bans())}

    def wait(sampler: AntiSlop | None, seed: int) -> Written:
        firsts = range(seed, seed + MANY, places)
        parts = [subject.write_batch(first, rows=places, sampler=sampler) for first in firsts]
        return Written([token for part in parts for token in part.tokens], sum(part.forward_passes for part in parts))

    def write_many(sampler: AntiSlop, seed: int) -> Written:
        prompts, settings = [subject.prompt(seed + number) for number in range(MANY)], subject.settings()
        del settings["return_dict_in_generate"]
        texts = list(sampler.generate_many(subject.model, prompts, batch_size=places, seed=seed, **settings))
        tokens = [token for text in texts for token in text.tokens]
        return Written(tokens, sum(text.report.forward_passes for text in texts))

    contestants: dict[str, Contestant] = {"generate": functools.partial(wait, None)}
    for name, sampler in samplers.items():
        contestants[f"generate, {name}"] = functools.partial(wait, sampler)
        contestants[f"generate_many, {name}"] = functools.partial(write_many, sampler)
    laps = race.run(contestants)
    for name, own in laps.items():
        if name == "generate":
            continue
        kept = sum(lap.kept for lap in own) / sum(lap.forward_passes for lap in own)
        note = f"{MANY} texts of {MANY_STEPS} tokens; {kept:.3f}, kept ÷ fed, is the floor of rows that do not wait"
        goal = MANY_GOALS.get(name)
        yield Result(subject.name, "many", f"{name} / generate", compare(own, laps["generate"]), "×", goal, note=note)


def measure_rewind(bench: Bench) -> Iterator[Result]:
    """Time the step after a rewind, minus a plain step of the same cache, in units of plain steps."""
    context = min(512, bench.subject.positions - 2)
    cache = _Stepped(bench.subject, bench.pool[:BATCH, :context])
    clock = bench.race.clock
    plain = [statistics.median(cache.step(0, clock) for _ in range(REWINDS)) for _ in range(bench.race.rounds)]
    cache.step(1, clock)
    costs: dict[int, list[float]] = {1: [], BATCH - 1: []}
    bases: list[float] = []
    # Of BATCH rows 1 and BATCH - 1 are rewound, so each row once per lap.
    rewinds = min(REWINDS, (context // BACK - 2) // bench.race.rounds)
    for _ in range(bench.race.rounds):
        laps: dict[int, list[float]] = {count: [] for count in (0, *costs)}
        for number in range(rewinds):
            for count in laps if number % 2 else reversed(laps):
                laps[count].append(cache.step(count, clock))
        bases.append(statistics.median(laps[0]))
        for count, own in costs.items():
            own.append(statistics.median(laps[count]) / bases[-1] - 1)
    result = functools.partial(Result, bench.subject.name, "rewind", unit="steps", is_floor=False)
    base = 1e3 * statistics.median(bases)
    for count, values in costs.items():
        case = f"{count} of {BATCH} rows back by {BACK}, {context} tokens"
        note = f"the rewind and its step, less a plain step of the same cache ({base:.2f} ms)"
        yield result(case, values, goal=0.1 if count == 1 else None, note=note)
    apart = [ragged / even for ragged, even in zip(bases, plain, strict=True)]
    note = f"plain steps after the first rewind, which need a mask, in those before it ({1e3 * min(plain):.2f} ms)"
    yield result("a step once rows are apart", apart, note=note)


class _Stepped:
    """A batch that makes one step and undoes it, so that all steps are alike."""

    def __init__(self, subject: Subject, ids: Tensor) -> None:
        self._model = TransformersModel(subject.model)
        self._cache: TransformersCache = self._model.new_cache(ids.shape[0])
        self._next = ids[:, -1:]
        with torch.no_grad():
            self._model.forward(ids, self._cache)
        self._turn = 0

    def step(self, count: int, clock: str) -> float:
        """Return the seconds of a step after `count` rows, different ones each time, were rewound."""
        rows = [(self._turn + i) % self._cache.rows for i in range(count)]
        self._turn += count
        seconds, _ = timed(functools.partial(self._step, rows), clock)
        self._cache.crop(1)
        return seconds

    @torch.no_grad()
    def _step(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._cache.rewind(row, self._cache.lengths[row] - BACK)
        self._model.forward(self._next, self._cache)


class Order(NamedTuple):
    """A prompt, ids [tokens], and its number of new tokens."""

    prompt: Tensor
    wanted: int


def measure_in_flight(bench: Bench, prompts: int | None = None) -> Iterator[Result]:
    """Compare texts of different lengths in flight with static batches and with transformers' continuous batching."""
    orders = take_orders(bench, prompts or (PROMPTS if bench.is_full or not bench.subject.is_random else FEW_PROMPTS))
    for places in PLACES if len(orders) == PROMPTS else PLACES[:1]:
        yield from _measure_places(bench, orders, places)


def _measure_places(bench: Bench, orders: Sequence[Order], places: int) -> Iterator[Result]:
    subject, race = bench.subject, bench.short_race
    sampler = bench.sampler(bench.absent[:LISTED])
    contestants: dict[str, Callable[[Sequence[Order], int, int], Written]] = {
        "in flight": functools.partial(_write_in_flight, subject, sampler),
        "generate_batch": functools.partial(_write_continuously, subject),
        "static batches of generate": functools.partial(_write_static, subject),
    }
    if not subject.is_random:
        contestants["static batches sorted by prompt"] = functools.partial(_write_sorted, subject)

    def make(write: Callable[[Sequence[Order], int, int], Written]) -> Contestant:
        def contestant(seed: int) -> Written:
            return write(orders if seed in race.seeds else orders[:8], places, seed)

        return subject.follow(contestant, race.clock)

    laps = race.run({name: make(write) for name, write in contestants.items()})
    kept = {name: own[0].kept for name, own in laps.items()}
    asked = sum(order.wanted for order in orders)
    is_right = set(kept.values()) == {asked}
    lengths = [len(order.prompt) for order in orders]
    about = (
        f"prompts of {min(lengths)} to {max(lengths)} tokens, {sum(lengths):,} in all; texts of up to "
        f"{max(order.wanted for order in orders)}, {asked:,} in all"
    )
    for name in list(laps)[1:]:
        calls = {each: laps[each][0].calls for each in ("in flight", name)}
        yield Result(
            subject.name,
            "in flight",
            f"{len(orders)} prompts, {places} rows / {name}",
            compare(laps["in flight"], laps[name]),
            "×",
            IN_FLIGHT_GOALS.get(name),
            note=f"{about}; {calls['in flight']} runs of the model, and {calls[name]}"
            + ("" if is_right else f"; NOT THE WANTED LENGTHS: {kept}"),
            figures={"calls": calls["in flight"], "calls_of_other": calls[name]},
        )


def take_orders(bench: Bench, count: int) -> list[Order]:
    """Cut prompts of 16 tokens and more from the pool; prompts and texts are mostly short and a few very long."""
    rng, subject = random.Random(count), bench.subject
    orders: dict[tuple[int, ...], Order] = {}
    while len(orders) < count:
        wanted = round(min(300, max(8, rng.lognormvariate(3.0, 0.8))))
        most = min(LONGEST, bench.pool.shape[1], subject.positions - wanted)
        length = round(min(most, max(16, rng.lognormvariate(3.7, 1.0))))
        row, start = rng.randrange(len(bench.pool)), rng.randrange(bench.pool.shape[1] - length + 1)
        prompt = bench.pool[row, start : start + length]
        if int(prompt[0]) != subject.pad:
            orders.setdefault(tuple(prompt[:KEY].tolist()), Order(prompt, wanted))
    return list(orders.values())


class _Wanted(StoppingCriteria):  # type: ignore[misc]
    """Ends each text at its own length, which is looked up by the first tokens of its prompt."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._totals = {tuple(order.prompt[:KEY].tolist()): len(order.prompt) + order.wanted for order in orders}

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:  # noqa: ARG002
        done = [input_ids.shape[1] >= self._totals[tuple(ids[:KEY].tolist())] for ids in input_ids]
        return torch.tensor(done, device=input_ids.device)


def _write_static(subject: Subject, orders: Sequence[Order], places: int, seed: int) -> Written:
    """Write batches in order; each ends with its longest text."""
    torch.manual_seed(seed)
    tokens: list[int] = []
    for first in range(0, len(orders), places):
        batch = orders[first : first + places]
        padded = fill_left([order.prompt.tolist() for order in batch])
        settings = {**subject.settings(), "max_new_tokens": max(order.wanted for order in batch)}
        ids, mask = padded.masked_fill(padded < 0, subject.pad), (padded >= 0).long()
        sequences = subject.model.generate(ids, attention_mask=mask, **settings).sequences[:, ids.shape[1] :].tolist()
        for own, order in zip(sequences, batch, strict=True):
            tokens += own[: order.wanted]
    return Written(tokens, forward_passes=0)


def _write_sorted(subject: Subject, orders: Sequence[Order], places: int, seed: int) -> Written:
    return _write_static(subject, sorted(orders, key=lambda order: len(order.prompt)), places, seed)


def measure_continuous(bench: Bench) -> Iterator[Result]:
    """Compare `generate_batch` inside `applied_to` with the plain one: no violation, and about 25 per 1,000 tokens."""
    if bench.subject.is_random:
        raise Skipped("continuous is for models that write text, so it is not measured.")
    subject, race, places = bench.subject, bench.short_race, PLACES[0]
    orders = take_orders(bench, FEW_PROMPTS)

    def make_alone(phrases: Sequence[str]) -> Contestant:
        return subject.follow(lambda seed: subject.write(seed, bench.sampler(phrases)), race.clock)

    lists = {0: bench.absent[:LISTED], VIOLATED: bench.calibrate(VIOLATED, make_alone, (100, 101))}

    def make(sampler: AntiSlop | None) -> Contestant:
        def write(seed: int) -> Written:
            with nullcontext() if sampler is None else applied_to(subject.model, sampler):
                return _write_continuously(subject, orders if seed in race.seeds else orders[:8], places, seed)

        return subject.follow(write, race.clock)

    contestants = {"plain": make(None)} | {f"{rate}": make(bench.sampler(own)) for rate, own in lists.items()}
    laps = race.run(contestants)
    for rate, phrases in lists.items():
        floors = [plain.calls / own.calls for plain, own in zip(laps["plain"], laps[f"{rate}"], strict=True)]
        yield Result(
            subject.name,
            "continuous",
            f"{places} requests, about {rate} per 1,000 / plain generate_batch",
            compare(laps[f"{rate}"], laps["plain"]),
            "×",
            0.98 * statistics.median(floors),
            note=f"{len(phrases)} phrases; {statistics.median(floors):.3f} would be the floor by runs of the model",
            figures={"floor": statistics.median(floors)},
        )


def _write_continuously(subject: Subject, orders: Sequence[Order], places: int, seed: int) -> Written:
    """Write with the manager behind `generate_batch`, which takes a length for each prompt; attention is torch's."""
    pages = sorted(math.ceil((len(order.prompt) + order.wanted) / PAGE) for order in orders)
    settings = {**subject.settings(), "max_new_tokens": None, "return_dict_in_generate": False}
    config = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=2 * sum(pages[-places:]),
        max_batch_tokens=PART,
        max_requests_per_batch=places,
        seed=seed,
    )
    tokens: list[int] = []
    with subject.model.continuous_batching_context_manager(
        generation_config=GenerationConfig(**settings), continuous_batching_config=config, warmup=False
    ) as manager:
        for order in orders:
            manager.add_request(order.prompt.tolist(), max_new_tokens=order.wanted)
        for result in itertools.islice(manager, len(orders)):
            tokens += result.generated_tokens
    return Written(tokens, forward_passes=0)


def _write_in_flight(subject: Subject, sampler: AntiSlop, orders: Sequence[Order], places: int, seed: int) -> Written:
    settings = {**subject.settings(), "max_new_tokens": max(order.wanted for order in orders)}
    del settings["return_dict_in_generate"]
    texts = list(
        sampler.generate_many(
            subject.model,
            [order.prompt for order in orders],
            batch_size=places,
            seed=seed,
            stopping_criteria=[_Wanted(orders)],
            **settings,
        )
    )
    return Written(
        [token for text in texts for token in text.tokens],
        sum(text.report.forward_passes for text in texts),
        sum(text.report.violations for text in texts),
        sum(text.report.matcher_seconds for text in texts),
    )


def _contestant(bench: Bench, ids: Tensor, sampler: AntiSlop | None, **settings: Any) -> Contestant:
    def write(seed: int) -> Written:
        return bench.subject.write_rows(ids, seed=seed, sampler=sampler, **settings)

    return bench.subject.follow(write, bench.race.clock)


def _step_ms(laps: Sequence[Lap]) -> float:
    """Return the milliseconds of a step, without the time for prompts."""
    return statistics.median(1e3 * lap.step_seconds for lap in laps)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}× ({min(values):.3g} … {max(values):.3g})"


def _tell_same(same: bool) -> str:
    return "the same texts" if same else "NOT THE SAME TEXTS"


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "batches": measure_batches,
    "batch-violations": measure_batch_violations,
    "many": measure_many,
    "rewind": measure_rewind,
    "in-flight": measure_in_flight,
    "continuous": measure_continuous,
}
