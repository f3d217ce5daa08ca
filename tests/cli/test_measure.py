"""`antislop measure`: tables to standard output, notes to standard error, one sentence for unmeasurable input."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from antislop.measure.definitions import METRICS
from antislop.measure.metrics import Tally, measure
from tests.support.commands import assert_refused, invoke

TEXTS = [
    "The tapestry fell. “Nobody came,” he said.",
    "It was not a door, but a mouth.",
    "A third text, with more words.",
]
run = partial(invoke, "measure")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with two files of records."""
    monkeypatch.chdir(tmp_path)
    rows = [{"arm": arm, "response": text} for arm in ("plain", "banned") for text in TEXTS]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("b.jsonl").write_text(json.dumps({"response": TEXTS[0]}) + "\n")
    Path("list.txt").write_text("tapestry\n")
    Path("never.txt").write_text("xylophone\n")
    return tmp_path


def test_each_file_is_a_group_with_all_metrics() -> None:
    result = run("a.jsonl", "b.jsonl")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["a.jsonl", "b.jsonl", "human", "unit"]
    assert re.search(r"^texts +6 +1 *$", result.stdout, re.M)
    assert all(result.stdout.count(f"\n{metric.title} ") == 1 for metric in METRICS), "one table"
    assert "fewer than 500 words in all: MATTR-500\n" in result.stdout
    assert "fewer than 20 texts: intervals are rough for a.jsonl, b.jsonl" in result.stderr


def test_a_markdown_table_has_a_column_for_each_file_by_its_label() -> None:
    Path("x=y.jsonl").write_text(Path("b.jsonl").read_text())
    options = ("--format", "json", "--resamples", "50")
    groups = json.loads(run("x=y.jsonl", "of|pipes=a.jsonl", *options).stdout)["groups"]
    result = run("x=y.jsonl", "of|pipes=a.jsonl", "--markdown", "--resamples", "50")
    head, rule, *rows = ([*map(str.strip, re.split(r"(?<!\\)\|", line)[1:-1])] for line in result.stdout.splitlines())
    assert head == ["", "x=y.jsonl", r"of\|pipes", "human", "unit"] and rule == ["---", *["--:"] * 4]
    assert [group["group"] for group in groups] == ["x=y.jsonl", "of|pipes"], "a file is no label"
    by_title = {metric.title: metric.name for metric in METRICS}
    for title, *cells in rows[2:-1]:
        for cell, group in zip(cells, groups, strict=False):
            found = group["metrics"][by_title[title]]
            numbers = [found[key] for key in ("value", "low", "high") if found[key] is not None]
            expected = [f"{number:.3f}" if abs(number) < 10 else f"{number:.1f}" for number in numbers]
            assert re.findall(r"[-\d.]+", cell) == expected
    assert [row[0] for row in rows] == ["texts", "words", *by_title, "distance to human"]
    for arguments, sentence in (
        (("x=a.jsonl", "x=b.jsonl"), "x=b.jsonl: x names another file already: use a different name for each"),
        (("x=a.jsonl", "--by", "arm"), "--by names the groups by a column: leave one of both names out"),
        (("a.jsonl", "--markdown", "--format", "csv"), "--markdown and --format csv exclude each other"),
        (("x=a.jsonl", "./a.jsonl"), "is named twice: leave one out"),
    ):
        assert_refused(run(*arguments), sentence)


def test_json_contains_the_results_of_measure_by_group() -> None:
    result = run("a.jsonl", "--by", "arm", "--format", "json", "--resamples", "50", "--seed", "3")
    groups = {group["group"]: group for group in json.loads(result.stdout)["groups"]}
    assert list(groups) == ["plain", "banned"]
    tally = Tally()
    for text in TEXTS:
        tally.add(text)
    for name, estimate in measure(tally, resamples=50, seed=3).items():
        found = groups["plain"]["metrics"][name]
        assert [found[key] for key in ("value", "low", "high", "why")] == list(estimate)
    assert groups["plain"]["texts"] == 3 and groups["plain"]["distance"]["value"] > 0


