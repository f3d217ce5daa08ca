"""Tokens that llama.cpp does not name in a stream are found, and their texts stay as probable as the model has them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import Sampling
from antislop.engines import EndpointError
from antislop.engines.endpoint import client
from antislop.engines.endpoint.dialects import HiddenSpeller, HiddenTokens, ends_within_character
from antislop.engines.endpoint.endpoint import StreamEnd, StreamRequest
from tests.support.depth import DEPTH
from tests.support.simulated_engine import SimulatedEngine
from tests.support.statistics import p_value
from tests.support.streaming import connect_directly


def build_byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of which most tokens end within a character, and of which some spell the same bytes as two others."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    a, e_lead, e_trail, l1, l2, l3, l4 = [*spell.pre_tokenize_str("aé🦙")[0][0]]
    pairs = [(l1, l2), (l1 + l2, l3), (l2, l3)]
    tokens = ["<s>", "</s>", a, e_lead, e_trail, l1, l2, l3, l4, *(left + right for left, right in pairs)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = spell
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


TOKENIZER = build_byte_tokenizer()
SIZE = len(TOKENIZER)
TABLE = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3))
for place in ((2, 5), (2, 9), (5, 11), (9, 7), (11, 8), (7, 8)):  # two likely texts that are spelled alike
    TABLE[place] += 3.0
LENGTH = 3


def score(tokens: list[int]) -> torch.Tensor:
    return TABLE[tokens[-1]]


def find_probabilities(start: int) -> dict[tuple[int, ...], float]:
    """Return the probability of each text, up to its end token."""
    probs = torch.softmax(TABLE.double(), dim=-1)
    texts: dict[tuple[int, ...], float] = {}
    for tokens in product(range(SIZE), repeat=LENGTH):
        text = tokens[: tokens.index(1) + 1] if 1 in tokens else tokens
        if text not in texts:
            places = zip((start, *text), text, strict=False)
            texts[text] = float(torch.stack([probs[place] for place in places]).prod())
    return texts


async def count_texts(engine: SimulatedEngine, texts: int) -> Counter[tuple[int, ...]]:
    streams, counts = connect_directly(engine), Counter[tuple[int, ...]]()
    request = StreamRequest(prompt=[2], max_tokens=LENGTH, seed=0, sampling=Sampling(), logprobs="drawn")
    for seed in range(texts):
        text = []
        async for message in streams.stream(replace(request, seed=seed)):
            assert isinstance(message, StreamEnd) or message.token is not None
            text += [message.token] if message.token is not None else []
        counts[tuple(text)] += 1
    return counts


@pytest.mark.parametrize("repeats", [True, False], ids=["a seed repeats its draws", "it does not"])
def test_texts_with_hidden_tokens_are_as_probable_as_the_model_has_them(
    monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    monkeypatch.setattr(client, "MAX_NAMING_TRIES", 10**5)
    monkeypatch.setattr(client, "TRIES_WITH_SAME_SEED", 1)
    engine = SimulatedEngine(score, TOKENIZER, "llama.cpp", repeats=repeats)
    texts = (1500 if repeats else 150) * DEPTH
    counts = asyncio.run(count_texts(engine, texts))
    assert sum(not body["stream"] for _, body in engine.asked) > texts / 10, "few answers were not streamed"
    assert p_value(counts, find_probabilities(2)) > 1e-3


def test_a_server_that_never_repeats_what_it_hid_is_given_up() -> None:
    draws = iter([5, 8, 2, 2, *[2] * 1000])

    def force(_: list[int]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(next(draws)), SIZE) * 100.0

    streams = connect_directly(SimulatedEngine(score, TOKENIZER, "llama.cpp"))
    asyncio.run(streams.probe())
    streams._connection._engine.model = force  # type: ignore[attr-defined]
    request = StreamRequest(prompt=[2], max_tokens=3, seed=0, sampling=Sampling())

    async def read() -> list[Any]:
        return [message async for message in streams.stream(request)]

    with pytest.raises(EndpointError, match=r"hid tokens .* did not repeat them in 16 further answers"):
        asyncio.run(read())


SURFACES = [b"a", b"\xf0", b"\x9f", b"\xa6", b"\x99", b"\xf0\x9f", b"\xc3", b"\xa9", b""]
WORDS = Vocabulary(SURFACES, {8: "<s>"})


def enumerate_hidden(count: int, after: int) -> Iterator[tuple[int, ...]]:
    """Yield the sequences of tokens that hide before a token that completes their last character."""
    for tokens in product(range(len(SURFACES)), repeat=count):
        texts = [WORDS.join(tokens[: place + 1]) for place in range(count)]
        if all(map(ends_within_character, texts)) and not ends_within_character(texts[-1] + SURFACES[after]):
            yield tokens


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_hidden_tokens_are_named_if_only_one_sequence_of_tokens_spells_them(count: int) -> None:
    speller = HiddenSpeller(WORDS)
    named = 0
    for after in (4, 7):
        sequences: dict[str, list[tuple[int, ...]]] = {}
        for tokens in enumerate_hidden(count, after):
            text = WORDS.join([*tokens, after])
            sequences.setdefault(text.decode(errors="replace"), []).append(tokens)
        for text, spellings in sequences.items():
            found = speller.find(HiddenTokens(count, text, [after]))
            assert found is None or [tuple(found)] == spellings
            assert found is not None or "\ufffd" in text or len(spellings) > 1 or count > 1
            named += found is not None
    assert named or count == 4


@given(st.binary(max_size=8))
def test_a_text_that_ends_within_a_character_is_no_text_yet(text: bytes) -> None:
    if ends_within_character(text):
        assert "\ufffd" in text.decode(errors="replace")
    valid = text.decode(errors="ignore").encode()
    for character in ("a", "é", "€", "🦙"):
        spelled = character.encode()
        assert not ends_within_character(valid + spelled)
        assert all(ends_within_character(valid + spelled[:place]) for place in range(1, len(spelled)))
