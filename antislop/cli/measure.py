"""The command `antislop measure`: slop, repetition and variety of texts, and their distance to human writing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Column, Table

from antislop.cli import options as shared
from antislop.cli.parsing import Conflicts, When
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import (
    TableFormat,
    as_input_error,
    console,
    read_input_pieces,
    refuse_repeats,
    say,
    warn,
    warn_left_out,
    write,
    write_table,
)
from antislop.core.bans import BanList
from antislop.display import describe_count, make_visible
from antislop.errors import InputError
from antislop.files.disk import read_json
from antislop.files.texts import AnyText, LeftOut, LongText, cut, open_texts
from antislop.files.thoughts import drop_thoughts_of_pieces
from antislop.lists import bundled_bans

if TYPE_CHECKING:
    from antislop.measure.definitions import Metric
    from antislop.measure.estimates import Estimate
    from antislop.measure.human_distance import Distance, Humans
    from antislop.measure.metrics import Tally
    from antislop.measure.slop import Scale

COLUMNS = ("group", "texts", "metric", "unit", "value", "low", "high", "level", "human", "distance", "why")
"""The columns of --format csv."""
STDIN = "<stdin>"
FIRST = 200
"""How many texts are read to find their language."""
MIN_SAMPLE = 20
"""With fewer texts or prompts than this, a warning says that intervals are rough."""
CONFLICTS: Conflicts = {
    "--markdown and --format {output} exclude each other: leave one of them out": When(
        "markdown", lambda o: o.output != "text"
    )
}


class MetricRow(NamedTuple):
    """One metric of a group of texts.

    human: the metric's value in human writing; None if unknown.
    distance: how far the group is from human writing, in standard deviations between human passages.
    """

    metric: Metric
    estimate: Estimate
    human: float | None
    distance: Estimate


class TextGroup(NamedTuple):
    """Texts measured together, and their metrics.

    drawn: number of units that the bootstrap resamples: of prompts, or of texts if the prompts are unknown.
    overall: the group's distance to human writing in all metrics together.
    """

    name: str
    texts: int
    drawn: int
    words: int
    rows: list[MetricRow]
    overall: Estimate


@dataclass(frozen=True)
class GroupOptions:
    column: shared.ColumnOption = None
    prompt_column: shared.PromptColumnOption = None
    chats: shared.ChatsOption = False
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Group texts by this column, such as arm, instead of by file.")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N texts of each file.")] = None
    language: shared.LanguageOption = None


@dataclass(frozen=True)
class ScaleOptions:
    bans: Annotated[
        list[Path] | None, typer.Option(metavar="LIST", help="Also count the hits of this list of bans. Repeatable.")
    ] = None
    loops: Annotated[bool, typer.Option(help="Also count passages written 3 times in a row.")] = False
    repeats: Annotated[bool, typer.Option(help="Also count 8 words in a row that came before.")] = False
    no_dashes: Annotated[bool, typer.Option(help="Also count dashes: —, –, --, lone hyphens.")] = False
    lenient: shared.LenientOption = False
    group: shared.GroupOption = None
    words: Annotated[
        Path | None, typer.Option(metavar="LIST", help="A JSON list of slop words.", show_default="the bundled one")
    ] = None
    trigrams: Annotated[
        Path | None, typer.Option(metavar="LIST", help="A JSON list of slop trigrams.", show_default="the bundled one")
    ] = None


@dataclass(frozen=True)
class IntervalOptions:
    resamples: Annotated[int, typer.Option(min=0, help="Resamples of the bootstrap; 0 gives no intervals.")] = 1000
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="The level of the intervals.")] = 0.95
    seed: Annotated[int, typer.Option(min=0, help="Draws the resamples, and the texts of self-BLEU.")] = 0

    def check(self) -> None:
        """Refuse fewer resamples than the level needs: 20 for 0.95, so that one in 20 lies outside the interval."""
        if 0 < self.resamples < (needed := round(1 / (1 - self.level))):
            raise InputError(
                f"--resamples {self.resamples} is too few for the level {self.level:g}: pass {needed:,} or more, or 0 "
                "for no intervals"
            )


def measure(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Texts: .jsonl, .json, .csv or .parquet with one in each record, .txt files of one, or folders of "
            "them; - is standard input, one text.",
        ),
    ],
    *,
    grouping: GroupOptions,
    scales: ScaleOptions,
    intervals: IntervalOptions,
    output: Annotated[TableFormat, typer.Option("--format", help="The format of the output.")] = "text",
    markdown: Annotated[bool, typer.Option(help="Write a Markdown table, with a column a group.")] = False,
) -> int:
    """Measure texts: slop, repetition, diversity, sentences, each with an interval and its distance to human writing.

    Each file is a group, which NAME=FILE names, unless --by groups by a column. A distance is in standard deviations
    between passages of 500 words from novels before 1930: compare it with the distance of other texts, not with 0.
    Intervals are over prompts, so texts to one prompt are resampled together, or over texts if no column names it.
    """
    from antislop.measure.human_distance import load_human
    from antislop.measure.slop import Scale

    named = _name_groups(files, by=grouping.by)
    intervals.check()
    texts = _read_groups(named, grouping, arms := dict[str, set[str]]())
    first = list(islice(texts, FIRST))  # a text from standard input can be read only once
    language = shared.choose_language(
        grouping.language, (part for _, text in first if text.place != STDIN for part in cut(text))
    )
    lists = _load_lists(scales, language.code)
    is_bundled = scales.words is None and scales.trigrams is None
    scale = Scale.load(language) if is_bundled else Scale.read(scales.words, scales.trigrams)
    tallies = _tally(chain(first, texts), scale, lists)
    _note_bans(arms, scale, is_by_arm=grouping.by == "arm")
    if not tallies:
        raise InputError(f"there are no texts in {', '.join(named.values())}: pass files that contain some")
    human = load_human()
    with as_input_error():
        groups = [_measure(name, tally, human, asdict(intervals)) for name, tally in tallies.items()]
    write_table(
        output,
        _list_rows(groups, intervals.level),
        columns=COLUMNS,
        show=lambda _: _print_groups(groups, intervals.level, scale, as_markdown=markdown),
        data={
            "level": intervals.level,
            "scale": {"source": scale.source, "fingerprint": scale.fingerprint},
            "groups": [_describe_group(group) for group in groups],
        },
    )
    chosen = {"slop_words": scales.words, "slop_trigrams": scales.trigrams}  # by the metric that counts them
    named = {metric: path.name for metric, path in chosen.items() if path is not None}
    _note(groups, {**named, **{name: name for name in lists}})
    return 0


def _load_lists(scales: ScaleOptions, language: str) -> dict[str, BanList]:
    """Load the lists of bans to count, each under the unique title of its metric."""
    paths = scales.bans or []
    names = [path.name for path in paths]
    titles = [f"bans of {path if names.count(path.name) > 1 else path.name}" for path in paths]
    load = partial(shared.load_bans, lenient=scales.lenient, group=scales.group)
    lists = dict(zip(titles, map(load, paths), strict=True))
    chosen = {"loops": scales.loops, "repeats": scales.repeats, "dashes": scales.no_dashes}
    return lists | {name: bundled_bans(name, language=language) for name, is_chosen in chosen.items() if is_chosen}


def _name_groups(arguments: Sequence[str], *, by: str | None) -> dict[str, str]:
    """Return each group's file by the group's name. An argument like a=b.txt is a plain path if that file exists."""
    named: dict[str, str] = {}
    for argument in arguments:
        label, _, path = argument.partition("=")
        has_label = bool(label and path) and not {"/", "\\"} & {*label} and not Path(argument).exists()
        if has_label and by is not None:
            raise InputError(f"{argument}: --by names the groups by a column: leave one of both names out")
        if has_label and label in named:
            raise InputError(f"{argument}: {label} names another file already: use a different name for each")
        refuse_repeats([*named.values(), path if has_label else argument])
        named[label if has_label else argument] = path if has_label else argument
    return named


def _read_groups(
    named: Mapping[str, str], options: GroupOptions, arms: dict[str, set[str]]
) -> Iterator[tuple[str, AnyText]]:
    """Yield (group, text); note the arms in each file. At the end, warn about texts that were left out."""
    left_out = LeftOut()
    for name, file in named.items():
        texts = (
            iter([LongText(lambda: drop_thoughts_of_pieces(read_input_pieces("-")), STDIN)])
            if file == "-"
            else open_texts(
                [file],
                column=options.column,
                prompt_column=options.prompt_column,
                chats=options.chats,
                limit=options.limit,
                left_out=left_out,
            )
        )
        for text in texts:
            if isinstance(arm := text.fields.get("arm"), str):
                arms.setdefault(file, set()).add(arm)
            if options.by is not None and options.by not in text.fields:
                columns = f"no column {options.by!r}; there are {', '.join(text.fields)}: pass --by with one of them"
                fault = columns if text.fields else "has no columns to group by: leave out --by"
                raise InputError(f"{text.place}: {fault}")
            yield (name if options.by is None else str(text.fields[options.by])), text
    warn_left_out(left_out)


def _tally(texts: Iterator[tuple[str, AnyText]], scale: Scale, lists: dict[str, BanList]) -> dict[str, Tally]:
    from antislop.measure.metrics import Tally

    tallies: dict[str, Tally] = {}
    number = characters = 0

    def show(pieces: Iterable[str]) -> Iterator[str]:
        nonlocal characters
        for piece in pieces:
            characters += len(piece)
            bar.update(note=f"{describe_count(number, 'text')}, {characters / 1e6:.1f} million characters")
            yield piece

    with ProgressBar(console(stderr=True), "reading") as bar:
        for name, text in texts:
            number += 1
            if name not in tallies:
                tallies[name] = Tally(scale, bans=lists)
            tallies[name].add(show(cut(text)), group=text.prompt)
    return tallies


def _measure(name: str, tally: Tally, human: Humans, options: dict[str, Any]) -> TextGroup:
    from antislop.measure.estimates import Estimate
    from antislop.measure.human_distance import measure_distance
    from antislop.measure.metrics import measure

    estimates = measure(tally, **options)
    distance: Distance = measure_distance(tally, human=human, **options)
    rows = []
    for metric in tally.metrics:
        metric_distance = distance.metrics.get(
            metric.name, Estimate(None, None, None, "lists of bans have no human value")
        )
        value = human.metrics.get(metric.name) if metric_distance.value is not None else None
        rows.append(MetricRow(metric, estimates[metric.name], None if value is None else value.value, metric_distance))
    return TextGroup(
        name, texts=len(tally), drawn=len(tally.groups), words=tally.words, rows=rows, overall=distance.overall
    )


def _note_bans(arms: Mapping[str, set[str]], scale: Scale, *, is_by_arm: bool) -> None:
    """Warn which bans texts were written under, since their slop is counted with another list."""
    from antislop.datasets.samples import UNBANNED

    for file, names in arms.items():
        if banned := sorted(names - {*UNBANNED}):
            run = Path(f"{file}.run.json")
            settings = read_json(run) if run.is_file() else None
            bans = settings.get("bans", "bans") if isinstance(settings, dict) else "bans"
            apart = "" if is_by_arm or len(names) == 1 else ", and --by arm measures the arms apart"
            warn(
                f"{file}: texts of the arm {', '.join(banned)} were written under {bans!s:.80}; slop words, slop "
                f"trigrams and the slop score count {scale.source} instead: --bans LIST counts other lists, too{apart}"
            )


def _note(groups: list[TextGroup], lists: dict[str, str]) -> None:
    """Warn about lists without hits and about rough intervals. lists: names of lists, by the metric of each list."""
    for name, title in lists.items():
        values = [row.estimate.value for group in groups for row in group.rows if row.metric.name == name]
        if not any(values):
            warn(f"{title}: none of its entries occurs in these texts")
    few = [group.name for group in groups if group.texts < MIN_SAMPLE]
    if few:
        warn(f"fewer than {MIN_SAMPLE} texts: intervals are rough for {', '.join(few)}")
    clustered = [group for group in groups if group.drawn < group.texts]
    if clustered:
        sizes = ", ".join(f"{group.name} ({group.drawn:,} for {group.texts:,} texts)" for group in clustered)
        warn(f"intervals are over prompts, with texts to the same prompt resampled together: {sizes}")
    few = [group.name for group in clustered if group.drawn < MIN_SAMPLE <= group.texts]
    if few:
        warn(f"fewer than {MIN_SAMPLE} prompts: intervals are rough for {', '.join(few)}")


def _print_groups(groups: list[TextGroup], level: float, scale: Scale, *, as_markdown: bool) -> None:
    screen = console()
    if as_markdown:
        head, *rows = _compare(groups)
        lines = [
            [cell.replace("|", "\\|") for cell in row] for row in (head, ["---", *["--:"] * (len(head) - 1)], *rows)
        ]
        write("".join(f"| {' | '.join(line)} |\n" for line in lines))
        say(f"in parentheses, {level:.0%} intervals; slop is counted by {scale.source}")
        return
    if not screen.is_terminal:
        screen.width = 140
    head, *rows = _compare(groups)
    sides: list[Any] = ["left", *["right"] * (len(head) - 2), "left"]
    columns = (Column(make_visible(name), justify=side) for name, side in zip(head, sides, strict=True))
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for cells in rows:
        table.add_row(*cells, style="bold" if cells is rows[-1] else None)
    screen.print(table, f"in parentheses, {level:.0%} intervals")
    reasons: dict[str, dict[str, None]] = {}  # titles of metrics without a value, by the reason
    for row in (row for group in groups for row in group.rows if row.estimate.why):
        reasons.setdefault(row.estimate.why or "", {})[row.metric.title] = None
    for reason, titles in reasons.items():
        screen.print(f"{reason}: {', '.join(titles)}", soft_wrap=True)
    words, trigrams = describe_count(len(scale.words), "word"), describe_count(len(scale.trigrams), "trigram")
    screen.print(f"slop is counted by {scale.source}: {words}, {trigrams}", soft_wrap=True)


def _compare(groups: list[TextGroup]) -> list[list[str]]:
    """Return a table's rows, with a column per group: group names, sizes, metrics, and distance to human writing."""

    def show(estimate: Estimate) -> str:
        bounds = "" if estimate.low is None else f" ({_show_number(estimate.low)} – {_show_number(estimate.high)})"
        return _show_number(estimate.value) + bounds

    rows = [["", *(group.name for group in groups), "human", *["distance"] * (len(groups) == 1), "unit"]]
    rows += [[name, *(f"{getattr(group, name):,}" for group in groups)] for name in ("texts", "words")]
    for metrics in zip(*(group.rows for group in groups), strict=True):
        human = next((row.human for row in metrics if row.human is not None), None)
        shown = (show(row.estimate) for row in metrics)
        distances = ["" if (value := row.distance.value) is None else f"{value:+.2f}" for row in metrics]
        single = distances if len(groups) == 1 else []
        rows.append([metrics[0].metric.title, *shown, _show_number(human), *single, metrics[0].metric.unit])
    rows.append(["distance to human", *(show(group.overall) for group in groups)])
    return [[*row, *[""] * (len(rows[0]) - len(row))] for row in rows]


def _show_number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _describe_group(group: TextGroup) -> dict[str, Any]:
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


def _list_rows(groups: list[TextGroup], level: float) -> Iterator[dict[str, Any]]:
    for group in groups:
        about = {"group": group.name, "texts": group.texts, "level": level}
        for metric, estimate, human, distance in group.rows:
            names = {"metric": metric.name, "unit": metric.unit, "human": human, "distance": distance.value}
            yield {**about, **names, **estimate._asdict()}
        names = {"metric": "distance", "unit": "standard deviations", "human": "", "distance": ""}
        yield {**about, **names, **group.overall._asdict()}
