"""The command that makes data sets: no record is lost, mixed or overwritten, and one sentence reports each fault."""

from __future__ import annotations

import copy
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random, random
from typing import Any

import datasets
import pytest
import yaml
from filelock import FileLock
from huggingface_hub import HfApi
from pyarrow import parquet
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typer.testing import Result

import antislop
from antislop import Ban, BanList
from antislop.cli import job as jobs, progress
from antislop.cli.host import ModelHost
from antislop.cli.options import BanOptions, collect_bans
from antislop.core.hf.vocabulary import fingerprint_tokenizer
from antislop.datasets import hub
from antislop.datasets.pairs import PairFormat
from antislop.datasets.samples import Arm, MadeRecord, SampleSpec, measure_slop
from antislop.files.journal import Journal, Record, read_records
from antislop.files.prompts import fingerprint_text
from tests.support.commands import assert_refused, at_record, interrupt, invoke
from tests.support.depth import first_quick
from tests.support.models import build_tokenizer

PROMPTS = ["The old house", "One day", "She opened the door", "He said that", "In the end"]
BANS = ("the", "a", "was", "her")
TINY = (
    "--max-new-tokens",
    "12",
    "--batch-size",
    "4",
    "--no-bans",
    *(part for phrase in BANS for part in ("--ban", phrase)),
)
LOAD = ModelHost._load
LONGER = ("--max-new-tokens", "30")  # for texts in which sentences end
CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]"


TOKENIZER = build_tokenizer()


