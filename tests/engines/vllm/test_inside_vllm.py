"""Bans inside a real vLLM: texts have the distribution of rejection sampling, and belong to what is returned."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from transformers import LogitsProcessorList

import antislop
from antislop import Ban, BanList
from antislop.core.hf.private import response_template_for
from antislop.core.loop.sampling import MASS_FLOOR, PROBABILITY_FLOOR
from tests.support.depth import DEPTH
from tests.support.letters import END, LENGTH, LISTS, SETTINGS, START, LettersChain, build_model, expected_texts
from tests.support.oracles import rejection_distribution
from tests.support.statistics import p_value
from tests.support.vllm_offline import ENVIRONMENT, ROOT, run_job, write_texts
from tests.support.vllm_server import install_plugins, serve_vllm

TINY = Path(antislop.__file__).parent / "data" / "tiny"
TIMES = int(1000 * DEPTH)


def listed(name: str) -> dict[str, Any]:
    """The extra arguments of a request under a list."""
    entries = [{"text": ban.text, "weight": ban.weight, "edges": ban.pattern.edges} for ban in LISTS[name]]
    return {"antislop": {"bans": entries}}


@pytest.mark.parametrize(("resume", "method"), [("hold", "reject"), ("preempt", "reject"), ("hold", "thin")])
@pytest.mark.parametrize("bans", LISTS)
def test_texts_inside_vllm_are_those_of_rejection_sampling(
    bans: str, resume: str, method: str, vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """Prompts of several lengths: rewinds stay in a block of 32 tokens, cross its edge, and go back to a full one.

    After 30 start tokens the letters' model writes "b" after "b" with probability .9. A text under top-p, which writes
    it more often still, may then withdraw 160 tokens for each new one, the limit of `reject`, and concede: 1 in 1,000
    did. So top-p gets the prompt of 64 tokens.
    """
    lengths = dict(zip(SETTINGS, (31, 64, 30, 1), strict=True))
    requests = [
        {"prompt": [START] * lengths[name], "max_tokens": LENGTH, "n": TIMES, "extra_args": listed(bans), **setting}
        for name, setting in SETTINGS.items()
    ]
    banning = {"max_rewinds": 10_000, "resume": resume, "method": method}
    outputs = write_texts(vllm_python, tmp_path, letters, requests, banning=banning)
    for setting, texts in zip(SETTINGS, outputs, strict=True):
        drawn = Counter(tuple(text["tokens"]) for text in texts)
        assert p_value(drawn, expected_texts(bans, setting, prompt_length=lengths[setting])) > 1e-3, setting


ORDERED = "[ab]*[cd .]*"
"""A language of which each beginning is a text."""


class OrderedLetters(LettersChain):
    @cached_property
    def shares(self) -> dict[tuple[int, ...], torch.Tensor]:
        masked = {}
        for prefix, row in LettersChain({}).shares.items():
            texts = [LettersChain.words.text([*prefix, token]) for token in range(len(row))]
            is_allowed = torch.tensor([bool(re.fullmatch(ORDERED, text)) for text in texts])
            is_allowed[END] = True
            masked[prefix] = (row * is_allowed) / (row * is_allowed).sum()
        return masked


@pytest.mark.parametrize("method", ["thin", "reject"])
@pytest.mark.parametrize("bans", ["weights"])
def test_texts_of_a_grammar_are_those_of_rejection_sampling(
    bans: str, method: str, vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """The same texts without bans would have p < 1e-10."""
    request = {"prompt": [START], "max_tokens": LENGTH, "n": TIMES, "extra_args": listed(bans)}
    requests = [request | {"regex": ORDERED}]
    banning = {"max_rewinds": 10_000, "method": method}
    (texts,) = write_texts(vllm_python, tmp_path, letters, requests, banning=banning)
    chain: Any = OrderedLetters({})
    drawn = Counter(tuple(text["tokens"]) for text in texts)
    assert p_value(drawn, rejection_distribution(chain, chain.words, LISTS[bans])) > 1e-3
    assert p_value(drawn, rejection_distribution(chain, chain.words, [])) < 1e-10


KEY = {"type": "object", "properties": {"dream": {"type": "null"}}, "required": ["dream"]}


@pytest.mark.parametrize("method", ["thin", "reject"])
def test_a_ban_on_what_a_grammar_forces_is_conceded_at_once(method: str, vllm_python: str, tmp_path: Path) -> None:
    """The phrase can be spelled by many rows of tokens, none of which is withdrawn; any spaces may be before a key."""
    _, tokenizer = antislop.tiny_model()
    request = {"prompt": tokenizer("The old house")["input_ids"], "max_tokens": 40}
    request["extra_args"] = {"antislop": {"bans": ["a dream", "dream"]}}
    requests = [request | form for form in [{"regex": "had a dream"}, {"json": KEY | {"additionalProperties": False}}]]
    outputs = write_texts(vllm_python, tmp_path, TINY, requests * 10, banning={"method": method})
    assert {text["text"] for (text,) in outputs[::2]} == {"had a dream"}
    assert {text["counts"]["conceded"] for (text,) in outputs[::2]} == {2}
    assert sum(text["counts"]["conceded"] for (text,) in outputs[1::2]) > 5
    assert max(text["counts"]["rewinds"] for (text,) in outputs) <= 1


FORMS = [
    {"regex": "[a-z ]{10,30}[.]"},
    {"choice": ["it is late", "you are here", "an old house"]},
    {"json": {"type": "object", "properties": {"k": {"type": "string", "maxLength": 8}}, "required": ["k"]}},
    {},
]


def test_texts_with_and_without_grammars_are_valid_and_keep_their_lists(vllm_python: str, tmp_path: Path) -> None:
    """64 at a time, some of them greedy, some with the log-probabilities of their prompts."""
    _, tokenizer = antislop.tiny_model()
    chance = Random(0)
    requests: list[dict[str, Any]] = [
        {
            "prompt": tokenizer(chance.choice(PROMPTS))["input_ids"],
            "max_tokens": 40,
            "extra_args": {"antislop": {"bans": chance.sample(WORDS, number % 4)}},
            "prompt_logprobs": 1 if number % 5 == 0 else None,
            "seed": number if number % 3 else None,
            "temperature": 0 if number % 7 == 0 else 1,
            **FORMS[number % len(FORMS)],
        }
        for number in range(int(300 * DEPTH))
    ]
    options = {"max_num_seqs": 64, "structured_outputs_config": {"disable_any_whitespace": True, "backend": "xgrammar"}}
    outputs = write_texts(vllm_python, tmp_path, TINY, requests, banning={}, **options)
    for request, (text,) in zip(requests, outputs, strict=True):
        prompt = tokenizer.decode(request["prompt"], skip_special_tokens=True)  # its last word may go on
        matches = BanList(request["extra_args"]["antislop"]["bans"]).find(prompt + text["text"])
        found = [match for match in matches if match.end > len(prompt)]
        assert not found or text["counts"]["conceded"], text
        if text["reason"] == "stop" and "regex" in request:
            assert re.fullmatch(request["regex"], text["text"])
        if "choice" in request:
            assert text["text"] in request["choice"]
        if text["reason"] == "stop" and "json" in request:
            assert json.loads(text["text"]).keys() == {"k"}
    assert sum(text["counts"]["rewinds"] for (text,) in outputs if text["counts"]) > 100 * DEPTH


PHRASES = ["of a", "in the", "it was", "and the", "she was", "he had", "as if", "of the"]


@pytest.mark.parametrize("bans", [["the", "was", "and"], PHRASES])
def test_a_greedy_text_has_the_tokens_that_a_sampler_in_this_process_takes(
    bans: list[str], vllm_python: str, tmp_path: Path
) -> None:
    """They may differ where more than 256 tokens in a row lead into a ban, since vLLM tells of no more."""
    model, tokenizer = antislop.tiny_model()
    sampler = antislop.AntiSlop(tokenizer, bans)
    prompts = ["The old house", "Once upon a time", "She opened the door", "It was raining", "The king"]
    prompts += ["A dog and a cat", "In the forest", "My mother said"]
    requests = [{"prompt": tokenizer(text)["input_ids"], "max_tokens": 100, "temperature": 0} for text in prompts]
    expected = []
    for request in requests:
        ids = torch.tensor([request["prompt"]])
        written: Any = sampler.generate(model, ids, max_new_tokens=100, do_sample=False)
        expected.append(written[0, ids.shape[1] :].tolist())
    outputs = write_texts(vllm_python, tmp_path, TINY, requests, banning={"bans": bans}, max_num_seqs=64)
    assert [text["tokens"] for (text,) in outputs] == expected
    assert sum(text["counts"]["rewinds"] for (text,) in outputs) > 20


HEAVY_SETTINGS: dict[str, dict[str, float]] = {**SETTINGS, "min-p": {"min_p": 0.05}}
BANNED = 2
"""The letter "a", of which the engine is made fond by a bias."""


def expected_letters(logits: torch.Tensor, warpers: Sequence[Any]) -> dict[tuple[int, ...], float]:
    """Return the shares of the letters in place of a likely one, as the rules of a model in this process have them."""
    raw = logits.softmax(-1)
    warp = LogitsProcessorList(warpers)
    left = warp(None, logits[None])[0].softmax(-1)
    spent = left > 0
    left[BANNED] = 0
    is_likely = raw >= PROBABILITY_FLOOR
    is_likely[END] = False
    if left.sum() < MASS_FLOOR and (left * is_likely).any():
        left = left * is_likely
    elif left.sum() < MASS_FLOOR:
        left = (warp(None, logits[None].masked_fill(spent, -torch.inf))[0].softmax(-1)) * is_likely * ~spent
    return {(token,): float(share / left.sum()) for token, share in enumerate(left) if share > 0}


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 0.999, 0.9995])
def test_a_likely_letter_is_withdrawn_three_times_at_most(
    share: float, vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """Texts of one letter, with those of other requests beside them; 200 for each setting find deviations of 70 %."""
    logits = build_model()(torch.tensor([[START]])).logits[0, -1].double()
    others = torch.cat([logits[:BANNED], logits[BANNED + 1 :]]).logsumexp(0)
    bias = float(others - logits[BANNED]) + log(share / (1 - share))
    logits[BANNED] += bias
    requests = [
        {
            "prompt": [START],
            "max_tokens": 1,
            "logit_bias": {str(BANNED): bias},
            "extra_args": {"antislop": {"bans": [{"text": "a", "edges": "anywhere"}]}},
            **setting,
        }
        for setting in HEAVY_SETTINGS.values()
        for _ in range(200 * DEPTH)
    ]
    outputs = write_texts(vllm_python, tmp_path, letters, requests, banning={})
    counts = [text["counts"] for (text,) in outputs]
    assert max(count["rewinds"] for count in counts) <= (3 if share > 0.5 else 20)
    assert not any(count["conceded"] for count in counts)
    for number, (name, setting) in enumerate(HEAVY_SETTINGS.items()):
        drawn = Counter(tuple(text["tokens"]) for (text,) in outputs[number * 200 * DEPTH :][: 200 * DEPTH])
        expected = expected_letters(logits, LettersChain(setting).warpers())
        assert drawn.keys() <= expected.keys(), name
        assert len(expected) == 1 or p_value(drawn, expected) > 1e-4, name


@pytest.mark.parametrize("method", ["reject", "thin"])
@pytest.mark.parametrize("resume", ["hold", "preempt"])
def test_schedulers_with_steps_in_flight_write_the_same_texts(
    resume: str, method: str, vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """With a pretend runner, which checks the cache at each draw; this machine's vLLM runs one step at a time.

    Both model runners' rules, blocks for some of the texts, requests that are aborted, half of them with a seed. Texts
    that together are half as likely as not have to be 16 % too likely for p = .001.
    """
    cases = [(bans, in_flight, second) for bans in LISTS for in_flight in (1, 2, 4) for second in (False, True)]
    banning = {"max_rewinds": 10_000, "resume": resume, "method": method}
    jobs = [
        simulated_job(letters, bans, banning=banning, in_flight=in_flight, second=second)
        for bans, in_flight, second in cases
    ]
    outputs = run_job(vllm_python, tmp_path, jobs, module="tests.support.vllm_simulated")
    for (bans, in_flight, second), output in zip(cases, outputs, strict=True):
        assert compare(output, bans) > 1e-3, (bans, in_flight, second)


def simulated_job(letters: Path, bans: str, *, times: int = TIMES, **job: Any) -> dict[str, Any]:
    """Return a job for the pretend runner: texts under a list, of which every tenth is aborted."""
    shares = {" ".join(map(str, prefix)): row.tolist() for prefix, row in LettersChain({}).shares.items()}
    requests = [
        {"prompt": [START] * (1 + i % 9), "max_tokens": LENGTH, "extra_args": listed(bans)}
        | ({"seed": i, "logprobs": 0} if i % 2 else {})
        | ({"abort": 1 + i // 10 % 5} if i % 10 == 7 else {})
        for i in range(times * 10 // 9)
    ]
    return {"model": str(letters), "shares": shares, "requests": requests, **job}


def compare(output: dict[str, Any], bans: str) -> float:
    """Return how likely the texts of a job are to differ from those of rejection sampling as much as they do."""
    assert output["is_free"] and None in output["texts"]
    drawn = Counter(tuple(text) for i, text in enumerate(output["texts"]) if i % 10 != 7)
    return p_value(drawn, expected_texts(bans, "plain"))


DRAFTS: dict[str, dict[str, Any]] = {
    "the likeliest token": {"drafts": 3, "certain": True},
    "drawn from a flatter distribution": {"drafts": 2},
}


@pytest.mark.parametrize("method", ["reject", "thin"])
@pytest.mark.parametrize("drafting", DRAFTS)
def test_drafts_change_no_texts(drafting: str, method: str, vllm_python: str, letters: Path, tmp_path: Path) -> None:
    """As above, with drafts that the runner verifies; one list in two is rewound by preemption."""
    cases = [(bans, in_flight) for bans in LISTS for in_flight in (1, 2, 4)]
    jobs = [
        simulated_job(letters, bans, in_flight=in_flight, second=True, drafting=DRAFTS[drafting])
        | {"banning": {"max_rewinds": 10_000, "method": method, "resume": ["hold", "preempt"][number % 2]}}
        for number, (bans, in_flight) in enumerate(cases)
    ]
    outputs = run_job(vllm_python, tmp_path, jobs, module="tests.support.vllm_simulated")
    for (bans, in_flight), output in zip(cases, outputs, strict=True):
        accepted, drafted = output["accepted"]
        assert 0.2 * drafted < accepted < 0.9 * drafted
        assert compare(output, bans) > 1e-3, (bans, in_flight)


def test_drafts_that_are_cut_before_a_ban_would_change_the_texts(
    vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """The test above sees it: here the runner cuts them before each token that begins with the banned word "a"."""
    banned = [token for token in range(len(LettersChain.words)) if LettersChain.words.surface(token).startswith(b"a")]
    drafting = DRAFTS["drawn from a flatter distribution"] | {"cut": banned}
    job = simulated_job(letters, "words", times=1000, in_flight=1, second=True, drafting=drafting, banning={})
    (output,) = run_job(vllm_python, tmp_path, [job], module="tests.support.vllm_simulated")
    assert compare(output, "words") < 1e-8


@pytest.mark.parametrize("drafting", [{}, DRAFTS["the likeliest token"]], ids=["no drafts", "drafts"])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_text_that_repeats_itself_ends_with_vllms_own_reason(
    in_flight: int, drafting: dict[str, Any], vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """Of "abc. abc. " only the first passage leaves the engine, also where the limit of tokens comes with the loop."""
    path = [2, 3, 4, 7, 6] * 5
    certain = {" ".join(map(str, path[:i])): [float(t == token) for t in range(16)] for i, token in enumerate(path)}
    loop = {
        "text": "a passage 2 times in a row",
        "kind": "loop",
        "copies": 2,
        "min_length": 4,
        "then": "stop",
        "tries": 0,
    }
    arguments = {"antislop": {"bans": [loop]}}
    requests = [{"prompt": [START], "max_tokens": most, "extra_args": arguments} for most in (5, 10, 20)]
    job = {"model": str(letters), "banning": {}, "shares": certain, "requests": requests}
    job |= {"in_flight": in_flight, "second": bool(drafting), "drafting": drafting}
    (output,) = run_job(vllm_python, tmp_path, [job], module="tests.support.vllm_simulated")
    assert dict(zip(output["order"], output["reasons"], strict=True)) == {
        "0": "length",
        "1": "repetition",
        "2": "repetition",
    }
    assert output["texts"] == [path[:5]] * 3 and output["is_free"]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_other_texts_go_on_while_a_list_is_compiled(
    in_flight: int, vllm_python: str, letters: Path, tmp_path: Path
) -> None:
    """One list is there after 30 steps, when the texts without it have ended, and one too late."""
    shares = {" ".join(map(str, prefix)): row.tolist() for prefix, row in LettersChain({}).shares.items()}
    lates: list[dict[str, int]] = [{}, {"late": 30}, {}, {"late": 10**9}, {}, {"late": 30}]
    bans = listed(next(iter(LISTS)))
    requests = [{"prompt": [START] * 5, "max_tokens": LENGTH, "extra_args": bans | late} for late in lates]
    job = {"model": str(letters), "banning": {}, "shares": shares, "requests": requests, "seconds": 1.0}
    job |= {"in_flight": in_flight, "second": False}
    (output,) = run_job(vllm_python, tmp_path, [job], module="tests.support.vllm_simulated")
    assert sorted(output["order"][:3]) == ["0", "2", "4"]
    assert sorted(output["order"][3:5]) == ["1", "5"]
    assert output["order"][5:] == ["-3"] and output["is_free"]


PROMPTS = (
    "The old house",
    "She opened the door and",
    "One day, in the middle of the long and cold winter, the old man went out of his house and down to the river, and",
)
COMMON = [
    "the",
    "was",
    "her eyes",
    "of a",
    "it",
    {"text": "and", "weight": 0.5},
    {"kind": "regex", "text": r"s[ao]\w+"},
]
WAYS: list[dict[str, Any]] = [
    {},
    {"seed": 7},
    {"n": 3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    {"stop_token_ids": [13], "min_tokens": 5},
    {"bad_words": ["night"]},
    {"stop": [".", ", he"], "include_stop_str_in_output": True},
]


REJECT, PREEMPT = {"method": "reject"}, {"resume": "preempt"}
ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hold": ({}, {}),
    "preempt": (PREEMPT, {}),
    "hold, reject": (REJECT, {}),
    "preempt, reject": (REJECT | PREEMPT, {}),
    "hold, reject, no prefix cache": (REJECT, {"enable_prefix_caching": False}),
    "preempt, no prefix cache": (PREEMPT, {"enable_prefix_caching": False}),
    "hold, few blocks and prompts in parts": ({}, {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 32}),
    "preempt, reject, few blocks": (REJECT | PREEMPT, {"num_gpu_blocks_override": 24}),
}
"""Arguments of `banning`, and the options of the engine."""


def can_be_checked(way: dict[str, Any], engine: str) -> bool:
    """Report whether an engine tells the model's own log-probabilities of a request."""
    if "parts" in engine and "seed" in way:
        return False  # vLLM for CPUs fails at a seeded request that is read in parts
    return "reject" in engine or not {"min_tokens", "bad_words", "repetition_penalty"} & {*way}


