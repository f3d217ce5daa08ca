"""A list of bans for each prompt of `generate_many`: what is read and compiled, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban, BanError, BanList, InputError
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.trace.events import Completion, Report, Rewound, Settled
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
SETTINGS: dict[str, Any] = {"max_new_tokens": 20, "suppress_tokens": [1]}
PROMPTS = [[0, 5, 9, 2, 12, 7], [0, 8, 3], [0, 5, 9, 2, 12, 7], [0, 4, 4, 7, 10], [0, 5, 9, 2, 12, 7], [0, 11, 6]]
DEFAULTS = [Ban(piece, edges="anywhere") for piece in ("a", "d")]


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def write(sampler: AntiSlop, model: PreTrainedModel, prompts: Sequence[Any], **kwargs: Any) -> list[Completion]:
    return sorted(sampler.generate_many(model, prompts, **{**SETTINGS, **kwargs}), key=lambda done: done.number)


@pytest.mark.filterwarnings("ignore:the banned")
def test_whole_texts_are_streamed_at_their_end(llama: PreTrainedModel) -> None:
    sampler, rewinds = AntiSlop(TOKENIZER, DEFAULTS, method="text", max_rewinds=10_000), 0
    for seed in range(4):
        set_seed(seed)
        settings = {"max_new_tokens": 8, "do_sample": True, "suppress_tokens": [1]}
        events = list(sampler.events(llama, torch.tensor(PROMPTS[:1]), **settings))
        settled = [number for number, event in enumerate(events) if isinstance(event, Settled)]
        assert settled == [len(events) - 2] or settled == [len(events) - 3]
        report = Report.of(events)
        assert all(event.length == 0 for event in events if isinstance(event, Rewound))
        rewinds += report.rewinds
        assert report.conceded == 0
    assert rewinds > 3


def test_a_list_is_compiled_once_and_read_after_its_prompt(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: list[int] = []

    class Counting(Matcher):
        def __init__(self, bans: Any, surfaces: Any) -> None:
            bans = list(bans)
            compiled.append(len(bans))
            super().__init__(bans, surfaces)

    path = tmp_path / "bans.txt"
    path.write_text("ab\ncd\nef\n")
    sampler = AntiSlop(TOKENIZER, DEFAULTS)
    monkeypatch.setattr("antislop.core.hf.compiled_bans.Matcher", Counting)
    read: list[str] = []

    def prompts() -> Any:
        for prompt in PROMPTS:
            read.append("prompt")
            yield prompt

    def lists() -> Any:
        one = ["a"]
        for number in range(1000):
            read.append("list")
            yield [one, None, path][number % 3]

    assert len(write(sampler, llama, prompts(), bans=lists(), batch_size=2)) == 6
    assert compiled == [1, 3]
    assert read == ["prompt", "list"] * 6


def test_no_cache_is_made_for_a_single_prompt(llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a run needs is made once for all texts."""
    import antislop.core.hf.many as module

    made: list[int] = []
    split = module.split_arguments

    def count(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return split(*args, **kwargs)

    monkeypatch.setattr(module, "split_arguments", count)
    assert len(write(AntiSlop(TOKENIZER, DEFAULTS), llama, PROMPTS)) == 6
    assert len(made) == 1


@pytest.mark.parametrize(
    ("bans", "message"),
    [
        ("ab", "bans is a str: pass a list of bans for each prompt"),
        (BanList(["ab"]), "bans is a BanList: pass a list of bans for each prompt"),
        (7, "bans is a int: pass a list of bans for each prompt"),
        ([["ab"]], "there are fewer bans than prompts"),
        (["ab", "cd", "ef", "a", "b", "c"], "the bans are 'ab', which is one string and not a file"),
    ],
)
def test_inputs_that_are_not_lists_of_bans_are_refused(llama: PreTrainedModel, bans: Any, message: str) -> None:
    with pytest.raises((ValueError, BanError), match=message):
        list(AntiSlop(TOKENIZER, DEFAULTS).generate_many(llama, PROMPTS, bans=bans, **SETTINGS))


def test_compiled_bans_share_the_vocabulary() -> None:
    compiled = CompiledBans.compile(BanList(["ab"]), TOKENIZER, exempt=["cab"])
    other = compiled.with_bans(["cd"])
    assert other.vocabulary is compiled.vocabulary
    assert [ban.exempt for ban in other.bans] == [("cab",)]


def fail(ids: torch.Tensor, answer: Any) -> Any:
    if ids.shape[1] >= len(PROMPTS[1]) + 3:
        raise KeyError("a fault")
    return answer


KINDS: dict[str, Any] = {"logits_processor": fail, "stopping_criteria": lambda ids, _: fail(ids, False)}
WORKING: dict[str, Any] = {"logits_processor": lambda _, scores: scores, "stopping_criteria": lambda *_: False}


@pytest.mark.parametrize("engine", [{}, {"engine": "paged"}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_processor_or_a_criterion_that_fails_ends_its_own_text_only(
    llama: PreTrainedModel, kind: str, engine: dict[str, Any]
) -> None:
    sampler, asked = AntiSlop(TOKENIZER, DEFAULTS), {"do_sample": True, "seeds": range(6), "batch_size": 3, **engine}
    expected, number = write(sampler, llama, PROMPTS, **asked, **{kind: lambda: [WORKING[kind]]}), count()
    done = write(sampler, llama, PROMPTS, **asked, **{kind: lambda: [(KINDS if next(number) == 1 else WORKING)[kind]]})
    for text, other in zip(done, expected, strict=True):
        if text.number != 1:
            assert (text.tokens, text.error) == (other.tokens, None)
    assert done[1].report.reason == "failed" and len(done[1].tokens) in (2, 3)
    assert re.search("fail(ed)? .*KeyError", str(done[1].error))
    with pytest.raises((KeyError, InputError), match=r"fail raised KeyError|a fault"):
        sampler.generate(llama, torch.tensor([PROMPTS[1]]), **SETTINGS, **{kind: [KINDS[kind]]})
