"""What people write around the phrases of a list, and what is no phrase by its signs.

A list that `save` wrote, and an entry that names its kind, are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import regex

from antislop.errors import BanError

NAME_KIND = "name the kind as the format does: after a tab in text, as kind in JSON and CSV, by a tag in YAML"
"""How to write a ban that is no phrase."""
_ALONE = "write the phrase alone"
_AS_IT_IS = 'if it is meant as it is, put it in double quotes in text, or write {"kind": "phrase", "phrase": …} in JSON'

MARKS = {
    "bullets": regex.compile(r"\s*[-*+•·‣▪◦●○]\s+(?P<phrase>\S.*)"),
    "numbers": regex.compile(r"\s*\d{1,3}[.)]\s+(?P<phrase>\S.*)"),
    # double quotes without a comma belong to the formats
    "quotation marks": regex.compile(
        r"""\s*(?:'(?P<phrase>(?:[^'\\]|\\.|(?<=\w)'(?=\w))+)'|"(?P<phrase>[^"]+)"(?=\s*[,;])|“(?P<phrase>[^“”]+)”"""
        r"|‘(?P<phrase>[^‘]+)’|«(?P<phrase>[^«»]+)»|`(?P<phrase>[^`]+)`)\s*[,;]?\s*"
    ),
    "asterisks": regex.compile(r"\s*\*\*(?P<phrase>[^*]*\w[^*]*)\*\*\s*[,;]?\s*"),
    # that of "Additionally," belongs to the phrase
    "commas": regex.compile(r"\s*(?P<phrase>\p{Ll}.*[^\s,]),\s*"),
}
"""Marks that are taken off if most lines of a text have them, in this order."""


class Sign(NamedTuple):
    """A sign by which an entry is no phrase. kind: of the finding of `lint`."""

    kind: str
    pattern: regex.Pattern[str]
    fault: str
    fix: str = _ALONE


REGEX = Sign(
    "kind",
    regex.compile(
        r"""
        \\[bBdDsSwW.?+|] | \\\(.*\\\)               # escapes
        | \(\?[:=!<>iPmsx]                          # groups that are not kept, flags
        | \([^()|]{0,80}\| | \w[)\]]?\|[(\[^\\]?\w  # alternatives
        | \)[?+{] | (?<!\*)\([^()*]{0,80}\)\*       # groups that are left out or repeated
        | \[\^ | \[\w{0,3}\w-\w[\w-]{0,6}\] | (?<=\w)\[\w{2,}\] | \[\w{2,}\](?=\w)  # classes
        | \A[^*]*\.\* | \.\+ | \.\{\d | \w\{\d      # repetitions; in *nods.* the stars are quotation marks
        | [\w']\?\w                                 # colou?r, it'?s
        | \A\^\w
        | \A/.+/[gimsuvy]+[,;]?\s*\Z | \A/.*[^\w\s/].*/[,;]?\s*\Z
        | \Ar(["']).*\1,?\s*\Z
        """,
        regex.VERBOSE,
    ),
    "looks like a regex, and as a phrase it would not occur",
    NAME_KIND,
)
BARE = Sign(
    "marked",
    regex.compile(r"\A\s*(?:[\[\](){}\s]+[,;]*|[,:])\s*\Z"),
    "is a bare bracket, comma or colon",
    "leave it out",
)
_CODE = r"""[\w\]"']\s*[:=]\s+[\[({]|\w\]?\s*=\s*[\["']|\A\s*\[\s*["']|\A\s*\w[\w.]*\(r?["']"""
_ENTRIES = r"""["'”]\s*,\s*["'“]|\p{L},\p{L}|\w["'”]?\s+[/|]\s+["'“]?\w|\b(\w{3,})\w*/\1"""
SEVERAL = Sign("joined", regex.compile(_ENTRIES), "looks like several entries", "write one entry each")
_ARROW = r"\w\W{0,3}(?:→|⇒|⟶|➜|=>|->)\W{0,3}\w"
_TAGS = r"\A\s*\|.*\|\s*\Z|\A\s*<(\w+)[^<>]*>[^<>]+</\1\s*>\s*\Z"
_ESCAPES = r"""\\["'nrtu]|&(?:amp|quot|apos|lt|gt|nbsp|#\d+);|â€"""
_REMARK = r"""\w["'”]?\s+(?:\([^()]*\)\s*\Z|#\s|//\s)"""
_AROUND = "|".join(rf"\A(?:{MARKS[name].pattern})\Z" for name in ("quotation marks", "asterisks"))
_ITEM = rf"\A[-+•·‣▪◦●○]\s+\w|\A\d{{1,3}}[.)]\s+\w|{_AROUND}"
_JSON = 'write the phrases alone, one per line, or as a JSON list in a file .json: ["…", …]'
SIGNS = (
    REGEX,
    BARE,
    SEVERAL,
    Sign("marked", regex.compile(_CODE), "looks like a piece of a program or of JSON", _JSON),
    Sign("marked", regex.compile(_ARROW), "names a replacement, which bans don't have"),
    Sign("marked", regex.compile(_TAGS), "stands in a row of a table or between tags"),
    Sign(
        "marked", regex.compile(_ESCAPES), "is escaped, or was decoded wrongly", "write the characters that are meant"
    ),
    Sign("marked", regex.compile(_REMARK), "seems to end with a remark"),
    Sign("marked", regex.compile(_ITEM), "has a bullet, a number or quotation marks around it"),
)
_PLAIN = regex.compile(r"(?![-'])[\p{L}\p{M} '’-]*")
_READ = 500
"""Characters of an entry in which signs are looked for."""


