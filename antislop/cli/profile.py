"""The command `antislop profile`: find words, phrases and constructions that texts overuse against human writing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from antislop.cli.options import ChatsOption, ColumnOption, LanguageOption, PromptColumnOption, choose_language
from antislop.cli.parsing import Conflicts, When
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import (
    TableFormat,
    check_suffix,
    check_writable,
    console,
    describe_command,
    refuse_repeats,
    warn,
    warn_left_out,
    write_table,
    writing_or_stdout,
)
from antislop.data import FOLDER
from antislop.display import describe_count
from antislop.errors import DISTRIBUTION, InputError
from antislop.files.disk import read_bytes, replace_text
from antislop.files.texts import AnyText, Half, LeftOut, cut, find_half, open_texts

if TYPE_CHECKING:
    from antislop.measure.languages import Language
    from antislop.measure.profiles.ngrams import Progress, Texts
    from antislop.measure.profiles.profiles import Change, Profile
    from antislop.measure.profiles.rates import Baseline

HUMAN = FOLDER / "human.json.gz"
KINDS = ("word", "phrase", "content", "construction")
BASELINE_MIN_COUNT = 3
FEW_WORDS = 80_000  # with 50,000 words in place of 200,000, 5 to 7 hits in 10,000 human words in place of 0 to 1
PROFILE_MIN_COUNT = 5
PAGES = (".html", ".htm")

MinPromptsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Leave out entries of fewer than N prompts.", show_default="2, or 1 for a single text"),
]


@dataclass(frozen=True)
class HumanOptions:
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="HUMAN", help="A baseline file, or human texts. Repeatable.", show_default="20 novels, bundled"
        ),
    ] = None
    also_human: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="HUMAN",
            help="Additional human texts (any amount). An entry uses their rate where it is significantly higher.",
        ),
    ] = None
    as_baseline: Annotated[bool, typer.Option(help="Count TEXTS as human writing, for --baseline.")] = False


@dataclass(frozen=True)
class ReadingOptions:
    column: ColumnOption = None
    also_column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the texts of --also-human.", show_default="as --column"),
    ] = None
    prompt_column: PromptColumnOption = None
    chats: ChatsOption = False
    half: Annotated[Half | None, typer.Option(help="Read the texts of one half of the prompts.")] = None
    language: LanguageOption = None


@dataclass(frozen=True)
class LimitOptions:
    min_count: Annotated[
        int | None, typer.Option(min=1, help="Leave out entries that occur less often.", show_default="5; baseline 3")
    ] = None
    min_prompts: MinPromptsOption = None
    min_ratio: Annotated[float, typer.Option(min=0, help="Leave out entries that are less overused.")] = 2.0
    memory: Annotated[int, typer.Option(min=1, help="Megabytes for counters.")] = 64


@dataclass(frozen=True)
class ComparisonOptions:
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Compare two profiles, or texts: the entries that fell, and those that rose."),
    ] = None
    output: Annotated[TableFormat, typer.Option("--format", help="The format of the output.")] = "text"
    top: Annotated[int, typer.Option(min=1, help="Lines of a comparison per direction.")] = 15


CONFLICTS: Conflicts = {
    "--compare takes two files, and {texts[0]} is a third: leave it out": When("compare", lambda o: o.texts),
    "--compare prints what it finds, and writes no file: leave out -o": When("compare", lambda o: o.out),
    "no texts to profile: pass files, or --compare A B": When("", lambda o: not (o.texts or o.compare)),
    "no file to write the profile to: pass -o profile.json": When("", lambda o: o.out is None and not o.compare),
    "--as-baseline compares TEXTS with nothing: leave out --baseline and --also-human": When(
        "as_baseline", lambda o: (o.baseline or o.also_human) and not o.compare
    ),
}


def profile(
    texts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TEXTS",
            help="Texts: .txt or .md of one each, .jsonl, .json, .csv, .parquet, .gz of these, folders of them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write: .json, .json.gz, or .html for a page; - is standard output.",
        ),
    ] = None,
    *,
    human: HumanOptions,
    comparison: ComparisonOptions,
    reading: ReadingOptions,
    limits: LimitOptions,
) -> int:
    """Count words, phrases, content n-grams and constructions that texts contain more often than human writing.

    TEXTS are read three times, so they can't come from standard input. With --as-baseline, they are human writing and
    counted for --baseline. With --compare A B: the entries that fell and rose from A to B, in occurrences per million
    words, most certain first.
    """
    if comparison.compare is not None:
        return _compare(comparison, reading, memory=limits.memory)
    assert texts and out
    check_suffix(out, ".json", *(() if human.as_baseline else PAGES))
    check_writable(out, or_stdout=True)
    if human.as_baseline:
        _check_paths(texts, out)
        return _make_baseline(texts, reading, out, limits)
    return _make_profile(texts, out, human, reading, limits)


def _make_profile(
    texts: list[Path], out: Path, human: HumanOptions, reading: ReadingOptions, limits: LimitOptions
) -> int:
    from antislop.measure.profiles.profiles import make_profile, render_page
    from antislop.measure.profiles.rates import HumanRates

    for path in texts:
        if path in (human.baseline or []):
            raise InputError(f"{path}: is in both TEXTS and --baseline: texts can't be compared with themselves")
    _check_paths(texts, out, human=[*(human.baseline or []), *(human.also_human or [])])
    modern = find_spec("wordfreq") is not None
    if not modern:
        warn(
            "wordfreq is not installed, so human rates are those of the baseline alone, words newer than it count as "
            "overused, and antislop bans-from can't make a list of the profile: "
            f"pip install '{DISTRIBUTION}[lint]' adds it"
        )
    read = _open(texts, reading)
    language = choose_language(reading.language, chain.from_iterable(map(cut, read())))
    if not (human.baseline or language.is_english):
        raise InputError(
            f"the bundled human texts are English, and {_list_names(texts)} {language.name}: pass human texts of the "
            f"same kind in {language.name}, --baseline FILES, best 80,000 words or more"
        )
    min_count, memory = limits.min_count or PROFILE_MIN_COUNT, limits.memory
    load = partial(_load_baseline, language=language, memory=memory)
    baseline = load(human.baseline or [HUMAN], reading.column, min_count=BASELINE_MIN_COUNT)
    column = reading.also_column or reading.column
    also_baselines = [load([path], column, min_count=1) for path in human.also_human or []]
    made_with = {
        "command": describe_command(),
        "date": date.today().isoformat(),
        "sources": [path.name for path in texts],
        "half": reading.half,
        "also_human": [{"name": other.name, "words": other.words} for other in also_baselines],
        "human_least": baseline.min_count,
    }
    with _show_counting() as progress:
        new_profile = make_profile(
            read,
            rates=HumanRates(baseline, also=also_baselines, modern=modern, language=language),
            min_count=min_count,
            min_prompts=limits.min_prompts,
            min_ratio=limits.min_ratio,
            examples=True,
            megabytes=memory,
            made_with=made_with,
            progress=progress,
        )
    with writing_or_stdout(out) as path:
        if out.name.lower().removesuffix(".gz").endswith(PAGES):
            replace_text(path, render_page(new_profile))
        else:
            new_profile.save(path)
    warn(f"texts: {_list_names(texts)}; compared with: {baseline.name}, {describe_count(baseline.words, 'word')}")
    if baseline.words < FEW_WORDS and not language.is_english:
        warn(
            f"{baseline.words:,} words of human texts are few: with less than {FEW_WORDS:,}, common words and words of "
            "their topics count as overused"
        )
    _report_profile(new_profile, min_count=min_count)
    return 0


def _compare(options: ComparisonOptions, reading: ReadingOptions, *, memory: int) -> int:
    from antislop.measure.profiles.profiles import compare

    assert options.compare is not None
    changes = compare(*(_load_side(path, reading, memory=memory) for path in options.compare))
    chosen = [*_first(changes, options.top, rose=False), *_first(changes, options.top, rose=True)]
    rows = [change._asdict() for change in chosen]
    names = [path.name for path in options.compare]
    stems = [re.sub(r"(?<=.)\.(jsonl?|ndjson|txt|csv|tsv|parquet)(\.gz)?$", "", name) for name in names]
    sides = stems if stems[0] != stems[1] else names  # file names without suffixes, unless only the suffixes differ
    write_table(
        options.output,
        rows,
        columns=[*rows[0]] if rows else ["kind", "text"],
        show=lambda _: _print_changes(chosen, *sides),
        data=rows,
    )
    return 0


# -- Reading ----------------------------------------------------------------------------------------------------------


def _open(paths: Sequence[Path], options: ReadingOptions) -> Texts:
    """Return a function that reads the texts from the beginning at each call."""
    if Path("-") in paths:
        raise InputError("texts are read twice, which standard input does not allow: save it to a file and pass that")
    for path in paths:
        if not path.exists() and len(path.parts) != 2:  # owner/name is a data set of the hub
            raise InputError(f"{path}: does not exist: pass files or folders of texts")
    warn_once = cache(warn)  # texts are read several times

    def read() -> Iterator[AnyText]:
        names, left_out = list(map(str, paths)), LeftOut()
        texts = open_texts(
            names,
            column=options.column,
            prompt_column=options.prompt_column,
            chats=options.chats,
            left_out=left_out,
        )
        yield from (text for text in texts if options.half is None or find_half(text) == options.half)
        warn_left_out(left_out, warn=warn_once)

    return read


def _check_paths(texts: Sequence[Path], out: Path, *, human: Sequence[Path] = ()) -> None:
    """Refuse texts that are named twice, and an output file that would overwrite an input or be read as one."""
    refuse_repeats(texts)
    is_page, place = out.name.lower().removesuffix(".gz").endswith(PAGES), out.resolve()
    for path in (*texts, *human):
        if path.resolve() == place:
            raise InputError(f"{out}: is read, and would be overwritten: choose another file")
        if path.is_dir() and place.is_relative_to(path.resolve()) and not is_page:
            raise InputError(f"{out}: would be read as texts from the folder {path}: choose another place")


def _list_names(paths: Sequence[Path] | None) -> str:
    names = [path.name for path in paths or []]
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _load_baseline(
    paths: Sequence[Path], column: str | None, *, min_count: int, memory: int, language: Language
) -> Baseline:
    from antislop.measure.profiles.profiles import take_census
    from antislop.measure.profiles.rates import Baseline

    names = _list_names(paths)
    for path in paths:
        if path.name.endswith((".json", ".json.gz")) and path.is_file():
            if len(paths) > 1:
                raise InputError(f"{path}: is a finished baseline and can't be combined with others: pass it alone")
            loaded = Baseline.load(path)
            if (code := loaded.made_with.get("language", "en")) != language.code:
                raise InputError(f"{path}: has counts of texts in {code!r}, and the texts are in {language.code!r}")
            return loaded
    texts = _open(paths, ReadingOptions(column=column))
    with _show_counting(f"human texts of {names}") as progress:
        census = take_census(
            texts, language=language, min_count=min_count, min_prompts=1, megabytes=memory, progress=progress
        )
    if not census.words:
        raise InputError(f"{names}: contains no words: pass human texts, or a baseline")
    return Baseline.of(census, name=names)


def _load_side(path: Path, reading: ReadingOptions, *, memory: int) -> Profile:
    from antislop.measure.profiles.profiles import Profile, make_profile

    if path.name.endswith((".json", ".json.gz")) and path.is_file():
        try:
            return Profile.load(path)
        except InputError as error:
            if "not a profile of this package" not in str(error):
                raise
    try:
        with _show_counting(path.name) as progress:
            read = _open([path], reading)
            language = choose_language(reading.language, chain.from_iterable(map(cut, read())))
            return make_profile(read, megabytes=memory, progress=progress, language=language)
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def _make_baseline(texts: list[Path], reading: ReadingOptions, out: Path, limits: LimitOptions) -> int:
    from antislop.measure.profiles.profiles import take_census
    from antislop.measure.profiles.rates import Baseline

    read = _open(texts, reading)
    language = choose_language(reading.language, chain.from_iterable(map(cut, read())))
    with _show_counting() as progress:
        census = take_census(
            read,
            language=language,
            min_count=limits.min_count or BASELINE_MIN_COUNT,
            min_prompts=1,
            megabytes=limits.memory,
            progress=progress,
        )
    if not census.words:
        raise InputError("no words in the texts: there is nothing to count")
    files = chain.from_iterable(sorted(path.rglob("*")) if path.is_dir() else [path] for path in texts)
    # A baseline is published, and its texts often aren't: the hashes identify the texts.
    hashes = {path.name: sha256(read_bytes(path, unpack=False)).hexdigest() for path in files if path.is_file()}
    made_with = {"sources": [path.name for path in texts], "texts": census.texts, "files": hashes}
    made_with |= {} if language.is_english else {"language": language.code}
    with writing_or_stdout(out) as path:
        Baseline.of(census, name=", ".join(path.name for path in texts), made_with=made_with).save(path)
    warn(
        f"{describe_count(census.words, 'word')} in {describe_count(census.texts, 'text')}; "
        f"{describe_count(len(census), 'entry occurs', 'entries occur')} "
        f"{describe_count(census.min_count, 'time')} or more"
    )
    return 0


# -- Showing ----------------------------------------------------------------------------------------------------------


@contextmanager
def _show_counting(title: str = "texts") -> Iterator[Progress]:
    with ProgressBar(console(stderr=True), title) as bar:

        def show(reading: int, characters: int, total: int | None) -> None:
            bar.update(
                title=f"{title}, pass {reading} of 2", done=characters, total=total, note=f"{characters / 1e6:,.0f} MB"
            )

        yield show


def _report_profile(profile: Profile, *, min_count: int) -> None:
    kinds = {kind: sum(entry.kind == kind for entry in profile.entries) for kind in KINDS}
    names = {"content": "content n-gram"}
    entries = ", ".join(describe_count(number, names.get(kind, kind)) for kind, number in kinds.items())
    sizes = (describe_count(getattr(profile, f"{noun}s"), noun) for noun in ("word", "text", "prompt"))
    warn(f"{', '.join(sizes)}; listed: {entries}")
    if profile.texts == 1:
        warn("a single text counts as a whole: to count the chapters of each entry, pass a folder with a file for each")
    if profile.prompts < (min_prompts := profile.made_with["min_prompts"]):
        warn(f"no entry comes from {min_prompts} prompts: pass texts of more prompts, or --min-prompts 1")
    if profile.made_with["min_count"] > min_count:
        warn(f"--memory was too small for counts from {min_count}: counted from {profile.made_with['min_count']}")


# -- Comparing --------------------------------------------------------------------------------------------------------


def _first(changes: Iterable[Change], top: int, *, rose: bool) -> list[Change]:
    return [change for change in changes if (change.ratio > 1) is rose][:top]


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
            console().print(f"Nothing certainly {title}.")


def _show_rate(rate: float, count: int | None) -> str:
    return f"{'< ' if count is None else ''}{rate:,.1f}"