class ScriptedMaker:
    """Makes a record for each spec at once, `batch_size` of them in flight, and three pairs of each text under bans.

    Texts and pairs depend on their seeds alone, but for the last digits of shares, as those of a model in batches.
    """

    seconds = 0.0
    """Of each text."""

    def __init__(self, *, seed: int, batch_size: int, settings: object, pairs: PairFormat | None) -> None:
        self._seed, self._batch_size, self._pairs = seed, batch_size, pairs

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        left = iter(specs)
        while batch := list(islice(left, self._batch_size)):
            for spec in batch:
                time.sleep(self.seconds)
                about = {"key": spec.prompt.key, "sample": spec.sample}
                seed, error = spec.seed(self._seed), spec.prompt.error
                record: Record = {**spec.prompt.fields, "prompt": spec.prompt.text, **about, "arm": arm, "seed": seed}
                record |= {"status": "error" if error else "ok", "error": error, "seconds": 0.01}
                record |= {"response": None if error else f"It is {seed}.", "tokens": 4, "withdrawn_tokens": 2}
                record |= {"violations": {"the": 1}, "conceded": {}}
                record |= {"finish_reason": None if error else ("stop", "length")[spec.sample % 2]}
                count = 3 if self._pairs and arm == "banned" and not error else 0
                rows = [self._pair(spec.prompt.text, Random(seed + number)) for number in range(count)]
                yield MadeRecord(record, [{**row, **about} for row in rows])

    def _pair(self, prompt: str, drawn: Random) -> Record:
        ban, context = drawn.choice(BANS), f"{prompt} {drawn.random()}"
        if self._pairs == "dpo":
            return {"ban": ban, "prompt": context, "chosen": " It is.", "rejected": f" {ban} is."}
        row = {"ban": ban, "context_with_chat_template": context, "context_ids": [7], "rejected_id": drawn.randrange(4)}
        chosen = drawn.sample(range(4, 9), 2)
        return {**row, "chosen_ids": chosen, "chosen_shares": [random()] * 2, "multi_chosen_decoded": ["x", "y"]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with a file of prompts, and a maker of records that needs no model."""

    def load(host: ModelHost, bans: BanList, options: dict[str, Any]) -> Any:
        return ScriptedMaker(**options), TOKENIZER, bans

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelHost, "_load", load)
    Path("p.txt").write_text("\n".join(PROMPTS) + "\n")
    return tmp_path


@pytest.fixture(scope="module")
def loaded() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return antislop.tiny_model()


@pytest.fixture
def bundled(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The bundled model, which writes the texts; it is loaded once."""
    monkeypatch.setattr(ModelHost, "_load", LOAD)
    monkeypatch.setattr("antislop.files.models.ModelSpec.load", lambda _: loaded)
    return loaded


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, bundled: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    """A tokenizer that has a chat template."""
    tokenizer = copy.deepcopy(bundled[1])
    tokenizer.chat_template = CHAT
    monkeypatch.setattr("antislop.files.models.ModelSpec.load", lambda _: (bundled[0], tokenizer))


def make(*args: str, source: str = "p.txt", out: str = "out.jsonl", env: dict[str, str] | None = None) -> Result:
    result = invoke("dataset", source, "-o", out, *TINY, *args, columns=200, env=env)
    assert result.stdout == ""
    return result


def assert_made(result: Result, *parts: str, status: int = 0) -> None:
    assert result.exit_code == status, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


def read(name: str = "out.jsonl") -> list[Record]:
    return list(read_records(name))


def texts(name: str = "out.jsonl") -> dict[tuple[str, int, str], str]:
    """Responses by the identity of their records, which must be distinct."""
    named = [((record["key"], record["sample"], record["arm"]), record["response"]) for record in read(name)]
    assert len(dict(named)) == len(named)
    return dict(named)


def write_lines(name: str, *rows: Any) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bundled")
def test_every_prompt_gets_a_response_without_banned_phrases() -> None:
    assert_made(make(), "5 records, ", " tokens/s, ", " violations per 1,000 words, ", "% withdrawn")
    assert sorted(record["prompt"] for record in read()) == sorted(PROMPTS)
    assert all(record["response"] and not BanList(BANS).find(record["response"]) for record in read())
    assert json.loads(Path("out.jsonl.run.json").read_text())["generation"]["max_new_tokens"] == 12


def test_an_output_folder_contains_the_same_records_as_a_file() -> None:
    make()
    assert_made(make(out="new/folder"))
    assert texts("new/folder/records.jsonl") == texts()


def test_several_responses_and_a_limit() -> None:
    assert_made(make("--n", "3", "--limit", "2"), "6 records")
    made = texts()
    assert made.keys() == {(fingerprint_text(text), sample, "banned") for text in PROMPTS[:2] for sample in range(3)}
    assert len(set(made.values())) == 6
    assert_made(make("--n", "3", "--limit", "3"), "resuming: 6 records exist already", "3 records")
    assert made.items() <= texts().items()


@pytest.mark.usefixtures("bundled")
def test_both_arms_have_the_same_seeds_and_are_compared_in_the_end() -> None:
    result = make("--arms", "plain,banned")
    seeds = {arm: {r["key"]: r["seed"] for r in read() if r["arm"] == arm} for arm in ("plain", "banned")}
    assert seeds["plain"] == seeds["banned"]
    assert len(set(seeds["plain"].values())) == len(PROMPTS)
    slop = measure_slop(read(), BanList(BANS))
    assert slop["plain"] > 0 == slop["banned"]
    rate = f"({slop['plain']:.1f} per 1,000 words), banned 0 (0.0 per 1,000 words)"
    assert re.search(rf"\nbanned phrases in the texts: plain \d+ {re.escape(rate)}\n$", result.stderr), result.stderr
    both = texts()
    make(out="banned.jsonl")
    assert texts("banned.jsonl").items() <= both.items()


@pytest.mark.usefixtures("bundled")
def test_violations_are_reported_per_word_of_the_texts_under_bans() -> None:
    both, banned, plain = (
        make("--arms", arms, out=f"{number}.jsonl").stderr
        for number, arms in enumerate(("plain,banned", "banned", "plain"))
    )
    (rate,) = re.findall(r"[\d.]+ violations per 1,000 words, [\d.]+% withdrawn", banned)
    assert rate in both
    assert not rate.startswith("0.0 ")
    assert "violations" not in plain


@pytest.mark.usefixtures("bundled")
def test_a_template_is_written_around_prompts_and_a_system_message_needs_a_chat_template() -> None:
    assert_made(make("--prompt-template", "Tale {prompt}: {{"))
    assert {record["prompt"] for record in read()} == {f"Tale {prompt}: {{" for prompt in PROMPTS}
    assert_refused(make("--system", "Be brief.", out="s.jsonl"), "the model's tokenizer has no chat template")


@pytest.mark.usefixtures("chat")
def test_chats_are_written_with_the_template_and_get_their_reply() -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "left out"}]
    assert_made(make("--system", "Be brief.", source=write_lines("c.jsonl", {"messages": turns})))
    (record,) = read()
    assert record["prompt"] == "[system] Be brief.\n[user] Hi\n[assistant]"
    assert record["messages"][-1] == {"role": "assistant", "content": record["response"]}
    assert [message["role"] for message in record["messages"]] == ["system", "user", "assistant"]


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_the_same_command_resumes_and_makes_only_missing_records() -> None:
    make()
    whole = texts()
    lines = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    Path("out.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:30])
    assert_made(make(), "resuming: 2 records exist already", "3 records, ")
    assert texts() == whole
    assert_made(make("--batch-size", "1"), "resuming: 5 records exist already", "0 records, ")
    assert texts() == whole


@pytest.mark.usefixtures("bundled")
def test_a_run_with_samplers_resumes_and_its_texts_are_those_of_the_samplers() -> None:
    samplers = ["--dry-multiplier", "5", "--dry-allowed-length", "0", "--dry-sequence-breaker", "q"]
    samplers += ["--presence-penalty", "1", "--xtc-probability", "0.5", "--xtc-threshold", "0.05"]
    make()
    make(*samplers, out="2.jsonl")
    assert texts("2.jsonl") != texts()
    assert_made(make(*samplers, out="2.jsonl"), "resuming: 5 records exist already", "0 records, ")
    assert_refused(make("--dry-base", "2", out="3.jsonl"), "--dry-base has no effect without --dry-multiplier")


@pytest.mark.parametrize(
    ("more", "difference"),
    [
        (["--max-new-tokens", "9"], "was made with generation.max_new_tokens=12, and this run has generation.max_new"),
        (
            ["--seed", "4", "--top-k", "3"],
            "with seed=0, generation.top_k=0, and this run has seed=4, generation.top_k=3",
        ),
        (["--ban", "of"], "with bans='4 bans, "),
        (["--model", "other"], "with model='bundled', and this run has model='other'"),
        (["--dtype", "bfloat16"], "with dtype=None, and this run has dtype='bfloat16'"),
        (["--top-n-sigma", "2"], "with generation.top_n_sigma=None, and this run has generation.top_n_sigma=2.0"),
        (["--stop", "."], "with generation.stop_strings=None, and this run has generation.stop_strings=['.']"),
    ],
)
def test_a_run_with_other_settings_is_refused_with_the_difference_unless_forced(
    more: list[str], difference: str
) -> None:
    make("--limit", "1")
    before = Path("out.jsonl").read_bytes()
    assert_refused(make(*more), difference, "choose another file, the same settings, or --force to mix them")
    assert Path("out.jsonl").read_bytes() == before
    assert_made(make(*more, "--force"), "resuming: 1 record exists already", "4 records")
    assert Path("out.jsonl").read_bytes().startswith(before)


def test_the_same_prompts_by_another_name_are_no_other_setting() -> None:
    make()
    Path("deep").mkdir()
    for name in ("./p.txt", str(Path("p.txt").resolve()), "deep/../p.txt"):
        assert_made(make(source=name), "resuming: 5 records exist already", "0 records, ")
    Path("more.txt").write_text("\n".join(["Anew", *PROMPTS]))
    assert_made(make(source="more.txt"), "resuming: 5 records exist already", "1 record, ")
    Path("fewer.txt").write_text("\n".join(PROMPTS[1:]))
    parts = ("was made with source='p.txt', and 2 of its records answer no prompt of fewer.txt", "--force to mix them")
    assert_refused(make(source="fewer.txt"), *parts)
    assert_made(make("--force", source="fewer.txt"), "2 of them for other prompts")


def test_texts_that_were_cut_are_counted_and_left_out_on_demand_and_never_made_again() -> None:
    assert_made(make("--n", "2"), "5 of 10 texts ended by length: raise --max-new-tokens, or leave them out")
    refused = make("--n", "2", "--only-ended")
    assert_refused(refused, "out.jsonl exists, and --only-ended replaces it", "put out.all in place of out in its name")
    Path("out.jsonl").rename("out.all.jsonl")
    Path("out.jsonl.run.json").rename("out.all.jsonl.run.json")
    made = Path("out.all.jsonl").read_bytes()
    result = make("--n", "2", "--only-ended")
    assert_made(
        result, "0 records, ", "5 texts of 10 ended by themselves and are in out.jsonl; all are in out.all.jsonl"
    )
    assert Path("out.all.jsonl").read_bytes() == made
    assert [record["finish_reason"] for record in read()] == ["stop"] * 5
    assert_made(make("--n", "2", "--only-ended", "--to-parquet", out="folder"), "10 records, ")
    (shard,) = Path("folder").glob("*.parquet")
    assert parquet.read_table(shard)["finish_reason"].to_pylist() == ["stop"] * 5


def test_never_makes_a_list_of_weights_strict() -> None:
    Path("list.txt").write_text("the\tweight=0.9\nhouse\n")
    bans = collect_bans(BanOptions(bans=[Path("list.txt")], never=True))
    assert list(bans) == list(BanList.load("list.txt").with_options(weight=0)) == [Ban("the"), Ban("house")]
    hint = "those with a weight may stay: see --never"
    write_lines("t.jsonl", {"prompt": "It"})
    Path("is.txt").write_text("is\tweight=0.9\n")  # what the maker of this test writes
    for more, is_hinted in (((), True), (("--never", "--force"), False)):
        result = invoke("dataset", "t.jsonl", "-o", "w.jsonl", "--bans", "is.txt", *more, columns=200)
        assert result.stderr.splitlines()[-1].startswith("banned phrases in the texts: banned 1 (")
        assert (hint in result.stderr) == is_hinted


def test_a_run_that_found_no_prompts_does_not_restrict_the_next() -> None:
    assert_refused(make(source="typo.txt"), "typo.txt: no such file or folder")
    assert_made(make(), "5 records")


@pytest.mark.usefixtures("bundled")
def test_failed_records_are_reported_once_and_tried_again() -> None:
    rows = [{"prompt": "One"}, {"prompt": " "}, {"prompt": "a " * 600}, {"other": "x"}]
    result = make("--n", "2", source=write_lines("p.jsonl", *rows))
    assert_made(result, "2 records, ", ", 6 failed", status=1)
    assert [line.split(":")[1] for line in result.stderr.splitlines() if line.startswith("antislop:")] == [
        " p.jsonl", f" '{'a ' * 20}…'", " p.jsonl",
    ]  # fmt: skip
    assert "more than the model's 512: shorten it" in result.stderr
    write_lines("p.jsonl", *[{"prompt": "One"}] * 4)
    assert_made(make("--n", "2", source="p.jsonl"), "resuming: 2 records exist already", "6 records")
    assert len(texts()) == 8
    assert {record["status"] for record in read()} <= {"ok", "conceded"}


def test_a_line_without_an_id_is_identified_by_its_text() -> None:
    """Keyed by its number, a line inserted at the top made another line's record twice, and had none itself."""
    make()
    before = {record["prompt"]: record for record in read()}
    Path("p.txt").write_text("\n".join(["Anew", *PROMPTS, PROMPTS[0]]) + "\n")
    assert_made(make(), "resuming: 5 records exist already", "2 records")
    assert [record["prompt"] for record in read()].count(PROMPTS[0]) == 2
    assert len(texts()) == 7
    assert {r["prompt"]: r for r in read() if "#" not in r["key"] and r["prompt"] != "Anew"} == before
    Path("p.txt").write_text("\n".join(PROMPTS[2:]) + "\n")
    assert_made(make(), "resuming: 7 records exist already, 4 of them for other prompts")


def test_a_prompt_that_was_edited_under_its_id_is_refused_or_made_again() -> None:
    rows = [{"id": f"p{i}", "prompt": prompt} for i, prompt in enumerate(PROMPTS)]
    pairs = ("--n", "2", "--pairs", "pairs.jsonl")
    make(*pairs, source=write_lines("p.jsonl", *rows))
    before = Path("out.jsonl").read_bytes()
    rows[1]["prompt"] = "One night"
    write_lines("p.jsonl", *rows)
    assert_refused(
        make(*pairs, source="p.jsonl"),
        "out.jsonl: 2 of its records answer prompts that have changed; 'p1' had 'One day', and now has 'One night'",
    )
    assert Path("out.jsonl").read_bytes() == before
    assert_made(make(*pairs, "--force", source="p.jsonl"), "2 records are made again", "resuming: 8 records")
    make("--n", "2", "--pairs", "pairs2.jsonl", source="p.jsonl", out="whole.jsonl")
    assert texts() == texts("whole.jsonl")
    assert sorted(map(json.dumps, read("pairs.jsonl"))) == sorted(map(json.dumps, read("pairs2.jsonl")))


def test_a_damaged_line_loses_only_its_own_record() -> None:
    """With pairs, such a run could not be resumed: the pairs of lost records had no record."""
    pairs = ("--n", "3", "--pairs", "pairs.jsonl")
    make(*pairs)
    whole, paired = texts(), sorted(map(json.dumps, read("pairs.jsonl")))
    lines = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    for number in (2, 5, 9):
        lines[number] = b"[" * 100_000 + b"\n"
    Path("out.jsonl").write_bytes(b"".join(lines))
    assert_made(make(*pairs), "3 damaged lines were removed; their records are made again", "resuming: 12 records")
    assert texts() == whole
    assert sorted(map(json.dumps, read("pairs.jsonl"))) == paired


# -- grammars ---------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["tale", "story"]}, "text": {"type": "string", "maxLength": 30}},
    "required": ["kind", "text"],
    "additionalProperties": False,
}


