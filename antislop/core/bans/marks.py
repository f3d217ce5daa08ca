"""What people write around the phrases of a list, and what is no phrase by its signs.

What `save` wrote, and what names its kind, is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import regex

from antislop.errors import BanError

NAME_KIND = "name the kind as the format does: after a tab in text, as kind in JSON and CSV"
"""How to write a ban that is no phrase."""
_AS_IT_IS = 'if it is meant as it is, put it in double quotes in text, or write {"kind": "phrase", "phrase": …} in JSON'
_ALONE = "write the phrase alone"
_READ = 500
"""Characters of an entry in which signs are looked for."""

_NUMBER = r"\s*\d{1,3}[.)]\s+(?P<phrase>\S.*)"
_QUOTES = (
    r"""\s*(?:'(?P<phrase>(?:[^'\\]|\\.|(?<=\w)'(?=\w))++)'|"(?P<phrase>[^"]+)"(?=\s*[,;])|“(?P<phrase>[^“”]+)”"""
    r"|‘(?P<phrase>[^‘]+)’|«(?P<phrase>[^«»]+)»|`(?P<phrase>[^`]+)`|\*\*(?=[^*]*\w)(?P<phrase>[^*]+)\*\*)\s*[,;]?\s*"
)
_MARKS = {
    "bullets": regex.compile(r"\s*[-*+•·‣▪◦●○]\s+(?P<phrase>\S.*)"),
    "numbers": regex.compile(_NUMBER),
    "quotation marks": regex.compile(_QUOTES),  # double quotes without a comma belong to the formats
    "commas": regex.compile(r"\s*(?P<phrase>\p{Ll}.*[^\s,]),\s*"),  # that of "Additionally," belongs to the phrase
}

REGEX = regex.compile(
    r"""
    \\[bBdDsSwW.?+|] | \\\(.*\\\) | \(\?[:=!<>iPmsx]                # escapes; groups that are not kept, flags
    | \([^()|]{0,80}\| | \w[)\]]?\|[(\[^\\]?\w                      # alternatives
    | \)\? | [)\]][+{] | (?<!\*)\([^()*]{0,80}\)\* | [\w']\?\w               # what is left out or repeated: (s)?, it'?s
    | \[\^ | \[\w{0,3}\w-\w[\w-]{0,6}\] | (?<=\w)\[\w{2,}\] | \[\w{2,}\](?=\w)  # classes
    | \A[^*]*\.\* | \.\+ | \.\{\d | \w\{\d                          # but not *nods.*
    | \A\^\w | \A/.+/[gimsuvy]+[,;]?\s*\Z | \A/.*[^\w\s/].*/[,;]?\s*\Z | \Ar(["']).*\1,?\s*\Z
    """,
    regex.VERBOSE,
)
BARE = regex.compile(r"\A\s*(?:[\[\](){}\s]+[,;]*|[,:])\s*\Z")
_SEVERAL = regex.compile(r"""["'”]\s*[,:]\s*["'“\[]|\p{L},\p{L}|\w["'”]?\s+[/|]\s+["'“]?\w|\b(\w{3,})\w*/\1""")
_CODE = regex.compile(r"""[\w\]"']\s*[:=]\s+[\[({]|\w\]?\s*=\s*[\["']|\A\s*\[\s*["']|\A\s*\w[\w.]*\(r?["']""")
_ARROW = regex.compile(r"\w\W{0,3}(?:→|⇒|⟶|➜|=>|->)\W{0,3}\w")
_BETWEEN = regex.compile(r"\A\s*\|.*\|\s*\Z|\A\s*<(\w+)[^<>]*>[^<>]+</\1\s*>\s*\Z")
_ESCAPE = regex.compile(r"""\\["'nrtu]|&(?:amp|quot|apos|lt|gt|nbsp|#\d+);|â€""")
_REMARK = regex.compile(r"""\w["'”]?\s+(?:\([^()]*\)\s*\Z|#\s|//\s)""")
_AROUND = regex.compile(rf"\A(?:[-+•·‣▪◦●○]\s+\w.*|{_NUMBER}|{_QUOTES})\Z")

Sign: TypeAlias = tuple[str, str]
"""What an entry looks like, a clause without its subject, and what to write, in the imperative."""
Signs: TypeAlias = Mapping[Sign, regex.Pattern[str]]
NO_REGEX: Sign = ("looks like a regex, and as a phrase it would not occur", NAME_KIND)
SEVERAL: Sign = ("looks like several entries", "write one entry each")
STRING_SIGNS = {NO_REGEX: REGEX, SEVERAL: _SEVERAL}
"""Signs of strings between double quotes, too."""
SIGNS = STRING_SIGNS | {
    ("is a bare bracket, comma or colon", "leave it out"): BARE,
    ("looks like a piece of a program or of JSON", 'write a phrase per line, or a JSON list: ["…", …]'): _CODE,
    ("names a replacement, which bans don't have", _ALONE): _ARROW,
    ("stands in a row of a table or between tags", _ALONE): _BETWEEN,
    ("is escaped, or was decoded wrongly", "write the characters that are meant"): _ESCAPE,
    ("seems to end with a remark", _ALONE): _REMARK,
    ("has a bullet, a number or quotation marks around it", _ALONE): _AROUND,
}
_PART = regex.compile(r"(?!(?:and|or|but|oh|yes|no|well|so|then|now)\b)[\p{L}\p{M} '’-]+")
"""A phrase between commas that a sentence would hardly have there."""
_ESCAPED = regex.compile(r"\\(['\"\\])")
_PLAIN = regex.compile(r"(?![-'])[\p{L}\p{M} '’-]*")


