"""A trace holds what happened, and comes back from a file as it was, or not at all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import LogitsProcessorList, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.bans import Violation
from antislop.core.trace import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Finished,
    Forced,
    Forked,
    Forwarded,
    Rewound,
    Settled,
    TimedOut,
    TokenChoice,
    Trace,
    Truncated,
)
from antislop.core.trace.events import Event
from antislop.errors import InputError
from tests.support.depth import DEPTH
from tests.support.memory import find_tensors
from tests.support.models import EACH_FAMILY, build_model, build_tokenizer
from tests.support.traces import SPLIT, make_random_events, make_trace

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[5, 6, 7, 8]])
ASKED: dict[str, Any] = {"max_new_tokens": 60, "min_new_tokens": 60, "do_sample": True, "return_dict_in_generate": True}

FACTS: dict[str, Any] = {
    "model": {"name": "toy", "type": "Toy", "dtype": "float32", "device": "cpu"},
    "tokenizer": {"name": "toy", "fingerprint": "0"},
    **dict.fromkeys(("controller", "assistant")),
    **{name: {} for name in ("sampler", "settings", "versions")},
    **{name: [] for name in ("stop_strings", "processors", "criteria", "inputs")},
    "record": "top",
    "record_top_k": 10,
    "seed": 0,
}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@pytest.fixture(scope="module")
def sampler() -> AntiSlop:
    bans = [Ban("ab", edges="anywhere", weight=0.3), Ban.regex("[cd] ?e", weight=0.5), Ban("f", edges="anywhere")]
    return AntiSlop(TOKENIZER, bans)


def generate(sampler: AntiSlop, model: PreTrainedModel, **options: Any) -> Any:
    set_seed(0)
    options = {**ASKED, **options}
    inputs = options.pop("inputs", PROMPT)
    options.setdefault("attention_mask", torch.ones_like(inputs))
    return sampler.generate(model, inputs, pad_token_id=0, **options)


def test_recording_changes_neither_the_text_nor_the_random_numbers(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    outs = {level: generate(sampler, llama, record=level) for level in ("none", "events", "top", "full")}
    first = outs["events"]
    assert first.report.rewinds > 5
    for level, out in outs.items():
        assert torch.equal(out.sequences, first.sequences)
        assert out.report.to_dict() | {"matcher_seconds": 0} == first.report.to_dict() | {"matcher_seconds": 0}
        assert (out.trace is None) == (out.report.events == []) == (level == "none")
    for level, count in (("top", 10), ("full", len(TOKENIZER))):
        draws = [event for event in outs[level].trace.rows[0].events if isinstance(event, Drawn)]
        assert all(draw.choice and len(draw.choice.alternatives) <= count for draw in draws)
        assert max(len(draw.choice.alternatives) for draw in draws if draw.choice) >= min(count, 47)
    assert all(event.choice is None for event in first.trace.rows[0].events if isinstance(event, Drawn))


@pytest.mark.parametrize("family", EACH_FAMILY)
@pytest.mark.parametrize("do_sample", [True, False])
def test_probabilities_are_those_of_a_clean_forward_pass(family: str, do_sample: bool) -> None:
    """The kept token's probability, whatever was withdrawn before it, is that of plain generate's processors."""
    model = build_model(family)
    sampler = AntiSlop(TOKENIZER, [Ban(letters, edges="anywhere") for letters in ("a", "be", "cc", "cd", "d", "f")])
    out = generate(
        sampler, model, record="top", do_sample=do_sample, **({"temperature": 3.0, "top_k": 0} if do_sample else {})
    )
    assert out.report.rewinds >= (20 if do_sample else 5)
    logits = model(out.sequences).logits[0, PROMPT.shape[1] - 1 : -1].float()
    logits[:, 1] = -torch.inf  # min_new_tokens
    expected = torch.softmax(logits / (3.0 if do_sample else 1), dim=-1)
    for kept in out.trace.rows[0].history.kept:
        assert kept.choice is not None
        assert abs(kept.choice.probability - float(expected[kept.token_index, kept.token])) <= 1e-4


def test_a_share_is_the_part_of_what_was_left_and_its_rank_the_place_there(llama: PreTrainedModel) -> None:
    """With bans that one token completes, the mass of the rejected tokens is exactly what is gone."""
    sampler = AntiSlop(TOKENIZER, [Ban.tokens([token]) for token in range(10, 30)])
    out = generate(sampler, llama, record="full", top_k=0)
    assert out.report.rewinds > 3
    banned = set(range(10, 30))
    for kept in out.trace.rows[0].history.kept:
        assert kept.choice is not None
        shares = dict(kept.choice.alternatives)
        assert shares[kept.token] == kept.choice.share
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
        assert kept.choice.rank == 1 + sum(share > kept.choice.share for share in shares.values())
        assert not {attempt.tokens[0] for attempt in kept.rejected} & shares.keys()
        assert not kept.rejected or banned & shares.keys() < banned


@pytest.mark.slow
def test_no_tensor_of_the_vocabulary_is_alive_after_the_call(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    size = llama.config.vocab_size
    before = set(map(id, find_tensors(size)))
    for level in ("events", "top"):
        out = generate(sampler, llama, record=level)
        assert not [tensor.shape for tensor in find_tensors(size) if id(tensor) not in before]
        assert out.trace.rows[0].tokens == out.sequences[0, PROMPT.shape[1] :].tolist()


def test_a_trace_comes_back_from_its_file_as_it_was(llama: PreTrainedModel, sampler: AntiSlop, tmp_path: Path) -> None:
    inputs, mask = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    for level in ("events", "top", "full"):
        out = generate(sampler, llama, inputs=inputs, attention_mask=mask, record=level)
        out.trace.save(tmp_path / "a.jsonl")
        loaded = Trace.load(tmp_path / "a.jsonl")
        assert loaded.rows == out.trace.rows
        assert loaded.about["inputs"] == []
        assert loaded.about.keys() == out.trace.about.keys()
        assert {**loaded.about} == json.loads(json.dumps(out.trace.about))
        assert loaded.bans == sampler.bans
        assert loaded.rows[0].mask == (0, 0, 1, 1) and loaded.rows[1].mask == (1, 1, 1, 1)
        assert loaded.sequences[0][:2] == [5, 6]
        choices = [[kept.choice for kept in row.history.kept] for row in loaded.rows]
        assert choices == [[kept.choice for kept in row.history.kept] for row in out.trace.rows]
        loaded.save(tmp_path / "b.jsonl")
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.mark.parametrize("seed", range(10 * DEPTH))
def test_any_events_come_back_from_a_file(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    trace = make_trace(SPLIT, *(make_random_events(chance) for _ in range(3)), prompt=[0, 1], about=FACTS)
    for call in (trace.save, Trace.load):
        with pytest.raises(InputError, match="a path was expected, not 3: pass a str or a Path"):
            call(3)  # type: ignore[arg-type, operator]
    trace.save(tmp_path / "trace.jsonl")
    loaded = Trace.load(tmp_path / "trace.jsonl")
    assert repr(loaded.rows) == repr(trace.rows)  # choices and alternatives too, which don't count for equality
    assert [loaded.pieces(row=row) for row in range(3)] == [trace.pieces(row=row) for row in range(3)]


FOUND = Violation(Ban("a b"), 0, 1)
EACH: list[Event] = [
    Forked(0, 0, 1),
    Forwarded(4, 0),
    Drafted(2, 1),
    Drawn(0, TokenChoice(0.5, 1.0, 1, ((0, 1.0), (2, 0.0)))),
    Drawn(1),
    Rewound(1, (1,), FOUND, ((3, 0.5),)),
    Drawn(4),
    Truncated(1, (4,)),
    Admitted(FOUND),
    Conceded(FOUND),
    Conceded(FOUND, "Grammar"),
    Forced(1, FOUND),
    TimedOut(FOUND.ban),
    Settled((0,)),
    Finished("exhausted", 0.25, "Grammar", FOUND),
]


def test_each_kind_of_event_comes_back_from_a_file(tmp_path: Path) -> None:
    assert {type(event) for event in EACH} == {*get_args(Event)}
    make_trace(SPLIT, EACH, about=FACTS).save(tmp_path / "trace.jsonl")
    assert repr(Trace.load(tmp_path / "trace.jsonl").rows[0].events) == repr(tuple(EACH))


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ('"fed": 4', '"fed": true'),
        ('"fed": 4', '"fed": 4.0'),
        ('"fed": 4', '"fad": 4'),
        ('"fed": 4, ', ""),
        ("[[0, 1.0], [2, 0.0]]", "[[0, 1.0, 2]]"),
        ('"rank": 1', '"rank": "1"'),
        ('"withdrawn": [1]', '"withdrawn": 1'),
        ('"end": 1', '"and": 1'),
        ('"constrained_by": "Grammar"', '"constrained_by": 1'),
        ('"exhausted"', '"tired"'),
    ],
)
def test_an_event_with_a_field_that_is_missing_unknown_or_of_another_type_is_refused(
    written: str, changed: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    make_trace(SPLIT, EACH, about=FACTS).save(path)
    text = path.read_text(encoding="utf-8")
    assert written in text
    path.write_text(text.replace(written, changed, 1), encoding="utf-8")
    with pytest.raises(InputError, match="not a line of a trace: the file was changed"):
        Trace.load(path)


def test_a_file_that_was_cut_or_changed_is_refused_with_its_line(
    llama: PreTrainedModel, sampler: AntiSlop, tmp_path: Path
) -> None:
    out = generate(sampler, llama, record="top")
    path = tmp_path / "trace.jsonl"
    out.trace.save(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    drawn = next(i for i, line in enumerate(lines) if '"Drawn"' in line)
    rewound = next(i for i, line in enumerate(lines) if '"Rewound"' in line)
    changes = {
        "": "not a trace",
        "\n".join(lines[:-1]): "ends early",
        "\n".join(lines[:1]): "ends early",
        "\n".join([*lines, lines[-1]]): "not a line of a trace",
        "\n".join([lines[0].replace('"version": 1', '"version": 2'), *lines[1:]]): "version 2",
        "\n".join([lines[0], lines[1].replace("ab", "ba"), *lines[2:]]): "trace.jsonl:2: .*bans",
        "\n".join([*lines[:drawn], *lines[drawn + 1 :]]): "sequences",
        "\n".join([*lines[:drawn], '{"row": 0, "event": "Elara"}', *lines[drawn:]]): (
            f"trace.jsonl:{drawn + 1}: there is no event Elara: use the version"
        ),
        "\n".join([*lines[:3], '{"row": -1, "event": "Drawn", "token": 5}', *lines[3:]]): "trace.jsonl:4: .*text -1",
        "\n".join([*lines[:drawn], "{", *lines[drawn:]]): f"trace.jsonl:{drawn + 1}: .*JSON",
        "\n".join([*lines[:drawn], "7", *lines[drawn:]]): f"trace.jsonl:{drawn + 1}: ",
        "\n".join([*lines[:rewound], lines[rewound].replace('"ban": ', '"ban": 9'), *lines[rewound + 1 :]]): (
            f"trace.jsonl:{rewound + 1}: "
        ),
    }
    for text, message in changes.items():
        assert text != "\n".join(lines)
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            Trace.load(path)


def test_a_stream_of_events_has_the_trace_so_far(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    set_seed(0)
    stream = sampler.events(llama, PROMPT, record="top", **{**ASKED, "return_dict_in_generate": False})
    events = [next(stream) for _ in range(10)]
    assert stream.trace is not None
    assert list(stream.trace.rows[0].events) == events
    events += list(stream)
    assert list(stream.trace.rows[0].events[: len(events)]) == events
    assert any(isinstance(event, Finished) for event in events)
    assert any(isinstance(event, Rewound) for event in events)
    assert stream.trace.sequences == generate(sampler, llama).trace.sequences


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record": "all"}, "record is 'all'; it is one of 'none'"),
        ({"record": "top", "record_top_k": 0}, "record_top_k is 0"),
        ({"record": "top", "return_dict_in_generate": False}, "pass return_dict_in_generate=True"),
    ],
)
def test_recordings_that_could_not_be_read_are_refused(
    llama: PreTrainedModel, sampler: AntiSlop, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(sampler, llama, **options)


def test_generate_many_says_where_its_events_are(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    with pytest.raises(ValueError, match="each Completion has its events"):
        list(sampler.generate_many(llama, ["a"], record="top"))


def test_the_facts_name_what_was_passed_beside_the_settings(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    class Mine:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores

    out = generate(sampler, llama, logits_processor=LogitsProcessorList([Mine()]), stop_strings=["ab,"], top_p=0.9)
    about = out.trace.about
    assert {"Mine", "TopPLogitsWarper"} <= {*about["processors"]}
    assert about["stop_strings"] == ["ab,"] and about["inputs"] == [] and about["assistant"] is None
    assert about["settings"]["top_p"] == 0.9 and about["settings"]["max_new_tokens"] == 60
    assert AntiSlop(TOKENIZER, sampler.bans, **about["sampler"]).options == sampler.options
