"""The surfaces of tokens, joined, are the text that the tokenizer decodes from these tokens."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.generation import StopStringCriteria

import antislop
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.characters import decode
from antislop.core.bans.scopes import Scope
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.trace.events import Drawn, Finished, Settled
from antislop.core.trace.text_pieces import stream_text
from tests.support.depth import DEPTH

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
class Reference:
    """A tokenizer as the reference of the vocabulary that is made from it."""

    name: str
    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.tokenizer)

    @cached_property
    def names(self) -> dict[int, str]:
        """Return the names of the tokens that are not special."""
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
def reference(request: pytest.FixtureRequest, folders: Path) -> Reference:
    """Return one tokenizer after the other, so that only one large vocabulary is in memory."""
    return Reference(request.param, AutoTokenizer.from_pretrained(folders / request.param))


def without_first_space(reference: Reference, tokens: list[int], joined: str) -> str:
    """Remove what a decoder omits at the start of a text: one space, or all spaces of the first token."""
    if reference.name in BYTE_FALLBACK:
        return joined.removeprefix(" ")
    if reference.name in METASPACE:  # all the spaces of the first token
        first = reference.vocabulary.surface(tokens[0]).decode() if tokens else ""
        return joined[len(first) - len(first.lstrip(" ")) :]
    return joined


def check_join(reference: Reference, tokens: list[int]) -> None:
    assert without_first_space(reference, tokens, decode(reference.vocabulary, tokens)) == reference.decode(tokens)


def random_tokens(reference: Reference, *, seed: int) -> Iterator[list[int]]:
    drawn = random.Random(seed)
    for _ in range(50 * DEPTH):
        yield drawn.choices(reference.plain, k=drawn.randint(0, 12))
    spelled = [[reference.tokenizer.get_vocab().get(f"<0x{byte:02X}>") for byte in text.encode()] for text in "é猫🚀\n"]
    runs = [run[:end] for run in spelled if None not in run for end in range(1, len(run) + 1)]
    for _ in range(50 * DEPTH if runs else 0):
        parts = [drawn.choice([drawn.choice(runs), drawn.choices(reference.plain)]) for _ in range(drawn.randint(0, 8))]
        yield [token for part in parts for token in part if token is not None]


def test_surfaces_of_random_tokens_join_to_the_decoded_text(reference: Reference) -> None:
    for tokens in random_tokens(reference, seed=1):
        check_join(reference, tokens)


def test_the_surface_of_every_token_is_the_text_that_it_adds(reference: Reference) -> None:
    """After a letter, since the start of a text is decoded differently; 1,000 tokens of each tokenizer."""
    anchor = reference.encode("a")[-1]
    for token in random.Random(2).choices(reference.plain, k=1000):
        check_join(reference, [anchor, token])


@pytest.mark.parametrize("text", TEXTS)
def test_surfaces_of_an_encoded_text_join_to_the_decoded_text(reference: Reference, text: str) -> None:
    for tokens in (reference.encode(text), reference.encode(f"So {text}")):
        check_join(
            reference, [token for token in tokens if token not in reference.vocabulary.breaks]
        )  # <unk> is special


def follow_naively(reference: Reference, prompt: list[int], tokens: list[int]) -> str:
    """Decode prompt and tokens with the tokenizer, and remove the prompt."""
    before = reference.decode(prompt)
    whole = reference.decode(prompt + tokens)
    assert whole.startswith(before)
    return whole[len(before) :]


def check_continuations(reference: Reference, text: str) -> None:
    """Check the text after each token that ends a character against the tokenizer."""
    tokens = [token for token in reference.encode(text) if token not in reference.vocabulary.breaks]
    surfaces = [reference.vocabulary.surface(token) for token in tokens]
    for size in range(1, len(tokens)):
        prompt, rest = tokens[:size], tokens[size:]
        if reference.decode(prompt) and all(is_whole(b"".join(part)) for part in (surfaces[:size], surfaces[size:])):
            assert reference.vocabulary.decode(rest, after=prompt) == follow_naively(reference, prompt, rest)


def is_whole(surface: bytes) -> bool:
    return "\ufffd" not in surface.decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_after_a_prompt_is_decoded_as_by_the_tokenizer(reference: Reference, text: str) -> None:
    check_continuations(reference, text)


def test_the_bundled_tokenizer_decodes_continuations_as_it_decodes_texts() -> None:
    for text in TEXTS:
        check_continuations(Reference("bundled", antislop.tiny_model()[1]), text)


def test_a_text_after_a_special_token_begins_without_an_additional_space(reference: Reference) -> None:
    tokens = [token for token in reference.encode("One day, a cat.") if token not in reference.vocabulary.breaks]
    for begin in ([], [min(reference.vocabulary.breaks)]):
        assert reference.vocabulary.decode(tokens, after=begin) == reference.decode(tokens) == "One day, a cat."
    spaced = reference.vocabulary.decode(tokens, after=reference.encode("So"))
    assert spaced == (" " * (reference.name in BYTE_FALLBACK + METASPACE)) + "One day, a cat."


def test_vocabularies_preserve_the_texts_that_their_tokenizers_preserve(reference: Reference) -> None:
    """Otherwise the comparisons above would also pass for a tokenizer that loses every text."""
    joined = {text: reference.vocabulary.join(reference.encode(text)).decode() for text in TEXTS}
    kept = [text for text in TEXTS if joined[text] in (text, f" {text}")]
    loses_much = reference.name in (*METASPACE, "tinystories-656k")
    assert len(kept) >= (1 if loses_much else len(TEXTS) - 1)


def test_special_tokens_have_no_surface(reference: Reference) -> None:
    special = set(reference.tokenizer.all_special_ids)
    assert special
    assert special <= reference.vocabulary.breaks.keys()
    assert reference.vocabulary.join(sorted(reference.vocabulary.breaks)) == b""
    assert all(reference.decode([token]) == content for token, content in reference.vocabulary.breaks.items())
    assert not reference.vocabulary.breaks.keys() & set(reference.plain)


def test_a_token_beyond_the_tokenizer_has_no_surface(reference: Reference) -> None:
    beyond = len(reference.vocabulary.surfaces)
    assert beyond > max(reference.plain)
    assert reference.vocabulary.join([beyond, beyond + 1000]) == b""


def test_every_token_is_spelled_as_transformers_compares_it_with_stop_strings(reference: Reference) -> None:
    tokenizer = reference.tokenizer
    mode = StopStringCriteria._get_stop_string_matching_mode(tokenizer)
    texts, ids = StopStringCriteria.clean_tokenizer_vocab(tokenizer, stop_string_matching_mode=mode)
    expected = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert list(map(reference.vocabulary.spell, ids)) == expected


def test_a_phrase_is_found_in_the_tokens_of_a_real_tokenizer(reference: Reference) -> None:
    matcher = Matcher([Ban("a testament to"), Ban("Elara")], reference.vocabulary)
    tokens = reference.encode("Elara's smile was a testament to her.")
    state, found = matcher.start(), []
    for token in tokens:
        state = matcher.feed(state, token)
        found += [(violation.ban.text, violation.start) for violation in state.violations]
    begins = [reference.vocabulary.join(tokens[:i]).decode().lstrip() for i in range(len(tokens) + 1)]
    start = max(i for i, begin in enumerate(begins) if len(begin) <= len("Elara's smile was "))
    assert found == [("Elara", _first_with_text(reference, tokens)), ("a testament to", start)]


def _first_with_text(reference: Reference, tokens: list[int]) -> int:
    return next(i for i, token in enumerate(tokens) if reference.vocabulary.surface(token).strip())


# Tokenizers made here, so that they are tested in a clean clone


def wrapped(model: models.Model, decoder: decoders.Decoder | None, *, special: str = "<eos>") -> Reference:
    backend = Tokenizer(model)
    backend.add_special_tokens([special])
    if decoder is not None:
        backend.decoder = decoder
    return Reference("made here", PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special))


def byte_level() -> Reference:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "he", "Ġt", "Ġthe", "Ã©", "ĊĊ"]
    merges = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("Ã", "©"), ("Ċ", "Ċ")]
    reference = wrapped(models.BPE({token: i for i, token in enumerate(tokens)}, merges), decoders.ByteLevel())
    reference.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.tokenizer.add_tokens([AddedToken("two words"), AddedToken("→")])
    return reference


def test_every_byte_is_a_surface_of_a_byte_level_tokenizer() -> None:
    reference = byte_level()
    assert {reference.vocabulary.surface(i) for i in range(256)} == {bytes([i]) for i in range(256)}
    assert [reference.vocabulary.surface(i) for i in range(256, 261)] == [b"he", b" t", b" the", "é".encode(), b"\n\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_byte_level_tokenizer_joins_to_the_text_itself(text: str) -> None:
    reference = byte_level()
    tokens = reference.encode(text)
    assert reference.vocabulary.join(tokens).decode() == reference.decode(tokens) == text


def test_invalid_bytes_decode_as_by_a_byte_level_tokenizer() -> None:
    reference = byte_level()
    for tokens in random_tokens(reference, seed=3):
        check_join(reference, tokens)


def test_what_is_parsed_of_a_tokenizer_does_not_grow_with_its_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing all of a vocabulary of 262,144 tokens, with its merges, took most of the time of making a sampler."""
    _, tokenizer = antislop.tiny_model()
    parsed = list[str | bytes]()
    monkeypatch.setattr(json, "loads", lambda text, loads=json.loads: parsed.append(text) or loads(text))
    Vocabulary.of(tokenizer)
    assert parsed and max(map(len, parsed)) < 1000 < len(tokenizer)


