"""Prompts: every record of a source becomes a prompt or an error with a reason; refusals come before the first."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from antislop.errors import InputError
from antislop.files import records as files
from antislop.files.chats import read_chat
from antislop.files.prompts import Prompt, fingerprint_text, read_prompts
from antislop.files.sources import to_json
from tests.support.models import build_tokenizer
from tests.support.refusals import refused

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHATML
    return tokenizer


def texts(source: Any, **options: Any) -> list[str]:
    """The texts of prompts, all of which are without an error."""
    prompts = list(read_prompts(source, **options))
    assert [prompt.error for prompt in prompts] == [None] * len(prompts)
    return [prompt.text for prompt in prompts]


def unread(source: Any, **options: Any) -> str:
    """Why nothing is read: one sentence, before the first prompt is asked for."""
    return refused("", read_prompts, source, **options)


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


# -- kinds of source --------------------------------------------------------------------------------------------------

LINES = '{"prompt": "rain", "topic": "sky"}\n\n{"prompt": "hail"}\n'
SAME = {
    "a.jsonl": LINES,
    "b.ndjson": LINES.replace("\n", "\r\n"),
    "c.json": LINES,  # JSON Lines under the name of JSON, as on the hub
    "d.json": '["rain", "hail"]',
    "e.json": '[{"prompt": "rain"},\n {"prompt": "hail"}]',
    "f.json": '{"version": 1, "data": ["rain", "hail"]}',
    "g.json": '{"x": {"prompt": "rain"}, "y": {"prompt": "hail"}}',
    "h.txt": "\ufeffrain\n\n   \nhail",
    "i.csv": 'prompt,topic\nrain,"a, b"\n\nhail,"two\nlines"\n',
    "j.csv": "topic;prompt\r\na,b;rain\r\n;hail\r\n",
    "k.tsv": "prompt\ttopic\nrain\t\nhail\t\n",
    "l.jsonl.gz": LINES,
    "m.csv.gz": "prompt\nrain\nhail\n",
    "n.jsonl": '"rain"\n"hail"',
}


@pytest.mark.parametrize("name", SAME)
def test_files_of_all_kinds_hold_the_same_prompts(name: str, tmp_path: Path) -> None:
    assert texts(write(tmp_path / name, SAME[name])) == ["rain", "hail"]


def test_records_are_as_good_as_files() -> None:
    assert texts(["rain", {"prompt": "hail"}]) == ["rain", "hail"]


def test_a_parquet_file_is_read_row_by_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: Parquet is not tested")
    from pyarrow.parquet import write_table

    messages = [[{"role": "user", "content": f"rain {i}", "tool_calls": None}] for i in range(200)]
    table = pa.table({"id": list(range(5, 205)), "prompt": [f"rain {i}" for i in range(200)], "messages": messages})
    write_table(table, tmp_path / "a.parquet", row_group_size=90)
    prompts = list(read_prompts(tmp_path / "a.parquet"))
    assert [(p.key, p.text) for p in prompts] == [(str(i + 5), f"rain {i}") for i in range(200)]
    assert prompts[0].fields == {"id": 5, "prompt": "rain 0", "messages": messages[0]}
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    assert "b.parquet: can't be read" in unread(tmp_path / "b.parquet")


def test_a_folder_is_its_files_by_name_and_split(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", '"b1"\n"b2"')
    write(tmp_path / "sub" / "a.txt", "s1")
    write(tmp_path / "a.csv", "prompt\na1\n")
    write(tmp_path / "test" / "a.txt", "held out")
    write(tmp_path / ".hidden" / "a.txt", "no")
    write(tmp_path / "notes.pdf", "no")
    assert texts(tmp_path) == ["a1", "b1", "b2", "s1"]
    assert [prompt.key for prompt in read_prompts(tmp_path)] == list(map(fingerprint_text, ["a1", "b1", "b2", "s1"]))
    assert texts(tmp_path, split="test") == ["held out"]
    assert "no file of the split 'dev'; there are: test, train" in unread(tmp_path, split="dev")


def test_a_file_of_a_folder_that_breaks_does_not_end_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '"rain"')
    write(tmp_path / "b.json", '["rain",\n oops]')
    write(tmp_path / "c.jsonl", '"hail"')
    first, second, third = read_prompts(tmp_path)
    assert (first.text, third.text) == ("rain", "hail")
    assert second.error is not None and "b.json:2: not JSON" in second.error


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: saved data sets are not tested")
    data = datasets.Dataset.from_dict({"prompt": ["rain", "hail"]})
    assert texts(data) == ["rain", "hail"]
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "rest": data.select([1])}).save_to_disk(tmp_path / "several")
    assert texts(tmp_path / "one") == ["rain", "hail"]
    assert texts(tmp_path / "several", split="rest") == ["hail"]
    assert "there are: train, rest" in unread(tmp_path / "several", split="test")
    assert "mapping of train" in unread(datasets.DatasetDict({"train": data}))


def test_a_clone_of_the_hub_is_read_as_its_card_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed: clones of the hub are not tested")
    card = (
        "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: odd\n    path: x/*.jsonl\n---\n"
    )
    write(tmp_path / "README.md", card)
    write(tmp_path / "x" / "a.jsonl", '{"prompt": "rain"}\n')
    write(tmp_path / "y" / "a.jsonl", '{"prompt": "no"}\n')
    assert texts(tmp_path, split="odd") == ["rain"]
    assert "odd" in unread(tmp_path)


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing-of-this-name", "nobody/nothing:configuration"])
def test_a_missing_hub_set_is_reported_in_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: the hub is not tested")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert "neither a file or folder here nor a data set" in unread(name)


def test_a_hub_set_is_streamed_and_may_break_off(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: the hub is not tested")
    asked: list[Any] = []

    def rows() -> Iterator[dict[str, str]]:
        yield {"prompt": "rain"}
        raise RuntimeError("connection\nlost")

    def load_dataset(*args: Any, **options: Any) -> Iterator[dict[str, str]]:
        asked.append((args, options))
        return rows()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    first, second = read_prompts("owner/name:small", split="test[a]")
    assert asked == [(("owner/name", "small"), {"split": "test[a]", "streaming": True})]
    assert first.text == "rain"
    assert (
        second.error
        == "owner/name:small, record 0: nothing after this can be read (connection): repair it or download it again"
    )


def test_images_of_a_hub_set_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: the hub is not tested")

    class Rows(list[Any]):
        def decode(self, enable: bool) -> list[Any]:
            return [{**row, "image": "decoded" if enable else b"12"} for row in self]

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: Rows([{"prompt": "rain"}]))
    (prompt,) = read_prompts("owner/name")
    assert prompt.fields == {"prompt": "rain", "image": "(2 bytes)"}


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("datasets", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    write(tmp_path / "a.parquet", "")
    for source in (tmp_path / "a.parquet", "owner/name"):
        assert "pip install 'antislop-lm[datasets]'" in unread(source)


BLANK = "\n \n"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.docx", "", "not a file of records"),
        ("a.parquet.gz", "", "not a file of records"),
        *((name, BLANK, "contains no records") for name in ("a.jsonl", "a.json", "a.txt", "a.csv", "a.jsonl.gz")),
        ("a.json", '["a",\n b]', "a.json:2: not JSON"),
        ("a.json", b'[\n"\xff"]', "a.json:2: not UTF-8"),
        ("a.txt.gz", b"no gzip", "can't be read"),
    ],
)
def test_a_file_without_prompts_is_refused(name: str, content: str | bytes, sentence: str, tmp_path: Path) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        write(tmp_path / name, content)
    assert sentence in unread(tmp_path / name)


def test_a_folder_without_prompts_and_a_split_of_a_file_are_refused(tmp_path: Path) -> None:
    assert "contains no file that can be read" in unread(write(tmp_path / "sub" / "a.docx", "").parent)
    assert "leave out split" in unread(write(tmp_path / "a.txt", "rain"), split="test")


STORIES = [{"title": "a", "story": "b", "n": 1}]
RAIN = [{"prompt": "rain", "topic": "9"}]
UNUSABLE = [
    *("", "no prompt", "{{prompt}}", "{prompt", "prompt}", "{}{prompt}", "{prompt.x}", "{prompt[0]}", "{prompt!r}"),
    *("{prompt:>9}", "{prompt} {prompt.__class__}", "{prompt:{topic}}"),
]


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("none/a.jsonl", {}, "no such file or folder"),
        ("a/b/c\0", {}, "no such file or folder"),
        ([], {}, "contains no records"),
        ({"prompt": "rain"}, {}, "mapping of prompt"),
        *((wrong, {}, "a path or records were expected") for wrong in (b"a.jsonl", 7, None)),
        (["rain"], {"split": "test"}, "leave out split"),
        (
            STORIES,
            {},
            "columns title, story, n is named prompt, messages, conversations, conversation, and several contain text",
        ),
        ([{"n": 1}], {}, "none contains text"),
        (
            STORIES,
            {"column": "promt"},
            "no column 'promt'; the first records have title, story, n: name one of them (--column)",
        ),
        (STORIES, {"column": "story", "key": "uid"}, "(--key)"),
        (STORIES, {"column": "story", "template": "{prompt} {topic}"}, "(--prompt-template)"),
        *((RAIN, {"template": template}, "template") for template in UNUSABLE),
    ],
)
def test_a_source_and_options_that_give_no_prompts_are_refused(
    source: Any, options: dict[str, Any], sentence: str
) -> None:
    assert sentence in unread(source, **options)


# -- broken records ---------------------------------------------------------------------------------------------------


def test_one_broken_line_costs_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b'"rain"', b'{"prompt": ', b'"\xff"', b"", b"7", b"[" * 100_000, b'{"a": ' + b"9" * 9999 + b"}", b'"hail"']
    path.write_bytes(b"\n".join(lines))
    prompts = list(read_prompts(path))
    assert [prompt.text for prompt in prompts] == ["rain", "", "", "", "", "", "hail"]
    assert [prompt.key for prompt in prompts] == [fingerprint_text("rain"), *"12345", fingerprint_text("hail")]
    expected = [
        "2: not JSON (Expecting value at column 12)",
        "3: not UTF-8",
        "5: a text or",
        "6: not JSON",
        "7: not JSON",
    ]
    for prompt, error in zip(prompts[1:-1], expected, strict=True):
        assert prompt.error is not None and prompt.error.startswith(f"{path}:{error}")


def test_broken_lines_of_csv_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,n\nrain,1\nhail\nsnow,1,2\n"a" b,1\n\xff,1\nlast,2\n"open,1\nlost,2\n')
    prompts = list(read_prompts(path))
    assert [prompt.text for prompt in prompts if not prompt.error] == ["rain", "last"]
    expected = [
        "3: the number of cells is 1, and",
        "4: the number of cells is 3",
        "5: not CSV",
        "6: not UTF-8",
        "8: not CSV (unexpected end of data)",
    ]
    for error, words in zip([prompt.error for prompt in prompts if prompt.error], expected, strict=True):
        assert error.startswith(f"{path}:{words}")
    assert "must name the columns, each once" in unread(write(path, "prompt,prompt\na,b\n"))


def test_csv_is_text_and_nothing_is_guessed(tmp_path: Path) -> None:
    long = "x" * 200_000
    prompts = list(read_prompts(write(tmp_path / "a.csv", f"id,prompt\n007,None\n8,NA\n9,{long}")))
    assert [(prompt.key, prompt.text) for prompt in prompts] == [("007", "None"), ("8", "NA"), ("9", long)]


def test_a_file_that_breaks_off_says_so_after_what_was_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", "\n".join(f"rain {i} {hash(str(i))}" for i in range(20_000)))
    path.write_bytes(path.read_bytes()[:-5000])
    *good, last = read_prompts(path)
    assert len(good) > 100 and not any(prompt.error for prompt in good)
    assert last.error is not None and "nothing after this can be read" in last.error


def test_damage_in_the_middle_of_a_compressed_file_is_no_crash(tmp_path: Path) -> None:
    content = bytearray(write(tmp_path / "a.txt.gz", "\n".join(f"rain {i * i}" for i in range(50_000))).read_bytes())
    content[len(content) // 2 :: 7] = b"\xff" * len(content[len(content) // 2 :: 7])
    (tmp_path / "a.txt.gz").write_bytes(content)
    assert list(read_prompts(tmp_path / "a.txt.gz"))[-1].error


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", "rain\rand\u2028hail\r\nsnow")) == ["rain\rand\u2028hail", "snow"]


NAMES = st.sampled_from(
    ["prompt", "messages", "conversations", "role", "content", "from", "value", "id", "key", "data"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner, max_size=4),
    max_leaves=8,
)
RECORDS = st.dictionaries(NAMES, JSON, max_size=4)
LINE = (RECORDS | JSON).map(lambda value: json.dumps(value).encode()) | st.binary()
OPTIONS: list[dict[str, str]] = [{}, {"column": "prompt"}, {"key": "id"}, {"system": "S"}, {"template": "{prompt}{id}"}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.csv", "a.jsonl.gz", "a.parquet"])
@given(st.data())
def test_any_bytes_give_prompts_or_a_refusal(name: str, tmp_path: Path, tokenizer: Any, data: st.DataObject) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: Parquet is not tested")
    content = b"\n".join(data.draw(st.lists(LINE, max_size=4)))
    if name.endswith(".gz"):
        content = gzip.compress(content)[: data.draw(st.none() | st.integers(-9, -1))]
    (tmp_path / name).write_bytes(content)
    options = data.draw(st.sampled_from(OPTIONS))
    try:
        prompts = read_prompts(tmp_path / name, tokenizer=tokenizer, **options)
    except InputError:
        return
    check(list(prompts))


@given(st.lists(RECORDS | st.text() | JSON, max_size=5))
def test_any_records_give_prompts_or_a_refusal(records: list[Any]) -> None:
    try:
        prompts = read_prompts(records)
    except InputError:
        return
    check(list(prompts), count=len(records))


def check(prompts: list[Prompt], *, count: int | None = None) -> None:
    """Every record is there once, can be written as JSON in UTF-8, and is either a text or an error."""
    assert prompts and len(prompts) == (count or len(prompts))
    assert len({prompt.key for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert bool(prompt.text.strip()) == (prompt.error is None)
        json.dumps(
            [prompt.key, prompt.text, prompt.messages, prompt.fields], ensure_ascii=False, allow_nan=False
        ).encode()


def test_fields_are_what_json_can_hold() -> None:
    import datetime

    import numpy as np

    (prompt,) = read_prompts(
        [
            {
                "prompt": "half \ud83d, whole \ud83d\ude00",
                "at": datetime.date(2026, 1, 2),
                "n": np.int64(3),
                "list": (np.float32(0.5), float("nan"), np.array([1, 2])),
                "image": b"1234",
                5: None,
            }
        ]
    )
    assert prompt.text == "half \ufffd, whole 😀"
    assert prompt.fields == {
        "prompt": prompt.text,
        "at": "2026-01-02",
        "n": 3,
        "list": [0.5, None, [1, 2]],
        "image": "(4 bytes)",
        "5": None,
    }


def test_fields_that_hold_themselves_are_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    (prompt,) = read_prompts([{"prompt": "rain", "loop": loop}])
    assert prompt.error is not None and "nested more than 100 deep" in prompt.error
    refused("nested", to_json, loop)


# -- columns, keys, limit ---------------------------------------------------------------------------------------------


def test_the_column_of_the_prompt_is_found(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "hail"}]
    sharegpt = [{"from": "human", "value": "snow"}]
    record = {"conversations": sharegpt, "messages": chat, "prompt": "rain", "other": "fog"}
    found = {"prompt": "rain", "messages": "<user>hail<go>", "conversations": "<user>snow<go>"}
    for name, text in found.items():
        assert texts([record], tokenizer=tokenizer) == [text]
        assert texts([record], column=name, tokenizer=tokenizer) == [text]
        assert texts([record], column="other", tokenizer=tokenizer) == ["fog"]
        del record[name]
    assert texts([{**record, "id": "x", "n": 1}]) == ["fog"]  # the only text beside the key


def test_columns_are_chosen_record_by_record(tokenizer: Any) -> None:
    mixed = ["rain", {"messages": [{"role": "user", "content": "hail"}], "prompt": None}]
    assert texts(mixed, tokenizer=tokenizer) == ["rain", "<user>hail<go>"]


@pytest.mark.parametrize("name", ["id", "prompt_id", "key", "uid"])
def test_keys_are_distinct_whatever_the_column_holds(name: str) -> None:
    values = ["a", "a", "a#2", "a", None, 4, "4", "", 1.5, True, "\n"]
    prompts = list(
        read_prompts([{name: value, "prompt": "rain"} for value in values], key=name if name == "uid" else None)
    )
    assert [prompt.key for prompt in prompts[:4]] == ["a", "a#2", "a#2#2", "a#3"]
    own = fingerprint_text("rain")
    assert [prompt.key for prompt in prompts[4:]] == [own, "4", "4#2", *(f"{own}#{number}" for number in range(2, 6))]


def test_many_equal_keys_take_linear_time() -> None:
    assert [prompt.key for prompt in read_prompts([{"id": "a", "prompt": "rain"}] * 20_000)][-1] == "a#20000"


def test_an_object_of_records_names_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '{"x": {"id": 1, "prompt": "rain"}, "y": {"id": 2, "prompt": "hail"}}')
    assert [prompt.key for prompt in read_prompts(path)] == ["x", "y"]
    assert [prompt.key for prompt in read_prompts(path, key="id")] == ["1", "2"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_keys_do_not_depend_on_the_limit(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, "prompt\n" * (name == "a.csv") + '"rain"\n' * 9)
    everything = list(read_prompts(path))
    assert len(everything) == 9
    for limit in (1, 5, 9, 99):
        assert list(read_prompts(path, limit=limit)) == everything[:limit]
    for limit in (0, -1, "3"):
        assert "from 1 was expected" in unread(path, limit=limit)


def test_records_are_read_only_when_needed() -> None:
    read: list[int] = []

    def endless() -> Iterator[str]:
        while True:
            read.append(1)
            yield "rain"

    prompts = read_prompts(endless())
    assert len(read) == 1
    next(prompts), next(prompts)
    assert len(read) == 2
    assert len(texts(endless(), limit=3)) == 3
    assert len(read) == 5


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt": "{"x" * 10_000}"}}\n' * 2000, encoding="utf-8")
    tracemalloc.start()
    count = sum(len(prompt.text) == 10_000 for prompt in read_prompts(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2000
    assert peak < 2e6 < path.stat().st_size


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.csv", "a.csv.gz"])
def test_a_line_without_end_costs_one_record_and_no_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 MB of .gz became 8.3 GB, and a line of 100 MB took a minute."""
    import tracemalloc

    monkeypatch.setattr(files, "MAX_LINE", 1000)
    long = "x" * 3_000_000
    lines = {
        "jsonl": ['{"id": 1, "prompt": "rain"}', f'{{"prompt": "{long}"}}', '{"id": 2, "prompt": "hail"}'],
        "txt": ["rain", long, "hail"],
        "csv": ["prompt,id", "rain,1", f"{long[:900]},{long}", "hail,2"],
    }[name.split(".")[1]]
    path = write(tmp_path / name, "\n".join(lines) + "\n")
    tracemalloc.start()
    prompts = list(read_prompts(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [prompt.text for prompt in prompts] == ["rain", "", "hail"]
    assert str(prompts[1].error).endswith(
        "longer than 10,000,000 characters: write one record per line, and shorten it"
    )
    assert peak < 1e6


def test_a_compressed_json_file_may_unpack_to_a_bounded_size(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", "[" + '"rain",' * 3_000_000 + '"rain"]')
    assert "it unpacks to more than 16,777,216 bytes" in unread(path)


# -- chats, templates -------------------------------------------------------------------------------------------------

SYSTEM, USER, REPLY, MORE = (
    {"role": role, "content": content}
    for role, content in [("system", "S"), ("user", "hail"), ("assistant", "yes"), ("user", "more")]
)


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([USER], [USER]),
        ([USER, REPLY], [USER]),
        ([SYSTEM, USER, REPLY, MORE], [SYSTEM, USER, REPLY, MORE]),
        ([SYSTEM, USER, REPLY, MORE, REPLY, REPLY], [SYSTEM, USER, REPLY, MORE]),
    ],
)
def test_a_chat_ends_before_the_reply_that_is_to_come(messages: list[Any], kept: list[Any], tokenizer: Any) -> None:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    sharegpt = [{"from": names[message["role"]], "value": message["content"]} for message in messages]
    columns = {name: [message[name] for message in messages] for name in ("role", "content")}
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
    for form in (messages, sharegpt, columns, parts):
        (prompt,) = read_prompts([{"messages": form}], tokenizer=tokenizer)
        assert prompt.messages == kept
        assert prompt.text == tokenizer.apply_chat_template(kept, tokenize=False, add_generation_prompt=True)
        assert prompt.has_special_tokens
        assert prompt.fields == {"messages": form}


def test_other_fields_of_a_message_stay_and_nulls_are_dropped() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}], "name": None}
    tool = {"role": "tool", "content": ["a", {"type": "text", "text": "b"}], "tool_call_id": "1"}
    assert read_chat([USER, calls, tool]) == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}],
        },
        {
            "role": "tool",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "tool_call_id": "1",
        },
    ]


