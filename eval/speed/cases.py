"""The benchmarks: each yields results for one model. Goals are printed beside them, and never asserted."""

from __future__ import annotations

import functools
import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import CompileConfig

from antislop import AntiSlop, BanList
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf.vocabulary import Vocabulary
from eval.speed.measuring import (
    ASSETS,
    Contestant,
    Race,
    Result,
    Skipped,
    Subject,
    Written,
    compare,
    figures,
    timed,
)
from eval.speed.phrases import choose_frequent, collect_words, invent, rank_frequent
from eval.speed.rivals import backtrack_sampler

SIZES = (0, 500, 10_000, 100_000)
FLAT = 0.99  # of an empty list's speed, which long lists keep on texts that the matcher has not read
RATES = ((10, 10, 0.95), (30, 35, 0.90))  # violations per 1,000 kept tokens: asked for, aimed at, goal
RIVAL_SHORT = 50  # tokens per text where the list is long: the rival's time per token grows with list and text
COMPILED = 100_000
START = 16  # tokens of a prompt for a static cache
STUDIED = 24  # texts whose phrases are counted
FREQUENT = 5  # occurrences in short texts that don't rule a phrase out
SERVED = 1000, 48  # the first seed and the number of the texts that a list for a server is chosen with
POOLED = 1024  # tokens of the texts that prompts are cut from
FEW = 3  # rounds at the most where one takes minutes