def test_texts_of_one_prompt_are_resampled_together_and_the_notes_say_so() -> None:
    rows = [{"question": f"q{i % 2}", "prompt": f"p{i % 3}", "response": text} for i, text in enumerate(TEXTS * 8)]
    Path("c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for column, options in {"prompt": [], "question": ["--prompt-column", "question"]}.items():
        result = run("c.jsonl", "--format", "json", "--resamples", "50", *options)
        group = json.loads(result.stdout)["groups"][0]
        tally = Tally()
        for row in rows:
            tally.add(row["response"], group=row[column])
        drawn = len({row[column] for row in rows})
        for name, estimate in measure(tally, resamples=50).items():
            assert [group["metrics"][name][key] for key in estimate._fields] == list(estimate)
        assert (group["texts"], group["drawn"]) == (24, drawn)
        note = "intervals are over prompts, with texts to the same prompt resampled together: "
        assert f"{note}c.jsonl ({drawn} for 24 texts)\n" in result.stderr
        assert "fewer than 20 prompts: intervals are rough for c.jsonl\n" in result.stderr


def test_csv_has_a_line_for_each_metric_and_the_distance() -> None:
    result = run("a.jsonl", "--format", "csv", "--resamples", "50")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["metric"] for row in rows] == [*(metric.name for metric in METRICS), "distance"]
    assert float(rows[0]["low"]) <= float(rows[0]["value"]) <= float(rows[0]["high"])
    assert rows[5]["value"] == "" and rows[5]["why"] == "fewer than 500 words in all"


def test_hits_of_lists_are_counted_and_one_that_never_occurs_is_named() -> None:
    result = run("b.jsonl", "--bans", "list.txt", "--bans", "never.txt", "--format", "json")
    metrics = json.loads(result.stdout)["groups"][0]["metrics"]
    assert metrics["bans of list.txt"]["value"] == 1000 / 7
    assert metrics["bans of never.txt"]["value"] == 0
    assert "bans of never.txt: none of its entries occurs in these texts" in result.stderr
    assert "list.txt: nothing" not in result.stderr


def test_loops_repeats_and_dashes_are_counted_if_asked_for() -> None:
    Path("loop.txt").write_text("He ran – to the door. " * 3, encoding="utf-8")
    result = run("loop.txt", "--loops", "--repeats", "--no-dashes", "--format", "json")
    metrics = json.loads(result.stdout)["groups"][0]["metrics"]
    assert [metrics[name]["value"] for name in ("loops", "repeats", "dashes")] == [1000 / 15, 1000 / 15, 3000 / 15]


def test_dashes_that_begin_dialogue_are_not_counted_in_texts_of_their_language() -> None:
    Path("french.txt").write_text("— Il est dans la maison — et elle est avec lui.\n" * 3, encoding="utf-8")
    for options, counted in (((), 0), (("--language", "de"), 6)):
        result = run("french.txt", "--no-dashes", "--format", "json", *options)
        metrics = json.loads(result.stdout)["groups"][0]["metrics"]
        assert metrics["dashes"]["value"] == 1000 * counted / 30
        assert metrics["dialogue"]["value"] == (not options)


def test_texts_written_under_bans_are_measured_by_a_list_that_is_named() -> None:
    note = "count the bundled scale instead: --bans LIST counts other lists, too"
    result = run("a.jsonl")
    assert "a.jsonl: texts of the arm banned were written under bans; slop words, slop trigrams and " in result.stderr
    assert f"{note}, and --by arm measures the arms apart\n" in result.stderr
    assert result.stdout.endswith("slop is counted by the bundled scale: 567 words, 182 trigrams\n")
    Path("a.jsonl.run.json").write_text(json.dumps({"bans": "818 bans, 632e9950aaef465d"}))
    result = run("a.jsonl", "--by", "arm", "--format", "json")
    assert "under 818 bans, 632e9950aaef465d; " in result.stderr and f"{note}\n" in result.stderr
    assert json.loads(result.stdout)["scale"]["source"] == "the bundled scale"
    assert "written under" not in run("b.jsonl").stderr


