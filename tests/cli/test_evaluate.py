"""The command that evaluates: from prompts or files to a report, resumable, one sentence for unusable input."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typer.testing import Result

import antislop
from antislop import BanList
from antislop.evaluation import html_report
from antislop.files.journal import Journal, read_records
from tests.support.commands import assert_refused, at_record, interrupt, invoke

PROMPTS = ["The old house", "One day", "She opened the door", "He said that"]
BANS = ("the", "was")
SHORT = ("--max-new-tokens", "12", "--batch-size", "4")
FILES = {"report.html", "summary.csv", "summary.json", "records.jsonl", "records.jsonl.run.json"}


@pytest.fixture(scope="module")
def bundled() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return antislop.tiny_model()


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundled: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> Path:
    """An empty current folder with prompts and lists, and a model that is loaded once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("antislop.files.models.ModelSpec.load", lambda _: bundled)
    Path("p.txt").write_text("\n".join(PROMPTS) + "\n")
    Path("list.txt").write_text("\n".join(BANS) + "\n")
    Path("other.txt").write_text("a\nthe\nher\n")
    return tmp_path


@pytest.fixture(autouse=True)
def drawings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw only in tests that look at figures, since drawing takes most of the time."""
    if request.node.name != "test_all_arms_are_written_measured_and_drawn":
        monkeypatch.setattr(html_report, "draw_figures", lambda _: {})


def run(*args: str, out: str = "report", lists: Sequence[str] = ("--bans", "list.txt")) -> Result:
    result = invoke("eval", "-o", out, *lists, *args, columns=200)
    assert result.stdout == ""
    return result


def make(*args: str, out: str = "report") -> Result:
    result = run("--prompts", "p.txt", *SHORT, *args, out=out)
    assert result.exit_code == 0, result.stderr
    return result


def read(out: str = "report") -> Any:
    return json.loads(Path(out, "summary.json").read_text())


def find(summary: Any, arm: str, metric: str, against: str | None = None) -> Any:
    (row,) = [r for r in summary["rows"] if (r["arm"], r["metric"], r["against"]) == (arm, metric, against)]
    return row


def write_outputs(name: str, *texts: str, **more: Any) -> str:
    rows = [{"prompt": PROMPTS[i % 4], "output": text, **more} for i, text in enumerate(texts)]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


# -- with a model -----------------------------------------------------------------------------------------------------


def test_all_arms_are_written_measured_and_drawn() -> None:
    result = make("--arms", "prompt-only,plain,token,banned", "--held-out", "other.txt", "--n", "2")
    assert "the report is report/report.html" in result.stderr
    assert re.search(r"hits of the list fell .* per 1,000 words.*\. .* in each arm", result.stderr), result.stderr
    assert {path.name for path in Path("report").iterdir()} >= {*FILES, "suppression.svg", "suppression.png"}
    summary = read()
    assert list(summary["arms"]) == ["plain", "banned", "token", "prompt-only"]
    assert all(size["texts"] == 8 and size["prompts"] == 4 for size in summary["arms"].values())
    assert find(summary, "plain", "made_from")["value"] > 0
    for arm in ("banned", "token"):
        assert find(summary, arm, "made_from_suppressed", "plain")["value"] == 100
    for arm in ("banned", "token", "prompt-only"):
        for name in ("excess_nll", "passes_ratio"):
            assert find(summary, arm, name, "plain")["low"] is not None
    assert find(summary, "banned", "violations")["value"] > 0
    assert summary["lists"]["held_out"]["bans"] == 3
    assert summary["seed"] == 0
    assert summary["versions"]["torch"] and summary["machine"] and summary["date"]


def test_figures_are_computed_from_the_records() -> None:
    make("--held-out", "other.txt")
    summary, records = read(), list(read_records("report/records.jsonl"))
    for arm in ("plain", "banned"):
        own = [record for record in records if record["arm"] == arm]
        tokens = sum(record["tokens"] for record in own)
        assert find(summary, arm, "nll")["value"] == pytest.approx(sum(r["nll"] for r in own) / tokens)
        passes = sum(record["forward_passes"] for record in own)
        assert find(summary, arm, "passes")["value"] == pytest.approx(passes / tokens)
        assert not (arm == "banned" and any(BanList(BANS).find(record["response"]) for record in own))


def test_the_same_command_resumes_and_more_arms_can_be_added_later() -> None:
    make()
    before = Path("report/records.jsonl").read_bytes()
    assert "resuming: 8 of 8 texts exist already" in make().stderr
    assert Path("report/records.jsonl").read_bytes() == before
    result = make("--arms", "plain,banned,token")
    assert "resuming: 8 of 12 texts exist already" in result.stderr
    assert Path("report/records.jsonl").read_bytes().startswith(before)
    assert list(make("--limit", "2").stderr.splitlines())
    assert read()["arms"]["plain"]["texts"] == 2


def test_records_of_other_settings_are_not_mixed_in() -> None:
    make()
    assert_refused(run("--prompts", "p.txt", *SHORT, "--seed", "3"), "seed=0", "seed=3", "--force")
    assert_refused(run("--prompts", "p.txt", *SHORT, "--ban", "house"), "3 bans", "--force")


def test_ctrl_c_keeps_records_and_the_command_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    make(out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", at_record(1, interrupt))
        result = run("--prompts", "p.txt", *SHORT)
    assert result.exit_code == 130
    assert re.search(
        r"\nstopped: \d records of 8 in report/.*; run the same command again to make the rest", result.stderr
    )
    assert not Path("report/report.html").exists()
    assert 1 <= len(texts("report")) < 8
    make()
    assert texts("report") == texts("whole")


def texts(out: str) -> dict[Any, str]:
    return {(r["key"], r["sample"], r["arm"]): r["response"] for r in read_records(Path(out, "records.jsonl"))}


def test_only_the_folder_of_the_report_is_required() -> None:
    result = run("--limit", "2", "--max-new-tokens", "8", lists=())
    assert result.exit_code == 0, result.stderr
    summary = read()
    assert summary["lists"]["made_from"]["source"] == "the bundled list"
    assert summary["lists"]["held_out"]["bans"] > 100
    assert summary["made_with"]["source"] == "24 openings"


def test_a_list_of_ones_own_has_no_held_out_list_and_the_report_says_so() -> None:
    make()
    assert "There is no held-out list" in Path("report/report.html").read_text()
    assert not [row for row in read()["rows"] if "held_out" in row["metric"]]


def test_unusable_prompts_are_left_out_and_reported() -> None:
    Path("p.jsonl").write_text('{"prompt": "One day"}\n{"prompt": ""}\n{"prompt": "The old house"}\n')
    result = run("--prompts", "p.jsonl", *SHORT)
    assert result.exit_code == 0, result.stderr
    assert "p.jsonl:2: the prompt is empty" in result.stderr
    assert "2 texts could not be generated" in Path("report/report.html").read_text()


def test_the_report_names_no_folders_of_this_machine(folder: Path) -> None:
    run("--prompts", str(folder / "p.txt"), *SHORT, "--limit", "2", lists=("--bans", str(folder / "list.txt")))
    summary = {name: value for name, value in read().items() if name != "command"}
    assert str(folder) not in json.dumps(summary)
    assert summary["made_with"]["source"] == "p.txt"


# -- with files -------------------------------------------------------------------------------------------------------


def test_existing_outputs_are_measured() -> None:
    write_outputs("a.jsonl", "The cat was here.", "The dog was there.", "A bird.", "The end.")
    write_outputs("b.jsonl", "A cat is here.", "A dog is there.", "The bird.", "An end.")
    result = run("--outputs", "plain=a.jsonl", "--outputs", "banned=b.jsonl")
    assert result.exit_code == 0, result.stderr
    summary = read()
    assert summary["paired"]
    assert find(summary, "plain", "made_from")["value"] == pytest.approx(1000 * 5 / 12)
    assert find(summary, "banned", "made_from_suppressed", "plain")["value"] == pytest.approx(
        100 * (1 - (1 / 12) / (5 / 12)), abs=3
    )
    for name in ("nll", "passes"):
        assert find(summary, "banned", name)["value"] is None
    assert not Path("report/records.jsonl").exists()


def test_outputs_are_scored_by_a_given_model() -> None:
    write_outputs("a.jsonl", "The cat was here.", "The dog was there.")
    write_outputs("b.jsonl", "Xq zzgh vv.", "Qqq jjx pl.")
    run("--outputs", "plain=a.jsonl", "--outputs", "banned=b.jsonl", "--model", "given")
    assert find(read(), "banned", "excess_nll", "plain")["value"] > 1
    assert "tokenized again" in Path("report/report.html").read_text()


def test_records_of_a_data_set_are_grouped_by_their_arm() -> None:
    make("--n", "2")
    result = run("--outputs", "plain=report/records.jsonl", "--outputs", "banned=report/records.jsonl", out="again")
    assert result.exit_code == 0, result.stderr
    before, after = read(), read("again")
    for arm, name, against in (
        ("plain", "made_from", None),
        ("banned", "violations", None),
        ("banned", "made_from_suppressed", "plain"),
        ("banned", "slop_words", "plain"),
    ):
        assert find(before, arm, name, against) == find(after, arm, name, against)


def test_outputs_for_different_prompts_are_compared_without_pairing() -> None:
    Path("a.txt").write_text("The cat was here. The end.")
    Path("b.txt").write_text("A cat is here. An end.")
    result = run("--outputs", "plain=a.txt", "--outputs", "books=b.txt")
    assert result.exit_code == 0, result.stderr
    assert not read()["paired"]
    assert find(read(), "books", "made_from_suppressed", "plain")["low"] is None


# -- what is refused --------------------------------------------------------------------------------------------------


def test_unusable_input_is_refused_in_a_sentence() -> None:
    write_outputs("a.jsonl", "The cat.")
    Path("empty.jsonl").write_text("")
    Path("odd.jsonl").write_text('{"speech": "hm"}\n')
    Path("file").write_text("")
    assert_refused(run("--arms", "plain,none"), "there is no arm 'none'", "prompt-only")
    assert_refused(run("--outputs", "a.jsonl"), "plain=a.jsonl")
    assert_refused(run("--outputs", "plain=a.jsonl", "--outputs", "plain=a.jsonl"), "names the arm plain twice")
    assert_refused(run("--outputs", "plain=empty.jsonl"), "empty.jsonl: contains no records")
    assert_refused(run("--outputs", "plain=odd.jsonl"), "odd.jsonl:1: no column", "speech")
    assert_refused(run("--outputs", "plain=missing.jsonl"), "missing.jsonl")
    assert_refused(run("--outputs", "plain="), "--outputs plain=: an arm and a file were expected: write plain=FILE")
    assert_refused(run("--outputs", "plain"), "--outputs plain: an arm and a file were expected: write plain=FILE")
    assert_refused(run("--outputs", "=a.jsonl"), "an arm and a file were expected: write plain=a.jsonl")
    assert_refused(run("--prompts", "p.txt", "--seed", "-1"), "--seed is -1: the report resamples by it, so 0 or more")
    assert_refused(
        run("--prompts", "p.txt", "--repetition-penalty", "nan"), "'--repetition-penalty' is 'nan', but should"
    )
    assert not Path("report").exists()
    assert_refused(run("--prompts", "empty.jsonl"), "empty.jsonl")
    assert_refused(run("--prompts", "p.txt", out="file"), "the report needs a folder")
    assert_refused(run("--prompts", "p.txt", out="file/report"), "file: is a file, and the report needs a folder")
    assert_refused(run("--prompts", "p.txt", out="-"), "-: the report is a folder of files: pass -o FOLDER")
    assert_refused(run("--prompts", "p.txt", "--held-out", "missing.txt"), "missing.txt")
