"""Texts of any size are searched while they are read: the same hits as at once, immediately, in bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from antislop import Ban, BanList, Scope
from antislop.core.bans.ban_list import PIECE
from antislop.core.bans.bans import Match, drop_overlaps
from antislop.core.bans.text_matcher import TextMatcher
from antislop.errors import InputError
from antislop.measure import Occurrence, scan
from antislop.measure.occurrences import HitLine, Window, find_lines, find_occurrences
from tests.support.depth import DEPTH

EVERY_KIND = BanList(
    [
        "a cat",
        "cat",
        Ban("at", edges="anywhere"),
        Ban("Cat", case_sensitive=True),
        Ban("sat", exempt=["cat sat on"]),
        Ban("on", at_most=1, per_words=9),
        Ban("a", scopes=[Scope("outside", "quotes")]),
        Ban.words(["cat", "mat"], gap=3),
        Ban.wildcard("the * sat"),
        Ban.regex(r"\bc\w*\b(?! sat)"),
        Ban.regex(r"(?<=the )\w+", max_span=20),
    ]
)
WORDS = [
    "a",
    "cat",
    "Cat",
    "sat",
    "on",
    "the",
    "mat",
    "category",
    "\n",
    "\n\n",
    '"',
    "…",
    "Ünïcödé",
    "👩‍🚀",
    ",",
    "c at",
]


def write_text(random: Random, words: int, *, among: Sequence[str] = WORDS) -> str:
    return "".join(random.choice(among) + random.choice([" ", " ", " ", "", "\n"]) for _ in range(words))


def cut(text: str, random: Random) -> list[str]:
    """Cut a text into pieces, some of which are empty."""
    ends = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(12)))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def find_at_once(bans: BanList, text: str) -> set[Match]:
    """Search the whole text at once, without the prefilter: the naive twin."""
    matcher = TextMatcher(bans._distinct)
    _, _, result = matcher.read(matcher.phrases.start, matcher.start, text, final=True)
    size = len(text)
    return {Match(bans._distinct[m.pattern], size - m.start_back, size - m.end_back + 1) for m in result.matches}


def place_naively(bans: BanList, text: str) -> list[Occurrence]:
    matches = sorted(find_at_once(bans, text), key=lambda match: (match.start, match.end, bans.index(match.ban)))
    return [
        Occurrence(
            "f",
            text.count("\n", 0, match.start) + 1,
            match.start - text.rfind("\n", 0, match.start),
            match.ban.text,
            text[match.start : match.end],
        )
        for match in drop_overlaps(matches)
    ]


@pytest.mark.parametrize("seed", range(25 * DEPTH))
def test_places_do_not_depend_on_the_pieces_of_a_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr("antislop.core.bans.ban_list.PIECE", random.choice([1, 2, 7, PIECE]))
    text = write_text(random, 40)
    found = list(chain.from_iterable(find_occurrences(EVERY_KIND, Window(cut(text, random)), file="f")))
    assert found == place_naively(EVERY_KIND, text)
    assert set(EVERY_KIND.find(text)) == find_at_once(EVERY_KIND, text)


OFF, ON, IGNORE = "<!-- antislop: off -->", "<!--antislop:on -->", "# antislop: ignore"
MARKS = [OFF, ON, ON, IGNORE, "// antislop: off", "-- antislop: on (so)", "antislop: off", "# antislop: onto", ": on"]


def find_ignored(text: str) -> list[bool]:
    """Return for each character whether a comment leaves it out: the naive twin, line by line."""
    flags, is_off = list[bool](), False
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        marks = {}
        for match in re.finditer(r"(?:<!--|#|//|--) *antislop: *(off|on|ignore)", line):
            rest = line[match.end() :].strip()
            if not rest or rest[0] in "-(:":
                marks[match.start()] = match[1]
        begin, is_line_out = len(flags), False
        for index in range(len(line)):
            mark = marks.get(index)
            is_off = is_off if mark in (None, "ignore") else mark == "off"
            is_line_out = is_line_out or (mark == "ignore" and not is_off)
            flags.append(is_off)
        if is_line_out:
            flags[begin:] = [True] * len(line)
    return flags


@pytest.mark.parametrize("seed", range(25 * DEPTH))
def test_comments_leave_out_their_line_or_what_stands_between_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr("antislop.core.bans.ban_list.PIECE", random.choice([1, 2, 7, PIECE]))
    bans = BanList(["the cat", "sat on", "a cat on", "cat", "on"])
    words = ["a", "cat", "on", "the cat", "the\ncat", "sat\non", "a\ncat on", f"cat {OFF} cat {ON} cat {IGNORE}\n"]
    text = write_text(random, 60, among=[*words, *MARKS])
    ignored, starts = find_ignored(text), [0, *(match.end() for match in re.finditer("\n", text))]
    hits = [(starts[hit.line - 1] + hit.column - 1, hit) for hit in place_naively(bans, text)]
    expected = [hit for start, hit in hits if not any(ignored[start : start + len(hit.text)])]
    assert list(chain.from_iterable(find_occurrences(bans, Window(cut(text, random)), file="f"))) == expected
    lines = chain.from_iterable(find_lines(bans, cut(text, random), file="f"))
    assert [hit for line in lines for hit in line.hits] == expected


def test_a_line_without_an_end_is_searched_before_its_end_and_time_does_not_grow_with_marks() -> None:
    pieces = ["a cat " * 10_000, "a dog " * 10_000, f"a cat {IGNORE}\n", f"{OFF}{ON}{IGNORE} " * 20_000, "\na cat"]
    found = find_occurrences(BanList(["cat"]), Window(pieces), file="f")
    hits = list(chain.from_iterable(found))
    assert len(hits) > 9000 and (hits[-1].line, hits[-1].column) == (3, 3)


def show_naively(bans: BanList, text: str, *, context: int) -> list[HitLine]:
    """Mark each character of a text that belongs to a hit, then look at its lines."""
    lines, hits = text.split("\n"), place_naively(bans, text)
    marks = [bytearray(len(line)) for line in lines]
    for hit in hits:
        place = sum(len(line) + 1 for line in lines[: hit.line - 1]) + hit.column - 1
        for index in range(place, place + len(hit.text)):
            line = text.count("\n", 0, index)
            if text[index] != "\n":
                marks[line][index - text.rfind("\n", 0, index) - 1] = 1
    begun = [[hit for hit in hits if hit.line == number] for number in range(1, len(lines) + 1)]
    is_hit = [
        any(hit.line <= number <= hit.line + hit.text.count("\n") for hit in hits)
        for number in range(1, len(lines) + 1)
    ]
    return [
        HitLine("f", number + 1, line, begun[number], [(i, i + 1) for i, mark in enumerate(marks[number]) if mark])
        for number, line in enumerate(lines)
        if any(is_hit[max(0, number - context) : number + context + 1]) and (line or number < len(lines) - 1)
    ]


@pytest.mark.parametrize("seed", range(25 * DEPTH))
def test_the_lines_of_hits_and_those_beside_them_do_not_depend_on_the_pieces_of_a_text(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr("antislop.core.bans.ban_list.PIECE", random.choice([1, 2, 7, PIECE]))
    text, bans = write_text(random, 60), BanList(["the cat", "sat on", Ban("C at", case_sensitive=True)])
    context = random.randrange(4)
    found = chain.from_iterable(find_lines(bans, cut(text, random), file="f", context=context))
    by_character = [
        line._replace(hits=list(line.hits), spans=[(i, i + 1) for start, end in line.spans for i in range(start, end)])
        for line in found
    ]
    assert by_character == show_naively(bans, text, context=context)


def test_a_line_is_known_before_the_text_ends_and_those_far_from_hits_are_forgotten() -> None:
    read = 0

    def write() -> Iterator[str]:
        nonlocal read
        for read in range(20_000):
            yield "no hit here\n" if read % 5000 else "a cat\n"

    numbers = [
        (line.line, read) for lines in find_lines(BanList(["cat"]), write(), file="f", context=1) for line in lines
    ]
    assert [number for number, _ in numbers] == [1, 2, 5000, 5001, 5002, 10_000, 10_001, 10_002, 15_000, 15_001, 15_002]
    assert all(at - number < 1000 for number, at in numbers)


def test_the_time_for_lines_does_not_grow_with_those_around() -> None:
    pieces, context = ["a cat\n", "no hit here\n" * 20_000], 10**8
    (found,) = filter(None, find_lines(BanList(["cat"]), pieces, file="f", context=context))
    assert len(found) == 20_001


def test_a_text_without_an_end_is_searched_in_bounded_memory() -> None:
    random = Random(0)
    pieces = (write_text(random, 50) for _ in repeat(None))
    window = Window(pieces)
    settled, number = 0, 0
    for found in islice(EVERY_KIND.search(window), 200):
        assert all(settled <= match.start < found.settled for match in found.matches)
        settled = found.settled
        number += len(found.matches)
        window.drop(settled)
        assert len(window.text) < 3 * PIECE
    assert number > 1000


def test_no_text_and_empty_pieces_contain_no_hit() -> None:
    for pieces in ([], [""], ["", ""]):
        assert [found.matches for found in EVERY_KIND.search(pieces)] == [[]]


def test_long_texts_are_read_in_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules search all that they remember of a piece for each hit in it, so time would grow with the square."""
    sizes: list[int] = []
    read = TextMatcher.read

    def record(self: TextMatcher, place: Any, rest: Any, piece: str, *, final: bool = False) -> Any:
        sizes.append(len(piece))
        return read(self, place, rest, piece, final=final)

    monkeypatch.setattr(TextMatcher, "read", record)
    assert len(BanList([Ban("cat", at_most=1, per_words=100)]).find("a cat " * 3000)) == 2999
    assert sum(sizes) == 18_000
    assert max(sizes) <= PIECE


