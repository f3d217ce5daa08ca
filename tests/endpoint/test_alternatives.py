"""Texts drawn from the alternatives of an HTTP endpoint: the same as from the model itself, with every failure."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from random import Random
from typing import Any, TypeVar

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

import antislop
from antislop import AntiSlop, Ban
from antislop.endpoint import Endpoint, EndpointError, EndpointSampler
from antislop.trace.completions import Completion
from antislop.trace.events import Drawn, Forwarded, Rewound
from tests.conftest import DEPTH
from tests.support.ban_cases import LETTERS, anywhere
from tests.support.models import build_model, build_tokenizer, spell
from tests.support.oracles import rejection_distribution
from tests.support.serving import Misbehavior, Served, serve
from tests.support.statistics import p_value
from tests.support.toys import Markov, Words

by_alternatives = partial(EndpointSampler, method="alternatives")
KINDS = ("vllm", "llama.cpp", "sglang", "strings")
T = TypeVar("T", bound=Completion)
PROMPTS = ["The old house", "She opened the door and", "One day", "The rain"]


def connect(server: Served, **options: Any) -> Endpoint:
    api = "sglang" if server.kind == "sglang" else "openai"
    return Endpoint(**{"base_url": server.url, "backoff": 0.001, "api": api, **options})


def following(model: PreTrainedModel) -> Callable[[list[int]], torch.Tensor]:
    @torch.no_grad()
    def logits(tokens: list[int]) -> torch.Tensor:
        return model(torch.tensor([tokens])).logits[0, -1].float()

    return logits


def in_order(completions: Iterator[T]) -> list[T]:
    return sorted(completions, key=lambda done: done.number)


@pytest.fixture(scope="module")
def tiny() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return antislop.tiny_model()


@pytest.fixture(scope="module")
def sampler(tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> AntiSlop:
    return AntiSlop(tiny[1], antislop.default_bans())


@pytest.fixture(scope="module")
def letters() -> PreTrainedTokenizerFast:
    return spell("abcd")


LETTER_BANS = [anywhere("a"), anywhere("bc", 0.5), anywhere("ee")]
SOME = [[2, 3, 4], [5, 6], [7]]


@pytest.mark.parametrize("tokens_per_request", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_texts_are_those_of_the_model_itself(kind: str, tokens_per_request: int) -> None:
    """All alternatives are returned: what is left of a token that began a ban depends on those after it, too."""
    model, tokenizer = build_model(), build_tokenizer()
    sampler = AntiSlop(tokenizer, LETTER_BANS)
    asked: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    own = in_order(sampler.generate_many(model, SOME, batch_size=1, **asked))
    with serve(following(model), tokenizer, kind) as server:
        served = by_alternatives(
            sampler, connect(server), alternatives=48, tokens_per_request=tokens_per_request, eos_token_id=1
        )
        completions = in_order(served.generate_many(SOME, **asked))
    assert [done.error for done in completions] == [None] * 3
    assert [done.tokens for done in completions] == [done.tokens for done in own]
    assert [done.report.rewinds for done in completions] == [done.report.rewinds for done in own]
    assert sum(done.report.rewinds for done in own) > 0
    assert sum(done.coverage.requests for done in completions) == len(server.requests)
    assert sum(done.report.forward_passes for done in completions) == len(server.requests)


def test_the_bundled_model_writes_the_same_behind_an_endpoint(
    tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase], sampler: AntiSlop
) -> None:
    model, tokenizer = tiny
    asked: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False}
    own = in_order(sampler.generate_many(model, PROMPTS, **asked))
    with serve(following(model), tokenizer) as server:
        served = by_alternatives(sampler, connect(server), alternatives=model.config.vocab_size)
        completions = in_order(served.generate_many(PROMPTS, **asked))
    assert [done.text for done in completions] == [done.text for done in own]
    assert sum(done.report.rewinds for done in own) > 0
    assert len(server.requests) < 120 / 3


@pytest.mark.parametrize(
    ("kind", "tokens_per_request"), [("vllm", 1), ("sglang", 1), ("strings", 1), ("llama.cpp", 1), ("llama.cpp", 5)]
)
def test_drawn_texts_are_those_of_the_model_itself_if_the_server_draws_nothing(
    kind: str, tokens_per_request: int
) -> None:
    """All alternatives are returned, and the seeds are the same."""
    model, tokenizer = build_model(), build_tokenizer()
    sampler, rewinds = AntiSlop(tokenizer, LETTER_BANS), 0
    asked: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "temperature": 1.5, "top_k": 30}
    with serve(following(model), tokenizer, kind) as server:
        served = by_alternatives(
            sampler, connect(server), alternatives=48, tokens_per_request=tokens_per_request, eos_token_id=1
        )
        for seed in range(8):
            (own,) = sampler.generate_many(model, SOME[:1], seed=seed, **asked)
            (done,) = served.generate_many(SOME[:1], seed=seed, **asked)
            assert done.tokens == own.tokens
            rewinds += done.report.rewinds
    assert rewinds > 0


def test_each_prompt_may_have_a_list_of_its_own() -> None:
    model, tokenizer = build_model(), build_tokenizer()
    sampler, lists = AntiSlop(tokenizer, LETTER_BANS), [["a"], None, [], [anywhere("b"), anywhere("c", 0.3)]]
    asked: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "seed": 2, "bans": lists, "batch_size": 4}
    with serve(following(model), tokenizer, "vllm") as server:
        served = by_alternatives(sampler, connect(server), alternatives=48, tokens_per_request=1, eos_token_id=1)
        completions = in_order(served.generate_many(SOME[:1] * 4, **asked))
    own = in_order(sampler.generate_many(model, SOME[:1] * 4, **asked))
    assert [done.tokens for done in completions] == [done.tokens for done in own]
    assert sum(done.report.rewinds for done in completions) > 0


TIMES = 600 * DEPTH
"""How many texts are drawn for a distribution."""


def draw(
    server: Served, sampler: AntiSlop, *, times: int, length: int = 4, alternatives: int = 4, **asked: Any
) -> Counter[tuple[int, ...]]:
    served = by_alternatives(sampler, connect(server), alternatives=alternatives, tokens_per_request=length)
    completions = served.generate_many([[0, 0]] * times, batch_size=8, seed=1, max_new_tokens=length, **asked)
    return Counter(tuple(done.tokens) for done in completions if done.error is None)


BANS = [anywhere("ab"), anywhere("bcd", 0.3), anywhere("da"), Ban.regex("cc+", weight=0.5)]
CASES: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "all alternatives": ("vllm", {}, []),
    "strings": ("strings", {}, []),
    "SGLang": ("sglang", {}, []),
    "llama.cpp": ("llama.cpp", {}, []),
    "three of four alternatives": ("vllm", {"alternatives": 3}, [TopKLogitsWarper(3)]),
    "two of four, and a temperature": (
        "sglang",
        {"alternatives": 2, "temperature": 0.3},
        [TopKLogitsWarper(2), TemperatureLogitsWarper(0.3)],
    ),
    "temperature and min-p": (
        "vllm",
        {"temperature": 0.7, "min_p": 0.1},
        [TemperatureLogitsWarper(0.7), MinPLogitsWarper(0.1)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_drafts_of_the_server_leave_the_distribution_as_it_is(letters: PreTrainedTokenizerFast, case: str) -> None:
    kind, options, processors = CASES[case]
    model = Markov(4, seed=2, sharpness=0.5, processors=processors)
    expected = rejection_distribution(model, LETTERS, BANS)
    sampler = AntiSlop(letters, BANS, prompt_lookback=False)
    with serve(lambda tokens: model.table[tokens[-2], tokens[-1]], letters, kind) as server:
        drawn = draw(server, sampler, times=TIMES, **options)
    assert sum(drawn.values()) == TIMES
    assert p_value(drawn, expected) > 1e-4


def test_tokens_of_the_server_beyond_its_alternatives_are_drawn_anew(letters: PreTrainedTokenizerFast) -> None:
    """All positions are alike, so that every token of every text is counted."""
    logits = torch.log(torch.tensor([0.38, 0.28, 0.22, 0.12]))
    first, second = torch.softmax(logits[:2] / 0.3, dim=-1).tolist()
    with serve(lambda tokens: logits, letters, "sglang") as server:
        drawn = draw(server, AntiSlop(letters, []), times=300 * DEPTH, length=8, alternatives=2, temperature=0.3)
    counts = Counter((token,) for token in chain.from_iterable(drawn.elements()))
    assert p_value(counts, {(0,): first, (1,): second}) > 1e-4


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
def test_texts_end_as_often_as_they_would(kind: str) -> None:
    """An end token cuts the server's answer short, which must not make it rarer."""
    model, words, tokenizer = (
        Markov(4, seed=6, eos=frozenset({3})),
        Words("a", "b", "c", None),
        spell("abcd", eos_token="d"),
    )
    bans = [anywhere("ab"), anywhere("cb", 0.3)]
    sampler = AntiSlop(tokenizer, bans, prompt_lookback=False)
    with serve(lambda tokens: model.table[tokens[-2], tokens[-1]], tokenizer, kind) as server:
        drawn = draw(server, sampler, times=TIMES)
    assert p_value(drawn, rejection_distribution(model, words, bans)) > 1e-4