@pytest.fixture
def structured(bundled: object) -> list[str]:
    """Options of texts under a grammar."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    Path("schema.json").write_text(json.dumps(SCHEMA))
    return ["--json-schema", "schema.json", "--max-new-tokens", "60"]


@pytest.mark.slow
def test_every_text_fits_the_grammar_without_banned_phrases_in_any_batch(structured: list[str]) -> None:
    assert_made(make(*structured, "--n", "6", "--arms", "plain,banned"), "60 records")
    records = read()
    assert all(list(json.loads(record["response"])) == ["kind", "text"] for record in records)
    assert {record["status"] for record in records} == {"ok"}
    assert not any(BanList(BANS).find(record["response"]) for record in records if record["arm"] == "banned")
    assert sum(record["withdrawn_tokens"] for record in records) > 20
    assert len({record["grammar"] for record in records}) == 1
    make(*structured, "--n", "6", "--arms", "plain,banned", "--batch-size", "1", out="single.jsonl")
    assert texts("single.jsonl") == texts()


def test_a_run_resumes_only_under_the_same_grammar(structured: list[str]) -> None:
    make(*structured, "--limit", "2")
    assert_made(make(*structured), "resuming: 2 records")
    assert json.loads(Path("out.jsonl.run.json").read_text())["grammar"] == read()[0]["grammar"]
    Path("schema.json").write_text(json.dumps({**SCHEMA, "required": ["kind"]}))
    assert_refused(make(*structured), f"out.jsonl was made with grammar='{read()[0]['grammar']}', and this run has")
    assert_refused(make(*structured[2:]), "and this run has grammar=None")
    assert_made(make(*structured, "--force"), "0 records")


def test_a_text_that_ends_before_its_grammar_is_marked_and_counted(structured: list[str]) -> None:
    result = make(*structured, "--max-new-tokens", "9")
    assert_made(result, "5 cut", "5 texts ended before the grammar did, with the status cut: raise --max-new-tokens")
    assert {record["status"] for record in read()} == {"cut"}
    assert_made(make(*structured, "--max-new-tokens", "9"), "0 records", "5 texts ended before the grammar did")
    Path("short.lark").write_text('start: "so" | "so it is"')
    assert_made(make("--grammar", "short.lark", "--stop", "o", out="o.jsonl"))
    assert [(record["response"], record["status"]) for record in read("o.jsonl")] == [("so", "ok")] * 5
    assert "leave out --stop" in make(*structured, "--stop", '"', out="stop.jsonl").stderr


def test_pairs_of_texts_under_a_grammar_are_positions(structured: list[str]) -> None:
    make(*structured, "--n", "4", "--pairs", "pairs.jsonl", "--pairs-format", "tokens")
    assert read("pairs.jsonl")


# -- what can't be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--column", "text"], "no column 'text'"),
        (["--key", "id"], "no column 'id'"),
        (["--split", "test"], "leave out split='test' (--split)"),
        (["--prompt-template", "no braces"], "{prompt} is missing"),
        (["-o", "p.txt"], "p.txt: is a file, and a folder was expected"),
        (["-o", "p.txt/out.jsonl"], "p.txt/out.jsonl"),
        (["-o", "folder.jsonl"], "folder.jsonl: is not a file"),
        (["-o", "/dev/full/out.jsonl"], "/dev/full/out.jsonl"),
        (["-o", "x" * 300 + ".jsonl"], ".jsonl: can't be written (File name too long)"),
        (["-o", "x" * 300], ": can't be written (File name too long)"),
        (["--pairs", "x" * 300 + ".jsonl"], ".jsonl: can't be written (File name too long)"),
        (["--pairs", "out.jsonl"], "out.jsonl: records and pairs can't go into one file"),
        (["--pairs", "p.txt"], "p.txt: is a source of the prompts"),
        (["--pairs", "folder.jsonl"], "folder.jsonl: is not a file"),
        (["--pairs", "notes.jsonl"], "notes.jsonl: contains other lines than pairs"),
        (["--pairs", "pairs.csv"], "pairs.csv: .csv is not what this option writes: pass a name that ends in .jsonl"),
        (["-o", "o.parquet"], "o.parquet: .parquet is not what this option writes: pass -o FOLDER, with --to-parquet"),
        (["-o", "o.jsonl.gz"], "o.jsonl.gz: .jsonl.gz is not what this option writes: pass -o FOLDER"),
        (["--repetition-penalty", "inf"], "repetition_penalty is inf; a finite number above 0 was expected"),
        (["-o", "new", "--push-to-hub", "not a name"], "--push-to-hub 'not a name': a name such as me/stories was exp"),
        (["--arms", "none"], "--arms"),
        (["--device", "cpu", "--device-map", "auto"], "exclude each other"),
        (["--engine", "vllm", "--temperature", "0"], "bans inside vLLM need sampling, and the temperature is 0"),
        (["--grammar", "missing.gbnf"], "missing.gbnf: can't be read"),
    ],
)
def test_unusable_input_is_reported_in_one_sentence(args: list[str], sentence: str) -> None:
    Path("folder.jsonl").mkdir()
    write_lines("p.jsonl", {"prompt": "One"})
    Path("notes.jsonl").write_text("mine\nalso mine\n")
    before = {path: path.read_bytes() for path in Path().glob("*.*") if path.is_file()}
    source = "p.jsonl" if {"--column", "--key"} & {*args} else "p.txt"
    assert_refused(make(*args, source=source), sentence)
    assert before == {path: path.read_bytes() for path in before}


def test_a_folder_may_have_a_name_with_dots() -> None:
    assert_made(make("--limit", "1", out="gemma-3.4b"))
    assert len(texts("gemma-3.4b/records.jsonl")) == 1


def test_a_record_that_can_not_be_used_is_named_by_its_place_alone() -> None:
    write_lines("p.jsonl", {"prompt": 5}, {"prompt": "One"}, {"prompts": "Two"})
    result = make(source="p.jsonl")
    assert_made(result, "1 record, ", "2 failed", status=1)
    first, third = (line for line in result.stderr.splitlines() if line.startswith("antislop: "))
    assert first == "antislop: p.jsonl:1: the prompt is 5; a text, or a chat as a list of messages, was expected"
    assert third.startswith("antislop: p.jsonl:3: no prompt: a column ")


def test_a_file_system_that_can_not_lock_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert_refused(make(), "out.jsonl: its file system can't lock files: choose a place on a disk of this machine")


def test_prompts_are_not_overwritten_and_records_are_not_read_as_prompts() -> None:
    write_lines("p.jsonl", {"prompt": "One"})
    assert_refused(make("--force", source="p.jsonl", out="p.jsonl"), "p.jsonl: is a source of the prompts")
    assert_refused(make(source=".", out="inside"), "is a source of the prompts")
    for line in (
        '{"mine": 1}',
        '{"key": ["a"], "sample": 0, "arm": "banned", "status": "ok"}',
        "mine\nmine",
        "[" * 9999,
    ):
        Path("foreign.jsonl").write_text(line + "\n" + line + "\n")
        assert_refused(make(out="foreign.jsonl"), "its settings are unknown")
        assert_refused(make("--force", out="foreign.jsonl"), "its lines are not records of such a run")
        assert Path("foreign.jsonl").read_text() == line + "\n" + line + "\n"


# -- pairs ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bundled")
def test_preference_pairs_have_the_columns_that_trainers_expect() -> None:
    result = make("--pairs", "new/pairs.jsonl", *LONGER)
    assert_made(result, " pairs in new/pairs.jsonl; ", " tokens written to continue withdrawn text")
    pairs = datasets.Dataset.from_list(read("new/pairs.jsonl"))
    assert len(pairs) > 5
    assert {name: pairs.features[name].dtype for name in ("prompt", "chosen", "rejected")} == dict.fromkeys(
        ("prompt", "chosen", "rejected"), "string"
    )
    whole = {(r["key"], r["sample"]): r["prompt"] + r["response"] for r in read()}
    for row in pairs:
        assert whole[row["key"], row["sample"]].startswith(row["prompt"] + row["chosen"])
        assert BanList([row["ban"]]).find(row["rejected"])
        assert not BanList(BANS).find(row["chosen"])
        assert all(row[side].rstrip("\"'”’)")[-1] in ".!?…" for side in ("chosen", "rejected"))


def test_token_pairs_contain_ids_texts_and_shares_of_alternatives(
    bundled: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    assert_made(make("--pairs", "pairs.jsonl", "--pairs-format", "tokens"))
    rows = list(datasets.Dataset.from_list(read("pairs.jsonl")))
    assert rows
    for row in rows:
        assert row["context_with_chat_template"] == bundled[1].decode(row["context_ids"], skip_special_tokens=True)
        assert row["rejected_decoded"] == bundled[1].decode([row["rejected_id"]])
        assert row["multi_chosen_decoded"] == [bundled[1].decode([token]) for token in row["chosen_ids"]]
        assert row["rejected_id"] not in row["chosen_ids"]
        assert 0 < sum(row["chosen_shares"]) <= 1.0001
        assert row["tokenizer"] == fingerprint_tokenizer(bundled[1])


WITHOUT_PROBABILITIES = ("key", "sample", "context_ids", "rejected_id", "ban", "chosen_ids")
"""Those of a text in another batch have other last digits, and decide nothing. No names stand for all."""


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (("--limit", "3", "--pairs-per-ban", "3"), ()),
        (("--n", "2", "--pairs-per-ban", "4", "--pairs-format", "tokens"), WITHOUT_PROBABILITIES),
    ],
    ids=["dpo", "tokens"],
)
def test_a_stopped_and_resumed_run_makes_the_same_pairs(
    asked: tuple[str, ...], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(*asked, "--pairs", "whole.jsonl", out="whole.records.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", at_record(2, interrupt))
        assert make(*asked, "--pairs", "pairs.jsonl").exit_code == 130
    assert_made(make(*asked, "--pairs", "pairs.jsonl"), "resuming")
    whole, resumed = (
        sorted(json.dumps([row[name] for name in names] or row) for row in read(f))
        for f in ("whole.jsonl", "pairs.jsonl")
    )
    assert resumed == whole
    most = int(asked[3])
    assert most < len(whole) and (most < 4 or 12 < len(whole) <= 16)
    assert max(Counter(row["ban"] for row in read("pairs.jsonl")).values()) == most


def test_no_token_is_chosen_or_rejected_in_more_pairs_than_the_limit() -> None:
    tokens = ("--pairs", "pairs.jsonl", "--pairs-format", "tokens")
    make(*tokens, "--pairs-per-token", "3")
    for numbers in (
        [row["rejected_id"] for row in read("pairs.jsonl")],
        [token for row in read("pairs.jsonl") for token in row["chosen_ids"]],
    ):
        assert max(map(numbers.count, numbers)) == 3


def test_pairs_are_not_mixed_and_not_lost() -> None:
    make("--limit", "1")
    assert_made(make("--pairs", "pairs.jsonl"), "pairs.jsonl is new: it gets no pairs of existing records")
    before = read("pairs.jsonl")
    assert_refused(
        make("--pairs", "pairs.jsonl", "--pairs-format", "tokens"),
        "was made with pairs.format='dpo', and this run has pairs.format='tokens'",
    )
    assert_refused(make("--pairs", "other.jsonl"), "was made with pairs.file='pairs.jsonl'")
    assert_refused(
        make(), "was made with pairs.file='pairs.jsonl', pairs.format='dpo', and this run has pairs.file=None"
    )
    assert_refused(make("--pairs", "pairs.jsonl", out="new.jsonl"), "contains pairs of texts not in new.jsonl")
    assert read("pairs.jsonl") == before


# -- Parquet, cards, the hub ------------------------------------------------------------------------------------------


def test_parquet_and_a_card_are_written_beside_the_records() -> None:
    assert_made(make("--arms", "plain,banned", "--to-parquet", out="out"), "2 Parquet files and README.md in out")
    records = read("out/records.jsonl")
    for arm, of_arm in (("plain", records[:5]), ("banned", records[5:])):
        assert {record["arm"] for record in of_arm} == {arm}
        rows = parquet.read_table(f"out/data-{arm}-00000-of-00001.parquet").to_pylist()
        assert [row["response"] for row in rows] == [record["response"] for record in of_arm]
        assert json.loads(rows[-1]["violations"]) == of_arm[-1]["violations"]
    card = Path("out/README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["pretty_name"] == "out"
    assert "| banned | 5 | 0.00 |" in card
    assert "Columns of the preference pairs" not in card
    assert "10 responses to the prompts of `p.txt`, written by `bundled`" in card
    assert "```console\nantislop" in card
    assert list(BanList.load("out/bans.txt")) == list(BanList(BANS))


def test_only_parquet_files_that_the_command_wrote_are_replaced_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files with names like those that the command writes were deleted."""
    mine = Path("out/data-00001-of-00007.parquet")
    mine.parent.mkdir()
    mine.write_text("mine")
    for name in (mine.name, "../victim", 7):
        Path("out", hub.MANIFEST).write_text("[" * 9999 if name == 7 else json.dumps(name))
        result = make("--to-parquet", out="out")
        assert_refused(result, f"{mine}: was not written by this command: move it, or choose another folder")
    assert mine.read_text() == "mine"
    Path("README.md").write_text("# Mine")
    assert_refused(make("--push-to-hub", "me/it", out="."), "README.md: was not written by this command")
    assert not Path("out/records.jsonl").exists(), "it is refused before any text is made"
    mine.unlink()
    Path("out/other.parquet").write_text("mine, too")
    Path("victim").touch()
    Path("out", hub.MANIFEST).write_text('["../victim"]')
    Path("out/bans.txt").write_text("mine")
    assert_refused(make("--to-parquet", out="out"), "out/bans.txt: was not written by this command")
    Path("out/bans.txt").unlink()
    monkeypatch.setattr(hub, "ROWS_PER_FILE", 2)
    assert_made(make("--to-parquet", out="out"), "3 Parquet files")
    monkeypatch.setattr(hub, "ROWS_PER_FILE", 9)
    assert_made(make("--to-parquet", out="out"), "1 Parquet file ")
    assert sorted(path.name for path in Path("out").glob("*.parquet")) == [
        "data-banned-00000-of-00001.parquet",
        "other.parquet",
    ]
    assert Path("victim").exists()


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("kind", ["dpo", "tokens"])
def test_a_card_names_the_columns_of_the_pairs(kind: str) -> None:
    pairs = ("--pairs", "out/pairs.jsonl", "--pairs-format", kind)
    assert_made(make("--limit", "2", "--to-parquet", *pairs, *LONGER, out="out"))
    (paragraph,) = re.findall(
        r"^Columns of the preference pairs.*?\n\n", Path("out/README.md").read_text(), re.M | re.S
    )
    assert {f"`{column}`" for column in read("out/pairs.jsonl")[0]} <= set(re.findall(r"`\w+`", paragraph))


