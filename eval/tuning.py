"""What does tuning change, beside the phrases that it is meant to remove?

The bundled model is tuned on texts of half of the bundled openings by the commands of the guide, and measured on texts
of other openings, on novels if they are there, and by lm-evaluation-harness if that is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM

import antislop
from antislop import AntiSlop
from antislop.data import FOLDER
from antislop.datasets.maker import AvoidanceInstruction
from antislop.files.disk import read_text
from antislop.files.prompts import Prompt
from antislop.files.texts import Text
from antislop.measure import Tally, measure
from antislop.measure.profiles.profiles import compare, profile_texts
from eval.command import Work, answer_question
from eval.passages import cut_passages
from eval.qualities import count_leaks, count_words, read_surprise
from eval.reporting import Answer, Cell, Table
from eval.speed.measuring import ASSETS, Subject

NAME = "tuning"
OPENINGS = (
    "The letter had been folded so often that",
    "On the first warm day of March, the neighbors",
    "The museum closed at five, and",
    "My uncle never talked about the lighthouse until",
    "The new clerk put the keys on the counter and",
    "Halfway across the bridge, she remembered",
    "It took three people to lift the clock, and",
    "The train had been standing in the station for an hour when",
    "There was a goat in the garden again, so",
    "The doctor washed his hands and said",
    "Before the concert, the second violin",
    "We found the boat where the map",
)
"""What is measured begins so. No option was chosen by these."""
GENTLY = ("--epochs", 1, "--balance-chosen", 0.005, "--rest-weight", 1.2)
"""Many other words, each seldom: with the defaults, a few common words take the place of the phrases."""
ROOM = 300
"""Tokens of a prompt with its instruction; the model has 512 positions."""
PASSAGE_TOKENS = 300
RISEN = 12
"""Words and phrases that are shown because they became more frequent."""


class Size(NamedTuple):
    """Texts of each opening to learn from and of each arm, their tokens, passages of novels, and what else is made."""

    taught: int
    texts: int
    tokens: int
    passages: int
    has_dpo: bool = False


SIZES = {"full": Size(16, 16, 200, 40, has_dpo=True), "quick": Size(16, 8, 200, 20), "smallest": Size(2, 1, 60, 2)}


class Arm(NamedTuple):
    """What a model wrote. model: wrote the texts; rewinds: per 1,000 tokens."""

    model: Any
    texts: list[str]
    tokens: list[list[int]]
    rewinds: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    return answer_question(NAME, __doc__, answer, arguments)


def answer(work: Work) -> Answer:
    """Tune, write the texts of all arms, and measure them."""
    size, notes = SIZES[work.setting], list(NOTES)
    model, tokenizer = antislop.tiny_model()
    subject = Subject("tiny", model, tokenizer, size.tokens)
    with tempfile.TemporaryDirectory() as name:
        tuned = tune_models(Path(name), size)
        asked = [opening for opening in OPENINGS for _ in range(size.texts)]
        arms = write_arms(subject, tuned, asked, work)
        if size.has_dpo:
            write_report(arms, asked, Path(name), work.out)
    passages = read_passages(subject, size.passages, notes)
    rows = [[arm, *describe(arms[arm], subject, asked)] for arm in arms]
    harm = [[arm, *read_harm(arms[arm].model, subject, passages, notes)] for arm in ("plain", *tuned)]
    risen = [[arm, *find_risen(arms["plain"], arms[arm])] for arm in tuned]
    tables = [
        Table("Texts", COLUMNS, rows),
        Table("Other text", HARM, harm),
        Table("What rose instead", ("arm", "of what occurs 5 times"), risen),
    ]
    settings = {"openings": f"{len(OPENINGS)}, {size.texts} texts of {size.tokens} tokens each", "options": str(GENTLY)}
    return Answer(NAME, QUESTION, tables, judge(rows), LIMITS, list(dict.fromkeys(notes)), settings)


QUESTION = "What does tuning change, beside the phrases that it is meant to remove?"
COLUMNS = (
    "arm",
    "hits per 1,000 words",
    "held-out hits",
    "nats per token",
    "MATTR-500",
    "rewinds per 1,000 tokens",
)
HARM = ("arm", "nats per token of novels", "lm-eval: bits per byte of novels")
NOTES = (
    "Hits are of the list that the rows were made with, held-out hits of the one that was made from the other half of "
    "its data; some phrases stand in both.",
    "Nats per token of an arm's own texts are those under the untouched model; of novels, those under the arm's model.",
    "MATTR-500 is the share of distinct words in 500.",
)
LIMITS = (
    "One model of 4 million parameters, one seed, and openings of one kind. The options of the tuned arm and the "
    "learning rate of DPO were chosen by texts of other openings. Whether tuned texts are better is not measured."
)


def tune_models(folder: Path, size: Size) -> dict[str, Any]:
    """Make pairs of half of the openings, and tune the bundled model on them, by the commands of the guide."""
    openings = [line for line in (FOLDER / "openings.txt").read_text(encoding="utf-8").split("\n") if line][::2]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": opening}) + "\n" for opening in openings), encoding="utf-8")
    texts = ("--n", size.taught, "--max-new-tokens", size.tokens)
    pairs, tuned = folder / "pairs.jsonl", ["tuned"]
    run("dataset", prompts, "-o", folder / "run.jsonl", *texts, "--pairs", pairs, "--pairs-format", "tokens")
    run("tune", pairs, "-o", folder / "tuned", "--full", *GENTLY)
    if size.has_dpo:
        run("dataset", prompts, "-o", folder / "dpo.jsonl", *texts, "--pairs", folder / "dpo_pairs.jsonl")
        run("tune", folder / "dpo_pairs.jsonl", "-o", folder / "DPO", "--loss", "dpo", "--full", "--epochs", 1)
        tuned.append("DPO")
    return {name: AutoModelForCausalLM.from_pretrained(folder / name) for name in tuned}


def run(*arguments: object, folder: Path | None = None) -> None:
    subprocess.run([sys.executable, "-m", "antislop", *map(str, arguments)], check=True, cwd=folder)


def write_arms(subject: Subject, tuned: dict[str, Any], asked: Sequence[str], work: Work) -> dict[str, Arm]:
    """Write the texts of all arms."""
    tokenizer: Any = subject.tokenizer
    nothing, sampler = AntiSlop(tokenizer, []), AntiSlop(tokenizer, antislop.default_bans())
    avoid = AvoidanceInstruction(antislop.default_bans(), tokenizer)
    prompts = [tokenizer(opening)["input_ids"] for opening in asked]
    instructed = [
        tokenizer(avoid.add_to(Prompt("", opening, None, {}), room=ROOM)[0].text)["input_ids"] for opening in asked
    ]
    jobs = {"plain": (subject.model, nothing, prompts)}
    for name, model in tuned.items():
        jobs |= {name: (model, nothing, prompts), f"{name} and sampler": (model, sampler, prompts)}
    jobs["sampler"] = (subject.model, sampler, prompts)
    jobs["prompt-only"] = (subject.model, nothing, instructed)
    advance = work.begin("arms", len(jobs))
    arms = {}
    for name, job in jobs.items():
        arms[name] = write(*job, tokens=subject.tokens, seed=work.seed)
        advance()
    return arms


def write(model: Any, sampler: AntiSlop, prompts: Sequence[list[int]], *, tokens: int, seed: int) -> Arm:
    """Write texts with the model's own settings of sampling."""
    settings = {"max_new_tokens": tokens, "do_sample": True}
    done = [*sampler.generate_many(model, prompts, batch_size=16, seed=seed, **settings)]
    written = sum(len(text.tokens) for text in done)
    rewinds = 1000 * sum(text.report.rewinds for text in done) / written
    return Arm(model, [text.text for text in done], [list(text.tokens) for text in done], rewinds)


