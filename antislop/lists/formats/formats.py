r"""The formats of lists of bans, and how they are recognized. A new format is added here.

Each reads a text and yields its lines: their numbers, and the ban of each line or the reason why it has none.

| format | content | phrases match |
|---|---|---|
| text | one phrase per line, `#` comments, flags after a tab as in `text_format` | whole words |
| phrases | a JSON list of strings, or of lists of one word | whole words |
| factors | JSON lists of [phrase, number up to 1], or {phrase: number}: weights | whole words |
| counts | JSON lists of [phrase, whole number], or {phrase: number}: ranks, of weight 0 | whole words |
| csv | a phrase per line, then a weight or a count; names of columns on top if need be | whole words |
| ngrams | JSON lists of words, stop words left out | in order, stop words between them |
| regexes | a JSON list of regexes; or one per line, in quotes or not, commas after it or not, `#` comments | |
| sillytavern | free text on top, then `"quoted"`, `[1, 2]` (token ids) and bare lines | anywhere |
| yaml | groups of phrases, in groups if need be | whole words |
| statistics | JSON or JSON Lines of objects with a phrase, word or n-gram each, as of slop-forensics | whole words |

In phrases `*` is a wildcard, and `\*` the character; in SillyTavern's format, and in an entry that names its kind
`phrase`, it is the character.

The suffix of the file determines the format, or else the text does. A JSON list of strings is phrases, or regexes if
most of them show signs of one; lists of strings are n-grams if any contains several words. Lines are SillyTavern's if
at least half of them are in quotes or token ids; the free text on top ends with the last empty line or ruler before the
first of these. Lines that are all a phrase and a number are CSV. Counts of statistics are kept, scores and ratios are
not; objects without a phrase are no entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from antislop.errors import BanError
from antislop.lists.formats.csv_format import CSV
from antislop.lists.formats.json_formats import COUNTS, FACTORS, NGRAMS, PHRASES, STATISTICS
from antislop.lists.formats.regexes_format import REGEXES
from antislop.lists.formats.sillytavern_format import SILLYTAVERN
from antislop.lists.formats.text_format import TEXT
from antislop.lists.formats.yaml_format import YAML
from antislop.lists.reading import Line, ListFormat, ListText
from antislop.matching.folding import Edges

FORMATS: dict[str, ListFormat] = {
    format_.name: format_
    for format_ in (TEXT, REGEXES, PHRASES, FACTORS, COUNTS, NGRAMS, STATISTICS, CSV, SILLYTAVERN, YAML)
}
"""By name; the first one that recognizes a text is its format."""


def read(
    text: str,
    *,
    place: str,
    suffix: str = "",
    format: str | None = None,  # noqa: A002
    edges: Edges | None = None,
) -> tuple[str, Iterator[Line]]:
    """Return the name of the format of a list, and its lines.

    place: what messages call the list. suffix: of its file's name, in lower case; ".json", ".jsonl", ".csv", ".yaml"
        and ".txt" take precedence over the text. edges: of plain phrases, else as the format has them.

    Raises `BanError` for a text that is not of that format as a whole, also while the lines are read.

    >>> format, lines = read('[["a testament to", 517], ["delve", 12]]', place="list")
    >>> format, [ban for _, ban in lines]
    ('counts', [Ban('a testament to', count=517), Ban('delve', count=12)])
    """
    list_text = ListText(text, place, suffix)
    chosen = recognize(list_text) if format is None else find_format(format)
    return chosen.name, chosen.read(list_text, edges or chosen.edges)


def find_format(name: str) -> ListFormat:
    """Return the format of a name. Raises `BanError`."""
    if name not in FORMATS:
        raise BanError(f"the format {name!r} is unknown: it is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def recognize(text: ListText) -> ListFormat:
    """Return the format of a text: plain text if no other one recognizes it. Raises `BanError` for invalid JSON."""
    if TEXT.recognizes(text):  # its first line, whatever the file's name
        return TEXT
    named = [format_ for format_ in FORMATS.values() if text.suffix in format_.suffixes]
    if len(named) == 1:
        return named[0]
    return next((format_ for format_ in named or FORMATS.values() if format_.recognizes(text)), TEXT)