def ends_as_asked(decoded: str, text: dict[str, Any], request: dict[str, Any]) -> bool:
    """Report whether a text goes to its first stop string or token, or has all tokens that it may have."""
    assert text["text"] == decoded or text["reason"] == "stop"
    if text["reason"] == "length":
        return len(text["tokens"]) == request["max_tokens"]
    strings = request.get("stop", ())
    return text["tokens"][-1] in (1, *request.get("stop_token_ids", ())) or any(map(text["text"].endswith, strings))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_vllm_returns_belongs_to_the_text_that_is_left(engine: str, vllm_python: str, tmp_path: Path) -> None:
    """Log-probabilities are those of transformers on the final text, and no text contains a ban."""
    model, tokenizer = antislop.tiny_model()
    banning, options = ENGINES[engine]
    requests = [
        {
            "prompt": tokenizer(prompt)["input_ids"],
            "max_tokens": 60 + number,
            "logprobs": number % 4,
            "extra_args": {"antislop": {"bans": COMMON[number % 3 :]}},
            **way,
        }
        for prompt in PROMPTS
        for number, way in enumerate(WAYS)
        if can_be_checked(way, engine)
    ]
    outputs = write_texts(vllm_python, tmp_path, TINY, requests, banning={"max_rewinds": 10_000, **banning}, **options)
    withdrawn = 0
    for request, texts in zip(requests, outputs, strict=True):
        assert len(texts) == request.get("n", 1)
        bans = [ban for ban in request["extra_args"]["antislop"]["bans"] if isinstance(ban, str)]
        for text in texts:
            ids = torch.tensor([[*request["prompt"], *text["tokens"]]])
            start = len(request["prompt"])
            with torch.no_grad():
                expected = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
            assert ends_as_asked(tokenizer.decode(text["tokens"]), text, request)
            for token, told, own in zip(text["tokens"], text["logprobs"], expected, strict=True):
                assert told[0][0] == token
                assert {other for other, _, _ in told} >= set(own.topk(request["logprobs"]).indices.tolist())
                for other, logprob, _ in told:  # that of an unlikely rest is 1 minus others, as float32 rounds these
                    assert abs(logprob - own[other]) < 1e-4 or abs(exp(logprob) - own[other].exp()) < 1e-7
                assert [rank for _, _, rank in told] == [1 + int((own > own[o]).sum()) for o, _, _ in told], told
            assert not BanList([*bans, Ban.regex(r"s[ao]\w+")]).find(" " + tokenizer.decode(text["tokens"]))
        withdrawn += texts[-1]["counts"]["withdrawn_tokens"]  # of several texts, vLLM hands on what it says of one
    assert withdrawn > 100


