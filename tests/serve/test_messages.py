"""Chats with thoughts and tools: an answer is the message that transformers reads of it, in any pieces."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_parsing import parse_response

import antislop
import antislop.serve
from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.hf.compiled_bans import CompiledBans, ResponseTemplate, find_response_template
from antislop.core.hf.many import InFlight
from antislop.core.hf.private import response_template_for
from antislop.core.trace.events import Rewound
from antislop.engines.endpoint.endpoint import Endpoint
from antislop.errors import InputError
from antislop.files.chats import render_chat
from antislop.serve.answer_messages import MessageDelta, MessageParser, write_grammar
from antislop.serve.application import make_app
from antislop.serve.backend import GenerationRequest
from antislop.serve.local import LocalBackend, RequestPreparer
from tests.support.backends import SlowBackend, play_tokens, run_server
from tests.support.depth import DEPTH
from tests.support.simulated_engine import SimulatedEngine
from tests.support.streaming import serve_streams

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CALLS = [("weather", {"city": "Köln <b>", "days": 3}), ("now", {})]
CHANNELS: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+)<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {
            "open": "<|channel|>final<|message|>",
            "close_pattern": r"<\|end\|>|<\|return\|>",
            "content": "text",
        },
    },
}
"""As gpt-oss writes."""


def write_qwen(name: str, arguments: dict[str, Any]) -> str:
    return f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def write_xml(name: str, arguments: dict[str, Any]) -> str:
    parts = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"\n<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


def write_gemma(name: str, arguments: dict[str, Any]) -> str:
    parts = ",".join(f'{key}:<|"|>{v}<|"|>' if isinstance(v, str) else f"{key}:{v}" for key, v in arguments.items())
    return f"<|tool_call>call:{name}{{{parts}}}<tool_call|>"


def write_channel(name: str, arguments: dict[str, Any]) -> str:
    return f"<|channel|>commentary to=functions.{name}<|message|>{json.dumps(arguments)}<|call|>"


class Dialect:
    """How a family writes: its response template, the end of a prompt, thoughts, content and calls."""

    def __init__(self, template: dict[str, Any] | None, prompt: str, parts: tuple[str, str, str], call: Any) -> None:
        assert template is not None
        self.template, self.prompt, self.call = template, prompt, call
        self.thoughts, self.content, self.end = parts

    def write(self, *, thoughts: str = "", content: str = "", calls: Any = ()) -> str:
        written = self.thoughts.format(thoughts) if thoughts or not self.thoughts.startswith("<") else ""
        written += self.content.format(content) if content else ""
        return written + "".join(self.call(*call) for call in calls) + self.end


DIALECTS = {
    "qwen3": Dialect(
        response_template_for("qwen3"),
        "<|im_start|>assistant\n",
        ("<think>\n{}\n</think>\n\n", "{}", "<|im_end|>"),
        write_qwen,
    ),
    "qwen3_5": Dialect(
        response_template_for("qwen3_5"),
        "<|im_start|>assistant\n<think>\n",
        ("{}\n</think>\n\n", "{}", "<|im_end|>\n<|endoftext|>"),
        write_xml,
    ),
    "gemma4": Dialect(
        response_template_for("gemma4"),
        "<|turn>model\n",
        ("<|channel>thought\n{}<channel|>", "{}", "<turn|>"),
        write_gemma,
    ),
    "gpt_oss": Dialect(
        CHANNELS,
        "<|start|>assistant",
        ("<|channel|>analysis<|message|>{}<|end|>", "<|channel|>final<|message|>{}<|end|>", ""),
        write_channel,
    ),
}
DELIMITERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|turn>", "<tool_call|>", "\n", " "]
NAMES = sorted(
    {
        "<|start|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|turn>",
        "<turn|>",
        "<|channel|>",
        "<|message|>",
        "<|call|>",
        "<|end|>",
    }
)


def parse(dialect: Dialect, text: str, size: int, *, prompt: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the message of a text that comes in pieces, as plain data without ids."""
    tools = options.pop("tools", TOOLS)
    prompt = dialect.prompt if prompt is None else prompt
    parser = MessageParser(ResponseTemplate(dialect.template), prompt=prompt, tools=tools)
    whole = MessageDelta()
    for start in range(0, len(text), size):
        whole += parser.feed(text[start : start + size])
    whole += parser.end(is_cut=options.pop("is_cut", False))
    message = whole.to_dict()
    return message | {
        name: [{key: value for key, value in call.items() if key != "id"} for call in calls]
        for name, calls in message.items()
        if name == "tool_calls"
    }


