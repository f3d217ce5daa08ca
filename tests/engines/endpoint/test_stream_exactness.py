"""Texts drawn by a server have the distribution of rejection sampling, by each of the exact methods."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopPLogitsWarper

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.sampling import Sampling
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import EndpointMethod, ServerFeatures, StreamItem, StreamRequest, StreamToken
from antislop.engines.endpoint.streamed_text import EndpointText, plan_method
from antislop.errors import InputError
from antislop.steer import DryLogitsProcessor, XtcLogitsProcessor
from tests.support.ban_cases import CASES, LETTERS, anywhere, expected_of
from tests.support.depth import DEPTH, first_quick, in_turn
from tests.support.drawing_server import DrawingServer
from tests.support.endings import CASES as ENDINGS, FORCED, compare, count_naively
from tests.support.models import spell
from tests.support.oracles import conditioned_distribution, rejection_distribution
from tests.support.simulated_engine import EngineKind, SimulatedEngine
from tests.support.statistics import p_value
from tests.support.streaming import connect_directly
from tests.support.toys import EXACT, PROMPT, Markov, Words, run, spec_of

RAW = ServerFeatures(server="vllm", logprobs=frozenset({"raw"}), max_top_logprobs=20, has_ids=True, has_bias=True)
DRAWN = replace(RAW, logprobs=frozenset({"drawn"}))
TEXTS_ONLY = ServerFeatures(server="openai")
WAYS: dict[str, tuple[EndpointMethod, ServerFeatures]] = {
    "reject": ("reject", TEXTS_ONLY),
    "thin": ("thin", RAW),
    "bias": ("bias", RAW),
    "bias, told what was drawn from": ("bias", DRAWN),
    "auto": ("auto", RAW),
}
PLAIN = Sampling()
NO_END = frozenset({99})
TIMES = 400 * DEPTH
"""Texts drawn per case: probabilities that are off by 44 % are found, by `smallest_deviation`."""


def write_texts(
    server: DrawingServer | StreamingClient,
    words: Words,
    bans: Sequence[Ban],
    *,
    method: EndpointMethod,
    model: Markov | None = None,
    features: ServerFeatures | None = None,
    times: int = TIMES,
    sampling: Sampling = PLAIN,
    method_of_bans: str = "exact",
) -> list[EndpointText]:
    """Write texts. model, features: of a server that does not have them as attributes."""
    matcher = Matcher(bans, words)
    if isinstance(server, DrawingServer):
        model, features = server.model, server.features
    assert model is not None and features is not None
    settings, plan = model, plan_method(method, sampling, features)
    policy = replace(EXACT, do_sample=sampling.do_sample, method=method_of_bans, max_rewinds=10_000)

    async def write(seed: int) -> EndpointText:
        spec = spec_of(settings, matcher, seed=seed, lookback=False, policy=policy, forced=FORCED)
        text = EndpointText(server, spec, plan, sampling, seed=seed)
        async for _ in text.events():
            pass
        return text

    async def write_all() -> list[EndpointText]:
        return [await write(seed) for seed in range(times)]

    return asyncio.run(write_all())


def draw(*args: Any, **kwargs: Any) -> Counter[tuple[int, ...]]:
    """Write texts, and count equal ones."""
    return Counter(tuple(text.row.tokens) for text in write_texts(*args, **kwargs))


@pytest.mark.parametrize(("case", "way"), first_quick(in_turn(CASES, WAYS), 12))
def test_a_server_draws_as_rejection_sampling_would(case: str, way: str) -> None:
    words, bans = CASES[case]
    method, features = WAYS[way]
    server = DrawingServer(Markov(len(words), seed=1), features)
    assert p_value(draw(server, words, bans, method=method), expected_of(case, 1)) > 1e-4


@pytest.mark.parametrize(
    ("case", "way"), in_turn(["stop at once", "force what may end a ban", "force after each loop"], WAYS)
)
def test_a_text_of_a_server_ends_as_with_plain_rejection(case: str, way: str) -> None:
    """At once: where no probability is known, a continuation that is drawn twice counts twice."""
    words, bans = ENDINGS[case]
    method, features = WAYS[way]
    model = Markov(len(words), seed=1, length=5)
    drawn = draw(DrawingServer(model, features), words, bans, method=method)
    naive = Counter[tuple[int, ...]]()
    for (tokens, _), count in count_naively(model, words, bans, times=TIMES).items():
        naive[tokens] += count
    assert compare(drawn, naive) > 1e-3


@pytest.mark.parametrize("way", WAYS)
def test_the_traffic_counts_each_request_and_each_token_that_the_server_wrote(way: str) -> None:
    method, features = WAYS[way]
    server = DrawingServer(Markov(len(LETTERS), seed=1), features)
    texts = write_texts(server, LETTERS, [anywhere("a"), anywhere("b")], method=method, times=30)
    assert sum(text.traffic.received_tokens for text in texts) == server.written
    assert sum(text.traffic.requests for text in texts) == len(server.requests)


SETTINGS = {
    "temperature": (Sampling(temperature=0.6), [TemperatureLogitsWarper(0.6)]),
    "top-p": (Sampling(top_p=0.8), [TopPLogitsWarper(0.8)]),
    "temperature and min-p": (
        Sampling(temperature=1.5, min_p=0.1),
        [TemperatureLogitsWarper(1.5), MinPLogitsWarper(0.1)],
    ),
}


@pytest.mark.parametrize(
    ("setting", "method"), [(s, m) for s in SETTINGS for m in ("reject", "thin", "auto")] + [("temperature", "bias")]
)
def test_the_settings_of_the_server_are_kept(setting: str, method: EndpointMethod) -> None:
    sampling, processors = SETTINGS[setting]
    bans = [anywhere("ab"), anywhere("bcd", 0.3), anywhere("da")]
    expected = rejection_distribution(Markov(4, seed=3, processors=processors), LETTERS, bans)
    server = DrawingServer(Markov(4, seed=3), DRAWN)
    assert p_value(draw(server, LETTERS, bans, method=method, sampling=sampling), expected) > 1e-4


OF_LLAMA_CPP: dict[str, tuple[Sampling, list[Any]]] = {
    "dry": (
        Sampling(dry_multiplier=1.5, dry_allowed_length=0, dry_penalty_last_n=2),
        [DryLogitsProcessor(1.5, allowed_length=0, penalty_last_n=2)],
    ),
    "xtc": (Sampling(xtc_probability=0.5, xtc_threshold=0.2), [XtcLogitsProcessor(0.5, 0.2)]),
}


@pytest.mark.parametrize(
    ("setting", "method"),
    [("dry", m) for m in ("reject", "thin", "bias", "auto")] + [("xtc", "reject"), ("xtc", "auto")],
)
def test_the_samplers_of_llama_cpp_are_kept(setting: str, method: EndpointMethod) -> None:
    sampling, processors = OF_LLAMA_CPP[setting]
    bans = [anywhere("ab"), anywhere("bcd", 0.3), anywhere("da")]
    expected = rejection_distribution(Markov(4, seed=3, processors=processors), LETTERS, bans)
    server = DrawingServer(Markov(4, seed=3), replace(DRAWN, server="llama.cpp"))
    counts = draw(server, LETTERS, bans, method=method, sampling=sampling)
    assert p_value(counts, expected) > 1e-4
    assert p_value(counts, rejection_distribution(Markov(4, seed=3), LETTERS, bans)) < 1e-4, "no effect"


@pytest.mark.parametrize("method", ["thin", "bias", "auto"])
def test_probabilities_that_are_not_told_leave_texts_exact(method: EndpointMethod) -> None:
    bans = [anywhere("abcd"), anywhere("bb"), anywhere("ca", 0.3), anywhere("d", 0.5)]
    expected = rejection_distribution(Markov(4, seed=5), LETTERS, bans)
    server = DrawingServer(Markov(4, seed=5), RAW, forgets=0.3)
    assert p_value(draw(server, LETTERS, bans, method=method), expected) > 1e-4


@pytest.mark.parametrize("forgets", [0.0, 0.5])
@pytest.mark.parametrize("method", ["thin", "bias", "auto"])
def test_a_token_after_which_all_is_banned_is_drawn_again_though_its_probability_is_unknown(
    method: EndpointMethod, forgets: float
) -> None:
    """Nothing is left after "c", so texts are those of a ban that begins with it; as the last token, "c" is right."""
    bans = [Ban.regex("(?<=c)[abcd]"), anywhere("bb"), anywhere("da", 0.3)]
    expected = rejection_distribution(Markov(4, seed=5), LETTERS, [Ban.regex("c[abcd]"), *bans[1:]])
    server = DrawingServer(Markov(4, seed=5), RAW, forgets=forgets)
    assert p_value(draw(server, LETTERS, bans, method=method), expected) > 1e-4


class ForgetfulServer(DrawingServer):
    """Never tells the probability of a text's first token."""

    def _write(self, tokens: Sequence[int], request: StreamRequest, draws: random.Random) -> StreamItem:
        item = super()._write(tokens, request, draws)
        return item if len(tokens) > len(PROMPT) else StreamToken(item.token)