NOBODY = {"asked": [None] * 3, "temperatures": [1.0, 0.5, 0.0]}
SAMPLED = {"asked": [None, 3, None, 0, None], "temperatures": [1.0, 0.5, 0.0, 1.0, 2.0], "top_p": 0.9}
STEPS: list[tuple[dict[str, Any], tuple[list[int], list[int]]]] = [
    ({"second": False, **NOBODY}, ([], [])),
    ({"second": False, **SAMPLED}, ([5], [2])),
    ({"second": False, **SAMPLED, "temperatures": [0.0] * 5}, ([5], [2])),
    ({"second": False, **SAMPLED, "asked": [None, 50, 2, None, None]}, ([5], [2])),
    ({"second": False, **SAMPLED, "asked": [1, 3, 2, 0, 50]}, ([5], [5])),
    ({"second": False, **SAMPLED, "token_ids": [1, 2]}, ([5], [5])),
    ({"second": True, **NOBODY}, ([], [])),
    ({"second": True, **SAMPLED}, ([5], [2])),
    ({"second": True, **SAMPLED, "asked": [1, 3, 2, 0, 50]}, ([5], [5])),
]
"""Steps of vLLM's samplers, and how many rows these rank: all rows by themselves, those that ask after the change."""


def test_only_requests_that_ask_are_ranked_and_they_are_told_the_same(vllm_python: str, tmp_path: Path) -> None:
    """A step is drawn as before, whatever it mixes; 50 are all tokens; `logprob_token_ids` are left to vLLM."""
    jobs = [{"top_p": 1.0, **step} for step, _ in STEPS]
    found = run_job(vllm_python, tmp_path, jobs, module="tests.support.vllm_samplers")
    assert found == [{"is_same": True, "before": before, "after": after} for _, (before, after) in STEPS]