@pytest.mark.usefixtures("bundled")
def test_parquet_contains_columns_of_several_types_and_failed_records() -> None:
    rows = [{"prompt": " ", "x": 1}, {"prompt": "One", "x": "two", "meta": {}}, {"prompt": "Day", "big": 2**70}]
    assert_made(make("--to-parquet", source=write_lines("p.jsonl", *rows), out="out"), status=1)
    table = {row["prompt"]: row for row in parquet.read_table("out/data-banned-00000-of-00001.parquet").to_pylist()}
    assert [table[text]["x"] for text in ("", "One", "Day")] == ["1", '"two"', None]
    assert table["Day"]["big"] == str(2**70)
    assert [table[text]["response"] is None for text in ("", "One", "Day")] == [True, False, False]
    assert table["One"]["tokens"] > 0


def test_the_progress_bar_of_datasets_is_hidden_and_restored_afterwards() -> None:
    assert [line.split()[1] for line in make("--to-parquet", out="out").stderr.split("\n")[:-1]] == [
        "records,",
        "Parquet",
        "phrases",
    ]
    assert not datasets.are_progress_bars_disabled()


def test_a_failed_push_loses_nothing_and_is_reported_in_one_sentence() -> None:
    result = make("--push-to-hub", "me/it", out="out")
    assert result.exit_code == 2
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("antislop:")]
    assert sentence.startswith("antislop: me/it can't be pushed to (")
    assert "log in with hf auth login" in sentence and sentence.endswith("; the data set is in out")
    assert len(texts("out/records.jsonl")) == 5
    assert Path("out/README.md").exists()