def test_added_tokens_that_are_not_special_have_a_surface() -> None:
    reference = byte_level()
    tokens = reference.encode("→two words the")
    assert [reference.vocabulary.surface(token) for token in tokens] == ["→".encode(), b"two words", b" the"]
    assert reference.vocabulary.breaks == {reference.tokenizer.eos_token_id: "<eos>"}


def sentencepiece(*, fallback: bool = True) -> Reference:
    tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁the", "▁", "cat", "▁▁", "s", "é"]
    steps = [decoders.Replace("▁", " "), *([decoders.ByteFallback()] if fallback else []), decoders.Fuse()]
    decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return wrapped(models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=fallback), decoder)


def unigram() -> Reference:
    pieces = [("<unk>", 0.0), *((piece, -1.0) for piece in ("▁", "▁cat", "cat", "s", "."))]
    return wrapped(models.Unigram(pieces, unk_id=0), decoders.Metaspace())


def wordpiece() -> Reference:
    tokens = ["[UNK]", "cat", "##s", ".", "cat."]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    return wrapped(model, decoders.WordPiece("##"))


@pytest.mark.parametrize("make", [byte_level, sentencepiece, unigram, wordpiece])
@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_begins_and_ends_a_scope_whether_it_is_special_or_not(
    make: Callable[[], Reference], special: bool
) -> None:
    reference = make()
    reference.tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")], special_tokens=special)
    begin, end = map(reference.tokenizer.convert_tokens_to_ids, ("<think>", "</think>"))
    cat = next(token for token in reference.plain if reference.vocabulary.surface(token).strip() in (b"cat", b"he"))
    word = reference.vocabulary.surface(cat).decode().strip()
    assert (begin in reference.vocabulary.breaks) is special
    for where, starts in {"inside": [1], "outside": [3], "after": [3]}.items():
        matcher = Matcher([Ban(word, edges="anywhere", scopes=[Scope(where, "think")])], reference.vocabulary)  # type: ignore[arg-type]
        states = list(accumulate([begin, cat, end, cat], matcher.feed, initial=matcher.start()))
        assert [violation.start for state in states for violation in state.violations] == starts