def test_vllm_says_under_no_bans_what_it_says_alone(vllm_python: str, tmp_path: Path) -> None:
    """To the bit, also of prompts, and whatever other requests of a step ask for."""
    _, tokenizer = antislop.tiny_model()
    asked: list[dict[str, Any]] = [{}, {}, {"logprobs": 3}, {"logprobs": 0}, {"prompt_logprobs": 2}]
    ways = [{}, {"seed": 3, "top_p": 0.9}, {"temperature": 0}, {"top_k": 20, "temperature": 0.5}]
    requests = [
        {"prompt": tokenizer(PROMPTS[number % len(PROMPTS)])["input_ids"], "max_tokens": 20 + number, **way, **ask}
        for number, (way, ask) in enumerate(product(ways, asked))
    ]
    requests[0] |= {"logprobs": -1, "max_tokens": 5}
    requests[1] |= {"logprob_token_ids": [300, 301], "max_tokens": 10}
    alone, banned = (
        write_texts(
            vllm_python, tmp_path, TINY, requests, banning=banning, logprobs_mode="processed_logprobs", max_logprobs=-1
        )
        for banning in (None, {})
    )
    assert alone == banned


WORDS = ["the", "was", "and", "his", "her", "he", "of", "it", "you", "in", "a", "to", "that", "she", "had", "with"]


