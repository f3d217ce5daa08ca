"""A new format of lists is one module and one line of registration."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import antislop.core.bans.formats
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.formats.formats import FORMATS, recognize
from antislop.core.bans.reading import Line, ListFormat, ListText, attempt
from antislop.errors import BanError

FOLDER = Path(antislop.core.bans.formats.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*_format*.py"))


def test_every_format_of_every_format_module_is_registered() -> None:
    defined = [
        value
        for module in MODULES
        for value in vars(importlib.import_module(f"antislop.core.bans.formats.{module}")).values()
        if isinstance(value, ListFormat)
    ]
    assert len(MODULES) >= 5
    assert sorted(format_.name for format_ in defined) == sorted(FORMATS)
    assert all(FORMATS[format_.name] is format_ for format_ in defined)


def read_semicolons(text: ListText, edges: Edges) -> Iterator[Line]:
    """Yield the phrases of a text in which a semicolon follows each."""
    for number, line in enumerate(text.text.split("\n"), start=1):
        for phrase in line.split(";")[:-1]:
            yield attempt(number, Ban, phrase.strip(), edges=edges)


TOY = ListFormat(
    "semicolons",
    lambda text: bool(text.lines) and all(line.endswith(";") for line in text.lines),
    read_semicolons,
    suffixes=(".semi",),
    edges="anywhere",
)


def test_a_new_format_is_recognized_read_and_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(FORMATS, TOY.name, TOY)
    path = tmp_path / "list"
    path.write_text("a cat; delve;\n# none\nElara;", encoding="utf-8")
    bans = BanList.load(path)
    assert (bans.format, bans.lines) == ("semicolons", (1, 1, 3))
    assert list(bans) == [Ban(phrase, edges="anywhere") for phrase in ("a cat", "delve", "Elara")]
    assert recognize(ListText("a cat; delve", suffix=".semi")) is TOY
    path.write_text("a cat;\n;", encoding="utf-8")
    with pytest.raises(BanError, match=r"list:2: the ban '' contains no visible character"):
        BanList.load(path)
    path.write_text("a cat, delve", encoding="utf-8")
    with pytest.raises(BanError, match=r"list:1: contains no ban: write one per line"):
        BanList.load(path, format="semicolons")


def test_an_unknown_format_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(BanError, match=r"^the format 'words' is unknown: it is one of text, .*sillytavern$"):
        BanList.load("list", format="words")