def read_whole(dialect: Dialect, text: str) -> dict[str, Any]:
    """Return what transformers reads, as OpenAI writes it."""
    message = parse_response(text, dialect.template, prefix=dialect.prompt, tools=TOOLS)
    message.pop("role")
    if "thinking" in message:
        message["reasoning_content"] = message.pop("thinking")
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"].get("arguments", {}))
    return message


MESSAGES: list[dict[str, Any]] = [
    {"content": "Hello."},
    {"thoughts": "Hm, a < b.", "content": "Two\n\nparagraphs, and <b>bold</b> </thin>."},
    {"thoughts": "Hm.", "calls": CALLS},
    {"thoughts": "  Hm.\n", "content": "\nLet me look. ", "calls": CALLS[:1]},
    {"calls": [*CALLS, *CALLS]},
]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_message_in_pieces_is_that_which_transformers_reads_whole(dialect: Dialect, message: dict[str, Any]) -> None:
    text = dialect.write(**message)
    expected = read_whole(dialect, text)
    for size in (1, 2, 5, len(text)):
        assert parse(dialect, text, size) == expected
    assert set(expected) == {
        name
        for name, key in (("reasoning_content", "thoughts"), ("content", "content"), ("tool_calls", "calls"))
        if key in message
    }


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_any_text_is_read_the_same_in_any_pieces_and_nothing_is_lost(dialect: Dialect) -> None:
    rng = random.Random(5)
    pieces = [
        *DELIMITERS,
        dialect.thoughts.format("t"),
        dialect.call("now", {}),
        dialect.call("now", {})[:-9],
        "word",
        "{",
        " " * 40,
        "\n" * 90,
    ]
    for _ in range(40 * DEPTH):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(12)))
        text += f"w{rng.randrange(10**9)}" * rng.randrange(2)
        is_cut = rng.random() < 0.5
        messages = [parse(dialect, text, size, is_cut=is_cut) for size in (1, 3, len(text) or 1)]
        assert messages[0] == messages[1] == messages[2], text
        assert dialect is DIALECTS["gpt_oss"] or str(messages[0]).count("word") == text.count("word"), text