@pytest.mark.parametrize("fallback", [True, False])
def test_surfaces_of_a_sentencepiece_tokenizer_join_to_the_decoded_text(fallback: bool) -> None:
    reference = sentencepiece(fallback=fallback)
    tokens = ["▁the", "▁", "cat", "s", "▁▁", "é", "<0xC3>", "<0xA9>"]
    ids = [reference.tokenizer.get_vocab()[token] for token in tokens]
    assert reference.vocabulary.join(ids).decode().removeprefix(" ") == reference.decode(ids)
    assert reference.decode(ids).endswith("é" if fallback else "<0xA9>")


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


def test_byte_tokens_that_end_within_a_character_are_replacement_characters() -> None:
    tokens = [BYTE[byte] for byte in b"\xc3\xa9\xe4"]
    assert FALLBACK.decode(tokens) == decode(FALLBACK.vocabulary, tokens) == "\ufffd" * 3
    events = [*map(Drawn, tokens), *(Settled((token,)) for token in tokens), Finished("done", 0.0)]
    assert "".join(stream_text(events, FALLBACK.vocabulary)) == "\ufffd" * 3


@given(tokens=byte_runs, sizes=st.lists(st.integers(1, 3)))
def test_a_stream_of_byte_tokens_is_the_decoded_text(tokens: list[int], sizes: list[int]) -> None:
    edges = [0, *(edge for edge in accumulate(sizes) if edge < len(tokens)), len(tokens)]
    settled = (Settled(tuple(tokens[start:end])) for start, end in pairwise(edges))
    events = [*map(Drawn, tokens), *settled, Finished("done", 0.0)]
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
    """Return a text, and for each character the number of the token in which it begins."""
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
def test_surfaces_of_a_wordpiece_tokenizer_join_to_the_decoded_text(cleanup: bool, is_whole: bool) -> None:
    """Its clean-up of spaces before punctuation works token by token, so that surfaces can contain it."""
    tokens = ["[UNK]", "the", "cat", "##s", "##é", "猫", ".", "##.", "#", "'", "n't", "?!", "do"]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    decoder: decoders.Decoder = decoders.WordPiece("##", cleanup=cleanup)
    reference = wrapped(model, decoder if is_whole else decoders.Sequence([decoder]))
    drawn = random.Random(4)
    for _ in range(50):
        ids = [drawn.choice([1, 2, 5, 8]), *drawn.choices(range(1, len(tokens)), k=drawn.randint(0, 8))]
        assert reference.vocabulary.join(ids).decode() == " " + reference.decode(ids)