STRICT = "{{ raise_exception('no system here') if messages[0].role == 'system' }}" + CHATML
MARKED: list[tuple[dict[str, Any], str]] = [
    *(({"prompt": empty}, "the prompt is empty") for empty in ("", " \n")),
    ({"prompt": None}, "no prompt: a column "),
    ({"topic": "x"}, "no prompt: a column "),
    *(({"prompt": odd}, f"the prompt is {odd!r}; a text, or a chat") for odd in (7, 1.5, True, {"a": 1})),
    *(({"messages": chat}, "no message to reply to") for chat in ([], [SYSTEM], [REPLY])),
    ({"messages": [{"role": "user", "content": " "}]}, "the prompt is empty"),
    ({"messages": [USER, "more"]}, "message 2 of the chat is str"),
    ({"messages": [{"content": "a"}]}, "message 1 of the chat has no role"),
    ({"messages": [{"role": "user"}]}, "message 1 of the chat has no content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only parts of type text are read"),
    ({"messages": [SYSTEM, USER]}, "the chat template refuses the chat (no system here): change the chat"),
]


@pytest.mark.parametrize(("record", "words"), MARKED)
def test_a_record_that_gives_no_prompt_is_marked_and_the_others_continue(record: dict[str, Any], words: str) -> None:
    strict = build_tokenizer()
    strict.chat_template = STRICT
    first, bad, last = read_prompts(["rain", record, {"messages": [USER]}], tokenizer=strict)
    assert (first.text, last.text) == ("rain", "<user>hail<go>")
    assert bad.error is not None and bad.error.startswith("record 1: ") and words in bad.error
    assert bad.text == "" and "\n" not in bad.error and bad.fields.keys() == record.keys()