@pytest.mark.parametrize("name", ["qwen3", "gemma4", "gpt_oss"])
@pytest.mark.parametrize("broken", ["{", "[1]", '{"name": NaN}', '"x"', "NaN", "[" * 100_000, ""])
def test_a_call_that_can_not_be_read_is_content(name: str, broken: str) -> None:
    dialect = DIALECTS[name]
    good = dialect.call("now", {})
    start, end = good.split(json.dumps({"name": "now", "arguments": {}})) if name == "qwen3" else good.split("{}")
    text = dialect.write(content="Look: ") + start + broken + end + good
    for size in (7, len(text)) if len(broken) < 100 else (len(text),):
        message = parse(dialect, text, size)
        assert broken in message["content"] and message["content"].startswith("Look:")
        assert start.strip() in message["content"] and end.strip() in message["content"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["now"]


def test_without_tools_what_looks_like_a_call_is_content() -> None:
    dialect = DIALECTS["qwen3"]
    call = dialect.call("now", {})
    assert parse(dialect, f"Look.{call}<|im_end|>", 3, tools=[]) == {"content": f"Look.{call}"}


def test_a_call_that_the_limit_of_tokens_cut_is_content() -> None:
    """Though xml can be read without its end, the call would lack arguments."""
    dialect = DIALECTS["qwen3_5"]
    text = "</think>\n<tool_call>\n<function=weather>\n<parameter=city>Köln</parameter>\n<parameter=days>"
    assert parse(dialect, text, 4, is_cut=True) == {"content": text.removeprefix("</think>\n")}
    assert "tool_calls" in parse(dialect, text, 4)


@pytest.mark.parametrize("prefill", ["Sure", "Sure, ", "Sure:\n\n", "Sure <", "\n"])
def test_a_message_that_the_prompt_began_is_not_written_again(prefill: str) -> None:
    dialect = DIALECTS["qwen3"]
    text = " let me see. <tool" + dialect.call("now", {})
    for size in (1, len(text)):
        message = parse(dialect, text, size, prompt=dialect.prompt + prefill)
        whole = parse_response(text, dialect.template, prefix=dialect.prompt + prefill, tools=TOOLS)["content"]
        assert prefill.lstrip() + message["content"] == whole
        assert len(message["tool_calls"]) == 1


def test_a_prompt_may_have_a_long_run_of_spaces() -> None:
    dialect = DIALECTS["qwen3"]
    assert parse(dialect, "Yes.", 4, prompt=dialect.prompt + "Well" + "\n" * 10**6 + "so:") == {"content": "Yes."}


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_may_have_a_long_run_of_spaces(name: str) -> None:
    """20,000 took 3 s when each piece had all of them searched again."""
    dialect, began = DIALECTS[name], time.process_time()
    text = dialect.write(content=f"Well{' ' * 20_000}so")
    assert parse(dialect, text, 1)["content"] == f"Well{' ' * 20_000}so"
    assert time.process_time() - began < 1.5


def test_thoughts_that_the_prompt_began_go_on() -> None:
    dialect = DIALECTS["qwen3"]
    message = parse(dialect, " two.</think>Yes.", 2, prompt=dialect.prompt + "<think>\nOne,")
    assert message == {"reasoning_content": " two.", "content": "Yes."}


def test_regions_that_occur_again_are_paragraphs() -> None:
    """Transformers keeps only the last one."""
    dialect = DIALECTS["qwen3"]
    text = "One." + dialect.call("now", {}) + "\nTwo.<think>a</think>\nThree.<think>b</think>"
    message = parse(dialect, text, 3)
    assert (message["content"], message["reasoning_content"]) == ("One.\n\nTwo.\n\nThree.", "a\n\nb")


def test_places_of_the_text_are_found_in_the_message() -> None:
    dialect = DIALECTS["qwen3"]
    text = "<think>\nHm, why.\n</think>\n\nYes, so."
    parser = MessageParser(ResponseTemplate(dialect.template), prompt=dialect.prompt, tools=[])
    delta = MessageDelta()
    for character in text:
        delta += parser.feed(character)
    delta += parser.end(is_cut=False)
    written = delta.reasoning + delta.content
    for word in ("Hm", "why", "Yes", "so."):
        assert parser.locate(text.index(word)) == written.index(word)


def test_a_response_template_is_that_of_the_tokenizer_or_of_the_type_of_model() -> None:
    model, tokenizer = antislop.tiny_model()
    assert find_response_template(tokenizer, model) is None
    model.config.model_type = "qwen3"
    assert find_response_template(tokenizer, model) == ResponseTemplate(DIALECTS["qwen3"].template)
    tokenizer.response_template = CHANNELS
    assert find_response_template(tokenizer, model) == ResponseTemplate(CHANNELS)
    tokenizer.response_template = {"fields": {}}
    with pytest.raises(InputError, match=r"the response template is not valid: .*non-empty"):
        find_response_template(tokenizer, model)


# -- the server --------------------------------------------------------------------------------------------------------

TEMPLATE = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls %}<tool_call>{{ call.function.name }} {{ call.function.arguments.city }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}
{%- if reasoning_effort %}[effort {{ reasoning_effort }}]{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
USER = {"role": "user", "content": "Hi."}


def build_tokenizer() -> PreTrainedTokenizerBase:
    """The small tokenizer with the delimiters of all dialects, of which half are special tokens."""
    tokenizer = antislop.tiny_model()[1]
    tokenizer.add_special_tokens({"additional_special_tokens": NAMES})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Script:
    """A server that writes given texts. written: what the next answer is."""

    def __init__(self, dialect: Dialect) -> None:
        self.tokenizer = build_tokenizer()
        self.tokenizer.response_template = dialect.template
        self.written = ""
        self.backend = SlowBackend(self.tokenizer, self._play, context_length=8192)

    def _play(self, _: Any) -> Any:
        return play_tokens(self.tokenizer(self.written, add_special_tokens=False)["input_ids"])

    @property
    def prompt(self) -> str:
        return str(self.tokenizer.decode(self.backend.written[-1].prompt))


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(DIALECTS["qwen3"])


@pytest.fixture(scope="module")
def url(script: Script) -> Iterator[str]:
    with run_server(make_app(script.backend)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": [USER], **body}, timeout=60)


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_has_thoughts_content_and_calls_streamed_or_not(name: str) -> None:
    dialect = DIALECTS[name]
    script = Script(dialect)
    script.tokenizer.chat_template = "{{ messages[0].content }}" + dialect.prompt.replace("\n", "{{ '\\n' }}")
    script.tokenizer.chat_template += "{% if tools %}{% endif %}"
    script.written = dialect.write(thoughts="Hm.", content="Let me look.", calls=CALLS)
    expected = read_whole(dialect, script.written)
    with (
        run_server(make_app(script.backend)) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client,
    ):
        body: Any = {"model": "tiny", "messages": [USER], "tools": TOOLS}
        whole = client.chat.completions.create(**body).choices[0]
        chunks = list(client.chat.completions.create(stream=True, **body))
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"
    assert whole.message.content == expected["content"] == "Let me look."
    assert whole.message.model_extra == {"reasoning_content": "Hm."}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == "Hm."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.index for call in calls] == [0, 1]
    for call, other, (function, arguments) in zip(calls, whole.message.tool_calls or (), CALLS, strict=True):
        assert call.function and other.type == "function"
        assert call.function.name == other.function.name == function
        assert json.loads(call.function.arguments or "") == json.loads(other.function.arguments) == arguments
        assert str(call.id).startswith("call_") and str(other.id).startswith("call_")


def test_a_loop_of_two_steps_calls_a_tool_and_reads_its_result(script: Script, client: openai.OpenAI) -> None:
    dialect = DIALECTS["qwen3"]
    messages: list[Any] = [USER]
    script.written = dialect.write(thoughts="Which city?", calls=CALLS[:1])
    with client.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS) as stream:  # type: ignore[arg-type]
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls or ()
    assert "[weather][now]" in script.prompt
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    messages[1]["tool_calls"][0].pop("parsed_arguments", None)
    script.written = dialect.write(content="It rains.")
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS).choices[0]  # type: ignore[arg-type]
    assert (answer.message.content, answer.finish_reason) == ("It rains.", "stop")
    assert "<think>Which city?</think>" in script.prompt and "<tool_call>weather Köln <b></tool_call>" in script.prompt
    assert "<|im_start|>tool\nRain.<|im_end|>" in script.prompt