def test_the_check_rejects_a_server_that_draws_from_another_distribution_than_it_reports(
    letters: PreTrainedTokenizerFast,
) -> None:
    """The test above can fail; with one token per request such a server does no harm."""
    model, sampler = Markov(4, seed=2), AntiSlop(letters, BANS, prompt_lookback=False)
    expected = rejection_distribution(model, LETTERS, BANS)
    with serve(lambda tokens: model.table[tokens[-2], tokens[-1]], letters, skew=3.0) as server:
        assert p_value(draw(server, sampler, times=TIMES), expected) < 1e-6


@pytest.mark.parametrize("kind", ["llama.cpp", "vllm"])
def test_tokens_that_a_server_leaves_out_are_written_as_often_as_others(kind: str) -> None:
    """The second and third token are the bytes of "é"; llama.cpp's server says nothing of either by itself."""
    model, words, tokenizer = Markov(4, seed=5, length=3), Words("a", b"\xc3", b"\xa9", "b"), spell("aÃ©b")
    with serve(lambda tokens: model.table[tokens[-2], tokens[-1]], tokenizer, kind) as server:
        drawn = draw(server, AntiSlop(tokenizer, []), times=TIMES, length=3)
    assert p_value(drawn, rejection_distribution(model, words, [])) > 1e-4


