"""Units that a function rejects are written again, at most `attempts` times, and nothing else changes."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch

import antislop
from antislop import AntiSlop
from antislop.core.loop.branches import Step
from antislop.errors import InputError
from antislop.steer import Regenerate
from antislop.steer.passages import find_unit
from tests.support.controllers import write_stream
from tests.support.depth import DEPTH, first_quick

MODEL, TOKENIZER = antislop.tiny_model()
INPUTS = TOKENIZER("Once upon a time", return_tensors="pt")
START = INPUTS["input_ids"].shape[1]


def is_short(text: str) -> bool:
    return len(text.split()) <= 9


def generate(controller: Any, *, bans: Any = (), seed: int = 0, inputs: Any = INPUTS, **settings: Any) -> Any:
    torch.manual_seed(seed)
    settings = {"max_new_tokens": 60, "return_dict_in_generate": True, **settings}
    return AntiSlop(TOKENIZER, list(bans)).generate(MODEL, **inputs, controller=controller, **settings)


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
    with pytest.raises(InputError, match="'word' is not a unit"):
        Regenerate(is_short, TOKENIZER, unit="word")  # type: ignore[arg-type]
    for check, attempts in ((is_short, "5"), ("short", 5)):
        with pytest.raises(InputError, match=rf"attempts is {attempts!r}, check .*; 1 or more and a function were"):
            Regenerate(check, TOKENIZER, attempts=attempts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="attempts is 0"):
        Regenerate(is_short, TOKENIZER, attempts=0)