@pytest.mark.parametrize(
    ("more", "prompt", "unused"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n", None),
        ({"template_vars": {"enable_thinking": False}}, "<think>\n\n</think>\n\n", None),
        ({"reasoning_effort": "none"}, "[effort none]<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "assistant\n", None),
        ({"reasoning_effort": "high"}, "[effort high]<|im_start|>assistant\n", None),
        (
            {"chat_template_kwargs": {"a b": 1, "é\n": 2}},
            "assistant\n",
            "chat_template_kwargs.\\xe9\\n, chat_template_kwargs.a b",
        ),
        ({"tools": TOOLS, "tool_choice": "none"}, "Hi.<|im_end|>\n<|im_start|>assistant\n", None),
        ({"response_prefix": "<think>\nHm"}, "<|im_start|>assistant\n<think>\nHm", None),
    ],
)
def test_the_template_is_given_its_variables(
    script: Script, url: str, more: dict[str, Any], prompt: str, unused: str | None
) -> None:
    script.written = "Yes."
    answer = post(url, **more)
    assert (answer.status_code, answer.headers.get("X-Antislop-Ignored-Fields")) == (200, unused)
    assert script.prompt.endswith(prompt)


def test_each_of_several_texts_is_a_message_of_its_own(script: Script, url: str) -> None:
    script.written = DIALECTS["qwen3"].write(thoughts="Hm.", content="Yes.<|start|>", calls=CALLS)
    whole = post(url, n=3, tools=TOOLS).json()["choices"]
    assert [(choice["message"]["content"], len(choice["message"]["tool_calls"])) for choice in whole] == [
        ("Yes.", 2)
    ] * 3
    assert len({call["id"] for choice in whole for call in choice["message"]["tool_calls"]}) == 6
    events = post(url, n=3, tools=TOOLS, stream=True).text.split("\n\n")[:-2]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    for number in range(3):
        own = [delta["delta"] for delta in deltas if delta["index"] == number]
        assert "".join(delta.get("content", "") for delta in own) == "Yes."
        assert [call["index"] for delta in own for call in delta.get("tool_calls", ())] == [0, 1]


def test_parts_of_a_text_reach_the_template_as_in_all_other_prompts(script: Script, url: str) -> None:
    script.written = "Yes."
    parts = [{"type": "text", "text": "One,"}, {"type": "text", "text": "two."}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}]
    assert post(url, messages=messages[:1]).status_code == 200
    assert script.prompt == render_chat(messages[:1], script.tokenizer) and "One,\ntwo." in script.prompt
    assert post(url, messages=messages, continue_final_message=True).status_code == 200
    assert script.prompt.endswith("<|im_start|>assistant\nOne,\ntwo.")