@pytest.mark.parametrize("method", ["thin", "bias"])
def test_below_a_kept_ban_whose_weight_is_not_subtracted_nothing_is_subtracted_above(method: EndpointMethod) -> None:
    """Otherwise, texts that begin with "b" are 24 % too frequent here, which 2,000 texts see."""
    model = Markov(4, seed=1)
    model.table *= 0.3
    model.table[0, 0] += torch.tensor([0.0, 2.5, 0.0, 2.5])
    model.table[0, 1] += torch.tensor([0.0, 0.0, 3.0, 1.0])
    model.table[1, 2] += torch.tensor([0.0, 0.0, 0.0, 3.0])
    bans = [anywhere("bc", 0.3), anywhere("cd")]
    drawn = draw(ForgetfulServer(model, RAW), LETTERS, bans, method=method, times=2000)
    expected = rejection_distribution(model, LETTERS, bans)
    begun, shares = Counter[tuple[int, ...]](), dict[tuple[int, ...], float]()
    for text, count in drawn.items():
        begun[text[:1]] += count
    for text, share in expected.items():
        shares[text[:1]] = shares.get(text[:1], 0.0) + share
    assert p_value(begun, shares) > 1e-4


@pytest.mark.parametrize("case", CASES)
def test_greedy_texts_are_those_of_the_loop(case: str) -> None:
    words, bans = CASES[case]
    for seed in range(5):
        model = Markov(len(words), seed=seed, length=8)
        expected, report = run(model, words, bans, do_sample=False, lookback=False)
        greedy = Sampling(temperature=0)
        drawn = draw(DrawingServer(model, RAW), words, bans, method="auto", times=1, sampling=greedy)
        if report.conceded == 0:
            assert list(drawn) == [expected]


