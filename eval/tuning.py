"""Tune the bundled model on half of the bundled openings, and measure it on the other half.

    python -m eval.tuning [--json FILE] [--page FOLDER]

Data, training and texts by the commands themselves; the figures by the house's own metrics.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

import antislop
from antislop import AntiSlop
from antislop.data import FOLDER
from antislop.datasets.prompt_only import AvoidanceInstruction
from antislop.metrics import Tally, measure
from antislop.profiles.changes import compare
from antislop.profiles.profiles import profile_texts
from antislop.records.prompts import Prompt
from antislop.records.texts import Text
from eval.qualities import count_leaks, count_words, read_surprise
from eval.speed.measuring import Subject

TAUGHT, TIMES, TOKENS = 16, 8, 200
"""Texts of an opening, for the data and for each arm; and the tokens of each."""
ROOM = 300
"""Tokens of a prompt with its instruction; the model has 512 positions."""
GENTLY = ("--epochs", 1, "--balance-chosen", 0.005, "--rest-weight", 1.2)
"""Many other words, each seldom: with the defaults, hits fall by 80 %, and a few common words take their place."""
RISEN = 12
"""Words and phrases that are shown because they became more frequent."""


class Arm(NamedTuple):
    """What a model wrote. rewinds: per 1,000 tokens."""

    texts: list[str]
    tokens: list[list[int]]
    rewinds: float = 0.0


def main() -> None:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write the figures as JSON as well.")
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="Write the report of antislop eval on all arms.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    openings = (FOLDER / "openings.txt").read_text(encoding="utf-8").split("\n")
    openings = [opening for opening in openings if opening]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tune(openings[::2], folder)
        model, tokenizer = antislop.tiny_model()
        subject = Subject("tiny", model, tokenizer, TOKENS)
        tuned = AutoModelForCausalLM.from_pretrained(folder / "tuned", dtype=torch.float32)
    asked = [opening for opening in openings[1::2] for _ in range(TIMES)]
    prompts = [tokenizer(opening)["input_ids"] for opening in asked]
    sampler = AntiSlop(tokenizer, antislop.default_bans())
    avoid = AvoidanceInstruction(antislop.default_bans(), tokenizer)
    arms = {
        "plain": write(model, AntiSlop(tokenizer, []), prompts),
        "prompt-only": write(
            model, AntiSlop(tokenizer, []), [instruct(avoid, opening, tokenizer) for opening in asked]
        ),
        "sampler": write(model, sampler, prompts),
        "tuned": write(tuned, AntiSlop(tokenizer, []), prompts),
        "tuned and sampler": write(tuned, sampler, prompts),
    }
    if arguments.page is not None:
        write_page(arms, asked, arguments.page)
    figures = {name: describe(arm, subject, prompts) for name, arm in arms.items()}
    show(figures)
    risen = find_risen(arms["plain"], arms["tuned"])
    print("What rose instead, of what occurs 5 times: " + ", ".join(risen))
    print(f"{time.monotonic() - began:.0f} s in all")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"arms": figures, "risen": risen}, indent=1) + "\n", encoding="utf-8")


def tune(openings: Sequence[str], folder: Path) -> None:
    """Make final-token pairs of openings, and tune the bundled model on them, by the commands of the guide."""
    prompts, pairs = folder / "prompts.jsonl", folder / "pairs.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": opening}) + "\n" for opening in openings), encoding="utf-8")
    run("dataset", prompts, "-o", folder / "run.jsonl", "--n", TAUGHT, "--max-new-tokens", TOKENS, "--pairs", pairs)
    run("tune", pairs, "-o", folder / "tuned", "--full", *GENTLY)


def run(command: str, *arguments: object) -> None:
    extra = ["--pairs-format", "tokens"] if command == "dataset" else []
    subprocess.run([sys.executable, "-m", "antislop", command, *map(str, arguments), *extra], check=True)


def write(model: Any, sampler: AntiSlop, prompts: Sequence[list[int]]) -> Arm:
    """Write texts with the model's own settings of sampling."""
    done = [*sampler.generate_many(model, prompts, batch_size=16, seed=1, max_new_tokens=TOKENS, do_sample=True)]
    tokens = sum(len(text.tokens) for text in done)
    rewinds = 1000 * sum(text.report.rewinds for text in done) / tokens
    return Arm([text.text for text in done], [list(text.tokens) for text in done], rewinds)


def describe(arm: Arm, subject: Subject, prompts: Sequence[list[int]]) -> dict[str, float]:
    """Return hits per 1,000 words, nats per token under the untouched model, variety and rewinds."""
    words = count_words(arm.texts) / 1000
    tally = Tally()
    for text in arm.texts:
        tally.add(text)
    nll = read_surprise(subject, prompts, arm.tokens).nll
    return {
        "hits": count_leaks(antislop.default_bans(), arm.texts) / words,
        "held-out hits": count_leaks(antislop.held_out_bans(), arm.texts) / words,
        "nats per token": float(nll.mean()),
        "MATTR-500": measure(tally, resamples=0)["mattr_500"].value or 0.0,
        "rewinds per 1,000 tokens": arm.rewinds,
    }


def instruct(avoid: AvoidanceInstruction, opening: str, tokenizer: Any) -> list[int]:
    """Return the ids of a prompt that asks to leave out as many phrases as fit."""
    prompt, _ = avoid.add_to(Prompt("", opening, None, {}), room=ROOM)
    ids: list[int] = tokenizer(prompt.text)["input_ids"]
    return ids


def write_page(arms: dict[str, Arm], openings: Sequence[str], folder: Path) -> None:
    """Let `antislop eval` compare the texts of all arms."""
    with tempfile.TemporaryDirectory() as name:
        options: list[object] = []
        for arm, written in arms.items():
            path = Path(name) / f"{arm}.jsonl"
            rows = zip(openings, written.texts, strict=True)
            path.write_text("".join(json.dumps({"prompt": p, "response": t}) + "\n" for p, t in rows), encoding="utf-8")
            options += ["--outputs", f"{arm.replace(' ', '-')}={path}"]
        run("eval", *options, "--model", FOLDER / "tiny", "-o", folder)


def show(figures: dict[str, dict[str, float]]) -> None:
    names = list(figures["plain"])
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for arm, values in figures.items():
        print(f"| {arm} | " + " | ".join(f"{values[name]:.3g}" for name in names) + " |")


def find_risen(before: Arm, after: Arm) -> list[str]:
    """Return words and phrases that became surely more frequent, the strongest evidence first."""
    profiles = [
        profile_texts(Text(text, None, str(number), {}) for number, text in enumerate(arm.texts))
        for arm in (before, after)
    ]
    return [f"{change.text} ({change.ratio:.1f}×)" for change in compare(*profiles) if change.ratio > 1][:RISEN]


if __name__ == "__main__":
    main()
