"""On an accelerator the sampler writes what it writes on the CPU, wherever the ids are.

The device is a pretend one: see tests/support/pretend_device.py.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, StoppingCriteriaList, set_seed
from transformers.generation.streamers import BaseStreamer

from antislop import AntiSlop, Ban, applied_to
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.private import CACHE
from antislop.core.loop.sampling import Sampling
from antislop.core.trace.events import Finished, Settled
from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.samples import plan_samples
from antislop.engines.contract import check_language_model
from antislop.evaluation.likelihood import PromptedTokens, measure_nll
from antislop.files.prompts import Prompt
from antislop.serve.backend import GenerationRequest
from antislop.serve.local import LocalBackend
from antislop.steer import BestOf, Grammar, Regenerate, Replace
from tests.support import pretend_device
from tests.support.controllers import MaskingController
from tests.support.families import ENCODER_DECODER, FAMILIES, MULTIMODAL, RECURRENT, build, prepare
from tests.support.models import build_tokenizer, poisoned
from tests.support.pretend_device import RunApart
from tests.support.processors import Never

TOKENIZER = build_tokenizer()
BANS = [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde", "h")]
SAMPLER = AntiSlop(TOKENIZER, [*BANS, Ban("i", edges="anywhere", weight=0.3)])
PROMPTS = ((2, 5, 9, 3, 12, 7), (4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40), (21, 3, 8))
DRAWS: dict[str, Any] = {"max_new_tokens": 18, "do_sample": True, "suppress_tokens": [0, 1]}
GREEDY = {"do_sample": False, "num_return_sequences": 1}
DICT = {"return_dict_in_generate": True}


class Place(NamedTuple):
    model: str
    ids: str


CPU = Place("cpu", "cpu")
ELSEWHERE = (Place("pretend", "pretend"), Place("pretend", "cpu"))


def alike(one: Any, other: Any) -> bool:
    """Return whether two results are equal, up to the last bits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-5)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


# -- every door, on the CPU and elsewhere ------------------------------------------------------------------------------


@cache
def model_at(device: str, family: str = "llama", seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng(devices=()):
        return build(family, seed=seed).to(device)


def inputs_at(place: Place, family: str = "llama", rows: int = 3) -> dict[str, Tensor]:
    return {name: value.to(place.ids) for name, value in prepare(family, *PROMPTS[:rows]).items()}


def tell(out: Any, place: Place) -> list[Any]:
    """What `generate` returned, which lies where the ids are, and what happened."""
    assert out.sequences.device.type == place.ids
    reports = [{**report.to_dict(), "matcher_seconds": None} for report in out.reports]
    return [out.sequences.tolist(), reports, [step.tolist() for step in out.get("scores") or ()]]


def generate(place: Place, family: str = "llama", rows: int = 3, sampler: AntiSlop = SAMPLER, **options: Any) -> Any:
    inputs = inputs_at(place, family, rows)
    return tell(sampler.generate(model_at(place.model, family), **inputs, **{**DRAWS, **DICT, **options}), place)


def generate_as(place: Place, name: str) -> Any:
    """Call `generate` by another way."""
    model, inputs = model_at(place.model), inputs_at(place)
    if name == "custom_generate":
        return tell(model.generate(**inputs, **DRAWS, **DICT, custom_generate=SAMPLER), place)
    with applied_to(model, SAMPLER):
        return tell(model.generate(**inputs, **DRAWS, **DICT), place)


def generate_many(place: Place, sampler: AntiSlop = SAMPLER, **options: Any) -> Any:
    prompts: list[Any] = ["ab a", torch.tensor(PROMPTS[1], device=place.ids), list(PROMPTS[2]), "c"]
    done = sampler.generate_many(model_at(place.model), prompts, batch_size=3, seed=1, **{**DRAWS, **options})
    return sorted((each.number, each.tokens, each.report.rewinds, str(each.error)) for each in done)


def assist(place: Place, write: Callable[..., Any] = generate, **options: Any) -> Any:
    return write(place, assistant_model=model_at(place.model, seed=1), **options)


def run_stream(place: Place) -> Any:
    return list(SAMPLER.stream(model_at(place.model), **inputs_at(place, rows=1), **DRAWS))


def run_streamer(place: Place) -> Any:
    pieces: list[list[int]] = []

    class Listener(BaseStreamer):
        def put(self, value: Tensor) -> None:
            pieces.append(value.flatten().tolist())

        def end(self) -> None:
            pieces.append([])

    return [generate(place, rows=1, streamer=Listener()), pieces]


def run_events(place: Place, record: Any) -> Any:
    events = SAMPLER.events(model_at(place.model), **inputs_at(place, rows=1), **DRAWS, record=record)
    told = [event if not isinstance(event, Finished) else replace(event, matcher_seconds=0.0) for event in events]
    return [[type(event).__name__, *(getattr(event, field.name) for field in fields(event))] for event in told]


def keep_activations(place: Place) -> Any:
    inputs = inputs_at(place)
    inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0).to(place.model)
    ids, cache = SAMPLER.generate(model_at(place.model), **inputs, **DRAWS, return_cache=True)
    return [ids.tolist(), {name: cache[name].abs().sum().item() for name in cache}]


