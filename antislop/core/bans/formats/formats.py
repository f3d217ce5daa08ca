"""The formats of lists of bans (docs/reference/formats.md), and how they are recognized. A new one is added here.

The suffix of the file determines the format, or else the text does:

* A JSON list of strings is phrases, or regexes if most of them look like one.
* A JSON list of lists of strings is n-grams if any contains several words.
* Lines are SillyTavern's if at least half of them are in quotes or token ids; the free text on top ends with the last
  empty line or ruler before the first of these.
* Lines that are all a phrase and a number are CSV.
* Counts of statistics are kept, scores and ratios are not. An object with lists of strings alone is groups of phrases.
* Other text is the text format; the marks that most of its lines have are taken off (`antislop.core.bans.marks`).
"""

from __future__ import annotations

from collections.abc import Iterator

from antislop.core.bans.folding import Edges
from antislop.core.bans.formats.csv_format import CSV
from antislop.core.bans.formats.json_formats import COUNTS, FACTORS, NGRAMS, PHRASES, STATISTICS
from antislop.core.bans.formats.regexes_format import REGEXES
from antislop.core.bans.formats.sillytavern_format import SILLYTAVERN
from antislop.core.bans.formats.text_format import TEXT
from antislop.core.bans.reading import Line, ListFormat, ListText
from antislop.errors import BanError

FORMATS: dict[str, ListFormat] = {
    format_.name: format_ for format_ in (TEXT, REGEXES, PHRASES, FACTORS, COUNTS, NGRAMS, STATISTICS, CSV, SILLYTAVERN)
}
"""By name; the first one that recognizes a text is its format."""


def read(
    text: str,
    *,
    place: str,
    suffix: str = "",
    format: str | None = None,  # noqa: A002
    edges: Edges | None = None,
) -> tuple[str, Iterator[Line], tuple[str, ...]]:
    """Return the name of the format of a list, its lines, and the marks that are taken off them.

    place, suffix: as in `ListText`.

    Raises `BanError` for a text that is not in that format, also while the lines are read.

    >>> format, lines, _ = read('[["a testament to", 517], ["delve", 12]]', place="list")
    >>> format, [ban for _, ban in lines]
    ('counts', [Ban('a testament to', count=517), Ban('delve', count=12)])
    """
    list_text = ListText(text, place, suffix)
    chosen = recognize(list_text) if format is None else find_format(format)
    marks = () if chosen is not TEXT or TEXT.recognizes(list_text) else list_text.unmarked[1]
    return chosen.name, chosen.read(list_text, edges or chosen.edges), marks


def find_format(name: str) -> ListFormat:
    if name not in FORMATS:
        raise BanError(f"the format {name!r} is unknown: it is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def recognize(text: ListText) -> ListFormat:
    if TEXT.recognizes(text):  # its first line, whatever the file's name
        return TEXT
    if text.suffix in (".yaml", ".yml"):
        advice = "write one phrase per line into a .txt file, or the groups as JSON into a .json file"
        raise BanError(f"{text.place}:1: a list in YAML can't be read: {advice}")
    named = [format_ for format_ in FORMATS.values() if text.suffix in format_.suffixes]
    if len(named) == 1:
        return named[0]
    return next((format_ for format_ in named or FORMATS.values() if format_.recognizes(text)), TEXT)
