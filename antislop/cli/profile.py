"""The commands about profiles: `profile`, and `bans-from`, which makes a list out of one. They need no model.

numpy is imported only when one of them runs, so that the other commands start at once.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from enum import Enum
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from antislop.cli.terminal import check_writable, complain, console, write, write_json, writing, writing_or_stdout
from antislop.data import FOLDER
from antislop.display import quote_formula
from antislop.errors import InputError
from antislop.files import read_bytes
from antislop.records.texts import Text, read_texts

if TYPE_CHECKING:
    from antislop.profiles.changes import Change
    from antislop.profiles.human_rates import Baseline
    from antislop.profiles.ngrams import Texts
    from antislop.profiles.profiles import Profile

HUMAN = FOLDER / "human.json.gz"
KINDS = ("word", "phrase", "content", "construction")

_option = typer.Option


class Half(str, Enum):
    """One half of the prompts; the two never share one."""

    MADE_FROM = "made-from"
    HELD_OUT = "held-out"


class Format(str, Enum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


class NameChoice(str, Enum):
    """Which entries with names of people and places become bans."""

    ALL = "all"
    NONE = "none"
    WORDS = "words"
    ONLY = "only"


def profile(
    texts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TEXTS", help="Texts: .txt, .jsonl, .json, .csv, .parquet, .gz of these, folders."),
    ] = None,
    out: Annotated[
        Path | None,
        _option("--out", "-o", metavar="FILE", help="Where to write, also .gz; - is standard output."),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        _option(
            metavar="HUMAN",
            help="A baseline, or human texts. Repeatable: all files but the first would be TEXTS.",
            show_default="20 novels, bundled",
        ),
    ] = None,
    also_human: Annotated[
        list[Path] | None,
        _option(metavar="HUMAN", help="More of these, however small: they count where they are surely higher."),
    ] = None,
    as_baseline: Annotated[bool, _option("--as-baseline", help="Count human texts, for --baseline.")] = False,
    compare_: Annotated[
        tuple[Path, Path] | None,
        _option("--compare", metavar="A B", help="Two profiles, or texts: what fell, what rose."),
    ] = None,
    output: Annotated[Format, _option("--format", help="Of a comparison.")] = Format.TEXT,
    top: Annotated[int, _option(min=1, help="Of a comparison: how many lines of either kind.")] = 15,
    column: Annotated[str | None, _option(help="Where the texts are.", show_default="response, output, …")] = None,
    also_column: Annotated[
        str | None, _option(help="Where the texts of --also-human are.", show_default="as --column")
    ] = None,
    prompt_column: Annotated[
        str | None, _option(help="What tells prompts apart.", show_default="key, prompt, …")
    ] = None,
    half: Annotated[Half | None, _option(help="Read the texts of half of the prompts.")] = None,
    min_count: Annotated[
        int | None, _option(min=1, help="Leave out what is rarer.", show_default="5; baseline 3")
    ] = None,
    min_prompts: Annotated[int, _option(min=1, help="Leave out what comes from fewer prompts.")] = 2,
    min_ratio: Annotated[float, _option(min=0, help="Leave out what is less over-used.")] = 2.0,
    memory: Annotated[int, _option(min=1, help="For counters, in megabytes.")] = 256,
) -> int:
    """Count what texts hold more often than people write it: words, phrases, content n-grams, constructions.

    TEXTS are read three times, so they can't come from standard input. With --as-baseline, TEXTS are human ones and
    counted for --baseline. With --compare A B, what fell from A to B and what rose instead, in occurrences per million
    words, the surest first.
    """
    from antislop.profiles.profiles import make_profile

    reader = _Reader(column=column, prompt_column=prompt_column, half=half)
    with _as_refusals():
        if compare_ is not None:
            if texts:
                raise InputError(f"--compare takes two, and {texts[0]} is one more: leave it out")
            return _compare(*compare_, reader, out, output=output, top=top, memory=memory)
        if not texts:
            raise InputError("no texts to profile: pass files, or --compare A B")
        if out is None:
            raise InputError("no place to write the profile: pass -o profile.json")
        check_writable(out, or_stdout=True)
        if as_baseline:
            if baseline or also_human:
                raise InputError("--as-baseline sets TEXTS against nothing: leave out --baseline and --also-human")
            return _make_baseline(texts, reader, out, min_count=min_count or 3, memory=memory)
        _refuse_both(texts, baseline or [])
        modern = find_spec("wordfreq") is not None
        human = _load_baseline(baseline or [HUMAN], column, min_count=3, memory=memory)
        others = [_load_baseline([one], also_column or column, min_count=1, memory=memory) for one in also_human or []]
        with _bar() as progress:
            made = make_profile(
                reader.open(texts),
                baseline=human,
                also=others,
                min_count=min_count or 5,
                min_prompts=min_prompts,
                min_ratio=min_ratio,
                examples=True,
                modern=modern,
                megabytes=memory,
                made_with=_describe(texts, human, others, half),
                progress=progress,
            )
        with writing_or_stdout(out) as path:
            made.save(path)
        if not modern:
            complain(_WITHOUT_WORDFREQ)
        complain(f"texts: {_list_names(texts)}; held against: {human.name}")
        _report_profile(made, min_count=min_count or 5, min_prompts=min_prompts)
        return 0


def bans_from(
    source: Annotated[Path, typer.Argument(metavar="PROFILE", help="What antislop profile wrote.")],
    out: Annotated[
        Path | None, _option("--out", "-o", metavar="FILE", help="The list.", show_default="standard output")
    ] = None,
    min_ratio: Annotated[
        float, _option(min=0, help="How many times as often as people: the interval's lower end must reach it.")
    ] = 10.0,
    top: Annotated[
        int | None, _option(min=1, help="How many at most, those first of which there are most too many.")
    ] = None,
    kinds: Annotated[str, _option(metavar="LIST", help=f"Of {', '.join(KINDS)}.")] = "word,phrase",
    names: Annotated[
        NameChoice, _option(help="Names of people and places: all, none, only single words, or only names.")
    ] = NameChoice.ALL,
    no_names: Annotated[bool, _option("--no-names", help="The same as --names none.")] = False,
    names_only: Annotated[bool, _option("--names-only", help="The same as --names only.")] = False,
    max_zipf: Annotated[
        float | None, _option(help="Single words only if rarer in English: log10 of occurrences in a billion.")
    ] = None,
    min_prompts: Annotated[int, _option(min=1, help="From how many prompts.")] = 2,
    forbid: Annotated[
        bool, _option("--forbid", help="Forbid all, instead of making them as rare as with people.")
    ] = False,
    licence: Annotated[str | None, _option(help="Of the list, for its header.")] = None,
) -> int:
    """Make a list of bans out of a profile.

    A ban's weight is 1 over its ratio, so that what people write too stays as rare as with them; what they were not
    seen to write is forbidden. The list is linted, and what is at fault left out.
    """
    from antislop.lists.text_format import write_lines
    from antislop.profiles.profiles import Profile
    from antislop.profiles.to_bans import Choice, choose_bans

    if no_names and names_only:
        raise InputError("--no-names and --names-only leave nothing: pass one of them")
    if names is not NameChoice.ALL and (no_names or names_only):
        raise InputError(f"--names {names.value} and --{'no-names' if no_names else 'names-only'}: pass one of them")
    chosen = "none" if no_names else "only" if names_only else names.value
    choice = Choice(
        min_ratio=min_ratio,
        kinds=tuple(kind.strip() for kind in kinds.split(",")),
        names=chosen,
        max_zipf=max_zipf,
        min_prompts=min_prompts,
        top=top,
        forbid=forbid,
    )
    if out is not None:
        check_writable(out, or_stdout=True)
    with _as_refusals():
        is_stdin = str(source) == "-"
        loaded = Profile.parse(sys.stdin.buffer.read(), place="<stdin>") if is_stdin else Profile.load(source)
        bans, left_out = choose_bans(loaded, choice, source=_describe_list(loaded))
        if out is None or str(out) == "-":
            write("\n".join(write_lines(bans, source=bans.source, licence=licence)) + "\n")
        else:
            bans.save(out, licence=licence)
    forbidden = sum(ban.weight == 0 for ban in bans)
    why = ", ".join(f"{number:,} {reason}" for reason, number in left_out.most_common())
    complain(f"{len(bans):,} bans, {forbidden:,} of them forbidden altogether; left out: {why or 'nothing'}")
    return 0


# -- Reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    """How texts are read."""

    def __init__(self, *, column: str | None, prompt_column: str | None, half: Half | None) -> None:
        self._column, self._prompt_column, self._half = column, prompt_column, half

    def open(self, paths: Iterable[Path]) -> Texts:
        """Return what reads texts anew at each call."""
        names = [str(path) for path in paths]
        if "-" in names:
            raise InputError("standard input can't be read twice, and texts are: save it to a file and pass that")
        for path in map(Path, names):
            if not path.exists() and len(path.parts) != 2:  # owner/name is a data set of the hub
                raise InputError(f"{path}: does not exist: pass files or folders of texts")

        def read() -> Iterator[Text]:
            found = read_texts(names, column=self._column, prompt_column=self._prompt_column)
            return (text for text in found if self._half is None or find_half(text) is self._half)

        return read


def find_half(text: Text) -> Half:
    """Return the half that a text's prompt belongs to, or the text itself where it has none."""
    from antislop.profiles.ngrams import hash_prompt

    return Half.HELD_OUT if hash_prompt(text) & 1 else Half.MADE_FROM


