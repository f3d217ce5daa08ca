"""A trace replays, and whatever is not as it was is found at its place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList, set_seed

from antislop import AntiSlop, Ban, BanList, Exhausted, ReplayError, Scope, replay
from antislop.errors import InputError
from antislop.trace import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Finished,
    Forwarded,
    Rewound,
    Settled,
    Trace,
    TracedRow,
)
from antislop.trace.events import Event
from tests.conftest import DEPTH
from tests.support.models import FAMILIES, build_model, build_spaced_tokenizer, build_tokenizer

TOKENIZER = build_tokenizer()
LETTERS = "abcdefghij"
BANS = [
    *(Ban(piece, edges="anywhere") for piece in ("a", "be", "cc", "d,")),
    Ban("f", edges="anywhere", weight=0.4),
    Ban.regex("e[fgh]"),
    Ban("i", edges="anywhere", weight=0.3),
]


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {family: build_model(family) for family in FAMILIES}


def make_bans(chance: random.Random) -> list[Ban]:
    """Random bans of all kinds."""

    def word(length: int = 2) -> str:
        return "".join(chance.choices(LETTERS, k=length))

    kinds = [
        lambda **options: Ban(word(chance.randint(1, 4)), edges=chance.choice(["word", "anywhere"]), **options),
        lambda **options: Ban.regex(f"[{word(3)}] ?{word(1)}", **options),
        lambda **options: Ban.wildcard(f"{word(1)}* {word(1)}", **options),
        lambda **options: Ban.words([word(1), word(1)], gap=2, **options),
        lambda **options: Ban.tokens([chance.randrange(2, 47) for _ in range(chance.randint(1, 2))], **options),
        lambda **options: Ban.loop(copies=2, min_length=3, max_passage=9, **options),
    ]
    bans = []
    for _ in range(chance.randint(0, 12)):
        options: dict[str, Any] = {"weight": chance.choice([0.0, 0.0, 0.0, 0.3, 0.9])}
        make = chance.choice(kinds)
        if make in kinds[:4] and chance.random() < 0.3:
            options |= chance.choice(
                [{"exempt": [word(3)]}, {"scopes": [Scope("outside", ("'", "'"))]}, {"from_token": 3}, {"at_most": 2}]
            )
        bans.append(make(**options))
    return bans


def make_sampler(chance: random.Random) -> AntiSlop:
    options: dict[str, Any] = {
        "method": chance.choice(["exact", "exact", "token", "text"]),
        "on_exhausted": chance.choice(["concede", "concede", "stop", "raise"]),
        "prompt_lookback": chance.random() < 0.8,
        "exempt_prompt": chance.random() < 0.2,
        "max_rewinds": chance.choice([0, 1, 2, 5, 100, 100]),
        "draft_bans": chance.random() < 0.3,
        "mass_floor": chance.choice([1e-4, 0.0, 0.2]),
        "probability_floor": chance.choice([1e-6, 0.0, 0.05]),
    }
    tokenizer = chance.choice([TOKENIZER, TOKENIZER, build_spaced_tokenizer()])
    return AntiSlop(tokenizer, make_bans(chance), exempt=chance.choice([(), ("abc",)]), **options)


def make_settings(chance: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_new_tokens": chance.randint(1, 24), "pad_token_id": 0}
    settings |= chance.choice(
        [{"do_sample": False}, *({"do_sample": True, "temperature": heat, "top_k": 0} for heat in (0.7, 1.0, 2.0))]
    )
    if settings["do_sample"]:
        settings |= chance.choice([{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}, {"typical_p": 0.7}])
    settings |= chance.choice(
        [
            {},
            {},
            {"repetition_penalty": 1.3},
            {"no_repeat_ngram_size": 3},
            {"min_new_tokens": settings["max_new_tokens"] // 2},
            {"bad_words_ids": [[7], [8, 9]]},
            {"sequence_bias": {(5,): -2.0, (6, 7): 3.0}},
            {"suppress_tokens": [4]},
            {"stop_strings": ["bc", "j"]},
            {"eos_token_id": [1, 9]},
            {"prompt_lookup_num_tokens": 3},
            {"cache_implementation": "static"},
        ]
    )
    return settings


def make_inputs(chance: random.Random, settings: dict[str, Any]) -> dict[str, Any]:
    rows, length = chance.choice([1, 1, 1, 2, 3]), chance.randint(1, 6)
    ids = torch.tensor([[chance.randrange(2, 25) for _ in range(length)] for _ in range(rows)])
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, : chance.randrange(length)] = 0
    ids = ids.where(mask.bool(), torch.zeros_like(ids))
    inputs: dict[str, Any] = {"inputs": ids, "attention_mask": mask}
    if settings["do_sample"] and "prompt_lookup_num_tokens" not in settings and chance.random() < 0.3:
        inputs["num_return_sequences"] = 2
    return inputs


def make_trace(chance: random.Random, sampler: AntiSlop, model: PreTrainedModel, **options: Any) -> Trace | None:
    """Generate at random; return the trace, None if the text of a batch was exhausted."""
    settings = {**make_settings(chance), **options}
    if settings.get("prompt_lookup_num_tokens"):  # transformers' penalty of a padded batch reads no single row's draft
        settings.pop("repetition_penalty", None)
    inputs = make_inputs(chance, settings)
    record: Any = chance.choice(["events", "top", "full"])
    set_seed(chance.randrange(10**6))
    if inputs["inputs"].shape[0] == 1 and "num_return_sequences" not in inputs and chance.random() < 0.5:
        stream = sampler.events(model, record=record, **inputs, **settings)
        try:
            for number, _ in enumerate(stream):
                if number == 40 and chance.random() < 0.5:
                    break
        except Exhausted:
            pass
        stream.close()
        return stream.trace
    try:
        out = sampler.generate(model, record=record, return_dict_in_generate=True, **inputs, **settings)
    except Exhausted:
        return None
    trace: Trace = out.trace
    return trace


def save(trace: Trace, folder: Path) -> Trace:
    trace.save(folder / "trace.jsonl")
    return Trace.load(folder / "trace.jsonl")


@pytest.mark.filterwarnings("ignore::antislop.ConcededWarning")
@pytest.mark.parametrize("part", range(10))
def test_random_traces_replay(part: int, models: dict[str, PreTrainedModel], tmp_path: Path) -> None:
    """Tokens, events, probabilities: all of them; and torch's own random numbers are not disturbed."""
    replayed, seeds = 0, count()
    while replayed < 10 * DEPTH:
        chance = random.Random(1000 * next(seeds) + part)
        sampler, model = make_sampler(chance), models[chance.choice(FAMILIES)]
        trace = make_trace(chance, sampler, model)
        if trace is None:
            continue
        state = torch.random.get_rng_state()
        again = replay(save(trace, tmp_path), model, sampler.compiled.tokenizer)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert again.sequences == trace.sequences
        replayed += 1
    assert next(seeds) < 13 * DEPTH  # the others were exhausted in a batch, which has no trace then


