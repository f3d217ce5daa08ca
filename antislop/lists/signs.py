"""Signs in the entries of a list: marks that people write around phrases, and signs that an entry is no phrase.

Entries that `BanList.save` wrote, and entries that name their kind, are not examined for signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import regex

from antislop.core.bans.bans import BAN_OPTIONS, KINDS
from antislop.errors import BanError
from antislop.files.disk import read_json

NAME_KIND = "name the kind as the format does: after a tab in text, as kind in JSON and CSV"
"""Advice in messages: how to write a ban that is no phrase."""
_AS_IT_IS = 'if it is meant as it is, put it in double quotes in text, or write {"kind": "phrase", "phrase": …} in JSON'
_ALONE = "write the phrase alone"
_COUNTED = "write CSV, a comma between phrase and number, or the phrase alone"
_READ = 500
"""Number of first characters of an entry in which signs are looked for."""

_NUMBER = r"\s*\d{1,3}[.)]\s+(?P<phrase>\S.*)"
_QUOTES = (
    r"""\s*(?:'(?P<phrase>(?:[^'\\]|\\.|(?<=\w)'(?=\w))++)'|"(?P<phrase>[^"]+)"(?=\s*[,;])|“(?P<phrase>[^“”]+)”"""
    r"|‘(?P<phrase>[^‘]+)’|«(?P<phrase>[^«»]+)»|`(?P<phrase>[^`]+)`|\*\*(?=[^*]*\w)(?P<phrase>[^*]+)\*\*)\s*[,;]?\s*"
)
_MARKS = {
    "bullets": regex.compile(r"\s*[-*+•·‣▪◦●○]\s+(?P<phrase>\S.*)"),
    "numbers": regex.compile(_NUMBER),
    "quotation marks": regex.compile(_QUOTES),  # double quotes without a comma belong to the formats
    "commas": regex.compile(r"\s*(?P<phrase>\p{Ll}.*[^\s,]),\s*"),  # but the comma of "Additionally," is the phrase's
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
"""(what an entry looks like, as the end of a sentence about the entry; what to write instead, in the imperative)."""
Signs: TypeAlias = Mapping[Sign, regex.Pattern[str]]
NO_REGEX: Sign = ("looks like a regex, and as a phrase it would not occur", NAME_KIND)
SEVERAL: Sign = ("looks like several entries", "write one entry each")
_BARRED: Sign = ("looks like several entries between bars", "write one entry each, or a regex in brackets: (?:a|b)")
NO_ENTRY = {
    _BARRED: regex.compile(r"\|\|\$\$\|\||\A[\p{L} '’-]+\|[\p{L} '’-]+\Z"),
    ("ends with a number after a bar", _COUNTED): regex.compile(r"\A[^|\\()\[\]?+*]+\|\s*\d+\s*\Z"),
}
"""Signs that neither a phrase nor a regex has."""
STRING_SIGNS = NO_ENTRY | {NO_REGEX: REGEX, SEVERAL: _SEVERAL}
"""Signs that no phrase has, even if it is in double quotes; `SIGNS` are for phrases without quotes."""
SIGNS = STRING_SIGNS | {
    ("is a bare bracket, comma or colon", "leave it out"): BARE,
    ("looks like a piece of a program or of JSON", 'write a phrase per line, or a JSON list: ["…", …]'): _CODE,
    ("names a replacement, which bans don't have", _ALONE): _ARROW,
    ("stands in a row of a table or between tags", _ALONE): _BETWEEN,
    ("is escaped, or was decoded wrongly", "write the characters that are meant"): _ESCAPE,
    ("seems to end with a remark", _ALONE): _REMARK,
    ("has a bullet, a number or quotation marks around it", _ALONE): _AROUND,
    ("has a number behind it", _COUNTED): regex.compile(r"\p{L}\s*[:=]\s*\d+(?:[.,]\d+)?\Z"),
    ("has flags of Hunspell behind it", _ALONE): regex.compile(r"\A[\w'’.-]*\p{Ll}/\p{Lu}+\Z"),
    ("has a part of speech behind it", _ALONE): regex.compile(r"\A\p{Ll}+_\p{Lu}{2,6}\Z"),
    ("begins with a !, as what is left out of other lists", "leave this line out"): regex.compile(r"\A!\p{L}"),
}
SHARED_SIGNS: Signs = {
    ("has a number in front", _COUNTED): regex.compile(r"\s*\d+\s+\p{L}.*"),
    ("has a number behind it", _COUNTED): regex.compile(r".*\p{L}\s+\d+(?:\.\d+)?\s*"),
    ("has a colon or =, as before a replacement", _ALONE): regex.compile(r"\s*\w[^:=]*[:=]\s+\p{L}.*"),
}
"""Signs that the entries of a list are no phrases if most of the entries have one of these."""
OPTIONS_BEHIND = regex.compile(
    rf"\S(?:\s+(?:{'|'.join(BAN_OPTIONS)}|edges|gap)=\S|\s{{2,}}(?:{'|'.join(KINDS)})(?:\s|\Z))"
)
"""Options after spaces, as in a line whose tab was replaced by spaces."""
_PADDED = regex.compile(r"\s{2,}\d+\s+\p{L}.*")  # as `uniq -c` prints counts
_PART = regex.compile(r"(?!(?:and|or|but|oh|yes|no|well|so|then|now)\b)[\p{L}\p{M} '’-]+")
"""A text between two commas that is hardly a part of a sentence, so that a line of such texts is a list."""
_ESCAPED = regex.compile(r"\\(['\"\\])")
_PLAIN = regex.compile(r"(?![-'])[\p{L}\p{M} '’-]*")


def find_sign(text: str, *, signs: Signs = SIGNS) -> Sign | None:
    """Return the first sign that an entry is no phrase, or None.

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
    """Raise `BanError` for an entry with a sign that it is no phrase."""
    if isinstance(text, str) and (sign := find_sign(text, signs=signs)):
        raise _refuse(text, sign)


def _refuse(text: str, sign: Sign) -> BanError:
    return BanError(f"{text[:80]!r} {sign[0]}: {sign[1]}; {_AS_IT_IS}")


def find_shared_sign(texts: Sequence[str]) -> tuple[Sign, regex.Pattern[str]] | None:
    """Return the sign of `SHARED_SIGNS` that most texts of a list have, and its pattern; None if there is none.

    >>> find_shared_sign(["delve 12", "tapestry 3"])[0][0], find_shared_sign(["catch 22", "delve"])
    ('has a number behind it', None)
    """
    for sign, pattern in SHARED_SIGNS.items():
        if 2 * sum(pattern.fullmatch(text[:_READ]) is not None for text in texts) > len(texts):
            return sign, pattern
    return None


def take_off_marks(lines: Sequence[tuple[int, str]]) -> tuple[list[tuple[int, str | BanError]], tuple[str, ...]]:
    r"""Return numbered lines without the marks that most of them have, and the names of these marks.

    >>> take_off_marks([(1, "- 'delve',"), (2, "- 'it\\'s',")])
    ([(1, 'delve'), (2, "it's")], ('bullets', 'quotation marks'))
    """
    found: list[tuple[int, str | BanError]] = list(lines)
    if len(lines) == 1 and _enumerates(lines[0][1].partition("\t")[0], longest=4):
        found = [(lines[0][0], _refuse(lines[0][1], SEVERAL))]
    phrases = [line.partition("\t")[0][:_READ] for _, line in lines]
    sign, pattern = find_shared_sign(phrases) or (next(iter(SHARED_SIGNS)), _PADDED)
    for index, phrase in enumerate(phrases):
        if pattern.fullmatch(phrase):
            found[index] = lines[index][0], _refuse(phrase.strip(), sign)
    taken = []
    for name, mark in _MARKS.items():
        matches = [mark.fullmatch(line) if isinstance(line, str) else None for _, line in found]
        # the last line may lack a comma; of other marks, a minority of lines may lack them
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


# -- names of groups and keys ------------------------------------------------------------------------------------------

_WORD = regex.compile(r"\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|\p{Lo}+")
_NAMES = {
    kind: regex.compile("|".join(words).replace("*", r"\w*"))
    for kind, words in read_json(Path(__file__).with_name("group_names.json")).items()
}
"""Words of names by what they say; a * stands for any letters."""


def _split_name(name: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(name[:_READ])]


def _say(kind: str, words: Sequence[str]) -> bool:
    return any(map(_NAMES[kind].fullmatch, words))


def names_bans(name: str) -> bool | None:
    """Return True if the name of a group says that it has bans, False if it says the opposite, None if neither.

    >>> [*map(names_bans, ["banned_words", "phrases", "wordsToAvoid", "not_allowed", "approved", "required_terms"])]
    [True, True, True, True, False, None]
    """
    words = _split_name(name)
    is_negated = _say("negation", words)
    if _say("no_bans", words):
        return is_negated and not _say("bans", [word for word in words if not _say("negation", [word])])
    if is_negated and _say("said", words):
        return True
    if _say("bans", words):
        return None if is_negated and words != ["never"] else True
    others = [word for word in words if not _say("phrases", [word])]
    is_plain = len(others) < len(words) and all(_say("neutral", [word]) for word in others)
    return True if is_plain else None


def names_exceptions(name: str) -> bool:
    return names_bans(name) is False and _say("exceptions", _split_name(name))


def names_replacements(key: str) -> bool:
    return _say("replacements", _split_name(key))


def is_remark(key: str) -> bool:
    """Return whether a key or a column is a remark on a phrase, such as "category", that does not change the ban."""
    words = _split_name(key)
    return (_say("remarks", words) or _say("replacements", words)) and not _say("bans", words)
