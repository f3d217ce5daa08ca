"""The commands that check and convert lists of bans: `antislop lint` and `antislop convert`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.text import Text

from antislop.cli import options as shared
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import (
    OutputFormatOption,
    as_input_error,
    check_suffix,
    check_writable,
    console,
    print_line,
    say,
    write_json,
    writing_or_stdout,
)
from antislop.core.bans import BanList, Edges
from antislop.display import describe_count
from antislop.errors import DISTRIBUTION, InputError
from antislop.files.models import ModelSpec
from antislop.measure.lint import Finding, FindingKind, lint

KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
BY_FREQUENCY: list[FindingKind] = ["common", "joined"]
"""The kinds of findings that need the frequencies of words."""

ListArgument = Annotated[Path, typer.Argument(metavar="LIST", help="The list, in any supported format.")]


# -- lint -------------------------------------------------------------------------------------------------------------


def lint_list(
    path: ListArgument,
    model: Annotated[
        str | None, shared.model_option(metavar="NAME", help="Also check that this model can generate the entries.")
    ] = None,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustRemoteCodeOption = False,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help=f"Ignore one of {', '.join(KINDS)}. Repeatable.")
    ] = None,
    group: shared.GroupOption = None,
    language: shared.LanguageOption = None,
    output: OutputFormatOption = "text",
) -> int:
    """Find entries of a list that have no effect, match too much, or look like mistakes: file:line: kind: fault: fix.

    duplicate, contained: another entry already forbids it. overlapping: another entry is from the same sentence.
    short, common: it matches words that every text needs. joined: a comma seems to be missing. kind: it looks like a
    regex or several entries, or has marks around it. slow: the regex takes too long. loop: it matches repeated
    passages, which Ban.loop withdraws better. With --model, untypable and case: the model can't generate it. Words are
    judged by their frequency in the list's language, if it is one of 21 large ones.
    """
    ignored = set(ignore or ())
    if unknown := ignored - set(KINDS):
        raise InputError(f"--ignore {min(unknown)} is not a kind of finding: choose one of {', '.join(KINDS)}")
    bans = BanList.load(sys.stdin.buffer if str(path) == "-" else path, group=group or (), strict=False)
    shared.say_what_was_left_out(bans, path)
    spec = ModelSpec(model, revision=revision, trust_remote_code=trust_remote_code)
    with ProgressBar(console(stderr=True), f"checking {describe_count(len(bans), 'entry', 'entries')}") as bar:
        bar.update()
        vocabulary, tokenizer = None, None if model is None else spec.load_tokenizer()
        if tokenizer is not None:
            from antislop.core.hf import Vocabulary

            with as_input_error():
                vocabulary = Vocabulary.of(tokenizer)
        spoken = shared.choose_language(language, (ban.text for ban in bans if ban.pattern.is_literal))
        frequencies = None if find_spec("wordfreq") is None else spoken.frequencies or None
        findings = lint(bans, frequencies=frequencies, vocabulary=vocabulary, language=spoken)
    reported = sorted(
        (finding for finding in findings if finding.kind not in ignored), key=lambda finding: KINDS.index(finding.kind)
    )
    unchecked = [] if frequencies is not None else BY_FREQUENCY
    _say_how_stars_are_read(bans)
    if output == "json":
        write_json({"list": str(path), **_describe_findings(bans, reported, unchecked)})
    else:
        _print_findings(path, bans, reported, unchecked)
    return int(bool(reported or bans.refused))


def _print_findings(path: Path, bans: BanList, findings: Sequence[Finding], unchecked: Sequence[FindingKind]) -> None:
    for refusal in bans.refused:
        print_line(Text.assemble((refusal.place, "magenta"), ": ", ("refused", "bold red"), f": {refusal.reason}"))
    for finding in findings:
        place = f"{path}:{bans.lines[finding.index]}"
        reference = "" if finding.other is None else f" (line {bans.lines[finding.other]})"
        fault = f": {finding.fault}{reference}"
        print_line(
            Text.assemble((place, "magenta"), ": ", (finding.kind, "bold red"), fault, ": ", (finding.fix, "green"))
        )
    counts = Counter[str](refused=len(bans.refused)) + Counter[str](finding.kind for finding in findings)
    parts = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    more = f"; common words and missing commas are not checked: that needs pip install '{DISTRIBUTION}[lint]'"
    total = describe_count(len(bans), "entry", "entries")
    say(f"{path}: {total}: {parts or 'nothing found'}{more if unchecked else ''}")


def _say_how_stars_are_read(bans: BanList) -> None:
    wildcards = [line for ban, line in zip(bans, bans.lines, strict=True) if ban.pattern.kind == "wildcard"]
    if wildcards:
        say(f"{_name_lines(wildcards)}: * stands for words, or for letters of a word; write \\* for the character")
    stars = [line for ban, line in zip(bans, bans.lines, strict=True) if "*" in ban.text.split()]
    if stars and bans.format == "sillytavern":
        say(f"{_name_lines(stars)}: * is the character, as in SillyTavern; in other formats it stands for words")


def _name_lines(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:5])) + (f" and {len(lines) - 5:,} more" if len(lines) > 5 else "")
    return f"line{'s' * (len(lines) > 1)} {shown}"


def _describe_findings(bans: BanList, findings: Sequence[Finding], unchecked: Sequence[FindingKind]) -> dict[str, Any]:
    """Return the findings as plain data, with entries counted from 1."""
    described = [
        {
            "kind": finding.kind,
            "entry": finding.index + 1,
            "line": bans.lines[finding.index],
            "ban": finding.ban.text,
            "fault": finding.fault,
            "fix": finding.fix,
            "other": None if finding.other is None else finding.other + 1,
        }
        for finding in findings
    ]
    refused = [{"place": place, "reason": reason} for place, reason in bans.refused]
    return {"entries": len(bans), "unchecked": unchecked, "refused": refused, "findings": described}


# -- convert ----------------------------------------------------------------------------------------------------------


def convert(
    path: ListArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; - is standard output.")],
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="The format of LIST.", show_default="detected")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Keep the N entries with the highest counts.")] = None,
    edges: Annotated[
        Edges | None, typer.Option(help="Whether phrases match whole words only.", show_default="that of the format")
    ] = None,
    lenient: shared.LenientOption = False,
    group: shared.GroupOption = None,
    license: shared.LicenseOption = None,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> int:
    """Convert a list from any supported format to antislop's own."""
    check_suffix(out, ".txt")
    check_writable(out, or_stdout=True)
    if str(out) != "-" and out.exists() and not force:
        fault = "is the list itself" if path.exists() and out.samefile(path) else "exists already"
        raise InputError(f"{out} {fault}: pass another path, or --force to overwrite it")
    bans = shared.load_bans(path, lenient=lenient, group=group, format_name=format_name, edges=edges)
    converted = bans if top is None else bans.top(top)
    if converted.source == str(path):  # lists are shared, and must not reveal the folders of this machine
        converted.source = Path(path).name
    with writing_or_stdout(out) as file:
        converted.save(file, license=license)
    counts = f"{describe_count(len(bans), 'entry', 'entries')}, {len(bans.refused):,} refused"
    target = "standard output" if str(out) == "-" else out
    say(f"{path} was read as {bans.format}: {counts}; wrote {len(converted):,} to {target}")
    return 0