# -- differences -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(models: dict[str, PreTrainedModel]) -> PreTrainedModel:
    return models["llama"]


@pytest.fixture(scope="module")
def sampler() -> AntiSlop:
    return AntiSlop(TOKENIZER, BANS)


def generate(sampler: AntiSlop, model: PreTrainedModel, *, seed: int = 0, **options: Any) -> Trace:
    set_seed(seed)
    inputs = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]])
    settings: dict[str, Any] = {
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
        "max_new_tokens": 40,
        "do_sample": True,
        "record": "top",
        "pad_token_id": 0,
    }
    out = sampler.generate(model, inputs, return_dict_in_generate=True, **{**settings, **options})
    trace: Trace = out.trace
    return trace


@pytest.fixture(scope="module")
def trace(llama: PreTrainedModel, sampler: AntiSlop) -> Trace:
    return generate(sampler, llama)


def with_facts(trace: Trace, **facts: Any) -> Trace:
    return Trace(trace.rows, trace.bans, trace.surfaces, lambda: {**trace.about, **facts})


def with_events(trace: Trace, row: int, events: list[Event]) -> Trace:
    rows = [replace(old, events=tuple(events)) if number == row else old for number, old in enumerate(trace.rows)]
    return replace(trace, rows=tuple(rows))


def test_the_repetition_is_a_trace_like_the_first(
    trace: Trace, llama: PreTrainedModel, sampler: AntiSlop, tmp_path: Path
) -> None:
    again = replay(save(trace, tmp_path), llama, TOKENIZER)
    for row, other in zip(trace.rows, again.rows, strict=True):
        assert [without_seconds(event) for event in row.events] == [without_seconds(event) for event in other.events]
        assert row.history.kept == other.history.kept
    assert again.about.keys() == trace.about.keys()
    assert again.about["random_state"] == trace.about["random_state"]
    assert sum(isinstance(event, Rewound) for row in trace.rows for event in row.events) > 5
    replay(again, llama, TOKENIZER)


