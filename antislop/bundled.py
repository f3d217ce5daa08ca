"""The model and the list that come with the package; how they were made is in data/README.md of the repository."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from antislop.lists import BanList

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FOLDER = Path(__file__).parent / "data"


def tiny_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the bundled (model, tokenizer): a small Llama that writes sloppy English fiction.

    It was trained by this project to show and test the sampler and says nothing worth reading. 512 positions, prompt
    included; float32 on the CPU. Each call loads anew.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = FOLDER / "tiny"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


@cache
def default_bans() -> BanList:
    """Load the bundled list: phrases that language models overuse in English fiction, by how often they do."""
    return BanList.load(FOLDER / "slop.txt")
