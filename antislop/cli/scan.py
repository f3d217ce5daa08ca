"""The commands about lists, which need no model: scan, try, lint, convert.

torch and transformers are imported only for the tokenizer of `lint --model`.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast, get_args

import typer
from rich.text import Text

from antislop.cli import jobs
from antislop.cli.jobs import collect_bans, load_bans
from antislop.cli.scanning import Place, ReadingBar, find_places, style_line
from antislop.cli.terminal import (
    as_refusal,
    check_writable,
    complain,
    console,
    read,
    read_pieces,
    write_json,
    writing_or_stdout,
)
from antislop.display import escape_json, make_visible
from antislop.errors import InputError
from antislop.hf.pretrained import ModelSpec, load_tokenizer
from antislop.lists.ban_list import BanList
from antislop.lists.bundled import default_bans
from antislop.lists.lint import Finding, Kind, find_lines, lint, load_frequencies
from antislop.matching.bans import Ban, distinct
from antislop.trace.console import to_rich
from antislop.trace.text_pieces import TextPiece

if TYPE_CHECKING:
    from antislop.hf.vocabulary import Vocabulary
    from antislop.lists.ban_list import Refusal
    from antislop.lists.reading import Format as ListFormat

KINDS: tuple[Kind, ...] = get_args(Kind)

_WHITE = re.compile(r"\s+")
_option = typer.Option
_FORMAT_HELP = "text, or json for programs."
_TEXT_HELP = "A UTF-8 text, or .gz; - is standard input. Repeatable."


class Format(str, Enum):
    """How a command writes what it found."""

    TEXT = "text"
    JSON = "json"


class Edges(str, Enum):
    """`antislop.matching.folding.Edges`, as typer takes it."""

    WORD = "word"
    ANYWHERE = "anywhere"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


# -- scan -------------------------------------------------------------------------------------------------------------


def scan(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="UTF-8 texts, or .gz; - is standard input.")],
    bans: jobs.Bans = None,
    ban: jobs.Ban = None,
    no_bans: jobs.NoBans = False,
    constructions: jobs.Constructions = False,
    lenient: jobs.Lenient = False,
    count: Annotated[bool, _option("--count", "-c", help="Print file:number only.")] = False,
    quiet: Annotated[bool, _option("--quiet", "-q", help="Print nothing; the exit status tells.")] = False,
    output: Annotated[Format, _option("--format", help=_FORMAT_HELP)] = Format.TEXT,
) -> int:
    """Find banned phrases in files: file:line:column: phrase, each where it begins."""
    if Path("-") in (bans or []) and "-" in files:
        raise InputError("both a text and --bans are -, and standard input can be read once: save one to a file")
    chosen = collect_bans(bans, ban, no_bans=no_bans, with_constructions=constructions, lenient=lenient)
    if not chosen:
        raise InputError("--no-bans leaves nothing to look for: leave it out, or add --ban PHRASE")
    found = failed = False
    listing = _Listing(output, counts_only=count, is_quiet=quiet)
    for name in files:
        try:
            number = _scan_file(chosen, name, listing)
        except InputError as refusal:
            complain(str(refusal))
            failed = True
            continue
        found = found or number > 0
        listing.end_file(_title(name), number)
    listing.end()
    return 2 if failed else int(found)


def _scan_file(bans: BanList, name: str, listing: _Listing) -> int:
    """List what is found in a file, and return how much that is."""
    path, number = Path(name), 0
    total = path.stat().st_size if path.is_file() and path.suffix.lower() != ".gz" else None
    bar = ReadingBar(console(stderr=True), _title(name), total=total)
    try:
        for places in find_places(bans, read_pieces(name, advance=bar.advance), file=_title(name)):
            if places and listing.is_on_terminal:
                bar.hide()
            listing.add(places)
            number += len(places)
            bar.add(len(places))
    finally:
        bar.hide()
    return number


class _Listing:
    """Writes places as they are found, or how many there are in each file."""

    def __init__(self, output: Format, *, counts_only: bool, is_quiet: bool) -> None:
        self._output = output
        self._counts_only = counts_only
        self._is_quiet = is_quiet
        self._screen = console()
        self._line = style_line(self._screen)
        self._before = "["  # of the next entry, in JSON

    @property
    def is_on_terminal(self) -> bool:
        """Whether a bar would be in its way."""
        return self._screen.is_terminal and not (self._counts_only or self._is_quiet)

    def add(self, places: list[Place]) -> None:
        """Write places, if they are wanted."""
        if not (self._counts_only or self._is_quiet):
            self._write((place._asdict(), f":{place.line}:{place.column}: ", place.ban) for place in places)

    def end_file(self, name: str, number: int) -> None:
        """Write how many places there are, if that is wanted."""
        if self._counts_only and not self._is_quiet:
            self._write([({"file": name, "count": number}, f":{number}", "")])

    def end(self) -> None:
        """Write what is left to write after the last file."""
        if self._output is Format.JSON and not self._is_quiet:
            self._screen.file.write(("[" if self._before == "[" else "") + "\n]\n")

    def _write(self, entries: Iterable[tuple[dict[str, Any], str, str]]) -> None:
        """Write entries: as data, and as the place and the phrase of a line."""
        file = self._screen.file
        for data, place, phrase in entries:
            if self._output is Format.JSON:
                file.write(f"{self._before}\n{escape_json(json.dumps(data, ensure_ascii=False))}")
                self._before = ","
            else:
                file.write(self._line.format(make_visible(data["file"]), place, make_visible(phrase)))
        file.flush()


def _title(name: str) -> str:
    return "<stdin>" if name == "-" else name


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _locate(lines: Sequence[int], place: int) -> tuple[int, int]:
    """Return the line and the column of a character, the first one's being 1, 1."""
    line = bisect_right(lines, place)
    return line, place - lines[line - 1] + 1