def without_seconds(event: Event) -> Event:
    return replace(event, matcher_seconds=0.0) if isinstance(event, Finished) else event


def test_another_seed_is_found_at_the_first_draw_that_differs(
    trace: Trace, llama: PreTrainedModel, sampler: AntiSlop
) -> None:
    other = generate(sampler, llama, seed=1)
    with pytest.raises(ReplayError, match=r"^text \d, draw \d+, token \d+: .* was expected, .* came$"):
        replay(with_facts(trace, random_state=other.about["random_state"]), llama, TOKENIZER)


def test_other_weights_are_found_at_the_first_probability(trace: Trace) -> None:
    with pytest.raises(ReplayError, match=r"^text 0, draw 0, token 0: "):
        replay(trace, build_model("llama", seed=5), TOKENIZER)


def test_another_list_is_found_where_it_matters(trace: Trace, llama: PreTrainedModel) -> None:
    shorter = replace(trace, bans=BanList(trace.bans[1:]))
    first = next(event for event in trace.rows[0].events if isinstance(event, (Rewound, Admitted)))
    assert first.violation.ban in trace.bans
    with pytest.raises(ReplayError, match="draw"):
        replay(shorter, llama, TOKENIZER)


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.01}, {"max_new_tokens": 39}, {"top_k": 3}, {"repetition_penalty": 1.1}]
)
def test_other_settings_are_found(trace: Trace, llama: PreTrainedModel, settings: dict[str, Any]) -> None:
    changed = with_facts(trace, settings={**trace.about["settings"], **settings})
    with pytest.raises(InputError, match=r"draw|max_length|RepetitionPenalty|without Temperature"):
        replay(changed, llama, TOKENIZER)


def test_other_options_of_the_sampler_are_found(trace: Trace, llama: PreTrainedModel) -> None:
    with pytest.raises(ReplayError, match="draw"):
        replay(with_facts(trace, sampler={**trace.about["sampler"], "method": "token"}), llama, TOKENIZER)


def test_versions_are_named_beside_a_difference_only(trace: Trace, llama: PreTrainedModel) -> None:
    old = with_facts(trace, versions={**trace.about["versions"], "torch": "1.0"})
    replay(old, llama, TOKENIZER)
    with pytest.raises(ReplayError, match=r"came \(torch was 1.0 and is [^;]*\)$"):
        replay(old, build_model("llama", seed=5), TOKENIZER)


