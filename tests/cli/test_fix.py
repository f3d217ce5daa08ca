"""The command that fixes finished texts: what it shows, writes and refuses, and runs over records that resume."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import antislop
from antislop.files.chats import list_replies, list_turns, map_replies
from antislop.files.journal import Journal
from antislop.files.models import ModelSpec
from antislop.steer import fixing
from antislop.steer.fixing import Fixed, Replacement, Wording
from antislop.tuning.rows import load_text_pairs
from tests.support.commands import assert_refused, at_record, interrupt, invoke

BANS = [part for ban in ("tapestry", "little girl", "Elara") for part in ("--ban", ban)]
HOW = ("--model", "bundled", "--no-bans", *BANS)
FIXED = "\ufeffShe opened the door. The cloth of the wind was here. `tapestry`\r\nOne day a child saw Elara.\r\n"
TEXT = (
    "\ufeffShe opened the door. The tapestry of the wind was here. `tapestry`\r\nOne day a little girl saw Elara.\r\n"
)
RESPONSES = [
    f"{line}, and the {word} was old."
    for line in ("One day he came", "The sun was up")
    for word in ("tapestry", "house", "little girl")
]


WORDS = {"tapestry": ("cloth", "woven cloth", "song"), "little girl": ("child", "young woman", "guest")}
LEFT = {"`tapestry`": "stands in code", "Elara": "may be a name"}
REAL = fixing.fix_texts


def script(
    _: object,
    __: object,
    texts: Iterable[str],
    ___: object,
    *,
    seed: int | None = None,
    batch_size: int = 4,
    **____: Any,
) -> Iterator[Fixed]:
    """Do what `fix_texts` does, with words that depend on a text's number and its place in its batch."""
    rest, number = iter(texts), 0
    while batch := list(islice(rest, batch_size)):
        for place, text in enumerate(batch):
            changes, drawn = [], Random(f"{(seed or 0) + number} {place}")
            for match in re.finditer("|".join((*LEFT, *WORDS)), text):
                start, end, before = *match.span(), match[0]
                if before in LEFT:
                    changes.append(Replacement(start, end, before, before, before.strip("`"), LEFT[before]))
                else:
                    words = drawn.sample(WORDS[before], 3) if seed is not None else WORDS[before]
                    others = tuple(Wording(word, -1.12) for word in words[1:])
                    changes.append(Replacement(start, end, before, words[0], before, "", 0.44, others))
            fixed = text
            for change in reversed(changes):
                fixed = fixed[: change.start] + change.after + fixed[change.end :]
            yield Fixed(fixed, tuple(changes))
            number += 1


@pytest.fixture(scope="module")
def loaded() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return antislop.tiny_model()


@pytest.fixture(autouse=True)
def folder(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty current folder with a text and records. The words come from `script`; the model is loaded once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelSpec, "load", lambda _: loaded)
    monkeypatch.setattr(fixing, "fix_texts", script)
    Path("s.txt").write_bytes(TEXT.encode())
    write("r.jsonl", [{"b": [1, None], "response": text, "a": {"x": 1.5}} for text in RESPONSES])


def write(name: str, records: list[Any]) -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


# -- a text -----------------------------------------------------------------------------------------------------------


def test_what_would_change_is_shown_with_its_place_other_words_and_what_is_left() -> None:
    result = invoke("fix", "s.txt", *HOW)
    assert result.exit_code == 1 and Path("s.txt").read_bytes() == TEXT.encode()
    assert result.stdout.splitlines() == [
        "s.txt:1:26: She opened the door. The [-tapestry-]{+cloth+} of the wind was here. `tapestry`",
        "    cloth (+0.4), or: woven cloth (−1.1), song (−1.1)",
        "s.txt:2:11: One day a [-little girl-]{+child+} saw Elara.",
        "    child (+0.4), or: young woman (−1.1), guest (−1.1)",
        "s.txt:1:57: “`tapestry`” is left: stands in code",
        "s.txt:2:27: “Elara” is left: may be a name",
        "2 replaced, 2 left; in brackets: nats by which the text is likelier than the original",
    ]
    long = f"{'x' * 60} tapestry {'y' * 60}"
    shown = f"<stdin>:1:62: …{'x' * 39} [-tapestry-]{{+cloth+}} {'y' * 39}…"
    assert invoke("fix", "-", *HOW, stdin=long).stdout.splitlines()[0] == shown