# -- try --------------------------------------------------------------------------------------------------------------


class Context(NamedTuple):
    """A hit, `text`, and what stands around it, white space as single spaces."""

    file: str
    line: int
    column: int
    before: str
    text: str
    after: str


@dataclass
class _Tally:
    """How often a ban was hit, and some of the places."""

    count: int = 0
    contexts: list[Context] = field(default_factory=list)


@dataclass
class _Trial:
    """What the bans of a list hit in some texts."""

    bans: BanList
    contexts: int
    words: int = 0
    tallies: dict[Ban, _Tally] = field(default_factory=dict)

    def read(self, name: str) -> None:
        """Add one more text."""
        text = read(name)
        self.words += len(text.split())
        lines = _line_starts(text)
        for match in chain.from_iterable(found.matches for found in self.bans.search([text])):
            tally = self.tallies.setdefault(match.ban, _Tally())
            tally.count += 1
            if len(tally.contexts) < self.contexts:
                around = _cut(text, match.start, match.end)
                tally.contexts.append(Context(_title(name), *_locate(lines, match.start), *around))

    @property
    def ranked(self) -> list[tuple[Ban, _Tally]]:
        """The bans that were hit, the most frequent first."""
        return sorted(self.tallies.items(), key=lambda pair: (-pair[1].count, pair[0].phrase))

    @property
    def never(self) -> list[Ban]:
        """The bans that were not hit, in order."""
        return [ban for ban in distinct(self.bans) if ban not in self.tallies and ban.kind != "tokens"]

    @property
    def hits(self) -> int:
        """All hits of all bans."""
        return sum(tally.count for tally in self.tallies.values())

    def rate(self, count: int) -> float:
        """Return a count per 1,000 words."""
        return 1000 * count / max(1, self.words)