def test_nothing_banned_is_written_or_sent(
    tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase], sampler: AntiSlop
) -> None:
    """Each request contains the current text, without withdrawn text."""
    model, tokenizer = tiny
    prompt: list[int] = tokenizer(PROMPTS[0])["input_ids"]
    text: list[int] = []
    expected, rewinds = [], 0
    with serve(following(model), tokenizer) as server:
        served = by_alternatives(sampler, connect(server))
        for event in served.events(prompt, seed=5, max_new_tokens=150, min_p=0.02):
            if isinstance(event, Forwarded):
                expected.append([*prompt, *text])
            elif isinstance(event, Drawn):
                text.append(event.token)
            elif isinstance(event, Rewound):
                rewinds += 1
                del text[event.length :]
        assert server.prompts() == expected
        assert list(served.stream(PROMPTS[0], seed=5, max_new_tokens=20, min_p=0.02))
    assert rewinds > 0
    assert not list(sampler.bans.find(tokenizer.decode(text)))


def test_every_text_has_random_numbers_of_its_own(letters: PreTrainedTokenizerFast) -> None:
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        served = by_alternatives(AntiSlop(letters, []), connect(server), tokens_per_request=1)
        texts = [tuple(done.tokens) for done in served.generate_many([[0]] * 20, seed=0, max_new_tokens=8)]
    assert len(set(texts)) == 20


def test_texts_do_not_depend_on_other_texts_in_flight(
    tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase], sampler: AntiSlop
) -> None:
    model, tokenizer = tiny
    texts = []
    for batch_size in (1, 4):
        with serve(following(model), tokenizer) as server:
            served = by_alternatives(sampler, connect(server))
            completions = served.generate_many(PROMPTS, batch_size=batch_size, seed=1, max_new_tokens=20)
            texts.append([done.tokens for done in in_order(completions)])
            assert (server.most_busy > 1) == (batch_size > 1)
    assert texts[0] == texts[1]


