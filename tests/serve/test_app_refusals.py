"""Whatever a client sends: an answer or one sentence, never an internal error."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import example, given, strategies as st
from openai.types import chat, completion_create_params
from transformers import PreTrainedTokenizerBase

import antislop
from antislop.serve.application import make_app
from antislop.serve.bodies.fields import ChatBody, CompletionBody, GenerationBody, read_body
from antislop.serve.bodies.foreign_fields import ALIASES, MAX_FIELDS, ORDERS, REFUSED
from antislop.serve.request_errors import RequestError
from tests.support.backends import SlowBackend, play_tokens, send

JSON_HEADERS = {"Content-Type": "application/json"}
ROUTES = ["/v1/completions", "/v1/chat/completions"]
FIELDS = sorted({*ALIASES, *REFUSED, *ORDERS, "top_a", "zzz", *CompletionBody.model_fields, *ChatBody.model_fields})


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded = antislop.tiny_model()[1]
    loaded.chat_template = (
        "{% for m in messages %}{% if m.content == 'fail' %}{{ raise_exception('not this') }}{% endif %}{{ m.content }}"
        "{% endfor %}"
    )
    return loaded


@pytest.fixture(scope="module")
def backend(tokenizer: PreTrainedTokenizerBase) -> SlowBackend:
    return SlowBackend(tokenizer, lambda request: play_tokens([60, 61, 62][: request.max_new_tokens]), bans=["a cat"])


@pytest.fixture(scope="module")
def app(backend: SlowBackend) -> FastAPI:
    return make_app(backend)


def post(app: FastAPI, body: Any, path: str = "/v1/completions") -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(app, path=path, content=data, headers=JSON_HEADERS)


def expect_no_fault(answer: httpx.Response) -> None:
    assert 200 <= answer.status_code < 500
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and "\n" not in error["message"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(2**70) | st.just(-(2**63)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.fixed_dictionaries({"id": VALUES, "function": st.fixed_dictionaries({"name": VALUES, "arguments": VALUES})})
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "tool", "assistant"]), "content": VALUES},
        optional={"tool_calls": VALUES | CALLS, "reasoning_content": VALUES, "tool_call_id": VALUES},
    ),
    max_size=2,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)
USUAL = st.fixed_dictionaries({"prompt": st.just("a") | VALUES, "messages": MESSAGES})


@given(BODIES, USUAL, st.sampled_from(ROUTES))
def test_a_body_of_any_values_is_answered_or_refused(
    app: FastAPI, body: dict[str, Any], usual: dict[str, Any], path: str
) -> None:
    name = "messages" if path == "/v1/chat/completions" else "prompt"
    expect_no_fault(post(app, {name: usual[name], **body}, path))


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), st.sampled_from(ROUTES))
@example(b"[" * 200_000, "/v1/completions")
@example(b'{"prompt": ' + b"[" * 200_000, "/v1/completions")
@example(b'{"prompt": "\\ud800"}', "/v1/completions")
@example(b'{"prompt": "\xff"}', "/v1/completions")
@example(b'{"prompt": "a", "temperature": NaN}', "/v1/completions")
@example(b'{"prompt": "a", "temperature": 1e999}', "/v1/completions")
@example(b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "/v1/completions")
@example(b'\xef\xbb\xbf{"prompt": "a"}', "/v1/completions")
@example(b"null", "/v1/chat/completions")
def test_bytes_that_are_no_body_are_refused(app: FastAPI, data: bytes, path: str) -> None:
    answer = post(app, data, path)
    expect_no_fault(answer)
    assert answer.status_code >= 400


@pytest.mark.parametrize("text", ["x" * 10**5, "a " * 600])
def test_no_more_than_one_of_several_long_prompts_is_encoded(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Encoding takes a second per MB, while the prompts of others wait."""
    encoded, encode = list[str](), app.state.service.encode

    async def note(text: str, **options: Any) -> Any:
        encoded.append(text)
        return await encode(text, **options)

    monkeypatch.setattr(app.state.service, "encode", note)
    answer = post(app, {"prompt": [text] * 5})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert len(encoded) == (text == "a " * 600)
    chat = post(app, {"messages": [{"role": "user", "content": text}]}, "/v1/chat/completions")
    assert chat.json()["error"]["code"] == "context_length_exceeded"