def test_a_thousand_requests_keep_a_list_each(vllm_python: str, tmp_path: Path) -> None:
    """64 at a time, with and without bans; those with a seed write the same text again."""
    _, tokenizer = antislop.tiny_model()
    chance = Random(0)
    requests: list[dict[str, Any]] = [
        {
            "prompt": tokenizer(chance.choice(PROMPTS))["input_ids"],
            "max_tokens": chance.randint(5, 30),
            "extra_args": {"antislop": {"bans": chance.sample(WORDS, number % 5)}},
        }
        for number in range(1000)
    ]
    seeded = [{**request, "seed": seed} for seed, request in enumerate(requests[:40])]
    requests = [*seeded, *requests, *seeded]
    banning = {"max_rewinds": 10_000}
    outputs = write_texts(vllm_python, tmp_path, TINY, requests, banning=banning, max_num_seqs=64)
    for request, (text,) in zip(requests, outputs, strict=True):
        bans = BanList(request["extra_args"]["antislop"]["bans"])
        assert not bans.find(" " + tokenizer.decode(text["tokens"]))
        assert (text["counts"] is None) == (not len(bans))
    assert [text for (text,) in outputs[:40]] == [text for (text,) in outputs[-40:]]
    assert sum(text["counts"]["rewinds"] for (text,) in outputs if text["counts"]) > 1000


def test_bans_hold_in_the_parts_of_a_message(vllm_python: str, tmp_path: Path) -> None:
    """The prompt opens thoughts, which this model never ends, or none."""
    model = shutil.copytree(TINY, tmp_path / "model")
    _, tokenizer = antislop.tiny_model()
    tokenizer.response_template = response_template_for("qwen3")
    tokenizer.save_pretrained(model)
    began = "<|im_start|>assistant\n"
    asked = [(thinks, where) for thinks in (False, True) for where in (None, "answer", "thinking", "all")]
    requests = [
        {
            "prompt": tokenizer(f"{began}<think>The" if thinks else f"{began}The")["input_ids"],
            "max_tokens": 60,
            "n": 4,
            "extra_args": {"antislop": {} if where is None else {"ban_scope": where}},
        }
        for thinks, where in asked
    ]
    outputs = write_texts(vllm_python, tmp_path, model, requests, banning={"bans": ["the", "a", "was"]})
    for (thinks, where), texts in zip(asked, outputs, strict=True):
        part, text = "thinking" if thinks else "answer", " ".join(text["text"] for text in texts)
        holds = where == "all" or part == (where or "answer")
        assert bool(BanList(["the", "a", "was"]).find(f" {text}")) != holds, (thinks, where)
        (counts,) = [text["counts"] for text in texts[:1]]
        assert counts.get("rewinds_by_part", {}) == ({part: counts["rewinds"]} if counts["rewinds"] else {})
        assert holds or not counts["rewinds"]


def test_thinning_is_refused_where_probabilities_are_those_before_sampling(vllm_python: str, tmp_path: Path) -> None:
    """Those that vLLM has by default, 'raw_logprobs', can't be told from nothing: the plugin replaces them."""
    with pytest.raises(RuntimeError, match="logprobs_mode is 'raw_logits': pass logprobs_mode='processed_logprobs'"):
        write_texts(vllm_python, tmp_path, TINY, [], banning={"method": "thin"}, logprobs_mode="raw_logits")