def test_files_and_folders_are_scanned_in_order_without_what_is_hidden_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    for name in ("b.md", "sub/a.txt", "sub/.git/c.txt"):
        (tmp_path / name).write_text("so\na cat")
    (tmp_path / "x.bin").write_bytes(b"a cat\0")
    file, other = (str(tmp_path / name) for name in ("b.md", "sub/a.txt"))
    found = [Occurrence(name, 2, 3, "cat", "cat") for name in (file, other, file)]
    assert list(scan([tmp_path, file], BanList(["cat"]))) == found
    with pytest.raises(InputError, match=r"nowhere\.txt: can't be read"):
        list(scan([file, tmp_path / "nowhere.txt"], BanList(["cat"])))
    with pytest.raises(InputError, match=r"^a list of paths was expected, not '.*b\.md': write \[path\]$"):
        list(scan(file, BanList(["cat"])))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_column_of_records_is_scanned_with_the_place_of_each_record(tmp_path: Path, suffix: str) -> None:
    records = [{"story": "no hit", "note": "cat"}, {"story": "so\na cat", "note": ""}]
    table = pyarrow.Table.from_pylist(records)
    path = tmp_path / f"r.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    else:
        {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table}[suffix](table, path)
    line = 3 if suffix == "csv" else 2  # after the heading
    expected = [Occurrence(str(path), line, 6, "cat", "cat")]
    assert list(scan([path], BanList(["cat"]), column="story")) == expected