@given(st.text("abc/%?#._-é", max_size=20), st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS"]))
def test_any_path_is_answered_or_refused(app: FastAPI, path: str, method: str) -> None:
    answer = send(app, method, "http://server/" + path)
    assert 200 <= answer.status_code < 500


def too_many(count: int) -> list[str]:
    return [f"phrase {number}" for number in range(count)]


UNREADABLE: list[tuple[Any, str]] = [
    (None, "messages is None; a list of 1 to 10,000 messages was expected"),
    ([], "messages is []"),
    ("hi", "messages is 'hi'"),
    ([{"role": "function", "content": "x"}], "messages.0.role is 'function'; one of system, developer, user"),
    ([{"role": "tool"}], "messages.0.content is None; a text was expected"),
    ([{"role": "tool", "content": "x", "tool_call_id": 5}], "messages.0.tool_call_id is 5; a text was expected"),
    ([{"role": "user"}], "messages.0.content is None; a text was expected"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "only parts of type text are read"),
    ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages.0 has 'tool_calls', which is not supported"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages.0.tool_calls.0 is {}; a call of a function was expected"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages.0.tool_calls is 'x'; a list was expected"),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
        "messages.0.tool_calls.0.function.arguments is [1]; a JSON object was expected",
    ),
    ([{"role": "assistant", "content": "x", "reasoning_content": 5}], "messages.0.reasoning_content is 5"),
    ([{"role": "user", "content": ""}], "the messages have no tokens"),
    ([{"role": "user", "content": "fail"}], "the model's chat template refuses these messages (not this)"),
]
"""Messages, and the sentence that refuses them."""
REFUSED_OF_ROUTES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "/v1/completions": [
        ({"banned_strings": too_many(10_001)}, "10,001 bans and exempt phrases are too many"),
        ({"banned_strings": ["x" * 257]}, "257 characters in one phrase are too many for a request: at most 256"),
        ({"banned_regex": ["x"] * 101}, "101 regexes are too many for a request: at most 100"),
        ({"banned_regex": [f"(?:x{n}){{900}}" for n in range(70)]}, "with their repetitions written out, are too many"),
        ({"banned_regex": ["("]}, "does not compile"),
        ({"loops": "yes"}, "loops"),
        ({"repeats": 8}, "repeats"),
        ({"banned_strings": [""]}, "contains no visible character"),
        ({"ban_weights": {"delve": 0.5}}, "'delve', which is in no list"),
        ({"ban_weights": {"a cat": 2}}, "ban_weights.a cat is 2"),
        ({"ban_method": "magic"}, "ban_method is 'magic'"),
        ({"on_exhausted": "raise"}, "on_exhausted is 'raise': Input should be 'concede' or 'stop'"),
        ({"max_rewinds": 1001}, "max_rewinds is 1001: Input should be less than or equal to 1000"),
        ({"max_rewinds": -1}, "max_rewinds is -1: Input should be greater than or equal to 0"),
        ({"max_tokens": 600}, "the prompt has 2 tokens and 600 new ones, but the model's context has 512 in all"),
        ({"prompt": "a " * 600}, "context has 512 in all: send a shorter prompt"),
        ({"prompt": "a " * 10**5}, "the prompt has 200,000 characters, but"),
        ({"prompt": [5, 10**6]}, "the prompt contains the id 1000000"),
        ({"prompt": ["a", 5]}, "a list of either was expected"),
        ({"prompt": []}, "a text, a list of ids"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": 1e-9}, "pass 0 for the likeliest token"),
        ({"n": 129}, "n is 129"),
        ({"prompt": ["a", "b"], "n": 100}, "more than 128 texts"),
        ({"max_tokens": 0}, "max_tokens is 0, and the answer would be empty: pass echo: true"),
        ({"logit_bias": {"4096": 1}}, "logit_bias has the id 4096; the model has 4,096 tokens"),
        (
            {"logit_bias": {"five": 1}},
            "logit_bias is {'five': 1}, which is not a bias for each of some token ids; write {\"5\": -10}",
        ),
        ({"logit_bias": {"-5": 1}}, "is not a bias for each of some token ids"),
        ({"logit_bias": {"5": 1, "05": 2}}, "is not a bias for each of some token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5 is 101: Input should be less than or equal to 100"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "Dictionary should have at most 1024 items"),
        ({"best_of": 2}, "best_of is 2, but is not supported"),
        ({"tools": [{}]}, "tools can't be followed: send it to /v1/chat/completions"),
        ({"grammar": "root ::= [a-z]+"}, "grammar can't be followed: the text would not keep to it, so leave it out;"),
        ({"suffix": "b"}, "suffix can't be followed: the model would not read it, so leave it out, or write it into"),
        ({"functions": [{}]}, "functions can't be followed: send them as tools to /v1/chat/completions"),
        ({"extra_body": {"bans": ["a"]}}, "extra_body can't be followed: write its fields beside the others"),
        ({f"x{number}": 0 for number in range(MAX_FIELDS)}, "the body has 257 fields; at most 256 are allowed"),
        ({"tempreature": 1}, "the field 'tempreature' is unknown: did you mean temperature?"),
        ({"ban_opening": "word"}, "ban_opening is of banned_strings and banned_regex, which are empty"),
        ({"banned_string": ["a"]}, "the field 'banned_string' is unknown: did you mean banned_strings?"),
        ({"stop_sequences": ["a"]}, "the field 'stop_sequences' is unknown: did you mean stop?"),
        ({"bans": ["a"]}, "bans can't be followed: pass phrases as banned_strings, regexes as banned_regex, and ids"),
        ({"model": "gpt"}, "the model 'gpt' is not served here: pass 'tiny'"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "mean the same and differ"),
        ({"messages": [{}]}, "messages can't be followed: send it to /v1/chat/completions"),
        ({"banned_strings": "delve"}, "banned_strings is 'delve', which is a text; write a list, [\"…\"]"),
        ({"banned_tokens": ["a", 5]}, "banned_tokens.1 is 5: Input should be a valid string"),
        ({"stream_options": {"include": True}}, "stream_options.include is unknown: leave it out"),
        ({"ban_weights": ["a"]}, "ban_weights is ['a']: an object was expected"),
    ],
    "/v1/chat/completions": [
        *(({"messages": messages}, sentence) for messages, sentence in UNREADABLE),
        ({"prompt": "a"}, "prompt can't be followed: send it to /v1/completions"),
        ({"tools": [{"name": "x"}]}, "tools.0.type is missing: send it"),
    ],
    "/v1/token/encode": [
        ({}, "POST /v1/token/encode: not found; send texts to /v1/completions or /v1/chat/completions")
    ],
    "/completions": [({}, "POST /completions: not found; send texts to /v1/completions or /v1/chat/completions")],
    "/v1/models": [({}, "POST /v1/models: method not allowed; send what its header Allow names")],
}