def describe(arm: Arm, subject: Subject, asked: Sequence[str]) -> list[Cell]:
    """Return an arm's figures, in the order of the columns."""
    words, tally = count_words(arm.texts) / 1000, Tally()
    for text in arm.texts:
        tally.add(text)
    prompts = [subject.tokenizer(opening)["input_ids"] for opening in asked]
    return [
        count_leaks(antislop.default_bans(), arm.texts) / words,
        count_leaks(antislop.held_out_bans(), arm.texts) / words,
        float(read_surprise(subject, prompts, arm.tokens).nll.mean()),
        measure(tally, resamples=0)["mattr_500"].value,
        arm.rewinds,
    ]


def judge(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return a sentence for each goal."""
    plain, tuned = (next(row[1:] for row in rows if row[0] == arm) for arm in ("plain", "tuned"))
    both = next(row for row in rows if row[0] == "tuned and sampler")
    sampler = next(row for row in rows if row[0] == "sampler")
    changes = [after / before - 1 for before, after in zip(plain[:2], tuned[:2], strict=True)]
    rise = tuned[2] - plain[2]
    verdicts = [
        (f"hits {changes[0]:+.0%} (goal: -70 %)", changes[0] <= -0.7),
        (f"held-out hits {changes[1]:+.0%} (goal: -40 %)", changes[1] <= -0.4),
        (f"nats per token {rise:+.3f} (goal: at most +0.20)", rise <= 0.2),
        (f"rewinds of the sampler {both[5] / sampler[5] - 1:+.0%} (goal: less)", both[5] < sampler[5]),
    ]
    if plain[3] and tuned[3]:  # some texts are too short for it
        variety = tuned[3] / plain[3] - 1
        verdicts.append((f"MATTR-500 {variety:+.1%} (goal: within 3 %)", abs(variety) <= 0.03))
    return [f"{verdict}: {'met' if is_met else 'missed'}" for verdict, is_met in verdicts]


def write_report(arms: dict[str, Arm], asked: Sequence[str], folder: Path, out: Path) -> None:
    """Let `antislop eval` compare the texts of all arms, and keep its page."""
    options: list[str] = []
    for arm, written in arms.items():
        name = arm.replace(" ", "-")
        lines = (
            json.dumps({"prompt": prompt, "response": text}) for prompt, text in zip(asked, written.texts, strict=True)
        )
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        options += ["--outputs", f"{name}={name}.jsonl"]
    (folder / "tiny").symlink_to(FOLDER / "tiny")
    run("eval", *options, "--model", "tiny", "-o", "report", folder=folder)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "report" / "report.html", out / f"{NAME}-report.html")


def read_passages(subject: Subject, number: int, notes: list[str]) -> list[str]:
    """Return passages of novels, as many from each; none if they are not there."""
    files = sorted((ASSETS / "human").rglob("*.txt.gz"))
    if not files:
        notes.append("Skipped: novels: ../shared/assets/human is not beside this repository.")
        return []
    passages = []
    for i in range(number):
        text = [*cut_passages(read_text(files[i % len(files)]))][10 + i // len(files)]  # behind its contents
        ids = subject.tokenizer(text)["input_ids"][:PASSAGE_TOKENS]
        passages.append(subject.tokenizer.decode(ids, skip_special_tokens=True))
    return passages


def read_harm(model: Any, subject: Subject, passages: Sequence[str], notes: list[str]) -> list[Cell]:
    """Return the likelihood of human text under a model, by the house's code and by lm-evaluation-harness."""
    if not passages:
        return [None, None]
    ids = [subject.tokenizer(passage)["input_ids"] for passage in passages]
    nll = read_surprise(replace(subject, model=model), [row[:1] for row in ids], [row[1:] for row in ids]).nll
    return [float(nll.mean()), score_with_lm_eval(model, subject.tokenizer, passages, notes)]


def score_with_lm_eval(model: Any, tokenizer: Any, passages: Sequence[str], notes: list[str]) -> float | None:
    """Return bits per byte by a task of lm-evaluation-harness; None if it is not installed."""
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        notes.append("Skipped: lm-eval: pip install lm_eval")
        return None
    with tempfile.TemporaryDirectory() as name:
        rows = Path(name) / "passages.jsonl"
        rows.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages), encoding="utf-8")
        task = {
            "task": "novels",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(rows)}},
            "test_split": "test",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        }
        lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=512, device="cpu")
        evaluate = partial(simple_evaluate, task_manager=TaskManager(include_defaults=False), bootstrap_iters=0)
        return float(evaluate(lm, tasks=[task])["results"]["novels"]["bits_per_byte,none"])


def find_risen(before: Arm, after: Arm) -> list[str]:
    """Return words and phrases that became surely more frequent, the strongest evidence first, as one cell."""
    profiles = [
        profile_texts(Text(text, None, str(number), {}) for number, text in enumerate(arm.texts))
        for arm in (before, after)
    ]
    changes = [f"{change.text} ({change.ratio:.1f}×)" for change in compare(*profiles) if change.ratio > 1]
    return [", ".join(changes[:RISEN])]


if __name__ == "__main__":
    sys.exit(main())
