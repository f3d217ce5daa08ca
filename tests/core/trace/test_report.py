"""What a run reports: counts, the texts that were withdrawn, and plain data for JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from antislop import AntiSlop, Ban, BanList, InputError, Report
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import (
    Admitted,
    Conceded,
    Event,
    Finished,
    Forced,
    Rewound,
    TimedOut,
    Truncated,
    Withdrawal,
)
from antislop.display import shorten
from tests.support.families import build
from tests.support.models import build_model, build_tokenizer
from tests.support.toys import Words

TOKENIZER = build_tokenizer()
WORDS = Words(" a", " testament", " to", b" \xc3", b"\xa9")
BAN = Ban("a testament to")
MAYBE = Ban.regex("(a|b)c", weight=0.5)
EVENTS: list[Event] = [
    Rewound(3, (0, 1, 2), Violation(BAN, 3, 5)),
    Rewound(4, (3,), Violation(MAYBE, 4, 4)),
    Conceded(Violation(BAN, 6, 8)),
    Admitted(Violation(MAYBE, 9, 9)),
    TimedOut(MAYBE),
    Finished("done", 0.5),
]
ASKED: dict[str, Any] = {"max_new_tokens": 40, "do_sample": True, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def test_a_report_contains_the_withdrawn_texts() -> None:
    report = Report.of(EVENTS, surfaces=WORDS)
    assert report.withdrawn == [
        Withdrawal(" a testament to", 3, Violation(BAN, 3, 5)),
        Withdrawal(" \ufffd", 4, Violation(MAYBE, 4, 4)),
    ]
    assert [text for text, _, _ in Report.of(EVENTS).withdrawn] == [None, None]
    assert Report.total([report, report]).withdrawn == 2 * report.withdrawn


def test_a_total_lists_the_bans_that_forced_text_and_those_that_ended_one() -> None:
    forced, ended = Violation(BAN, 3, 5), Violation(Ban.loop(then="stop"), 9, 12)
    reports = [Report.of([Forced(2, forced), Finished("repetition", 0.5, None, ended)])] * 2
    total = Report.total(reports)
    assert (total.forced, total.ended) == ([forced, forced], [ended, ended])


def test_a_ban_that_was_let_through_and_withdrawn_later_is_not_left_in_the_text() -> None:
    """The violation stays counted, and those before the cut stay in the text."""
    report = Report.of([*EVENTS[2:4], Rewound(9, (1,), Violation(BAN, 9, 9))])
    assert (report.conceded, report.admitted, report.violations) == (1, 0, 2)
    assert [event.violation.start for event in report.let_through] == [6]
    report.add(Truncated(8, (1,)))
    assert (report.conceded, report.admitted, report.violations) == (0, 0, 2)
    assert report.to_dict()["let_through"] == []


def test_a_report_as_plain_data_can_be_written_as_json() -> None:
    plain = Report.of(EVENTS, surfaces=WORDS).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["withdrawn"][0] == {
        "text": " a testament to",
        "length": 3,
        "ban": "a testament to",
        "weight": 0.0,
        "start": 3,
        "end": 5,
    }
    assert plain["let_through"] == [
        {"conceded": True, "ban": "a testament to", "weight": 0.0, "start": 6, "end": 8},
        {"conceded": False, "ban": "(a|b)c", "weight": 0.5, "start": 9, "end": 9},
    ]
    assert (plain["violations"], plain["conceded"], plain["timed_out"], plain["reason"]) == (3, 1, ["(a|b)c"], "done")


def test_a_report_is_copied_without_the_vocabulary() -> None:
    report = Report.of(EVENTS, surfaces=WORDS)
    copied = pickle.loads(pickle.dumps(report))
    assert copied == report
    assert copied.surfaces is None


def test_the_texts_are_those_of_the_tokenizer(llama: PreTrainedModel) -> None:
    sampler = AntiSlop(TOKENIZER, [Ban("a", edges="anywhere")])
    prompts = torch.tensor([[5, 9], [4, 8]])
    set_seed(0)
    out = sampler.generate(llama, prompts, attention_mask=torch.ones_like(prompts), **ASKED)
    assert out.report.rewinds > 1
    assert all("a" in text for text, _, _ in out.report.withdrawn)
    rows = [withdrawal for report in out.reports for withdrawal in report.withdrawn]
    assert out.report.withdrawn == rows
    assert len(rows) == out.report.rewinds
    (done,) = sampler.generate_many(llama, [[5, 9]], seed=1, max_new_tokens=40, do_sample=True)
    assert len(done.report.withdrawn) == done.report.rewinds
    assert all("a" in text for text, _, _ in done.report.withdrawn)


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", GenerateDecoderOnlyOutput), ("t5", GenerateEncoderDecoderOutput)]
)
def test_an_output_is_that_of_transformers_with_three_more_fields(family: str, kind: type) -> None:
    model = build_model() if family == "llama" else build(family)
    prompt = torch.tensor([[5, 9, 4]])
    asked = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 4, "return_dict_in_generate": True}
    theirs = model.generate(prompt, **asked, output_scores=True)
    ours = AntiSlop(TOKENIZER, []).generate(model, prompt, **asked, output_scores=True)
    assert isinstance(ours, kind)
    assert isinstance(ours.report, Report) and ours.reports == [ours.report]
    added = {"report", "reports", "trace", "texts"}
    assert {"sequences", "scores", *added} <= set(ours.keys()) <= {*theirs.keys(), *added}
    assert torch.equal(ours["sequences"], theirs.sequences)
    assert torch.equal(ours[0], theirs[0])


def test_an_output_has_its_texts_and_prints_on_a_line(llama: PreTrainedModel) -> None:
    sampler = AntiSlop(TOKENIZER, ["ad"])
    ids = TOKENIZER(["abad fab", "ab"], return_tensors="pt", padding=True, padding_side="left")
    out = sampler.generate(llama, **ids, **ASKED, num_return_sequences=2, output_scores=True)
    size = ids["input_ids"].shape[1]
    assert out.texts == TOKENIZER.batch_decode(out.sequences[:, size:], skip_special_tokens=True)
    assert all(out.texts)
    with pytest.raises(InputError, match=r"^the output has 4 texts, and text is for a single one: use texts$"):
        out.text  # noqa: B018 - it raises
    assert pickle.loads(pickle.dumps(out.trace)).to_text(row=3) == out.trace.to_text(row=3)
    assert repr(out) == str(out) == f"<DecoderOnlyOutput with {', '.join(out)}: {shorten(repr(out.texts), 60)}>"
    (done,) = sampler.generate_many(llama, ["abad fab"], max_new_tokens=40)
    assert sampler.generate(llama, "abad fab", max_new_tokens=40, return_dict_in_generate=True).text == done.text != ""


def test_a_report_prints_only_the_counts_that_are_not_zero() -> None:
    assert repr(Report()) == "Report()"
    report = Report(rewinds=2, parent=0, timed_out=[BAN], matcher_seconds=0.5, reason="done", events=EVENTS)
    counts = "rewinds=2, parent=0, timed_out=[Ban('a testament to')], matcher_seconds=0.5, reason='done'"
    assert repr(report) == f"Report({counts})"


def test_a_notebook_shows_a_sampler_as_its_options_and_its_bans() -> None:
    bans = BanList(["a <b>", "b"], source="slop.txt")
    shown = AntiSlop(TOKENIZER, bans, max_rewinds=7)._repr_html_()
    assert "max_rewinds=7" in shown and bans._repr_html_() in shown
    assert "<b>" not in shown and shown.index("2 bans") < shown.index("</summary>")


def test_the_representation_of_a_sampler_shows_its_bans_and_options() -> None:
    bans = BanList(["a", "b"], source="slop.txt")
    assert repr(AntiSlop(TOKENIZER, bans)) == "<AntiSlop: 2 bans from slop.txt, method='exact', on_exhausted='concede'>"
    shown = repr(AntiSlop(TOKENIZER, ["a"], method="token", on_exhausted="stop"))
    assert shown == "<AntiSlop: 1 ban, method='token', on_exhausted='stop'>"
    shown = repr(AntiSlop(TOKENIZER, BanList(["a"], source="my stories\n" * 20)))
    assert (len(shown), shown[:26], shown[-42:]) == (
        80,
        "<AntiSlop: 1 ban from my s",
        "…, method='exact', on_exhausted='concede'>"[-42:],
    )
