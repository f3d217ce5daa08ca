"""What does `antislop.fix` leave, change elsewhere and lose, beside deletion, the first words, and a rewrite?"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import regex
import torch

import antislop
from antislop import AntiSlop, BanList
from antislop.errors import InputError
from antislop.files.texts import read_texts
from antislop.steer import Fixed, Replacement, fix_texts, fixing
from eval import ROOT
from eval.command import NO_OPTIONS, Options, Work, answer_question
from eval.prompts import render
from eval.reporting import Answer, Cell, Table, render_table
from eval.speed.measuring import ASSETS, Subject

LENGTHS = range(50, 91)
"""Words of a paragraph that is fixed."""
READ = "fix-read.md"
"""A table of the replacements with their places, for a reader, in the folder build: texts of others are not kept."""
AROUND = 60
"""Characters on each side of a replacement that a reader sees."""
QUESTION = "What does fix leave, change elsewhere and lose, beside other ways to a text without banned phrases?"
COLUMNS = (
    "way",
    "spans flagged",
    "flagged left",
    "left without a word",
    "characters changed outside",
    "facts kept",
    "facts",
    "nats per token",
    "CPU seconds per span",
    "passes per span",
)
NOTES = (
    "Paragraphs of 50 to 90 words with a phrase of the bundled list, equally many of each model. Spans: unions of "
    "overlapping matches. Left without a word: flagged in the new text and not reported. Facts: numbers, words with a "
    "capital within a sentence, quotations and links without a flagged phrase, kept if the new text has them.",
    "Deletion takes out each span and the space before it. First words: what the model writes under the bans from the "
    "left, as many words as the span had. Rewrite: a chat model is asked for the same paragraph without the phrases. "
    "Nats per token: the model's own mean log-likelihood of the whole paragraph.",
    "Characters outside the spans are counted by comparing with the original; the space beside a deleted span is not.",
)
LIMITS = (
    "Likelihood does not see whether a meaning is kept, and small models know little: read what they write. Facts are "
    "found by simple patterns. The texts are those of other language models, in English."
)
_FACT = regex.compile(r"\p{N}[\p{N}.,]*|(?<=[\p{Ll},] )\p{Lu}\p{L}+|“[^”\n]*”|\"[^\"\n]*\"|https?://\S+")
_REWRITE = "Write this paragraph again, word for word, but without the phrases {phrases}:\n\n{text}"


class Size(NamedTuple):
    tokens: int
    texts: int
    read: int


SIZES = {"full": Size(120, 60, 60), "quick": Size(60, 8, 20), "smallest": Size(30, 2, 4)}
"""Tokens of texts that a model writes itself if there are no others; texts; replacements that are printed."""


class Way(NamedTuple):
    """A way to texts without what is flagged. make: yields (new text, the reported changes) of each text."""

    name: str
    make: Callable[[Sequence[str]], Iterator[Fixed]]


def collect_texts(subject: Subject, size: Size, bans: BanList, *, seed: int) -> list[str]:
    """Return flagged paragraphs of other models, an equal number of each; without the assets, the model's own."""
    files = sorted((ASSETS / "llm" / "eqbench_creative_v3").glob("*.jsonl.gz"))
    source = random.Random(seed)
    found: list[list[str]] = []
    for file in files:
        texts = [text.text for text in read_texts([file])]
        source.shuffle(texts)
        found.append([part for text in texts[:60] for part in text.split("\n\n") if len(part.split()) in LENGTHS])
    if not files:
        written = (subject.write(number).tokens for number in range(8 * size.texts))
        found.append([subject.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in written])
    each = [[part for part in parts if bans.find(part)] for parts in found]
    chosen = [part for group in zip(*(parts[: size.texts] for parts in each), strict=False) for part in group]
    return chosen[: size.texts]


def list_ways(subject: Subject, bans: BanList) -> list[Way]:
    sampler = AntiSlop(subject.tokenizer, bans)

    def leave(texts: Iterable[str]) -> Iterator[Fixed]:
        return (Fixed(text, tuple(find_spans(text, bans))) for text in texts)

    def replace(texts: Iterable[str], choose: Callable[[str, Replacement], str]) -> Iterator[Fixed]:
        for text in texts:
            new, end = "", 0
            for span in find_spans(text, bans):
                new += text[end : span.start]
                new, end = new + choose(new, span), span.end
            yield Fixed((new + text[end:]), ())

    def write_first(left: str, span: Replacement) -> str:
        begun = left.rstrip(" ")
        ids = torch.tensor([subject.tokenizer(begun or "\n")["input_ids"]])
        output = sampler.generate(subject.model, ids, max_new_tokens=12, do_sample=False)
        words = subject.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).split()
        return " ".join(words[: len(span.before.split())])

    def rewrite(texts: Iterable[str]) -> Iterator[Fixed]:
        for text in texts:
            phrases = ", ".join(f"“{span.before}”" for span in find_spans(text, bans))
            prompt = render(subject.tokenizer, _REWRITE.format(phrases=phrases, text=text))
            ids = torch.tensor([subject.tokenizer(prompt, add_special_tokens=False)["input_ids"]])
            output = subject.model.generate(ids, max_new_tokens=160, do_sample=False)
            yield Fixed(subject.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip(), ())

    return [
        Way("original", leave),
        Way("fix", lambda texts: fix_texts(subject.model, subject.tokenizer, texts, bans)),
        Way("fix, drawn", lambda texts: fix_texts(subject.model, subject.tokenizer, texts, bans, seed=1)),
        Way("deletion", lambda texts: (Fixed(f.text.replace("  ", " "), ()) for f in replace(texts, lambda *_: ""))),
        Way("first words", lambda texts: replace(texts, write_first)),
        *([Way("rewrite", rewrite)] if subject.is_chat else []),
    ]