def try_(
    list_: Annotated[
        Path | None, typer.Argument(metavar="LIST", help="The bans to try.", show_default="the bundled list")
    ] = None,
    text: Annotated[list[str] | None, _option(metavar="FILE", help=_TEXT_HELP)] = None,
    contexts: Annotated[int, _option(min=0, help="How many places to show for each ban.")] = 3,
    lenient: jobs.Lenient = False,
    output: Annotated[Format, _option("--format", help=_FORMAT_HELP)] = Format.TEXT,
) -> int:
    """Try a list on texts: what each ban would have hit, how often, and where.

    For each ban that was hit: its hits, its hits per 1,000 words, and the first places. As JSON, the bans that were
    never hit are listed, too.
    """
    if not text:
        raise InputError("no text to try the list on: pass --text FILE, or --text - for standard input")
    if str(list_) == "-" in text:
        raise InputError("both a text and LIST are -, and standard input can be read once: save one to a file")
    trial = _Trial(default_bans() if list_ is None else load_bans(list_, lenient=lenient), contexts)
    if tokens := sum(ban.kind == "tokens" for ban in trial.bans):
        complain(f"{tokens:,} of the bans are token ids, which no text shows: they are left out")
    with console(stderr=True).status("") as status:
        for number, name in enumerate(text, start=1):
            status.update(Text(f"reading {make_visible(_title(name))} ({number} of {len(text)})"))
            trial.read(name)
    if output is Format.JSON:
        write_json(_describe_trial(trial))
    else:
        _print_trial(trial)
    return 0


def _cut(text: str, start: int, end: int, *, most: int = 200) -> tuple[str, str, str]:
    """Return what stands before a hit, the hit, and what stands after it."""
    parts = text[max(0, start - most) : start], text[start:end], text[end : end + most]
    before, hit, after = (_WHITE.sub(" ", part) for part in parts)
    return before.lstrip(), hit, after.rstrip()


def _print_trial(trial: _Trial) -> None:
    screen = console()
    if trial.tallies:
        _print_line(Text(f"{'hits':>8} {'per 1,000':>10}  ban", "dim"))
    for ban, tally in trial.ranked:
        weight = f"  (weight {ban.weight})" if ban.weight else ""
        figures = f"{tally.count:>8,} {trial.rate(tally.count):>10.2f}  "
        _print_line(Text.assemble(figures, (ban.phrase, "bold"), (weight, "dim")))
        for context in tally.contexts:
            _print_line(_draw(context, width=screen.width, is_terminal=screen.is_terminal))
    never, known = len(trial.never), len(distinct(trial.bans))
    summary = f"{_count(trial.hits, 'hit', 'hits')} in {_count(trial.words, 'word', 'words')}, "
    summary += f"{trial.rate(trial.hits):.2f} per 1,000; {len(trial.tallies):,} of {known:,} bans hit, {never:,} never"
    console(stderr=True).print(summary, style="dim", soft_wrap=True)


def _print_line(line: Text) -> None:
    screen = console()
    line.plain = make_visible(line.plain)
    if screen.is_terminal:
        screen.print(line, soft_wrap=True)
    else:  # rich takes a hundred times as long
        screen.file.write(line.plain + "\n")


