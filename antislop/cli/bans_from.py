"""The command `antislop bans-from`: make a list of bans from a profile."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import typer

from antislop.cli.options import LicenseOption
from antislop.cli.parsing import Conflicts, When
from antislop.cli.profile import KINDS, MinPromptsOption
from antislop.cli.terminal import check_suffix, check_writable, describe_command, warn, write
from antislop.display import describe_count

Names = Literal["all", "none", "words", "only"]


@dataclass(frozen=True)
class EntryOptions:
    """Options for which entries of a profile become bans."""

    min_ratio: Annotated[
        float,
        typer.Option(
            min=0, help="Keep entries whose ratio to human usage is at least this, at the lower end of its interval."
        ),
    ] = 10.0
    top: Annotated[
        int | None, typer.Option(min=1, help="Keep at most N, the largest excess over human usage first.")
    ] = None
    kinds: Annotated[str, typer.Option(metavar="LIST", help=f"Kinds of entries: some of {', '.join(KINDS)}.")] = (
        "word,phrase"
    )
    max_zipf: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Keep single words only if their Zipf frequency in English is below this: the log10 of "
            "occurrences per billion words.",
        ),
    ] = None
    min_prompts: MinPromptsOption = None


@dataclass(frozen=True)
class NameOptions:
    """Options for which names of people and places become bans."""

    names: Annotated[
        Names, typer.Option(help="Names of people and places: keep all, none, only single words, or names only.")
    ] = "all"
    no_names: Annotated[bool, typer.Option(help="The same as --names none.")] = False
    names_only: Annotated[bool, typer.Option(help="The same as --names only.")] = False

    @property
    def choice(self) -> Names:
        return "none" if self.no_names else "only" if self.names_only else self.names


CONFLICTS: Conflicts = {
    "--no-names and --names-only leave nothing: pass one of them": When("no_names", lambda o: o.names_only),
    "--names {names} and {option}: pass one of them": When("no_names names_only", lambda o: o.names != "all"),
}


def bans_from(
    source: Annotated[Path, typer.Argument(metavar="PROFILE", help="A file that antislop profile wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write.", show_default="standard output")
    ] = None,
    *,
    entries: EntryOptions,
    names: NameOptions,
    forbid: Annotated[bool, typer.Option(help="Forbid every entry, instead of reducing it to human usage.")] = False,
    license: LicenseOption = None,
) -> int:
    """Make a list of bans from a profile.

    The weight of a ban is 1 over its ratio, so that phrases become as rare as in human writing. An entry that doesn't
    occur in human writing is forbidden. The list is linted, and entries with findings are left out, and so are entries
    that can't be found again in their examples.
    """
    from antislop.lists import write_lines
    from antislop.measure.profiles.profiles import Profile
    from antislop.measure.profiles.to_bans import Choice, choose_bans

    kinds = tuple(kind.strip() for kind in entries.kinds.split(","))
    choice = Choice(**{**asdict(entries), "kinds": kinds}, names=names.choice, forbid=forbid)
    if out is not None:
        check_suffix(out, ".txt")
        check_writable(out, or_stdout=True)
    is_stdin = str(source) == "-"
    loaded = Profile.parse(sys.stdin.buffer.read(), place="<stdin>") if is_stdin else Profile.load(source)
    half, human = loaded.made_with.get("half"), loaded.baseline or {"name": "nothing", "words": 0}
    described = (
        f"{', '.join(loaded.made_with.get('sources', []))}{f', {half} half of the prompts' if half else ''}: "
        f"{describe_count(loaded.texts, 'text')}, {describe_count(loaded.prompts, 'prompt')}, "
        f"{describe_count(loaded.words, 'word')}, "
        f"against {human['words']:,} words of {human['name']}; {describe_command()}; {date.today().isoformat()}"
    )
    bans, left_out = choose_bans(loaded, choice, source=described)
    if out is None or str(out) == "-":
        write("\n".join(write_lines(bans, source=bans.source, license=license)) + "\n")
    else:
        bans.save(out, license=license)
    words = {entry.text for entry in loaded.entries if entry.kind == "word" and entry.human_count is None}
    topics = sum(ban.text in words for ban in bans)
    if 2 * topics > len(bans) and not loaded.language.is_english:
        warn(
            f"{topics:,} of {len(bans):,} bans are single words that the human texts lack, as topics of the texts are: "
            "compare with human texts of the same kind"
        )
    forbidden = sum(ban.weight == 0 for ban in bans)
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.most_common())
    count = describe_count(len(bans), "ban")
    warn(f"{count}, {forbidden:,} of them forbidden outright; left out: {reasons or 'nothing'}")
    return 0
