"""The commands about lists: findings go to standard output, summaries and errors to standard error."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models as tokenizer_models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import antislop
from antislop import Ban, BanList
from antislop.cli import lists
from antislop.core.hf.vocabulary import Vocabulary
from antislop.files.models import ModelSpec
from tests.support.commands import assert_refused, invoke

TEXT = "Über a cat,\r\nit was a  Testament\nto cats. Cat"
COLORED = {"FORCE_COLOR": "1", "TERM": "xterm"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


# -- scan -------------------------------------------------------------------------------------------------------------

CATS = ("--ban", "cat", "--ban", "a testament to")


def test_scan_as_json_contains_the_position_and_the_text_of_each_hit() -> None:
    result = invoke("scan", "--format", "json", "-", *CATS, stdin=TEXT.encode())
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == len(found) + 2 == 5
    assert found[0] == {"file": "<stdin>", "line": 1, "column": 8, "ban": "cat", "text": "cat"}
    assert (found[1]["line"], found[1]["column"], found[1]["text"]) == (2, 8, "a  Testament\nto")


def test_scan_as_json_is_a_list_without_hits_and_with_counts() -> None:
    clean, sloppy = write("clean.txt", "A dog."), write("sloppy.txt", TEXT)
    nothing = invoke("scan", "--format", "json", clean, *CATS)
    assert (nothing.exit_code, json.loads(nothing.stdout)) == (0, [])
    counted = invoke("scan", "--format", "json", "--count", clean, sloppy, "nowhere.txt", *CATS)
    assert counted.exit_code == 2
    assert json.loads(counted.stdout) == [{"file": "clean.txt", "count": 0}, {"file": "sloppy.txt", "count": 3}]
    assert invoke("scan", "--format", "json", "--quiet", sloppy, *CATS).stdout == ""


def test_compressed_texts_are_read_and_broken_ones_are_refused(folder: Path) -> None:
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"a cat"))
    assert invoke("scan", "a.txt.gz", *CATS).stdout == "a.txt.gz:1:3: cat\n"
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"a cat")[:-9])
    assert_refused(invoke("scan", "b.txt.gz", *CATS), "b.txt.gz: can't be read (not gzip, or cut off: ")
    (folder / "c.txt.gz").write_bytes(b"a cat")
    assert_refused(invoke("scan", "c.txt.gz", *CATS), "c.txt.gz: can't be read (not gzip")


def test_a_star_in_a_phrase_is_a_wildcard_on_the_command_line_and_in_any_list() -> None:
    text = write("story.txt", "A whirl of emotions. A * of emotions.")
    hits = "story.txt:1:1: a * of emotions\n"
    assert invoke("scan", text, "--no-bans", "--ban", "a * of emotions").stdout == hits
    for name, content in (
        ("a.txt", "a * of emotions"),
        ("a.json", '["a * of emotions"]'),
        ("a.csv", "a * of emotions,0"),
    ):
        assert invoke("scan", text, "--bans", write(name, content)).stdout == hits
    assert invoke("scan", text, "--no-bans", "--ban", r"a \* of emotions").stdout == "story.txt:1:22: a * of emotions\n"


# -- lint -------------------------------------------------------------------------------------------------------------


def test_lint_reports_the_place_the_problem_and_a_fix() -> None:
    result = invoke("lint", write("bans.txt", "# mine\na testament to\n\nok\ntestament\nOK\n"), "--ignore", "common")
    assert result.exit_code == 1
    assert result.stdout == (
        "bans.txt:6: duplicate: 'OK' repeats 'ok' (line 4): leave it out\n"
        "bans.txt:2: contained: 'a testament to' contains 'testament', which forbids it already (line 5): "
        "leave it out\n"
        "bans.txt:4: short: 'ok' has only 2 letters and means many things: write the longer phrase it is from\n"
    )
    assert result.stderr == "bans.txt: 4 entries: 1 duplicate, 1 contained, 1 short\n"


def test_lint_exits_with_0_if_nothing_is_found() -> None:
    result = invoke("lint", write("bans.txt", "a testament to\n"))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "bans.txt: 1 entry: nothing found\n")


def test_lint_reports_entries_that_can_not_be_loaded() -> None:
    result = invoke("lint", write("bans.json", '["a testament to",\n" "]'))
    assert result.exit_code == 1
    assert result.stdout.startswith("bans.json:2: refused: the ban ' ' contains no visible character")
    assert result.stderr == "bans.json: 1 entry: 1 refused\n"


def test_lint_as_json_contains_the_same_findings() -> None:
    found = json.loads(invoke("lint", write("bans.txt", "whisper\na  Whisper\n"), "--format", "json").stdout)
    assert (found["list"], found["entries"], found["refused"]) == ("bans.txt", 2, [])
    assert found["findings"] == [
        {
            "kind": "contained",
            "entry": 2,
            "line": 2,
            "ban": "a  Whisper",
            "fault": "'a  Whisper' contains 'whisper', which forbids it already",
            "fix": "leave it out",
            "other": 1,
        }
    ]


def test_lint_works_without_word_frequencies_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    result = invoke("lint", write("bans.txt", "eyes\nok\n"))
    assert result.exit_code == 1
    assert "'ok' has only 2 letters" in result.stdout
    assert "eyes" not in result.stdout
    unchecked = "; common words and missing commas are not checked: that needs pip install 'antislop-lm[lint]'\n"
    assert result.stderr == f"bans.txt: 2 entries: 1 short{unchecked}"
    assert invoke("lint", write("bans.txt", "eyes\n")).stderr == f"bans.txt: 1 entry: nothing found{unchecked}"
    assert json.loads(invoke("lint", "bans.txt", "--format", "json").stdout)["unchecked"] == ["common", "joined"]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert json.loads(invoke("lint", "bans.txt", "--format", "json").stdout)["unchecked"] == []


def test_lint_says_how_a_star_is_read() -> None:
    wildcard = "* stands for words, or for letters of a word; write \\* for the character\n"
    result = invoke("lint", write("bans.txt", "a * of emotions\nvoices\neyes sparkl*\n\\*sighs\\*\n"))
    assert (result.exit_code, result.stderr) == (0, f"lines 1, 3: {wildcard}bans.txt: 4 entries: nothing found\n")
    assert invoke("lint", write("bans.json", '["a * of emotions"]')).stderr.startswith(f"line 1: {wildcard}")
    many = invoke("lint", write("bans.txt", "".join(f"one * of {number}s\n" for number in range(20, 27))))
    assert many.stderr.startswith("lines 1, 2, 3, 4, 5 and 2 more: * stands for words")
    result = invoke("lint", write("bans.txt", '"a * of emotions"\n"*sighs"\n'))
    assert result.stderr.startswith(
        "line 1: * is the character, as in SillyTavern; in other formats it stands for words\n"
    )
    assert wildcard not in result.stderr


def test_commands_say_which_marks_are_not_part_of_the_phrases() -> None:
    bans = write("bans.txt", "- delve\n- a testament to\n")
    said = "bans.txt: the bullets that most lines have are not part of the phrases\n"
    assert invoke("lint", bans).stderr == f"{said}{bans}: 2 entries: nothing found\n"
    assert invoke("scan", "-", "--bans", bans, stdin="to delve").stderr.startswith(said)
    result = invoke("convert", bans, "-o", "-")
    assert (result.stdout.splitlines()[-2:], result.stderr.startswith(said)) == (["delve", "a testament to"], True)


def test_lint_finds_entries_that_a_model_s_tokenizer_can_not_write(folder: Path) -> None:
    tokens = ["[UNK]", "elara", "whisper", "##ed", *"abc"]
    backend = Tokenizer(tokenizer_models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(folder / "uncased")
    bans = BanList(["Elara whispered", "elara said", Ban("Elara", case_sensitive=True)])
    vocabulary = Vocabulary.of(ModelSpec("uncased").load_tokenizer())
    kinds = [(finding.index, finding.kind) for finding in lists.lint(bans, vocabulary=vocabulary)]
    assert kinds == [(1, "untypable"), (2, "case")]
    result = invoke("lint", write("bans.txt", "elara said"), "--model", "uncased")
    assert "bans.txt:1: untypable: 'elara said' can't be written: no sequence of" in result.stdout
    assert_refused(invoke("lint", "bans.txt", "--model", str(folder)), "the tokenizer of", "can't be loaded")


def test_lint_colors_on_a_terminal_only() -> None:
    result = invoke("lint", write("bans.txt", "ok"), env=COLORED)
    assert result.stdout.startswith("\x1b[35mbans.txt:1\x1b[0m: \x1b[1;31mshort\x1b[0m: 'ok' has")


# -- convert ----------------------------------------------------------------------------------------------------------


def test_convert_writes_a_list_that_loads_as_the_same() -> None:
    result = invoke("convert", write("bans.txt", "cat\na testament to\nmouse"), "-o", "out.txt")
    assert result.exit_code == 0, result.stderr
    assert [ban.text for ban in BanList.load("out.txt")] == ["cat", "a testament to", "mouse"]
    assert result.stdout == ""
    assert result.stderr == "bans.txt was read as text: 3 entries, 0 refused; wrote 3 to out.txt\n"


def test_convert_writes_to_standard_output() -> None:
    result = invoke("convert", "-", "-o", "-", stdin="cat\n")
    assert (result.exit_code, result.stdout.splitlines()[0], result.stdout.splitlines()[-1]) == (
        0,
        "# antislop 1",
        "cat",
    )
    assert result.stderr.endswith("1 entry, 0 refused; wrote 1 to standard output\n")
    assert not list(Path().iterdir())


def test_convert_reads_compressed_lists_and_does_not_write_their_paths(tmp_path: Path) -> None:
    source, out = tmp_path / "bans.json.gz", tmp_path / "bans.txt"
    source.write_bytes(gzip.compress(b'["delve", "a testament to"]'))
    result = invoke("convert", str(source), "-o", str(out))
    assert (result.exit_code, out.read_text()) == (0, "# antislop 1\n# source: bans.json.gz\ndelve\na testament to\n")
    source.write_bytes(source.read_bytes()[:20])
    assert_refused(invoke("convert", str(source), "-o", str(out), "--force"), "bans.json.gz: can't be read")


def test_convert_overwrites_if_it_is_forced() -> None:
    assert invoke("convert", write("bans.txt", "cat\n"), "-o", write("out.txt", "dog"), "--force").exit_code == 0
    assert "cat" in Path("out.txt").read_text(encoding="utf-8")


BINARY = "image.txt:1: not text but binary data: pass a text file"
WIDE = "wide.txt:1: not UTF-8 but UTF-16: save the file as UTF-8"
REFUSED = [
    ("lint nowhere.txt", "nowhere.txt: can't be read"),
    ("lint bans.txt --ignore speed", "--ignore speed is not a kind of finding: choose one of duplicate"),
    ("scan image.txt", BINARY),
    ("scan wide.txt", WIDE),
    ("scan bans.txt --bans image.txt", BINARY),
    ("scan bans.txt --bans wide.txt", WIDE),
    ("measure image.txt", BINARY),
    ("measure wide.txt", WIDE),
    ("convert bans.txt -o bans.txt", "bans.txt is the list itself: pass another path, or --force"),
    ("convert bans.txt -o old.txt", "old.txt exists already: pass another path, or --force"),
    ("convert nowhere.txt -o out.txt", "nowhere.txt: can't be read"),
    ("convert bans.txt -o bans.txt/out.txt", "bans.txt is not a folder"),
    ("convert bans.txt -o out.txt --format magic", "magic"),
    ("convert bans.txt -o out.txt --edges none", "'none', but should be"),
]


@pytest.mark.parametrize(("command", "sentence"), REFUSED)
def test_what_can_not_be_used_is_refused_and_no_file_is_written(command: str, sentence: str, folder: Path) -> None:
    write("bans.txt", "cat\n")
    write("old.txt", "dog")
    (folder / "image.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (folder / "wide.txt").write_bytes("delve\n".encode("utf-16"))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert_refused(invoke(*command.split()), sentence)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_convert_keeps_the_top_and_writes_the_license() -> None:
    bans = write("bans.txt", "cat\ndog\nmouse\n")
    result = invoke("convert", bans, "-o", "out.txt", "--top", "2", "--edges", "anywhere", "--license", "CC0")
    text = Path("out.txt").read_text(encoding="utf-8")
    assert "CC0" in text
    assert "mouse" not in text
    assert "3 entries, 0 refused; wrote 2 to out.txt" in result.stderr


# -- all --------------------------------------------------------------------------------------------------------------


def test_a_reader_that_closes_the_pipe_ends_each_command_silently() -> None:
    text, bans = write("long.txt", "cat\n" * 60_000), write("bans.txt", "".join(f"ok{n}\n" for n in range(20_000)))
    read, write_end = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONPATH": str(Path(antislop.__file__).parents[1])}
    short = write("short.txt", "cat\n")  # less than a buffer
    scans = [["scan", name, "--ban", "cat", *more] for name in (text, short) for more in ([], ["--format", "json"])]
    for args in (*scans, ["convert", bans, "-o", "-"]):
        command = [sys.executable, "-m", "antislop", *args]
        ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, env=env, check=False)
        assert (ended.returncode, ended.stderr) == (141, b"")
    os.close(write_end)


def test_a_group_of_a_list_is_chosen_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text('{"a": {"verbs": ["delve"]}, "banned": ["it"], "title": "x"}')
    Path("text.txt").write_text("We delve into it.\n")
    scanned = ["scan", "text.txt", "--bans", "list.json"]
    named, chosen = invoke(*scanned), invoke(*scanned, "--group", "verbs")
    said = "list.json: left out, since these names don't say bans: a, title; --group NAME chooses others\n"
    assert (named.stdout, named.stderr) == ("text.txt:1:15: it\n", said)
    assert (chosen.stdout, chosen.stderr) == ("text.txt:1:4: delve\n", "")
    assert invoke("convert", "list.json", "-o", "-", "--group", "a").stdout.endswith("\ndelve\n")