def test_a_push_uploads_parquet_and_card(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo, **_: type("Url", (), {"repo_id": f"me/{repo}"}))
    monkeypatch.setattr(HfApi, "upload_folder", lambda self, **how: calls.append(how))
    assert_made(make("--push-to-hub", "it", out="out"), "pushed to it")
    (how,) = calls
    assert (how["repo_id"], how["repo_type"], how["folder_path"]) == ("me/it", "dataset", Path("out"))
    assert how["allow_patterns"] == ["README.md", "bans.txt", "data-*.parquet"]


# -- ends -------------------------------------------------------------------------------------------------------------


def test_progress_is_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.002)
    monkeypatch.setattr(ScriptedMaker, "seconds", 0.004)
    *lines, cut, hits = make("--n", "9", "--batch-size", "2").stderr.splitlines()
    assert cut.startswith("20 of 45 texts ended by length") and hits.startswith("banned phrases in the texts: ")
    assert all(re.fullmatch(r"\d+/45, (\d+ %, )?0:00:\d\d.*", line) for line in lines[:-1])
    counts = [int(line.split("/")[0]) for line in lines[:-1]]
    assert counts == sorted(counts)
    assert len({*counts}) > 3
    assert [" left" in line for line in lines[:-1]] == [count > 1 for count in counts], "not before two records"
    assert lines[-1].startswith("45 records, ")


