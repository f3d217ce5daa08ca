"""Surfaces, joined, are the text that the tokenizer itself would decode."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import antislop
from antislop.hf.vocabulary import Vocabulary
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.matching.characters import decode
from antislop.matching.scopes import Scope
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Settled
from antislop.trace.text_pieces import stream_text
from tests.conftest import DEPTH

BYTE_LEVEL = ["gpt2", "gpt-neox-20b", "qwen2", "llama3", "tinystories-chat-3m"]
BYTE_FALLBACK = ["llama2", "mistral-v3", "stories3M", "stories260K", "tinystories-656k"]
METASPACE = ["t5"]
NAMES = [*BYTE_LEVEL, *BYTE_FALLBACK, *METASPACE]

TEXTS = [
    "A quiet street in the rain.",
    "Her eyes, a testament to it — “delve”, she said…",
    "  two spaces before, two  inside, and two after  ",
    "line one\nline two\r\n\n\ttabbed\n",
    "naïve café, Ångström, straße, İstanbul",
    "Слово не воробей",
    "שלום עולם, مرحبا بالعالم",
    "हिन्दी में लिखा हुआ",
    "吾輩は猫である。名前はまだ無い。",
    "ภาษาไทยไม่มีช่องว่าง",
    "👩‍👩‍👧 🚀🏳️‍🌈 ❤️",
    "e\u0301 a\u0323\u0301 \u200b\ufeff\u00a0",
    "{'a': [1, 2.5], \"b\": None}  # don't, we'll",
    "<0x41> ▁ Ġ ## </w>",
]


@dataclass
class Known:
    """A tokenizer, read once."""

    name: str
    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.tokenizer)

    @cached_property
    def names(self) -> dict[int, str]:
        """The tokens that are not special."""
        tokens = self.tokenizer.get_vocab().items()
        return {token_id: name for name, token_id in tokens if token_id not in self.vocabulary.breaks}

    @cached_property
    def plain(self) -> list[int]:
        return sorted(self.names)

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture(scope="session")
def folders(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(assets / "tokenizers.tar.xz") as archive:
        archive.extractall(unpacked, filter="data")
    for model in (assets / "models").iterdir():
        (unpacked / "tokenizers" / model.name).symlink_to(model, target_is_directory=True)
    return unpacked / "tokenizers"


@pytest.fixture(scope="module", params=NAMES)
def known(request: pytest.FixtureRequest, folders: Path) -> Known:
    """One after the other, so that only one large vocabulary is in memory."""
    return Known(request.param, AutoTokenizer.from_pretrained(folders / request.param))


def without_first_space(known: Known, tokens: list[int], joined: str) -> str:
    """What a decoder leaves out at the very beginning of a text."""
    if known.name in BYTE_FALLBACK:
        return joined.removeprefix(" ")
    if known.name in METASPACE:  # all the spaces of the first token
        first = known.vocabulary.surface(tokens[0]).decode() if tokens else ""
        return joined[len(first) - len(first.lstrip(" ")) :]
    return joined


def check_join(known: Known, tokens: list[int]) -> None:
    assert without_first_space(known, tokens, decode(known.vocabulary, tokens)) == known.decode(tokens)


def random_tokens(known: Known, *, seed: int) -> Iterator[list[int]]:
    drawn = random.Random(seed)
    for _ in range(50 * DEPTH):
        yield drawn.choices(known.plain, k=drawn.randint(0, 12))
    spelled = [[known.tokenizer.get_vocab().get(f"<0x{byte:02X}>") for byte in text.encode()] for text in "é猫🚀\n"]
    runs = [run[:end] for run in spelled if None not in run for end in range(1, len(run) + 1)]
    for _ in range(50 * DEPTH if runs else 0):
        parts = [drawn.choice([drawn.choice(runs), drawn.choices(known.plain)]) for _ in range(drawn.randint(0, 8))]
        yield [token for part in parts for token in part if token is not None]


def test_surfaces_of_random_tokens_join_to_what_the_tokenizer_decodes(known: Known) -> None:
    for tokens in random_tokens(known, seed=1):
        check_join(known, tokens)


def test_the_surface_of_every_token_is_the_text_that_it_adds(known: Known) -> None:
    """After a letter, since the beginning of a text is decoded otherwise; 1,000 tokens of each."""
    anchor = known.encode("a")[-1]
    for token in random.Random(2).choices(known.plain, k=1000):
        check_join(known, [anchor, token])


@pytest.mark.parametrize("text", TEXTS)
def test_surfaces_of_an_encoded_text_join_to_what_the_tokenizer_decodes(known: Known, text: str) -> None:
    for tokens in (known.encode(text), known.encode(f"So {text}")):
        check_join(known, [token for token in tokens if token not in known.vocabulary.breaks])  # <unk> is special


def follow_naively(known: Known, prompt: list[int], tokens: list[int]) -> str:
    """What the tokenizer itself decodes after a prompt: all of it, less the prompt."""
    before = known.decode(prompt)
    whole = known.decode(prompt + tokens)
    assert whole.startswith(before)
    return whole[len(before) :]


def check_continuations(known: Known, text: str) -> None:
    """At each token of a text at which no character is cut, what follows is what the tokenizer decodes after it."""
    tokens = [token for token in known.encode(text) if token not in known.vocabulary.breaks]
    surfaces = [known.vocabulary.surface(token) for token in tokens]
    for size in range(1, len(tokens)):
        prompt, rest = tokens[:size], tokens[size:]
        if known.decode(prompt) and all(is_whole(b"".join(part)) for part in (surfaces[:size], surfaces[size:])):
            assert known.vocabulary.decode(rest, after=prompt) == follow_naively(known, prompt, rest)


def is_whole(surface: bytes) -> bool:
    return "\ufffd" not in surface.decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_and_the_text_that_follows_it_read_as_the_tokenizer_decodes_both(known: Known, text: str) -> None:
    check_continuations(known, text)


def test_the_bundled_tokenizer_decodes_continuations_as_it_decodes_texts() -> None:
    for text in TEXTS:
        check_continuations(Known("bundled", antislop.tiny_model()[1]), text)


def test_a_text_that_begins_after_a_special_token_has_no_space_of_the_decoder_in_front(known: Known) -> None:
    tokens = [token for token in known.encode("One day, a cat.") if token not in known.vocabulary.breaks]
    for begin in ([], [min(known.vocabulary.breaks)]):
        assert known.vocabulary.decode(tokens, after=begin) == known.decode(tokens) == "One day, a cat."
    spaced = known.vocabulary.decode(tokens, after=known.encode("So"))
    assert spaced == (" " * (known.name in BYTE_FALLBACK + METASPACE)) + "One day, a cat."


def test_vocabularies_keep_the_texts_that_their_tokenizers_keep(known: Known) -> None:
    """Otherwise the comparisons above would hold for a tokenizer that loses everything."""
    joined = {text: known.vocabulary.join(known.encode(text)).decode() for text in TEXTS}
    kept = [text for text in TEXTS if joined[text] in (text, f" {text}")]
    loses_much = known.name in (*METASPACE, "tinystories-656k")
    assert len(kept) >= (1 if loses_much else len(TEXTS) - 1)


def test_special_tokens_have_no_surface(known: Known) -> None:
    special = set(known.tokenizer.all_special_ids)
    assert special
    assert special <= known.vocabulary.breaks.keys()
    assert known.vocabulary.join(sorted(known.vocabulary.breaks)) == b""
    assert all(known.decode([token]) == content for token, content in known.vocabulary.breaks.items())
    assert not known.vocabulary.breaks.keys() & set(known.plain)


def test_a_token_beyond_the_tokenizer_has_no_surface(known: Known) -> None:
    beyond = len(known.vocabulary.surfaces)
    assert beyond > max(known.plain)
    assert known.vocabulary.join([beyond, beyond + 1000]) == b""


def test_a_phrase_is_found_in_the_tokens_of_a_real_tokenizer(known: Known) -> None:
    matcher = Matcher([Ban("a testament to"), Ban("Elara")], known.vocabulary)
    tokens = known.encode("Elara's smile was a testament to her.")
    state, found = matcher.start(), []
    for token in tokens:
        state = matcher.feed(state, token)
        found += [(violation.ban.phrase, violation.start) for violation in state.violations]
    begins = [known.vocabulary.join(tokens[:i]).decode().lstrip() for i in range(len(tokens) + 1)]
    start = max(i for i, begin in enumerate(begins) if len(begin) <= len("Elara's smile was "))
    assert found == [("Elara", _first_with_text(known, tokens)), ("a testament to", start)]


def _first_with_text(known: Known, tokens: list[int]) -> int:
    return next(i for i, token in enumerate(tokens) if known.vocabulary.surface(token).strip())


# Tokenizers made here, so that a clean clone tests them too


def wrapped(model: models.Model, decoder: decoders.Decoder | None, *, special: str = "<eos>") -> Known:
    backend = Tokenizer(model)
    backend.add_special_tokens([special])
    if decoder is not None:
        backend.decoder = decoder
    return Known("made here", PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special))


def byte_level() -> Known:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "he", "Ġt", "Ġthe", "Ã©", "ĊĊ"]
    merges = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("Ã", "©"), ("Ċ", "Ċ")]
    known = wrapped(models.BPE({token: i for i, token in enumerate(tokens)}, merges), decoders.ByteLevel())
    known.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    known.tokenizer.add_tokens([AddedToken("two words"), AddedToken("→")])
    return known


def test_every_byte_is_a_surface_of_a_byte_level_tokenizer() -> None:
    known = byte_level()
    assert {known.vocabulary.surface(i) for i in range(256)} == {bytes([i]) for i in range(256)}
    assert [known.vocabulary.surface(i) for i in range(256, 261)] == [b"he", b" t", b" the", "é".encode(), b"\n\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_byte_level_tokenizer_joins_to_the_text_itself(text: str) -> None:
    known = byte_level()
    tokens = known.encode(text)
    assert known.vocabulary.join(tokens).decode() == known.decode(tokens) == text


def test_invalid_bytes_of_a_byte_level_tokenizer_decode_as_its_own_do() -> None:
    known = byte_level()
    for tokens in random_tokens(known, seed=3):
        check_join(known, tokens)


def test_added_tokens_that_are_not_special_have_a_surface() -> None:
    known = byte_level()
    tokens = known.encode("→two words the")
    assert [known.vocabulary.surface(token) for token in tokens] == ["→".encode(), b"two words", b" the"]
    assert known.vocabulary.breaks == {known.tokenizer.eos_token_id: "<eos>"}


def sentencepiece(*, fallback: bool = True) -> Known:
    tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁the", "▁", "cat", "▁▁", "s", "é"]
    steps = [decoders.Replace("▁", " "), *([decoders.ByteFallback()] if fallback else []), decoders.Fuse()]
    decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return wrapped(models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=fallback), decoder)


def unigram() -> Known:
    pieces = [("<unk>", 0.0), *((piece, -1.0) for piece in ("▁", "▁cat", "cat", "s", "."))]
    return wrapped(models.Unigram(pieces, unk_id=0), decoders.Metaspace())


def wordpiece() -> Known:
    tokens = ["[UNK]", "cat", "##s", ".", "cat."]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    return wrapped(model, decoders.WordPiece("##"))


@pytest.mark.parametrize("make", [byte_level, sentencepiece, unigram, wordpiece])
@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_begins_and_ends_a_scope_whether_it_is_special_or_not(
    make: Callable[[], Known], special: bool
) -> None:
    known = make()
    known.tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")], special_tokens=special)
    begin, end = map(known.tokenizer.convert_tokens_to_ids, ("<think>", "</think>"))
    cat = next(token for token in known.plain if known.vocabulary.surface(token).strip() in (b"cat", b"he"))
    word = known.vocabulary.surface(cat).decode().strip()
    assert (begin in known.vocabulary.breaks) is special
    for where, starts in {"inside": [1], "outside": [3], "after": [3]}.items():
        matcher = Matcher([Ban(word, edges="anywhere", scopes=[Scope(where, "think")])], known.vocabulary)  # type: ignore[arg-type]
        states = list(accumulate([begin, cat, end, cat], matcher.feed, initial=matcher.start()))
        assert [violation.start for state in states for violation in state.violations] == starts


@pytest.mark.parametrize("fallback", [True, False])
def test_a_sentencepiece_tokenizer_without_its_first_space_joins_to_what_it_decodes(fallback: bool) -> None:
    known = sentencepiece(fallback=fallback)
    tokens = ["▁the", "▁", "cat", "s", "▁▁", "é", "<0xC3>", "<0xA9>"]
    ids = [known.tokenizer.get_vocab()[token] for token in tokens]
    assert known.vocabulary.join(ids).decode().removeprefix(" ") == known.decode(ids)
    assert known.decode(ids).endswith("é" if fallback else "<0xA9>")


BYTE = dict(enumerate(sentencepiece().tokenizer.convert_tokens_to_ids([f"<0x{i:02X}>" for i in range(256)])))
FALLBACK = sentencepiece()
CAT, SPACE, EOS = (FALLBACK.tokenizer.convert_tokens_to_ids(token) for token in ("cat", "▁", "<eos>"))
byte_runs = st.lists(
    st.sampled_from([[BYTE[byte] for byte in text.encode()] for text in "é猫\n"]).flatmap(
        lambda run: st.integers(1, len(run)).map(lambda end: run[:end])
    )
    | st.sampled_from([[CAT], [SPACE], [EOS], [10_000]]),
    max_size=7,
).map(lambda parts: list(chain.from_iterable(parts)))


def test_a_run_of_byte_tokens_that_is_cut_within_a_character_is_no_text() -> None:
    tokens = [BYTE[byte] for byte in b"\xc3\xa9\xe4"]
    assert FALLBACK.decode(tokens) == decode(FALLBACK.vocabulary, tokens) == "\ufffd" * 3
    assert "".join(stream_text([Settled((token,)) for token in tokens], FALLBACK.vocabulary)) == "\ufffd" * 3


@given(tokens=byte_runs, sizes=st.lists(st.integers(1, 3)))
def test_a_stream_of_byte_tokens_is_what_the_tokenizer_decodes(tokens: list[int], sizes: list[int]) -> None:
    edges = [0, *(edge for edge in accumulate(sizes) if edge < len(tokens)), len(tokens)]
    events = [Settled(tuple(tokens[start:end])) for start, end in pairwise(edges)]
    streamed = "".join(stream_text(events, FALLBACK.vocabulary, drops_space=True))
    assert streamed == FALLBACK.tokenizer.decode([t for t in tokens if t < 10_000], skip_special_tokens=True)


@given(tokens=byte_runs, bans=st.sets(st.sampled_from(["\ufffd", "é", "猫", "\n", "cat", "é cat", "cat\ufffd"])))
def test_bans_are_found_in_the_decoded_text_between_special_tokens(tokens: list[int], bans: set[str]) -> None:
    listed = [Ban(phrase, edges="word" if phrase == "cat" else "anywhere") for phrase in sorted(bans) if phrase.strip()]
    matcher = Matcher(listed, FALLBACK.vocabulary)
    states = list(accumulate(tokens, matcher.feed, initial=matcher.start()))
    found = [*chain.from_iterable(state.violations for state in states), *matcher.finish(states[-1])]
    expected = []
    for is_end, part in groupby(enumerate(tokens), key=lambda numbered: numbered[1] == EOS):
        if not is_end:
            text, owners = read_naively(list(part))
            expected += [(match.ban, owners[match.start]) for match in BanList(listed).find(text)]
    assert {(violation.ban, violation.start) for violation in found} == set(expected)
    for violation in found:
        assert all(state.earliest_start <= violation.start for state in states[: violation.end + 1]), "it was not held"


def read_naively(numbered: list[tuple[int, int]]) -> tuple[str, list[int]]:
    """A text, and for each character the number of the token in which it begins."""
    numbered = [(number, token) for number, token in numbered if token < 10_000]
    text, owners = "", list[int]()
    for is_run, part in groupby(numbered, key=lambda each: each[1] in BYTE.values()):
        members = list(part)
        if not is_run:
            piece, places = (
                FALLBACK.vocabulary.join(token for _, token in members).decode(),
                [n for n, t in members for _ in FALLBACK.vocabulary.surface(t)],
            )
        else:
            piece = FALLBACK.tokenizer.backend_tokenizer.decoder.decode([FALLBACK.names[token] for _, token in members])
            sizes = [1] * len(piece) if "\ufffd" in piece else [len(char.encode()) for char in piece]
            places = [members[end - size][0] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        text, owners = text + piece, owners + places
    return text, owners


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("cleanup", [True, False])
def test_a_wordpiece_tokenizer_joins_to_what_it_decodes_after_the_first_space(cleanup: bool, is_whole: bool) -> None:
    """Its own clean-up of spaces before punctuation works token by token, so that surfaces can say it."""
    tokens = ["[UNK]", "the", "cat", "##s", "##é", "猫", ".", "##.", "#", "'", "n't", "?!", "do"]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    decoder: decoders.Decoder = decoders.WordPiece("##", cleanup=cleanup)
    known = wrapped(model, decoder if is_whole else decoders.Sequence([decoder]))
    drawn = random.Random(4)
    for _ in range(50):
        ids = [drawn.choice([1, 2, 5, 8]), *drawn.choices(range(1, len(tokens)), k=drawn.randint(0, 8))]
        assert known.vocabulary.join(ids).decode() == " " + known.decode(ids)


# Refusals


@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_are_added_after_the_tokenizer_was_read_are_refused(special: bool) -> None:
    known = byte_level()
    known.vocabulary.refuse_changes(known.tokenizer)
    known.tokenizer.add_tokens(["<think>", "</think>"], special_tokens=special)
    with pytest.raises(
        ValueError, match=r"^the tokenizer has 266 tokens and had 264 when the sampler was made from it, "
    ):
        known.vocabulary.refuse_changes(known.tokenizer)
    Vocabulary.of(known.tokenizer).refuse_changes(known.tokenizer)


def test_a_token_that_becomes_special_after_the_tokenizer_was_read_is_refused() -> None:
    known = byte_level()
    assert "he" in known.names.values()
    known.tokenizer.pad_token = "he"
    with pytest.raises(
        ValueError, match=r"^the tokenizer has more special tokens than when the sampler was made from it, "
    ):
        known.vocabulary.refuse_changes(known.tokenizer)


@pytest.mark.parametrize("given", [None, "gpt2", 7, SimpleNamespace(backend_tokenizer=Tokenizer(models.BPE()))])
def test_objects_that_are_not_tokenizers_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^a Hugging Face tokenizer was expected, not \w+: pass ") as caught:
        Vocabulary.of(given)
    assert type(given).__name__ in str(caught.value)


class Slow(PreTrainedTokenizerBase):
    """A tokenizer in Python."""


def test_a_tokenizer_in_python_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^Slow is not backed by the tokenizers library, .*: load it with AutoTokenizer"
    ):
        Vocabulary.of(Slow())


UNKNOWN = {
    "none": (None, "None"),
    "CTC": (decoders.CTC(), "CTC"),
    "BPE with a suffix": (decoders.BPEDecoder("</w>"), "BPEDecoder"),
    "byte fallback alone": (decoders.ByteFallback(), "ByteFallback"),
    "something else as well": (decoders.Sequence([decoders.Replace("▁", " "), decoders.CTC()]), "CTC, Replace"),
    "a regular expression": (decoders.Replace(Regex("▁+"), " "), "Replace"),
    "something that is no space": (decoders.Sequence([decoders.Replace("▁", "_"), decoders.Fuse()]), "Fuse, Replace"),
    "two kinds of space": (
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Metaspace("_")]),
        "Metaspace, Replace",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_decoder_is_refused_by_its_name(case: str) -> None:
    decoder, named = UNKNOWN[case]
    known = wrapped(models.BPE({"a": 0}, []), decoder)
    with pytest.raises(
        ValueError, match=rf"decodes with {named}, .*: use a byte-level BPE, SentencePiece or WordPiece"
    ):
        Vocabulary.of(known.tokenizer)
