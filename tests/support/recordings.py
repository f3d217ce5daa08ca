"""What seeded calls of every door return, to compare two states of the code: python -m tests.support.recordings > FILE.

One JSON line a call: its name, then tokens, reports, events, hashes of pages, answers or errors, nothing of which
depends on the process or on time. A change that keeps behavior leaves all lines equal, with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import torch

import antislop.serve
from antislop import AntiSlop, Ban, BanList, loops, tiny_model
from antislop.core.bans.token_matcher import Matcher
from antislop.engines import EndpointSampler
from antislop.engines.vllm.requests import EngineSettings, check_request
from antislop.steer import BestOf, Grammar, Regenerate, Replace
from tests.support.ban_cases import CASES, anywhere
from tests.support.drawing_engine import draw_text
from tests.support.endings import CASES as ENDINGS
from tests.support.models import FAMILIES, build_model, build_tokenizer
from tests.support.streaming import KINDS, make_engine, serve_streams
from tests.support.toys import Markov, run

MODEL, TOKENIZER = tiny_model()
TOKENIZER.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
BANS: list[Any] = ["the", "was", Ban("her", weight=0.3), Ban.regex(r"in(to)? \w+")]
OF_LETTERS = ["ab", anywhere("e", 0.3), "d a"]
FOUR = ["The old house", "She opened the door and", "One day", "The rain"]
COMPLETION = {"prompt": FOUR[0], "max_tokens": 20, "seed": 3}
CHAT = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 20, "seed": 3}
DRAWN = ("method", "rewind", "on_exhausted", "exempt_prompt", "banned_strings", "banned_regex", "exempt")
"""Arguments of a sampler; the others are those of its `generate`."""
# fmt: off
CALLS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "pages": True}, "choices": {"record": "top", "pages": True},
    "cut": {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    "loops": {"bans": loops(), "max_new_tokens": 99},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "bad_words_ids": [[300]], "typical_p": 0.9},
    "rows": {"inputs": FOUR}, "greedy rows": {"inputs": FOUR, "do_sample": False}, "three": {"num_return_sequences": 3},
    "lists": {"banned_strings": ["e a", "th*"], "banned_regex": ["[aeiou]{2}n"], "exempt": ["then"]},
    **{name: {"method": name, "max_new_tokens": 12, "bans": ["was", "into"]} for name in ("token", "text")},
    **{name: {"rewind": name} for name in ("word", "span", "sentence")},
    "prompt": {"bans": ["house was"], "exempt_prompt": True},
    "assistant": {"assistant_model": MODEL, "num_assistant_tokens": 3},
    "stops": {"stop_strings": [".", "and"], "tokenizer": TOKENIZER},
    "lookup": {"prompt_lookup_num_tokens": 3, "inputs": f"{FOUR[0]} was. {FOUR[0]}", "do_sample": False},
    "callbacks": {
        "logits_processor": [lambda ids, scores: scores + (torch.arange(4096) % 7 == ids[:, -1:] % 7)],
        "stopping_criteria": [lambda ids, _, **__: torch.tensor(["," in text for text in TOKENIZER.batch_decode(ids)])],
        "inputs": FOUR[:2],
    },
    **{f"all, {end}": {"bans": [Ban.regex(r"[\s\S]")], "on_exhausted": end} for end in ("concede", "stop", "raise")},
    "forced": {"bans": [Ban("the", then="force", force=" a", tries=1), Ban("was", then="stop", tries=3)]},
    "one": {"max_new_tokens": 1}, "tensors": {"output_scores": True, "output_logits": True}, "beams": {"num_beams": 2},
    "schema": {"controller": Grammar.from_json_schema({"type": "array", "items": {"type": "string"}}, TOKENIZER)},
    "grammar": {"logits_processor": [Grammar.from_lark('start: /[a-z ,]+/ "."', TOKENIZER)], "do_sample": False},
    "replace": {"controller": Replace({"house": "ship", "a": "one"}, TOKENIZER)},
    "regenerate": {"controller": Regenerate(lambda text: len(text) % 3 > 0, TOKENIZER, unit="sentence")},
    "best of": {"controller": BestOf(3, len, TOKENIZER, unit="sentence"), "max_forks": 3},
}
BODIES: list[tuple[str, Any]] = [
    ("models", None), *(("completions", COMPLETION | more) for more in (
        {}, {"stream": True}, {"banned_strings": ["a"], "n": 2, "logprobs": 2},
        {"loops": True, "banned_tokens": ["and"]}, {"custom_token_bans": "5, 6"},
        {"banned_regex": ["("]}, {"banned_regex": ["x"] * 101}, {"loops": "yes"}, {"banned_strings": "delve"},
        {"bans": ["a"]},
        {"banned_strings": [""]}, {"ban_weights": {"delve": 0.5}}, {"ban_weights": {"was": 0.5}}, {"ban_list": "none"},
        {"max_tokens": 600}, {"temperature": "hot"}, {"prompt": []}, {"tempreature": 1}, {"custom_token_bans": "a,b"},
        {"banned_strings": ["a"] * 70_000}, {"ban_scope": "page"}, {"ban_opening": "word"},
    )),
    *(("chat/completions", CHAT | more) for more in (
        {}, {"stream": True, "ban_list": "short"}, {"temperature": 0, "stop": ","}, {"ban_scope": "all"}
    )),
]
CONFIGS: list[Any] = [
    {"bans": ["a cat", {"text": "d.g", "kind": "regex", "weight": 0.5}], "exempt": ["a cat's"]}, '{"loops": true}',
    {"banned_strings": ["a"], "banned_regex": ["b+"], "custom_token_bans": "5, 6"}, {"ban_list": "other"}, "{", [],
    {"ban": []}, {"repeats": 1}, {"ban_scope": "page"}, {"banned_regex": ["("]}, {"bans": ["a"] * 70_000},
    {"bans": [{"text": "a", "then": "force", "force": "b"}]}, {"custom_token_bans": ["x"]}, {"exempt": "a"},
    {"bans": [""]}, {"bans": [5]}, {"bans": "a"}, {"ban_list": "short", "use_global_bans": False},
]
# fmt: on


def hash_of(text: str) -> str:
    return hashlib.sha256(re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.+]+|seconds\W+[\d.e-]+", "", text).encode()).hexdigest()


def describe(report: Any) -> Any:
    events = [re.sub(r"seconds=[\d.e-]+", "", repr(event)) for event in report.events]
    return [{**report.to_dict(), "matcher_seconds": None}, events]


def generate(
    model: Any = MODEL, *, inputs: Any = FOUR[0], tokenizer: Any = TOKENIZER, bans: Any = BANS, **asked: Any
) -> Any:
    options, pages = {name: asked.pop(name) for name in DRAWN if name in asked}, asked.pop("pages", False)
    padded = {"return_tensors": "pt", "padding": True, "padding_side": "left", "return_token_type_ids": False}
    prompts = {"inputs": inputs} if isinstance(inputs, str) else tokenizer(inputs, **padded)
    settings = {"max_new_tokens": 32, "do_sample": True, "return_dict_in_generate": True, **asked}
    torch.manual_seed(5)
    out = AntiSlop(tokenizer, bans, **options).generate(model, **prompts, **settings)
    result = [out.sequences.tolist(), list(map(describe, out.reports)), out.texts]
    with tempfile.TemporaryDirectory() as folder:
        if pages:
            out.trace.save(Path(folder, "trace"))
            result += [hash_of(Path(folder, "trace").read_text()), hash_of(out.trace.to_html()), out.trace.to_text()]
    return result


def write_many(**options: Any) -> Any:
    lists = [None, ["a"], BanList(BANS[:1]), None, None, [Ban("and", weight=0.2)]]
    settings = {"bans": lists, "batch_size": 3, "seed": 3, "max_new_tokens": 20, **options}
    many = AntiSlop(TOKENIZER, BANS).generate_many(MODEL, [*FOUR, "", "A boat"], **settings)
    parts = 2 if options["engine"] == "own" else 1  # the last bits of paged logits depend on time
    texts = ([done.number, done.tokens, describe(done.report)[:parts], repr(done.error)] for done in many)
    return sorted(texts, key=lambda text: text[0])


async def ask_server(app: Any, path: str, body: Any) -> Any:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        answer = await client.request("GET" if body is None else "POST", f"/v1/{path}", json=body)
    if answer.text.startswith("data:"):  # how many tokens an event has depends on time
        pieces = re.findall(r'"(?:text|content)":("(?:[^"\\]|\\.)*")', answer.text)
        return ["".join(map(json.loads, pieces)), re.findall(r'"finish_reason":"\w+"', answer.text), answer.text[-20:]]
    return [answer.status_code, re.sub(r'("(?:id|created|\w*seconds)": ?)("[^"]*"|[\d.e-]+)', r"\1", answer.text)]


def ask_engine(config: Any) -> Any:
    params = {"max_tokens": 16, "logprobs": None, "detokenize": True, "temperature": 1.0, "structured_outputs": None}
    params |= {"extra_args": {"antislop": config}, "logprob_token_ids": None}
    asked = check_request(SimpleNamespace(**params), settings=EngineSettings(bans=["a"], lists={"short": ["b"]}))
    return [repr(list(asked.bans)), asked.ban_list, asked.use_global_bans, asked.ban_scope]


def draw_from_engine(name: str, options: Any) -> Any:
    words, bans = CASES[name]
    model, matcher = Markov(len(words), seed=2, length=8), Matcher(bans, words)
    texts = [draw_text(model, matcher, Random(seed), **options) for seed in range(9)]
    return [[text.row.tokens, list(map(repr, text.outcomes)), text.thinned, text.report.rewinds] for text in texts]


def ask_endpoint(kind: Any, method: Any, settings: Any) -> Any:
    asked = {"seed": 3, "batch_size": 1, "max_new_tokens": 30, **settings}
    with serve_streams(make_engine(kind)) as server:
        sampler = EndpointSampler(AntiSlop(build_tokenizer(), OF_LETTERS), server.endpoint, method=method)
        texts = list(sampler.generate_many(["a b", "cab d"], **asked))
    return [[text.text, text.tokens, describe(text.report), repr(text.error), repr(text.traffic)] for text in texts]


def run_toy(name: str, options: Any) -> Any:
    torch.manual_seed(7)
    words, bans = (CASES | ENDINGS)[name]
    texts = [run(Markov(len(words), seed=seed, length=9), words, bans, **options) for seed in range(6)]
    return [[tokens, describe(report)] for tokens, report in texts]


def list_calls() -> Iterator[tuple[str, Any]]:
    """Yield names, and what returns the value to write."""
    yield from ((name, partial(generate, **asked)) for name, asked in CALLS.items())
    letters = {"tokenizer": build_tokenizer(), "bans": OF_LETTERS, "inputs": ["ab c", "d"]}
    yield from ((family, partial(generate, build_model(family), **letters)) for family in FAMILIES)
    yield from ((f"many, {engine}", partial(write_many, engine=engine)) for engine in ("own", "paged"))
    options = ({}, {"do_sample": False}, {"method": "text"}, {"max_rewinds": 1, "on_exhausted": "stop"})
    toys = product(CASES | ENDINGS, options)
    yield from ((f"toy {name} {more}", partial(run_toy, name, more)) for name, more in toys if "force" not in name)
    app = antislop.serve.app(MODEL, TOKENIZER, bans=BANS, batch_size=2, name="tiny", lists={"short": ["a"]})
    work = asyncio.new_event_loop().run_until_complete
    for number, (path, body) in enumerate(BODIES):
        yield f"server {number}", lambda path=path, body=body: work(ask_server(app, path, body))
    yield from ((f"engine {number}", partial(ask_engine, config)) for number, config in enumerate(CONFIGS))
    for name, more in product(CASES, ({}, {"tells": False}, {"do_sample": False}, {"always": True})):
        yield f"engine draws {name} {more}", partial(draw_from_engine, name, more)
    for asked in product(KINDS, ("reject", "thin", "bias", "auto"), ({}, {"top_p": 0.9}, {"do_sample": False})):
        yield f"endpoint {asked}", partial(ask_endpoint, *asked)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, call in list_calls():
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - the sentence is what is recorded
            value = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps([name, value]) + "\n")
