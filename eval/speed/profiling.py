"""Measure the time outside the model: per kept token, for `generate` and for the sampler."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from eval.speed.measuring import CLOCKS, Contestant, Race, Subject, Written, forward_wrapped

TOP = 30


def time_outside_model(subject: Subject, contestants: dict[str, Contestant], race: Race) -> Table:
    """Measure, without a profiler, the time of one token in the model's forward pass and outside it."""
    spent: dict[str, float] = dict.fromkeys(contestants, 0.0)
    now = CLOCKS[race.clock]

    def attributed(name: str, contestant: Contestant) -> Contestant:
        def write(seed: int) -> Written:
            def measured(forward: Callable[[], Any]) -> Any:
                began = now()
                outputs = forward()
                spent[name] += now() - began if seed in race.seeds else 0.0
                return outputs

            with forward_wrapped(subject, measured):
                return contestant(seed)

        return write

    laps = race.run({name: attributed(name, contestant) for name, contestant in contestants.items()})
    table = Table(title=f"{subject.name}: µs per kept token ({race.clock} time)")
    for column in ("", "in all", "in the model's forward", "outside it"):
        table.add_column(column, justify="right" if column else "left")
    for name, own in laps.items():
        kept, seconds = sum(lap.kept for lap in own), sum(lap.seconds for lap in own)
        parts = (seconds, spent[name], seconds - spent[name])
        table.add_row(name, *(f"{1e6 * part / kept:,.1f}" for part in parts))
    return table


def profile(subject: Subject, name: str, contestant: Contestant, seeds: range) -> Table:
    """Show the functions with the most time of their own, without the model's forward; cProfile inflates small ones."""
    profiler, kept = cProfile.Profile(), 0

    def hidden(forward: Callable[[], Any]) -> Any:
        profiler.disable()
        outputs = forward()
        profiler.enable()
        return outputs

    with forward_wrapped(subject, hidden):
        for seed in seeds:
            profiler.enable()
            written = contestant(seed)
            profiler.disable()
            kept += len(written.tokens)
    table = Table(title=f"{subject.name}: {name}, µs per kept token without the forward, under cProfile")
    for column in ("function", "calls", "own", "with callees"):
        table.add_column(column, justify="left" if column == "function" else "right")
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    ranked = sorted(stats.items(), key=lambda item: -item[1][2])
    for place, (_, calls, own, cumulative, _) in ranked[:TOP]:
        table.add_row(
            _name_place(place), f"{calls / kept:.2f}", f"{1e6 * own / kept:.1f}", f"{1e6 * cumulative / kept:.1f}"
        )
    return table


def _name_place(place: tuple[str, int, str]) -> str:
    path, line, function = place
    return f"{'/'.join(Path(path).parts[-2:])}:{line} {function}" if line else function
