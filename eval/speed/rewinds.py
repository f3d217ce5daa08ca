"""Measure what a rewind costs in this process, without its forward passes: judging it, and drawing again.

    python -m eval.speed.rewinds [--sizes 4096 49152 151936] [--tokens 500]

The texts are words of a made-up vocabulary, under logits that cost nothing. Eight words that come to 30 % of what is
drawn are banned. A rewind is timed from the token that completed a ban to the tokens that were drawn instead; a step
without a rewind, from the logits to the matcher's state after the token. Medians.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from statistics import median
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from antislop import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.drawing import LogitsDrawing
from antislop.core.loop.engine import ForwardPass
from antislop.core.loop.row import Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import decode_in_steps
from antislop.core.loop.tables import Draws
from antislop.core.trace.events import Rewound
from tests.support.toys import Markov, Words, spec_of

BANNED = 8
SHARE = 0.3


class Flat(Markov):
    """The same logits at each place. seconds: of CPU time, that making them took."""

    def prepare(self, size: int) -> None:
        logits = 3 * torch.randn(size, generator=torch.Generator().manual_seed(1))
        share = torch.tensor(SHARE / (1 - SHARE) / BANNED)
        logits[:BANNED] = logits[BANNED:].logsumexp(dim=0) + share.log()
        self.flat, self.seconds = logits[None, None], 0.0

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        began = time.process_time()
        passed = ForwardPass(self.flat.repeat(len(rows), 1, 1), [1] * len(rows), [0] * len(rows))
        self.seconds += time.process_time() - began
        return passed


def measure(matcher: Matcher, size: int, tokens: int) -> tuple[float, float]:
    """Return the CPU time, ms, of a step outside of its pass, and of a rewind."""
    model = Flat(1, length=tokens)
    model.prepare(size)
    torch.manual_seed(1)
    row = Row(spec_of(model, matcher, (BANNED, BANNED)))
    steps, rewinds = list[float](), list[float]()
    take = LogitsDrawing.take

    def timed(self: LogitsDrawing, taken: Row, draws: Draws, number: int) -> None:
        count, began = len(taken.events), time.process_time()
        take(self, taken, draws, number)
        if [type(event) for event in taken.events[count:]].count(Rewound) == 1:
            rewinds.append(time.process_time() - began)

    gc.collect()
    with mock.patch.object(LogitsDrawing, "take", timed):
        step = decode_in_steps(Scheduler(rows=[row]), model)
        began = time.process_time()
        for happened in step:
            if not any(isinstance(event, Rewound) for _, events in happened for event in events):
                steps.append(time.process_time() - began - model.seconds)
            model.seconds, began = 0.0, time.process_time()
    return 1e3 * median(steps), 1e3 * median(rewinds or [0.0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 49152, 151936])
    parser.add_argument("--tokens", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="CPU time, ms")
    for column in ("tokens", "bans", "a step", "a rewind"):
        table.add_column(column, justify="right")
    for size in options.sizes:
        words = Words(*(f" w{number}" for number in range(size)))
        for name, weight in (("8 words", 0.0), ("8 with weights", 0.5)):
            matcher = Matcher([Ban(f"w{number}", weight=weight) for number in range(BANNED)], words)
            _, times = (measure(matcher, size, options.tokens) for _ in range(2))  # one to warm up
            table.add_row(f"{size:,}", name, *(f"{each:.3f}" for each in times))
    Console().print(table)


if __name__ == "__main__":
    main()
