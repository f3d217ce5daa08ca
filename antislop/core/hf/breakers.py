"""The sequence breakers of DRY: strings as sequences of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

from antislop.core.hf.callbacks.samplers import LONGEST_TAIL, Breakers
from antislop.core.hf.vocabulary import Vocabulary, encode_after
from antislop.core.loop.sampling import DEFAULT_BREAKERS

BREAKERS_KEPT = 8
"""Results of `find_breakers` that are kept: each reads the whole vocabulary."""
_LONGEST = 40  # characters; longer strings are cut, as in llama.cpp


def find_breakers(
    tokenizer: PreTrainedTokenizerBase,
    strings: Iterable[str] = DEFAULT_BREAKERS,
    *,
    vocabulary: Vocabulary | None = None,
) -> Breakers:
    """Return the sequences of tokens that contain strings, for `antislop.core.hf.DryLogitsProcessor`.

    A token that contains a string is one. A token that ends with a part of it is the first of one, whose rest is
    tokenized as text without a space before it. The names of special tokens, such as "<|im_start|>", are strings, too.

    vocabulary: of the tokenizer, if it was read before.
    """
    vocabulary = vocabulary or Vocabulary.of(tokenizer)
    surfaces = dict(enumerate(vocabulary.surfaces)) | {i: name.encode() for i, name in vocabulary.breaks.items()}
    breakers: dict[int, set[tuple[int, ...]]] = {}
    for text in (string[:_LONGEST] for string in strings if string):
        tails = [
            (text[:place].encode(), encode_after(tokenizer, vocabulary, text[place:])) for place in range(1, len(text))
        ]
        whole, first = text.encode(), text[0].encode()
        for token, surface in surfaces.items():
            if first in surface:  # a tail is empty if it can't be written after other text
                part_tails = {tuple(tail[:LONGEST_TAIL]) for part, tail in tails if tail and surface.endswith(part)}
                if found := {()} if whole in surface else part_tails:
                    breakers[token] = breakers.get(token, set()) | found
    return breakers