def test_failures_are_tried_again(tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase], sampler: AntiSlop) -> None:
    model, tokenizer = tiny
    failures = [None, 500, "drop", (429, {"Retry-After": "0"}), None, "slow", 503]
    texts, coverages = [], []
    for failing in ([], failures):
        with serve(following(model), tokenizer) as server:
            server.failures.extend(failing)
            served = by_alternatives(sampler, connect(server, timeout=0.5))
            (done,) = served.generate_many(PROMPTS[:1], seed=1, max_new_tokens=40)
            texts.append(done.text)
            coverages.append(done.coverage)
    assert texts[0] == texts[1]
    assert coverages[0].retries == 0
    assert coverages[1].retries == 4  # the dropped connection was in use before: it is opened anew without a word
    assert coverages[1].requests == coverages[0].requests


def test_a_text_that_the_server_fails_does_not_end_the_others(
    tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase], sampler: AntiSlop
) -> None:
    model, tokenizer = tiny
    with serve(following(model), tokenizer) as server:
        server.bad_prompts[tuple(tokenizer(PROMPTS[1])["input_ids"])] = 503
        served = by_alternatives(sampler, connect(server, retries=2))
        completions = in_order(served.generate_many(PROMPTS, batch_size=2, max_new_tokens=5))
    assert [done.error is None for done in completions] == [True, False, True, True]
    assert [len(done.tokens) for done in completions] == [5, 0, 5, 5]
    assert "told to answer 503 (tried 3 times)" in str(completions[1].error)


def test_a_text_that_fails_keeps_its_settled_text(letters: PreTrainedTokenizerFast) -> None:
    model = Markov(4, sharpness=0.0)
    sampler = AntiSlop(letters, [anywhere("abcabc")])
    with serve(lambda tokens: model.table[0, 0], letters) as server:
        server.failures.extend([None] * 10 + [400])
        served = by_alternatives(sampler, connect(server), tokens_per_request=1)
        (done,) = served.generate_many([[3]], max_new_tokens=20, seed=0)
    assert 0 < len(done.tokens) <= 10
    assert done.report.reason is None
    assert "answered 400: told to answer 400" in str(done.error)


def fail(server: Served, **options: Any) -> str:
    """The error of one text from a server."""
    sampler = AntiSlop(server.tokenizer, [])
    served = by_alternatives(sampler, connect(server, **{"retries": 0, **options}))
    with pytest.raises(EndpointError) as caught:
        list(served.events([0, 0], max_new_tokens=3))
    return str(caught.value)


def in_http(content: bytes, *headers: str) -> bytes:
    """An answer as it is sent."""
    return "\r\n".join(["HTTP/1.1 200 OK", *headers, "", ""]).encode() + content


def change(*path: str | int, to: Any) -> Callable[[Any], Any]:
    """A function that puts something else into an answer; "*" is the first name of an object."""

    def put(answer: Any) -> Any:
        inner = answer
        for part in path[:-1]:
            inner = inner[part]
        inner[next(iter(inner)) if path[-1] == "*" else path[-1]] = to
        return answer

    return put


