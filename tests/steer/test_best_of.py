"""The best of n candidates continues, and the others end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import antislop
from antislop import AntiSlop
from antislop.core.loop import Step
from antislop.errors import CapabilityError, InputError
from antislop.steer import BestOf
from antislop.steer.passages import find_unit
from tests.support.depth import DEPTH, first_quick

MODEL, TOKENIZER = antislop.tiny_model()
INPUTS = TOKENIZER("Once upon a time", return_tensors="pt")
START = INPUTS["input_ids"].shape[1]


def generate(controller: Any, *, seed: int = 0, inputs: Any = INPUTS, bans: Any = (), **settings: Any) -> Any:
    torch.manual_seed(seed)
    settings = {"max_new_tokens": 50, "return_dict_in_generate": True, "do_sample": True, **settings}
    return AntiSlop(TOKENIZER, list(bans), on_exhausted="stop").generate(
        MODEL, **inputs, controller=controller, **settings
    )


def find_first(tokens: list[int]) -> str:
    """Return the first sentence of a text."""
    unit = find_unit(TOKENIZER, [], Step(0, 0, (), None, tokens, is_done=True), first=0, unit="sentence")
    assert unit is not None
    return unit.text


@pytest.mark.parametrize("seed", first_quick(range(3 * DEPTH)))
def test_the_first_sentence_is_the_best_of_n_and_the_winner_is_a_row(seed: int) -> None:
    scores: dict[str, float] = {}
    controller = BestOf(3, lambda text: scores.setdefault(text, -len(text)), TOKENIZER, unit="sentence")
    out = generate(controller, seed=seed, max_forks=3)
    (winner,) = controller.winners
    rows = [row.tolist() for row in out.sequences[:, START:]]
    assert any(row[: len(winner)] == list(winner) and set(row[len(winner) :]) <= {0, 1} for row in rows)
    begun = [row for row, report in zip(rows, out.reports, strict=True) if not report.fork_length][:3]
    assert len(begun) == 3
    best = max((find_first(row) for row in begun if find_first(row) in scores), key=lambda text: scores[text])
    assert find_first(list(winner)) == best


def test_every_row_knows_the_row_that_it_was_forked_from() -> None:
    out = generate(BestOf(2, len, TOKENIZER, unit="sentence"), max_forks=2)
    assert len(out.reports) == len(out.sequences) > 2
    assert [report.parent for report in out.reports[:2]] == [None, 0]
    assert all(report.parent < number for number, report in enumerate(out.reports[1:], start=1))
    assert all(report.reason == "done" for report in out.reports)


def test_one_candidate_is_the_text_without_a_controller() -> None:
    controller = BestOf(1, len, TOKENIZER, unit="sentence")
    out = generate(controller)
    assert torch.equal(out.sequences, generate(None).sequences)
    assert list(controller.winners[0]) == out.sequences[0, START:].tolist()


def test_each_prompt_has_a_contest_of_its_own() -> None:
    inputs = TOKENIZER(["Once upon a time", "The old man"], return_tensors="pt", padding=True, padding_side="left")
    controller = BestOf(2, len, TOKENIZER, unit="sentence")
    out = generate(controller, inputs=inputs, max_forks=2, bans=["the air", "was"])
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
        generate(BestOf(3, len, TOKENIZER), max_forks=2)
    for n, score in (("3", len), (3, "length")):
        with pytest.raises(InputError, match=rf"n is {n!r} and score .*; a number of 1 or more and a function were"):
            BestOf(n, score, TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="n is 0"):
        BestOf(0, len, TOKENIZER)
