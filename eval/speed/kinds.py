"""The cost of matching: kinds of bans, tokens at their first look, a million phrases."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from unittest.mock import patch

import antislop.core.bans.token_matcher
from antislop import Ban, BanList
from antislop.core.bans.bans import distinct
from antislop.core.bans.scopes import Scope
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf.vocabulary import Vocabulary
from eval.speed.cases import Bench, read_texts, weigh
from eval.speed.measuring import ASSETS, Contestant, Result, Skipped, compare, figures, timed
from eval.speed.phrases import collect_words, invent

WORDS = """
testament tapestry whisper shiver symphony kaleidoscope delve gaze breath heart
shadow silence glimmer echo dance flicker ember mosaic beacon labyrinth
"""
SHAPES = (
    r"\b(?:a|an|the)\s+{0}\s+of\s+\w+",
    r"(?i)\b{0}(?:s|ed|ing)?\b[^.!?]{{0,40}}\blike\b",
    r"(?i)\bnot\s+(?:just|only|merely)\b[^.!?]{{0,60}}\b{0}",
)
REGEXES = 50
SHARE = 0.05  # of a decoding step
FREE = 0.01  # what can't be told from nothing, where a step itself varies by more
FIRST_LOOK = 3.0  # µs per transition that is not known yet
REMEMBERED = 200.0  # bytes per transition
MANY = 1_000_000
FLAT = 0.99  # of an empty list's speed, on texts that were never read


def measure_kinds(bench: Bench) -> Iterator[Result]:
    """Read the model's own texts, which the matcher has read once, with lists of several kinds."""
    if bench.subject.is_random:
        raise Skipped("kinds is for models that write text, so it is not measured.")
    laps = bench.race.run({"generate": bench.subject.write})["generate"]
    step = 1e6 / figures(laps)["tokens_per_second"]
    phrases = _time_reading(bench, list(map(Ban, bench.absent[:500])))
    yield _tell(bench, "500 phrases", phrases, step, goal=None)
    yield _tell(bench, f"{REGEXES} regexes", _time_reading(bench, regexes()), step, goal=SHARE)
    sequences = [Ban.words(phrase.split(), gap=2, skip_stop_words=True) for phrase in bench.absent[:1000]]
    yield _tell(
        bench, "1,000 sequences of words with gaps", _time_reading(bench, distinct(sequences)), step, goal=SHARE
    )
    for name, rules in (
        ("an exempt list of 20", {"exempt": bench.absent[500:520]}),
        ("one free per 1,000 words", {"at_most": 1, "per_words": 1000}),
        ("outside of quotes", {"scopes": [Scope("outside", "quotes")]}),
    ):
        ruled = [replace(Ban(phrase), **rules) for phrase in bench.absent[:500]]  # type: ignore[arg-type]
        more = [own - plain for own, plain in zip(_time_reading(bench, ruled), phrases, strict=True)]
        yield _tell(bench, f"500 phrases, {name}: on top of phrases", more, step, goal=FREE)


def regexes() -> list[Ban]:
    """Make regexes of the shapes in published lists, whose first words occur in the texts."""
    patterns = [shape.format(word) for shape in SHAPES for word in WORDS.split()]
    return list(map(Ban.regex, patterns[:REGEXES]))


def _time_reading(bench: Bench, bans: Sequence[Ban]) -> list[float]:
    """Return the microseconds per token of each round, with a matcher that has read the texts once."""
    texts = [bench.subject.tokenizer(text)["input_ids"] for text in bench.studied]
    count, surfaces = sum(map(len, texts)), Vocabulary.of(bench.subject.tokenizer)
    times = []
    for _ in range(bench.race.rounds):
        matcher = Matcher(BanList(bans), surfaces)
        read_texts(matcher, texts)
        times.append(1e6 * timed(functools.partial(read_texts, matcher, texts), bench.race.clock)[0] / count)
    return times


def _tell(bench: Bench, case: str, times: Sequence[float], step: float, *, goal: float | None) -> Result:
    shares = [time / step for time in times]
    note = f"{min(times):.1f} … {max(times):.1f} µs of {step:.0f} µs that a token takes"
    return Result(bench.subject.name, "kinds", case, shares, "steps", goal, is_floor=False, note=note)


def measure_first_looks(bench: Bench) -> Iterator[Result]:
    """Read the model's own texts with new matchers: the time that each transition costs when it is first needed."""
    result = functools.partial(Result, bench.subject.name, "first-looks", is_floor=False)
    surfaces = Vocabulary.of(bench.subject.tokenizer)
    texts = [bench.subject.tokenizer(text)["input_ids"] for text in bench.studied]
    with patch.object(antislop.core.bans.token_matcher, "TRANSITIONS_KEPT", MANY):
        for size in (500, 10_000, 100_000):
            bans, costs = BanList(bench.absent[:size]), []
            for _ in range(bench.race.rounds):
                matcher = Matcher(bans, surfaces)
                first, again = (
                    timed(functools.partial(read_texts, matcher, texts), bench.race.clock)[0] for _ in range(2)
                )
                costs.append(1e6 * (first - again) / matcher.transition_count)
            note = f"{matcher.transition_count:,} transitions of {sum(map(len, texts)):,} tokens"
            yield result(f"{size:,} phrases, a transition", costs, unit="µs", goal=FIRST_LOOK, note=note)
        kept, _ = weigh(lambda: _read_at_random(matcher, range(len(bench.subject.tokenizer)), count=300_000))
        case = f"{size:,} phrases, memory of a transition"
        yield result(case, [1e6 * kept / 300_000], unit="bytes", goal=REMEMBERED, note="random tokens, nodes included")


def _read_at_random(matcher: Matcher, tokens: Sequence[int], *, count: int) -> Matcher:
    """Read random tokens until a matcher has `count` transitions more."""
    chance, state, before = random.Random(0), matcher.start(), matcher.transition_count
    while matcher.transition_count < before + count:
        state = matcher.feed(state, chance.choice(tokens))
        if state.length == 200:
            state = matcher.start()
    return matcher


def measure_million(bench: Bench) -> Iterator[Result]:
    """Compile a million phrases, and write texts that the matcher has never read, against an empty list."""
    if bench.subject.is_random:
        raise Skipped("million is for models that write text, so it is not measured.")
    texts = bench.studied + bench.raced
    phrases = invent(MANY, collect_words(texts, ASSETS), absent_from=texts)
    result = functools.partial(Result, bench.subject.name, "million")
    seconds, sampler = timed(lambda: bench.sampler(phrases), bench.race.clock)
    yield result("compile", [seconds], unit="s", goal=20.0, is_floor=False, note="from strings to a ready AntiSlop")
    own: Contestant = functools.partial(bench.subject.write, sampler=sampler)
    laps = bench.race.run({"own": own, "none": bench.contestant([])})
    yield result("unread texts / an empty list", compare(laps["own"], laps["none"]), unit="×", goal=FLAT)
    del sampler, own
    kept, peak = weigh(lambda: bench.sampler(phrases))
    note = f"tracemalloc: what stays, without the strings passed in; {peak:.0f} MB at the peak"
    yield result("memory", [kept], unit="MB", goal=500.0, is_floor=False, note=note)


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "kinds": measure_kinds,
    "first-looks": measure_first_looks,
    "million": measure_million,
}