@pytest.mark.parametrize(
    ("path", "more", "sentence"), [(path, *row) for path, rows in REFUSED_OF_ROUTES.items() for row in rows]
)
def test_what_can_not_be_done_is_refused_with_a_sentence(
    app: FastAPI, path: str, more: dict[str, Any], sentence: str
) -> None:
    needed = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": [], "max_tokens": 1}}
    answer = post(app, {**needed.get(path, {}), **more}, path)
    expect_no_fault(answer)
    assert answer.status_code in (400, 404, 405)
    assert sentence in answer.json()["error"]["message"]


@pytest.mark.parametrize("depth", [50, 300, 900, 980, 990, 995, 2000])
def test_deep_values_are_refused_at_any_depth(app: FastAPI, depth: int) -> None:
    value = b"[" * depth + b"]" * depth
    for name in (b"prompt", b"stop", b"logit_bias", b"banned_strings", b"grammar"):
        answer = post(
            app,
            b'{"prompt": "a", "' + name + b'": ' + value + b"}" if name != b"prompt" else b'{"prompt": ' + value + b"}",
        )
        expect_no_fault(answer)
        assert answer.status_code == 400


def test_a_model_without_a_chat_template_says_so() -> None:
    plain = SlowBackend(antislop.tiny_model()[1], lambda request: play_tokens([60]))
    answer = post(make_app(plain), {"messages": [{"role": "user", "content": "a"}]}, "/v1/chat/completions")
    assert (answer.status_code, "has no chat template" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (json.dumps({"prompt": "a" * 2**20}), "application/json", 413),
        ('{"prompt": "a"}', "text/plain", 415),  # which a page of another site can send without being asked
    ],
)
def test_bodies_above_a_mebibyte_and_of_other_types_are_refused(
    app: FastAPI, body: str, kind: str, status: int
) -> None:
    assert send(app, content=body, headers={"Content-Type": kind}).status_code == status


