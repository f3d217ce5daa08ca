"""A data set is the same whether it is made at once or killed and resumed many times, in any order and batch."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from antislop import AntiSlop, Ban, BanList
from antislop.core.bans.ban_list import read_bans
from antislop.core.hf.compiled_bans import chat_scope
from antislop.core.trace.events import Completion
from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.pair_maker import MAX_CONTINUATION_TOKENS
from antislop.datasets.samples import Arm, SampleSpec, Summary, fingerprint_items, identify, plan_samples
from antislop.datasets.writing import PairFile, open_journal, resume, write_records
from antislop.errors import InputError
from antislop.files.journal import Journal, Record, read_records
from antislop.files.prompts import Prompt
from tests.support.models import build_model, build_spaced_tokenizer, build_tokenizer, poisoned
from tests.support.refusals import refused

TOKENIZER = build_tokenizer()
MODEL = build_model("llama")
BANS = [Ban(phrase, edges="anywhere") for phrase in ("ab", "c", "fe", "ea")]
GENERATION = {"max_new_tokens": 20, "do_sample": True, "top_k": 0, "suppress_tokens": [0], "pad_token_id": 1}
PROMPTS = [
    Prompt(f"p{i}", text, None, {"id": f"p{i}"}) for i, text in enumerate(["a b", "c", "d d d", "ef ", "g", "ha"])
]


def maker(**options: Any) -> ModelRecordMaker:
    return ModelRecordMaker(MODEL, TOKENIZER, BANS, **{"settings": GENERATION, "batch_size": 3, "seed": 5, **options})


def make(prompts: Iterable[Prompt] = PROMPTS, *, samples: int = 2, arm: Arm = "banned", **options: Any) -> list[Record]:
    return [made.record for made in maker(**options).make(plan_samples(prompts, samples=samples, arm=arm), arm=arm)]


def by_identity(records: Iterable[Record]) -> dict[Any, Record]:
    """Records by their identity, without their seconds."""
    named = [(identify(record), {k: v for k, v in record.items() if k != "seconds"}) for record in records]
    assert len(dict(named)) == len(named), "none comes twice"
    return dict(named)


def write(folder: Path, prompts: Sequence[Prompt] = PROMPTS, **options: Any) -> tuple[list[Record], list[Record]]:
    """Make or resume a data set with pairs; return its records and pairs."""
    with Journal(folder / "out.jsonl", {}, identify=identify, is_done=lambda r: r["status"] != "error") as journal:
        pairs = PairFile(folder / "pairs.jsonl", journal, kind="dpo")
        engine = maker(pairs="dpo", **options)
        for _ in write_records(engine, lambda: prompts, journal, samples=3, arms=("plain", "banned"), pairs=pairs):
            pass
        pairs.finish()
    return list(read_records(folder / "out.jsonl")), list(read_records(folder / "pairs.jsonl"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], list[Record]]:
    return write(tmp_path_factory.mktemp("undisturbed"))


def test_a_record_contains_the_columns_of_its_prompt_and_its_result() -> None:
    (record,) = make([Prompt("k", "a b", None, {"topic": "x"})], samples=1)
    assert record["topic"] == "x"
    assert (record["prompt"], record["key"], record["sample"], record["arm"]) == ("a b", "k", 0, "banned")
    assert (record["status"], record["error"]) == ("ok", None)
    assert BanList(BANS).find(record["response"]) == []
    assert 0 < record["tokens"] <= 20
    assert record["withdrawn_tokens"] == sum(record["withdrawn"].values()) >= sum(record["violations"].values()) > 0
    assert json.loads(json.dumps(record)) == record


def test_a_record_says_whether_the_text_ended_or_was_cut() -> None:
    """Naively: by the characters that the latest token adds. A stop string may begin in the prompt."""
    end, stops, seen, written = TOKENIZER.eos_token_id, ["ab", "ccc", "b d"], Counter[str](), dict[Any, list[int]]()

    class Watched(ModelRecordMaker):
        def make_record(self, spec: SampleSpec, completion: Any, **more: Any) -> Record:
            written[spec.identity] = completion.tokens
            return super().make_record(spec, completion, **more)

    for length in (1, 2, 6):
        settings = {**GENERATION, "max_new_tokens": length, "suppress_tokens": None, "stop_strings": stops}
        watched = Watched(MODEL, TOKENIZER, [], settings=settings, seed=length, arms=["plain"])
        for made in watched.make(plan_samples(PROMPTS, samples=12, arm="plain"), arm="plain"):
            record, tokens = made.record, written[identify(made.record)]
            *before, latest = (TOKENIZER.decode([token]) for token in tokens)
            text, start = record["prompt"] + "".join(before) + latest, len(record["prompt"] + "".join(before))
            is_stopped = any(start < at + len(stop) for stop in stops for at in [text.rfind(stop)] if at >= 0)
            expected = "stop" if tokens[-1] == end or is_stopped else "length"
            assert record["finish_reason"] == expected, (length, text)
            seen[f"{expected}, {len(tokens) == length}"] += 1
    assert min(seen["stop, True"], seen["stop, False"], seen["length, True"]) > 3, seen
    assert seen["length, False"] == 0
    refused("add the limit of each text", ModelRecordMaker, MODEL, TOKENIZER, [], settings={"do_sample": True})


def test_records_and_reports_say_in_which_parts_of_their_messages_the_rewinds_were() -> None:
    template = {"start_anchor": "hh", "fields": {"thinking": {"open": "g", "close": "d"}, "content": {}}}
    bans = read_bans(BanList(BANS), scopes=[chat_scope(template, "all")])
    seam = ModelRecordMaker(MODEL, TOKENIZER, bans, settings=GENERATION, seed=5)
    records = [made.record for made in seam.make(plan_samples(PROMPTS, samples=4, arm="banned"))]
    counts = [Counter(record.get("rewinds_by_part", {})) for record in records]
    assert [sum(count.values()) for count in counts] == [sum(record["violations"].values()) for record in records]
    assert min(sum(counts, Counter())[part] for part in ("thinking", "answer")) > 5
    assert "rewinds_by_part" not in make([PROMPTS[0]], samples=1)[0]
    torch.manual_seed(7)
    out = AntiSlop(TOKENIZER, bans).generate(MODEL, "a g", **GENERATION, return_dict_in_generate=True)
    assert out.report.rewinds_by_part["thinking"] > 0
    assert out.report.to_dict()["rewinds_by_part"] == out.report.rewinds_by_part


def test_a_record_is_the_same_in_any_subset_order_and_batch() -> None:
    whole = by_identity(make())
    assert len(whole) == 12
    shuffled = random.Random(0).sample(PROMPTS, 4)
    for prompts, size in ((PROMPTS, 1), (PROMPTS, 16), (shuffled, 2), (PROMPTS[2:3], 3)):
        some = by_identity(make(prompts, batch_size=size))
        assert some == {identity: whole[identity] for identity in some}


def test_another_seed_makes_other_records() -> None:
    assert by_identity(make()).keys() == by_identity(make(seed=6)).keys()
    assert by_identity(make()) != by_identity(make(seed=6))


def test_a_prompt_and_its_response_read_as_the_tokenizer_decodes_both() -> None:
    """SentencePiece decoders remove the space in front of the response if they decode it alone."""
    tokenizer = build_spaced_tokenizer()
    settings = {**GENERATION, "suppress_tokens": [*range(len(tokenizer), 48)]}
    seam = ModelRecordMaker(MODEL, tokenizer, BANS, settings=settings, seed=5, batch_size=3)
    made = [made.record for made in seam.make(plan_samples(PROMPTS, samples=3, arm="banned"))]
    sampler = AntiSlop(tokenizer, BANS)
    for record in made:
        ids = tokenizer(record["prompt"])["input_ids"]
        (done,) = sampler.generate_many(MODEL, [ids], seeds=[record["seed"]], **settings)
        whole = tokenizer.decode([*ids, *done.tokens], skip_special_tokens=True)
        assert record["prompt"] + record["response"] == record["prompt"] + done.text == whole
        torch.manual_seed(record["seed"])
        streamed = "".join(sampler.stream(MODEL, torch.tensor([ids]), **settings))
        torch.manual_seed(record["seed"])
        written = sampler.generate(MODEL, torch.tensor([ids]), **settings)[0]
        assert record["prompt"] + streamed == tokenizer.decode(written, skip_special_tokens=True)
    spaced = [record["response"].startswith(" ") for record in made]
    assert any(spaced)
    assert not all(spaced)


def test_a_reply_of_a_chat_does_not_begin_with_the_space_that_the_tokenizer_writes_between_words() -> None:
    tokenizer = build_spaced_tokenizer()
    seam = ModelRecordMaker(
        MODEL, tokenizer, BANS, settings=GENERATION | {"suppress_tokens": [*range(17), *range(26, 48)]}
    )
    chat = [{"role": "user", "content": "a"}]
    prompts = [Prompt("chat", "a b", chat, {}, has_special_tokens=True), Prompt("text", "a b", None, {})]
    replies = {made.record["key"]: made.record for made in seam.make(plan_samples(prompts, samples=1, arm="plain"))}
    assert not replies["chat"]["response"].startswith(" ")
    assert replies["chat"]["messages"][-1]["content"] == replies["chat"]["response"]
    assert replies["text"]["response"].startswith(" ")


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (Prompt("bad", "", None, {}, error="out.jsonl:3: not JSON"), "out.jsonl:3: not JSON"),
        (Prompt("bad", "", None, {}, has_special_tokens=True), "the prompt has no token"),
        (Prompt("bad", "a " * 400, None, {}), "more than the model's 512: shorten it"),
    ],
)
def test_an_unusable_prompt_is_a_failed_record_and_the_others_continue(prompt: Prompt, sentence: str) -> None:
    records = make([*PROMPTS[:2], prompt, *PROMPTS[2:]], samples=1)
    assert len(records) == 7
    (failed,) = [record for record in records if record["status"] == "error"]
    assert sentence in failed["error"]
    assert failed["response"] is None
    assert by_identity(r for r in records if r is not failed) == by_identity(make(samples=1))


def test_a_prompt_without_probabilities_is_a_failed_record_on_each_resume_and_the_others_continue(
    tmp_path: Path, undisturbed: tuple[list[Record], list[Record]]
) -> None:
    """One NaN ended the run with a traceback, and each resumed run too."""
    bad = Prompt("bad", "j", None, {})
    with poisoned(MODEL, TOKENIZER("j")["input_ids"][0]):
        for _ in range(2):
            records = by_identity(write(tmp_path / "poisoned", [PROMPTS[0], bad, *PROMPTS[1:]])[0])
            failed = {identity for identity, record in records.items() if record["status"] == "error"}
            assert {identity for identity in records if identity[0] == "bad"} <= failed
            assert all("logits are NaN or infinite" in records[identity]["error"] for identity in failed)
            whole = by_identity(undisturbed[0])
            assert all(records[identity] == whole[identity] for identity in records.keys() - failed)
            assert 6 <= len(failed) < len(records) - 12 and len(records) == len(whole) + 6


def test_prompts_that_all_fail_are_records() -> None:
    bad = Prompt("bad", "", None, {}, error="empty")
    assert [record["status"] for record in make([bad])] == ["error", "error"]


def _write_until_killed(folder: Path) -> None:
    write(folder)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore")  # that a process with threads was forked
def test_a_run_that_is_killed_at_any_moment_loses_nothing_and_writes_nothing_twice(
    tmp_path: Path, undisturbed: tuple[list[Record], list[Record]]
) -> None:
    chance, kills, fork = random.Random(1), 0, multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    for folder in (tmp_path / str(number) for number in range(99)):
        folder.mkdir()
        longest = 0.1
        while True:
            process = fork.Process(target=_write_until_killed, args=(folder,))
            process.start()
            process.join(chance.uniform(0.02, longest))
            if process.exitcode is not None:
                break
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            kills += 1
            longest *= 1.2  # until it suffices, however slow the machine is
        assert process.exitcode == 0
        records, pairs = list(read_records(folder / "out.jsonl")), list(read_records(folder / "pairs.jsonl"))
        assert by_identity(records) == by_identity(undisturbed[0])
        assert sorted(map(json.dumps, pairs)) == sorted(map(json.dumps, undisturbed[1]))
        if kills >= 20:
            return


def test_a_text_that_failed_half_way_leaves_no_pairs() -> None:
    """Otherwise they would be written twice when the text is made again, or prevent that."""

    class Breaking(ModelRecordMaker):
        def make_record(self, *args: Any, **kwargs: Any) -> Record:
            return {**super().make_record(*args, **kwargs), "status": "error", "error": "the server is gone"}

    specs = list(plan_samples(PROMPTS, samples=2, arm="banned"))
    kinds = [
        kind(MODEL, TOKENIZER, BANS, settings=GENERATION, seed=5, pairs="dpo") for kind in (ModelRecordMaker, Breaking)
    ]
    whole, broken = (list(each.make(specs)) for each in kinds)
    assert any(made.pairs for made in whole)
    assert not any(made.pairs for made in broken)


def test_two_journals_do_not_write_pairs_into_one_file_at_a_time(tmp_path: Path) -> None:
    with open_journal(tmp_path / "a.jsonl", {}) as one, open_journal(tmp_path / "b.jsonl", {}) as other:
        PairFile(tmp_path / "pairs.jsonl", one, kind="dpo")
        refused(r"pairs.jsonl: another process is writing to it", PairFile, tmp_path / "pairs.jsonl", other, kind="dpo")
    with open_journal(tmp_path / "b.jsonl", {}) as other:
        PairFile(tmp_path / "pairs.jsonl", other, kind="dpo")


def test_a_changed_prompt_is_detected_while_writing_too(tmp_path: Path) -> None:
    """A caller of `resume` gets the error before any text is made, other callers at the prompt."""
    changed = [PROMPTS[0], Prompt("p1", "d", None, {})]
    with open_journal(tmp_path / "out.jsonl", {}) as journal:
        list(write_records(maker(), lambda: PROMPTS[:2], journal))
        with pytest.raises(InputError, match=r"1 of its records answer prompts that have changed; 'p1' had 'c', and"):
            list(write_records(maker(), lambda: changed, journal))
        with pytest.raises(InputError, match="'p1' had 'c', and now has 'd'"):
            resume(journal, plan_samples(changed, samples=1, arm="banned"))
        assert resume(journal, plan_samples(changed, samples=1, arm="banned"), force=True) == (1, 0)
        (made,) = write_records(maker(), lambda: changed, journal)
        assert made["prompt"] == "d"
    assert [record["prompt"] for record in read_records(tmp_path / "out.jsonl")] == ["a b", "d"]


def test_records_that_failed_are_made_again(tmp_path: Path) -> None:
    bad = Prompt("p1", "", None, {}, error="torn")
    records, _ = write(tmp_path, [PROMPTS[0], bad])
    assert [r["status"] for r in records].count("error") == 6
    records, _ = write(tmp_path, PROMPTS[:2])
    assert len(by_identity(records)) == 12
    assert all(record["status"] == "ok" for record in records)


def test_pairs_are_of_texts_that_were_written(undisturbed: tuple[list[Record], list[Record]]) -> None:
    records, pairs = undisturbed
    banned = by_identity(record for record in records if record["arm"] == "banned")
    assert banned == by_identity(make(samples=3)), "pairs change no record"
    texts = {(r["key"], r["sample"]): r["prompt"] + r["response"] for r in records if r["arm"] == "banned"}
    assert len(pairs) > 9
    for row in pairs:
        text = texts[row["key"], row["sample"]]
        assert text.startswith(row["prompt"] + row["chosen"])
        assert BanList(BANS).find(row["rejected"])
        assert row["chosen"].endswith(".") or text == row["prompt"] + row["chosen"]


def test_pairs_do_not_depend_on_the_batches_of_their_texts_and_continuations() -> None:
    def pairs(prompts: Sequence[Prompt], **options: Any) -> list[str]:
        specs = plan_samples(prompts, samples=3, arm="banned")
        made = maker(pairs="dpo", **options).make(specs)
        return sorted(json.dumps(row) for one in made for row in one.pairs)

    whole = pairs(PROMPTS, batch_size=16)
    assert len(whole) > 9
    assert pairs(PROMPTS[:2], batch_size=1) == [row for row in whole if json.loads(row)["key"] in ("p0", "p1")]
    shuffled = random.Random(0).sample(PROMPTS, 4)
    keys = {prompt.key for prompt in shuffled}
    assert pairs(shuffled, batch_size=2) == [row for row in whole if json.loads(row)["key"] in keys]


def test_a_rejected_text_continues_the_withdrawn_tokens_without_bans() -> None:
    """The naive way: each text alone, to a fixed length, and cut afterwards."""
    engine, naive = maker(pairs="dpo", batch_size=2), AntiSlop(TOKENIZER, [])
    assert engine._pair_maker is not None
    write, asked = engine._pair_maker.write, list[tuple[list[int], int]]()

    def spy(prompts: Iterator[list[int]], seeds: Iterator[int], *, settings: dict[str, Any]) -> Iterator[Completion]:
        pairs = list(zip(prompts, seeds, strict=False))
        asked.extend(pairs)
        return write((ids for ids, _ in pairs), (seed for _, seed in pairs), settings=settings)

    engine._pair_maker.write = spy
    made = [row for one in engine.make(plan_samples(PROMPTS, samples=3, arm="banned")) for row in one.pairs]
    expected = []
    for ids, seed in asked:
        settings = {**GENERATION, "max_new_tokens": MAX_CONTINUATION_TOKENS}
        (done,) = naive.generate_many(MODEL, [ids], seeds=[seed], **settings)
        expected.append(TOKENIZER.decode([*ids, *done.tokens], skip_special_tokens=True))
    assert len(made) > 9
    for row in made:
        assert any(text.startswith(row["prompt"] + row["rejected"]) for text in expected)


def test_a_record_whose_continuation_failed_is_made_again() -> None:
    engine = maker(pairs="dpo")
    assert engine._pair_maker is not None
    write = engine._pair_maker.write

    def fail(*args: Any, **kwargs: Any) -> Iterator[Completion]:
        return (replace(done, error=ValueError("the server is gone")) for done in write(*args, **kwargs))

    engine._pair_maker.write = fail
    made = list(engine.make(plan_samples(PROMPTS, samples=2, arm="banned")))
    failed = [one for one in made if one.record["status"] == "error"]
    assert {one.record["error"] for one in failed} == {"the server is gone"}
    assert not any(one.pairs for one in failed)
    assert len(made) == 12 > len(failed)


def test_a_chat_prompt_is_given_to_trainers_without_the_token_that_they_put_in_front() -> None:
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    engine = ModelRecordMaker(MODEL, tokenizer, BANS, settings=GENERATION, pairs="tokens")
    for text, has_special_tokens in (("<s>a b", True), ("a b", False)):
        prompt = Prompt("k", text, None, {}, has_special_tokens=has_special_tokens)
        specs = [SampleSpec(prompt, number, "banned") for number in range(20)]
        rows = [row for made in engine.make(specs) for row in made.pairs]
        assert rows, "a text of twenty has a ban"
        assert all(row["context_ids"][0] == tokenizer.bos_token_id for row in rows)
        read = [tokenizer(row["context_with_chat_template"])["input_ids"] for row in rows]
        assert {ids.count(tokenizer.bos_token_id) for ids in read} == {1}


def test_a_summary_adds_up_what_was_made() -> None:
    records, summary = make(), Summary()
    for record in [*records, {"status": "error"}]:
        summary.add(record)
    assert (summary.records, summary.failed) == (12, 1)
    assert summary.tokens == sum(record["tokens"] for record in records)
    assert "12 records" in summary.describe()
    assert "1 failed" in summary.describe()
    assert "conceded" not in summary.describe()
    summary.add({**records[0], "conceded": {"a b": 2, "c": 1}})
    assert "3 conceded, 1 failed" in summary.describe()


def test_a_list_has_a_fingerprint_of_its_bans() -> None:
    prints = {fingerprint_items(BanList(bans)) for bans in (BANS, BANS[1:], [*BANS[:-1], Ban("ea")])}
    assert len(prints) == 3
    assert fingerprint_items(BanList(BANS, source="x")) == fingerprint_items(BanList(BANS, source="y"))


def test_the_seconds_of_a_text_are_at_most_those_of_the_run() -> None:
    began = time.monotonic()
    assert all(0 <= record["seconds"] <= time.monotonic() - began for record in make())


def test_each_arm_has_the_same_seeds_and_its_own_way_to_write() -> None:
    arms: tuple[Arm, ...] = ("plain", "banned", "token", "prompt-only")
    made = {arm: by_identity(make(arm=arm, arms=arms)) for arm in arms}
    seeds = [{(key, sample): r["seed"] for (key, sample, _), r in records.items()} for records in made.values()]
    assert all(each == seeds[0] for each in seeds)
    texts = [[record["response"] for record in records.values()] for records in made.values()]
    assert all(a != b for i, a in enumerate(texts) for b in texts[:i])
    assert not any(BanList(BANS).find(record["response"]) for record in made["token"].values())
    assert {record["prompt"] for record in made["prompt-only"].values()} == {prompt.text for prompt in PROMPTS}
    assert {record["asked_phrases"] for record in made["prompt-only"].values()} == {4}
    assert not any(record["withdrawn"] for record in made["prompt-only"].values())