def test_a_terminal_shows_a_progress_bar() -> None:
    result = make("--n", "2", env={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert_made(result, "\x1b[")
    assert re.search(r"\d/10", result.stderr)


def test_the_number_of_prompts_is_known_only_for_files(folder: Path) -> None:
    Path("p.txt").write_text("a\n\n \nb\n")
    parquet.write_table(datasets.Dataset.from_dict({"prompt": ["a", "b", "c"]}).data.table, "p.parquet")
    Path("torn.parquet").write_text("no")
    names = ("p.txt", "p.parquet", "torn.parquet", "missing.jsonl", str(folder), "owner/name")
    assert [jobs.count_records(name) for name in names] == [2, 3, None, None, None, None]


def test_ctrl_c_finishes_the_texts_in_flight_and_the_run_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    make("--n", "4", out="whole.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", at_record(1, interrupt))
        result = make("--n", "4", "--pairs", "pairs.jsonl")
    assert_made(result, "finishing the texts in flight; Ctrl-C again discards them", status=130)
    made = f"stopped: {len(texts())} records of 20 in out.jsonl; run the same command again to make the rest\n"
    assert_made(result, made, status=130)
    assert 4 <= len(texts()) <= 5, "those in flight, not the other responses to the same prompts"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_made(make("--n", "4", "--pairs", "pairs.jsonl"), "resuming: ")
    assert texts() == texts("whole.jsonl")


def test_ctrl_c_skips_the_outputs_that_need_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "append", at_record(9, interrupt))
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: pytest.fail("half a data set was pushed"))
    pairs = ("--pairs", "out/pairs.jsonl", "--pairs-per-ban", "1")
    assert make("--n", "4", "--push-to-hub", "me/it", *pairs, out="out").exit_code == 130
    assert not Path("out/README.md").exists()
    bans = [row["ban"] for row in read("out/pairs.jsonl")]
    assert max(map(bans.count, bans)) > 1, "which are kept is decided in the end"