@pytest.mark.parametrize("topic", [{}, {"topic": None}, {"topic": ["sky"]}])
def test_a_record_without_the_columns_of_the_template_is_marked(topic: dict[str, Any]) -> None:
    good, bad = read_prompts(
        [{"prompt": "rain", "topic": "sky"}, {"prompt": "hail", **topic}], template="{topic} {prompt}"
    )
    assert good.text == "sky rain"
    assert bad.error is not None and "the template names {topic}" in bad.error


def test_a_system_message_replaces_that_of_the_chat(tokenizer: Any) -> None:
    chats = [{"messages": [SYSTEM, USER]}, {"messages": [USER]}, {"prompt": "hail"}]
    assert texts(chats, system="T", tokenizer=tokenizer) == ["<system>T<user>hail<go>"] * 3
    assert texts(chats, system="", tokenizer=tokenizer) == ["<user>hail<go>"] * 3
    assert texts(chats, chat=True, tokenizer=tokenizer) == ["<system>S<user>hail<go>", *["<user>hail<go>"] * 2]
    assert texts(chats, tokenizer=tokenizer)[2] == "hail"
    assert [prompt.has_special_tokens for prompt in read_prompts(chats, tokenizer=tokenizer)] == [True, True, False]


@pytest.mark.parametrize("bare", [None, build_tokenizer()])
def test_chats_without_a_chat_template_are_refused_or_put_into_the_prompt_template(bare: Any) -> None:
    chats = [{"messages": [USER, REPLY]}, "rain", {"messages": [USER, REPLY, MORE]}]
    assert "pass a text around them as template (--prompt-template" in unread(chats, tokenizer=bare)
    first, second, third = read_prompts(chats, template="Q: {prompt} A:", tokenizer=bare)
    assert (first.text, second.text) == ("Q: hail A:", "Q: rain A:")
    assert not first.has_special_tokens
    assert third.error is not None and "3 messages can't be written" in third.error
    last = list(read_prompts(["rain", *chats], tokenizer=bare))[1]
    assert last.error is not None and "without a chat template" in last.error
    for options in ({"system": "S"}, {"chat": True}):
        assert "leave these out (--system, --chat)" in unread(["rain"], tokenizer=bare, **options)


def test_a_template_is_written_around_the_prompt(tokenizer: Any) -> None:
    record = {"prompt": "{rain} {0}", "topic": "sky", "n": 3, "the mood": "wet"}
    (text,) = texts([record], template="{{{topic}}} {n} {the mood}: {prompt}{prompt}")
    assert text == "{sky} 3 wet: " + "{rain} {0}" * 2
    chat = {"messages": [USER, REPLY, MORE], "topic": "sky"}
    (text,) = texts([chat], template="{prompt}, {topic}", tokenizer=tokenizer)
    assert text == "<user>hail<assistant>yes<user>more, sky<go>"
