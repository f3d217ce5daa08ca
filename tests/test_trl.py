"""TRL trains under bans: completions hold none, the reward counts them, and preference pairs arrive as they are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import antislop
from antislop import AntiSlop, BanList
from antislop.core.hf import chat_scope
from antislop.datasets import ModelRecordMaker, PairFile, ban_reward, open_journal, rollout, write_records
from antislop.errors import InputError
from antislop.files.prompts import read_prompts
from tests.support.depth import first_quick

pytestmark = pytest.mark.filterwarnings("default")  # of packages that are not ours
pytest.importorskip("trl", reason="trl is not installed: pip install trl")

from datasets import Dataset  # noqa: E402
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: E402

PROMPTS = ["The old house at the edge of the village", "One day", "She opened the door and", "He had never seen"]
BANS = BanList([*antislop.default_bans(), "the", "his", "was"]).with_options(weight=0.0)
COMMON_WORDS = BanList(["the", "his", "was"])
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
COMMON = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-4,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


@pytest.fixture
def model() -> Any:
    """A model that may be changed."""
    return antislop.tiny_model()[0]


tokenizer = antislop.tiny_model()[1]


class Completions:
    """A reward function that keeps what it is given and finds all of it equally good."""

    __name__ = "completions"

    def __init__(self) -> None:
        self.texts: list[Any] = []

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        self.texts += completions
        return [0.0] * len(completions)


def train(model: Any, folder: Path, *, trainer: Any = GRPOTrainer, config: Any = GRPOConfig, **options: Any) -> Any:
    """Return a trainer for two steps, with the completions that it draws in `completions`."""
    prompts, more = options.pop("prompts", PROMPTS), options.pop("more", {})
    completions = Completions()
    settings = {"num_generations": 4, "max_completion_length": 30, "gradient_checkpointing": False, "seed": 3}
    prepared = trainer(
        model=model,
        reward_funcs=[ban_reward(BANS), completions],
        args=config(output_dir=str(folder), **{**COMMON, **settings, **options}),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        **more,
    )
    prepared.completions = completions
    return prepared


def logged(trainer: Any, name: str) -> list[float]:
    """Return a metric at each step."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize(("trainer", "config"), [(GRPOTrainer, GRPOConfig), (RLOOTrainer, RLOOConfig)])
@pytest.mark.slow
def test_the_reward_is_what_the_completions_contain(model: Any, tmp_path: Path, trainer: Any, config: Any) -> None:
    prepared = train(model, tmp_path, trainer=trainer, config=config)
    prepared.train()
    texts = prepared.completions.texts
    expected = ban_reward(BANS)(prompts=[""] * len(texts), completions=texts)
    assert len(texts) == 8
    assert sum(map(len, map(BANS.find, texts))) >= 4
    assert logged(prepared, "rewards/ban_reward/mean") == pytest.approx([sum(expected[:4]) / 4, sum(expected[4:]) / 4])


@pytest.mark.parametrize(("trainer", "config"), first_quick([(GRPOTrainer, GRPOConfig), (RLOOTrainer, RLOOConfig)]))
def test_completions_under_bans_hold_none(model: Any, tmp_path: Path, trainer: Any, config: Any) -> None:
    prepared = train(model, tmp_path, trainer=trainer, config=config)
    with antislop.applied_to(prepared.model, AntiSlop(tokenizer, BANS)):
        prepared.train()
    assert len(prepared.completions.texts) == 8
    assert [BANS.find(text) for text in prepared.completions.texts] == [[]] * 8
    assert logged(prepared, "rewards/ban_reward/mean") == [0.0, 0.0]
    assert "generate" not in vars(prepared.model)


@pytest.mark.slow
def test_an_empty_list_changes_no_completion(model: Any, tmp_path: Path) -> None:
    plain = train(model, tmp_path)
    plain.train()
    under = train(antislop.tiny_model()[0], tmp_path)
    with antislop.applied_to(under.model, AntiSlop(tokenizer, [])):
        under.train()
    assert under.completions.texts == plain.completions.texts
    assert logged(under, "loss") == logged(plain, "loss")


