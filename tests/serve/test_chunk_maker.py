"""What a client gets of a text's events: the text of its final tokens, up to a stop string, whatever was withdrawn."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from antislop import Ban
from antislop.core.bans.characters import decode
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Drawn, Event, Finished, Rewound, Settled, TokenChoice
from antislop.core.trace.text_pieces import TextPieces, stream_text
from antislop.serve.chunk_maker import AnswerChunk, ChunkMaker, WithdrawnText

SURFACES = [b"", b"a", b"b", b" ab", b"\xc3", b"\xa9", "é".encode(), b"\xf0\x9f", b"\x98\x80", b"\n", b"\xff"]
END = 0
BAN = Ban("ban")


class Surfaces:
    """A small vocabulary with tokens that are parts of characters. Token 0 ends a text."""

    byte_tokens: frozenset[int] = frozenset()

    def surface(self, token_id: int) -> bytes:
        return SURFACES[token_id]


class FallbackSurfaces(Surfaces):
    byte_tokens = frozenset({4, 5, 7, 8, 10})


def write_events(random: Random, length: int) -> tuple[list[Event], list[int]]:
    """Return the events of a random text with rewinds, and its final tokens."""
    events: list[Event] = []
    tokens: list[int] = []
    settled = 0
    while len(tokens) < length:
        token = random.randrange(1, len(SURFACES))
        events.append(Drawn(token, TokenChoice(0.5, 0.5, 1, ((token, 0.5),))))
        tokens.append(token)
        if random.random() < 0.2 and len(tokens) > settled:
            cut = random.randrange(settled, len(tokens))
            events.append(Rewound(cut, tuple(tokens[cut:]), Violation(BAN, cut, len(tokens) - 1)))
            del tokens[cut:]
        elif random.random() < 0.5:
            count = random.randint(settled, len(tokens))
            events += [Settled(tuple(tokens[settled:count]))] if count > settled else []
            settled = max(settled, count)
    if settled < len(tokens):
        events.append(Settled(tuple(tokens[settled:])))
    return [*events, Finished("done", 0.0)], tokens


def cut_at_stop(text: str, stop: list[str]) -> str:
    """Return a text up to the stop string that ends first, found character by character."""
    for end in range(len(text) + 1):
        starts = [end - len(string) for string in stop if text[:end].endswith(string)]
        if starts:
            return text[: min(starts)]
    return text


def read_chunks(events: list[Event], **options: object) -> list[AnswerChunk]:
    stream = ChunkMaker(Surfaces(), 1000, end_tokens={END}, **options)  # type: ignore[arg-type]
    chunks = []
    for event in events:
        chunk = stream.add(event)
        if chunk:
            chunks.append(chunk)
            if chunk.finish_reason:
                break
    return chunks


STOPS = st.lists(st.sampled_from(["a", "ab", "ba", "é", "aba", "b ab", "😀", "\n"]), max_size=3)


@given(st.integers(0, 2**32), st.integers(1, 30), STOPS, st.booleans())
def test_chunks_join_to_the_text_of_the_final_tokens_up_to_a_stop_string(
    seed: int, length: int, stop: list[str], has_fallback: bool
) -> None:
    events, tokens = write_events(Random(seed), length)
    surfaces = FallbackSurfaces() if has_fallback else Surfaces()
    stream = ChunkMaker(surfaces, 1000, stop=stop, end_tokens={END})  # type: ignore[arg-type]
    text, chunks = "", []
    for event in events:
        if chunk := stream.add(event):
            chunks.append(chunk)
            text += chunk.text
            if chunk.finish_reason:
                break
    assert text == cut_at_stop(decode(surfaces, tokens), stop)
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(0 <= part.start <= len(text) for chunk in chunks for part in chunk.withdrawn)
    kept = [token for chunk in chunks for token in chunk.tokens]
    assert [token.token for token in kept] == tokens[: len(kept)]
    if not stop:
        assert len(kept) == len(tokens)
        assert sum(part.tokens for chunk in chunks for part in chunk.withdrawn) == stream.report.withdrawn_tokens


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_chunks_a_stream_and_pieces_are_one_text_with_or_without_its_first_space(
    seed: int, has_fallback: bool, drops_space: bool
) -> None:
    events, tokens = write_events(Random(seed), 20)
    surfaces = FallbackSurfaces() if has_fallback else Surfaces()
    maker = ChunkMaker(surfaces, 1000, drops_space=drops_space)  # type: ignore[arg-type]
    pieces = TextPieces(surfaces, drops_space=drops_space)  # type: ignore[arg-type]
    text = decode(surfaces, tokens)
    assert {
        "".join(chunk.text for event in events if (chunk := maker.add(event))),
        "".join(stream_text(events, surfaces, drops_space=drops_space)),  # type: ignore[arg-type]
        "".join(piece.text for event in events for piece in pieces.add(event) if piece.kind != "withdrawn"),
    } == {text.removeprefix(" ") if drops_space else text}


@given(st.integers(0, 2**32), STOPS)
def test_a_text_does_not_depend_on_how_many_tokens_settle_at_a_time(seed: int, stop: list[str]) -> None:
    events, tokens = write_events(Random(seed), 20)
    at_once = [*map(Drawn, tokens), Settled(tuple(tokens)), Finished("done", 0.0)]
    one_by_one = [event for token in tokens for event in (Drawn(token), Settled((token,)))]
    texts = {
        "".join(chunk.text for chunk in read_chunks(list(kind), stop=stop))
        for kind in (events, at_once, [*one_by_one, Finished("done", 0.0)])
    }
    assert len(texts) == 1


def test_a_withdrawn_text_is_told_with_the_place_that_it_had() -> None:
    rewound = Rewound(1, (2, 2), Violation(BAN, 1, 2))
    events = [Drawn(1), Drawn(2), Drawn(2), rewound, Drawn(6), Settled((1, 6)), Finished("done", 0.0)]
    chunk, _ = read_chunks(events)
    assert (chunk.text, chunk.withdrawn) == ("aé", (WithdrawnText("bb", BAN, 1, 2),))


@pytest.mark.parametrize(
    ("text", "banned"),
    [(" a cat in", (1, 6)), (" A  cat", (1, 7)), ("", (0, 0)), (" cat", (0, 4))],
    ids=["within", "folded", "empty", "begun in the prompt"],
)
def test_a_withdrawn_text_says_which_characters_were_banned(text: str, banned: tuple[int, int]) -> None:
    written = WithdrawnText(text, Ban("a cat"), 5, 3).to_dict()
    assert written == {"text": text, "ban": "a cat", "start": 5, "tokens": 3, "banned": banned}


def test_a_withdrawn_text_moves_with_the_text_before_it() -> None:
    """The second rewind reaches further back than the first, whose place is gone."""
    events: list[Event] = [Drawn(1), Drawn(1), Drawn(2), Rewound(2, (2,), Violation(BAN, 2, 2))]
    events += [Drawn(3), Rewound(0, (1, 1, 3), Violation(BAN, 0, 2)), Drawn(6), Settled((6,)), Finished("done", 0.0)]
    chunk, _ = read_chunks(events)
    assert [(part.text, part.start) for part in chunk.withdrawn] == [("b", 0), ("aa ab", 0)]


@pytest.mark.parametrize(("tokens", "reason"), [([1, 1, 1], "length"), ([1, 1, END], "stop"), ([1, 1], "stop")])
def test_a_text_ends_by_length_unless_its_last_token_ends_it(tokens: list[int], reason: str) -> None:
    stream = ChunkMaker(Surfaces(), 3, end_tokens={END})  # type: ignore[arg-type]
    for token in tokens:
        stream.add(Drawn(token))
        stream.add(Settled((token,)))
    last = stream.add(Finished("done", 0.0))
    assert last is not None and last.finish_reason == reason