def test_what_a_template_does_not_use_is_named() -> None:
    script = Script(DIALECTS["qwen3"])
    script.tokenizer.chat_template = "{{ messages[0].content }}"
    with run_server(make_app(script.backend)) as address:
        answer = post(address, tools=TOOLS, reasoning_effort="low")
        refused = post(address, tools=TOOLS, tool_choice="required")
    assert answer.headers["X-Antislop-Ignored-Fields"] == "reasoning_effort, tools"
    assert (refused.status_code, "does not show tools" in refused.text) == (400, True)


@pytest.mark.parametrize("field", [{"content": "Sure, "}, {"content": "", "reasoning_content": "Hm, "}])
def test_the_last_message_is_continued(script: Script, url: str, field: dict[str, Any]) -> None:
    script.written = "the rest."
    messages = [USER, {"role": "assistant", **field}]
    answer = post(url, messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert answer.status_code == 200, answer.text
    (begun,) = filter(None, field.values())
    assert script.prompt.endswith(begun.rstrip()) or script.prompt.endswith(begun)
    message = answer.json()["choices"][0]["message"]
    assert message["reasoning_content" if "reasoning_content" in field else "content"] == "the rest."
    whole = post(url, messages=messages)
    assert script.prompt.endswith("<|im_start|>assistant\n") and whole.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tools": [TOOLS[1]] * 129}, "tools is [{'type': 'function'"),
        ({"tools": [{"type": "function", "function": {"name": "x", "description": "x" * 70_000}}]}, "70,"),
        ({"tools": [{"type": "function"}]}, "tools.0.function is missing: send it"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools.0"),
        ({"tool_choice": "required"}, "tool_choice is 'required', but tools has no such function"),
        ({"tool_choice": "any"}, "tool_choice is 'any', which is not \"auto\""),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
            "tools has no such function",
        ),
        ({"tool_choice": "required", "tools": TOOLS, "response_format": {"type": "json_object"}}, "exclude each other"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "has 'chat_template', which no template reads"),
        ({"chat_template_kwargs": {"tokenize": False}}, "has 'tokenize'"),
        ({"chat_template_kwargs": {"messages": []}}, "has 'messages'"),
        ({"chat_template_kwargs": {"tools": []}}, "has 'tools', which is a field of its own: send it beside messages"),
        ({"chat_template_kwargs": {"x": "y" * 17_000}}, "characters of JSON; at most 16,384"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs is []"),
        ({"template_vars": {"a": 1}, "chat_template_kwargs": {"a": 2}}, "mean the same and differ"),
        ({"continue_final_message": True}, "needs a last message of text, whose role is assistant"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
        ({"add_generation_prompt": False}, "exclude each other"),
    ],
)
def test_what_can_not_be_done_is_refused(url: str, more: dict[str, Any], message: str) -> None:
    answer = post(url, **more)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text


@pytest.mark.parametrize("name", ["qwen3_5", "gemma4", "gpt_oss"])
def test_a_call_is_required_only_of_models_that_write_json_between_delimiters(name: str) -> None:
    script = Script(DIALECTS[name])
    with run_server(make_app(script.backend)) as address:
        answer = post(address, tools=TOOLS, tool_choice="required")
    assert (answer.status_code, "that write JSON between fixed delimiters only" in answer.text) == (400, True)


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
def test_messages_of_another_server_are_read_here(kind: Any) -> None:
    """There the token that ends the text is the delimiter of a call."""
    dialect, tokenizer = DIALECTS["gpt_oss"], build_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}<|start|>assistant{% if tools %}{% endif %}"
    tokenizer.response_template = dialect.template
    text = dialect.write(thoughts="Hm.", calls=CALLS[:1])
    begun = len(tokenizer("Hi.<|start|>assistant", add_special_tokens=False)["input_ids"])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    def score(tokens: list[int]) -> torch.Tensor:
        return torch.full((len(tokenizer),), -30.0).index_fill(0, torch.tensor(ids[len(tokens) - begun]), 30.0)

    end = frozenset({tokenizer.convert_tokens_to_ids("<|call|>")})
    with serve_streams(SimulatedEngine(score, tokenizer, kind, end_tokens=end)) as server:
        app = antislop.serve.app(None, tokenizer, upstream=Endpoint(f"{server.url}/v1"))
        with run_server(app) as address:
            answer = post(address, tools=TOOLS, max_tokens=100)
            refused = post(address, tools=TOOLS, tool_choice="required")
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["message"].pop("tool_calls")[0]["function"] == {
        "name": "weather",
        "arguments": json.dumps(CALLS[0][1]),
    }
    assert choice["message"] == {"role": "assistant", "refusal": None, "content": None, "reasoning_content": "Hm."}
    assert choice["finish_reason"] == "tool_calls"
    assert (refused.status_code, "leave tool_choice out" in refused.text) == (400, True)


# -- required calls ----------------------------------------------------------------------------------------------------

TAGS = {**DIALECTS["qwen3"].template, "fields": {**DIALECTS["qwen3"].template["fields"]}}
TAGS["fields"]["tool_calls"] = {**TAGS["fields"]["tool_calls"], "open_pattern": r"\s*<\|call\|>", "close": "<|end|>"}
"""Calls between special tokens."""


@pytest.fixture(scope="module")
def preparer() -> RequestPreparer:
    model, _ = antislop.tiny_model()
    bans = CompiledBans.compile([], build_tokenizer())
    return RequestPreparer(model, bans, InFlight(model, bans, max_rows=1, max_length=512), context_length=512)


ONE, OTHER = write_qwen("weather", {"city": "Bonn", "days": 3}).strip(), write_qwen("now", {}).strip()


@pytest.mark.parametrize(
    ("options", "text", "is_accepted"),
    [
        ({}, ONE, True),
        ({}, f"<think>\nHm.\n</think>\n\n{OTHER}\n{ONE}", True),
        ({}, "", False),
        ({}, "Hello.", False),
        ({}, f"Hello. {ONE}", False),
        ({}, write_qwen("weather", {"days": 3}).strip(), False),
        ({}, write_qwen("other", {}).strip(), False),
        ({"has_many": False}, ONE, True),
        ({"has_many": False}, f"{ONE}\n{ONE}", False),
        ({"is_thinking": True}, f"Hm. <tool_call>, no.\n</think>\n\n{ONE}", True),
        ({"is_thinking": True}, ONE, False),
        ({"template": TAGS}, OTHER.replace("<tool_call>", "<|call|>").replace("</tool_call>", "<|end|>"), True),
        ({"template": TAGS}, OTHER, False),
    ],
)
def test_a_grammar_is_that_of_calls_that_can_be_read(
    preparer: RequestPreparer, options: dict[str, Any], text: str, is_accepted: bool
) -> None:
    pytest.importorskip("llguidance")
    tokenizer = preparer._tokenizer
    special = {tokenizer.convert_tokens_to_ids(name): name for name in NAMES}
    given = {"template": DIALECTS["qwen3"].template, "is_thinking": False, "has_many": True, "special": special}
    given |= options
    lark = write_grammar(ResponseTemplate(given.pop("template")), tools=TOOLS, **given)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert preparer.find_grammar(lark, is_lark=True).accepts(ids) == is_accepted


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_a_required_call_is_written_and_no_ban_holds_in_it(choice: Any) -> None:
    """The model knows of none of this: it only follows the grammar."""
    pytest.importorskip("llguidance")
    model, tokenizer = antislop.tiny_model()
    fields = {
        name: field for name, field in DIALECTS["qwen3"].template["fields"].items() if name != "reasoning_content"
    }
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, {**DIALECTS["qwen3"].template, "fields": fields}
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"enum": [1, 2]}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"city": {"enum": ["Bonn", "Köln"]}},
    }
    weather: Any = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    backend = LocalBackend(model, tokenizer, bans=["Bonn"])
    with run_server(make_app(backend)) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        cities = set()
        for seed in range(6):
            answer = client.chat.completions.create(
                model=backend.name,
                messages=[{"role": "user", "content": "Hi."}],
                tools=[weather, TOOLS[1]],
                tool_choice=choice,
                parallel_tool_calls=False,
                max_tokens=200,
                seed=seed,
            ).choices[0]
            (call,) = answer.message.tool_calls or ()
            assert call.type == "function" and answer.finish_reason == "tool_calls"
            assert call.function.name == "weather" or choice == "required"
            if call.function.name == "weather":
                cities.add(json.loads(call.function.arguments)["city"])
    assert "Bonn" in cities <= {"Bonn", "Köln"}


