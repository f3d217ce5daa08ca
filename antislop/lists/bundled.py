"""The model and the lists that come with the package; how they were made is in data/README.md of the repository."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from antislop.data import FOLDER
from antislop.files import read_json
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.matching.errors import BanError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tiny_model() -> tuple[Any, PreTrainedTokenizerBase]:
    """Load the bundled (model, tokenizer): a small Llama that writes sloppy English fiction.

    It was trained by this project to show and test the sampler and says nothing worth reading. 512 positions, prompt
    included; float32 on the CPU. Each call loads anew. The model's type is `Any`, as that of `from_pretrained` is: type
    checkers make nothing of transformers' own annotations of `generate`.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = FOLDER / "tiny"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


@cache
def default_bans() -> BanList:
    """Load the bundled list: what language models overuse in English fiction, the most superfluous first.

    What people write too has a weight that makes it as rare as with them.
    """
    return BanList.load(FOLDER / "slop.txt")


@cache
def held_out_bans() -> BanList:
    """Load a list made like the bundled one from answers to other prompts.

    It is for evaluation: what it finds in texts that were written under the bundled list shows whether slop was
    avoided, or only the bundled phrases were.
    """
    return BanList.load(FOLDER / "slop_held_out.txt")


class Construction(NamedTuple):
    """A way to build sentences that language models overuse.

    sources: where it was described, as URLs; without any, it is known from the counts in data/README.md alone.
    examples: sentences in which the ban must be found. counterexamples: sentences in which it must not.
    """

    name: str
    about: str
    sources: tuple[str, ...]
    ban: Ban
    examples: tuple[str, ...]
    counterexamples: tuple[str, ...]


@cache
def read_constructions() -> tuple[Construction, ...]:
    """Read the bundled constructions with all that is known of them."""
    entries = read_json(FOLDER / "constructions.json")
    return tuple(
        Construction(
            entry["name"],
            entry["about"],
            tuple(entry["sources"]),
            Ban.regex("".join(entry["regex"]), max_span=entry["max_span"]),
            tuple(entry["examples"]),
            tuple(entry["counterexamples"]),
        )
        for entry in entries
    )


def constructions(*names: str) -> BanList:
    """Load bans of whole constructions, such as "It's not just X; it's Y", in English: those named, or all of them.

    Each is a regex that reads curly and straight quotes, dashes of all kinds and line breaks. Raises `BanError` for a
    name that is none of them.

    >>> [match[1:] for match in constructions("not-x-but-y").find("It was not a door, but a mouth.")]
    [(7, 24)]
    """
    known = {each.name: each.ban for each in read_constructions()}
    for name in names:
        if name not in known:
            raise BanError(f"there is no construction {name!r}; there are {', '.join(known)}")
    return BanList([known[name] for name in names or known], source="the bundled constructions")