@dataclass(frozen=True)
class Bench:
    """One model, and the texts and settings that its benchmarks share."""

    subject: Subject
    race: Race
    is_full: bool = False

    @property
    def short_race(self) -> Race:
        """A race of one text per round for slow benchmarks, in few rounds for slow models."""
        most = self.race.rounds if self.is_full or not self.subject.is_random else min(self.race.rounds, FEW)
        return replace(self.race, rounds=most, texts=1, warm_up=1)

    @property
    def studied_tokens(self) -> int:
        """The number of tokens of each of these texts. Few words occur twice among random ids."""
        return 5000 if self.subject.is_random else self.subject.tokens

    @cached_property
    def studied(self) -> list[str]:
        """Plain texts to choose phrases from; their seeds are not timed. With random weights, random ids."""
        if self.subject.is_random:
            texts = draw_ids(self.subject, STUDIED, self.studied_tokens).tolist()
            return [str(self.subject.tokenizer.decode(ids)) for ids in texts]
        if self.subject.is_large:
            written = self.subject.write_batch(100, rows=STUDIED).tokens
            rows = torch.tensor(written).view(STUDIED, -1).tolist()
            return [self.subject.read(seed, tokens) for seed, tokens in enumerate(rows, start=100)]
        return self._write(range(100, 100 + STUDIED))

    @cached_property
    def pool(self) -> Tensor:
        """Ids [32, tokens] of the model's own texts, to cut prompts from; with random weights, random ids."""
        subject, rows = self.subject, 32
        if subject.is_random:
            return draw_ids(subject, rows, subject.positions // 2)
        start = torch.tensor([subject.tokenizer(subject.prompt(0))["input_ids"]] * rows)
        most = min(subject.positions, POOLED) - start.shape[1]
        written = subject.write_rows(start, seed=99, max_new_tokens=most)
        return torch.cat([start, torch.tensor(written.tokens).view(rows, most)], dim=1)

    @cached_property
    def raced(self) -> list[str]:
        """The texts that `generate` writes in the timed runs; none with random weights, which are slow."""
        return [] if self.subject.is_random else self._write(self.race.seeds)

    @cached_property
    def absent(self) -> list[str]:
        """Phrases that occur in none of the plain texts, as many as the longest list needs."""
        texts = self.studied + self.raced
        return invent(max(*SIZES, COMPILED), collect_words(texts, ASSETS), absent_from=texts)

    def sampler(self, phrases: Sequence[str]) -> AntiSlop:
        """Compile a sampler."""
        return AntiSlop(self.subject.tokenizer, BanList(phrases))

    def contestant(self, phrases: Sequence[str]) -> Contestant:
        """Return the sampler as a contestant."""
        return functools.partial(self.subject.write, sampler=self.sampler(phrases))

    @cached_property
    def frequent(self) -> dict[int, list[str]]:
        """For each rate of `RATES`, phrases that the sampler withdraws about that often in the timed texts."""
        return {rate: self.calibrate(aim, self.contestant, self.race.seeds) for rate, aim, _ in RATES}

    def calibrate_served(self, rate: float) -> list[str]:
        """Choose phrases that a server's texts violate about that often; large models try them in one batch."""
        first, count = SERVED
        if not self.subject.is_large:
            return self.calibrate(rate, self.contestant, range(first, first + count), tries=3)

        def contestant(phrases: Sequence[str]) -> Contestant:
            return functools.partial(self.subject.write_batch, rows=count, sampler=self.sampler(phrases))

        return self.calibrate(rate, contestant, [first], tries=3)

    def calibrate(
        self,
        rate: float,
        contestant: Callable[[Sequence[str]], Contestant],
        seeds: Iterable[int],
        *,
        tries: int = 4,
        words: int = 1,
    ) -> list[str]:
        """Choose phrases by their frequency, measure how often they are withdrawn, and correct the choice.

        contestant: returns a contestant for a list. words: the minimum per phrase.
        """
        ranked = rank_frequent(self.studied, most=max(FREQUENT, self.studied_tokens * STUDIED // 500))
        ranked = [(phrase, count) for phrase, count in ranked if len(phrase.split()) >= words]
        aim, tried = rate, []
        for _ in range(tries):
            phrases = choose_frequent(ranked, aim * self.studied_tokens * STUDIED / 1000)
            write = contestant(phrases)
            laps = [write(seed) for seed in seeds]
            measured = 1000 * sum(w.violations for w in laps) / sum(len(w.tokens) for w in laps)
            tried.append((abs(measured - rate), phrases))
            aim *= min(2.0, max(0.5, rate / measured)) if measured else 2.0
        return min(tried)[1]

    def _write(self, seeds: Iterable[int]) -> list[str]:
        return [self.subject.read(seed, self.subject.write(seed).tokens) for seed in seeds]


def draw_ids(subject: Subject, rows: int, tokens: int) -> Tensor:
    """Draw ids [rows, tokens] without special tokens, the same in every call, as texts of random weights."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(3, len(subject.tokenizer), (rows, tokens), generator=generator)


def measure_no_violation(bench: Bench) -> Iterator[Result]:
    """Compare lists of several sizes, none of whose phrases occurs, with `generate`, and `generate` with itself."""
    contestants: dict[str, Contestant] = {"generate": bench.subject.write, "again": bench.subject.write}
    contestants |= {f"{size:,}": bench.contestant(bench.absent[:size]) for size in SIZES}
    laps = bench.race.run(contestants)
    result = functools.partial(Result, bench.subject.name, "no violation", unit="×")
    plain = figures(laps["generate"])["tokens_per_second"]
    noise = compare(laps["again"], laps["generate"])
    yield result("generate / generate: the noise", noise, note=f"{plain:.0f} tokens/s")
    for size in SIZES:
        own = laps[f"{size:,}"]
        same = all(mine.texts == other.texts for mine, other in zip(own, laps["generate"], strict=True))
        note = f"{describe(figures(own))}; {'the same texts' if same else 'NOT THE SAME TEXTS'}"
        ratios = compare(own, laps["generate"])
        yield result(
            f"{size:,} phrases / generate", ratios, goal=1.0, note=note, figures={**figures(own), "phrases": size}
        )
    for size in SIZES[2:]:
        yield result(f"{size:,} phrases / none: flat", compare(laps[f"{size:,}"], laps["0"]), goal=FLAT)


def measure_violations(bench: Bench) -> Iterator[Result]:
    """Compare lists that the model often violates with `generate`; only kept tokens count."""
    contestants: dict[str, Contestant] = {"generate": bench.subject.write}
    contestants |= {f"{name}": bench.contestant(phrases) for name, phrases in bench.frequent.items()}
    laps = bench.race.run(contestants)
    for name, _, goal in RATES:
        cost = figures(laps[f"{name}"])
        yield Result(
            bench.subject.name,
            "violations",
            f"about {name} per 1,000 / generate",
            compare(laps[f"{name}"], laps["generate"]),
            "×",
            goal,
            note=f"{len(bench.frequent[name])} phrases; {describe(cost)}",
            figures=cost,
        )


def measure_rivals(bench: Bench) -> Iterator[Result]:
    """Compare the sampler with backtrack_sampler under the same lists; one text per round, since the rival is slow."""
    backtrack_sampler(bench.subject, [])  # skip before any work where it is not installed
    lists: dict[str, list[str]] = {"no phrases": [], "500 phrases, no violation": bench.absent[:500]}
    for name, often in bench.frequent.items():
        lists[f"{len(often)} phrases, about {name} per 1,000"] = often
        lists[f"500 phrases, about {name} per 1,000"] = often + bench.absent[: 500 - len(often)]
    for case, phrases in lists.items():
        yield _measure_rival(bench.subject, bench.race, case, phrases)
    short = replace(bench.subject, tokens=min(bench.subject.tokens, RIVAL_SHORT))
    yield _measure_rival(short, bench.race, f"10,000 phrases, {short.tokens} tokens", bench.absent[:10_000])


def _measure_rival(subject: Subject, race: Race, case: str, phrases: list[str]) -> Result:
    ours = functools.partial(subject.write, sampler=AntiSlop(subject.tokenizer, phrases))
    laps = replace(race, texts=1, warm_up=2).run({"ours": ours, "rival": backtrack_sampler(subject, phrases)})
    mine, other = figures(laps["ours"]), figures(laps["rival"])
    note = f"ours: {describe(mine)}; rival: {describe(other)}"
    both = mine | {f"rival_{name}": value for name, value in other.items() if not name.startswith("matcher")}
    return Result(
        subject.name,
        "backtrack_sampler",
        case,
        compare(laps["ours"], laps["rival"]),
        "×",
        10.0,
        note=note,
        figures=both,
    )


def measure_compile(bench: Bench) -> Iterator[Result]:
    """Compile 100,000 phrases; measure the time and the memory."""
    phrases, rounds = bench.absent[:COMPILED], range(bench.race.rounds)
    result = functools.partial(Result, bench.subject.name, "compile", is_floor=False)
    case = f"{COMPILED:,} phrases"
    seconds = [timed(lambda: bench.sampler(phrases), bench.race.clock)[0] for _ in rounds]
    yield result(case, seconds, unit="s", goal=2.0, note="from strings to a ready AntiSlop, vocabulary included")
    kept, peak = weigh(lambda: bench.sampler(phrases))
    note = f"tracemalloc: what stays, without the strings passed in; {peak:.0f} MB at the peak"
    yield result(f"{case}, memory", [kept], unit="MB", goal=60.0, note=note)
    yield from _measure_steps(bench, BanList(phrases))


def _measure_steps(bench: Bench, bans: BanList) -> Iterator[Result]:
    """Read the model's own texts with new matchers, then again with a matcher that has read them before."""
    tokenizer, clock = bench.subject.tokenizer, bench.race.clock
    surfaces = Vocabulary.of(tokenizer)
    texts = [tokenizer(text)["input_ids"] for text in bench.studied]
    count = sum(map(len, texts))
    result = functools.partial(Result, bench.subject.name, "compile", unit="µs", is_floor=False)
    first = []
    for _ in range(bench.race.rounds):
        matcher = Matcher(bans, surfaces)
        first.append(1e6 * timed(functools.partial(read_texts, matcher, texts), clock)[0] / count)
    yield result(
        "a matcher step, new matcher", first, goal=3.0, note=f"mean over the first {count:,} tokens that it reads"
    )
    warm = [
        1e6 * timed(functools.partial(read_texts, matcher, texts), clock)[0] / count for _ in range(bench.race.rounds)
    ]
    yield result("a matcher step, warm", warm, goal=2.0, note="the same tokens again")


def read_texts(matcher: Matcher, texts: Sequence[Sequence[int]]) -> None:
    """Read texts from their beginning."""
    for tokens in texts:
        state = matcher.start()
        for token in tokens:
            state = matcher.feed(state, token)


def weigh(work: Callable[[], object]) -> tuple[float, float]:
    """Return the megabytes that a result keeps, and the peak while it was made."""
    gc.collect()
    tracemalloc.start()
    result = work()
    gc.collect()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return kept / 1e6, peak / 1e6


def measure_static(bench: Bench) -> Iterator[Result]:
    """Compare with `generate` on a static cache, whose model torch compiles, as transformers does on a GPU."""
    if bench.subject.is_random:
        raise Skipped("static needs phrases that the model writes, so it is not measured.")
    config = CompileConfig(mode=None)
    config._compile_all_devices = True  # also on a CPU
    settings = {"cache_implementation": "static", "compile_config": config}

    def contestant(sampler: AntiSlop | None) -> Contestant:
        def write(seed: int) -> Written:
            ids = bench.pool[seed % len(bench.pool)][
                None, :START
            ]  # of one length, since a longer cache is compiled anew
            return bench.subject.write_rows(ids, seed=seed, sampler=sampler, **settings)

        return write

    rate, aim, _ = RATES[-1]
    phrases = bench.calibrate(aim, lambda own: contestant(bench.sampler(own)), bench.race.seeds)
    contestants = {"generate": contestant(None)}
    contestants |= {"none": contestant(bench.sampler(bench.absent[:500])), "often": contestant(bench.sampler(phrases))}
    for write in contestants.values():
        write(0)
    graphs = counters["stats"]["unique_graphs"]
    laps = bench.race.run(contestants)
    more = f"{counters['stats']['unique_graphs'] - graphs} compilations after the first text"
    cases = {"none": ("500 phrases, no violation", 0.97), "often": (f"about {rate} per 1,000", 0.93)}
    for name, (case, goal) in cases.items():
        cost = figures(laps[name])
        yield Result(
            bench.subject.name,
            "static",
            f"{case} / compiled generate",
            compare(laps[name], laps["generate"]),
            "×",
            goal,
            note=f"{describe(cost)}; {more}",
            figures=cost,
        )


def describe(cost: dict[str, float]) -> str:
    parts = [
        f"{cost['tokens_per_second']:.0f} tokens/s",
        f"{cost['violations_per_1000']:.1f} violations per 1,000",
        f"{cost['passes_per_token']:.3f} passes per token",
    ]
    if cost["matcher_us_per_token"]:
        parts.append(f"{cost['matcher_us_per_token']:.0f} µs of matching per token")
    return ", ".join(parts)


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "no-violation": measure_no_violation,
    "violations": measure_violations,
    "rivals": measure_rivals,
    "compile": measure_compile,
    "static": measure_static,
}
