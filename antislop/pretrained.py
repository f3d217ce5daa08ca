"""Models by name, for the command line: the bundled one, one of the hub, or a folder. Imports them when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.bundled import FOLDER, tiny_model
from antislop.terminal import loading

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_model(name: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load (model, tokenizer), None being the bundled ones; raises `Refused` with a sentence for what is no model."""
    if name is None:
        with loading("the bundled model", advice="install antislop again"):
            return tiny_model()
    with loading(f"the model {name!r}", advice="pass a causal language model's Hugging Face id or folder"):
        return _load_named(name)


def load_tokenizer(name: str | None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `load_model` alone."""
    with loading(f"the tokenizer of {name or 'the bundled model'}", advice="pass a model's Hugging Face id or folder"):
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(FOLDER / "tiny" if name is None else name)
        return tokenizer


def _load_named(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer
