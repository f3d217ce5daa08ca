"""Texts are read from all formats of records, and one sentence reports the place of an error."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from antislop.errors import InputError
from antislop.files.disk import PIECE
from antislop.files.prompts import read_prompts
from antislop.files.texts import LeftOut, LongText, Text, cut, open_texts, read_texts
from tests.support.refusals import refused

ROWS = [{"prompt": "p", "response": "First."}, {"prompt": "q", "response": "Second."}]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format that the name asks for."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        data = (json.dumps(rows) if path.suffix == ".json" else lines).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, **options: Any) -> list[Text]:
    return list(read_texts([path], **options))


def read_row(folder: Path, row: dict[str, Any], **options: Any) -> list[str]:
    return [text.text for text in read(write(folder / "one.jsonl", [row]), **options)]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.json", "t.csv", "t.parquet"])
def test_all_formats_of_records_hold_the_same_texts(tmp_path: Path, name: str) -> None:
    texts = read(write(tmp_path / name, ROWS))
    assert [(text.text, text.prompt) for text in texts] == [("First.", "p"), ("Second.", "q")]
    assert all(text.fields["response"] == text.text and name in text.place for text in texts)


def test_of_a_chat_of_sillytavern_the_messages_of_the_character_are_read(tmp_path: Path) -> None:
    lines = [
        {"user_name": "You", "character_name": "Sera", "create_date": "today", "chat_metadata": {}},
        {"name": "Sera", "is_user": False, "is_system": False, "mes": "Welcome."},
        {"name": "You", "is_user": True, "mes": "Who are you?"},
        {"name": "Sera", "is_user": False, "is_system": True, "mes": "(hidden)"},
        {"name": "Sera", "is_user": False, "mes": "Sera."},
    ]
    texts = read(write(tmp_path / "chat.jsonl", lines))
    assert [(text.text, text.place[-2:]) for text in texts] == [("Welcome.", ":2"), ("Sera.", ":5")]
    assert read(write(tmp_path / "chat.jsonl", lines), column="mes") == texts
    prompts = read_prompts(tmp_path / "chat.jsonl", column="mes")
    assert [(prompt.text, prompt.error) for prompt in prompts][:2] == [("Welcome.", None), ("Who are you?", None)]
    dated = [{"create_date": "today", "response": "A text."}, {"create_date": "today", "response": "Another."}]
    assert len(read(write(tmp_path / "dated.jsonl", dated))) == 2


def test_a_text_file_is_one_text_and_a_folder_of_them_as_many(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("\ufeffBook b.\n\nMore.", encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("Book ä.".encode()))
    assert [text.text for text in read(tmp_path)] == ["Book ä.", "Book b.\n\nMore."]
    assert read(tmp_path / "b.txt")[0] == Text("Book b.\n\nMore.", None, str(tmp_path / "b.txt"), {})


def test_a_text_file_can_be_read_in_pieces_again_and_again(tmp_path: Path) -> None:
    content = "\ufeffIt was “late”. 🌊\n" + "ä" * 100_000 + "\nEnd."
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "c.txt").write_text(" \n" * 50_000, encoding="utf-8")  # left out, as texts of white space are
    texts = list(open_texts([tmp_path]))
    assert [Path(text.place).name for text in texts] == ["a.txt", "b.txt.gz"]
    for text in (*texts, *texts):
        assert isinstance(text, LongText) and max(map(len, cut(text))) <= PIECE
        assert "".join(cut(text)) == text.text == content[1:]
    assert list(read_texts([tmp_path])) == [Text(content[1:], None, text.place, {}) for text in texts]


def test_what_is_not_utf_8_far_into_a_text_file_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 30_000 + b"\xff")
    (text,) = open_texts([tmp_path / "a.txt"])
    refused(r"a\.txt:30001: not UTF-8 \(invalid start byte\): save the file as UTF-8", lambda: list(cut(text)))
    refused(r"^a list of paths was expected, not 'none\.txt': write \[path\]$", lambda: list(read_texts("none.txt")))
    with pytest.raises(InputError, match=r"none\.txt: can't be read \(No such file or directory\): check the path"):
        list(open_texts([tmp_path / "none.txt"]))


def test_sources_come_one_after_the_other_and_the_limit_is_each_ones(tmp_path: Path) -> None:
    files = [write(tmp_path / name, ROWS) for name in ("a.jsonl", "b.jsonl")]
    assert [text.text for text in read_texts(files, limit=1)] == ["First.", "First."]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"output": "o", "response": "r"}, "r"),
        ({"text": "t", "completion": "c", "output": "o"}, "o"),
        ({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}, "a"),
        ({"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]}, "g"),
    ],
)
def test_the_text_is_the_reply_under_whichever_name(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    assert read_row(tmp_path, row) == [text]


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"prompt": "p", "key": "k", "response": "r"}, "p"),
        ({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}, "u"),
        ({"prompt": [{"role": "system", "content": "s"}, {"from": "human", "value": "h"}], "response": "r"}, "s\nh"),
        ({"conversations": [{"role": "user", "content": [{"type": "image"}]}, "?"], "response": "r"}, ""),
        ({"prompt": "[{'role': ", "response": "r"}, "[{'role': "),
        ({"response": "r"}, ""),
    ],
)
def test_what_a_prompt_asked_is_its_text_or_that_of_a_chat_without_the_replies(
    tmp_path: Path, row: dict[str, Any], asked: str
) -> None:
    (text,) = read(write(tmp_path / "one.jsonl", [row]))
    assert text.asked == asked


TRANSCRIPTS = {
    "Anthropic": "A.\n\nHuman: Why?\n\nAssistant: B.",
    "Anthropic, from the beginning": "\n\nHuman: Hi\n\nAssistant: A.\n\nHuman: Why?\n\nAssistant: B.\n\nHuman:",
    "ChatML": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nA.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
    "<|im_start|>assistant\nB.",
    "ChatML, cut": "A.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nB.<|im_end|>",
    "Llama 2": "<s>[INST] Hi [/INST] A. </s><s>[INST] Why? [/INST] B. </s>",
    "Llama 3": "A.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nB.",
    "Gemma": "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nA.<end_of_turn>\n<start_of_turn>user\nWhy?"
    "<end_of_turn>\n<start_of_turn>model\nB.",
    "Zephyr": "<|user|>\nHi</s>\n<|assistant|>\nA.</s>\n<|user|>\nWhy?</s>\n<|assistant|>\nB.",
    "Alpaca": "### Instruction:\nHi\n\n### Response:\nA.\n\n### Instruction:\nWhy?\n\n### Response:\nB.",
    "Vicuna": "USER: Hi\nASSISTANT: A.\nUSER: Why?\nASSISTANT: B.",
}


@pytest.mark.parametrize("text", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_of_a_transcript_the_replies_alone_are_read_if_wanted_and_it_is_counted_otherwise(
    tmp_path: Path, text: str
) -> None:
    counts = LeftOut()
    assert read_row(tmp_path, {"response": text}, left_out=counts) == [text]
    assert [what.format("1 record").split(":")[0] for _, what in counts] == [
        "1 record with turns of the user, which are read, too"
    ]
    assert read_row(tmp_path, {"response": text}, chats=True, left_out=(counts := LeftOut())) == ["A.\n\nB."]
    assert not counts


@pytest.mark.parametrize(
    "text", ["A human: one of us.", "# Instruction: none", "[INSTALL]", "He said:\n\nAssistant: yes"]
)
def test_a_text_that_mentions_roles_is_no_transcript(tmp_path: Path, text: str) -> None:
    assert read_row(tmp_path, {"response": text}, chats=True) == [text]


@pytest.mark.parametrize("value", [["a", "b"], [["a"], ["b"]], [["a", "b"]]])
def test_each_text_of_a_list_is_read(tmp_path: Path, value: object) -> None:
    assert read_row(tmp_path, {"resps": value}, column="resps") == ["a", "b"]


def test_a_named_column_comes_before_all_others(tmp_path: Path) -> None:
    assert read_row(tmp_path, {"response": "r", "human": "h"}, column="human") == ["h"]


@pytest.mark.parametrize(
    "row", [{"response": " \n"}, {"response": None}, {"response": "r", "status": "error"}, {"response": "<think>Hm"}]
)
def test_unfinished_texts_are_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    assert read_row(tmp_path, row) == []


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"prompt": "p", "key": 3}, "3"),
        ({"prompt_index": 0}, "0"),
        ({"prompt": None, "prompt_id": "i"}, "i"),
        ({}, None),
    ],
)
def test_prompts_are_identified_by_the_first_column_that_distinguishes_them(
    tmp_path: Path, fields: dict[str, Any], prompt: str | None
) -> None:
    (text,) = read(write(tmp_path / "t.jsonl", [{"text": "t", **fields}]))
    assert text.prompt == prompt


@pytest.mark.parametrize(
    ("name", "data", "options", "sentence"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', {}, ":2"),
        ("a.jsonl", b'{"text": "a"}\n{"other": "b"}\n', {}, ":2: no column response or output"),
        ("a.jsonl", b'{"text": "a"}\n', {"column": "story"}, ":1: no column story; there are text: name"),
        ("a.jsonl", b'{"text": "a"}\n', {"prompt_column": "id"}, ":1: no column 'id'; there are text"),
        ("a.jsonl", b'{"text": 7}\n', {}, ":1: text contains int, not a text: correct the record"),
        ("a.txt", "one\ntwo é".encode("latin-1"), {}, ":2: not UTF-8 (unexpected end of data): save"),
        ("a.txt.gz", gzip.compress(b"text " * 99, mtime=0)[:-9], {}, "can't be read"),
        ("a.txt.gz", gzip.compress(b"text " * 2**22, mtime=0), {}, "it unpacks to more than 16,777,216 bytes"),
        ("none.txt", None, {}, ""),
        ("none.jsonl", None, {}, ""),
    ],
)
def test_an_error_names_the_file_and_its_line_and_says_what_to_do(
    name: str, data: bytes | None, options: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    said = refused(re.escape(sentence), read, tmp_path / name, **options)
    assert str(tmp_path / name) in said