LISTS = ("choices", 0, "logprobs", "top_logprobs", 0, "*")
CONTENT = ("choices", 0, "logprobs", "content", 0)
SGLANG = ("meta_info", "output_top_logprobs", 0, 0)
BAD_ANSWERS: dict[str, tuple[str, Any, str]] = {
    "NaN": ("vllm", change(*LISTS, to=float("nan")), "nan as a log-probability"),
    "infinity": ("vllm", change(*LISTS, to=float("inf")), "inf as a log-probability"),
    "minus infinity": ("vllm", change(*LISTS, to=float("-inf")), "-inf as a log-probability"),
    "above 0": ("vllm", change(*LISTS, to=0.5), "0.5 as a log-probability: finite numbers up to 0"),
    "text": ("vllm", change(*LISTS, to="-1"), "'-1' as a log-probability"),
    "nothing": ("vllm", change(*LISTS, to=None), "None as a log-probability"),
    "more than 1 in all": ("vllm", change(*LISTS[:-1], to=dict.fromkeys("abc", -0.5)), "add up to 1.82, more than 1"),
    "more tokens than asked for": (
        "vllm",
        change("choices", 0, "logprobs", to={"tokens": ["token_id:1"] * 9, "top_logprobs": [{"token_id:1": -1.0}] * 9}),
        "9 tokens, more than the 1 requested",
    ),
    "surrogate": ("vllm", change(*LISTS[:-1], to={"\ud800": -1.0}), "is no completions endpoint"),
    "NaN of an id": ("sglang", change(*SGLANG, 0, to=float("nan")), "nan as a log-probability"),
    "infinite id": ("sglang", change(*SGLANG, 1, to=float("inf")), "inf as the id of a token"),
    "half an id": ("sglang", change(*SGLANG, 1, to=2.5), "2.5 as the id of a token"),
    "true id": ("llama.cpp", change(*CONTENT, "id", to=True), "True as the id of a token"),
    "so many bytes": ("llama.cpp", change(*CONTENT, to={"bytes": 20_000_000_000}), "20000000000 as the bytes"),
    "so many bytes in short": ("llama.cpp", change(*CONTENT, to={"bytes": 2e10}), "20000000000.0 as the bytes"),
    "no byte": ("llama.cpp", change(*CONTENT, to={"bytes": [300]}), "is no completions endpoint"),
    "deep": ("vllm", in_http(b"[" * 300_000), "is no completions endpoint"),
    "deep error": ("vllm", in_http(b'{"error":' * 100_000).replace(b"200 OK", b"400 Bad"), "answered 400"),
    "long": ("vllm", in_http(b"{}", "Content-Length: 1000000000000000000"), "sent more than 1,"),
    "longer than memory": ("vllm", in_http(b"{}", f"Content-Length: {10**30}"), "sent more than 1,"),
    "shorter than said": ("vllm", in_http(b"{}", "Content-Length: 20"), "does not answer in HTTP (IncompleteRead)"),
    "a large chunk": ("vllm", in_http(b"F" * 18 + b"\r\n{}", "Transfer-Encoding: chunked"), "(IncompleteRead)"),
    "a negative chunk": ("vllm", in_http(b"-5\r\n{}", "Transfer-Encoding: chunked"), "does not answer in HTTP"),
    "no HTTP": ("vllm", b"SSH-2.0-OpenSSH_9.9\r\n", "does not answer in HTTP (BadStatusLine)"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_an_answer_that_can_not_be_used_fails_one_text_and_the_others_are_written(
    letters: PreTrainedTokenizerFast, name: str
) -> None:
    kind, bad, sentence = BAD_ANSWERS[name]
    with serve(lambda tokens: torch.zeros(4), letters, kind) as server:
        server.failures.append(bad)
        served = by_alternatives(AntiSlop(letters, []), connect(server, retries=0))
        failed, *others = served.generate_many([[0], [1], [2]], batch_size=1, max_new_tokens=3)
    assert sentence in str(failed.error)
    assert len(str(failed.error)) < 600
    assert failed.tokens == []
    assert [done.error for done in others] == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_ends_whatever_the_answers_contain(letters: PreTrainedTokenizerFast, kind: str) -> None:
    random = Random(kind)
    odd = [
        float("nan"),
        float("-inf"),
        1e308,
        -1e308,
        0,
        -1,
        2**70,
        True,
        None,
        "",
        "\ud800",
        "token_id:9",
        [],
        {},
        [-1],
    ]

    def spoil(answer: Any) -> Any:
        """Put something odd at a random place."""
        inner = answer
        while True:
            names = list(inner) if isinstance(inner, dict) else range(len(inner))
            name = random.choice(names)
            if not isinstance(inner[name], (dict, list)) or not inner[name] or random.random() < 0.1:
                inner[name] = random.choice(odd)
                return answer
            inner = inner[name]

    with serve(lambda tokens: torch.tensor([1.0, 2.0, 0.0, 0.0]), letters, kind) as server:
        server.failures.extend([spoil] * (100 * DEPTH))
        served = by_alternatives(AntiSlop(letters, [anywhere("b")]), connect(server, retries=0))
        texts = list(served.generate_many([[0]] * (100 * DEPTH), batch_size=1, max_new_tokens=4))
    assert len(texts) == 100 * DEPTH
    assert any(done.error for done in texts)
    assert all(set(done.tokens) <= {0, 2, 3} for done in texts)


@pytest.mark.parametrize("misbehavior", Misbehavior)
def test_an_answer_that_never_ends_takes_no_more_than_the_time_and_the_bytes_of_a_request(
    letters: PreTrainedTokenizerFast, misbehavior: Misbehavior
) -> None:
    """Each byte that drips in would begin a time-out of its own anew."""
    sentences = ("did not answer within 0.2 s: raise timeout", "sent more than 1,")
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        server.failures.append(misbehavior)
        error = fail(server, timeout=0.2)
    assert any(sentence in error for sentence in sentences), error
    if misbehavior in (Misbehavior.DRIP, Misbehavior.SLOW_CONTINUE):
        assert sentences[0] in error


def test_the_answer_after_an_interim_one_is_not_taken_for_that_to_the_next_request(
    letters: PreTrainedTokenizerFast,
) -> None:
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        late = in_http(b'{"choices": []}', "Content-Length: 15")
        server.failures.append(b"HTTP/1.1 103 Early Hints\r\n\r\n" + late)
        served = by_alternatives(AntiSlop(letters, []), connect(server, retries=0))
        failed, other = served.generate_many([[0], [1]], batch_size=1, max_new_tokens=3)
    assert "answered 103" in str(failed.error)
    assert other.error is None


@pytest.mark.parametrize(
    "content", [b'{"error": {"message": "\\u001b[2J\\u202egnp"}}', b"\x1b[2J \xe2\x80\xae"], ids=["JSON", "text"]
)
def test_words_of_a_server_in_an_error_do_not_control_the_terminal(
    letters: PreTrainedTokenizerFast, content: bytes
) -> None:
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        server.failures.append(in_http(content).replace(b"200 OK", b"400 Bad"))
        error = fail(server)
    assert "answered 400: ␛[2J" in error
    assert error.isprintable()


def test_log_probabilities_of_few_bits_are_taken(letters: PreTrainedTokenizerFast) -> None:
    """A little above 0, and a little more than 1 in all; some servers say -9999 for what can't come."""
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        server.failures.append(change(*LISTS[:-1], to={"token_id:1": 1e-4, "token_id:2": -6.0, "token_id:3": -3.4e38}))
        served = by_alternatives(AntiSlop(letters, []), connect(server))
        (done,) = served.generate_many([[0]], max_new_tokens=1, do_sample=False)
    assert (done.error, done.tokens, done.coverage.outside) == (None, [1], 0.0)


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (f"http://me:{SECRET}@127.0.0.1:8000/v1", "pass a key as api_key"),
        (f"me:{SECRET}@127.0.0.1:8000/v1", "all text up to '@'"),
        (f"http://127.0.0.1:8000/v1?key={SECRET}", "from '?' or '#'"),
        (f"http://127.0.0.1:8000/v1#{SECRET}", "from '?' or '#'"),
        ("http://127.0.0.1:eighty/v1", "whose host or port is invalid"),
        ("http://127.0.0.1:99999/v1", "whose host or port is invalid"),
        ("http://127.0.0.1:0/v1", "something like http"),
        ("http://[::1/v1", "whose host or port is invalid"),
        ("http://a..b/v1", "whose host or port is invalid"),
        (f"http://{'a' * 70}/v1", "whose host or port is invalid"),
        ("http://127.0.0.1:8000/my v1", "something like http"),
        ("http://127.0.0.1:8000/\u00fcber", "something like http"),
        ("http://127.0.0.1:8000/v1\n", "something like http"),
        ("http:///v1", "something like http"),
    ],
)
def test_a_url_that_can_not_be_used_is_refused_and_what_is_secret_in_it_not_shown(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^base_url ") as caught:
        Endpoint(url)
    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slot_of_llama_cpp_is_refused() -> None:
    with pytest.raises(ValueError, match="extra names a slot"):
        Endpoint("http://127.0.0.1:9/v1", extra={"id_slot": 0})
    Endpoint("http://127.0.0.1:9/v1", extra={"id_slot": None})


@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET} ", f"{SECRET}\u00e9", f"{SECRET}\x1b"])
def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="the API key contains white space or a character that is not ASCII") as caught:
        Endpoint("http://127.0.0.1:8000/v1", api_key=key)
    assert SECRET not in str(caught.value)


