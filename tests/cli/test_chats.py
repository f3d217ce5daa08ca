"""Chats as texts: the commands read the assistant's replies, and count the records without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import invoke


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    question, reply = "What is a tapestry?", "The dog slept by the door until noon, and nobody came."
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    chats = [{"messages": messages}, {"messages": messages[:1]}, {"messages": [*messages, messages[0]]}]
    write("chats.jsonl", chats)
    write("columns.jsonl", [{"conversations": {"from": ["human", "gpt"], "value": [question, reply]}}] * 2)
    write("questions.jsonl", chats[1:2])
    Path("list.txt").write_text("tapestry\n", encoding="utf-8")


def write(name: str, records: list[dict[str, object]]) -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


LEFT_OUT = "chats.jsonl: left out 1 record without a reply of the assistant"


@pytest.mark.parametrize(
    "command",
    [
        "measure chats.jsonl columns.jsonl --bans list.txt --resamples 0",
        "profile chats.jsonl -o profile.json --baseline columns.jsonl --memory 1 --min-prompts 1 --min-count 1",
        "eval --outputs plain=chats.jsonl --outputs banned=columns.jsonl --bans list.txt -o report",
    ],
)
def test_records_without_a_reply_of_the_assistant_are_left_out_and_counted_once(command: str) -> None:
    result = invoke(*command.split())
    assert result.exit_code == 0, result.output
    assert result.stderr.replace("\n", " ").count(LEFT_OUT) == 1
    assert "tapestry" not in result.stdout + "".join(path.read_text() for path in Path().glob("profile.json"))


def test_a_file_of_questions_has_no_texts() -> None:
    result = invoke("measure", "questions.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "questions.jsonl: left out 1 record" in result.stderr and "there are no texts in" in result.stderr
