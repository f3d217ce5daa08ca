"""Text without bans has the highest reward; occurrences and words are those of `BanList.find` and `measure`."""

from __future__ import annotations

import inspect
import pickle
import random
import re
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from antislop import Ban, BanList
from antislop.datasets import ban_reward
from antislop.errors import InputError
from antislop.measure.metrics import Tally, measure

PHRASES = ["a testament to", "barely above a whisper", "tapestry"]


def rate(completion: Any, bans: Any = PHRASES, **options: Any) -> float:
    (reward,) = ban_reward(bans, **options)(prompts=["Once"], completions=[completion])
    return reward


def test_it_is_called_as_trl_calls_it() -> None:
    """By keywords, with the columns of the data set and more, for prompts and completions of equal number."""
    reward = ban_reward(PHRASES)
    extra: dict[str, Any] = {"completion_ids": [[1], [2]], "trainer_state": None, "log_metric": print}
    assert reward(prompts=["a", "b"], completions=["A tapestry.", "A rug."], **extra) == [-500.0, 0.0]
    assert reward.__name__ == "ban_reward"
    assert not inspect.iscoroutinefunction(reward)
    assert reward(["a"], ["A tapestry."]) == [-500.0]


def test_the_rate_is_that_of_measure() -> None:
    text = "A tapestry hung there, barely above a whisper of dust: a testament to it, a testament to him."
    tally = Tally(bans={"list": BanList(PHRASES)})
    tally.add(text)
    assert rate(text) == pytest.approx(-measure(tally)["list"].value)


def test_a_naive_count_agrees() -> None:
    """For phrases that can't overlap, written in any order among other words."""
    draw = random.Random(5)
    for _ in range(50):
        parts = draw.choices([*PHRASES, "the door", "she said", "again"], k=draw.randrange(1, 30))
        text = ", ".join(parts)
        hits = sum(part in PHRASES for part in parts)
        assert rate(text) == pytest.approx(-1000 * hits / len(re.findall(r"\w+", text)))


@pytest.mark.parametrize(("weight", "expected"), [(0.0, -250.0), (0.25, -187.5), (1.0, 0.0)])
def test_an_occurrence_costs_what_its_weight_takes(weight: float, expected: float) -> None:
    assert rate("A torn old tapestry", [Ban("tapestry", weight=weight)]) == expected


def test_the_unit_scales_the_reward() -> None:
    assert rate("A torn old tapestry", per=4) == -1.0


def test_no_words_are_no_violation() -> None:
    for empty in ("", "  ", "…", [], [{"role": "assistant", "content": None}], [{"role": "assistant", "content": ""}]):
        assert rate(empty) == 0.0
        assert str(rate(empty)) == "0.0", "and not -0.0"


def test_a_ban_without_words_counts_against_one_word() -> None:
    assert rate("—", [Ban("—", edges="anywhere")]) == -1000.0


def test_of_a_chat_the_replies_count() -> None:
    chat = [
        {"role": "assistant", "content": "A tapestry? One moment."},
        {"role": "tool", "content": "tapestry tapestry"},
        {"role": "assistant", "content": [{"type": "text", "text": "A rug it"}, {"type": "image"}]},
        {"role": "user", "content": "tapestry"},
    ]
    assert rate(chat) == pytest.approx(-1000 / 7)
    assert rate([{"role": "assistant", "content": "A tapestry."}]) == rate("A tapestry.")
    assert rate([{"thinking": "tapestry", "content": "A tapestry."}]) == rate("A tapestry."), "as TRL parses it"


def test_no_ban_extends_from_one_message_to_the_next() -> None:
    chat = [{"role": "assistant", "content": "It was a"}, {"role": "assistant", "content": "testament to her"}]
    assert rate(chat) == 0.0


def test_a_list_of_any_form_is_accepted(tmp_path: Any) -> None:
    path = tmp_path / "list.txt"
    path.write_text("tapestry\n", encoding="utf-8")
    for bans in (path, str(path), ["tapestry"], [Ban("tapestry")], BanList(["tapestry"])):
        assert rate("A tapestry", bans) == -500.0
    assert rate("A tapestry", []) == 0.0


def test_another_process_can_have_it() -> None:
    reward = ban_reward([*PHRASES, Ban.regex(r"\bdelv(e|ing)\b")])
    reward(prompts=[""], completions=["Delve into it."])
    again = pickle.loads(pickle.dumps(reward))
    assert again == reward
    assert again(prompts=[""], completions=["Delve into it."]) == reward(prompts=[""], completions=["Delve into it."])


REFUSED = [
    *((lambda per=per: ban_reward(PHRASES, per=per), "per is .*; it is a number") for per in (0, -1, nan, inf)),
    (lambda: ban_reward(["tapestry", Ban.tokens([5, 17])]), "token ids, which occur in no text"),
    (lambda: ban_reward("tapestry"), "one string and not a file"),
    *((lambda texts=texts: score(texts), "completions is .*: pass a list of texts") for texts in (None, "A tapestry")),
    *((lambda odd=odd: rate(odd), "completion 1 ") for odd in (None, 5, ["A"], [{"role": "assistant", "content": 5}])),
]


def score(completions: Any) -> list[float]:
    return ban_reward(PHRASES)(prompts=[""], completions=completions)


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_what_can_not_be_rewarded_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()
