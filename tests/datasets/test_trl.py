"""TRL reads preference pairs as intended: whole sentences after the prompt that the model read."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import antislop
from antislop.datasets import ModelRecordMaker
from antislop.datasets.samples import plan_samples
from antislop.files.journal import Record
from antislop.files.prompts import Prompt
from antislop.measure.words import find_sentence_end

pytestmark = [
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed: pip install trl accelerate"),
    pytest.mark.filterwarnings("ignore"),  # TRL's own
]

PROMPTS = ["The old house", "One day, a cat", "She opened the door and"]
BANS = ["the", "was", "and", "she", "he", "it"]


def make_pairs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[Record]:
    settings = {"max_new_tokens": 60, "do_sample": True, "min_p": 0.05}
    maker = ModelRecordMaker(model, tokenizer, BANS, settings=settings, pairs="dpo", seed=1)
    prompts = [Prompt(str(i), text, None, {}) for i, text in enumerate(PROMPTS)]
    made = maker.make(plan_samples(prompts, samples=2, arm="banned"))
    return [row for one in made for row in one.pairs]


def tokenize(
    pairs: list[Record], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[Record]:
    """Have TRL's trainer prepare the pairs."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config = DPOConfig(output_dir=str(folder), use_cpu=True, report_to="none", bf16=False, disable_tqdm=True)
    columns = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in pairs]
    trainer = DPOTrainer(model, args=config, train_dataset=Dataset.from_list(columns), processing_class=tokenizer)
    return list(trainer.train_dataset)


def check(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    pairs = make_pairs(model, tokenizer)
    assert len(pairs) > 20
    tokenized = tokenize(pairs, model, tokenizer, folder)
    for row, ids in zip(pairs, tokenized, strict=True):
        assert ids["prompt_ids"] == tokenizer(row["prompt"])["input_ids"], "the prompt ends with a token"
        for side in ("chosen", "rejected"):
            *body, last = ids[f"{side}_ids"]
            assert last == tokenizer.eos_token_id
            text = tokenizer.decode([*ids["prompt_ids"], *body], skip_special_tokens=True)
            assert text == row["prompt"] + row[side]
            assert find_sentence_end(text + " Then", len(text), is_complete=False) == len(text)


def test_trl_appends_the_end_of_text_to_whole_sentences(tmp_path: Path) -> None:
    check(*antislop.tiny_model(), tmp_path)


def test_trl_keeps_the_space_between_prompt_and_completion_of_sentencepiece_tokenizers(
    tmp_path: Path, assets: Path
) -> None:
    folder = assets / "models" / "stories3M"
    check(
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), AutoTokenizer.from_pretrained(folder), tmp_path
    )
