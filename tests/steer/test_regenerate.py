"""Units that a function rejects are written again; of n candidates the best continues; nothing else changes."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import pytest
import torch

import antislop
from antislop import AntiSlop
from antislop.core.loop.branches import Step
from antislop.errors import CapabilityError, InputError
from antislop.steer import BestOf, Regenerate
from antislop.steer.passages import find_unit
from tests.support.controllers import write_stream
from tests.support.depth import DEPTH, first_quick
from tests.support.refusals import refused

MODEL, TOKENIZER = antislop.tiny_model()
INPUTS = TOKENIZER("Once upon a time", return_tensors="pt")
START = INPUTS["input_ids"].shape[1]


def is_short(text: str) -> bool:
    return len(text.split()) <= 9


def generate(controller: Any, *, bans: Any = (), seed: int = 0, inputs: Any = INPUTS, **settings: Any) -> Any:
    torch.manual_seed(seed)
    settings = {"max_new_tokens": 60, "return_dict_in_generate": True, **settings}
    sampler = AntiSlop(TOKENIZER, list(bans), on_exhausted="stop")
    return sampler.generate(MODEL, **inputs, controller=controller, **settings)


pick = partial(generate, max_new_tokens=50, do_sample=True)


def split(text: str) -> list[str]:
    """All whole sentences of a text that was cut."""
    parts = re.split(r"""(?:(?<=[.!?…])|(?<=[.!?…]["'”’»)\]]))(?=\s)|\n""", text)
    return [part.strip() for part in parts[:-1] if part.strip()]


@pytest.mark.parametrize("settings", [{"do_sample": True}, {"do_sample": False}])
@pytest.mark.parametrize("bans", first_quick([[], ["the air"]]))
def test_every_sentence_passes_or_is_reported(settings: dict[str, Any], bans: list[str]) -> None:
    for seed in range(DEPTH):
        controller = Regenerate(is_short, TOKENIZER, attempts=4)
        out = generate(controller, bans=bans, seed=seed, **settings)
        text = TOKENIZER.decode(out.sequences[0, START:], skip_special_tokens=True)
        failing = [sentence for sentence in split(text) if not is_short(sentence)]
        assert {*failing} <= {*controller.conceded} <= {*controller.rejected}
        assert controller.rejected
        assert out.report.forward_passes < 900, "no attempt is made twice but the first one of a greedy text"
        assert not antislop.BanList(bans).find(text)


def test_every_paragraph_passes_or_is_reported() -> None:
    inputs, rejected = TOKENIZER('"Come in," she said.\n\n"No," he said.\n\n', return_tensors="pt"), 0
    for seed in range(3 * DEPTH):
        controller = Regenerate(lambda text: len(text.split()) <= 12, TOKENIZER, unit="paragraph", attempts=6)
        out = generate(controller, seed=seed, inputs=inputs, do_sample=True)
        text = TOKENIZER.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        *paragraphs, _ = text.split("\n\n")
        assert {part.strip() for part in paragraphs if len(part.split()) > 12} <= {*controller.conceded}
        rejected += len(controller.rejected)
    assert rejected > 2 * DEPTH


def test_a_check_that_accepts_changes_nothing() -> None:
    seen: list[str] = []
    controller = Regenerate(lambda text: not seen.append(text), TOKENIZER)  # type: ignore[func-returns-value]
    out = generate(controller, do_sample=True)
    assert torch.equal(out.sequences, generate(None, do_sample=True).sequences)
    assert seen == split(TOKENIZER.decode(out.sequences[0, START:], skip_special_tokens=True))
    assert not controller.rejected


def test_after_one_attempt_all_is_conceded_and_the_text_stays() -> None:
    controller = Regenerate(lambda _: False, TOKENIZER, attempts=1)
    out = generate(controller, do_sample=True)
    assert torch.equal(out.sequences, generate(None, do_sample=True).sequences)
    assert controller.conceded == controller.rejected
    assert controller.conceded == split(TOKENIZER.decode(out.sequences[0, START:], skip_special_tokens=True))


def test_the_last_sentence_is_checked_if_the_model_ends_the_text() -> None:
    tokens = TOKENIZER.encode("One fox. Two foxes", add_special_tokens=False)
    seen: list[str] = []
    controller = Regenerate(lambda text: not seen.append(text), TOKENIZER)  # type: ignore[func-returns-value]
    assert write_stream(controller, [*tokens, TOKENIZER.eos_token_id])[: len(tokens)] == tokens
    assert seen == ["One fox.", "Two foxes"]
    seen.clear()
    write_stream(controller, tokens)
    assert seen == ["One fox."], "a sentence in which the text was cut is not whole"


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("sentence", "He left. She", "He left."),
        ("sentence", '"Go!" he said', '"Go!"'),
        ("sentence", "It is 3.14 m", None),
        ("sentence", "A title\nThe", "A title"),
        ("sentence", "\n\nNot yet.", None),
        ("paragraph", "A. B.\nC.\n\nD", "A. B.\nC."),
        ("paragraph", "\n\nA. B.\n", None),
    ],
)
def test_units_end_by_a_plain_rule(unit: str, text: str, expected: str | None) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    found = find_unit(TOKENIZER, [], Step(0, 0, (), None, tokens), first=0, unit=unit)
    assert (found and found.text) == expected