def test_a_host_of_ipv6_without_a_port_is_asked_at_the_usual_one() -> None:
    """`http.client` would take the last part of its number for a port."""
    hosts = {url: Endpoint(url) for url in ("http://[::1]/v1", "https://[::1]/v1", "http://[::1]:81/v1")}
    assert [(each._host, each._port) for each in hosts.values()] == [("::1", 80), ("::1", 443), ("::1", 81)]


def test_errors_explain_how_to_fix_them(letters: PreTrainedTokenizerFast) -> None:
    table = torch.zeros(4)
    with serve(lambda tokens: table, letters) as server:
        server.failures.extend(["silent", 401, "slow"])
        assert "no log-probabilities" in fail(server)
        assert "answered 401: told to answer 401 (pass api_key)" in fail(server)
        assert "did not answer within 0.05 s" in fail(server, timeout=0.05)
        server.failures.clear()
        assert "answered 404: told to answer 404 (base_url usually ends in /v1)" in fail(
            server, base_url=server.url.removesuffix("/v1")
        )
    with serve(lambda tokens: table, letters, "sglang") as server:
        assert "/v1/completions answered 404" in fail(server, api="openai", base_url=server.url + "/v1")
    with pytest.raises(ValueError, match="something like http"):
        Endpoint("localhost:8000")
    for option in ({"timeout": 0}, {"timeout": float("nan")}, {"retries": -1}, {"backoff": -1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} "):
            Endpoint("http://localhost:8000", **option)
    with pytest.raises(ValueError, match="'openai' or 'sglang'"):
        Endpoint("http://localhost:8000", api="ollama")  # type: ignore[arg-type]


def test_an_absent_server_is_tried_the_given_number_of_times(letters: PreTrainedTokenizerFast) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    served = by_alternatives(AntiSlop(letters, []), Endpoint(url, retries=2, backoff=0.001))
    (done,) = served.generate_many([[0]], max_new_tokens=3)
    assert f"{url}/completions can't be reached" in str(done.error)
    assert "check base_url (tried 3 times)" in str(done.error)


def test_strings_that_lost_their_spaces_are_refused(tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    """As SentencePiece tokens do that are decoded one by one; taken at their word, they would be other tokens."""
    model, tokenizer = tiny
    with serve(following(model), tokenizer, "strings") as server:
        whole = server.piece
        server.piece = lambda token: whole(token).strip(b" ")  # type: ignore[method-assign]
        served = by_alternatives(AntiSlop(tokenizer, []), connect(server))
        with pytest.raises(EndpointError, match="don't spell the text"):
            list(served.events(PROMPTS[0], max_new_tokens=20, seed=0))


def test_coverage_tells_how_often_the_alternatives_ran_out(letters: PreTrainedTokenizerFast) -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    sampler = AntiSlop(letters, [])
    with serve(lambda tokens: logits, letters) as server:

        def cover(alternatives: int, **asked: Any) -> tuple[float, float, bool]:
            served = by_alternatives(sampler, connect(server), alternatives=alternatives)
            (done,) = served.generate_many([[0]], max_new_tokens=10, **asked)
            coverage = done.coverage
            assert coverage.ran_out in (0, coverage.distributions)
            return round(coverage.outside_mean, 5), round(coverage.outside_max, 5), coverage.ran_out > 0

        assert cover(2) == (0.2, 0.2, True)
        assert cover(4) == (0.0, 0.0, False)
        assert cover(2, top_k=2) == (0.2, 0.2, False)
        assert cover(2, top_k=3) == (0.2, 0.2, True)
        assert cover(2, min_p=0.5) == (0.2, 0.2, False)
        assert cover(2, min_p=0.2) == (0.2, 0.2, True)
        assert cover(2, do_sample=False) == (0.2, 0.2, False)


def test_alternatives_that_are_no_token_of_the_tokenizer_are_counted(letters: PreTrainedTokenizerFast) -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for kind in ("vllm", "strings"):
        with serve(lambda tokens: logits, letters, kind) as server:
            served = by_alternatives(AntiSlop(spell("ab"), []), connect(server))
            completions = list(served.generate_many([[0]] * 20, max_new_tokens=6, seed=0))
        assert {token for done in completions for token in done.tokens} == {0, 1}
        assert all(done.coverage.unreadable == 2 * done.coverage.distributions for done in completions)
        assert completions[0].coverage.outside_mean == pytest.approx(0.2)


def test_texts_end_at_end_tokens_and_stop_strings() -> None:
    tokenizer = build_tokenizer()
    order = tokenizer("abcdef", add_special_tokens=False)["input_ids"]
    follow = dict(zip([1, *order], [*order, 1], strict=True))

    def model(tokens: list[int]) -> torch.Tensor:
        return torch.full((48,), -20.0).scatter(0, torch.tensor(follow.get(tokens[-1], order[0])), 5.0)

    with serve(model, tokenizer) as server:
        served = by_alternatives(AntiSlop(tokenizer, []), connect(server), tokens_per_request=3)
        asked = {"max_new_tokens": 40, "do_sample": False}
        (done,) = served.generate_many([[1]], **asked)
        assert (done.text, done.report.reason, done.tokens[-1]) == ("abcdef", "done", 1)
        (done,) = served.generate_many([[1]], stop_strings="cd", **asked)
        assert done.text == "abcd"
        (done,) = served.generate_many([[1]], stopping_criteria=[EndsWith(order[1])], **asked)
        assert done.text == "abcd"


class EndsWith(StoppingCriteria):
    """A criterion of the caller's own, without a memory."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor, **kwargs: Any) -> torch.BoolTensor:
        return input_ids[:, -1] == self.token  # type: ignore[return-value]


def test_requests_contain_the_given_settings(letters: PreTrainedTokenizerFast) -> None:
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        endpoint = connect(server, model="m", api_key="secret", extra={"cache_salt": "x", "repeat_penalty": None})
        list(by_alternatives(AntiSlop(letters, []), endpoint).events([0], max_new_tokens=2))
    sent = server.requests[0]
    assert (sent["model"], sent["cache_salt"], sent["temperature"], sent["logprobs"]) == ("m", "x", 1.0, 20)
    assert "repeat_penalty" not in sent
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(endpoint)


def test_texts_of_a_closed_iterator_are_abandoned(letters: PreTrainedTokenizerFast) -> None:
    with serve(lambda tokens: torch.zeros(4), letters) as server:
        served = by_alternatives(AntiSlop(letters, []), connect(server), tokens_per_request=1)
        completions = served.generate_many([[0]] * 3 + [[1]] * 1000, batch_size=4, max_new_tokens=3)
        assert next(completions).error is None
        completions.close()  # type: ignore[attr-defined]
        asked = len(server.requests)
        assert asked < 50
    assert len(server.requests) == asked


def test_options_without_a_meaning_for_endpoints_are_refused(letters: PreTrainedTokenizerFast) -> None:
    endpoint, sampler = Endpoint("http://127.0.0.1:9/v1"), AntiSlop(letters, [])
    with pytest.raises(ValueError, match="leave it out for an endpoint"):
        by_alternatives(AntiSlop(letters, [], draft_bans=True), endpoint)
    for option in ("alternatives", "tokens_per_request"):
        with pytest.raises(ValueError, match=f"{option} is 0"):
            by_alternatives(sampler, endpoint, **{option: 0})  # type: ignore[arg-type]
    served = by_alternatives(sampler, endpoint)
    with pytest.raises(ValueError, match="an empty prompt"):
        list(served.generate_many([[]], max_new_tokens=3))
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        list(served.generate_many([[0]], max_new_tokens=0))
    with pytest.raises(ValueError, match="batch_size is 0"):
        list(served.generate_many([[0]], batch_size=0, max_new_tokens=3))
    with pytest.raises(ValueError, match="repetition_penalty needs a server that draws"):
        list(served.generate_many([[0]], max_new_tokens=3, repetition_penalty=1.1))