@contextmanager
def _as_refusals() -> Iterator[None]:

    try:
        yield
    except ImportError as error:
        raise InputError(f"{error}: profiles need the packages of pip install 'antislop[eval]'") from error


def _refuse_both(texts: Sequence[Path], baseline: Sequence[Path]) -> None:
    for path in texts:
        if path in baseline:
            raise InputError(
                f"{path}: stands among TEXTS and behind --baseline: texts can't be held against themselves"
            )


def _list_names(paths: Sequence[Path] | None) -> str:
    names = [path.name for path in paths or []]
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _load_baseline(paths: Sequence[Path], column: str | None, *, min_count: int, memory: int) -> Baseline:
    """Return a baseline from its file, or made of human texts."""
    from antislop.profiles.human_rates import Baseline
    from antislop.profiles.profiles import take_census

    names = _list_names(paths)
    for path in paths:
        if path.name.endswith((".json", ".json.gz")) and path.is_file():
            if len(paths) > 1:
                raise InputError(f"{path}: is a baseline already and can't be joined with others: pass it alone")
            return Baseline.load(path)
    texts = _Reader(column=column, prompt_column=None, half=None).open(paths)
    with _bar(f"human texts of {names}") as progress:
        census = take_census(texts, min_count=min_count, min_prompts=1, megabytes=memory, progress=progress)
    if not census.words:
        raise InputError(f"{names}: no words in it: pass human texts, or a baseline")
    return Baseline.of(census, name=names)


