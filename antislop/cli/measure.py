"""The command `antislop measure`: how sloppy, repetitive and varied texts are, with intervals, and how far from human.

The table goes to standard output, progress to standard error. Needs no model.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from antislop.cli import jobs
from antislop.cli.jobs import load_bans
from antislop.cli.terminal import as_refusal, complain, console, read, write, write_json
from antislop.display import make_visible, quote_formula
from antislop.errors import InputError
from antislop.lists.ban_list import BanList
from antislop.records.texts import Text, read_texts

if TYPE_CHECKING:
    from antislop.metrics.definitions import Metric
    from antislop.metrics.estimates import Estimate
    from antislop.metrics.human_distance import Distance, Humans
    from antislop.metrics.slop_scale import Scale
    from antislop.metrics.tally import Tally

FEW = 20
"""Texts or prompts below which intervals are named as rough."""

_option = typer.Option


class Format(str, Enum):
    """How the table is written."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


class Row(NamedTuple):
    """One metric of one group of texts. human: its value in human writing. distance: in human standard deviations."""

    metric: Metric
    estimate: Estimate
    human: float | None
    distance: Estimate


class Group(NamedTuple):
    """Texts that are measured together, and what was measured. drawn: prompts, or texts whose prompt is unknown."""

    name: str
    texts: int
    drawn: int
    words: int
    rows: list[Row]
    overall: Estimate


def measure(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Texts: .jsonl, .json, .csv, .parquet with one in each record, .txt files of one, or folders of them; "
            "- is standard input, one text.",
        ),
    ],
    column: Annotated[
        str | None, _option(help="Where the text is.", show_default="response, output, completion, text")
    ] = None,
    prompt_column: Annotated[
        str | None, _option(help="What tells prompts apart.", show_default="key, prompt, …")
    ] = None,
    by: Annotated[str | None, _option(metavar="COLUMN", help="One group for each value of it, such as arm.")] = None,
    bans: Annotated[
        list[Path] | None, _option(metavar="LIST", help="Count the hits of this list of bans, too. Repeatable.")
    ] = None,
    lenient: jobs.Lenient = False,
    words: Annotated[
        Path | None, _option(metavar="LIST", help="JSON list of slop words.", show_default="the bundled ones")
    ] = None,
    trigrams: Annotated[
        Path | None, _option(metavar="LIST", help="JSON list of slop trigrams.", show_default="the bundled ones")
    ] = None,
    resamples: Annotated[int, _option(min=0, help="Of the bootstrap; 0 gives no intervals.")] = 1000,
    level: Annotated[float, _option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    seed: Annotated[int, _option(help="Draws the resamples and the texts of self-BLEU.", min=0)] = 0,
    limit: Annotated[int | None, _option(min=1, help="Read so many texts of each file.")] = None,
    output: Annotated[
        Format, _option("--format", help="text, json, or csv with a line for each metric.")
    ] = Format.TEXT,
) -> int:
    """Measure texts: slop, repetition, diversity, sentences, each with its interval and its distance to human writing.

    Each file is a group of texts of its own, unless --by says otherwise. A distance counts standard deviations between
    passages of 500 words in novels before 1930: compare it with that of other texts, not with 0. Intervals are over
    prompts, texts to the same prompt drawn together, or over texts where no column names their prompt.
    """
    from antislop.metrics.human_distance import load_human

    scale = _read_scale(words, trigrams)
    lists = _load_lists(bans or [], lenient=lenient)
    tallies = _tally(_read(files, column, prompt_column, by, limit), scale, lists)
    if not tallies:
        raise InputError(f"there are no texts in {', '.join(files)}: pass files that hold some")
    human = load_human()
    with _measuring():
        groups = [
            _measure(name, tally, human, {"resamples": resamples, "level": level, "seed": seed})
            for name, tally in tallies.items()
        ]
    _WRITERS[output](groups, level)
    given = {name: path for name, path in (("slop_words", words), ("slop_trigrams", trigrams)) if path is not None}
    _note(groups, {**{name: path.name for name, path in given.items()}, **{name: name for name in lists}})
    return 0


@contextmanager
def _measuring() -> Iterator[None]:
    """Turn what is missing or out of range into a sentence."""
    try:
        with as_refusal():
            yield
    except ImportError as error:
        raise InputError(str(error)) from error


def _read_scale(words: Path | None, trigrams: Path | None) -> Scale:
    from antislop.metrics.slop_scale import Scale

    if words is None and trigrams is None:
        return Scale.load()
    return Scale.read(words, trigrams)


def _load_lists(paths: list[Path], *, lenient: bool) -> dict[str, BanList]:
    """Return the lists under names that say which is which."""
    names = [path.name for path in paths]
    titles = [f"bans of {path if names.count(path.name) > 1 else path.name}" for path in paths]
    return {title: load_bans(path, lenient=lenient) for title, path in zip(titles, paths, strict=True)}


def _read(
    files: list[str], column: str | None, prompt_column: str | None, by: str | None, limit: int | None
) -> Iterator[tuple[str, Text]]:
    """Yield texts with the names of their groups."""
    for file in files:
        texts = (
            iter([Text(read("-"), None, "<stdin>", {})])
            if file == "-"
            else read_texts([file], column=column, prompt_column=prompt_column, limit=limit)
        )
        for text in texts:
            yield (file if by is None else _find_group(text, by)), text


def _find_group(text: Text, by: str) -> str:
    if by not in text.fields:
        there = ", ".join(text.fields) or "none"
        raise InputError(f"{text.place}: no column {by!r}; there are {there}: pass --by with one of them")
    return str(text.fields[by])


