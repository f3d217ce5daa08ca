"""Direct preference optimization (DPO, https://arxiv.org/abs/2305.18290) with TRL: the usual method, for comparison."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

from antislop.errors import InputError
from antislop.tuning.rows import read_pairs


class TextPair(NamedTuple):
    """A prompt, a continuation of it, and one that contains a ban."""

    prompt: str
    chosen: str
    rejected: str


def load_text_pairs(
    path: str | os.PathLike[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    max_rows: int | None = None,
    seed: int = 0,
) -> list[TextPair]:
    """Read the pairs that `antislop dataset --pairs` writes; `max_length` and `max_rows` as in `load_pairs`.

    Raises `InputError` for a file without such pairs, for texts that are too long, and for a pair of equal texts.
    """
    path, pairs = Path(path), list[TextPair]()
    for place, record in read_pairs(path):
        if missing := [name for name in TextPair._fields if not isinstance(record.get(name), str)]:
            raise InputError(f"{place}: the pair has no {missing[0]}: make pairs with antislop dataset --pairs")
        pair = TextPair(*(record[name] for name in TextPair._fields))
        if pair.chosen == pair.rejected:
            raise InputError(f"{place}: chosen and rejected are the same text: leave out the pair")
        length = max(len(tokenizer(pair.prompt + side)["input_ids"]) for side in pair[1:]) + 1  # the end of the text
        if max_length is not None and length > max_length:
            raise InputError(
                f"{place}: the text has {length:,} tokens, and the model reads {max_length:,}: make the pairs of "
                "shorter texts"
            )
        pairs.append(pair)
    return pairs if max_rows is None else Random(seed).sample(pairs, min(max_rows, len(pairs)))


def make_dpo_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[TextPair],
    arguments: Mapping[str, Any],
    *,
    beta: float,
    adapter: Any = None,
) -> Trainer:
    """Return TRL's trainer.

    arguments: of `transformers.TrainingArguments`.
    adapter: a configuration of peft, whose base is the reference; None trains the model's own weights, with a copy as
        the reference.
    """
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(model) if adapter is None else None,
        args=DPOConfig(**arguments, beta=beta, bf16=False, gradient_checkpointing=False, max_length=None),
        train_dataset=Dataset.from_list([pair._asdict() for pair in pairs]),
        processing_class=tokenizer,
        peft_config=adapter,
    )
