"""Count the files that one step of the loop visits, and how often a call leads from one file into another.

    python -m eval.speed.moves

A step is one forward pass of the bundled model and what follows it, for one text under the bundled bans. Steps with one
rewind are shown twice: as they are, and without the other likely tokens that the judge tries beside the one that
completed a ban. Only the package's own files count.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

import antislop
from antislop import AntiSlop, default_bans, tiny_model
from antislop.core.hf import generation
from antislop.core.loop import judge
from antislop.core.trace.events import Rewound

ROOT = str(Path(antislop.__file__).parent)
PROMPT = "The old house at the edge of the village"
SEEDS = range(4)


def main() -> None:
    table = Table(title="one step of one text: the medians")
    for column in ("", "steps", "files", "moves"):
        table.add_column(column, justify="right" if column else "left")
    for name, tried in (("", judge.ALSO_TRIED), (", no other tokens tried", 1)):
        with mock.patch.object(judge, "ALSO_TRIED", tried):
            steps = [step for seed in SEEDS for step in walk_steps(seed)]
        for kind, rewinds in (("nothing is rewound", 0), ("one rewind", 1)):
            walks = [walk for walk, count in steps if count == rewinds]
            files, moves = (len(set(walk)) for walk in walks), (len(walk) for walk in walks)
            table.add_row(kind + name, str(len(walks)), f"{median(files):g}", f"{median(moves):g}")
    Console().print(table)


def walk_steps(seed: int) -> list[tuple[list[str], int]]:
    """Return of each step of a text the files that calls entered from another file, and its number of rewinds."""
    model, tokenizer = tiny_model()
    steps: list[tuple[list[str], int]] = []
    decode_in_steps = generation.decode_in_steps

    def watched(*args: Any) -> Iterator[Any]:
        walk: list[str] = []

        def note(frame: FrameType, event: str, _: Any) -> None:
            path, back = frame.f_code.co_filename, frame.f_back
            if event == "call" and path.startswith(ROOT) and (back is None or back.f_code.co_filename != path):
                walk.append(path)

        decoding = decode_in_steps(*args)
        while True:
            walk.clear()
            sys.setprofile(note)
            step = next(decoding, None)
            sys.setprofile(None)
            if step is None:
                return
            rewinds = sum(isinstance(event, Rewound) for _, events in step for event in events)
            steps.append(([*walk], rewinds))
            yield step

    with mock.patch.object(generation, "decode_in_steps", watched):
        torch.manual_seed(seed)
        inputs = tokenizer(PROMPT, return_tensors="pt")
        AntiSlop(tokenizer, default_bans()).generate(model, **inputs, max_new_tokens=80, do_sample=True)
    return steps[1:]


if __name__ == "__main__":
    main()
