"""The cost of bans other than plain phrases: the matcher's time per token, against a decoding step of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from antislop import Ban, BanList
from antislop.hf.vocabulary import Vocabulary
from antislop.matching.bans import distinct
from antislop.matching.scopes import Scope
from antislop.matching.token_matcher import Matcher
from eval.speed.cases import Bench, read_texts
from eval.speed.measuring import Result, Skipped, figures, timed

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


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"kinds": measure_kinds}