def test_a_null_is_a_field_that_was_left_out(app: FastAPI) -> None:
    body = {name: None for name in FIELDS if name not in ("prompt", "messages", "top_logprobs", "model_fields")}
    assert post(app, {"prompt": "a", **body}).status_code == 200


OPENAI_ROUTES = {
    "/v1/completions": completion_create_params.CompletionCreateParamsStreaming,
    "/v1/chat/completions": chat.completion_create_params.CompletionCreateParamsStreaming,
}
USER = [{"role": "user", "content": "a"}]
NOTHING: dict[str, list[Any]] = {
    "audio": [{"voice": "ash", "format": "wav"}],  # of answers in sound, which `modalities` asks for
    "best_of": [1],
    "echo": [False],
    "frequency_penalty": [0, 0.0],
    "function_call": ["none", "auto"],
    "functions": [[]],
    "logit_bias": [{}],
    "logprobs": [False],
    "max_completion_tokens": [9],
    "max_tokens": [9],
    "metadata": [{}, {"chat": "5"}],
    "modalities": [["text"], []],
    "model": ["tiny", ""],
    "moderation": [],
    "n": [1],
    "parallel_tool_calls": [True, False],
    "prediction": [{"type": "content", "content": "a guess, which may speed up an answer"}],
    "presence_penalty": [0, 0.0],
    "prompt_cache_key": ["key"],
    "prompt_cache_options": [{}],
    "prompt_cache_retention": ["24h"],
    "reasoning_effort": ["none"],
    "response_format": [{"type": "text"}, {"type": "text", "json_schema": None}],
    "safety_identifier": ["name"],
    "seed": [1],
    "service_tier": ["auto", "default"],
    "stop": [[], "", [""]],
    "store": [False],
    "stream": [False],
    "stream_options": [{}, {"include_usage": None}, {"include_usage": True}],
    "suffix": [""],
    "temperature": [1, 1.0],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
    "top_logprobs": [0],
    "top_p": [1, 1.0],
    "user": ["", "name"],
    "verbosity": ["medium"],
    "web_search_options": [],
}
"""Each field of OpenAI's routes, with values that ask for nothing beyond `{"max_tokens": 9, "seed": 1}`."""