def test_drafts_are_refused_by_the_first_model_runner(vllm_python: str, letters: Path, tmp_path: Path) -> None:
    """Which vLLM refuses beside logits processors, as the plugin adds one, and which on CPUs alters texts by itself.

    When the last line fails, vLLM verifies drafts at the right temperature there, and a test under bans can begin.
    """
    options = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}}
    with pytest.raises(RuntimeError, match="processors are not supported when speculative decoding is enabled"):
        write_texts(vllm_python, tmp_path, letters, [], banning={"method": "reject"}, **options)
    request = {"prompt": [START], "max_tokens": LENGTH, "n": TIMES}
    (texts,) = write_texts(vllm_python, tmp_path, letters, [request], **options)
    drawn = Counter(tuple(text["tokens"]) for text in texts)
    chain: Any = LettersChain({})
    assert p_value(drawn, rejection_distribution(chain, chain.words, [])) < 1e-3


def test_a_client_gets_the_reason_why_its_request_fails_where_vllm_tells_it(vllm_python: str) -> None:
    """With a pretended scheduler of vLLM 0.33, whose list of requests to fail has reasons; that of 0.32 has none."""
    code = """
from types import SimpleNamespace
from antislop.engines.vllm.scheduler import _Banning
for failing in (set(), {}):
    _Banning._fail(SimpleNamespace(grammar_compile_error_reqs=failing), SimpleNamespace(request_id="a"), "too long")
    print(failing)
"""
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([vllm_python, "-c", code], env=environment, capture_output=True, text=True)
    expected = "{'a'}\n{'a': RequestError(code='validation_error', message='too long', retryable=False)}\n"
    assert ended.stdout == expected, ended.stderr


