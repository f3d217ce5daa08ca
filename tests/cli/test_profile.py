"""`antislop profile` and `antislop bans-from` on the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import Result

from antislop import BanList
from antislop.files.texts import Half, Text, find_half, hash_prompt
from antislop.measure.profiles.profiles import Profile
from antislop.measure.profiles.rates import Baseline
from tests.support.commands import assert_refused, invoke

SLOP = "Her eyes were glinting, a testament to Elara and her fathomless tapestry of tales. Now {} Elara sleeps."
PLAIN = "The cat sat on the mat, and the dog ran to the door. It was day {}."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    write("sloppy.jsonl", SLOP, prompts=10)
    write("plain.jsonl", PLAIN, prompts=10)
    return tmp_path


def write(name: str, text: str, *, prompts: int, column: str = "text") -> None:
    records = [{column: text.format("x" * i), "prompt": f"p{i % prompts}"} for i in range(40)]
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def run(*arguments: str, stdin: str | None = None) -> Result:
    memory = ["--memory", "1"] if arguments[0] == "profile" else []
    return invoke(*arguments, *memory, stdin=stdin)


def test_from_texts_to_a_profile_to_a_list() -> None:
    made = run("profile", "sloppy.jsonl", "--baseline", "plain.jsonl", "-o", "profile.json")
    assert (made.exit_code, made.stdout) == (0, ""), made.output
    profile = Profile.load("profile.json")
    assert (profile.texts, profile.prompts, profile.made_with["sources"]) == (40, 10, ["sloppy.jsonl"])
    assert all(entry.examples for entry in profile.entries)
    assert any(entry.is_name for entry in profile.entries)
    listed = run("bans-from", "profile.json", "-o", "bans.txt", "--license", "CC0-1.0")
    assert (listed.exit_code, listed.stdout) == (0, ""), listed.output
    bans = BanList.load("bans.txt")
    assert bans.license == "CC0-1.0"
    assert bans.source is not None and "sloppy.jsonl: 40 texts, 10 prompts" in bans.source
    assert bans.find("a testament to Elara")
    assert not bans.find("The cat sat on the mat. It was day.")
    assert "bans, " in listed.stderr and "forbidden outright; left out: " in listed.stderr


def test_the_suffix_decides_whether_a_profile_is_written_as_json_or_as_a_page() -> None:
    for name in ("page.html", "profile.json"):
        assert run("profile", "sloppy.jsonl", "--baseline", "plain.jsonl", "-o", name).exit_code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "fathomless" in page
    assert json.loads(Path("profile.json").read_text(encoding="utf-8"))["format"] == "antislop profile 1"


def test_the_bundled_baseline_is_the_default() -> None:
    assert run("profile", "sloppy.jsonl", "-o", "profile.json").exit_code == 0
    baseline = Profile.load("profile.json").baseline
    assert baseline is not None and baseline["words"] > 1_400_000


GERMAN = "Ein Schauer lief über ihren Rücken, und die Nacht war {}."
ORDINARY = "Die Katze saß auf der Matte, und der Hund lief zur Tür. Es war der Tag {} und nicht die Nacht."


def test_texts_in_another_language_need_human_texts_in_it() -> None:
    write("german.jsonl", GERMAN, prompts=10)
    write("human.jsonl", ORDINARY, prompts=10)
    assert_refused(
        run("profile", "german.jsonl", "--language", "de", "-o", "p.json"),
        "the bundled human texts are English",
        "German",
        "--baseline FILES",
    )
    assert_refused(run("profile", "german.jsonl", "--language", "xx", "-o", "p.json"), "'xx' is not known")
    made = run("profile", "german.jsonl", "--baseline", "human.jsonl", "-o", "p.json")
    assert made.exit_code == 0 and "these are texts in German" in made.stderr, made.output
    assert "words of human texts are few: with less than 80,000" in made.stderr
    listed = run("bans-from", "p.json", "-o", "bans.txt", "--min-ratio", "1.5")
    assert listed.exit_code == 0 and BanList.load("bans.txt").find("Ein Schauer lief über ihren Rücken"), listed.output
    assert_refused(run("bans-from", "p.json", "--no-names"), "all nouns", "German")
    assert_refused(run("bans-from", "p.json", "--kinds", "content"), "skip English words")
    assert run("profile", "human.jsonl", "--as-baseline", "-o", "base.json").exit_code == 0
    assert_refused(
        run("profile", "sloppy.jsonl", "--baseline", "base.json", "-o", "p.json"), "base.json", "'de'", "'en'"
    )


def test_a_list_of_turkish_texts_says_so_and_finds_their_capitals() -> None:
    write("turkish.jsonl", "Sırtından aşağı bir ürperti indi ve gece {} sessizdi.", prompts=10)
    write("human.jsonl", "Kedi bir halı ve köpek için her gün {} ne kadar çok koştu.", prompts=10)
    run("profile", "turkish.jsonl", "--language", "tr", "--baseline", "human.jsonl", "-o", "p.json")
    listed = run("bans-from", "p.json", "-o", "bans.txt", "--min-ratio", "1.5")
    assert listed.exit_code == 0, listed.output
    assert "\n# language: tr\n" in Path("bans.txt").read_text(encoding="utf-8")
    assert BanList.load("bans.txt").find("SIRTINDAN AŞAĞI BİR ÜRPERTİ İNDİ")


def test_a_list_of_topics_says_so() -> None:
    numbers, words = random.Random(0), ["Rucksack", "Zelt", "Kompass", "Gipfel", "Seil", "Hütte", "Gletscher"]
    texts = [". Und ".join(numbers.sample(words, 6)) for _ in range(40)]
    records = [{"text": text, "prompt": str(number)} for number, text in enumerate(texts)]
    Path("german.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    write("human.jsonl", ORDINARY, prompts=10)
    made = run("profile", "german.jsonl", "--language", "de", "--baseline", "human.jsonl", "-o", "p.json")
    listed = run("bans-from", "p.json", "--min-ratio", "1.5", "-o", "bans.txt")
    topics = "7 of 8 bans are single words that the human texts lack"
    assert made.exit_code == 0 and topics in listed.stderr, listed.stderr


def test_the_command_prints_which_texts_and_baselines_it_compared() -> None:
    human = ["--baseline", "plain.jsonl", "--baseline", "more.jsonl"]
    write("more.jsonl", PLAIN, prompts=10)
    made = run("profile", "sloppy.jsonl", *human, "-o", "profile.json")
    assert made.stderr.startswith(
        "antislop: texts: sloppy.jsonl; compared with: plain.jsonl, more.jsonl, 1,358 words\n"
    )
    baseline = Profile.load("profile.json").baseline
    assert baseline is not None and baseline["name"] == "plain.jsonl, more.jsonl"


def test_a_core_install_makes_profiles_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "matplotlib", "wordfreq"):
        monkeypatch.setitem(sys.modules, name, None)
    made = run("profile", "sloppy.jsonl", "--baseline", "plain.jsonl", "-o", "profile.json")
    assert (made.exit_code, made.stdout) == (0, ""), made.output
    assert made.stderr.startswith("antislop: wordfreq is not installed, so human rates are those of the baseline")
    profile = Profile.load("profile.json")
    assert profile.made_with["modern"] is False
    assert all(entry.low is not None for entry in profile.entries)
    assert "testament" in " ".join(entry.text for entry in profile.entries)
    assert "What fell" in run("profile", "--compare", "sloppy.jsonl", "plain.jsonl").stdout


def test_a_profile_can_be_written_to_a_pipe() -> None:
    made = run("profile", "sloppy.jsonl", "--baseline", "plain.jsonl", "-o", "-")
    result = run("bans-from", "-", "-o", "-", stdin=made.stdout)
    assert result.stdout.startswith("# antislop 1\n# source: sloppy.jsonl")
    assert not Path("-").exists()


def test_a_list_goes_to_standard_output_if_no_file_is_named() -> None:
    run("profile", "sloppy.jsonl", "-o", "profile.json.gz")
    result = run("bans-from", "profile.json.gz", "--forbid", "--top", "2")
    assert result.stdout.startswith("# antislop 1\n# source: sloppy.jsonl")
    assert len([line for line in result.stdout.splitlines() if not line.startswith("#")]) == 2
    assert "weight=" not in result.stdout


def test_names_can_be_left_out_or_kept_alone() -> None:
    run("profile", "sloppy.jsonl", "-o", "profile.json")
    assert "elara" not in run("bans-from", "profile.json", "--no-names").stdout.split("\n", 2)[2]
    only = run("bans-from", "profile.json", "--names-only", "--kinds", "word").stdout
    assert [line.split("\t")[0] for line in only.splitlines()[2:]] == ["elara"]


def test_human_texts_become_a_baseline_the_same_each_time() -> None:
    for name in ("a.json.gz", "b.json.gz"):
        assert run("profile", "plain.jsonl", "--as-baseline", "-o", name).exit_code == 0
    assert Path("a.json.gz").read_bytes() == Path("b.json.gz").read_bytes()
    made = Baseline.load("a.json.gz")
    assert (made.words, made.min_count, made.count("phrase", "the cat sat")) == (40 * 17 - 1, 3, 40)
    assert list(made.made_with["files"]) == ["plain.jsonl"]
    assert run("profile", "sloppy.jsonl", "--baseline", "a.json.gz", "-o", "profile.json").exit_code == 0


def test_further_human_texts_count_if_their_rates_are_reliably_higher() -> None:
    write("more.jsonl", SLOP, prompts=10, column="human")
    more = ("--also-human", "more.jsonl", "--also-column", "human", "--min-ratio", "0")
    assert run("profile", "sloppy.jsonl", *more, "-o", "profile.json").exit_code == 0
    assert max(entry.ratio or 0 for entry in Profile.load("profile.json").entries) < 2


def test_the_halves_share_no_prompt_and_leave_none_out() -> None:
    prompts = {}
    for half in get_args(Half):
        run("profile", "sloppy.jsonl", "--half", half, "-o", f"{half}.json")
        prompts[half] = Profile.load(f"{half}.json").prompts
    assert sum(prompts.values()) == 10 and all(prompts.values())
    texts = [Text(str(i), prompt, "", {}) for i in range(50) for prompt in (None, "p")]
    assert len({find_half(text) for text in texts if text.prompt}) == 1
    assert len({find_half(text) for text in texts if not text.prompt}) == 2
    assert hash_prompt(texts[1]) == hash_prompt(texts[3]) != hash_prompt(texts[0])


@pytest.mark.parametrize("kind", ["text", "json", "csv"])
def test_a_comparison_reports_falls_and_rises(kind: str) -> None:
    result = run("profile", "--compare", "sloppy.jsonl", "plain.jsonl", "--format", kind)
    assert result.exit_code == 0, result.output
    if kind == "text":
        fell, rose = result.stdout.split("What rose")
        assert "What fell" in fell and "glinting" in fell and "the cat sat on the" in rose
        return
    read = json.loads if kind == "json" else lambda text: list(csv.DictReader(io.StringIO(text)))
    rows = read(result.stdout)
    assert {row["text"]: float(row["ratio"]) > 1 for row in rows}["her eyes were glinting"] is False
    assert set(rows[0]) >= {"before", "after", "ratio", "low", "high", "before_count", "after_count"}


def test_comparing_profiles_equals_comparing_their_texts() -> None:
    for name in ("sloppy", "plain"):
        run("profile", f"{name}.jsonl", "--min-ratio", "0", "-o", f"{name}.json")
    one = json.loads(run("profile", "--compare", "sloppy.json", "plain.json", "--format", "json").stdout)
    other = json.loads(run("profile", "--compare", "sloppy.jsonl", "plain.jsonl", "--format", "json").stdout)
    assert {row["text"] for row in one} == {row["text"] for row in other}


def test_a_comparison_names_files_by_the_part_that_differs() -> None:
    stems = run("profile", "--compare", "sloppy.jsonl", "plain.jsonl").stdout
    assert "sloppy" in stems and ".jsonl" not in stems
    Path("sub").mkdir()
    write("sub/sloppy.ndjson", PLAIN, prompts=10)
    same = run("profile", "--compare", "sloppy.jsonl", "sub/sloppy.ndjson").stdout
    assert "sloppy.jsonl" in same and "sloppy.ndjson" in same


def test_equal_texts_show_no_change() -> None:
    result = run("profile", "--compare", "plain.jsonl", "plain.jsonl")
    assert (result.exit_code, result.stdout) == (0, "Nothing certainly fell.\nNothing certainly rose.\n")


REFUSED = {
    "standard input": (["-", "-o", "p.json"], "which standard input does not allow"),
    "a missing file": (["nowhere.txt", "-o", "p.json"], "nowhere.txt: does not exist"),
    "an unknown column": (["sloppy.jsonl", "--column", "x", "-o", "p.json"], "sloppy.jsonl:1: no column x"),
    "an empty text": (["empty.txt", "-o", "p.json"], "no words in the texts"),
    "no baseline": (["sloppy.jsonl", "--baseline", "list.json", "-o", "p.json"], "list.json: is not a baseline"),
    "an empty baseline": (["sloppy.jsonl", "--baseline", "empty.txt", "-o", "p.json"], "empty.txt: contains no words"),
    "a text against itself": (
        ["plain.jsonl", "--baseline", "plain.jsonl", "-o", "p.json"],
        "is in both TEXTS and --baseline",
    ),
    "two baselines": (
        ["plain.jsonl", "--baseline", "list.json", "--baseline", "sloppy.jsonl", "-o", "p.json"],
        "can't be combined",
    ),
    "a picture": (["sloppy.jsonl", "-o", "p.svg"], "p.svg: .svg is not what this option writes: pass a name that ends"),
    "a page of a baseline": (
        ["sloppy.jsonl", "--as-baseline", "-o", "p.html"],
        "p.html: .html is not what this option",
    ),
    "no folder": (["sloppy.jsonl", "-o", "mine.json/p.json"], "p.json: can't be written (mine.json is not a folder)"),
    "an empty side": (["--compare", "sloppy.jsonl", "empty.txt"], "empty.txt: no words in the texts"),
    "a text twice": (["plain.jsonl", "./plain.jsonl", "-o", "p.json"], "plain.jsonl: is named twice: leave one out"),
    "the texts as output": (["mine.json", "-o", "./mine.json"], "mine.json: is read, and would be overwritten"),
    "the human texts as output": (
        ["plain.jsonl", "--also-human", "mine.json", "-o", "mine.json"],
        "mine.json: is read, and would be overwritten: choose another file",
    ),
    "the baseline as output": (["plain.jsonl", "--baseline", "mine.json", "-o", "mine.json"], "would be overwritten"),
    "texts as a baseline over themselves": (["mine.json", "--as-baseline", "-o", "mine.json"], "would be overwritten"),
    "an output among the texts": (
        ["sub", "-o", "sub/p.json"],
        "sub/p.json: would be read as texts from the folder sub",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_profile_refuses(case: str) -> None:
    Path("empty.txt").write_text(" \n", encoding="utf-8")
    Path("list.json").write_text('["delve"]', encoding="utf-8")
    Path("mine.json").write_text(json.dumps([{"response": PLAIN}] * 9), encoding="utf-8")
    Path("sub").mkdir()
    Path("sub/a.txt").write_text(PLAIN, encoding="utf-8")
    before = {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()}
    arguments, sentence = REFUSED[case]
    assert_refused(run("profile", *arguments), sentence)
    assert {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()} == before


def test_a_read_only_place_is_refused_before_texts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    sentence = "p.json: can't be written (. is read-only): choose a folder of yours"
    assert_refused(run("profile", "sloppy.jsonl", "-o", "p.json"), sentence)


NO_LIST = {
    "no profile": (["list.json"], "list.json: is not a profile of this package"),
    "no file": (["nowhere.json"], "nowhere.json: can't be read"),
    "no kind": (["profile.json", "--kinds", "word,nouns"], "'nouns' is not a valid kind of entry"),
    "nothing left": (["profile.json", "--min-ratio", "1e12"], "no entry of"),
    "no frequency": (["profile.json", "--max-zipf", "nan"], "'--max-zipf' is 'nan', but should be"),
    "nothing in it": (
        ["nothing.json"],
        "words has no entries (--min-count 1000, --min-prompts 2, --min-ratio 2): make it of",
    ),
}


@pytest.mark.parametrize("case", NO_LIST)
def test_bans_from_refuses(case: str) -> None:
    Path("list.json").write_text('["delve"]', encoding="utf-8")
    run("profile", "sloppy.jsonl", "-o", "profile.json")
    run("profile", "sloppy.jsonl", "--min-count", "1000", "-o", "nothing.json")
    arguments, sentence = NO_LIST[case]
    assert_refused(run("bans-from", *arguments), sentence)


def test_texts_of_too_few_prompts_make_an_empty_profile_with_a_hint() -> None:
    write("one.jsonl", SLOP, prompts=1)
    made = run("profile", "one.jsonl", "-o", "profile.json")
    assert "40 texts, 1 prompt; listed: 0 words, 0 phrases, 0 content n-grams, 0 constructions" in made.stderr
    assert "no entry comes from 2 prompts: pass texts of more prompts, or --min-prompts 1" in made.stderr
    assert "nothing comes" not in run("profile", "one.jsonl", "--min-prompts", "1", "-o", "profile.json").stderr


def test_a_novel_can_be_one_file_or_one_for_each_chapter() -> None:
    chapters = [f"{SLOP.format('Oh')} Day {number}.\n" for number in range(8)]
    Path("chapters").mkdir()
    for number, chapter in enumerate(chapters):
        Path(f"chapters/{number}.{'md' if number % 2 else 'txt'}").write_text(chapter, encoding="utf-8")
    Path("novel.txt").write_text("\n".join(chapters), encoding="utf-8")
    for source, texts in (("chapters", 8), ("novel.txt", 1)):
        made = run("profile", source, "-o", "profile.json")
        profile = Profile.load("profile.json")
        assert (profile.texts, profile.prompts, profile.made_with["min_prompts"]) == (texts, texts, min(2, texts))
        assert {entry.texts for entry in profile.entries} == {texts}
        assert ("a folder with a file for each" in made.stderr) is (texts == 1)
        assert "fathomless" in run("bans-from", "profile.json").stdout
    assert "no entry of" in run("bans-from", "profile.json", "--min-prompts", "2").stderr


@pytest.mark.parametrize("command", [["lint"], ["convert", "-o", "out.txt"]])
def test_a_profile_used_as_a_list_is_recognized(command: list[str]) -> None:
    run("profile", "sloppy.jsonl", "-o", "profile.json")
    sentence = "profile.json:1: a profile, not a list: make a list of it with antislop bans-from"
    assert_refused(run(command[0], "profile.json", *command[1:]), sentence)


def test_too_little_memory_is_reported() -> None:
    from antislop.measure.profiles import counting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "MAX_CANDIDATES", 20)
        made = run("profile", "sloppy.jsonl", "-o", "profile.json")
    assert "--memory was too small for counts from 5: counted from " in made.stderr
    assert Profile.load("profile.json").made_with["min_count"] > 5
