"""What does `antislop.loops()` find in what people wrote, and what does the search cost while nothing repeats?"""

from __future__ import annotations

import random
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import antislop
from antislop import AntiSlop, BanList
from antislop.errors import InputError
from antislop.files.disk import read_text
from eval.command import Work, answer_question
from eval.passages import read_novels
from eval.repetition import HELD, count_held, describe_held
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import PROMPTS, Subject

CODE = ("*.py",)
PAGES = ("*.md", "*.rst", "*.dist-info/METADATA")
"""Code and pages with tables, by their names."""
TESTS = {"test", "tests", "idle_test"}
EXCERPT = 60
FOUND = ("file", "line", "the loop begins with")
COSTS = ("model", "the matcher's share of the time, %", "time against an empty list")
QUESTION = "Which loops are found in what people wrote, and what does the search cost while nothing repeats?"
NOTES = (
    "Code: Python's standard library; its tests apart. Pages: Markdown and reStructuredText of the installed packages, "
    "and their descriptions. Files of both are read in a random order that is always the same.",
    "A loop is listed with the line of its second copy.",
    "Held back: how many tokens a stream under loops() has not yet shown after a token; 1 is the least, with any list.",
    "The share is of wall time, by the matcher's own clock; the ratio of CPU time to that under an empty list is the "
    "median of six seeds, both in turn.",
)
LIMITS = (
    "A loop that people wrote is no error of the matcher: verses, filler text and tables of test data repeat a passage "
    "as models do, and are listed so that it can be judged what would be lost. The files are those of this machine. "
    "The models are tiny, so that the matcher's share is larger than with any model that is used."
)


class Size(NamedTuple):
    """Words of novels, and of each other kind, at most; tokens and seeds of the texts that are timed.

    streamed: characters of each novel that are counted as a stream.
    """

    novels: int
    files: int
    tokens: int
    seeds: int
    streamed: int


SIZES = {
    "full": Size(2_000_000, 600_000, 200, 6, 5000),
    "quick": Size(100_000, 50_000, 100, 3, 1000),
    "smallest": Size(100, 3000, 24, 1, 100),
}


class Find(NamedTuple):
    """A loop in a file: the line where it begins, and its beginning."""

    file: str
    line: int
    excerpt: str


class Reading(NamedTuple):
    """What was read of one kind, and what was found."""

    kind: str
    words: int
    finds: list[Find]


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("people", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    """Read what people wrote, and time the search with each model."""
    notes, size = list(NOTES), SIZES[work.setting]
    readings = list(read_people(novels=size.novels, files=size.files))
    costs, held = list[list[Cell]](), list[list[Cell]]()
    for subject, _ in work.load_models(SIZES, notes):
        costs.append([subject.name, *time_steps(subject, seeds=size.seeds)])
        held.append([subject.name, *describe_held(read_streams(subject, size.streamed))])
    tables = [
        Table("What people wrote", ("texts", "words", "loops"), [[r.kind, r.words, len(r.finds)] for r in readings]),
        *(Table(f"Loops in {reading.kind}", FOUND, reading.finds) for reading in readings if reading.finds),
        Table("Cost", COSTS, costs),
        Table("Held back from streams of novels, tokens", HELD, held),
    ]
    verdicts = [f"{len(r.finds)} loops in {r.words:,} words of {r.kind}." for r in readings]
    return Answer(
        "people", QUESTION, [table for table in tables if table.rows], verdicts, LIMITS, notes, size._asdict()
    )


def read_people(*, novels: int, files: int) -> Iterator[Reading]:
    """Yield what is found in novels, code and pages.

    novels, files: words of novels, and of each other kind, at most, to the end of a text.
    """
    numbered = ((f"novel {number}", text) for number, text in enumerate(read_novels(), 1))
    yield search("novels", numbered, novels)
    stdlib, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    code = list(read_files(stdlib, CODE))
    yield search("code", (each for each in code if not is_test(each[0])), files)
    yield search("tests of code", (each for each in code if is_test(each[0])), files)
    yield search("pages", read_files(packages, PAGES), files)


def is_test(path: str) -> bool:
    """Return whether a file lies in a folder of tests, whose data repeat on purpose."""
    return not TESTS.isdisjoint(path.split("/")[:-1])


def read_files(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts in a fixed order without meaning; what isn't UTF-8 is left out."""
    paths = sorted({path.relative_to(folder).as_posix() for name in names for path in folder.rglob(name)})
    random.Random(0).shuffle(paths)
    for path in paths:
        if "site-packages" not in path:
            with suppress(InputError):
                yield path, read_text(folder / path)


def search(kind: str, texts: Iterable[tuple[str, str]], words: int) -> Reading:
    bans, read, finds = antislop.loops(), 0, list[Find]()
    for name, text in texts:
        if read >= words:
            break
        read += len(text.split())
        for match in bans.find(text):
            line = text.count("\n", 0, match.start) + 1
            finds.append(Find(name, line, quote(text[match.start : match.end], EXCERPT)))
    return Reading(kind, read, finds)


def read_streams(subject: Subject, characters: int) -> list[int]:
    """Return how many tokens are held back after each token of the middle of each novel."""
    middles = [novel[len(novel) // 2 :][:characters] for novel in read_novels()] or [" ".join(PROMPTS)]
    return [count for middle in middles for count in count_held(subject, "", subject.tokenizer(middle)["input_ids"])]


def time_steps(subject: Subject, *, seeds: int) -> list[Cell]:
    """Return the matcher's share of the time in percent, and the time against an empty list."""
    plain, banned = (AntiSlop(subject.tokenizer, bans) for bans in (BanList([]), antislop.loops()))
    ratios = [_time(subject, banned, seed) / _time(subject, plain, seed) for seed in range(seeds)]
    shares = [_measure_share(subject, banned, seed) for seed in range(seeds)]
    return [100 * median(shares), median(ratios)]


def _time(subject: Subject, sampler: AntiSlop, seed: int) -> float:
    began = time.process_time()
    subject.write(seed, sampler)
    return time.process_time() - began


def _measure_share(subject: Subject, sampler: AntiSlop, seed: int) -> float:
    began = time.perf_counter()
    seconds = subject.write(seed, sampler).matcher_seconds
    return seconds / (time.perf_counter() - began)


def quote(text: str, size: int) -> str:
    """Return the beginning of a text as a cell of a table."""
    return "`" + " ".join(text.split())[:size].replace("`", "'").replace("|", r"\|") + "`"


if __name__ == "__main__":
    sys.exit(main())