def keep_states(place: Place) -> Any:
    options = {**DRAWS, **DICT, "output_hidden_states": True, "output_logits": True}
    out = SAMPLER.generate(model_at(place.model), **inputs_at(place), **options)
    return [*tell(out, place), *(float(part.abs().sum()) for step in (*out.hidden_states, out.logits) for part in step)]


def continue_text(place: Place) -> Any:
    model, ids = model_at(place.model), torch.tensor([PROMPTS[1]], device=place.ids)
    first = SAMPLER.generate(model, ids, **DRAWS, **DICT, **{CACHE: DynamicCache()})
    mask = torch.ones_like(first.sequences)
    options = {**DRAWS, **DICT, "attention_mask": mask, CACHE: first.past_key_values}
    return [tell(first, place), tell(SAMPLER.generate(model, first.sequences, **options), place)]


def fail(place: Place) -> Any:
    with poisoned(model_at(place.model), 9):
        return generate_many(place, AntiSlop(TOKENIZER, []))


def explain(place: Place) -> Any:
    model = copy.deepcopy(model_at(place.model)).requires_grad_(True)
    forward = SAMPLER.forward_pass(model, **inputs_at(place, rows=1), **DRAWS)
    return forward.relevance_pass([0, 5], relevance="input_x_gradient")


def make_records(place: Place) -> Any:
    maker = ModelRecordMaker(model_at(place.model), TOKENIZER, BANS, settings=DRAWS, batch_size=3, seed=5, pairs="dpo")
    plan = plan_samples(
        [Prompt(f"p{i}", text, None, {}) for i, text in enumerate(["a b", "c"])], samples=2, arm="banned"
    )
    made = [(each.record, each.pairs) for each in maker.make(plan, arm="banned")]
    return sorted(repr([{k: v for k, v in record.items() if k != "seconds"}, pairs]) for record, pairs in made)


def serve(place: Place) -> Any:
    async def write(backend: LocalBackend, number: int) -> list[int]:
        sampling = (Sampling(), Sampling(temperature=0), Sampling(repetition_penalty=1.4, min_p=0.02))[number % 3]
        request = GenerationRequest(
            prompt=[0, *range(2, 3 + number)], bans=backend.bans, max_new_tokens=20, sampling=sampling, seed=number
        )
        return [t async for event in backend.write(request) if isinstance(event, Settled) for t in event.tokens]

    async def write_all() -> list[list[int]]:
        backend = LocalBackend(model_at(place.model), TOKENIZER, bans=BANS, batch_size=4)
        try:
            return await asyncio.gather(*(write(backend, number) for number in range(6)))
        finally:
            await backend.close(timeout=60)

    return asyncio.run(write_all())


def measure(place: Place) -> list[float]:
    return measure_nll(model_at(place.model), [PromptedTokens(list(PROMPTS[0]), list(PROMPTS[n])) for n in (1, 2)])


def with_encoded(place: Place) -> Any:
    """Write from what an encoder has returned."""
    encoded = model_at("cpu", "t5").get_encoder()(ids := torch.tensor(PROMPTS[:1]))
    encoded["last_hidden_state"] = encoded.last_hidden_state.to(place.ids)
    options = {**DRAWS, **DICT, "input_ids": ids.to(place.ids), "encoder_outputs": encoded}
    return tell(SAMPLER.generate(model_at(place.model, "t5"), **options), place)