@pytest.mark.parametrize("method", ["thin", "bias"])
def test_whole_texts_are_resampled_with_method_text(method: EndpointMethod) -> None:
    words, bans = CASES["nested starts"]
    server = DrawingServer(Markov(len(words), seed=1), RAW)
    expected = conditioned_distribution(Markov(len(words), seed=1), words, bans)
    assert p_value(draw(server, words, bans, method=method, method_of_bans="text"), expected) > 1e-4


OF_A_COIN = Sampling(xtc_probability=0.5)


@pytest.mark.parametrize(
    ("method", "sampling", "features", "sentence"),
    [
        ("bias", Sampling(top_p=0.9), DRAWN, "act after the bias"),
        ("bias", OF_A_COIN, replace(DRAWN, server="llama.cpp"), "method='bias' .*(use method='reject'|a coin for XTC)"),
        ("thin", OF_A_COIN, replace(DRAWN, server="llama.cpp"), "method='thin' .*(use method='reject'|a coin for XTC)"),
        ("thin", Sampling(temperature=0.7), RAW, "processed_logprobs"),
        (
            "reject",
            Sampling(repetition_penalty=1.2),
            RAW,
            "repetition_penalty can't be exact on vLLM, which may not count the prompt",
        ),
        ("reject", Sampling(temperature=0), RAW, "method='reject' can't write greedy texts .*: use method='auto'"),
        ("thin", Sampling(temperature=0), RAW, "method='thin' can't write greedy texts .*: use method='auto'"),
    ],
)
def test_a_method_that_can_not_be_exact_is_refused(
    method: EndpointMethod, sampling: Sampling, features: ServerFeatures, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        plan_method(method, sampling, features)


def test_the_method_auto_leaves_out_what_can_not_be_exact() -> None:
    assert not plan_method("auto", Sampling(top_p=0.9), DRAWN).can_bias
    assert plan_method("auto", Sampling(temperature=0.7), RAW).logprobs is None
    assert not plan_method("auto", Sampling(repetition_penalty=1.2), replace(DRAWN, penalizes_prompt=True)).can_bias


@pytest.mark.parametrize("way", WAYS)
def test_requests_contain_the_current_text_and_nothing_banned(way: str) -> None:
    method, features = WAYS[way]
    server = DrawingServer(Markov(len(LETTERS), seed=1), features)
    bans = [anywhere("a"), anywhere("bc")]
    texts = write_texts(server, LETTERS, bans, method=method, times=20)
    sent = [LETTERS.text(request.prompt[len(texts[0]._prompt) :]) for request in server.requests]
    assert len(sent) > 20
    assert not [text for text in sent if "a" in text or "bc" in text]


SERVERS: dict[str, tuple[EngineKind, dict[str, bool], ServerFeatures]] = {
    "vLLM": ("vllm", {}, RAW),
    "vLLM, told what was drawn from": ("vllm", {"tells_drawn": True}, DRAWN),
    "llama.cpp": ("llama.cpp", {}, replace(RAW, server="llama.cpp", logprobs=frozenset({"raw", "drawn"}))),
    "plain": ("openai", {}, TEXTS_ONLY),
}


@pytest.mark.parametrize(
    ("server", "setting"),
    first_quick(in_turn(SERVERS, ["plain", "temperature", "top-p", "temperature and min-p"], each=2), 4),
)
def test_each_kind_of_server_is_exact_by_its_own_formats(server: str, setting: str) -> None:
    """The whole way but HTTP: bodies that the simulated servers read, and events that the dialects read."""
    kind, options, features = SERVERS[server]
    sampling, processors = SETTINGS.get(setting, (PLAIN, []))
    bans = [anywhere("ab"), anywhere("bcd", 0.3), anywhere("da"), anywhere("cc")]
    model = Markov(4, seed=3)
    expected = rejection_distribution(Markov(4, seed=3, processors=processors), LETTERS, bans)
    engine = SimulatedEngine(
        lambda tokens: model.table[tokens[-2], tokens[-1]], spell("abcd"), kind, end_tokens=NO_END, **options
    )
    client = connect_directly(engine)
    client._features = features
    drawn = draw(client, LETTERS, bans, method="auto", model=model, features=features, sampling=sampling)
    assert p_value(drawn, expected) > 1e-4