@pytest.mark.parametrize("route", OPENAI_ROUTES)
def test_each_field_of_openai_may_be_sent_with_a_value_that_asks_for_nothing(
    app: FastAPI, backend: SlowBackend, route: str
) -> None:
    given = {"prompt": "a"} if route == "/v1/completions" else {"messages": USER}
    needed = {**given, "max_tokens": 9, "seed": 1}
    assert post(app, needed, route).status_code == 200
    plain = backend.written[-1]
    fields = OPENAI_ROUTES[route].__annotations__.keys() - given.keys()
    assert fields <= NOTHING.keys(), "a new field: is it honored, harmless, or refused?"
    for field in fields:
        for value in [None, *NOTHING[field]]:
            answer = post(app, {**needed, field: needed.get(field) if value is None else value}, route)
            assert answer.status_code == 200, (field, value)
            assert answer.headers.get("X-Antislop-Ignored-Fields", field) == field, (field, value)
            assert backend.written[-1] == plain, (field, value)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"store": True, "service_tier": "priority", "user": "me"}, "service_tier, store, user"),
        (
            {"modalities": ["text", "audio"], "audio": {"voice": "ash"}, "verbosity": "low"},
            "audio, modalities, verbosity",
        ),
        ({"web_search_options": {}, "function_call": {"name": "f"}}, "function_call, web_search_options"),
        (
            {"top_a": 0.2, "min_tokens": 5, "mirostat": 2, "smoothing_factor": 0.1},
            "min_tokens, mirostat, smoothing_factor, top_a",
        ),
        ({"zzz": 1, "x\r\ny": 1, "é" * 60: 1, "~ ": 1}, ("\\xe9" * 60)[:60] + ", x\\r\\ny, zzz, ~"),
        ({" ": 1}, ""),
        (
            {f"x{number:03}": 1 for number in range(99)},
            ", ".join([*(f"x{number:03}" for number in range(64)), "and 35 more"]),
        ),
        ({"top_a": 0, "grammar": "", "json_schema": {}, "suffix": "", "images": [], "ban_eos_token": False}, None),
    ],
)
def test_a_field_that_is_not_known_is_named_in_a_header_unless_it_is_off(
    app: FastAPI, backend: SlowBackend, more: dict[str, Any], named: str | None
) -> None:
    assert post(app, {"prompt": "a", "seed": 1}).status_code == 200
    plain = backend.written[-1]
    answer = post(app, {"prompt": "a", "seed": 1, **more})
    assert (answer.status_code, answer.headers.get("X-Antislop-Ignored-Fields")) == (200, named)
    assert backend.written[-1] == plain


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"banned_strings": ["a cat", "a * of", "b*"]}, "'a * of'"),
        ({"banned_tokens": ["b\n*é"]}, r"'b\n*\xe9'"),
        ({"banned_strings": ["x" * 70 + "*"]}, f"'{'x' * 60}'"),
        ({"banned_strings": ["***", "a cat"], "banned_regex": ["a .*b"], "banned_tokens": [5]}, None),
    ],
)
def test_a_star_that_would_be_a_wildcard_in_a_list_is_named_in_a_header(
    app: FastAPI, more: dict[str, Any], named: str | None
) -> None:
    for is_streamed in (False, True):
        warning = post(app, {"prompt": "a", "stream": is_streamed, **more}).headers.get("X-Antislop-Warning")
        advice = "for a wildcard, send a regex in banned_regex, or write the phrase into a list of the server"
        assert warning == (named and f"the * in {named} is the character * and no wildcard: {advice}")


def test_no_field_is_of_two_kinds() -> None:
    kinds = [set(kind) for kind in (ALIASES, REFUSED, ORDERS, GenerationBody.model_fields)]
    assert len(set().union(*kinds)) == sum(map(len, kinds))


RULES_OF_OTHERS = {
    "banned_strings": (
        "bad_words_ids suppress_tokens begin_suppress_tokens"  # transformers
        " bad_words use_default_badwordsids"  # vLLM, KoboldCpp
        " banned_phrases phrase_bans banned_words forbiddenWords exclude_strings avoid_phrases word_blacklist blocklist"
        " disallowed_token_ids negative_tokens unwanted-words"
    ),
    "stop": "stop_token_ids stop_regex stop_words stopwords stopSequences stop_strings stopping_tokens",
    "logit_bias": "ignore_eos ban_eos_token sequence_bias logit_bias_exp token_bias",  # vLLM, textgen, NovelAI
    "response_format": (
        "allowed_token_ids force_words_ids forced_eos_token_id constraints"  # vLLM, transformers
        " regex ebnf structural_tag guided_json_object json_schema grammar format"  # SGLang, vLLM, llama.cpp, Ollama
    ),
    "continue_final_message": "continue_ prefix continue_assistant_turn",  # textgen, Mistral
    "beside the others": "vllm_xargs generation_config options",  # vLLM, transformers serve, Ollama
    "code": "logits_processors custom_logit_processor",  # vLLM, SGLang
}
"""What to send instead of fields of other servers. Where a server is named, its source has them."""