def _make_baseline(texts: list[Path], reader: _Reader, out: Path, *, min_count: int, memory: int) -> int:
    from antislop.profiles.human_rates import Baseline
    from antislop.profiles.profiles import take_census

    with _bar() as progress:
        opened = reader.open(texts)
        census = take_census(opened, min_count=min_count, min_prompts=1, megabytes=memory, progress=progress)
    if not census.words:
        raise InputError("no words in the texts: there is nothing to count")
    made_with = {"sources": [path.name for path in texts], "texts": census.texts, "files": _hash_files(texts)}
    with writing_or_stdout(out) as path:
        Baseline.of(census, name=", ".join(path.name for path in texts), made_with=made_with).save(path)
    complain(f"{census.words:,} words in {census.texts:,} texts; {len(census):,} entries from {census.min_count} on")
    return 0


def _hash_files(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name."""
    from hashlib import sha256

    files = chain.from_iterable(sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths)
    return {path.name: sha256(read_bytes(path, unpack=False)).hexdigest() for path in files if path.is_file()}


def _describe(texts: list[Path], human: Baseline, others: list[Baseline], half: Half | None) -> dict[str, Any]:
    return {
        "command": shlex.join(["antislop", *(_shorten(each) for each in sys.argv[1:])]),
        "date": date.today().isoformat(),
        "sources": [path.name for path in texts],
        "half": half.value if half else None,
        "also_human": [{"name": other.name, "words": other.words} for other in others],
        "human_least": human.least,
    }


def _shorten(argument: str) -> str:
    """Return the name of a file without where it lies, which is nobody's business."""
    return Path(argument).name if "/" in argument else argument


def _describe_list(made: Profile) -> str:
    half = made.made_with.get("half")
    human = made.baseline or {"name": "nothing", "words": 0}
    return (
        f"{', '.join(made.made_with.get('sources', []))}{f', {half} half of the prompts' if half else ''}: "
        f"{made.texts:,} texts, {made.prompts:,} prompts, {made.words:,} words, against {human['words']:,} words of "
        f"{human['name']}; {shlex.join(['antislop', *(_shorten(each) for each in sys.argv[1:])])}; "
        f"{date.today().isoformat()}"
    )


# -- Showing ----------------------------------------------------------------------------------------------------------


class _Shown:
    """A progress bar that counting reports to."""

    def __init__(self, bar: Progress, what: str) -> None:
        self._bar, self._what = bar, what
        self._task = bar.add_task(what, total=None, size="")

    def __call__(self, reading: int, done: int, total: int | None) -> None:
        self._bar.update(
            self._task,
            description=f"{self._what}, reading {reading} of 2",
            completed=done,
            total=total,
            size=f"{done / 1e6:,.0f} MB",
        )


@contextmanager
def _bar(what: str = "texts") -> Iterator[_Shown]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[size]}"),
        TimeRemainingColumn(),
    )
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        yield _Shown(bar, what)


