"""Finished texts: what bans flag is replaced, all else stays, and the likeliest of the candidates is chosen."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop import BanList, fix, tiny_model
from antislop.steer import Fixed, Replacement, fix_texts, fixing
from tests.support import families
from tests.support.models import build_tokenizer
from tests.support.refusals import refused

STORY = (
    "The old house stood at the edge of the village. Her heart pounding, she opened the door and saw a tapestry of "
    "shadows on the wall. He whispered her name. The tapestry moved, and the little girl was very happy to see it."
)
Toy: TypeAlias = tuple[PreTrainedModel, PreTrainedTokenizerBase]
BANS = ["tapestry", "heart pounding", "very happy", "whispered", "opened the door", "edge of the"]


@pytest.fixture(scope="module")
def toy() -> Toy:
    return tiny_model()


def find_kept(text: str, changes: tuple[Replacement, ...]) -> Iterator[str]:
    """Yield the parts of a text between its replaced spans."""
    edges = [0, *(edge for change in changes if not change.left for edge in (change.start, change.end)), len(text)]
    yield from (text[start:end] for start, end in list(pairwise(edges))[::2])


def check_nothing_else_changed(text: str, fixed: Fixed) -> None:
    """Check that the kept parts, with the new words between them, are the fixed text."""
    new = [change.after for change in fixed.changes if not change.left]
    kept = list(find_kept(text, fixed.changes))
    assert "".join(part for pair in zip(kept, [*new, ""], strict=True) for part in pair) == fixed.text
    assert all(text[change.start : change.end] == change.before for change in fixed.changes)


def test_what_is_flagged_is_replaced_and_all_else_stays(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixing, "MOVED", math.inf)  # the toy expects something else after any other word
    fixed = fix(*toy, STORY, BANS)
    check_nothing_else_changed(STORY, fixed)
    left = [change.before for change in fixed.changes if change.left]
    assert [fixed.text[match.start : match.end] for match in BanList(BANS).find(fixed.text)] == left
    assert len(fixed.changes) == 7
    assert sum(not change.left for change in fixed.changes) >= 4, "the toy finds words for most places"


@pytest.mark.parametrize("seed", range(4))
def test_any_text_keeps_what_is_not_flagged(toy: Toy, seed: int) -> None:
    source = random.Random(seed)
    words = [
        "house",
        "The",
        "tapestry",
        "tapestry,",
        "was\n",
        "\r\n",
        "`tapestry`",
        "a",
        "<tapestry>",
        "whispered.",
        "Tapestry",
    ]
    text = " ".join(source.choice(words) for _ in range(12))
    bans = BanList(["tapestry", "whispered", "house was"])
    fixed = fix(*toy, text, bans, n=1)
    check_nothing_else_changed(text, fixed)
    left = [change.before for change in fixed.changes if change.left]
    assert [fixed.text[match.start : match.end] for match in bans.find(fixed.text)] == left


def score_naively(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, left: str, words: str, right: str
) -> float:
    """Return log p of a text, after its first token."""
    ids = tokenizer(left + words + right, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0, :-1].double().log_softmax(-1)
    return float(scores.gather(1, ids[0, 1:, None]).sum())


def list_places(text: str, fixed: Fixed) -> Iterator[tuple[Replacement, str, str, str, str]]:
    """Yield each change with its left, the space that belongs to its words, its span, and its right."""
    grown = 0
    for change in fixed.changes:
        left, rest = fixed.text[: change.start + grown], text[change.end :]
        # A deletion takes the space before the span; other words stand behind it.
        space = " " if change.before[0] == " " or left.endswith(" ") else ""
        right = rest if len(rest) <= fixing.RIGHT else rest[: fixing.RIGHT].rpartition(" ")[0]
        yield change, left.removesuffix(" "), space, change.before.strip(), right
        grown += len(change.after) - len(change.before)


def check_gains(text: str, fixed: Fixed, toy: Toy) -> None:
    """Check that a choice gains what whole texts gain, read without a cache."""
    for change, left, space, span, right in list_places(text, fixed):
        plain = score_naively(*toy, left, space + span, right)
        for words, gain in [] if change.left else [(change.after, change.gain), *change.alternatives]:
            new = score_naively(*toy, left, space + words if words else "", right)
            assert gain == pytest.approx(new - plain, abs=1e-3)


def read_naively(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, left: str, right: str) -> torch.Tensor:
    """Return log p of each token of the vocabulary at each place of a right."""
    ids, begun = (tokenizer(text, return_tensors="pt")["input_ids"] for text in (left + right, left))
    with torch.no_grad():
        scores: torch.Tensor = model(input_ids=ids).logits[0, begun.shape[1] - 1 : -1]
    return scores.double().log_softmax(-1)


@pytest.mark.parametrize("most", [0.1, 0.6, math.inf])
def test_no_words_move_what_the_model_expects_behind_them_too_far(
    toy: Toy, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "MOVED", most)
    fixed, moved = fix(*toy, STORY, BANS), []
    for change, left, space, span, right in list_places(STORY, fixed):
        expected = read_naively(*toy, left + space + span, right)
        for words, _ in [] if change.left else [(change.after, change.gain), *change.alternatives]:
            spread = read_naively(*toy, left + (space + words if words else ""), right)
            moved.append(float((expected.exp() * (expected - spread)).sum(-1).mean()))
    assert max(moved) <= most + 1e-3
    assert most < math.inf or max(moved) > 0.6, "without the bound, some words move it further"


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_gain_of_a_choice_is_that_of_whole_texts(toy: Toy, batch_size: int) -> None:
    texts = [STORY, f"Once upon a time. {STORY}", "One day, the tapestry was in the house, and it was big and red."]
    for text, fixed in zip(texts, fix_texts(*toy, texts, BANS, batch_size=batch_size), strict=True):
        check_gains(text, fixed, toy)


@pytest.mark.parametrize(
    "family", ["gpt2", "gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", "mamba", "lfm2"))]
)
def test_gains_are_right_in_each_kind_of_cache(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixing, "LEAST", -math.inf)
    monkeypatch.setattr(fixing, "MOVED", math.inf)
    toy = families.build(family), build_tokenizer()
    fixed = fix(*toy, "aba cab bad aba cab add dab cab a bad dad", ["cab", "dab", "add"])
    assert [bool(change.left) for change in fixed.changes].count(False) >= 3
    check_gains("aba cab bad aba cab add dab cab a bad dad", fixed, toy)


def test_a_long_text_is_read_in_parts(toy: Toy) -> None:
    text = f"{STORY} " * 9
    fixed = fix(*toy, text, ["tapestry"], n=1)
    check_nothing_else_changed(text, fixed)
    assert len(fixed.changes) == 18


def test_a_batch_writes_what_each_text_alone_gets(toy: Toy) -> None:
    texts = [STORY[48:], STORY[60:].replace("door", "window"), STORY[120:]]
    together = list(fix_texts(*toy, texts, BANS, seed=3, batch_size=3))
    for number, text in enumerate(texts):
        assert fix(*toy, text, BANS, seed=3 + number).text == together[number].text


def test_a_seed_draws_and_none_takes_the_likeliest(toy: Toy) -> None:
    text = STORY[60:130]
    assert fix(*toy, text, BANS) == fix(*toy, text, BANS)
    drawn = [fix(*toy, text, BANS, seed=seed) for seed in (0, 1, 2, 3, 4, 1)]
    assert len({fixed.text for fixed in drawn}) > 1
    assert drawn[1] == drawn[5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Use `tapestry` here.", "protected"),
        ("<think>\nA tapestry?\n</think>\nA house.", "protected"),
        ("See tapestry.html for it.", "protected"),
        ("See https://a.org/tapestry for it.", "protected"),
        ("See [it](tapestry) for it.", "protected"),
        ("Run tapestry --write now.", "protected"),
        ("It had a tapestry-like look.", "part"),
        ("A <tapestry> is here.", "protected"),
        ("She saw Tapestry in the house.", "name"),
        ("It was a tapestry-maker's house", None),
        ("It was not only a house, but a home of his.", "long"),
        ("It was sub*tapestry*s there.", None),
    ],
)
def test_what_is_left_says_why(toy: Toy, text: str, reason: str | None) -> None:
    bans = BanList(["tapestry"]) | ["not only a house, but a home"]
    fixed = fix(*toy, text, bans)
    check_nothing_else_changed(text, fixed)
    if reason is not None:
        assert fixed.text == text
        assert [change.left for change in fixed.changes] == [fixing._FAULTS[reason]]


def test_a_name_is_replaced_on_request_and_alike(toy: Toy) -> None:
    text = "One day, a girl named Elara saw a dog. The dog liked Elara, and all day Elara and the dog played."
    assert {change.left for change in fix(*toy, text, ["Elara"]).changes} == {fixing._FAULTS["name"]}
    changes = fix(*toy, text, ["Elara"], names=True).changes
    assert len(changes) == 3
    assert len({change.after for change in changes}) == 1


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("bright", True),
        ("very bright", True),
        ("shining brightly", True),
        ("glowing", False),  # the same word
        ("glowingly", False),  # in another form
        ("still glowing", False),  # nothing gone
        ("of the", False),  # nothing new
        ("Bright", False),  # the capital
        ("bright.", False),
        ("a bright", False),  # brings an article
        ("2 bright", False),
        ("lanterns", False),  # stands beside the place
        ("azure", False),  # an article asks for a consonant
        ("tapestry", False),
        ("brightsome", False),  # no English word
    ],
)
def test_which_words_fit(words: str, fits: bool) -> None:
    place = fixing._Place("The lantern was a", " ", "glowing", " thing of beauty.")
    assert fixing._fits(words, place, BanList(["tapestry", "glowing"])) is fits


def test_words_of_other_languages_need_not_be_english() -> None:
    place = fixing._Place("Der alte Mann sah einen", " ", "glänzenden", " Stern hinter dem dunklen Haus.")
    assert fixing._fits("hellichten", place, BanList(["glänzenden"]))


def test_words_may_not_make_a_ban_with_their_neighbors() -> None:
    place = fixing._Place("She sent a", " ", "shudder", " down her back.")
    assert not fixing._fits("shiver", place, BanList(["shudder", "shiver down"]))
    assert fixing._fits("shiver", place, BanList(["shudder", "a shivering"]))


def test_overlapping_matches_are_one_span(toy: Toy) -> None:
    text = "It sent a cold shiver down her back, and she ran home."
    (change,) = fix(*toy, text, ["cold shiver", "shiver down"]).changes
    assert change.before == "cold shiver down"


def test_bad_values_are_refused(toy: Toy) -> None:
    refused("texts is 'a tapestry', one text", lambda: list(fix_texts(*toy, "a tapestry", BANS)))
    refused("has an encoder", lambda: fix(families.build("t5"), toy[1], STORY, BANS))
    refused("n is 0", lambda: fix(*toy, STORY, BANS, n=0))
    assert math.isfinite(fixing.LEAST)