def find_sign(text: str, *, signs: Signs = SIGNS) -> Sign | None:
    """Return the first sign that an entry is no phrase.

    >>> find_sign("not only X but"), find_sign("C++"), find_sign("Well, well, well")
    (None, None, None)
    >>> find_sign("delve → dig")
    ("names a replacement, which bans don't have", 'write the phrase alone')
    """
    text = text[:_READ]
    if _PLAIN.fullmatch(text):  # almost all
        return None
    found = next((sign for sign, pattern in signs.items() if pattern.search(text)), None)
    is_list = signs is SIGNS and (_enumerates(text, longest=1) or _enumerates(text, longest=4, least=5))
    return found or (SEVERAL if is_list else None)


def looks_like_regex(text: str) -> bool:
    return find_sign(text, signs={NO_REGEX: REGEX}) is not None


def _enumerates(text: str, *, longest: int, least: int = 3) -> bool:
    """Return whether a text lists different phrases of up to `longest` words: "delve, tapestry, utilize"."""
    parts = [part.strip().casefold() for part in regex.split("[,;]", text.strip().rstrip(",;"))]
    is_list = all(_PART.fullmatch(part) and len(part.split()) <= longest for part in parts)
    return is_list and least <= len(parts) == len(set(parts))


def refuse_signs(text: object, *, signs: Signs = SIGNS) -> None:
    """Raise `BanError` for an entry that is no phrase by its signs."""
    if isinstance(text, str) and (sign := find_sign(text, signs=signs)):
        raise _refuse(text, sign)


def _refuse(text: str, sign: Sign) -> BanError:
    return BanError(f"{text[:80]!r} {sign[0]}: {sign[1]}; {_AS_IT_IS}")


def take_off_marks(lines: Sequence[tuple[int, str]]) -> tuple[list[tuple[int, str | BanError]], tuple[str, ...]]:
    r"""Return numbered lines without the marks that most of them have, and the names of these marks.

    >>> take_off_marks([(1, "- 'delve',"), (2, "- 'it\\'s',")])
    ([(1, 'delve'), (2, "it's")], ('bullets', 'quotation marks'))
    """
    found: list[tuple[int, str | BanError]] = list(lines)
    if len(lines) == 1 and _enumerates(lines[0][1].partition("\t")[0], longest=4):
        found = [(lines[0][0], _refuse(lines[0][1], SEVERAL))]
    taken = []
    for name, mark in _MARKS.items():
        matches = [mark.fullmatch(line) if isinstance(line, str) else None for _, line in found]
        # of commas, the last line alone may have none
        most = int(matches[-1:] == [None]) if name == "commas" else (len(matches) - 1) // 2
        if matches.count(None) > most or not any(matches):
            continue
        taken.append(name)
        for index, match in enumerate(matches):
            number, line = found[index]
            if match:
                phrase = match["phrase"]
                found[index] = number, _ESCAPED.sub(r"\1", phrase) if name == "quotation marks" else phrase
            elif isinstance(line, str) and name in ("bullets", "numbers"):
                fault = f"{line.strip()[:80]!r} has none of the {name} that most lines have"
                found[index] = number, BanError(f"{fault}: leave it out, or write one too")
    return found, tuple(taken)


_NO_BANS = regex.compile(
    r"(?<!\p{L})(?i:allow(?:ed|list)?|white_?list(?:ed)?|except(?:ions?)?|exempt|(?:counter)?examples?|good|safe|ok(?:ay)?"
    r"|keep|ignored?|replacements?|alternatives?|suggestions?|better|preferred|instead|redirects"
    r"|stop|samplers?|breakers|messages|conversations|prompts|tools)(?!\p{Ll})"
)
_NEGATION = regex.compile(r"(?<!\p{L})(?i:not?|non|never|bad|bans?|banned|avoid)(?!\p{Ll})")


def refuse_group(name: str) -> BanError | None:
    """Return why a group of this name has no bans: allowed phrases, examples, replacements, settings."""
    if _NEGATION.search(name) or not _NO_BANS.search(name):
        return None
    return BanError(f"the group {name[:80]!r} holds no bans by its name: leave it out, or give it another name")


def refuse_replacements(groups: int, entries: int, place: str) -> None:
    """Raise `BanError` for many groups with few entries each: phrases, each with what to write instead."""
    if groups >= 5 and entries < 3 * groups:
        fault = f"{groups} groups of {entries} entries look like phrases with replacements, which bans don't have"
        raise BanError(f"{place}: {fault}: write the phrases as one list")