@pytest.fixture(scope="module")
def server(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `vllm serve` with a list of its own, where antislop is installed: one argument is enough."""
    options = ["--additional-config", json.dumps({"antislop": {"bans": ["the", "was"], "lists": {"words": ["and"]}}})]
    options += ["--chat-template", "{{ messages[0].content }}"]
    folder = tmp_path_factory.mktemp("vllm")
    with serve_vllm(vllm_python, TINY, folder / "log.txt", *options, path=[install_plugins(folder)]) as process:
        yield process.url


def post(url: str, route: str, **body: Any) -> tuple[int, str]:
    content = json.dumps({"model": str(TINY), **body}).encode()
    try:
        with urlopen(Request(url + route, content, {"Content-Type": "application/json"})) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def complete(url: str, **body: Any) -> tuple[int, dict[str, Any]]:
    status, answer = post(url, "/v1/completions", **{"prompt": "The old house", **body})
    return status, json.loads(answer)


def test_a_server_keeps_its_list_and_those_of_requests(server: str) -> None:
    status, answer = complete(server, max_tokens=120, n=2, seed=1)
    assert status == 200
    assert not any(BanList(["the", "was"]).find(choice["text"]) for choice in answer["choices"])
    assert answer["kv_transfer_params"]["antislop"]["rewinds"] > 0
    more = json.dumps({"bans": ["and", "his"], "use_global_bans": False})
    status, answer = complete(server, max_tokens=120, n=2, seed=1, vllm_xargs={"antislop": more})
    assert status == 200
    text = "".join(choice["text"] for choice in answer["choices"])
    assert BanList(["the", "was"]).find(text) and not BanList(["and", "his"]).find(text)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            {"vllm_xargs": {"antislop": '{"bnas": []}'}},
            "has 'bnas', which is none of ban_list, ban_scope, banned_regex,",
        ),
        ({"vllm_xargs": {"antislop": "["}}, "is not JSON"),
        ({"vllm_xargs": {"antislop": '{"bans": ["(", {"kind": "regex", "text": "("}]}'}}, "does not compile"),
        ({"use_beam_search": True, "n": 2}, "bans and beam search can't be combined"),
        ({"use_beam_search": True, "temperature": 0, "banned_strings": ["a"]}, "bans and beam search can't be"),
        ({"banned_strings": "a cat"}, "banned_strings is 'a cat': pass a list"),
        ({"ban_list": "nouns"}, "the engine has no list 'nouns', but 'words': leave ban_list out"),
        (
            {"banned_strings": ["a"], "vllm_xargs": {"antislop": "{}"}},
            "bans came as banned_strings and in vllm_xargs['antislop']: send them in one place",
        ),
        (
            {"use_beam_search": True, "temperature": 0, "vllm_xargs": {"antislop": '{"bans": ["a"]}'}},
            "bans and beam search can't be combined",
        ),
    ],
)
def test_a_server_answers_400_to_what_can_not_be_written(server: str, body: dict[str, Any], sentence: str) -> None:
    status, answer = complete(server, max_tokens=5, **body)
    assert status == 400
    assert sentence in answer["error"]["message"]


FIELDS: dict[str, list[Any]] = {
    **{key: [True] for key in ("echo", "ignore_eos", "include_stop_str_in_output", "return_token_ids", "stream")},
    **{key: [True] for key in ("return_mm_kwargs", "return_prompt_text", "return_token_offsets", "use_beam_search")},
    **{key: [True] for key in ("return_tokens_as_token_ids", "continue_final_message", "watermarking")},
    "return_weight_versions": [True],
    **{key: [False] for key in ("add_special_tokens", "skip_special_tokens", "spaces_between_special_tokens")},
    **{key: [False] for key in ("add_generation_prompt", "include_reasoning", "parallel_tool_calls")},
    **{key: ["abc"] for key in ("cache_salt", "request_id", "session_id", "suffix", "user")},
    **{key: [{"a": 1}] for key in ("ec_transfer_params", "kv_transfer_params", "chat_template_kwargs", "vllm_xargs")},
    **{key: [{}] for key in ("media_io_kwargs", "mm_processor_kwargs")},
    **{key: [0.5] for key in ("frequency_penalty", "presence_penalty")},
    "allowed_token_ids": [[262, 263, 264, 300, 301, 302]],
    "bad_words": [["night", "he"]],
    "chat_template": ["{{ messages[0].content }}"],
    "documents": [[{"text": "a"}]],
    "length_penalty": [1.5],
    "logit_bias": [{"264": 3.0}],
    "logprob_token_ids": [[262, 300]],
    "logprobs": [0, 3],
    "max_completion_tokens": [20],
    "max_tokens": [1, 300],
    "messages": [[{"role": "user", "content": "One day"}, {"role": "assistant", "content": "he"}]],
    "min_p": [0.05, 0.9],
    "min_tokens": [10],
    "mm_payload": ["none"],
    "model": [str(TINY)],
    "n": [3],
    "priority": [1],
    "prompt": ["One day", ["One day", "The rain"], [[300, 301]]],
    "prompt_embeds": ["AAAA"],
    "prompt_logprobs": [0, 3, -1],
    "reasoning_effort": ["low"],
    "repetition_detection": [{"max_pattern_size": 2, "min_count": 2}],
    "repetition_penalty": [1.2],
    "response_format": [{"type": "text"}, {"type": "json_object"}],
    "routed_experts_prompt_start": [1],
    "seed": [3],
    "stop": ["e", [".", ", he"]],
    "stop_token_ids": [[13, 300]],
    "stream_interval": [3],
    "stream_options": [{"include_usage": True}],
    "structured_outputs": [{"regex": "[a-z]+"}],
    "temperature": [0, 0.5],
    "thinking_token_budget": [3],
    "tool_choice": ["none", "auto", "required"],
    "tools": [[{"type": "function", "function": {"name": "f", "parameters": {}}}]],
    "top_k": [1, 50],
    "top_logprobs": [2],
    "top_p": [0.01, 0.9],
    "truncate_prompt_tokens": [1],
    "truncation_side": ["left"],
}
"""Values of all fields that a request may have."""
ROUTES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "/v1/completions": ("CompletionRequest", {"prompt": "The old house"}, {"echo": {"logprobs": 2}}),
    "/v1/chat/completions": (
        "ChatCompletionRequest",
        {"messages": [{"role": "user", "content": "The old house"}]},
        {"top_logprobs": {"logprobs": True}, "logprobs": {"logprobs": True}},
    ),
}
"""The schema of each route, a request, and what else a field needs."""


def read_texts(answer: str, *, streams: bool) -> list[str]:
    """Return the texts of an answer, without what an echo repeats."""
    events = [line[6:] for line in answer.splitlines() if line.startswith("data: {")] if streams else [answer]
    texts: dict[int, str] = {}
    for choice in (choice for event in events for choice in json.loads(event).get("choices", ())):
        part = choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        texts[choice["index"]] = texts.get(choice["index"], "") + part
    return [text.removeprefix("The old house") for text in texts.values()]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_each_field_of_a_request_is_honored_under_bans_or_refused(route: str, streams: bool, server: str) -> None:
    """The server lives on after each."""
    schema, base, more = ROUTES[route]
    with urlopen(f"{server}/openapi.json") as answer:
        fields = json.load(answer)["components"]["schemas"][schema]["properties"]
    assert sorted(fields) == sorted(fields.keys() & FIELDS.keys())
    statuses: Counter[int] = Counter()
    for name in fields:
        for value in FIELDS[name]:
            body = {**base, "max_tokens": 30, "stream": streams, name: value, **more.get(name, {})}
            body = {key: value for key, value in body.items() if (key, value) != ("stream", False)}
            if name == "stream_options":
                body["stream"] = True
            status, text = post(server, route, **body)
            assert status in (200, 400), (name, value, text)
            statuses[status] += 1
            if status == 200:
                for written in read_texts(text, streams=body.get("stream", False)):
                    assert not BanList(["the", "was"]).find(written), (name, value)
            with urlopen(f"{server}/health", timeout=10):
                pass
    assert statuses[200] > 4 * statuses[400] > 0


def test_a_concession_is_seen_in_a_stream(server: str) -> None:
    everything = json.dumps({"bans": [{"text": r"[\s\S]", "kind": "regex"}]})
    body = {"prompt": "The old house", "max_tokens": 5, "stream": True, "vllm_xargs": {"antislop": everything}}
    _, text = post(server, "/v1/completions", **body)
    assert re.search(r'"stop_reason":"antislop: [1-9] conceded"', text), text


def test_a_request_with_more_phrases_than_may_be_compiled_is_refused(server: str) -> None:
    many = json.dumps({"bans": [f"phrase {i}" for i in range(20_000)]})
    before = time.monotonic()
    status, answer = complete(server, max_tokens=5, vllm_xargs={"antislop": many})
    assert status == 400
    assert "20,000 bans and exempt phrases are too many for a request: at most 10,000" in answer["error"]["message"]
    assert time.monotonic() - before < 5


def read_recorded(client: str) -> dict[str, Any]:
    lines = (ROOT / "tests" / "serve" / "recorded_requests.jsonl").read_text(encoding="utf-8").splitlines()
    return next(record["body"] for record in map(json.loads, lines) if record["client"] == client)


def test_a_server_reads_bans_where_the_clients_of_others_write_them(server: str) -> None:
    """Bodies as SillyTavern sends them to exllama's server, and to any chat; the server's own list holds, too."""
    body = read_recorded("SillyTavern 1.19.0, TabbyAPI, preset Default") | {"custom_token_bans": "300,301"}
    body |= {"banned_strings": ["and", " h", "s*"], "max_tokens": 200, "seed": 1, "n": 2, "return_token_ids": True}
    status, answer = complete(server, **body)
    assert status == 200
    for choice in answer["choices"]:
        assert not BanList(["the", "was", Ban("and", edges="anywhere"), Ban(" h", edges="anywhere")]).find(
            choice["text"]
        )
        assert not {300, 301} & {*choice["token_ids"]}
    counts = answer["kv_transfer_params"]["antislop"]
    assert counts["violations"] > 0 == counts["conceded"]
    body = read_recorded("SillyTavern 1.19.0, Custom chat, bans in Include Body Parameters")
    body |= {"banned_strings": ["e"], "stream": False, "max_tokens": 30, "model": str(TINY)}
    status, text = post(server, "/v1/chat/completions", **body)
    assert status == 200
    answer = json.loads(text)
    assert "e" not in answer["choices"][0]["message"]["content"].lower()
    assert answer["kv_transfer_params"]["antislop"]["violations"] > 0
    status, answer = complete(server, max_tokens=200, seed=2, ban_list="words", banned_regex=[r"\bhis\b"])
    assert status == 200
    text = answer["choices"][0]["text"]
    assert not BanList(["and", "his"]).find(text) and BanList(["the", "was"]).find(text)


def test_a_greedy_request_that_leaves_out_the_list_is_written(server: str) -> None:
    status, _ = complete(server, max_tokens=5, temperature=0, vllm_xargs={"antislop": '{"use_global_bans": false}'})
    assert status == 200


def read_metric(url: str, name: str) -> float:
    with urlopen(f"{url}/metrics") as answer:
        return sum(float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(name))


def test_what_bans_did_is_among_the_metrics_of_a_server(server: str) -> None:
    """Rewinds are no preemptions, since the blocks are kept."""
    names = ("antislop:rewinds_total", "antislop:withdrawn_tokens_total", "antislop:list_wait_seconds_total")
    before = {name: read_metric(server, name) for name in (*names, "vllm:num_preemptions_total")}
    own = json.dumps({"banned_regex": [f"{word}[a-z]+ly" for word in WORDS]})
    _, answer = complete(server, max_tokens=120, seed=1, vllm_xargs={"antislop": own})
    complete(server, max_tokens=1)  # whose statistics come after those of the first
    counts = answer["kv_transfer_params"]["antislop"]
    more = {name: read_metric(server, name) - value for name, value in before.items()}
    assert more["antislop:rewinds_total"] == counts["rewinds"] > 0 == more["vllm:num_preemptions_total"]
    assert more["antislop:withdrawn_tokens_total"] == counts["withdrawn_tokens"]
    assert 0 < more["antislop:list_wait_seconds_total"] < 10


def test_a_client_that_hangs_up_leaves_nothing_behind(server: str) -> None:
    body = {"model": str(TINY), "prompt": "The old house", "max_tokens": 450, "stream": True, "ignore_eos": True}
    request = Request(f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    for _ in range(20):
        with urlopen(request) as answer:
            assert answer.readline().startswith(b"data: ")
    until = time.monotonic() + 20
    while time.monotonic() < until and read_metric(server, "vllm:num_requests_running"):
        time.sleep(0.1)
    assert read_metric(server, "vllm:num_requests_running") == 0 == read_metric(server, "vllm:kv_cache_usage_perc")
    assert complete(server, max_tokens=20)[0] == 200


def has_ray(python: str) -> bool:
    return not subprocess.run([python, "-c", "import ray.data"], stderr=subprocess.DEVNULL, check=False).returncode


def test_pairs_that_are_continued_while_texts_are_written_are_those_of_few_texts_at_a_time(
    vllm_python: str, tmp_path: Path
) -> None:
    (tmp_path / "p.txt").write_text("".join(f"{PROMPTS[i % len(PROMPTS)]} {i}\n" for i in range(100)), encoding="utf-8")
    command = [vllm_python, "-m", "antislop", "dataset", "p.txt", "--n", "4", "--seed", "1"]
    command += ["--engine", "vllm", "--max-new-tokens", "40", "--max-model-len", "256"]
    made: list[list[list[str]]] = []
    for size in ("16", "2"):
        files = [f"{size}.jsonl", f"pairs-{size}.jsonl"]
        subprocess.run(
            [*command, "-o", files[0], "--pairs", files[1], "--batch-size", size],
            cwd=tmp_path,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
            check=True,
        )
        made.append([sorted((tmp_path / name).read_text(encoding="utf-8").splitlines()) for name in files])
    records, pairs = ([json.loads(line) for line in lines] for lines in made[0])
    assert len(records) == 400
    assert {record["key"] for record in records} >= {pair["key"] for pair in pairs}
    assert len(pairs) > 100
    assert made[0][1] == made[1][1]


@pytest.mark.parametrize("options", [(), ("--workers", "1")])
def test_a_data_set_is_made_inside_vllm_and_resumed(options: tuple[str, ...], vllm_python: str, tmp_path: Path) -> None:
    if options and not has_ray(vllm_python):
        pytest.skip("Ray is not installed beside vLLM: pip install 'ray[data]'")
    prompts = [{"id": str(number), "prompt": prompt} for number, prompt in enumerate((*PROMPTS, ""))]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    (tmp_path / "list.txt").write_text("was\nher eyes\nand\tweight=0.5\n", encoding="utf-8")
    command = [vllm_python, "-m", "antislop", "dataset", "p.jsonl", "-o", "out.jsonl", "--bans", "list.txt", "--n", "3"]
    command += [
        "--engine",
        "vllm",
        "--max-new-tokens",
        "60",
        "--pairs",
        "pairs.jsonl",
        "--max-model-len",
        "256",
        *options,
    ]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    outputs = [
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert [output.returncode for output in outputs] == [1, 1], "the empty prompt has no text"
    assert "resuming: 9 records exist already" in outputs[1].stderr
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    written = [record for record in records if record["status"] != "error"]
    assert len(written) == 9 and len(records) >= 12
    for record in written:
        assert bool(BanList(["was", "her eyes"]).find(record["response"])) == (record["status"] == "conceded")
    assert sum(record["violations"].get("was", 0) for record in written) > 0
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert pairs and all(pair["ban"] in ("was", "her eyes", "and") for pair in pairs)
