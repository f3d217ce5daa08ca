"""A text of `generate_many` is as if it were alone, whatever it is asked for, and whatever is written beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from antislop import AntiSlop, Ban, BanList
from antislop.core.trace.events import Completion, Settled
from tests.support.batches import COMMON, EOS, TOKENIZER
from tests.support.depth import quick_if
from tests.support.models import VOCABULARY, build_model

SHORT = [[0, 5, 9, 2, 12, 7], [0, 8, 3], [0, 5, 9, 2, 12, 7], [0, 4, 4, 7, 10], [0, 5, 9, 2, 12, 7], [11]]
PROMPTS = [*SHORT, torch.randint(2, VOCABULARY, (40,), generator=torch.Generator().manual_seed(7)).tolist()]
DEFAULTS = [Ban(piece, edges="anywhere") for piece in ("a", "d")]
LISTS: list[Any] = [
    ["ab", Ban("c", edges="anywhere"), Ban("e", edges="anywhere")],
    None,
    BanList([Ban.regex("[bdf]", weight=0.2), Ban("ea", edges="anywhere")]),
    [],
    [Ban("b", edges="anywhere", weight=0.3), Ban("fa", edges="anywhere"), Ban.wildcard("a*")],
    [Ban("d", edges="anywhere", at_most=1)],
    DEFAULTS,
]
FORCE = " ig.\n"
ENDING = [
    Ban("b", edges="anywhere", then="force", force=FORCE, tries=1),
    Ban("c", edges="anywhere", then="stop", tries=2),
    Ban("e", edges="anywhere", then="force", force=FORCE, tries=0),
]


class Situation(NamedTuple):
    """What the call and the sampler are asked for, the model, the bans, and a list for each text if it has its own."""

    asked: dict[str, Any]
    options: Mapping[str, Any] = MappingProxyType({})
    family: str = "llama"
    bans: Sequence[Ban] = COMMON
    lists: list[Any] | None = None


DRAWN: dict[str, Any] = {"do_sample": True, "sequence_bias": [[[EOS], 1.5]]}
GREEDY: dict[str, Any] = {"do_sample": False, "suppress_tokens": [0, EOS]}
SITUATIONS = {
    "drawn, and they end at different times": Situation(DRAWN),
    "greedy": Situation(GREEDY),
    "a list for each": Situation(DRAWN, bans=DEFAULTS, lists=LISTS),
    "forced text": Situation(DRAWN, bans=ENDING),
    "drafts of a model": Situation({**DRAWN, "assistant_model": build_model("llama", seed=3)}),
    "windows in some layers": Situation(DRAWN, family="gemma3"),
    "units and weights": Situation(
        DRAWN, {"rewind": "word"}, bans=[Ban("a", weight=0.3, edges="anywhere"), *COMMON[1:]]
    ),
    "processors of each text": Situation(
        {**DRAWN, "logits_processor": lambda: [RepetitionPenaltyLogitsProcessor(1.3)]}
    ),
    "one token again": Situation(DRAWN, {"method": "token"}),
    "what ends texts at once": Situation(DRAWN, {"on_exhausted": "stop"}, bans=[Ban.regex("(?s).")]),
    "lists under options": Situation(
        DRAWN, {"exempt": ["ab"], "on_exhausted": "stop"}, lists=[[Ban("a", edges="anywhere")]] * 7
    ),
    "windows in all layers": Situation(DRAWN, family="mistral"),
    "prompt lookup and forced text": Situation({**DRAWN, "prompt_lookup_num_tokens": 3}, bans=ENDING),
    "lists and a warper": Situation({**DRAWN, "top_k": 12}, bans=DEFAULTS, lists=LISTS),
    "lists and processors of each text": Situation(
        {**DRAWN, "logits_processor": lambda: [RepetitionPenaltyLogitsProcessor(1.3)]}, bans=DEFAULTS, lists=LISTS
    ),
    "lists, greedy": Situation(GREEDY, bans=DEFAULTS, lists=LISTS),
    "lists and a processor": Situation({**DRAWN, "repetition_penalty": 1.3}, bans=DEFAULTS, lists=LISTS),
    "lists, one token again": Situation(DRAWN, {"method": "token"}, bans=DEFAULTS, lists=LISTS),
    "lists, whole texts": Situation(DRAWN, {"method": "text"}, bans=DEFAULTS, lists=LISTS),
    "whole texts": Situation(DRAWN, {"method": "text"}),
}
DOORS: dict[str, dict[str, Any]] = {
    "three places": {"batch_size": 3},
    "paged": {"batch_size": 3, "engine": "paged"},
    "one place": {"batch_size": 1},
    "more places than texts": {"batch_size": 16},
}


CASES = [
    pytest.param(name, door, marks=quick_if(place < (11 if door in ("three places", "paged") else 1)))
    for place, (name, situation) in enumerate(SITUATIONS.items())
    for door in DOORS
    if door != "paged" or not {"assistant_model", "prompt_lookup_num_tokens"} & {*situation.asked}  # it reads no drafts
]


load = cache(build_model)


def write(situation: Situation, prompts: list[list[int]], listed: Any, **more: Any) -> list[Completion]:
    sampler = AntiSlop(TOKENIZER, listed, **situation.options)
    settings = {"max_new_tokens": 14, **situation.asked, **more}
    texts = sampler.generate_many(load(situation.family), prompts, **settings)
    return sorted(texts, key=lambda text: text.number)


@cache
def write_alone(name: str) -> list[Completion]:
    """Write each text by itself under its list; check what it cost."""
    situation, alone = SITUATIONS[name], list[Completion]()
    for seed, prompt in enumerate(PROMPTS):
        own = situation.lists[seed] if situation.lists else None
        alone += write(situation, [prompt], situation.bans if own is None else own, seeds=[seed], batch_size=1)
        if name.startswith(("drawn", "greedy", "windows")):
            assert alone[-1].report.tokens_fed == len(prompt) + len(alone[-1].tokens) + alone[-1].report.cut_tokens - 1
            assert not any(ban.text in alone[-1].text for ban in COMMON)
    assert sum(text.report.violations for text in alone) > 5
    assert any(text.report.forced for text in alone) == (situation.bans is ENDING)
    different = len({tuple(alone[number].tokens) for number in (0, 2, 4)})  # of the same prompt
    if not name.endswith(("at once", "whole texts")):  # such texts are short, and three are often alike
        assert different == 3 or (different == 1) == (situation.asked is GREEDY and not situation.lists), name
    return alone


def describe(text: Completion) -> tuple[Any, ...]:
    report = text.report
    counts = (report.violations, report.rewinds, report.withdrawn_tokens, report.conceded, len(report.forced))
    return text.tokens, text.text, str(text.error), report.reason, *counts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "door"), CASES)
def test_a_text_is_as_if_alone(name: str, door: str) -> None:
    """Nor does it depend on torch's global random numbers, which it does not use."""
    situation = SITUATIONS[name]
    alone, before = write_alone(name), torch.get_rng_state()
    together = write(situation, PROMPTS, situation.bans, bans=situation.lists, seeds=range(7), **DOORS[door])
    assert torch.equal(torch.get_rng_state(), before)
    assert [text.number for text in together] == list(range(7))
    assert list(map(describe, together)) == list(map(describe, alone))
    for text in together:
        assert text.text == TOKENIZER.decode(text.tokens, skip_special_tokens=True)
        settled = [token for event in text.report.events if isinstance(event, Settled) for token in event.tokens]
        assert settled == list(text.tokens)
        assert text.text.count(FORCE) >= len(text.report.forced) - 1  # the length may end the last one