def test_a_rollout_writes_completions_under_bans_with_the_probabilities_that_they_were_drawn_with(
    model: Any, tmp_path: Path
) -> None:
    written: list[dict[str, Any]] = []

    def note(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        written.append(rollout(AntiSlop(tokenizer, [] if len(written) else COMMON_WORDS))(prompts, trainer))
        assert vars(trainer.model).get("generate") is None and trainer.model.training
        return written[-1]

    prepared = train(model, tmp_path, more={"rollout_func": note}, temperature=0.8, learning_rate=0.0)
    prepared.train()
    under, free = written
    assert [COMMON_WORDS.find(text) for text in prepared.completions.texts[:4]] == [[]] * 4
    assert sum(under["rewinds"]) > 0 and free["rewinds"] == [0] * 4
    for out, has_bans in ((under, True), (free, False)):
        excess = 0.0
        for prompt, tokens, told in zip(out["prompt_ids"], out["completion_ids"], out["logprobs"], strict=True):
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].detach() / 0.8
            own = logits.log_softmax(-1)[range(len(tokens)), tokens]
            assert len(told) == len(tokens) <= 30
            excess += float((torch.tensor(told) - own).sum())
            assert bool((torch.tensor(told) > own - 1e-3).all()), "bans only take away from other tokens"
        assert excess > 0.05 if has_bans else excess == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"use_vllm": True}, "use_vllm=True"), ({"tools": [print]}, "tools"), ({"is_fsdp_enabled": True}, "FSDP")],
)
def test_a_rollout_refuses_what_it_does_not_write(change: dict[str, Any], sentence: str) -> None:
    trainer = SimpleNamespace(**{"use_vllm": False, "tools": None, "is_fsdp_enabled": False, **change})
    with pytest.raises(InputError, match=f"does not write with {sentence}"):
        rollout(AntiSlop(tokenizer, ["x"]))([""], trainer)
    with pytest.raises(InputError, match="sampler is a list"):
        rollout(["x"])  # type: ignore[arg-type]