def find_spans(text: str, bans: BanList) -> list[Replacement]:
    return fixing._find_spans(text, bans, bans, names=True)


def rebuild(text: str, made: Fixed) -> str:
    """Return a text with what its changes say in place of their spans."""
    for change in sorted(made.changes, key=lambda change: -change.start):
        text = text[: change.start] + change.after + text[change.end :]
    return text


def count_outside(text: str, new: str, spans: Sequence[Replacement]) -> int:
    """Return how many characters outside of spans differ; a space beside a span does not count."""
    inside = {place for span in spans for place in range(span.start - 1, span.end + 1)}
    changed = 0
    for kind, start, end, begin, stop in SequenceMatcher(None, text, new, autojunk=False).get_opcodes():
        if kind != "equal":
            lost = sum(place not in inside for place in range(start, end))
            changed += max(lost, 0 if start in inside or start - 1 in inside else stop - begin)
    return changed


@torch.no_grad()
def read_likelihood(subject: Subject, text: str) -> tuple[float, int]:
    ids = torch.tensor([subject.tokenizer(text)["input_ids"]])
    scores = subject.model(ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])
    return float(scores.sum()), len(scores)


def answer_model(subject: Subject, size: Size, work: Work) -> list[Table]:
    bans = antislop.default_bans()
    texts = collect_texts(subject, size, bans, seed=work.seed)
    ways, rows = list_ways(subject, bans), list[Sequence[Cell]]()
    shown, why = list[Sequence[Cell]](), list[Sequence[Cell]]()
    advance = work.begin(f"{subject.name}: texts of {len(ways)} ways", len(ways) * len(texts))
    spans = [find_spans(text, bans) for text in texts]
    total = sum(map(len, spans))
    for way in ways:
        passes, began = 0, time.process_time()

        def count(*_: object) -> None:
            nonlocal passes
            passes += 1

        hook = subject.model.register_forward_pre_hook(count)
        fixed = []
        for made in way.make(texts):
            fixed.append(made)
            advance()
        hook.remove()
        seconds = time.process_time() - began
        left = [len(find_spans(made.text, bans)) for made in fixed]
        said = [sum(bool(change.left) for change in made.changes) for made in fixed]
        facts = [
            fact[0] in made.text
            for text, made, flagged in zip(texts, fixed, spans, strict=True)
            for fact in _FACT.finditer(text)
            if not any(span.start < fact.end() and fact.start() < span.end for span in flagged)
        ]
        outside = sum(
            0 if made.changes and rebuild(text, made) == made.text else count_outside(text, made.text, flagged)
            for text, made, flagged in zip(texts, fixed, spans, strict=True)
        )
        sums = [read_likelihood(subject, made.text) for made in fixed]
        unsaid = None if way.name == "original" else sum(max(0, a - b) for a, b in zip(left, said, strict=True))
        likelihood = sum(score for score, _ in sums) / max(1, sum(count for _, count in sums))
        cost = [None, None] if way.name == "original" else [seconds / total, passes / total]
        rows.append([way.name, total, sum(left), unsaid, outside, sum(facts), len(facts), likelihood, *cost])
        if way.name == "fix":
            found = list_replacements(texts, fixed, random.Random(work.seed))[: size.read]
            shown = [cells[:2] for cells in found]
            (ROOT / "build").mkdir(exist_ok=True)
            page = render_table(Table("", ("before", "after", "where"), found))
            (ROOT / "build" / READ).write_text(f"{page}\n", encoding="utf-8")
            reasons = sorted({change.left for made in fixed for change in made.changes if change.left})
            why = [[r, sum(change.left == r for made in fixed for change in made.changes)] for r in reasons]
    return [
        Table(f"{subject.name}: {len(texts)} texts", COLUMNS, rows),
        Table(f"{subject.name}: what fix left, and why", ("reason", "spans"), why),
        Table(f"{subject.name}: replacements, drawn by the seed", ("before", "after"), shown),
    ]


def list_replacements(texts: Sequence[str], fixed: Sequence[Fixed], source: random.Random) -> list[Sequence[Cell]]:
    """Return replacements with what stands around them, in a random order."""
    found: list[Sequence[Cell]] = []
    for text, made in zip(texts, fixed, strict=True):
        for change in made.changes:
            if not change.left:
                sides = text[max(0, change.start - AROUND) : change.start], text[change.end : change.end + AROUND]
                cells = [change.before, change.after, f"…{sides[0]}[…]{sides[1]}…"]
                found.append([" ".join(cell.split()).replace("|", "/") for cell in cells])
    source.shuffle(found)
    return found


def answer(work: Work) -> Answer:
    notes = list(NOTES)
    tables = [table for subject, size in work.load_models(SIZES, notes) for table in answer_model(subject, size, work)]
    if not tables:
        raise InputError("no model could be loaded: see --model")
    rows = [row for table in tables if table.columns == COLUMNS for row in table.rows if row[0] == "fix"]
    goal = "characters outside and flagged spans without a word: none, as they should be"
    is_met = all(row[3] == row[4] == 0 for row in rows)
    return Answer("fix", QUESTION, tables, [f"{goal}." if is_met else f"Missed: {goal}."], LIMITS, notes)


def main(arguments: Sequence[str] | None = None, options: Options = NO_OPTIONS) -> int:
    return answer_question("fix", __doc__, answer, arguments, options=options)


if __name__ == "__main__":
    sys.exit(main())