def _report_profile(made: Profile, *, min_count: int, min_prompts: int) -> None:
    kinds = {kind: sum(entry.kind == kind for entry in made.entries) for kind in KINDS}
    found = ", ".join(_number(number, _KIND_NAMES.get(kind, kind)) for kind, number in kinds.items())
    sizes = _number(made.words, "word"), _number(made.texts, "text"), _number(made.prompts, "prompt")
    complain(f"{', '.join(sizes)}; listed: {found}")
    if made.prompts < min_prompts:
        complain(f"nothing comes from {min_prompts} prompts: give texts to more prompts, or pass --min-prompts 1")
    if made.made_with["min_count"] > min_count:
        complain(f"the smallest count had to be {made.made_with['min_count']}, not {min_count}, for want of --memory")


_WITHOUT_WORDFREQ = (
    "wordfreq is not installed, so that people's rates are those of the baseline alone: words that are newer than it "
    "count as over-used; pip install 'antislop[eval]' for rates of today"
)
_KIND_NAMES = {"content": "content n-gram"}


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


# -- Comparing --------------------------------------------------------------------------------------------------------


def _compare(
    before: Path, after: Path, reader: _Reader, out: Path | None, *, output: Format, top: int, memory: int
) -> int:
    from antislop.profiles.changes import compare

    if out is not None:
        check_writable(out)
        if out.suffix.lower() not in (".svg", ".png", ".pdf"):
            raise InputError(f"{out}: no kind of picture: name it .svg, .png or .pdf")
        if find_spec("matplotlib") is None:
            raise InputError("a picture needs the package matplotlib: pip install 'antislop[eval]', or leave out -o")
    changes = compare(*(_load_side(path, reader, memory=memory) for path in (before, after)))
    chosen = [*_first(changes, top, rose=False), *_first(changes, top, rose=True)]
    titles = _name_sides(before, after)
    if output is Format.JSON:
        write_json([change._asdict() for change in chosen])
    elif output is Format.CSV:
        write(_to_csv(chosen))
    else:
        _print_changes(chosen, *titles)
    if out is not None:
        from antislop.profiles.figures import draw_changes

        with writing(out):
            draw_changes(chosen, out, before=titles[0], after=titles[1], each=top)
    return 0


def _name_sides(before: Path, after: Path) -> tuple[str, str]:
    """Return what two files are called: without their suffixes, unless only these tell them apart."""
    stems = tuple(
        re.sub(r"(?<=.)\.(jsonl?|ndjson|txt|csv|tsv|parquet)(\.gz)?$", "", path.name) for path in (before, after)
    )
    return (stems[0], stems[1]) if stems[0] != stems[1] else (before.name, after.name)


def _load_side(path: Path, reader: _Reader, *, memory: int) -> Profile:
    """Return a profile from its file, or made of texts."""
    from antislop.profiles.profiles import Profile, make_profile

    if path.name.endswith((".json", ".json.gz")) and path.is_file():
        try:
            return Profile.load(path)
        except InputError as error:
            if "no profile of this package" not in str(error):
                raise
    try:
        with _bar(path.name) as progress:
            return make_profile(reader.open([path]), megabytes=memory, progress=progress)
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def _first(changes: Iterable[Change], top: int, *, rose: bool) -> list[Change]:
    return [change for change in changes if (change.ratio > 1) is rose][:top]


def _to_csv(changes: Iterable[Change]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    rows = [change._asdict() for change in changes]
    writer.writerow(rows[0] if rows else ["kind", "text"])
    writer.writerows(map(quote_formula, row.values()) for row in rows)
    return file.getvalue()


def _print_changes(changes: list[Change], before: str, after: str) -> None:
    for title, rose in (("fell", False), ("rose", True)):
        table = Table(title=f"What {title}, per million words", title_justify="left", box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        for name in (before, after, "ratio", "95 % interval"):
            table.add_column(name, justify="right", overflow="fold")
        for change in _first(changes, len(changes), rose=rose):
            table.add_row(
                change.text if change.kind != "construction" else f"[{change.text}]",
                _show_rate(change.before, change.before_count),
                _show_rate(change.after, change.after_count),
                f"{change.ratio:.3g}",
                f"{change.low:.3g} to {change.high:.3g}",
            )
        if table.row_count:
            console().print(table)
        else:
            console().print(f"Nothing surely {title}.")


def _show_rate(rate: float, count: int | None) -> str:
    return f"{'< ' if count is None else ''}{rate:,.1f}"
