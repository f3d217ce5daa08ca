"""The time line of a text: its length after each draw, as paths for an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antislop.trace.events import Drawn, Rewound, Shortened
from antislop.trace.traced_row import TracedRow
from antislop.trace.written_text import WrittenToken


@dataclass
class TimeLine:
    """Paths in the coordinates of an SVG picture: x counts the tokens drawn, y the tokens below the longest text.

    kept: the draws that are part of the text. withdrawn: the other draws. rewinds: where the text was cut. marks: lines
    without a length, for dots where the rewinds begin.
    """

    draws: int
    longest: int
    kept: str = ""
    withdrawn: str = ""
    rewinds: str = ""
    marks: str = ""


def draw_time_line(row: TracedRow, written: Sequence[WrittenToken]) -> TimeLine:
    """Return the time line of a text. written: its tokens in the order in which they were drawn."""
    lengths, cuts, length = [0], list[tuple[int, int, int]](), 0
    for event in row.events:
        if isinstance(event, Drawn):
            length += 1
            lengths.append(length)
        elif isinstance(event, (Rewound, Shortened)):
            cuts.append((len(lengths) - 1, length, event.length))
            length = event.length
    line = TimeLine(len(lengths) - 1, max(lengths))
    top = line.longest
    line.rewinds = "".join(f"M{x} {top - high}V{top - low}" for x, high, low in cuts)
    line.marks = "".join(f"M{x} {top - high}h0" for x, high, _ in cuts)
    starts = [lengths[x + 1] - 1 for x in range(line.draws)]  # the length before each draw
    x = 0
    while x < line.draws:
        is_withdrawn, end = bool(written[x].attempt), x + 1
        while end < line.draws and bool(written[end].attempt) == is_withdrawn and starts[end] == lengths[end]:
            end += 1
        path = f"M{x} {top - starts[x]}L{end} {top - lengths[end]}"
        if is_withdrawn:
            line.withdrawn += path
        else:
            line.kept += path
        x = end
    return line
