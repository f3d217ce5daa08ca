r"""Make text of unknown origin safe to show: on a terminal, in JSON for a terminal, in a page, in a spreadsheet.

Control characters can type into a terminal; direction characters make a text look like another one
(https://trojansource.codes, CVE-2021-42574); a cell that begins like a formula is computed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from antislop import __version__

if TYPE_CHECKING:
    from jinja2 import Template

T = TypeVar("T")

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x2070))
_SEPARATORS = (0x2028, 0x2029)
_VISIBLE = (
    {code: 0x2400 + code for code in range(0x20)}  # ␀ to ␟
    | {0x7F: 0x2421}
    | dict.fromkeys((*range(0x80, 0xA0), *_DIRECTIONS, *_SEPARATORS), 0xFFFD)
)
_LAYOUT = _VISIBLE | {ord("\n"): ord("\n"), ord("\t"): ord("\t")}
_ESCAPED = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), *_DIRECTIONS, *_SEPARATORS)}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def make_visible(text: str, *, keep_layout: bool = False) -> str:
    r"""Return a text of the same length with a visible character in place of each control and direction character.

    keep_layout: leave line feeds and tabs.

    >>> make_visible("id\x1b[2J\n\u202egnp.exe")
    'id␛[2J␊�gnp.exe'
    """
    return text if text.isprintable() else text.translate(_LAYOUT if keep_layout else _VISIBLE)


def shorten(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, the last of which shows that it was cut.

    >>> shorten("a testament to", 8)
    'a testa…'
    """
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"


def escape_json(text: str) -> str:
    r"""Return JSON with the control and direction characters in its strings escaped.

    >>> escape_json('"\u202e"')
    '"\\u202e"'
    """
    return text if text.isprintable() else text.translate(_ESCAPED)


def escape_html(text: str) -> str:
    r"""Return text as HTML, with control and direction characters made visible.

    >>> escape_html("<b>\x1b")
    '&lt;b&gt;␛'
    """
    return html.escape(make_visible(text, keep_layout=True))


def write_html_table(headers: Sequence[str], lines: Iterable[Sequence[object]], *, caption: str) -> str:
    """Return a table for a notebook; the first cell of each line is the heading of the line.

    >>> write_html_table(["ban", "rewinds"], [["<cat>", 1200]], caption="bans").count("&lt;cat&gt;")
    1
    """
    return load_template("table.html").render(headers=headers, lines=lines, caption=caption)


def quote_formula(cell: T) -> T | str:
    """Return a cell for a spreadsheet; a text that looks like a formula gets an apostrophe in front.

    >>> [quote_formula(cell) for cell in ("=1+1", "a", -0.5)]
    ["'=1+1", 'a', -0.5]
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    r"""Yield the lines of a CSV table for a spreadsheet as rows come: the heading, then a line for each row.

    >>> [*format_csv(["ban", "hits"], [{"ban": "=a, b", "hits": 2}])]
    ['ban,hits\n', '"\'=a, b",2\n']
    """
    import csv

    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for cells in chain([columns], ([row[column] for column in columns] for row in rows)):
        writer.writerow(map(quote_formula, cells))
        yield line.getvalue()
        line.seek(line.truncate(0))


def describe_count(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> describe_count(1, "rewind"), describe_count(1200, "entry", "entries")
    ('1 rewind', '1,200 entries')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_number(value: float) -> str:
    """Return a number with about three significant digits.

    >>> [format_number(value) for value in (0, 0.01234, 1.234, 56.78, 1234.5, -0.5)]
    ['0', '0.012', '1.23', '56.8', '1,234', '−0.50']
    """
    size = abs(value)
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def list_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, of antislop, and of each of `packages` that is installed.

    >>> [*list_versions(["regex", "not-installed"])]
    ['python', 'antislop', 'regex']
    """
    from importlib.metadata import PackageNotFoundError, version  # slow to import
    from platform import python_version

    versions = {"python": python_version(), "antislop": __version__}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


@cache
def load_template(name: str) -> Template:
    """Return a template of `antislop/data`, which escapes the values if it is HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("antislop", "data"),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, "commas": "{:,}".format, "count": describe_count}
    environment.filters |= {"visible": make_visible, "text": escape_html}
    return environment.get_template(name)


def fill_page(template: str, *, styles: Iterable[str], script: str | None = None, **values: object) -> tuple[str, str]:
    """Return a page, and the content security policy that allows its own style and script and nothing else.

    template, styles, script: names of files in `antislop/data`. The template escapes the values, and also gets `style`,
    `script` and `policy`, to insert with the filter `safe`.
    """
    folder = resources.files("antislop") / "data"
    style = "".join((folder / name).read_text("utf-8") for name in styles)
    code = (folder / script).read_text("utf-8") if script else ""
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(code)}'; style-src 'sha256-{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = load_template(template).render(style=style, script=code, policy=policy, **values)
    return page.lstrip(), policy


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
