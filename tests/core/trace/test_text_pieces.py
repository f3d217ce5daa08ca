"""A stream is never taken back, holds back no more than it must, and adds up to the text."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from transformers import PreTrainedModel, TextIteratorStreamer, TextStreamer, set_seed

from antislop import AntiSlop, Ban
from antislop.core.trace.events import Drawn, Event, Finished, Rewound, Settled
from antislop.core.trace.text_pieces import stream_text
from tests.support.ban_cases import anywhere
from tests.support.depth import first_quick, sample_size
from tests.support.models import build_model, build_tokenizer
from tests.support.toys import Bytes, Markov, Words, run

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[0, 5, 9, 2, 12, 7]])
COMMON = ["a", anywhere("b"), anywhere("dd"), "fed a", anywhere("ea")]


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def settled_lengths(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """(length of the text, settled length) after each event."""
    length = settled = 0
    for event in events:
        if isinstance(event, Drawn):
            length += 1
        elif isinstance(event, Rewound):
            length = event.length
        elif isinstance(event, Settled):
            settled += len(event.tokens)
        yield length, settled


def random_phrases(chance: random.Random) -> list[Ban]:
    phrases = {"".join(chance.choices("abcd", k=chance.randint(1, 5))) for _ in range(5)}
    return [Ban(phrase, edges="anywhere", weight=chance.choice([0, 0, 0.5])) for phrase in sorted(phrases)]


def random_kinds(chance: random.Random) -> list[Ban]:
    """Regexes, sequences with gaps, exempt phrases, and allowed occurrences."""
    a, b, c = chance.sample("abcd", 3)
    return [
        Ban.regex(f"{a}.{{0,2}}{b}", weight=chance.choice([0, 0.5])),
        Ban.regex(f"{c}+{a}(?!{b})"),
        Ban.words([a, c], gap=chance.randint(0, 2)),
        Ban.wildcard(f"{b}* {c}"),
        Ban(f"{a}{b}", edges="anywhere", exempt=[f"{a}{b} {c}", f"{c}{a}{b}"]),
        Ban(c, edges="anywhere", at_most=1, per_words=chance.choice([0, 3])),
        Ban.tokens(chance.choices(range(6), k=3)),
    ]


@pytest.mark.parametrize(
    ("words", "random_bans"),
    [(Words("a", "b", "c", "d", "ab", "cd"), random_phrases), (Words("a", "b", "c ", " d", "ab ", ". "), random_kinds)],
    ids=["phrases", "all kinds"],
)
@pytest.mark.parametrize("runs", first_quick([25, sample_size(800)]))
def test_settled_text_is_never_withdrawn_in_random_runs(
    words: Words, random_bans: Callable[[random.Random], list[Ban]], runs: int
) -> None:
    chance = random.Random(0)
    held = 0
    for seed in range(runs):
        bans = random_bans(chance)
        torch.manual_seed(seed)
        tokens, report = run(Markov(6, seed=seed, length=12), words, bans)
        rest = list(tokens)
        for event in report.events:
            if isinstance(event, Settled):
                assert list(event.tokens) == rest[: len(event.tokens)], "settled tokens are the text's, in order"
                del rest[: len(event.tokens)]
        assert not rest, "everything is settled in the end"
        for length, settled in settled_lengths(report.events):
            assert length >= settled, "no rewind reaches what is settled"
            held = max(held, length - settled)
    assert held > 5


def test_text_that_touches_no_ban_is_held_back_by_one_token_only() -> None:
    """One token, because the last token may still be withdrawn."""
    tokens, report = run(Markov(4, seed=0, length=30), Words("a", "b", "c", "d"), [Ban("zz")])
    assert len(tokens) == 30
    assert max(length - settled for length, settled in settled_lengths(report.events)) <= 2
    after_settling = [
        length - settled
        for event, (length, settled) in zip(report.events, settled_lengths(report.events), strict=True)
        if isinstance(event, Settled)
    ]
    assert set(after_settling) <= {0, 1}


@pytest.mark.parametrize("seed", first_quick(range(5)))
def test_streamed_text_is_the_text_of_the_final_tokens(llama: PreTrainedModel, seed: int) -> None:
    sampler = AntiSlop(TOKENIZER, COMMON)
    asked = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 50, "min_new_tokens": 40, "do_sample": True}
    set_seed(seed)
    pieces = list(sampler.stream(llama, PROMPT, **asked))
    set_seed(seed)
    final = sampler.generate(llama, PROMPT, **asked)[0, PROMPT.shape[1] :]
    assert "".join(pieces) == TOKENIZER.decode(final, skip_special_tokens=True)
    assert len(pieces) > 10


def test_characters_are_streamed_whole_and_an_incomplete_one_at_the_end_too() -> None:
    """The replacement character is streamed only if the text itself ends within a character."""
    raw = "Ü€😀".encode()
    for tokens, end in ((raw, []), ((*raw, raw[0]), ["\ufffd"])):
        events = [event for byte in tokens for event in (Drawn(byte), Settled((byte,)))]
        assert list(stream_text([*events, Finished("done", 0.0)], Bytes())) == ["Ü", "€", "😀", *end]


class Recorder(TextStreamer):
    def __init__(self) -> None:
        super().__init__(TOKENIZER)
        self.calls: list[list[int] | str] = []

    def put(self, value: torch.Tensor) -> None:
        self.calls.append(value.flatten().tolist())

    def end(self) -> None:
        self.calls.append("end")


def test_a_streamer_gets_the_prompt_then_each_token_once_then_the_end(llama: PreTrainedModel) -> None:
    streamer = Recorder()
    set_seed(0)
    ids = AntiSlop(TOKENIZER, COMMON).generate(
        llama, PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=30, do_sample=True, streamer=streamer
    )
    assert streamer.calls[0] == PROMPT[0].tolist()
    assert streamer.calls[-1] == "end"
    assert [token for (token,) in streamer.calls[1:-1]] == ids[0, PROMPT.shape[1] :].tolist()


def test_the_iterator_streamer_of_transformers_ends(llama: PreTrainedModel) -> None:
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=60)
    sampler = AntiSlop(TOKENIZER, COMMON)
    asked = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 20, "streamer": streamer}
    thread = threading.Thread(target=lambda: sampler.generate(llama, PROMPT, do_sample=False, **asked))
    thread.start()
    text = "".join(streamer)
    thread.join()
    ids = sampler.generate(llama, PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=20, do_sample=False)
    assert text == TOKENIZER.decode(ids[0, PROMPT.shape[1] :])


def test_a_stream_that_is_closed_early_releases_the_model(llama: PreTrainedModel) -> None:
    """The model is free for other calls, and gradients are as they were."""
    sampler = AntiSlop(TOKENIZER, COMMON)
    asked = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 30, "do_sample": True}
    stream = sampler.stream(llama, PROMPT, **asked)
    next(stream)
    assert torch.is_grad_enabled(), "the reader's own code runs with gradients"
    stream.close()
    assert torch.is_grad_enabled()
    set_seed(1)
    first = sampler.generate(llama, PROMPT, **asked)
    set_seed(1)
    assert torch.equal(sampler.generate(llama, PROMPT, **asked), first)


def test_an_exception_of_the_streamer_reaches_the_caller(llama: PreTrainedModel) -> None:
    class Broken(Recorder):
        def put(self, value: torch.Tensor) -> None:
            raise BrokenPipeError("the reader is gone")

    with pytest.raises(BrokenPipeError, match="the reader is gone"):
        AntiSlop(TOKENIZER, []).generate(
            llama, PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=5, streamer=Broken()
        )


def test_a_stop_string_ends_the_text_before_a_ban_that_it_is_part_of(llama: PreTrainedModel) -> None:
    """Whichever is complete first counts; on the same token the ban does."""
    sampler = AntiSlop(TOKENIZER, [Ban("ab", edges="anywhere")])
    asked = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 40, "do_sample": True}
    for seed in range(2, 7):  # in other texts, a special token lies between an a and a b
        set_seed(seed)
        text = "".join(sampler.stream(llama, PROMPT, stop_strings=["a"], **asked))
        assert text.count("a") <= 2, "a token may hold the stop string and more"
        assert "ab" not in text
        set_seed(seed)
        text = "".join(sampler.stream(llama, PROMPT, stop_strings=["ab"], **asked))
        assert "ab" not in text, "what would have stopped the text was withdrawn"
