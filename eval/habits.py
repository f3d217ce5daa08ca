"""What does a model overuse, against people? A profile of its texts is compared with novels, and makes its own list.

The texts continue 160 beginnings of stories and 160 assignments, each a combination of parts that are listed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import antislop
from antislop import BanList
from antislop.errors import BanError
from antislop.files.models import ModelSpec
from antislop.files.texts import read_texts
from antislop.measure.profiles.profiles import Entry, Profile
from antislop.measure.profiles.to_bans import Choice, choose_bans
from eval import ROOT
from eval.command import Work, answer_question, describe_size
from eval.passages import cut_passages, read_novels
from eval.prompts import list_openings, list_requests
from eval.qualities import count_leaks, count_words
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import Subject
from eval.tuning import run
from tests.support.llama_cpp import serve_llama_cpp

SHOWN = 30  # entries of the list
SLOTS, CONTEXT = 16, 1024  # texts at once, and their positions
ROWS = 64  # texts of a small chat model at once


class Size(NamedTuple):
    """The number of openings or requests, the most tokens of a text, and what an entry of the list must have at least.

    prompts: from which it comes.
    ratio: to what people write.
    """

    openings: int
    tokens: int
    prompts: int = 4
    ratio: float = 3.0


SIZES = {
    "full": Size(320, 500),
    "chat, full": Size(620, 300),
    "quick": Size(40, 200),
    "smallest": Size(16, 60, prompts=2, ratio=1.0),
}
QUESTION = "Which words and phrases does a model write much more often than people do, and what do lists find of them?"
ENTRIES = ("entry", "occurrences", "per million words", "people, per million", "times as often, at least", "prompts")
LISTS = ("list", "entries", "hits per 1,000 words", "hits per 1,000 words of novels", "entries in the model's own list")
NOTES = (
    "The texts continue openings that combine beginnings with places, and assignments with topics; chat models answer "
    "requests for stories and for other texts. What the opening or request of a text contains is not counted in that "
    "text, and what comes from few of them is left out of the list.",
    "Times as often: the lower end of the 95 % interval. People's rate is an upper bound if the novels don't contain "
    "an entry.",
    "min-p 0.02 at temperature 1; chat models top-p 0.95 at temperature 0.7. llama.cpp writes the texts "
    "of Gemma 3 270M, from the package's file, and transformers those of other models.",
)
LIMITS = (
    "People are novels before 1930, and frequencies of modern words: what is modern, or belongs to the web, counts as "
    "overused too. A base model continues web text, and has other habits than a chat model has."
)


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question("habits", __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    notes = list(NOTES)
    tables: list[Table] = []
    verdicts: list[str] = []
    settings: dict[str, Any] = {}
    for subject, size in work.load_models(SIZES, notes):
        settings |= describe_size(subject, size)
        folder = ROOT / "build" / "habits" / f"{subject.name}-{work.setting}"
        openings = list_requests() if subject.is_chat else list_openings()
        texts = write_texts(subject, openings[:: max(1, len(openings) // size.openings)], size, folder, work.seed)
        bans, entries = make_list(subject.name, folder, size, work.out / f"bans-{subject.name}.txt")
        tables += [
            Table(f"{subject.name}: what it overuses", ENTRIES, [describe(entry) for entry in entries[:SHOWN]]),
            Table(f"{subject.name}: lists", LISTS, list(compare_lists(bans, texts))),
        ]
        verdicts.append(f"{subject.name}: {len(texts)} texts, {count_words(texts):,} words, {len(bans)} entries.")
    return Answer("habits", QUESTION, tables, verdicts, LIMITS, notes, settings)


def write_texts(subject: Subject, openings: Sequence[str], size: Size, folder: Path, seed: int) -> list[str]:
    """Let the model write; go on where an earlier run was interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts, records = folder / "prompts.jsonl", folder / "run.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": text}]} if subject.is_chat else {"prompt": text} for text in openings
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    sampling = ("--temperature", 0.7, "--top-p", 0.95, "--min-p", 0) if subject.is_chat else ("--min-p", 0.02)
    length = ("--max-new-tokens", size.tokens, "--seed", seed, "--batch-size", ROWS if subject.is_chat else SLOTS)
    with choose_engine(subject) as engine:
        run("dataset", prompts, "-o", records, "--arms", "plain", "--no-bans", *length, *sampling, *engine)
    return [text.text for text in read_texts([records])]


@contextmanager
def choose_engine(subject: Subject) -> Iterator[Sequence[object]]:
    """Yield the options of `antislop dataset` for a model.

    Where a package carries a base model, llama.cpp writes from its file: for Gemma, with its large vocabulary, in half
    the time. Chat models are left to transformers, which writes many texts at once faster.
    """
    folder, carried = subject.model.name_or_path, ModelSpec(subject.name).carried
    path = None if carried is None or subject.is_chat else carried.find_gguf()
    if path is None:
        yield ("--model", folder)
        return
    with serve_llama_cpp(path, slots=SLOTS, context=CONTEXT) as process:
        yield ("--engine", "openai", "--base-url", f"{process.url}/v1", "--model", subject.name, "--tokenizer", folder)


def make_list(name: str, folder: Path, size: Size, path: Path) -> tuple[BanList, list[Entry]]:
    """Make a list of what a model overuses; return the list, which may be empty, and its entries in the profile."""
    run("profile", folder / "run.jsonl", "-o", folder / "profile.json")
    profile = Profile.load(folder / "profile.json")
    source = f"{name}: {profile.texts:,} texts, {profile.words:,} words, against novels; python -m eval.habits"
    choice = Choice(min_ratio=size.ratio, min_prompts=size.prompts)
    try:
        bans = choose_bans(profile, choice, source=source).bans
    except BanError:  # no entry is left
        bans = BanList([])
    path.parent.mkdir(parents=True, exist_ok=True)
    bans.save(path)
    known = {entry.text: entry for entry in profile.entries if entry.kind in ("word", "phrase")}
    return bans, [known[ban.text] for ban in bans if ban.text in known]


def describe(entry: Entry) -> list[Cell]:
    return [entry.text, entry.count, entry.per_million, entry.human_per_million, entry.low, entry.prompts]


def compare_lists(own: BanList, texts: Sequence[str]) -> Iterator[list[Any]]:
    """Yield a row for each list: what it finds in the model's texts, and in novels."""
    novels = [passage for novel in read_novels() for passage in cut_passages(novel)]  # a regex has its time per text
    lists = {"the model's own": own, "bundled": antislop.default_bans(), "bundled, held out": antislop.held_out_bans()}
    lists |= {"constructions": antislop.constructions(), "loops": antislop.loops()}
    for name, bans in lists.items():
        hits = [1000 * count_leaks(bans, each) / count_words(each) if each else None for each in (texts, novels)]
        yield [name, len(bans), *hits, len(own) - len(own - bans)]


if __name__ == "__main__":
    sys.exit(main())
