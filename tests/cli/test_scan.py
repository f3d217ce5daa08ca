"""The command that searches files writes what it finds at once, in the format that was asked for."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from rich.console import Console
from typer.testing import CliRunner

from antislop.cli import scan as scan_module, terminal
from antislop.cli.main import app
from antislop.cli.progress import ProgressBar
from antislop.files import disk as files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scan(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["scan", *args], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


DAMP = "the air was thick with the scent of damp earth"  # seven entries of the bundled list, one after another


def test_overlapping_phrases_are_listed_and_counted_once(folder: Path) -> None:
    Path("damp.txt").write_text(f"{DAMP}\n" * 2, encoding="utf-8")
    phrases = ["the air was thick with", "the scent of", "damp earth"]
    status, out, _ = scan("damp.txt")
    assert status == 1 and [line.split(": ")[1] for line in out.splitlines()] == phrases * 2
    assert [entry["text"] for entry in json.loads(scan("damp.txt", "--format", "json")[1])] == phrases * 2
    assert scan("damp.txt", "--count")[1] == "damp.txt:6\n"


def test_bans_are_counted_in_all_files_together_the_most_frequent_first(folder: Path) -> None:
    for name, text in (("a.txt", f"{DAMP} and damp earth"), ("b.txt", "damp earth, the scent of"), ("c.txt", "dry")):
        Path(name).write_text(text, encoding="utf-8")
    counts = [("damp earth", 3), ("the scent of", 2), ("the air was thick with", 1)]
    lines = "".join(f"{count:7} {ban}\n" for ban, count in counts)
    assert scan("a.txt", "b.txt", "c.txt", "--by-ban") == (1, lines, "")
    assert scan("c.txt", "--by-ban") == (0, "", "")
    rows = json.loads(scan(".", "--by-ban", "--format", "json")[1])
    assert rows == [{"ban": ban, "count": count} for ban, count in counts]


@pytest.mark.parametrize("output", ["text", "json", "csv"])
def test_hits_are_written_before_the_file_is_read_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    written_at: list[int] = []
    out = io.StringIO()

    def read() -> Iterator[bytes]:
        for number in range(6):
            written_at.append(out.getvalue().count("cat") if number else 0)
            yield b"a cat\n" * 2000
        yield b"a \xff"

    monkeypatch.setattr(terminal.files, "read_pieces", lambda name: read())
    monkeypatch.setattr(sys, "stdout", out)
    status = app(["scan", "any.txt", "--ban", "cat", "--format", output], standalone_mode=False)
    assert status == 2
    assert written_at[2] > 0
    assert written_at == sorted(written_at)
    assert out.getvalue().count("cat") >= 9_500
    if output == "json":
        assert len(json.loads(out.getvalue())) >= 9_500


def test_a_fault_late_in_a_text_is_named_with_its_line(folder: Path) -> None:
    lines = b"a dog\n" * 12_000
    for cut_off, line in ((b"\xff", 12_001), (b"\n\xe2\x82", 12_002)):
        Path("bad.txt").write_bytes(lines + cut_off)
        status, _, said = scan("bad.txt", "--ban", "cat")
        assert status == 2
        assert re.fullmatch(rf"antislop: bad.txt:{line}: not UTF-8 \(.*\): save the file as UTF-8\n", said)


def test_characters_that_span_two_readings_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 1)
    Path("a.txt").write_bytes("\ufeffÜber ein Kätzchen 👩‍🚀 Kätzchen".encode())
    Path("a.txt.gz").write_bytes(gzip.compress(Path("a.txt").read_bytes()))
    for name in ("a.txt", "a.txt.gz"):
        assert scan(name, "--ban", "Kätzchen")[1] == f"{name}:1:10: Kätzchen\n{name}:1:23: Kätzchen\n"
        assert terminal.read_input(name) == "Über ein Kätzchen 👩‍🚀 Kätzchen"


def test_a_compressed_text_is_read_up_to_its_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MIN_BOUND", 30_000)
    Path("bomb.txt.gz").write_bytes(gzip.compress(b"a dog " * 50_000))
    status, out, said = scan("bomb.txt.gz", "--ban", "cat", "--count")
    assert (status, out) == (2, "")
    assert "it unpacks to more than" in said


def test_a_terminal_shows_a_bar_after_a_pause_and_hides_it_for_output() -> None:
    for is_terminal, silence, is_shown in ((True, 0.0, True), (True, 1e9, False), (False, 0.0, False)):
        out = io.StringIO()
        screen = Console(file=out, force_terminal=is_terminal, force_interactive=is_terminal, width=200)
        with ProgressBar(screen, "[/a].txt", total=2_000_000, silence=silence) as bar:
            bar.update(advance=1_000_000)
            bar.update(note="1,234 found")
        assert ("[/a].txt" in out.getvalue() and "1,234 found" in out.getvalue()) == is_shown
        assert bool(out.getvalue()) == is_shown


def test_a_bar_goes_to_standard_error_and_data_to_standard_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scan_module, "SILENCE", 0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    Path("a.txt").write_text("a cat\n" * 15_000)
    assert app(["scan", "a.txt", "--ban", "cat", "--format", "json"], standalone_mode=False) == 1
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 15_000
    assert "a.txt" in shown.err
    assert "found" in shown.err


def test_a_folder_is_scanned_as_the_texts_in_it(folder: Path) -> None:
    for name in ("repo/b.md", "repo/sub/a.txt", "repo/.git/c.txt", "repo/sub/.hidden"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("so\na cat")
    for name, content in (("x.bin", b"a cat\0"), ("y.png", b"\x89PNG a cat"), ("z.gz", gzip.compress(b"a cat"))):
        Path("repo", name).write_bytes(content)
    status, out, said = scan("repo", "--ban", "cat")
    assert (status, out) == (1, "repo/b.md:2:3: cat\nrepo/sub/a.txt:2:3: cat\n")
    assert said == "repo: left out 3 files that can't be read as UTF-8\n"
    assert scan("repo/sub", "repo/b.md", "--ban", "cat", "--count")[1] == "repo/sub/a.txt:1\nrepo/b.md:1\n"


def test_a_column_of_records_is_searched(folder: Path) -> None:
    Path("r.jsonl").write_text('{"story": "no hit", "note": "cat"}\n{"story": "so a cat", "note": ""}\n')
    assert scan("r.jsonl", "--column", "story", "--ban", "cat") == (1, "r.jsonl:2:6: cat\n", "")
    assert scan("r.jsonl", "--column", "none", "--ban", "cat")[0] == 2


def test_a_spreadsheet_has_the_rows_of_json_without_formulas(folder: Path) -> None:
    Path("=a.txt").write_text('so, "a\ncat"\na cat')
    for option in ((), ("--count",)):
        columns, *rows = csv.reader(scan("=a.txt", "--ban", "a cat", "--format", "csv", *option)[1].splitlines(True))
        expected = json.loads(scan("=a.txt", "--ban", "a cat", "--format", "json", *option)[1])
        assert [dict(zip(columns, row, strict=True)) for row in rows] == [
            {**{name: str(value) for name, value in row.items()}, "file": "'=a.txt"} for row in expected
        ]
    assert scan("=a.txt", "--ban", "dog", "--format", "csv") == (0, "file,line,column,ban,text\n", "")


def test_annotations_of_a_workflow_name_the_place_and_can_not_be_broken_by_names(folder: Path) -> None:
    Path("a,b%:\n.md").write_text("so\na cat")
    assert scan("a,b%:\n.md", "--ban", "cat", "--format", "github")[1] == (
        "::error file=a%2Cb%25%3A␊.md,line=2,col=3,title=antislop::the banned phrase “cat”\n"
    )


def test_sarif_names_each_hit_also_where_its_line_has_moved(folder: Path) -> None:
    """Read whole by sarif-pydantic 0.6.2, tried by hand; columns count characters, as everywhere here."""
    Path("é %.md").write_text("so\n🙂 a cat, a dog, a cat")
    status, text, _ = scan("é %.md", "--ban", "cat", "--ban", "dog", "--format", "sarif")
    (run,) = json.loads(text)["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert status == 1
    assert {place["artifactLocation"]["uri"] for place in places} == {"%C3%A9%20%25.md"}
    assert [place["region"] for place in places] == [{"startLine": 2, "startColumn": start} for start in (5, 12, 19)]
    assert run["columnKind"] == "unicodeCodePoints"
    assert [result["ruleId"] for result in run["results"]] == ["cat", "dog", "cat"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["cat", "dog"]
    known = [result["partialFingerprints"] for result in run["results"]]
    Path("é %.md").write_text("so\n\n\na cat\nanother line, a dog, a cat")
    moved = json.loads(scan("é %.md", "--ban", "cat", "--ban", "dog", "--format", "sarif")[1])
    assert [result["partialFingerprints"] for result in moved["runs"][0]["results"]] == known
    assert len({known_as["hit/v1"] for known_as in known}) == 3
    empty = json.loads(scan("é %.md", "--ban", "bird", "--format", "sarif")[1])
    assert empty["runs"][0]["results"] == []


# -- which files -------------------------------------------------------------------------------------------------------


def write(*names: str, text: str = "a cat\n") -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def files_of(*args: str) -> list[str]:
    return [line.rpartition(":")[0] for line in scan(*args, "--ban", "cat", "--count")[1].splitlines()]


GLOBS = {
    "all": ([], ["a.md", "b.txt", "docs/a.md", "docs/old/a.md"]),
    "names like this": (["-g", "*.md"], ["a.md", "docs/a.md", "docs/old/a.md"]),
    "two kinds": (["-g", "*.txt", "-g", "old/"], ["b.txt", "docs/old/a.md"]),
    "names not like this": (["-g", "!*.md"], ["b.txt"]),
    "left out": (["--exclude", "*.md"], ["b.txt"]),
    "a folder left out": (["--exclude", "old/"], ["a.md", "b.txt", "docs/a.md"]),
    "from the current folder on": (["-g", "/a.md"], ["a.md"]),
    "in one folder": (["-g", "docs/*.md"], ["docs/a.md"]),
    "at any depth": (["-g", "docs/**/a.md"], ["docs/a.md", "docs/old/a.md"]),
    "the last decides": (["-g", "*.md", "-g", "!docs/", "-g", "docs/old/a.md"], ["a.md", "docs/old/a.md"]),
    "both": (["-g", "*.md", "--exclude", "old"], ["a.md", "docs/a.md"]),
}


@pytest.mark.parametrize("case", GLOBS)
def test_globs_choose_files_in_folders(case: str, folder: Path) -> None:
    write("a.md", "b.txt", "docs/a.md", "docs/old/a.md")
    options, expected = GLOBS[case]
    assert files_of(".", *options) == expected
    assert files_of(str(folder), *options) == [str(folder / name) for name in expected]


def test_a_named_file_is_searched_unless_it_is_excluded_by_name(folder: Path) -> None:
    write(".gitignore", text="*.log\n")
    write("a.log", ".hidden.md", "b.md", "docs/c.md")
    subprocess.run(["git", "init", "-q"], check=True)
    assert files_of(".") == ["b.md", "docs/c.md"]
    assert files_of("a.log", ".hidden.md", "docs", "-g", "*.md") == ["a.log", ".hidden.md", "docs/c.md"]
    assert files_of("a.log", "b.md", "--exclude", "*.log") == ["b.md"]


def test_a_glob_that_can_not_be_read_is_refused(folder: Path) -> None:
    for glob in ("!", "", "# a", "[a"):
        said = f"antislop: the glob {glob!r} can't match: write one as in .gitignore, *.md for instance\n"
        assert scan(".", "-g", glob) == (2, "", said)


@pytest.mark.parametrize("files", [["."], ["list.txt", "README.md"]], ids=["a folder", "names, as of pre-commit"])
def test_a_repository_that_holds_its_list_passes(folder: Path, files: list[str]) -> None:
    write("list.txt", text="a testament to\n")
    write("README.md", text="Fine.\n")
    status, out, said = scan(*files, "--bans", "list.txt")
    assert (status, out) == (0, "")
    assert said == ("list.txt: left out, since it is a list of --bans, or the baseline\n" if len(files) > 1 else "")
    write("docs/list.txt", text="It was a testament to cats.\n")
    assert scan("docs/list.txt", "--bans", "list.txt")[1] == "docs/list.txt:1:8: a testament to\n"


def test_a_folder_in_which_nothing_is_searched_is_no_success(folder: Path) -> None:
    write("docs/a.md", "images/b.txt", text="a dog")
    Path("images/b.txt").write_bytes(b"\x89PNG")
    Path("empty").mkdir()
    said = "antislop: {}: no text in this folder is searched: check its path, and what -g and --exclude choose\n"
    assert scan("docs", "--ban", "cat") == (0, "", "")
    assert scan("docs", "empty", "--ban", "cat") == (2, "", said.format("empty"))
    for option in (("-g", "*.rst"), ("--exclude", "*.md")):
        assert scan("docs", "--ban", "cat", *option) == (2, "", said.format("docs"))
    assert scan("images", "--ban", "cat")[0] == 2
    assert scan("docs/a.md", "--exclude", "docs/", "--ban", "cat") == (0, "", "")  # as pre-commit names files


# -- which hits --------------------------------------------------------------------------------------------------------


def test_comments_of_a_text_leave_hits_out_and_those_of_a_record_do_not(folder: Path) -> None:
    write("a.md", text="a cat <!-- antislop: ignore -->\n<!-- antislop: off -->\na cat\n<!-- antislop: on -->\na cat\n")
    write("a.py", text="x = 'a cat'  # antislop: ignore\n# antislop: ignored, a cat\n# antislop: a cat\n")
    assert scan("a.md", "a.py", "--ban", "a cat")[1] == "a.md:5:1: a cat\na.py:2:22: a cat\na.py:3:13: a cat\n"
    write("r.jsonl", text='{"text": "a cat # antislop: ignore"}\n')
    assert scan("r.jsonl", "--ban", "a cat", "--column", "text")[1] == "r.jsonl:1:1: a cat\n"


def test_code_and_quotes_are_left_out_on_request(folder: Path) -> None:
    write("a.md", text='a cat\n"a cat"\n```\na cat\n```\n')
    for spans, lines in (((), [1, 2, 4]), (("code",), [1, 2]), (("quotes",), [1, 4]), (("code", "quotes"), [1])):
        options = [part for span in spans for part in ("--outside", span)]
        assert [
            hit["line"] for hit in json.loads(scan("a.md", "--ban", "a cat", "--format", "json", *options)[1])
        ] == lines
    said = "antislop: '--outside' is 'prose', but should be one of 'code', 'quotes', 'think'\n"
    assert scan("a.md", "--outside", "prose") == (2, "", said)


def test_a_baseline_leaves_out_as_many_hits_of_a_ban_in_a_file_as_it_has_wherever_they_are(folder: Path) -> None:
    write("a.md", text="It was a testament to x.\na cat, a cat\n")
    write("b/r.md", text="a cat\n")
    ban = ("--ban", "a cat")
    assert scan(".", *ban, "--write-baseline", "known") == (0, "", "known: has 4 hits, left out here\n")
    assert Path("known").read_text() == "a.md: a cat\na.md: a cat\na.md: a testament to\nb/r.md: a cat\n"
    assert scan(".", *ban, "--baseline", "known") == (0, "", "known: has 4 hits, left out here\n")
    write("a.md", text="new\n\n  a\ncat,  a cat\nIt was a testament to x.\na cat\n")
    for name in ("a.md", "./a.md", str(folder / "a.md")):
        said = "known: has 3 hits, left out here\n"
        assert scan(name, *ban, "--baseline", "known") == (1, f"{name}:6:1: a cat\n", said)
    assert scan("a.md", *ban, "--baseline", "known", "-C", "0")[1] == "a.md:6:1: a cat\n"
    write("pyproject.toml", text='[tool.antislop]\nbaseline = "known"\n')
    assert scan("a.md", *ban, "--count")[1] == "a.md:1\n"
    assert scan("a.md", "nowhere", *ban, "--write-baseline", "known")[0] == 2  # the old one stays
    assert scan(".", *ban, "--write-baseline", "known") == (0, "", "known: has 5 hits, left out here\n")
    assert scan(".", *ban)[:2] == (0, "")
    write("r.jsonl", text='{"text": "a cat"}\n')
    scan("r.jsonl", *ban, "--column", "text", "--write-baseline", "known")
    assert scan("r.jsonl", *ban, "--column", "text")[0] == 0


def test_a_baseline_that_is_not_there_is_refused_with_what_writes_one(folder: Path) -> None:
    said = "antislop: known: can't be read (No such file or directory): write one with --write-baseline known\n"
    assert scan(".", "--baseline", "known") == (2, "", said)


# -- how hits are shown ------------------------------------------------------------------------------------------------

STORY = "It was a cat\n\nnamed Tom.\nHe\nsat, a\ncat among cats.\n"


def test_lines_around_hits_are_shown(folder: Path) -> None:
    write("a.txt", text=STORY)
    assert scan("a.txt", "--ban", "a cat", "-C", "0")[1] == (
        "a.txt:1:8: It was a cat\na.txt:5:6: sat, a\na.txt-6- cat among cats.\n"
    )
    assert scan("a.txt", "--ban", "a cat", "-C", "1")[1] == (
        "a.txt:1:8: It was a cat\na.txt-2- \n--\na.txt-4- He\na.txt:5:6: sat, a\na.txt-6- cat among cats.\n"
    )
    assert scan("a.txt", "--ban", "a cat")[1] == "a.txt:1:8: a cat\na.txt:5:6: a cat\n"


def test_a_terminal_shows_the_line_with_the_hit_marked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    write("a.txt", text="a cat\x1b[2J\tand a cat\r\n")
    write("r.jsonl", text='{"text": "so\\na cat"}\n')
    hit = "\x1b[1;31ma cat\x1b[0m"
    assert scan("a.txt", "--ban", "a cat")[1] == f"\x1b[35ma.txt\x1b[0m:1:1: {hit}␛[2J\tand {hit}\n"
    assert scan("r.jsonl", "--ban", "a cat", "--column", "text")[1] == f"\x1b[35mr.jsonl\x1b[0m:1:4: so {hit}\n"
    assert json.loads(scan("a.txt", "--ban", "a cat", "--format", "json")[1])[0]["ban"] == "a cat"


@pytest.mark.parametrize("seed", range(50))
def test_a_long_line_is_cut_where_it_is_far_from_hits(seed: int) -> None:
    random = Random(seed)
    text = "".join(random.choice("ab ") for _ in range(random.randrange(10, 600)))
    ends = sorted(random.sample(range(len(text)), 2 * random.randrange(1, 4)))
    spans = list(zip(ends[::2], ends[1::2], strict=True))
    for room in (10, 80, 1000):
        parts = list(scan_module._cut_line(text, spans, room=room))
        shown = "".join(part for part, _ in parts)
        assert [part for part, is_hit in parts if is_hit] == [text[start:end] for start, end in spans]
        pieces = [part for part in re.split("…", shown) if part]
        assert all(piece in text for piece in pieces)
        if len(text) <= room:
            assert shown == text
        elif spans[-1][1] - spans[0][0] <= room - 2 * scan_module.MARGIN - 2:
            assert len(shown) <= room
        margin = scan_module.MARGIN
        assert text[max(0, spans[0][0] - margin) : spans[0][0]] in parts[0][0]
        assert text[spans[-1][1] : spans[-1][1] + margin] in parts[-1][0]


def test_stats_say_what_was_searched(folder: Path) -> None:
    write("a.txt", "b.txt")
    write("c.txt", text="a dog")
    status, out, said = scan(".", "--ban", "cat", "--stats", "--quiet")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"2 hits in 2 of 3 files, \d+\.\d\d seconds\n", said)
