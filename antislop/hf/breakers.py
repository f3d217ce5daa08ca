"""The sequence breakers of DRY: strings as sequences of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transformers import PreTrainedTokenizerBase

from antislop.hf.vocabulary import Vocabulary, encode_after
from antislop.processors.samplers import LONGEST_TAIL, Breakers

DEFAULT_BREAKERS = ("\n", ":", '"', "*")
_LONGEST = 40  # characters; longer strings are cut, as in llama.cpp


def find_breakers(
    tokenizer: PreTrainedTokenizerBase,
    strings: Iterable[str] = DEFAULT_BREAKERS,
    *,
    vocabulary: Vocabulary | None = None,
) -> Breakers:
    """Return the sequences of tokens that contain strings, for `antislop.processors.DryLogitsProcessor`.

    A token that contains a string is one. A token that ends with a part of it is the first of one, whose rest is
    tokenized as text without a space before it. The names of special tokens, such as "<|im_start|>", are strings, too.

    vocabulary: of the tokenizer, if it was read before.
    """
    vocabulary = vocabulary or Vocabulary.of(tokenizer)
    surfaces = dict(enumerate(vocabulary.surfaces)) | {i: name.encode() for i, name in vocabulary.breaks.items()}
    breakers: dict[int, set[tuple[int, ...]]] = {}
    for text in (string[:_LONGEST] for string in strings if string):
        tails = [*_split(tokenizer, vocabulary, text)]
        whole, first = text.encode(), text[0].encode()
        for token, surface in surfaces.items():
            if first not in surface:
                continue
            found = [()] if whole in surface else [tail for part, tail in tails if surface.endswith(part)]
            if found:
                breakers.setdefault(token, set()).update(found)
    return breakers


def _split(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, text: str
) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Yield each beginning of a text with the tokens of its rest."""
    for place in range(1, len(text)):
        tail = encode_after(tokenizer, vocabulary, text[place:])
        if tail:  # none if it can't be written after other text
            yield text[:place].encode(), tuple(tail[:LONGEST_TAIL])