def test_a_second_ctrl_c_ends_the_command_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", at_record(1, lambda: (interrupt(), interrupt())))  # type: ignore[arg-type,return-value]
        result = make("--n", "4")
    assert_made(result, "stopped: 1 record of 20 in out.jsonl; run the same command again", status=130)
    assert len(texts()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", at_record(1, lambda: (interrupt(), interrupt())))  # type: ignore[arg-type,return-value]
        assert_made(make("--n", "4"), "stopped: 2 records of 20 in out.jsonl", status=130)
    assert_made(make("--n", "4"), "resuming: 2 records exist already", "18 records")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Limit all files to `size` bytes: meanwhile, no report of the tests must be written to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", first_quick([1000, 2500]))
def test_a_full_disk_is_reported_in_one_sentence_and_the_run_can_be_resumed(size: int, folder: Path) -> None:
    make("--n", "3", out="whole.jsonl")
    with full_disk(size):
        result = make("--n", "3", "--pairs", "pairs.jsonl")
    assert result.exit_code == 2
    fault = r"can't be written \(File too large\): choose a disk that takes larger files, and run it again to resume$"
    assert re.search(rf"^antislop: \w+\.jsonl: {fault}", result.stderr, re.M)
    make("--n", "3", "--pairs", "pairs.jsonl")
    assert texts() == texts("whole.jsonl")


def test_a_full_disk_while_parquet_is_written_is_reported_in_one_sentence() -> None:
    make(out="out")
    with full_disk(Path("out/records.jsonl").stat().st_size):
        result = make("--to-parquet", out="out")
    assert_made(result, "antislop: out: can't be written (", status=2)
    assert len(texts("out/records.jsonl")) == 5


@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs signals of POSIX")
@pytest.mark.slow
def test_a_process_of_its_own_handles_ctrl_c_and_a_closed_pipe(folder: Path) -> None:
    """Ctrl-C from a shell, and a reader of the progress that closes the pipe."""
    Path("p.txt").write_text("\n".join(PROMPTS * 40))
    command = [sys.executable, "-m", "antislop", "dataset", "p.txt", *TINY, "-o"]
    path = {**os.environ, "PYTHONPATH": str(Path(antislop.__file__).parents[1])}
    stopped = subprocess.Popen([*command, "a.jsonl", "--n", "9"], stderr=subprocess.PIPE, text=True, env=path)
    unread = subprocess.Popen([*command, "b.jsonl", "--limit", "2"], stderr=subprocess.PIPE, env=path)
    assert unread.stderr is not None
    unread.stderr.close()
    while stopped.poll() is None and not (Path("a.jsonl").exists() and Path("a.jsonl").stat().st_size):
        time.sleep(0.02)
    stopped.send_signal(signal.SIGINT)
    _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, said
    assert "finishing the texts in flight" in said
    assert "Traceback" not in said
    assert 0 < len(texts("a.jsonl")) < 1800
    assert unread.wait(60) == 141
    assert len(texts("b.jsonl")) == 2
