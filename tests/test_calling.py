"""Every door writes the same ids, and whoever calls `generate` gets text without bans: pipelines, `datasets.map`."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset
from datasets.fingerprint import Hasher
from transformers import TextStreamer, pipeline

import antislop
from antislop import AntiSlop, Ban, BanList
from tests.support.depth import first_quick
from tests.support.documents import ROOT, read_blocks

MODEL, TOKENIZER = antislop.tiny_model()
TOKENIZER.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
PROMPTS = ["The old house", "One day", "She opened the door and"]
CHAT = [{"role": "user", "content": "Tell me a story."}]
SETTINGS: dict[str, Any] = {"max_new_tokens": 40, "do_sample": True, "min_p": 0.05}
BANS = BanList([*antislop.default_bans(), "eyes", Ban.regex(r"was (a|the)\b")]).with_options(weight=0.0)
PIPE = pipeline("text-generation", model=MODEL, tokenizer=TOKENIZER)


def make_sampler() -> AntiSlop:
    return AntiSlop(TOKENIZER, BANS)


def write(*args: Any, **settings: Any) -> Any:
    torch.manual_seed(5)
    return PIPE(*args, **{**SETTINGS, **settings})


FOLDER = (
    Path(antislop.__file__).parent / "engines"
)  # with custom_generate/generate.py, as in a folder that was exported
IDS = dict(TOKENIZER(PROMPTS[0], return_tensors="pt"))
GREEDY = {"max_new_tokens": 40, "do_sample": False}


def name_folder(bans: BanList) -> dict[str, Any]:
    return {"custom_generate": str(FOLDER), "trust_remote_code": True, "tokenizer": TOKENIZER, "bans": bans}


def generate_ids(**settings: Any) -> torch.Tensor:
    return MODEL.generate(**IDS, **settings)


def pipe_ids(**settings: Any) -> torch.Tensor:
    (answer,) = PIPE(PROMPTS[0], return_tensors=True, **settings)
    return torch.tensor([answer["generated_token_ids"]])


DOORS: dict[str, Callable[..., torch.Tensor]] = {
    "custom_generate": lambda sampler, **settings: generate_ids(custom_generate=sampler, **settings),
    "applied_to": lambda sampler, **settings: antislop.applied_to(MODEL, sampler)(generate_ids)(**settings),
    "folder": lambda sampler, **settings: generate_ids(**name_folder(sampler.bans), **settings),
    "pipeline": lambda sampler, **settings: pipe_ids(custom_generate=sampler, **settings),
    "pipeline, applied_to": lambda sampler, **settings: antislop.applied_to(MODEL, sampler)(pipe_ids)(**settings),
    "pipeline, folder": lambda sampler, **settings: pipe_ids(**name_folder(sampler.bans), **settings),
}


WAYS: dict[str, dict[str, Any]] = {"sampled": {**SETTINGS, "temperature": 0.9}, "greedy": GREEDY}
SAMPLERS = [AntiSlop(TOKENIZER, []), make_sampler()]


@cache
def expect_ids(way: str, number: int) -> torch.Tensor:
    """Return what a sampler writes, which is what `generate` writes only if nothing is banned."""
    written = []
    for call in (partial(SAMPLERS[number].generate, MODEL, **IDS), generate_ids):
        torch.manual_seed(5)
        written.append(call(**WAYS[way]))
    assert torch.equal(*written) == (number == 0)
    return written[0]


@pytest.mark.parametrize("way", first_quick(WAYS))
@pytest.mark.parametrize("door", DOORS)
def test_every_door_writes_the_same_ids_and_without_bans_those_of_generate(
    door: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for number, sampler in enumerate(SAMPLERS):
        torch.manual_seed(5)
        ids = DOORS[door](sampler, **WAYS[way])
        assert torch.equal(ids, expect_ids(way, number))
        assert not sampler.bans.find(TOKENIZER.decode(ids[0]))


@pytest.mark.parametrize(
    ("inputs", "options"),
    first_quick(
        [
            (PROMPTS, {"batch_size": 2}),
            (CHAT, {}),
            ([CHAT, CHAT], {"batch_size": 2}),
            (PROMPTS[0], {"num_return_sequences": 2}),
            (PROMPTS[0], {"return_full_text": False}),
            (PROMPTS[0], {"stop_sequence": "."}),
            ([*CHAT, {"role": "assistant", "content": "Once upon"}], {"continue_final_message": True}),
        ],
        2,
    ),
    ids=["batch", "chat", "chats", "sequences", "completion", "stop", "prefilled"],
)
def test_a_pipeline_writes_the_same_by_either_door(inputs: Any, options: dict[str, Any]) -> None:
    sampler = make_sampler()
    by_argument = write(inputs, **options, custom_generate=sampler)
    with antislop.applied_to(MODEL, sampler):
        assert write(inputs, **options) == by_argument
    assert len(BANS.find(str(by_argument))) == len(BANS.find(str(inputs)))
    empty = AntiSlop(TOKENIZER, [])
    assert write(inputs, **options, custom_generate=empty) == write(inputs, **options)


def test_a_pipeline_streams_under_applied_to_only() -> None:
    class Pieces(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            pieces.append(text)

    pieces: list[str] = []
    streamer = Pieces(TOKENIZER, skip_prompt=True)
    with antislop.applied_to(MODEL, make_sampler()):
        answer = write(PROMPTS[0], streamer=streamer, return_full_text=False)
    assert "".join(pieces) == answer[0]["generated_text"]
    with pytest.raises(ValueError, match=r"does not hand its streamer to a custom_generate"):
        write(PROMPTS[0], streamer=streamer, custom_generate=make_sampler())


def test_a_data_set_is_mapped_once(tmp_path: Path) -> None:
    """The second time `datasets` finds what it has: what a sampler has read does not change its hash."""
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in PROMPTS))
    data = load_dataset("json", data_files=str(tmp_path / "prompts.jsonl"), cache_dir=str(tmp_path), split="train")
    sampler, model = make_sampler(), MODEL

    def complete(rows: dict[str, list[str]], numbers: list[int]) -> dict[str, list[str]]:
        done = sampler.generate_many(model, rows["prompt"], seeds=numbers, **SETTINGS)
        return {"text": [completion.text for completion in sorted(done, key=lambda each: each.number)]}

    first = data.map(complete, batched=True, batch_size=2, with_indices=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AntiSlop, "generate_many", None)
        again = data.map(complete, batched=True, batch_size=2, with_indices=True)
    assert list(again["text"]) == list(first["text"])
    assert first["prompt"] == PROMPTS
    assert not any(map(BANS.find, first["text"]))


@pytest.mark.filterwarnings("default")  # of packages that are not ours
def test_the_gradio_page_of_the_guide_shows_text_as_it_settles() -> None:
    pytest.importorskip("gradio", reason="gradio is not installed: pip install gradio")
    from gradio_client import Client

    (block,) = [
        block for block in read_blocks(ROOT / "docs" / "guides" / "calling.md", "python") if block.needs == "gradio"
    ]
    names: dict[str, Any] = {"model": MODEL, "sampler": make_sampler(), "options": SETTINGS}
    exec(block.compile(), names)
    names["demo"].launch(prevent_thread_lock=True, quiet=True)
    try:
        job = Client(names["demo"].local_url, verbose=False).submit(PROMPTS[0], api_name="/tell")
        text = job.result()
        shown = job.outputs()
    finally:
        names.pop("demo").close(verbose=False)
        gc.collect()  # what gradio leaves open warns here, where warnings are no errors
    assert len(shown) > 5
    assert all(text.startswith(part) for part in shown)
    assert not BANS.find(text.removeprefix(PROMPTS[0]))


@pytest.mark.parametrize("use", ["generate", "copy", "find"])
def test_the_hash_of_a_sampler_is_that_of_its_bans_and_options(use: str) -> None:
    sampler = make_sampler()
    before = Hasher.hash(sampler)
    if use == "generate":
        sampler.generate(MODEL, PROMPTS[0], **SETTINGS)
    elif use == "find":
        sampler.bans.find("It was a door.")
    else:
        sampler = pickle.loads(pickle.dumps(sampler))
    assert Hasher.hash(sampler) == before == Hasher.hash(make_sampler())
    assert Hasher.hash(AntiSlop(TOKENIZER, [*BANS, "other"])) != before
    assert Hasher.hash(AntiSlop(TOKENIZER, sampler.bans, max_rewinds=3)) != before