def _tally(texts: Iterator[tuple[str, Text]], scale: Scale, lists: dict[str, BanList]) -> dict[str, Tally]:
    from antislop.metrics.tally import Tally

    tallies: dict[str, Tally] = {}
    with _progress() as advance:
        for name, text in texts:
            if name not in tallies:
                tallies[name] = Tally(scale, bans=lists)
            tallies[name].add(text.text, group=text.prompt)
            advance(len(text.text))
    return tallies


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Show on a terminal how much was read; call what is yielded with the characters of each text."""
    target = console(stderr=True)
    if not target.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    counts = [0, 0]
    with Progress(*columns, console=target, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def advance(characters: int) -> None:
            counts[0] += 1
            counts[1] += characters
            bar.update(task, description=f"{counts[0]:,} texts, {counts[1] / 1e6:.1f} million characters")

        yield advance


def _measure(name: str, tally: Tally, human: Humans, options: dict[str, Any]) -> Group:
    from antislop.metrics.estimates import Estimate
    from antislop.metrics.human_distance import measure_distance
    from antislop.metrics.metrics import measure

    estimates = measure(tally, **options)
    distance: Distance = measure_distance(tally, human=human, **options)
    rows = []
    for metric in tally.metrics:
        place = distance.metrics.get(metric.name, Estimate(None, None, None, "lists of bans have no human value"))
        known = human.metrics.get(metric.name) if place.value is not None else None
        rows.append(Row(metric, estimates[metric.name], None if known is None else known.value, place))
    return Group(name, len(tally), len(tally.groups), tally.words, rows, distance.overall)


def _note(groups: list[Group], lists: dict[str, str]) -> None:
    """Say what a reader of the tables would trip over. lists: by the metric that counts them, what they are called."""
    for name, title in lists.items():
        values = [row.estimate.value for group in groups for row in group.rows if row.metric.name == name]
        if not any(values):
            complain(f"{title}: nothing of it ever occurs in these texts")
    few = [group.name for group in groups if group.texts < FEW]
    if few:
        complain(f"fewer than {FEW} texts: intervals are rough for {', '.join(few)}")
    several = [f"{group.name} ({group.drawn:,} for {group.texts:,} texts)" for group in groups if _is_clustered(group)]
    if several:
        complain(f"intervals are over prompts, texts to the same prompt drawn together: {', '.join(several)}")
    few = [group.name for group in groups if _is_clustered(group) and group.drawn < FEW <= group.texts]
    if few:
        complain(f"fewer than {FEW} prompts: intervals are rough for {', '.join(few)}")


def _is_clustered(group: Group) -> bool:
    return group.drawn < group.texts


def _write_text(groups: list[Group], level: float) -> None:
    screen = console()
    if not screen.is_terminal:
        screen.width = 140
    for number, group in enumerate(groups):
        if number:
            screen.print()
        screen.print(
            f"{make_visible(group.name)}: {group.texts:,} texts, {group.words:,} words", style="bold", soft_wrap=True
        )
        screen.print(_tabulate(group, level))
        for why, titles in _collect_reasons(group).items():
            screen.print(f"{why}: {', '.join(titles)}", soft_wrap=True)


def _collect_reasons(group: Group) -> dict[str, list[str]]:
    """Return why something is undefined, and what is."""
    reasons: dict[str, list[str]] = {}
    for row in group.rows:
        if row.estimate.why:
            reasons.setdefault(row.estimate.why, []).append(row.metric.title)
    return reasons


def _tabulate(group: Group, level: float) -> Table:
    table = Table("", "value", f"{level:.0%} interval", "human", "distance", "unit", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:5]:
        column.justify = "right"
    for metric, estimate, human, distance in group.rows:
        table.add_row(
            metric.title,
            _show(estimate.value),
            _show_bounds(estimate),
            _show(human),
            "" if distance.value is None else f"{distance.value:+.2f}",
            metric.unit,
        )
    overall = group.overall
    if overall.value is not None:
        bounds = _show_bounds(overall)
        table.add_row("distance to human", _show(overall.value), bounds, "", "", "standard deviations", style="bold")
    return table


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _show_bounds(estimate: Estimate) -> str:
    return "" if estimate.low is None else f"{_show(estimate.low)} – {_show(estimate.high)}"


def _describe(group: Group) -> dict[str, Any]:
    """Return a group as plain data."""
    metrics = {
        row.metric.name: {
            **row.estimate._asdict(),
            "unit": row.metric.unit,
            "human": row.human,
            "distance": row.distance._asdict(),
        }
        for row in group.rows
    }
    return {
        "group": group.name,
        "texts": group.texts,
        "drawn": group.drawn,
        "words": group.words,
        "metrics": metrics,
        "distance": group.overall._asdict(),
    }


def _write_json(groups: list[Group], level: float) -> None:
    whole = {"level": level, "groups": [_describe(group) for group in groups]}
    write_json(whole)


def _write_csv(groups: list[Group], level: float) -> None:
    table = StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["group", "texts", "metric", "unit", "value", "low", "high", "level", "human", "distance", "why"])
    for group in groups:
        for metric, (value, low, high, why), human, distance in group.rows:
            named = [group.name, group.texts, metric.name, metric.unit]
            row = [*named, value, low, high, level, human, distance.value, why]
            writer.writerow(map(quote_formula, row))
        value, low, high, why = group.overall
        unit = "standard deviations"
        row = [group.name, group.texts, "distance", unit, value, low, high, level, "", "", why]
        writer.writerow(map(quote_formula, row))
    write(table.getvalue())


_WRITERS: dict[Format, Callable[[list[Group], float], None]] = {
    Format.TEXT: _write_text,
    Format.JSON: _write_json,
    Format.CSV: _write_csv,
}
