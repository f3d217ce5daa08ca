"""A text ends with the token with which transformers ends it at a stop string; no table of the vocabulary is made."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.generation import StopStringCriteria

from antislop import AntiSlop, Ban
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.vocabulary import Vocabulary
from tests.support.depth import DEPTH, sample_size
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
LETTERS = "abcdef é日😀\n"  # transformers' criterion needs the first six


def draw_pieces(chance: Random) -> list[bytes]:
    """Return the bytes of a vocabulary's tokens, some of which are parts of characters."""
    text = "".join(chance.choices(LETTERS, k=60)).encode()
    starts = [chance.randrange(len(text)) for _ in range(30)]
    pieces = [text[start : start + chance.randint(1, 6)] for start in starts]
    return sorted({*(letter.encode() for letter in LETTERS), *pieces})


def wrap(model: models.Model, decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.decoder = decoder
    backend.add_special_tokens(["<ab>", "</ab>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<ab>", eos_token="</ab>")


def byte_level(pieces: list[bytes]) -> PreTrainedTokenizerFast:
    tokens = ["".join(map(bytes_to_unicode().__getitem__, piece)) for piece in pieces]
    return wrap(models.BPE({token: i for i, token in enumerate(tokens)}, []), decoders.ByteLevel())


def read_texts(pieces: list[bytes]) -> list[str]:
    return sorted({piece.decode(errors="ignore") for piece in pieces} - {""})


def byte_fallback(pieces: list[bytes]) -> PreTrainedTokenizerFast:
    parts = [f"<0x{byte:02X}>" for byte in sorted(set("é日😀\n".encode()))]
    tokens = [*parts, *(text.replace(" ", "▁") for text in read_texts(pieces))]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return wrap(models.BPE({token: i for i, token in enumerate(tokens)}, []), decoders.Sequence(steps))


def unigram(pieces: list[bytes]) -> PreTrainedTokenizerFast:
    scores = [("<unk>", 0.0), *((text.replace(" ", "▁"), -1.0) for text in read_texts(pieces))]
    return wrap(models.Unigram(scores, unk_id=0), decoders.Metaspace(prepend_scheme="never"))


def word_piece(pieces: list[bytes]) -> PreTrainedTokenizerFast:
    texts = read_texts(pieces)
    tokens = ["[UNK]", *texts, *(f"##{text}" for text in texts)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return wrap(models.WordPiece(vocabulary, unk_token="[UNK]"), decoders.WordPiece("##"))


@pytest.mark.parametrize("make", [byte_level, byte_fallback, unigram, word_piece])
def test_a_row_ends_with_the_token_with_which_transformers_ends_it(
    make: Callable[[list[bytes]], PreTrainedTokenizerFast],
) -> None:
    """Also with special tokens, parts of characters, and ids that no token has."""
    ends, chance = 0, Random(1)
    for _ in range(cases := sample_size(16)):
        tokenizer = make(draw_pieces(chance))
        vocabulary = Vocabulary.of(tokenizer)
        few = chance.choices(range(len(vocabulary.surfaces) + 3), k=8)
        rows = torch.tensor([chance.choices(few, k=12) for _ in range(8)])
        whole, text = (b"".join(map(vocabulary.spell, ids)) for ids in (rows[0, 2:6].tolist(), rows.flatten().tolist()))
        starts = [chance.randrange(len(text)) for _ in range(4)]
        cuts = [whole, *(text[start : start + chance.randint(1, 9)] for start in starts)]
        stops = ["e", *filter(None, (cut.decode(errors="ignore") for cut in cuts))]
        theirs, ours = StopStringCriteria(tokenizer, stops), StopStrings(stops, vocabulary.spell)
        for length in range(1, 13):
            expected = theirs(rows[:, :length], None)
            assert torch.equal(ours(rows[:, :length]), expected), (stops, rows)
            ends += int(expected.sum())
    assert ends > 10 * cases


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


BANS = [Ban("b", edges="anywhere", weight=0.3), *(Ban(text, edges="anywhere") for text in ("da", "ec", "f.", "gc"))]
PROMPTS = torch.tensor([[1, 1, 5, 9, 2], [0, 7, 3, 4, 2]])
PADDED = {"attention_mask": (PROMPTS != 1).long(), "pad_token_id": 1}


def generate(model: PreTrainedModel, *, method: Any = "exact", **options: Any) -> Any:
    out = AntiSlop(TOKENIZER, BANS, method=method).generate(
        model, PROMPTS, **PADDED, return_dict_in_generate=True, **options
    )
    return out.sequences.tolist(), out.report.rewinds


def generate_many(model: PreTrainedModel, **options: Any) -> Any:
    done = list(AntiSlop(TOKENIZER, BANS).generate_many(model, [[0, 5, 2], [0, 2]] * 2, seed=1, **options))
    return [each.tokens for each in done], sum(each.report.rewinds for each in done)


WAYS: dict[str, Callable[..., Any]] = {
    "a padded batch": generate,
    "rows in step": lambda model, **options: generate(model, eos_token_id=None, suppress_tokens=[1], **options),
    "drafts": lambda model, **options: generate(model, prompt_lookup_num_tokens=3, **options),
    "whole texts": lambda model, **options: generate(model, method="text", **{**options, "max_new_tokens": 6}),
    "in flight": generate_many,
}


@pytest.mark.parametrize("way", WAYS)
def test_under_bans_texts_end_as_with_transformers_own_criterion(way: str, llama: PreTrainedModel) -> None:
    """Whatever is withdrawn, and although a string may begin in the prompt."""
    stops, ended, rewinds = ["ad", "aj", "h,", "ie\n", "</s>a"], False, 0
    for seed in range(4 * DEPTH):
        options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": True}
        set_seed(seed)
        expected = WAYS[way](llama, **options, stopping_criteria=[StopStringCriteria(TOKENIZER, stops)])
        set_seed(seed)
        assert WAYS[way](llama, **options, stop_strings=stops) == expected
        ended |= any(stop in text for text in TOKENIZER.batch_decode(expected[0]) for stop in stops)
        rewinds += expected[1]
    assert ended and rewinds


def test_strings_are_searched_in_as_many_of_the_latest_tokens_as_they_may_have_and_none_is_read_before() -> None:
    letters = StopStrings(["abc"], lambda token: b"abc"[token : token + 1])
    assert letters.end([0, 1, 2]) and not letters.end([1, 2])
    spelled: list[int] = []
    stops = StopStrings([f"{n:a>256}" for n in range(64)], lambda token: spelled.append(token) or b"a")  # type: ignore[func-returns-value]
    assert not spelled
    assert not stops(torch.zeros((1, 5000), dtype=torch.long))[0]
    assert len(spelled) <= 256