def change(event: Event, chance: random.Random) -> Iterator[Event]:
    """Yield changes of an event that leave the texts as they were."""
    if isinstance(event, Drawn) and event.choice is not None:
        choice = event.choice
        yield replace(event, choice=choice._replace(probability=choice.probability + 0.001))
        yield replace(event, choice=choice._replace(share=choice.share - 0.001))
        yield replace(event, choice=choice._replace(rank=choice.rank + 20))
        yield replace(event, choice=choice._replace(alternatives=choice.alternatives[1:]))
        yield replace(event, choice=None)
    elif isinstance(event, Rewound):
        violation = event.violation
        yield replace(event, withdrawn=(*event.withdrawn[:-1], 3 if event.withdrawn[-1] != 3 else 4))
        yield replace(event, violation=violation._replace(ban=BanList(["zz"])[0]))
        yield replace(event, violation=violation._replace(start=violation.start + 1))
        yield replace(event, alternatives=((2, 0.123), *event.alternatives))
    elif isinstance(event, (Admitted, Conceded)):
        yield replace(event, violation=event.violation._replace(end=event.violation.end + 1))
        yield Conceded(event.violation) if isinstance(event, Admitted) else Admitted(event.violation)
    elif isinstance(event, Forwarded):
        yield replace(event, fed=event.fed + 1)
        yield replace(event, cut=event.cut + 1)
    elif isinstance(event, Drafted):
        yield replace(event, accepted=event.accepted + 1)
    elif isinstance(event, Settled):
        yield Settled((*event.tokens, 5))
    elif isinstance(event, Finished):
        yield replace(event, reason="exhausted")
        yield replace(event, forced_by="Grammar")


@pytest.mark.filterwarnings("ignore::antislop.ConcededWarning")
@pytest.mark.parametrize("part", range(2))
def test_a_change_of_any_single_event_is_found_at_its_place(
    part: int, models: dict[str, PreTrainedModel], tmp_path: Path
) -> None:
    """Places are counted here by hand, from the events before the one that was changed."""
    kinds = set()
    for number in range(10 * DEPTH):
        chance = random.Random(1000 * number + part)
        sampler, model = make_sampler(chance), models["llama"]
        trace = make_trace(chance, sampler, model, prompt_lookup_num_tokens=2 if part == 0 else None)
        if trace is None or not all(row.events for row in trace.rows):
            continue
        row = chance.randrange(len(trace.rows))
        events = list(trace.rows[row].events)
        place = chance.choice([i for i, event in enumerate(events) if type(event) not in kinds] or range(len(events)))
        changed = list(change(events[place], chance))
        kinds.add(type(events[place]))
        if not changed:
            continue
        events[place] = chance.choice(changed)
        before = TracedRow((), events[:place])
        draws = sum(isinstance(event, Drawn) for event in before.events)
        with pytest.raises(ReplayError, match=f"^text {row}, draw {draws}, token {len(before.tokens)}: .* came"):
            replay(save(with_events(trace, row, events), tmp_path), model, sampler.compiled.tokenizer)
    assert len(kinds) >= 5


def test_another_token_is_named_with_what_came(trace: Trace, llama: PreTrainedModel) -> None:
    events = list(trace.rows[1].events)
    place = [i for i, event in enumerate(events) if isinstance(event, Drawn)][-1]
    drawn = events[place]
    assert isinstance(drawn, Drawn)
    other = 5 if drawn.token != 5 else 6
    events[place] = Drawn(other, drawn.choice)
    texts = [TOKENIZER.decode([token]) for token in (other, drawn.token)]
    sentence = f"{texts[0]!r} (id {other}) was expected, {texts[1]!r} (id {drawn.token}) came"
    with pytest.raises(ReplayError) as caught:
        replay(with_events(trace, 1, events), llama, TOKENIZER)
    assert str(caught.value).endswith(f": {sentence}")
    assert str(caught.value).startswith("text 1, draw ")


def test_events_that_are_missing_or_too_many_are_found(trace: Trace, llama: PreTrainedModel) -> None:
    events = list(trace.rows[0].events)
    assert isinstance(events[-1], Forwarded)
    with pytest.raises(ReplayError, match=r"nothing more was expected, a forward pass of 0 tokens .* came"):
        replay(with_events(trace, 0, events[:-1]), llama, TOKENIZER)
    with pytest.raises(ReplayError, match=r"a forward pass of 7 tokens .* was expected, nothing more came"):
        replay(with_events(trace, 0, [*events, Forwarded(7, 0)]), llama, TOKENIZER)


def test_a_text_that_is_exhausted_too_early_is_a_difference(llama: PreTrainedModel) -> None:
    sampler = AntiSlop(TOKENIZER, [], on_exhausted="raise")
    trace = replace(generate(sampler, llama), bans=BanList([Ban.tokens([token]) for token in range(48)]))
    with pytest.raises(ReplayError, match="was expected, but"):
        replay(trace, llama, TOKENIZER)


