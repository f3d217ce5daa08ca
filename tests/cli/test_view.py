"""`antislop generate --trace` saves what happened, and `antislop view` shows it without a model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from antislop.core.trace import Finished, Rewound, Trace
from tests.support.commands import invoke

SEED = ("The old house", "--seed", "5")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a text with rewinds."""
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    result = invoke("generate", *SEED, "--max-new-tokens", "90", "--trace", str(path))
    assert result.exit_code == 0
    assert f"saved the trace to {path}" in result.stderr
    (path.parent / "text.txt").write_text(result.stdout, encoding="utf-8")
    return path


def test_a_trace_has_the_text_that_was_printed_and_the_likeliest_alternatives(path: Path) -> None:
    trace = Trace.load(path)
    pieces = trace.pieces()
    printed = (path.parent / "text.txt").read_text(encoding="utf-8")
    assert "".join(piece.text for piece in pieces[1:] if piece.kind != "withdrawn") + "\n" == printed
    assert pieces[0].text == "The old house"
    assert all(kept.choice and kept.choice.alternatives for kept in trace.rows[0].history.kept)
    assert trace.about["seed"] == 5
    assert trace.about["model"]["name"] == trace.about["tokenizer"]["name"] == "bundled"
    assert trace.about["command"].startswith("antislop")


def test_view_prints_the_text_with_withdrawn_parts_and_a_table_of_bans(path: Path) -> None:
    trace, result = Trace.load(path), invoke("view", str(path))
    assert result.exit_code == 0
    text, table = result.stdout.split("\n\nban ")
    assert text == trace.to_text()
    rewinds = [event for event in trace.rows[0].events if isinstance(event, Rewound)]
    assert rewinds
    for event in rewinds:
        assert event.violation.ban.text in table
    assert result.stderr.startswith(f"90 tokens, {len(rewinds)} rewind")
    assert result.stderr.endswith(", list of 818 bans, bundled, seed 5\n")


def test_the_table_of_bans_fits_a_narrow_terminal(path: Path) -> None:
    _, table = invoke("view", str(path), columns=40).stdout.split("\n\nban ")
    assert max(map(len, table.splitlines()[1:])) <= 40


def test_view_writes_a_page_instead(path: Path, tmp_path: Path) -> None:
    page = Trace.load(path).to_html()
    assert invoke("view", str(path), "--html", "-").stdout == page
    result = invoke("view", str(path), "--html", str(tmp_path / "page.html"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


def test_traces_come_compressed_or_from_standard_input(path: Path, tmp_path: Path) -> None:
    expected = invoke("view", str(path)).stdout
    Trace.load(path).save(tmp_path / "trace.jsonl.gz")
    assert (tmp_path / "trace.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert invoke("view", str(tmp_path / "trace.jsonl.gz")).stdout == expected
    assert invoke("view", "-", stdin=path.read_bytes()).stdout == expected


def test_view_needs_neither_torch_nor_transformers(path: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv = ['antislop', 'view', {str(path)!r}, *sys.argv[1:]]\n"
        "from antislop.cli.main import app\n"
        "try: app()\n"
        "finally: assert not {'torch', 'transformers', 'tokenizers'} & sys.modules.keys()"
    )
    for options in ([], ["--html", str(tmp_path / "page.html")]):
        ended = subprocess.run([sys.executable, "-c", code, *options], check=False, capture_output=True)
        assert ended.returncode == 0, ended.stderr


def test_files_that_are_no_traces_are_refused_with_one_sentence(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    header = json.loads(lines[0])
    contents = {
        "": "not a trace: pass a file that --trace or Trace.save wrote",
        "once upon a time": "not a trace: pass a file that --trace or Trace.save wrote",
        "\n".join(lines[:5]): "the file was cut",
        "\n".join(
            [json.dumps({**header, "version": 0}), *lines[1:]]
        ): "this trace is of version 0, and version 1 is read",
        "\n".join([json.dumps({**header, "settings": []}), *lines[1:]]): "settings is missing or not of its type",
        **{
            "\n".join([json.dumps({k: v for k, v in header.items() if k != fact}), *lines[1:]]): f"{fact} is missing"
            for fact in ("model", "controller", "settings", "seed", "versions")
        },
        "\n".join([*lines[:3], "[" * 100_000]): ":4: this line is not JSON",
    }
    other = tmp_path / "other"
    for content, sentence in contents.items():
        other.write_text(content, encoding="utf-8")
        result = invoke("view", str(other))
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert result.stderr.startswith(f"antislop: {other}:") and sentence in result.stderr
    for name, sentence in ((str(tmp_path), "can't be read"), ("none.jsonl", "No such file")):
        assert sentence in invoke("view", name).stderr
    assert ":1: not UTF-8" in invoke("view", "-", stdin=b"\xff\xfe").stderr


def test_a_place_that_can_not_be_written_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    for place in ("-", str(tmp_path)):
        result = invoke("generate", *SEED, "--trace", place)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"antislop: {place}: " in result.stderr


@pytest.mark.slow
def test_an_interrupted_text_is_saved_and_called_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "antislop", "generate", *SEED, "--max-new-tokens", "500", "--trace", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"saved the trace of the unfinished text to " in errors
    trace = Trace.load(path)
    assert not trace.rows[0].is_finished and 1 < len(trace.rows[0].tokens) < 500
    result = invoke("view", str(path))
    assert result.exit_code == 0
    assert f"the text is unfinished: the trace ends after {len(trace.rows[0].tokens)} tokens" in result.stderr


def test_the_trace_of_a_comparison_is_that_of_the_run_with_bans(path: Path, tmp_path: Path) -> None:
    compared = tmp_path / "trace.jsonl"
    invoke("generate", *SEED, "--max-new-tokens", "90", "--compare", "--trace", str(compared))
    assert Trace.load(compared).sequences == Trace.load(path).sequences


def test_texts_of_a_batch_are_numbered(path: Path, tmp_path: Path) -> None:
    trace = Trace.load(path)
    unfinished = replace(trace.rows[0], events=[e for e in trace.rows[0].events if not isinstance(e, Finished)])
    replace(trace, rows=(trace.rows[0], unfinished)).save(tmp_path / "trace.jsonl")
    result = invoke("view", str(tmp_path / "trace.jsonl"))
    assert result.stdout.startswith("text 0 ─") and "\ntext 1 ─" in result.stdout
    assert result.stderr.startswith("2 texts, 180 tokens, ")
    assert "text 1 is unfinished" in result.stderr and "text 0 is unfinished" not in result.stderr