def find_sign(text: str, *, signs: Sequence[Sign] = SIGNS, is_alone: bool = False) -> Sign | None:
    """Return the first sign that an entry is no phrase. is_alone: it is all that the file contains.

    >>> find_sign("not only X but"), find_sign("C++"), find_sign("Well, well, well")
    (None, None, None)
    >>> find_sign(r"utili[sz]e").kind, find_sign("delve → dig").fault
    ('kind', "names a replacement, which bans don't have")
    """
    text = text[:_READ]
    if _PLAIN.fullmatch(text):  # almost all
        return None
    found = next((sign for sign in signs if sign.pattern.search(text)), None)
    return SEVERAL if found is None and _enumerates(text, is_alone=is_alone) else found


def _enumerates(text: str, *, is_alone: bool) -> bool:
    """Return whether a text is a list of different words, or a long one of short phrases: "delve, tapestry, utilize"."""
    parts = [part.strip().casefold() for part in regex.split("[,;]", text.strip().rstrip(",;"))]
    longest = max(len(part.split()) for part in parts)
    is_long = is_alone or len(parts) >= 5
    return 3 <= len(parts) == len({*parts} - {""}) and longest <= (4 if is_long else 1)


def refuse_signs(text: object, *, signs: Sequence[Sign] = SIGNS, is_alone: bool = False) -> None:
    """Raise `BanError` for an entry that is no phrase by its signs."""
    if isinstance(text, str) and (sign := find_sign(text, signs=signs, is_alone=is_alone)):
        raise BanError(f"{text[:80]!r} {sign.fault}: {sign.fix}; {_AS_IT_IS}")


class Unmarked(NamedTuple):
    """The lines of a text by number without the marks that most of them have, and the names of these marks."""

    lines: Sequence[tuple[int, str | BanError]]
    marks: tuple[str, ...]


def take_off_marks(lines: Iterable[tuple[int, str]]) -> Unmarked:
    """Return lines without the bullets, numbers, quotation marks, commas that most of them have.

    >>> take_off_marks([(1, "- 'delve',"), (2, "- 'it\\\\'s',")])
    Unmarked(lines=[(1, 'delve'), (2, "it's")], marks=('bullets', 'quotation marks'))
    """
    found: list[tuple[int, str | BanError]] = list(lines)
    marks = []
    for name, pattern in MARKS.items():
        matches = [pattern.fullmatch(line) if isinstance(line, str) else None for _, line in found]
        unmatched = len(matches) - sum(match is not None for match in matches)
        if unmatched > (matches[-1:] == [None] if name == "commas" else len(matches) / 2) or unmatched == len(matches):
            continue
        marks.append(name)
        for index, ((number, line), match) in enumerate(zip(found, matches, strict=True)):
            if match:
                phrase = match["phrase"]
                found[index] = number, regex.sub(r"\\(.)", r"\1", phrase) if line.lstrip()[0] in "\"'" else phrase
            elif name in ("bullets", "numbers") and isinstance(line, str):
                fault = f"{line.strip()[:80]!r} has none of the {name} that most lines have"
                found[index] = number, BanError(f"{fault}: leave it out, or write one too")
    return Unmarked(found, tuple(marks))


_WORD = regex.compile(r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})")
_NO_BANS = frozenset(
    [
        "allow",
        "allowed",
        "allowlist",
        "whitelist",
        "whitelisted",
        "exception",
        "exceptions",
        "except",
        "exempt",
        "example",
        "examples",
        "counterexamples",
        "good",
        "safe",
        "ok",
        "okay",
        "keep",
        "ignore",
        "ignored",
        "replacement",
        "replacements",
        "alternative",
        "alternatives",
        "suggestion",
        "suggestions",
        "better",
        "preferred",
        "instead",
        "redirects",
        "stop",
        "sampler",
        "samplers",
        "breakers",
        "messages",
        "conversations",
        "prompts",
        "tools",
    ]
)
_NEGATIONS = frozenset(["not", "no", "non", "never", "bad", "ban", "bans", "banned", "avoid"])
FEW = 3
"""Entries per group from which on groups are groups, not phrases with replacements."""
MANY_GROUPS = 5


def refuse_group(name: str) -> BanError | None:
    """Return why a group of this name has no bans: what is allowed, examples, replacements, settings."""
    words = {word.casefold() for word in _WORD.findall(name)}
    if words & _NEGATIONS or not words & _NO_BANS:
        return None
    return BanError(f"the group {name[:80]!r} holds no bans by its name: leave it out, or give it another name")


def refuse_replacements(groups: int, entries: int, place: str) -> None:
    """Raise `BanError` for many groups with few entries each: phrases, each with what to write instead."""
    if groups >= MANY_GROUPS and entries < FEW * groups:
        raise BanError(
            f"{place}:1: {groups} groups of {entries} entries look like phrases with replacements, which bans don't "
            "have: write the phrases as one list"
        )