# Refusals


@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_are_added_after_the_tokenizer_was_read_are_refused(special: bool) -> None:
    reference = byte_level()
    reference.vocabulary.refuse_changes(reference.tokenizer)
    reference.tokenizer.add_tokens(["<think>", "</think>"], special_tokens=special)
    with pytest.raises(
        ValueError, match=r"^the tokenizer has 266 tokens and had 264 when the sampler was made from it, "
    ):
        reference.vocabulary.refuse_changes(reference.tokenizer)
    Vocabulary.of(reference.tokenizer).refuse_changes(reference.tokenizer)


def test_a_token_that_becomes_special_after_the_tokenizer_was_read_is_refused() -> None:
    reference = byte_level()
    assert "he" in reference.names.values()
    reference.tokenizer.pad_token = "he"
    with pytest.raises(
        ValueError, match=r"^the tokenizer has more special tokens than when the sampler was made from it, "
    ):
        reference.vocabulary.refuse_changes(reference.tokenizer)


class Slow(PreTrainedTokenizerBase):
    """A tokenizer that is not backed by the tokenizers library."""


def test_a_slow_tokenizer_is_refused() -> None:
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
    reference = wrapped(models.BPE({"a": 0}, []), decoder)
    with pytest.raises(
        ValueError, match=rf"decodes with {named}, .*: use a byte-level BPE, SentencePiece or WordPiece"
    ):
        Vocabulary.of(reference.tokenizer)
