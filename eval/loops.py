"""Do greedy texts still repeat themselves under `antislop.loops()`, and what does that cost?

    python -m eval.loops [--tokens N] [--openings N]

Prints figures: greedy continuations of the bundled openings by the bundled model, with and without the ban, and under a
regex with a back-reference; hits in human novels; the share of a step that the search takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

import antislop
from antislop import AntiSlop, Ban, BanList
from antislop.data import FOLDER
from antislop.files import read_text
from antislop.trace.report import Report
from eval.passages import read_novels
from eval.speed.measuring import Skipped, Subject, load

REPETITION = r"(?s)\b(\w.{13,90}?)\1\1"
"""What a regex can say of a loop in the time that it is given."""
WORDS = 4
"""Words of the sequences by which repetition is measured, loops or not."""
STEPS = ("tiny", "stories3M")
"""The models whose steps are timed."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--openings", type=int, default=24)
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    for line in (*_write_texts(options.openings, options.tokens), *_read_novels(), *_time_steps(options.tokens)):
        console.print(line)
    return 0


@dataclass
class Totals:
    """Sums over greedy texts.

    looping: texts with a loop.
    conceded: bans that were let through.
    repetitive: texts of which more than half is repetition.
    repeated: sum over the texts of the share of repetition, see `measure_repetition`.
    dropped: given-up searches.
    """

    texts: int = 0
    looping: int = 0
    kept: int = 0
    withdrawn: int = 0
    conceded: int = 0
    repeated: float = 0.0
    repetitive: int = 0
    dropped: int = 0

    def add(self, text: str, report: Report, *, kept: int) -> None:
        """Add a text of `kept` tokens, its opening included in the text."""
        repeated = measure_repetition(text)
        self.texts += 1
        self.looping += bool(antislop.loops().find(text))
        self.kept += kept
        self.withdrawn += report.withdrawn_tokens
        self.conceded += report.conceded
        self.repeated += repeated
        self.repetitive += repeated > 0.5
        self.dropped += len(report.timed_out)

    def describe(self) -> str:
        return (
            f"{self.looping} of {self.texts} texts loop; {self.kept} tokens kept, {self.withdrawn} withdrawn "
            f"({self.withdrawn / self.kept:.2f} per kept one), {self.conceded} conceded; "
            f"{self.repeated / self.texts:.0%} of the sequences of {WORDS} words occur earlier in their text, "
            f"more than half in {self.repetitive}" + (", and the search was given up" if self.dropped else "")
        )


def measure_repetition(text: str) -> float:
    """Return the share of the sequences of `WORDS` words that occur earlier in the text.

    >>> measure_repetition("ha ha ha ha ha")
    0.5
    """
    words = text.lower().split()
    sequences = list(zip(*(words[start:] for start in range(WORDS)), strict=False))
    return 1 - len(set(sequences)) / len(sequences) if sequences else 0.0


def _write_texts(openings: int, tokens: int) -> list[str]:
    model, tokenizer = antislop.tiny_model()
    prompts = read_text(FOLDER / "openings.txt").splitlines()[:openings]
    lists = {
        "plain": BanList([]),
        "Ban.loop()": antislop.loops(),
        "back-reference": BanList([Ban.regex(REPETITION, max_span=280)]),
    }
    lines = []
    for name, bans in lists.items():
        sampler, totals = AntiSlop(tokenizer, bans), Totals()
        for prompt in prompts:
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
            text, report = _complete(sampler, model, ids, tokens)
            totals.add(tokenizer.decode(text, skip_special_tokens=True), report, kept=len(text) - ids.shape[1])
        lines.append(f"{name}: {totals.describe()}")
    return lines


def _complete(sampler: AntiSlop, model: Any, ids: torch.Tensor, tokens: int) -> tuple[list[int], Report]:
    output = sampler.generate(model, ids, do_sample=False, max_new_tokens=tokens, return_dict_in_generate=True)
    return output.sequences[0].tolist(), output.report


def _read_novels() -> list[str]:
    novels = read_novels()
    if not novels:
        return ["novels: ../shared/assets/human is not beside this repository, so they are not read."]
    words = sum(len(text.split()) for text in novels)
    hits = sum(len(antislop.loops().find(text)) for text in novels)
    return [f"novels: {hits} hits in {words:,} words, {hits / words * 100_000:.2f} in 100,000"]


def _time_steps(tokens: int) -> list[str]:
    lines = []
    for name in STEPS:
        try:
            subject = load(name, tokens)
        except Skipped as error:
            lines.append(str(error))
            continue
        plain, banned = (AntiSlop(subject.tokenizer, bans) for bans in (BanList([]), antislop.loops()))
        ratios = [_time(subject, banned, seed) / _time(subject, plain, seed) for seed in range(6)]
        share = [_share(subject, banned, seed) for seed in range(3)]
        middle: Callable[[list[float]], float] = lambda values: sorted(values)[len(values) // 2]  # noqa: E731
        lines.append(
            f"{name}: the matcher takes {middle(share):.1%} of the time; {middle(ratios):.3f} of an empty list"
        )
    return lines


def _time(subject: Subject, sampler: AntiSlop, seed: int) -> float:
    began = time.process_time()
    subject.write(seed, sampler)
    return time.process_time() - began


def _share(subject: Subject, sampler: AntiSlop, seed: int) -> float:
    began = time.perf_counter()
    seconds = subject.write(seed, sampler).matcher_seconds
    return seconds / (time.perf_counter() - began)


if __name__ == "__main__":
    raise SystemExit(main())
