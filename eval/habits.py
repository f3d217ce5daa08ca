"""What does a model overuse, against people? A profile of its texts is compared with novels, and makes its own list.

The texts continue 160 beginnings of stories and 160 assignments, each a combination of parts that are listed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import antislop
from antislop import BanList
from antislop.errors import BanError
from antislop.profiles.profiles import Entry, Profile
from antislop.profiles.to_bans import Choice, choose_bans
from antislop.records.texts import read_texts
from eval import ROOT, gemma
from eval.command import Work, answer_question, describe_size
from eval.passages import cut_passages, read_novels
from eval.qualities import count_leaks, count_words
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import Subject
from eval.tuning import run
from tests.support.llama_cpp import serve_llama_cpp

SHOWN = 30  # entries of the list
SLOTS, CONTEXT = 16, 1024  # texts at once, and their positions
STARTS = (
    "The old house at the edge of {0} had been empty for years, until",
    "Nobody in {0} talked about the winter when",
    "My grandmother was born in {0}, and she",
    "The train to {0} stopped between two stations, and",
    "On the first morning of the harvest in {0},",
    "The letter from {0} had been opened before",
    "She had been the doctor of {0} for thirty years when",
    "They had built the bridge to {0} so badly that",
    "When the lights went out in {0}, the two brothers",
    "He came back to {0} with nothing but",
)
PLACES = (
    *("the village", "the harbor", "a small town in the hills", "the capital", "the valley", "the island"),
    *("the mining town", "the old fortress", "the fishing village", "the last station", "the monastery"),
    *("the border", "the river delta", "the northern coast", "the desert city", "the forest"),
)
ASSIGNMENTS = (
    "Write a short story about {0}.\n\n",
    "Here is an essay of five paragraphs about {0}:\n\n",
    "Q: Tell me about {0}. What should a beginner know?\nA:",
    "Below is an instruction. Write a response that completes it.\n\nInstruction: Describe {0}.\n\nResponse:",
    "Blog post: Ten things that I learned about {0}\n\n",
    "Dear editor,\n\nI write to you about {0}.",
    "Review of a book about {0}: ",
    "A speech for the opening of a museum about {0}:\n\nLadies and gentlemen,",
    "Explain {0} to a child of eight.\n\n",
    "A scene in a novel, in which two strangers talk about {0}:\n\n",
)
TOPICS = (
    *("a lighthouse", "the invention of the clock", "a lost dog", "growing tomatoes", "the sea", "a night train"),
    *("friendship", "the first day at a new school", "bread", "an old map", "the moon", "a family dinner"),
    *("climbing a mountain", "a broken violin", "the future of cities", "forgiveness"),
)


def list_openings() -> list[str]:
    """Return the beginnings of stories, then the assignments."""
    parts = ((STARTS, PLACES), (ASSIGNMENTS, TOPICS))
    return [form.format(topic) for forms, topics in parts for form, topic in product(forms, topics)]


class Size(NamedTuple):
    """The number of openings, the most tokens of a text, and what an entry of the list must have at least.

    prompts: from which it comes.
    ratio: to what people write.
    """

    openings: int
    tokens: int
    prompts: int = 4
    ratio: float = 3.0


SIZES = {"full": Size(320, 500), "quick": Size(40, 200), "smallest": Size(16, 60, prompts=2, ratio=1.0)}
QUESTION = "Which words and phrases does a model write much more often than people do, and what do lists find of them?"
ENTRIES = ("entry", "occurrences", "per million words", "people, per million", "times as often, at least", "prompts")
LISTS = ("list", "entries", "hits per 1,000 words", "hits per 1,000 words of novels", "entries in the model's own list")
NOTES = (
    "The texts continue openings that combine beginnings with places, and assignments with topics. What an opening "
    "contains is left out of the list, and so is what comes from few openings.",
    "Times as often: the lower end of the 95 % interval. People's rate is an upper bound if the novels don't contain "
    "an entry.",
    "min-p 0.02, temperature 1. Gemma's texts are written by llama.cpp from the package's own file (Q4_K_M), others by "
    "transformers.",
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
        texts = write_texts(subject, size, folder, work.seed)
        bans, entries = make_list(subject.name, folder, size, work.out / f"bans-{subject.name}.txt")
        tables += [
            Table(f"{subject.name}: what it overuses", ENTRIES, [describe(entry) for entry in entries[:SHOWN]]),
            Table(f"{subject.name}: lists", LISTS, list(compare_lists(bans, texts))),
        ]
        verdicts.append(f"{subject.name}: {len(texts)} texts, {count_words(texts):,} words, {len(bans)} entries.")
    return Answer("habits", QUESTION, tables, verdicts, LIMITS, notes, settings)


def write_texts(subject: Subject, size: Size, folder: Path, seed: int) -> list[str]:
    """Let the model write; go on where an earlier run was interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    openings = list_openings()[:: len(list_openings()) // size.openings]
    prompts, records = folder / "prompts.jsonl", folder / "run.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in openings), encoding="utf-8")
    with choose_engine(subject) as engine:
        length = ("--max-new-tokens", size.tokens, "--min-p", 0.02, "--seed", seed, "--batch-size", SLOTS)
        run("dataset", prompts, "-o", records, "--arms", "plain", "--no-bans", *length, *engine)
    return [text.text for text in read_texts([records])]


@contextmanager
def choose_engine(subject: Subject) -> Iterator[Sequence[object]]:
    """Yield the options of `antislop dataset` for a model; llama.cpp writes Gemma's texts in half the time."""
    folder = subject.model.name_or_path
    if subject.name != gemma.NAME:
        yield ("--model", folder)
        return
    with serve_llama_cpp(gemma.assemble_gguf(), slots=SLOTS, context=CONTEXT) as process:
        yield ("--engine", "openai", "--base-url", f"{process.url}/v1", "--model", subject.name, "--tokenizer", folder)


def make_list(name: str, folder: Path, size: Size, path: Path) -> tuple[BanList, list[Entry]]:
    """Make a list of what a model overuses; return the list, which may be empty, and its entries in the profile."""
    run("profile", folder / "run.jsonl", "-o", folder / "profile.json")
    profile = Profile.load(folder / "profile.json")
    source = f"{name}: {profile.texts:,} texts, {profile.words:,} words, against novels; python -m eval.habits"
    choice = Choice(min_ratio=size.ratio, min_prompts=size.prompts)
    try:
        chosen = choose_bans(profile, choice, source=source).bans
    except BanError:  # no entry is left
        chosen = BanList([])
    openings = list_openings()
    bans = chosen.filter(lambda ban: not any(map(BanList([ban]).find, openings)))
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