# -- before the model runs ---------------------------------------------------------------------------------------------


class Mine:
    """A processor of the caller's own."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores - 0.01 * torch.arange(scores.shape[1])


class MyEnd:
    """A criterion of the caller's own."""

    def __call__(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return ids[:, -1] == 7


def test_processors_and_criteria_of_the_caller_are_passed_again(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    trace = generate(
        sampler,
        llama,
        logits_processor=LogitsProcessorList([Mine()]),
        stopping_criteria=StoppingCriteriaList([MyEnd()]),
    )
    replay(trace, llama, TOKENIZER, logits_processor=[Mine()], stopping_criteria=[MyEnd()])
    with pytest.raises(InputError, match=r"made with Mine, .* pass it again as logits_processor"):
        replay(trace, llama, TOKENIZER, stopping_criteria=[MyEnd()])
    with pytest.raises(InputError, match=r"made with MyEnd, .* pass it again as stopping_criteria"):
        replay(trace, llama, TOKENIZER, logits_processor=[Mine()])
    with pytest.raises(InputError, match="made without MyEnd: leave it out of stopping_criteria"):
        replay(generate(sampler, llama), llama, TOKENIZER, stopping_criteria=[MyEnd()])


def test_another_model_tokenizer_or_device_is_refused(trace: Trace, models: dict[str, PreTrainedModel]) -> None:
    with pytest.raises(InputError, match="GPT2LMHeadModel, and that of the trace, '', a LlamaForCausalLM"):
        replay(trace, models["gpt2"], TOKENIZER)
    with pytest.raises(InputError, match="has other tokens than that of the trace"):
        replay(trace, models["llama"], build_spaced_tokenizer())
    with pytest.raises(InputError, match="tokenizer is a str"):
        replay(trace, models["llama"], "tokenizer")  # type: ignore[arg-type]
    elsewhere = with_facts(trace, model={**trace.about["model"], "device": "cuda:0"})
    with pytest.raises(InputError, match=r"sampled on cuda, .* move the model to cuda"):
        replay(elsewhere, models["llama"], TOKENIZER)
    with pytest.raises(InputError, match=r"random state .* can't be used"):
        replay(with_facts(trace, random_state={"cpu": "AAAA"}), models["llama"], TOKENIZER)


def test_greedy_texts_replay_on_any_device(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    trace = generate(sampler, llama, do_sample=False)
    replay(with_facts(trace, model={**trace.about["model"], "device": "cuda:0"}), llama, TOKENIZER)


def test_calls_that_a_trace_does_not_contain_are_refused(llama: PreTrainedModel, sampler: AntiSlop) -> None:
    prompt = torch.tensor([[5, 6, 7]])
    common: dict[str, Any] = {"max_new_tokens": 4, "return_dict_in_generate": True, "pad_token_id": 0}

    def refuse(missing: str, inputs: Tensor | None = prompt, **options: Any) -> None:
        trace = sampler.generate(llama, inputs, **common, **options).trace
        assert trace is not None
        with pytest.raises(NotImplementedError, match=f"can't be replayed, .* {missing}"):
            replay(trace, llama, TOKENIZER)

    refuse("inputs: inputs_embeds", None, inputs_embeds=llama.get_input_embeddings()(prompt))
    refuse("inputs: position_ids", position_ids=torch.tensor([[3, 4, 5]]), attention_mask=torch.ones_like(prompt))
    refuse("the assistant model", assistant_model=build_model("llama", seed=3), attention_mask=torch.ones_like(prompt))
    cache = llama(prompt[:, :2], use_cache=True).past_key_values
    refuse("inputs: past_key_values", past_key_values=cache, attention_mask=torch.ones_like(prompt))
    plain = sampler.generate(llama, prompt, attention_mask=torch.ones_like(prompt), **common).trace
    assert plain is not None
    replay(plain, llama, TOKENIZER)
    with pytest.raises(NotImplementedError, match="the controller, a Mine: make the call again"):
        replay(with_facts(plain, controller="Mine"), llama, TOKENIZER)