# -- bans by the parts of a message ------------------------------------------------------------------------------------

PARTS = {"thinking": "<think>sky</think>", "answer": "sky", "tool_calls": "<tool_call>sky</tool_call>"}


def find_parts(request: GenerationRequest, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the parts of a message in which a request bans "sky"."""
    parts = []
    for name, text in PARTS.items():
        matcher = request.bans.matcher
        ids = tokenizer(f"{text} and", add_special_tokens=False)["input_ids"]
        states = list(accumulate(ids, matcher.feed, initial=request.bans.read_prompt(request.prompt)))
        parts += [name] if any(state.violations for state in states) else []
    return parts


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({}, ["answer"]),
        ({"ban_scope": "answer"}, ["answer"]),
        ({"ban_scope": "thinking"}, ["thinking"]),
        ({"ban_scope": "all"}, ["thinking", "answer"]),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ["answer"]),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_bans_hold_in_the_parts_that_a_request_names(own: bool, more: dict[str, Any], parts: list[str]) -> None:
    """Without tools, what looks like a call in a chat is shown as content, and so is a part of the answer."""
    script = Script(DIALECTS["qwen3"])
    bans = ["sky"] if own else []
    backend = SlowBackend(script.tokenizer, lambda _: play_tokens([5]), bans=bans, context_length=8192)
    asks = more if own else {**more, "banned_strings": ["sky"]}
    user = {"role": "user", "content": "What is a <think> or <tool_call>?"}
    with run_server(make_app(backend)) as address:
        for given in ({"tools": TOOLS}, {}, {"tools": TOOLS, "tool_choice": "none"}):
            assert post(address, **asks, **given, messages=[user]).status_code == 200
            is_content = given != {"tools": TOOLS} and "answer" in parts
            expected = [*parts, "tool_calls"] if is_content else parts
            assert find_parts(backend.written[-1], script.tokenizer) == expected
        if parts != ["thinking"]:
            assert post(address, **asks, response_format={"type": "json_object"}, messages=[user]).status_code == 200
            assert find_parts(backend.written[-1], script.tokenizer) == [*PARTS], "by a schema, all is content"
        if "chat_template_kwargs" not in more:
            httpx.post(f"{address}/v1/completions", json={"prompt": "So,", **asks}, timeout=60)
            assert find_parts(backend.written[-1], script.tokenizer) == parts


def test_a_part_is_refused_where_nobody_says_how_the_model_writes() -> None:
    backend = SlowBackend(antislop.tiny_model()[1], lambda _: play_tokens([5]), bans=["sky"])
    with run_server(make_app(backend)) as address:
        for scope, status in (("all", 200), ("thinking", 400), ("nowhere", 400)):
            answer = httpx.post(f"{address}/v1/completions", json={"prompt": "So,", "ban_scope": scope}, timeout=60)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["param"] == "ban_scope"


def test_an_answer_says_in_which_parts_of_its_message_the_rewinds_were(script: Script) -> None:
    sky = Violation(Ban("sky"), 0, 0)
    events = [Rewound(0, (), sky, part=part) for part in ("thinking", "answer", "thinking")]
    backend = SlowBackend(script.tokenizer, lambda _: [*events, *play_tokens([5])], context_length=8192)
    counts = {"rewinds_by_part": {"thinking": 2, "answer": 1}}
    with run_server(make_app(backend)) as address:
        whole = post(address).json()
        assert whole["choices"][0]["antislop"] == counts
        assert whole["usage"]["antislop"]["rewinds_by_part"] == counts["rewinds_by_part"]
        streamed = post(address, stream=True).text.split("\n\n")
        last = json.loads(streamed[-3].removeprefix("data: "))["choices"][0]
        assert last["finish_reason"] == "stop" and last["antislop"]["rewinds_by_part"] == counts["rewinds_by_part"]
