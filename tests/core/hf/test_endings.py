"""What bans force is written by real loops: the cache, the processors and the texts after it are as if it was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban, BanError, BanList, loops
from antislop.core.trace.events import Completion, Report
from antislop.errors import InputError
from tests.support.depth import first_quick
from tests.support.models import build_model, build_tokenizer
from tests.support.refusals import refused

TOKENIZER = build_tokenizer()
PROMPTS = [[0, 5, 9, 2, 12, 7], [0, 8, 3], [0, 4, 4, 7, 10]]
SETTINGS: dict[str, Any] = {"max_new_tokens": 24, "suppress_tokens": [1]}
FORCE = " ig.\n"
TOKENS = [12, 10, 8, 13, 16]


def forcing(phrase: str, **options: Any) -> Ban:
    return Ban(phrase, edges="anywhere", then="force", force=FORCE, **options)


def write(model: PreTrainedModel, bans: Any, prompts: Any = PROMPTS, **settings: Any) -> list[Completion]:
    texts = AntiSlop(TOKENIZER, bans).generate_many(model, prompts, **{**SETTINGS, "seed": 0, **settings})
    return sorted(texts, key=lambda text: text.number)


class CountingProcessor:
    """Makes "b" likelier with each call: it remembers how long the text is."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scores[:, 3] += 0.1 * self.calls
        return scores


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "a penalty": {"do_sample": False, "repetition_penalty": 1.3},
    "a processor that counts": {"do_sample": False, "logits_processor": [CountingProcessor()]},
    "prompt lookup": {"do_sample": False, "prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize(
    ("family", "way"), first_quick([*(("llama", way) for way in WAYS), ("gemma3", "greedy"), ("mistral", "greedy")])
)
def test_what_follows_forced_text_is_what_a_model_writes_that_reads_it_anew(family: str, way: str) -> None:
    model, followed = build_model(family), 0
    for ban in (forcing(letter, tries=0, at_most=count) for letter in "cdef" for count in (0, 2)):
        for prompt in PROMPTS:
            tokens, report = generate(model, [ban], prompt, **WAYS[way])
            if (report.rewinds, len(report.forced)) == (1, 1):
                end = report.forced[0].start + len(TOKENS)
                assert tokens[end - len(TOKENS) : end] == TOKENS[: len(tokens) - end + len(TOKENS)]
                known = tokens[:end]
                rest, _ = generate(model, [], [*prompt, *known], known=len(known), **WAYS[way])
                assert rest == tokens[end:]
                followed += len(rest) > 3
    assert followed


def generate(
    model: PreTrainedModel, bans: list[Ban], prompt: list[int], *, known: int = 0, **settings: Any
) -> tuple[list[int], Report]:
    """Return the new tokens. known: the tokens of the prompt that count as written."""
    settings = {**SETTINGS, **settings, "max_new_tokens": SETTINGS["max_new_tokens"] - known}
    if "logits_processor" in settings:
        settings["logits_processor"] = [CountingProcessor(known)]
    ids = torch.tensor([prompt])
    sampler = AntiSlop(TOKENIZER, bans)
    if settings["max_new_tokens"] == 0:
        return [], Report()
    out = sampler.generate(model, ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, **settings)
    return out.sequences[0, len(prompt) :].tolist(), out.report


def test_forced_text_counts_for_criteria_that_see_each_token() -> None:
    """A criterion of one's own is asked about each length of the text, forced or not."""
    seen: list[int] = []

    def count(ids: torch.Tensor, _: object) -> torch.Tensor:
        seen.append(ids.shape[1])
        return torch.zeros(len(ids), dtype=torch.bool)

    tokens, report = generate(
        build_model("llama"), [forcing("b", tries=0)], PROMPTS[1], do_sample=False, stopping_criteria=[count]
    )
    assert report.forced
    assert set(seen) >= {*range(4, 4 + len(tokens))}


TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "ii",
    "fields": {"thinking": {"open": "gg", "close": "hh", "content": "text"}, "content": {"content": "text"}},
}


