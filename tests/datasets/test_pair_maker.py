"""Continuations end where the first sentence ends that does so after what they continue."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerBase

import antislop
from antislop.core.hf.vocabulary import Vocabulary
from antislop.datasets.pair_maker import SentenceEnd, settings_for_continuations
from antislop.measure.words import find_sentence_end

TEXTS = [
    "The door was locked. Nobody had seen Mr. Fox since.",
    "“Stop!” she said. He did not, and fell… Then it was over.",
    "A title\n\nAnd what follows it",
    "It was cold, 3.5 degrees below zero. “Well?” she said",
    "Nothing ends here",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return antislop.tiny_model()[1]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("before", ["", "He came home. She saw that "])
def test_the_first_token_that_shows_the_end_of_a_sentence_ends_the_text(
    text: str, before: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    vocabulary = Vocabulary.of(tokenizer)
    prompt, tokens = (tokenizer(part)["input_ids"] for part in (before + "so", " " + text))
    ask = SentenceEnd(vocabulary)
    stopped = [bool(ask(torch.tensor([prompt + tokens[:n]]), None)[0]) for n in range(1, len(tokens) + 1)]
    naive = [
        find_sentence_end(vocabulary.decode(tokens[:n]), is_complete=False) is not None
        for n in range(1, len(tokens) + 1)
    ]
    first = naive.index(True) if any(naive) else len(tokens)
    assert stopped[: first + 1] == naive[: first + 1]


def test_a_continuation_keeps_the_settings_of_its_text_but_its_length(tokenizer: PreTrainedTokenizerBase) -> None:
    vocabulary = Vocabulary.of(tokenizer)
    settings = {"max_new_tokens": 300, "min_p": 0.05, "min_new_tokens": 90, "stop_strings": ["\n"]}
    changed = settings_for_continuations(settings, vocabulary)
    assert (changed["min_p"], changed["stop_strings"]) == (0.05, ["\n"])
    assert "min_new_tokens" not in changed
    assert changed["max_new_tokens"] == 64