def test_thoughts_are_left_out_counted_and_said() -> None:
    rows = [
        {"prompt": "Why?<think>", "response": f"Hm.</think>{TEXTS[0]}"},
        {"prompt": "Why?<think>", "response": "Hm. I"},
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("t.txt").write_text(f"<think>Hm.</think>{TEXTS[0]}", encoding="utf-8")
    result = run("t.jsonl", "t.txt", "--format", "json")
    assert "t.jsonl: left out the thoughts of 1 record\n" in result.stderr
    assert "t.jsonl: left out 1 record of thoughts alone\n" in result.stderr
    assert [group["words"] for group in json.loads(result.stdout)["groups"]] == [7, 7]


def test_lists_of_the_user_replace_the_bundled_ones() -> None:
    Path("w.json").write_text('["nobody"]')
    result = run("b.jsonl", "--words", "w.json", "--format", "json")
    metrics = json.loads(result.stdout)["groups"][0]["metrics"]
    assert metrics["slop_words"]["value"] == 1000 / 7
    assert metrics["slop_trigrams"]["why"] == "the scale has no slop trigrams"
    assert metrics["slop_words"]["distance"]["why"] == "the human value was measured with other lists"


def test_words_of_the_user_that_never_occur_are_named() -> None:
    Path("w.json").write_text('["xylophone"]')
    assert "w.json: none of its entries occurs in these texts" in run("b.jsonl", "--words", "w.json").stderr


def test_intervals_need_no_package_beyond_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "matplotlib", "wordfreq", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run("a.jsonl", "--format", "json")
    assert result.exit_code == 0, result.stderr
    assert any(metric["low"] is not None for metric in json.loads(result.stdout)["groups"][0]["metrics"].values())


def test_unmeasurable_input_is_refused_in_one_sentence() -> None:
    Path("empty.jsonl").write_text("")
    Path("blank.txt").write_text(" \n")
    Path("w.json").write_text("{}")
    assert_refused(run("blank.txt"), "there are no texts in blank.txt")
    assert_refused(run("empty.jsonl"), "empty.jsonl")
    assert_refused(run("none.jsonl"), "none.jsonl")
    assert_refused(run("a.jsonl", "--column", "story"), "a.jsonl:1", "no column story", "arm, response")
    assert_refused(run("a.jsonl", "--by", "model"), "a.jsonl:1", "no column 'model'; there are arm, response")
    assert_refused(run("a.jsonl", "--words", "w.json"), "w.json: contains no list of texts")
    assert_refused(run("a.jsonl", "--bans", "nowhere.txt"), "nowhere.txt")
    assert_refused(run("a.jsonl", "b.jsonl", "./a.jsonl"), "a.jsonl: is named twice: leave one out")
    assert_refused(run("a.jsonl", "--resamples", "1"), "--resamples 1 is too few for the level 0.95: pass 20 or")
    assert_refused(run("a.jsonl", "--resamples", "99", "--level", "0.99"), "pass 100 or more, or 0")


def test_texts_without_words_are_undefined_and_not_0() -> None:
    Path("digits.txt").write_text("1 2 3")
    result = run("digits.txt", "--format", "json")
    assert {each["why"] for each in json.loads(result.stdout)["groups"][0]["metrics"].values()} == {
        "no words in the texts"
    }


def test_texts_in_files_of_any_kind_show_their_language(tmp_path: Path) -> None:
    german = "Der Hund lief zur Tür, und die Katze saß auf der Matte. Es war nicht kalt.\n" * 20
    for name in ("one.txt", "one.jsonl"):
        path = tmp_path / name
        path.write_text(german if name.endswith("txt") else json.dumps({"text": german}) + "\n", encoding="utf-8")
        result = invoke("measure", str(path), "--resamples", "0")
        assert result.exit_code == 0 and "these are texts in German" in result.stderr, result.stderr
        assert "the constructions are English" in result.stdout