def test_without_a_text_thoughts_are_ended_and_other_text_stops() -> None:
    tokenizer = build_tokenizer()
    loop = Ban("b", edges="anywhere", then="force", tries=0)
    refused("no response template says how this model's thoughts end: pass force", AntiSlop, tokenizer, [loop])
    tokenizer.response_template = TEMPLATE
    with pytest.raises(BanError, match="needs a text for the tokens 5, which have no place in thoughts: pass force"):
        AntiSlop(tokenizer, [Ban.tokens([5], then="force")])
    sampler, ends = AntiSlop(tokenizer, [loop]), set()
    assert [(ban.then, ban.force) for ban in sampler.bans] == [("force", "hh"), ("stop", "")]
    texts = sampler.generate_many(
        build_model("llama"), ["aiigg", "aiiggahh"] * 8, seed=0, **{**SETTINGS, "do_sample": True}
    )
    for text in texts:
        endings = [violation.ban.then for violation in (*text.report.forced, *text.report.ended)]
        ends.add((text.number % 2, *endings))
        if text.number % 2 == 0 and endings:
            assert endings[0] == "force" and "hh" in text.text
            assert endings[1:] in ([], ["stop"])
        elif text.number % 2:
            assert endings in ([], ["stop"], ["force"])
    assert {(0, "force", "stop"), (1, "stop")} <= ends


def test_what_can_not_be_forced_is_refused() -> None:
    model = build_model("llama")
    ids = torch.tensor(PROMPTS[:1] * 2)
    sampler = AntiSlop(TOKENIZER, [forcing("b")])
    arguments = {**SETTINGS, "attention_mask": torch.ones_like(ids), "return_dict_in_generate": True}
    refused("forced tokens have no scores", sampler.generate, model, ids, output_scores=True, **arguments)
    with pytest.raises(InputError, match="see the rows of the batch in step, and then='force'"):
        sampler.generate(model, ids, stopping_criteria=[lambda ids, _: torch.zeros(len(ids)) > 0], **arguments)
    with pytest.raises(BanError, match="force is 'x', which this tokenizer does not write"):
        AntiSlop(TOKENIZER, [Ban("b", then="force", force="x")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"then": "end"}, "then of 'a' is 'end'; it is one of 'stop', 'force', 'concede'"),
        ({"tries": 2}, "tries of 'a' needs then"),
        ({"then": "stop", "tries": -1}, "tries"),
        ({"then": "stop", "force": "x"}, "force of 'a' needs then='force'"),
        ({"then": "force", "force": 3}, "force of 'a' is 3; the text to write there was expected"),
    ],
)
def test_bad_endings_are_refused(options: dict[str, Any], message: str) -> None:
    refused(message, Ban, "a", **options)


@pytest.mark.parametrize(
    "ban",
    [
        Ban("a", then="stop"),
        Ban.loop(then="stop", tries=0),
        Ban.regex("a+", then="force", force='\t"</think>" x\n', tries=7, weight=0.5),
        Ban.tokens([5, 17], then="concede"),
    ],
)
def test_endings_are_written_and_read(ban: Ban, tmp_path: Path) -> None:
    assert eval(repr(ban), {"Ban": Ban}) == ban
    for name in ("list.txt", "list.json"):
        BanList([ban]).save(tmp_path / name)
        assert BanList.load(tmp_path / name)[0] == ban


def test_a_looping_text_ends_before_its_second_passage() -> None:
    """A greedy tiny model loops; its text then holds the passage once, and the report says why it ended."""
    model, reasons = build_model("gemma3"), set()
    for text in write(model, loops(min_length=8, then="stop", tries=0), do_sample=False, max_new_tokens=60):
        reasons.add(text.report.reason)
        assert not loops(min_length=8).find(text.text)
        if text.report.reason == "repetition":
            assert text.report.to_dict()["ended"][0]["ban"] == "a passage 3 times in a row"
    assert "repetition" in reasons