def test_the_models_words_replace_those_that_are_flagged_in_texts_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixing, "fix_texts", REAL)
    monkeypatch.setattr(fixing, "MOVED", math.inf)  # the toy expects something else after any other word
    invoke("fix", "s.txt", "--write", *HOW)
    left = Path("s.txt").read_bytes().decode()
    assert re.fullmatch("(?s)(.*The ).+( of the wind was here\\. `tapestry`\r\nOne day a ).+( saw Elara\\.\r\n)", left)
    args = ("fix", "r.jsonl", "-o", "out.jsonl", "--pairs", "p.jsonl", *HOW)
    invoke(*args)
    whole, pairs = Path("out.jsonl").read_bytes(), Path("p.jsonl").read_bytes()
    assert len(read("out.jsonl")) == 6 and pairs
    Path("out.jsonl").write_bytes(whole[: whole.index(b"\n", 400) + 20])
    invoke(*args)
    assert (Path("out.jsonl").read_bytes(), Path("p.jsonl").read_bytes()) == (whole, pairs)


def test_a_terminal_strikes_out_what_goes() -> None:
    shown = invoke("fix", "s.txt", *HOW, env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    assert "\x1b[9;31mtapestry\x1b[0m\x1b[32mcloth\x1b[0m" in shown and "[-" not in shown


def test_write_changes_the_flagged_words_and_no_other_byte() -> None:
    Path("s.txt").chmod(0o640)
    result = invoke("fix", "s.txt", "--write", *HOW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert Path("s.txt").read_bytes() == FIXED.encode()
    assert Path("s.txt").stat().st_mode & 0o777 == 0o640
    assert result.stderr.splitlines()[-3:] == [
        "s.txt:1:57: “`tapestry`” is left: stands in code",
        "s.txt:2:27: “Elara” is left: may be a name",
        "2 replaced, 2 left",
    ]
    before = Path("s.txt").stat().st_ino
    assert invoke("fix", "s.txt", "--write", *HOW).exit_code == 1
    assert Path("s.txt").stat().st_ino == before  # nothing is written if nothing changes


def test_the_fixed_text_goes_to_another_file_or_to_standard_output() -> None:
    assert invoke("fix", "s.txt", "-o", "new/s.md", *HOW).exit_code == 1
    assert (Path("s.txt").read_bytes(), Path("new/s.md").read_bytes()) == (TEXT.encode(), FIXED.encode())
    result = invoke("fix", "-", "-o", "-", *HOW, stdin=TEXT.encode())
    assert (result.exit_code, result.stdout_bytes.decode()) == (1, FIXED[1:])
    assert invoke("fix", "-", *HOW, stdin=TEXT.encode()).stdout.startswith("<stdin>:1:26: ")


def test_the_exit_status_is_0_if_nothing_is_left() -> None:
    result = invoke("fix", "-", *HOW, stdin="A quiet day.")
    assert (result.exit_code, result.stdout) == (0, "0 replaced, 0 left\n")
    assert invoke("fix", "-", *HOW, stdin="One day a little girl saw it.").exit_code == 0


def test_a_file_that_changes_meanwhile_is_not_overwritten(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelSpec, "load", lambda _: Path("s.txt").write_text("Saved.") and loaded)
    assert_refused(invoke("fix", "s.txt", "--write", *HOW), "s.txt: has changed in the meantime")
    assert Path("s.txt").read_text() == "Saved."


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("x.txt", "x.txt: can't be read (No such file or directory)"),
        (". ", ".: is a folder: pass the files in it"),
        ("x.jsonl -o y.jsonl", "x.jsonl: no such file or folder"),
        ("r.jsonl -o y.csv", "y.csv: .csv is not what this option writes: pass a name that ends in .jsonl"),
        ("r.jsonl -o r.jsonl", "r.jsonl: is a source of the records: choose another path"),
        ("r.jsonl -o y.jsonl --column z", "r.jsonl:1: no column z; there are b, response, a"),
        ("r.jsonl -o y.jsonl --column a", "r.jsonl:1: a text or a chat was expected, not dict: correct the record"),
        ("r.jsonl -o y.jsonl --column b", "r.jsonl:1: message 1 of the chat is int"),
        ("broken.jsonl -o y.jsonl", "broken.jsonl:2: not JSON"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_a_model_is_loaded(
    args: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("broken.jsonl").write_text('{"text": "One."}\n{"text": \n')
    monkeypatch.setattr(ModelSpec, "load", lambda _: pytest.fail("a model was loaded"))
    assert_refused(invoke("fix", *args.split(), *HOW), sentence)
    assert not Path("y.jsonl").exists()


# -- records ----------------------------------------------------------------------------------------------------------


def test_records_keep_all_but_the_flagged_words_and_repeat_with_their_seed() -> None:
    result = invoke("fix", "r.jsonl", "-o", "out.jsonl", *HOW)
    assert result.exit_code == 0, result.output
    old, new = read("r.jsonl"), read("out.jsonl")
    assert [list(record) for record in new] == [["b", "response", "a"]] * 6
    assert [{**record, "response": ""} for record in new] == [{**record, "response": ""} for record in old]
    assert [a["response"] == b["response"] for a, b in zip(old, new, strict=True)] == [False, True, False] * 2
    assert not any(re.search("tapestry|little girl", record["response"]) for record in new)
    assert "4 replaced; 0 texts with banned phrases in out.jsonl" in result.stderr
    made = Path("out.jsonl").read_bytes()
    assert invoke("fix", "r.jsonl", "-o", "out.jsonl", *HOW).exit_code == 0
    assert Path("out.jsonl").read_bytes() == made
    for seed in range(1, 5):
        invoke("fix", "r.jsonl", "-o", f"{seed}.jsonl", "--seed", str(seed), *HOW)
    assert len({Path(f"{name}.jsonl").read_bytes() for name in ("out", 1, 2, 3, 4)}) > 1


@pytest.mark.parametrize("made", range(7))
@pytest.mark.parametrize("cut", [0, 9])
def test_a_run_that_was_killed_anywhere_resumes_to_the_same_records_and_pairs(made: int, cut: int) -> None:
    args = ("fix", "r.jsonl", "-o", "out.jsonl", "--pairs", "p.jsonl", "--batch-size", "4", *HOW)
    invoke(*args)
    whole, pairs = Path("out.jsonl").read_bytes(), Path("p.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("out.jsonl").write_bytes(b"".join([*lines[:made], *(line[:cut] for line in lines[made : made + 1])]))
    write("p.jsonl", [row for row in read("p.jsonl") if int(row["key"]) <= made])  # written before their record
    assert invoke(*args).exit_code == 0
    assert (Path("out.jsonl").read_bytes(), Path("p.jsonl").read_bytes()) == (whole, pairs)


def test_ctrl_c_keeps_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("fix", "r.jsonl", "-o", "whole.jsonl", *HOW)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", at_record(2, interrupt))
        result = invoke("fix", "r.jsonl", "-o", "out.jsonl", *HOW)
    assert result.exit_code == 130 and "stopped: 2 of 6 records in out.jsonl" in result.stderr
    assert invoke("fix", "r.jsonl", "-o", "out.jsonl", *HOW).exit_code == 0
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_a_run_with_other_settings_or_records_is_not_mixed_in() -> None:
    args = ("fix", "r.jsonl", "-o", "out.jsonl")
    invoke(*args, *HOW)
    made = Path("out.jsonl").read_bytes()
    assert_refused(invoke(*args, *HOW, "--seed", "1"), "out.jsonl was made with seed=0, and this run has seed=1")
    Path("out.jsonl").write_bytes(made.replace(b"}\n", b"\n", 1))
    assert_refused(invoke(*args, *HOW), "out.jsonl:1: is damaged: remove this line and all after it")
    Path("out.jsonl").write_bytes(made)
    write("r.jsonl", [{"response": "Other."}])
    assert_refused(invoke(*args, *HOW), "out.jsonl was made with records=")


OPENAI = [{"role": "user", "content": "A tapestry?"}, {"role": "assistant", "content": "The tapestry of the wind."}]
PARTS = [OPENAI[0], {"role": "assistant", "name": None, "content": [{"type": "text", "text": "The tapestry of it."}]}]
FORMATS = {
    "messages": [*OPENAI, *OPENAI],
    "conversations": [{"from": "human", "value": "A tapestry?"}, {"from": "gpt", "value": "The tapestry of the wind."}],
    "conversation": {"from": ["human", "gpt"], "value": ["A tapestry?", "The tapestry of the wind."]},
    "parts": [*PARTS, {"role": "assistant", "content": "<tool_call>{'tapestry': 1}</tool_call>"}],
    "json": json.dumps(OPENAI),
    "transcript": "\n\nHuman: A tapestry?\n\nAssistant: The tapestry of the wind.\n\nHuman: A tapestry?",
}


@pytest.mark.parametrize("name", FORMATS)
def test_all_replies_of_a_chat_are_fixed_in_its_own_format_and_nothing_else(name: str) -> None:
    write("chats.jsonl", [{"id": 7, name: FORMATS[name]}])
    result = invoke("fix", "chats.jsonl", "-o", "out.jsonl", "--column", name, *HOW)
    (record,) = read("out.jsonl")
    assert list(record) == ["id", name], result.output
    replies = [text for text in list_replies(list_turns(record[name]) or []) if text]
    assert replies and not any("tapestry" in text for text in replies)
    words = [re.sub("^The | of .*$", "", text) for text in replies]
    back = json.dumps(record[name])
    for word in words:
        back = back.replace(f"The {word} of", "The tapestry of", 1)
    assert back == json.dumps(FORMATS[name])


def test_records_that_are_one_message_of_the_user_stay() -> None:
    said = [{"role": "prompter", "text": "A tapestry?"}, {"mes": "A tapestry?", "is_user": True}]
    write("said.jsonl", [*said, {"mes": "A tapestry.", "is_user": False}, {"text": None}])
    invoke("fix", "said.jsonl", "-o", "out.jsonl", *HOW)
    first, second, third, last = read("out.jsonl")
    assert [first, second, last] == [*said, {"text": None}] and third["mes"] != "A tapestry."


@pytest.mark.parametrize("name", FORMATS)
def test_mapping_replies_to_themselves_changes_nothing(name: str) -> None:
    assert map_replies(FORMATS[name], lambda text, _: text) == FORMATS[name]


def test_pairs_are_the_least_that_differs_and_tune_reads_them(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    text = "He came. The tapestry was old. One day a little girl saw Elara, and left."
    write("one.jsonl", [{"prompt": "Tell:\n", "response": text}])
    assert invoke("fix", "one.jsonl", "-o", "out.jsonl", "--pairs", "p.jsonl", *HOW).exit_code == 1
    fixed = read("out.jsonl")[0]["response"]
    first, second = load_text_pairs("p.jsonl", loaded[1])
    assert first.prompt == "Tell:\nHe came. The" and first.rejected == " tapestry was old."
    assert second.rejected == " little girl saw Elara, and left." and second.chosen.endswith(" saw Elara, and left.")
    assert second.prompt + second.chosen == "Tell:\n" + fixed
    assert [row["ban"] for row in read("p.jsonl")] == ["tapestry", "little girl"]