def _draw(context: Context, *, width: int, is_terminal: bool) -> Text:
    """Return a context in one line, the hit highlighted, or in brackets where there is no color."""
    place = f"{'':>8} {Path(context.file).name}:{context.line}: "
    hit = context.text if is_terminal else f"[{context.text}]"
    room = max(0, width - len(place) - len(hit) - 2)
    left = min(len(context.before), max(room // 2, room - len(context.after)))
    before, after = context.before[len(context.before) - left :], context.after[: room - left]
    before = "…" * (before != context.before) + before
    after += "…" * (after != context.after)
    return Text.assemble(
        (place, "dim"),
        to_rich([TextPiece(before, "kept"), TextPiece(hit, "conceded"), TextPiece(after, "kept")]),
        overflow="ignore",
    )


def _describe_trial(trial: _Trial) -> dict[str, Any]:
    """Return a trial as plain data."""
    bans = [
        {
            "ban": ban.phrase,
            "kind": ban.kind,
            "weight": ban.weight,
            "count": tally.count,
            "per_1000_words": round(trial.rate(tally.count), 4),
            "contexts": [context._asdict() for context in tally.contexts],
        }
        for ban, tally in trial.ranked
    ]
    return {"words": trial.words, "hits": trial.hits, "bans": bans, "never": [ban.phrase for ban in trial.never]}


# -- lint -------------------------------------------------------------------------------------------------------------


@dataclass
class _Checked:
    """A list and what is wrong with it."""

    path: str
    bans: BanList
    lines: Sequence[int | None]
    findings: Sequence[Finding]

    def place(self, index: int) -> str:
        """Return where an entry stands in the file."""
        line = self.lines[index]
        return f"entry {index + 1}" if line is None else f"line {line}"

    @property
    def refused(self) -> Sequence[Refusal]:
        """The entries that can't be loaded."""
        return self.bans.refused


def lint_(
    list_: Annotated[Path, typer.Argument(metavar="LIST", help="The list, in any format that can be loaded.")],
    model: Annotated[
        str | None, _option(help="Also check that this model can write the entries: a Hugging Face id or a folder.")
    ] = None,
    revision: jobs.Revision = None,
    trust_remote_code: jobs.TrustRemoteCode = False,
    ignore: Annotated[
        list[str] | None, _option(metavar="KIND", help=f"Don't look for {', '.join(KINDS)}. Repeatable.")
    ] = None,
    output: Annotated[Format, _option("--format", help=_FORMAT_HELP)] = Format.TEXT,
) -> int:
    """Find entries of a list that do nothing, do too much, or can't be meant: file:line: kind: what is wrong: a fix.

    **duplicate**, **contained**: another entry forbids it already. **short**, **common**: it hits words that all texts
    need. **joined**: a comma seems to be missing. **slow**: a regex that takes too long. With --model **untypable**,
    **case**: the model can't write it. Words are judged by their frequency in English.
    """
    ignored = set(ignore or ())
    if unknown := ignored - set(KINDS):
        raise InputError(f"--ignore {min(unknown)} is no kind of finding: it is one of {', '.join(KINDS)}")
    bans = BanList.load(sys.stdin.buffer if str(list_) == "-" else list_, strict=False)
    if not bans and not bans.refused:
        raise InputError(f"{list_}: holds no entry to check: write one phrase per line")
    spec = ModelSpec(model, revision=revision, trust_remote_code=trust_remote_code)
    with console(stderr=True).status("checking the list"):
        vocabulary = None if model is None else _load_vocabulary(spec)
        findings = lint(bans, frequencies=_load_frequencies(), vocabulary=vocabulary)
    kept = sorted((each for each in findings if each.kind not in ignored), key=lambda each: KINDS.index(each.kind))
    checked = _Checked(str(list_), bans, _find_lines(list_, bans), kept)
    if output is Format.JSON:
        write_json(_describe_findings(checked))
    else:
        _print_findings(checked)
    return int(bool(checked.findings or checked.refused))


def _load_frequencies() -> Any:
    try:
        return load_frequencies()
    except ImportError:
        complain("common words and missing commas are not looked for, which needs pip install 'antislop[lint]'")
        return None


def _load_vocabulary(spec: ModelSpec) -> Vocabulary:
    tokenizer = load_tokenizer(spec)
    from antislop.hf.vocabulary import Vocabulary

    with as_refusal():
        return Vocabulary.of(tokenizer)


def _find_lines(path: Path, bans: BanList) -> Sequence[int | None]:
    if str(path) == "-":  # read already
        return [None] * len(bans)
    try:
        return find_lines(read(str(path)), bans)
    except InputError:  # no text, though it could be loaded
        return [None] * len(bans)


def _print_findings(checked: _Checked) -> None:
    for refusal in checked.refused:
        _print_line(Text.assemble((refusal.place, "magenta"), ": ", ("refused", "bold red"), f": {refusal.reason}"))
    for finding in checked.findings:
        place = checked.place(finding.index)
        where = (
            f"{checked.path}:{place.removeprefix('line ')}" if place.startswith("line ") else f"{checked.path}: {place}"
        )
        besides = "" if finding.other is None else f" ({checked.place(finding.other)})"
        what = f": {finding.fault}{besides}"
        _print_line(
            Text.assemble((where, "magenta"), ": ", (finding.kind, "bold red"), what, ": ", (finding.fix, "green"))
        )
    console(stderr=True).print(_summarize(checked), style="dim", soft_wrap=True)


def _summarize(checked: _Checked) -> str:
    counts = Counter[str](finding.kind for finding in checked.findings)
    if checked.refused:
        counts = Counter({"refused": len(checked.refused)}) + counts
    parts = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f"{_count(len(checked.bans), 'entry', 'entries')}: {parts or 'nothing found'}"


def _describe_findings(checked: _Checked) -> dict[str, Any]:
    """Return what was found as plain data; entries count from 1."""
    findings = [
        {
            "kind": each.kind,
            "entry": each.index + 1,
            "line": checked.lines[each.index],
            "ban": each.ban.phrase,
            "fault": each.fault,
            "fix": each.fix,
            "other": None if each.other is None else each.other + 1,
        }
        for each in checked.findings
    ]
    refused = [{"place": each.place, "reason": each.reason} for each in checked.refused]
    return {"list": checked.path, "entries": len(checked.bans), "refused": refused, "findings": findings}


# -- convert ----------------------------------------------------------------------------------------------------------


def convert(
    list_: Annotated[Path, typer.Argument(metavar="LIST", help="The list, in any format that can be loaded.")],
    out: Annotated[Path, _option("--out", "-o", metavar="FILE", help="Where to write it; - is standard output.")],
    format_: Annotated[
        str | None, _option("--format", metavar="NAME", help="What LIST is written in.", show_default="seen from it")
    ] = None,
    top: Annotated[int | None, _option(min=1, metavar="N", help="Keep the N entries with the highest counts.")] = None,
    edges: Annotated[
        Edges | None, _option(help="Whether phrases match whole words only.", show_default="as usual in the format")
    ] = None,
    lenient: jobs.Lenient = False,
    licence: Annotated[
        str | None, _option(metavar="TEXT", help="A note on the licence, to be written into the file.")
    ] = None,
    force: Annotated[bool, _option("--force", help="Overwrite a file that is there.")] = False,
) -> int:
    """Write a list of any format in antislop's own."""
    _check_target(out, list_, force=force)
    taken = cast("ListFormat | None", format_)  # load refuses any other
    bans = load_bans(list_, lenient=lenient, format_=taken, edges=edges.value if edges else None)
    kept = bans if top is None else bans.top(top)
    if kept.source == str(list_):  # where it lies on this machine is nobody else's business
        kept.source = Path(list_).name
    with writing_or_stdout(out) as path:
        kept.save(path, licence=licence)
    read_as = (
        f"{list_} was read as {bans.format}: {_count(len(bans), 'entry', 'entries')}, {len(bans.refused):,} refused"
    )
    target = "standard output" if str(out) == "-" else out
    console(stderr=True).print(f"{read_as}; wrote {len(kept):,} to {target}", style="dim", soft_wrap=True)
    return 0


def _check_target(out: Path, list_: Path, *, force: bool) -> None:
    check_writable(out, or_stdout=True)
    if str(out) != "-" and out.exists() and not force:
        what = "is the list itself" if list_.exists() and out.samefile(list_) else "is there already"
        raise InputError(f"{out} {what}: pass another path, or --force to overwrite it")