def with_embeds(place: Place) -> Any:
    inputs = inputs_at(place)
    embeds = model_at("cpu").get_input_embeddings()(inputs.pop("input_ids").cpu()).to(place.ids)
    mask = {name: mask.to(place.model) for name, mask in inputs.items()}  # `generate` makes its own there, too
    out = SAMPLER.generate(model_at(place.model), inputs_embeds=embeds, **mask, **DRAWS, **DICT)
    return out.sequences.tolist()


SETTINGS: dict[str, dict[str, Any]] = {
    "one setting": {},
    "processors": {"temperature": 1.3, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1}
    | {"no_repeat_ngram_size": 3, "min_new_tokens": 10, "sequence_bias": {(5,): 1.0}},
    "several texts of a prompt": {"num_return_sequences": 2},
    "a static cache": {"cache_implementation": "static"},
    "stop strings": {"stop_strings": ["bc", "j"], "suppress_tokens": None, "pad_token_id": 1},
    "a criterion": {"stopping_criteria": StoppingCriteriaList([Never()])},
    "scores": {"output_scores": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "an early exit": {"assistant_early_exit": 1},
    "all recorded": {"record": "full"},
    "a controller that masks": {"controller": MaskingController()},
    "a prompt in parts": {"prefill_chunk_size": 4},
}
CASES: dict[str, Callable[..., Any]] = {
    **{name: partial(generate, **options) for name, options in SETTINGS.items()},
    **{f"greedy, {name}": partial(generate, **{**options, **GREEDY}) for name, options in SETTINGS.items()},
    **{
        family: partial(generate, family=family, rows=1 if family in RECURRENT | ENCODER_DECODER else 3)
        for family in FAMILIES
    },
    **{way: partial(generate_as, name=way) for way in ("custom_generate", "applied_to")},
    **{f"events, {level}": partial(run_events, record=level) for level in ("none", "events", "top", "full")},
    "first tokens": partial(generate, sampler=AntiSlop(TOKENIZER, BANS, method="token")),
    "whole texts": partial(generate, sampler=AntiSlop(TOKENIZER, BANS[:2], method="text"), max_new_tokens=6),
    "an assistant": assist,
    "a greedy assistant": partial(assist, do_sample=False),
    "an assistant in flight": partial(assist, write=generate_many),
    "replacements": lambda place: generate(place, controller=Replace({"a": "b", "j": "ii"}, TOKENIZER)),
    "attempts": lambda place: generate(place, controller=Regenerate(lambda s: len(s) % 3 > 0, TOKENIZER, attempts=3)),
    "candidates": lambda place: generate(place, controller=BestOf(2, len, TOKENIZER), max_forks=2),
    "a grammar": lambda p: generate(p, logits_processor=[Grammar.from_lark("start: /[a-f ]+/", TOKENIZER)]),
    "a grammar that forces": lambda p: generate(p, controller=Grammar.from_lark('start: ("ab" | "cc")+', TOKENIZER)),
    "a streamer": run_streamer,
    "a stream": run_stream,
    "in flight": generate_many,
    "in flight, greedy": partial(generate_many, do_sample=False),
    "no probabilities": fail,
    "activations": keep_activations,
    "states": keep_states,
    "a continued text": continue_text,
    "embeddings": with_embeds,
    "an encoder's output": with_encoded,
    "relevance": explain,
    "a data set": make_records,
    "a server's texts": serve,
    "likelihoods": measure,
    "the contract of a model": lambda place: check_language_model(
        TransformersModel(model_at(place.model)), tolerance=1e-3
    ),
}


def write(name: str, place: Place) -> Any:
    """Write a case, and draw the next random number.

    The numbers that the device draws are the CPU's next ones, so that a text that is drawn there can be compared. A
    real device has others, and a seed gives another text there.
    """
    with pretend_device.shared_numbers():
        set_seed(0)
        return [CASES[name](place), int(torch.randint(2**31, ()))]


@pytest.mark.parametrize("name", CASES)
def test_a_text_is_that_of_the_cpu_wherever_the_ids_are(accelerator: RunApart, name: str) -> None:
    expected = accelerator(write, name, CPU)
    if name in {*SETTINGS, *FAMILIES}:
        assert any(report["rewinds"] for report in expected[0][1])
    for place in ELSEWHERE:
        if place.ids == place.model or name not in ENCODER_DECODER | MULTIMODAL:  # encoders run where their inputs are
            assert alike(accelerator(write, name, place), expected), place


def write_with(names: Sequence[str], places: Sequence[str], do_sample: bool) -> tuple[Any, ...]:
    """Return the ids that `generate` and an empty sampler write from inputs at these places, and where they lie."""
    inputs = {**inputs_at(CPU), "position_ids": (inputs_at(CPU)["attention_mask"].cumsum(-1) - 1).clamp(min=0)}
    inputs["inputs_embeds"] = model_at("cpu").get_input_embeddings()(inputs["input_ids"])
    given = {name: inputs[name].to(place) for name, place in zip(names, places, strict=True)}

    def run(model: PreTrainedModel, inputs: dict[str, Tensor], **options: Any) -> Any:
        set_seed(0)
        try:
            ids = model.generate(**inputs, **{**DRAWS, "max_new_tokens": 8, "do_sample": do_sample}, **options)
        except RuntimeError as error:
            return str(error)
        return ids.tolist(), ids.device.type

    with pretend_device.shared_numbers():
        sampler = {"custom_generate": AntiSlop(TOKENIZER, [])}
        expected = run(model_at("cpu"), {name: inputs[name] for name in names})
        return expected, run(model_at("pretend"), given), run(model_at("pretend"), given, **sampler)


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize(
    "names",
    [
        ("input_ids",),
        ("input_ids", "attention_mask"),
        ("input_ids", "attention_mask", "position_ids"),
        ("inputs_embeds", "attention_mask"),
        ("inputs_embeds", "attention_mask", "input_ids"),
    ],
)
def test_inputs_may_be_where_they_may_be_in_generate(
    accelerator: RunApart, names: Sequence[str], do_sample: bool
) -> None:
    worked = 0
    for places in product(("cpu", "pretend"), repeat=len(names)):
        (expected, _), plain, ours = accelerator(write_with, names, places, do_sample)
        if isinstance(plain, str):  # then ours may work, or fail for the same reason
            assert ours == plain or ours[0] == expected, places
        else:
            assert plain == ours and ours[0] == expected, places
            worked += 1
    assert worked >= 2


def draft_in_flight() -> list[bool]:
    assist(ELSEWHERE[0], generate_many)  # makes the models
    set_seed(0)
    states = [torch.get_rng_state(), *map(torch.ops.pretend.get_state, range(2))]
    assist(ELSEWHERE[0], generate_many)
    now = [torch.get_rng_state(), *map(torch.ops.pretend.get_state, range(2))]
    return [torch.equal(before, after) for before, after in zip(states, now, strict=True)]


def test_a_drafted_text_with_its_own_numbers_leaves_the_global_ones_of_all_devices(accelerator: RunApart) -> None:
    assert accelerator(draft_in_flight) == [True] * 3


def spread(folder: Path, family: str, is_spread: bool) -> Any:
    """Write with a model whose layers lie on two devices, or with one on the CPU."""
    model = model_at("cpu", family)
    if is_spread:
        model.save_pretrained(folder)
        names = [f"model.{name}" for name, _ in model.model.named_children() if name != "layers"]
        places = dict.fromkeys((*names, "model.layers.0", "lm_head"), "pretend:0") | {"model.layers.1": "pretend:1"}
        model = AutoModelForCausalLM.from_pretrained(folder, device_map=places).eval()
    texts = []
    with pretend_device.shared_numbers():
        set_seed(0)
        for options in ({}, GREEDY, {"cache_implementation": "static"}):
            texts += SAMPLER.generate(model, **inputs_at(CPU, family), **{**DRAWS, **options}).tolist()
        return texts + [done.tokens for done in SAMPLER.generate_many(model, ["ab", "c"], seed=1, **DRAWS)]


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed: two devices are not tested")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_model_on_two_devices_writes_what_it_writes_on_one(
    accelerator: RunApart, family: str, tmp_path: Path
) -> None:
    assert accelerator(spread, tmp_path, family, True) == accelerator(spread, tmp_path, family, False)