def test_rows_of_a_batch_are_checked_apart_and_add_to_the_same_lists() -> None:
    inputs = TOKENIZER(["Once upon a time", "The old man"], return_tensors="pt", padding=True, padding_side="left")
    controller = Regenerate(is_short, TOKENIZER, attempts=6)
    out = generate(controller, inputs=inputs, do_sample=True, max_new_tokens=40)
    for ids in out.sequences[:, inputs["input_ids"].shape[1] :]:
        sentences = split(TOKENIZER.decode(ids, skip_special_tokens=True))
        assert {s for s in sentences if not is_short(s)} <= {*controller.conceded}


def test_an_error_of_the_check_names_its_place_and_leaves_the_model_usable() -> None:
    def fail(text: str) -> bool:
        raise KeyError(text)

    expected = generate(None, do_sample=True).sequences
    with pytest.raises(KeyError) as caught:
        generate(Regenerate(fail, TOKENIZER), do_sample=True)
    if sys.version_info >= (3, 11):
        assert re.match(r"raised by the controller of row 0 after \d+ tokens", caught.value.__notes__[0])
    assert torch.equal(generate(None, do_sample=True).sequences, expected)


def test_what_is_no_unit_or_no_number_is_refused() -> None:
    refused("'word' is not a unit", Regenerate, is_short, TOKENIZER, unit="word")
    for check, attempts in ((is_short, "5"), ("short", 5)):
        with pytest.raises(InputError, match=rf"attempts is {attempts!r}, check .*; 1 or more and a function were"):
            Regenerate(check, TOKENIZER, attempts=attempts)  # type: ignore[arg-type]
    refused("attempts is 0", Regenerate, is_short, TOKENIZER, attempts=0)


def find_first(tokens: list[int]) -> str:
    """Return the first sentence of a text."""
    unit = find_unit(TOKENIZER, [], Step(0, 0, (), None, tokens, is_done=True), first=0, unit="sentence")
    assert unit is not None
    return unit.text


@pytest.mark.parametrize("seed", first_quick(range(3 * DEPTH)))
def test_the_first_sentence_is_the_best_of_n_and_the_winner_is_a_row(seed: int) -> None:
    scores: dict[str, float] = {}
    controller = BestOf(3, lambda text: scores.setdefault(text, -len(text)), TOKENIZER, unit="sentence")
    out = pick(controller, seed=seed, max_forks=3)
    (winner,) = controller.winners
    rows = [row.tolist() for row in out.sequences[:, START:]]
    assert any(row[: len(winner)] == list(winner) and set(row[len(winner) :]) <= {0, 1} for row in rows)
    begun = [row for row, report in zip(rows, out.reports, strict=True) if not report.fork_length][:3]
    assert len(begun) == 3
    best = max((find_first(row) for row in begun if find_first(row) in scores), key=lambda text: scores[text])
    assert find_first(list(winner)) == best


def test_every_row_knows_the_row_that_it_was_forked_from() -> None:
    out = pick(BestOf(2, len, TOKENIZER, unit="sentence"), max_forks=2)
    assert len(out.reports) == len(out.sequences) > 2
    assert [report.parent for report in out.reports[:2]] == [None, 0]
    assert all(report.parent < number for number, report in enumerate(out.reports[1:], start=1))
    assert all(report.reason == "done" for report in out.reports)


def test_one_candidate_is_the_text_without_a_controller() -> None:
    controller = BestOf(1, len, TOKENIZER, unit="sentence")
    out = pick(controller)
    assert torch.equal(out.sequences, pick(None).sequences)
    assert list(controller.winners[0]) == out.sequences[0, START:].tolist()


def test_each_prompt_has_a_contest_of_its_own() -> None:
    inputs = TOKENIZER(["Once upon a time", "The old man"], return_tensors="pt", padding=True, padding_side="left")
    controller = BestOf(2, len, TOKENIZER, unit="sentence")
    out = pick(controller, inputs=inputs, max_forks=2, bans=["the air", "was"])
    rows = [tuple(row) for row in out.sequences[:, inputs["input_ids"].shape[1] :].tolist()]
    assert len(controller.winners) == 2
    assert all(any(row[: len(winner)] == winner for row in rows) for winner in controller.winners)
    assert all(winner and not antislop.BanList(["was"]).find(TOKENIZER.decode(winner)) for winner in controller.winners)


def test_texts_that_end_for_want_of_words_end_the_contest() -> None:
    ends = set()
    for seed in range(3):
        torch.manual_seed(seed)
        controller = BestOf(2, len, TOKENIZER, unit="sentence")
        sampler = AntiSlop(TOKENIZER, ["the", "a", "was", "his"], on_exhausted="stop", max_rewinds=1)
        settings = {"max_new_tokens": 50, "return_dict_in_generate": True, "do_sample": True, "max_forks": 2}
        out = sampler.generate(MODEL, **INPUTS, **settings, controller=controller)
        ends |= {report.reason for report in out.reports}
        (winner,) = controller.winners
        assert winner
        assert any(row[START : START + len(winner)].tolist() == list(winner) for row in out.sequences)
    assert ends == {"done", "exhausted"}


def test_more_candidates_than_forks_are_refused() -> None:
    with pytest.raises(CapabilityError, match="more texts at once than max_forks=2: raise it"):
        pick(BestOf(3, len, TOKENIZER), max_forks=2)
    for n, score in (("3", len), (3, "length")):
        refused(rf"n is {n!r} and score .*; a number of 1 or more and a function were", BestOf, n, score, TOKENIZER)
    refused("n is 0", BestOf, 0, len, TOKENIZER)