HARMLESS_OF_OTHERS = (
    "adaptive_target allow_fallbacks block_size cache_prompt character dynatemp_range early_stopping exclude_domains "
    "generate_window grammar_retain_state guidance_scale guided_decoding_backend include_stop_str_in_output keep_alive "
    "metadata min_tokens no_stop_trim num_ctx penalty_range preserved_tokens priority prompt_token_ids provider "
    "reasoning_format repeat_last_n return_token_ids safety_identifier session_id skip_special_tokens smoothing_curve "
    "spaces_between_special_tokens speculative_ngram stream_reasoning tfs token_healing trim_stop truncation_length"
)
"""Fields of vLLM, SGLang, llama.cpp, KoboldCpp, TabbyAPI, textgen, Ollama and OpenRouter without rules for the text."""


def test_fields_of_other_servers_that_carry_bans_or_rules_are_refused_by_the_name_of_ours() -> None:
    for ours, names in RULES_OF_OTHERS.items():
        for name in names.split():
            for kind in (CompletionBody, ChatBody):
                assert read_body(kind, {name: False})[1] == []
                with pytest.raises(RequestError) as caught:
                    read_body(kind, {name: ["a"]})
                assert caught.value.param == name and ours in str(caught.value), name
    for kind in (CompletionBody, ChatBody):
        assert read_body(kind, dict.fromkeys(HARMLESS_OF_OTHERS.split(), 5))[1] == HARMLESS_OF_OTHERS.split()


def test_the_mode_of_textgen_that_is_ours_is_accepted_and_no_other() -> None:
    assert read_body(ChatBody, {"mode": "instruct"})[1] == []
    with pytest.raises(RequestError, match=r"send .instruct., or leave it out"):
        read_body(ChatBody, {"mode": "chat-instruct"})


def test_no_field_that_clients_send_is_taken_for_a_slip() -> None:
    """Each is near a field of ours, and means something else."""
    others = ["dynamic_temperature", "min_new_tokens", "max_tokens_second", "n_keep", "repetition_penalty_range"]
    for kind in (CompletionBody, ChatBody):
        assert read_body(kind, dict.fromkeys(others, 5))[1] == others


def bans_of(backend: SlowBackend) -> dict[str, float]:
    return {ban.text: ban.weight for ban in backend.written[-1].bans.bans}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"a cat": 0}),
        ({"use_global_bans": False}, {}),
        ({"banned_strings": '["delve"]'}, {"a cat": 0, "delve": 0}),
        ({"banned_tokens": ["delve"], "use_global_bans": False}, {"delve": 0}),
        (
            {"loops": True, "repeats": True, "use_global_bans": False},
            {"a passage 3 times in a row": 0, "8 words of the text again": 0},
        ),
        ({"banned_tokens": [7], "use_global_bans": False}, {"7": 0}),
        ({"custom_token_bans": "7, 9", "use_global_bans": False}, {"7": 0, "9": 0}),
        ({"banned_regex": ["x+y"], "ban_weights": {"A Cat": 0.5}}, {"a cat": 0.5, "x+y": 0}),
    ],
)
def test_bans_of_a_body_join_those_of_the_server(
    app: FastAPI, backend: SlowBackend, more: dict[str, Any], expected: dict[str, float]
) -> None:
    assert post(app, {"prompt": "a", **more}).status_code == 200
    assert bans_of(backend) == expected


def test_exempt_phrases_are_exempt_of_all_bans(app: FastAPI, backend: SlowBackend) -> None:
    assert post(app, {"prompt": "a", "exempt": ["a cat's eye"], "banned_strings": ["eye"]}).status_code == 200
    assert {ban.exempt for ban in backend.written[-1].bans.bans} == {("a cat's eye",)}