def test_replies_to_chats_are_rewarded_and_hold_no_ban(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    prepared = train(model, tmp_path, prompts=[[{"role": "user", "content": prompt}] for prompt in PROMPTS])
    prepared.train()
    replies = prepared.completions.texts
    assert [len(reply) for reply in replies] == [1] * 8
    expected = ban_reward(BANS)(prompts=[""] * 8, completions=[reply[0]["content"] for reply in replies])
    assert min(expected) < 0
    assert sum(logged(prepared, "rewards/ban_reward/mean")) == pytest.approx(sum(expected) / 4)
    with antislop.applied_to(prepared.model, AntiSlop(tokenizer, BANS)):
        prepared.train()
    assert not any(BANS.find(reply[0]["content"]) for reply in prepared.completions.texts[8:])


@pytest.mark.slow
def test_a_model_that_thinks_is_trained_under_bans_in_the_part_that_they_hold_in(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template opens thoughts, which the small model does not end; prompts of a batch differ in length."""
    fields: dict[str, Any] = {"thinking": {"open": "<think>", "close": "</think>"}, "content": {}}
    template = {"start_anchor": "assistant:", "fields": fields}
    monkeypatch.setattr(tokenizer, "chat_template", f"{TEMPLATE}<think>")
    monkeypatch.setattr(tokenizer, "response_template", template, raising=False)
    prepared = train(model, tmp_path, prompts=[[{"role": "user", "content": prompt}] for prompt in PROMPTS])
    found = []
    for where in ("thinking", "answer"):
        with antislop.applied_to(prepared.model, AntiSlop(tokenizer, BANS, scopes=[chat_scope(template, where)])):
            prepared.train()
        found.append([bool(BANS.find(str(reply))) for reply in prepared.completions.texts[-8:]])
    assert len(prepared.completions.texts) == 16 and not any(found[0]) and any(found[1])


def test_an_adapter_is_trained_under_bans(model: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    prepared = train(peft.get_peft_model(model, config), tmp_path)
    with antislop.applied_to(prepared.model, AntiSlop(tokenizer, BANS)):
        prepared.train()
    assert [BANS.find(text) for text in prepared.completions.texts] == [[]] * 8


def test_a_model_is_trained_under_bans_by_continuous_batching(model: Any, tmp_path: Path) -> None:
    config = {"num_blocks": 16, "max_batch_tokens": 256}
    prepared = train(
        model, tmp_path, use_transformers_continuous_batching=True, transformers_continuous_batching_config=config
    )
    with antislop.applied_to(prepared.model, AntiSlop(tokenizer, BANS)):
        prepared.train()
    assert [BANS.find(text) for text in prepared.completions.texts] == [[]] * 8


def make_pairs(folder: Path, model: Any, tokenizer: Any, *, is_chat: bool = False) -> list[dict[str, Any]]:
    """Return preference pairs of a model."""
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS), encoding="utf-8")
    prompts = partial(read_prompts, folder / "prompts.jsonl", chat=is_chat, tokenizer=tokenizer)
    settings = {"max_new_tokens": 60, "do_sample": True, "min_p": 0.05}
    maker = ModelRecordMaker(model, tokenizer, COMMON_WORDS, seed=1, settings=settings, pairs="dpo")
    with open_journal(folder / "made.jsonl", settings) as journal:
        pairs = PairFile(folder / "pairs.jsonl", journal, kind="dpo")
        list(write_records(maker, prompts, journal, samples=2, pairs=pairs))
        pairs.finish()
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(params=[False, True], ids=["texts", "chats"])
def pairs(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    own_model, own_tokenizer = antislop.tiny_model()
    own_tokenizer.chat_template = TEMPLATE if request.param else None
    return make_pairs(tmp_path, own_model, own_tokenizer, is_chat=request.param)


def check_tokens(trainer: Any, pairs: list[dict[str, Any]], tokenizer: Any) -> None:
    """Check that tokens have one beginning, one end, a prompt that both sides share, and that nothing was cut off."""
    rows = list(trainer.train_dataset)
    assert len(rows) == len(pairs) >= 4
    for pair, row in zip(pairs, rows, strict=True):
        assert row["prompt_ids"] == tokenizer(pair["prompt"]).input_ids
        assert row["prompt_ids"].count(tokenizer.bos_token_id) == 1
        assert BanList([pair["ban"]]).find(pair["rejected"])
        for side in ("chosen", "rejected"):
            *ids, last = row[f"{side}_ids"]
            assert last == tokenizer.eos_token_id and not {last, tokenizer.bos_token_id} & {*ids}
            text = tokenizer.decode([*row["prompt_ids"], *ids], skip_special_tokens=True)
            assert text == tokenizer.decode(row["prompt_ids"], skip_special_tokens=True) + pair[side]


def test_a_pair_is_tokenized_as_it_is_meant(pairs: list[dict[str, Any]], model: Any, tmp_path: Path) -> None:
    config = DPOConfig(output_dir=str(tmp_path), **COMMON)
    trainer = DPOTrainer(model=model, args=config, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
    check_tokens(trainer, pairs, tokenizer)
    trainer.train()
    assert len(logged(trainer, "loss")) == 2
    assert logged(trainer, "rewards/margins")[-1] != 0


def test_a_pair_keeps_the_space_between_prompt_and_completion_of_sentencepiece(tmp_path: Path, assets: Path) -> None:
    folder = assets / "models" / "stories3M"
    own_model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    own_tokenizer = AutoTokenizer.from_pretrained(folder)
    own_tokenizer.pad_token = own_tokenizer.pad_token or own_tokenizer.eos_token
    pairs = make_pairs(tmp_path, own_model, own_tokenizer)
    config, data = DPOConfig(output_dir=str(tmp_path), **COMMON), Dataset.from_list(pairs)
    check_tokens(
        DPOTrainer(own_model, args=config, train_dataset=data, processing_class=own_tokenizer), pairs, own_tokenizer
    )
