"""Chats in the shapes of public data sets: prompts, and the replies that are measured, each right or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from antislop.errors import InputError
from antislop.files.chats import check_variables, find_role, read_chat, render_chat
from antislop.files.prompts import read_prompts
from antislop.files.texts import LeftOut, read_texts
from tests.support.models import build_tokenizer

TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function.name') | join(' ') }}:{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for call in m.tool_calls %}{{ call.function.name }}({{ call.function.arguments.n }}){% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<go>{% endif %}{% if enable_thinking is false %}<no thoughts>{% endif %}"
)
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def make_tokenizer(template: str = TEMPLATE) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def chat(*messages: str) -> list[dict[str, Any]]:
    """Messages from "role: content"."""
    return [dict(zip(("role", "content"), message.split(": ", 1), strict=True)) for message in messages]


def sharegpt(*messages: str) -> list[dict[str, Any]]:
    return [{"from": message["role"], "value": message["content"]} for message in chat(*messages)]


def columns(messages: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [message[name] for message in messages] for name in messages[0]}


CHAT = chat("user: Hi", "assistant: Hello.")
AREA = {
    "name": "area",
    "description": "Of a square.",
    "parameters": {"type": "object", "properties": {"n": {"type": "number"}}},
}
TOOL = {"type": "function", "function": AREA}
CALL = {"name": "area", "arguments": {"n": 5}}
CALLING = {"id": "c1", "type": "function", "function": {"name": "area", "arguments": json.dumps(CALL["arguments"])}}
IMAGE, SEE = {"type": "image", "text": None, "index": 0}, {"type": "text", "text": "See?", "index": None}
NO_REPLY = ""  # left out and counted
NO_TEXT = "several contain text: name the column of the prompts as column (--column)"
FUNCTIONS = "system: You call functions."

# By the data set: a record, the prompt (or its error, or the refusal), and the text that is measured (or the refusal).
SHAPES: dict[str, tuple[dict[str, Any], str, str]] = {
    "ShareGPT": (
        {"id": "a", "conversations": sharegpt("human: Hi", "gpt: Hello.", "human: More", "gpt: No.")},
        "<user>Hi<assistant>Hello.<user>More<go>",
        "No.",
    ),
    "ShareGPT that ends with a question": (
        {"conversations": sharegpt("human: Hi", "chatgpt: Hello.", "human: More")},
        "<user>Hi<assistant>Hello.<user>More<go>",
        "Hello.",
    ),
    "datasets before version 4": ({"conversations": columns(sharegpt("human: Hi", "gpt: No."))}, "<user>Hi<go>", "No."),
    "OpenAI": ({"messages": chat("developer: S", "user: Hi", "assistant: Hello.")}, "<system>S<user>Hi<go>", "Hello."),
    "fine-tuning at OpenAI": (
        {
            "messages": [
                *chat("user: Hi", "assistant: Hello.", "user: Area?"),
                {"role": "assistant", "content": None, "tool_calls": [CALLING]},
                *chat("tool: 25", "user: And?"),
                {"role": "assistant", "content": None, "tool_calls": [CALLING]},
            ],
            "tools": [TOOL],
            "parallel_tool_calls": False,
        },
        "area:<user>Hi<assistant>Hello.<user>Area?<assistant>area(5)<tool>25<user>And?<go>",
        "Hello.",
    ),
    "OpenAI before 2024": (
        {
            "messages": [
                *chat("user: Area?"),
                {"role": "assistant", "content": None, "function_call": CALL},
                *chat("function: 25", "assistant: It is 25."),
            ]
        },
        "<user>Area?<assistant>area(5)<tool>25<go>",
        "It is 25.",
    ),
    "LLaMA-Factory": (
        {
            "system": "Be brief.",
            "tools": json.dumps([AREA]),
            "conversations": [
                *sharegpt("human: Area?", f"function_call: {json.dumps(CALL)}", "observation: 25", "gpt: It is 25."),
                *sharegpt("human: And?", f"function_call: {json.dumps(CALL)}"),
            ],
        },
        "area:<system>Be brief.<user>Area?<assistant>area(5)<tool>25<assistant>It is 25.<user>And?<go>",
        "It is 25.",
    ),
    "LLaMA-Factory, DPO": (
        {"conversations": sharegpt("human: Hi"), "chosen": {"from": "gpt", "value": "A"}, "rejected": {"from": "gpt"}},
        "<user>Hi<go>",
        NO_REPLY,
    ),
    "ms-swift": (
        {
            "tools": "[]",
            "messages": chat("user: Area?", f"tool_call: {json.dumps(CALL)}", "tool_response: 25", "assistant: 25."),
        },
        "<user>Area?<assistant>area(5)<tool>25<go>",
        "25.",
    ),
    "Hermes function calling": (
        {
            "tools": json.dumps([TOOL]),
            "conversations": sharegpt(
                FUNCTIONS, "human: Area?", "gpt: <tool_call>\n{}\n</tool_call>", "tool: 25", "gpt: 25."
            ),
        },
        "area:<system>You call functions.<user>Area?<assistant><tool_call>\n{}\n</tool_call><tool>25<go>",
        "25.",
    ),
    "Hermes function calling, single turn": (
        {"conversations": sharegpt(FUNCTIONS, "human: Area?", "gpt: <tool_call>\n{}\n</tool_call>\n")},
        "<system>You call functions.<user>Area?<go>",
        NO_REPLY,
    ),
    "ToolACE": (
        {"system": "Compose functions.", "conversations": sharegpt("user: Hi", "assistant: [f()]", "tool: 1")},
        "<system>Compose functions.<user>Hi<assistant>[f()]<tool>1<go>",
        "[f()]",
    ),
    "LMSYS-Chat-1M": ({"conversation_id": "a", "model": "b", "conversation": CHAT}, "<user>Hi<go>", "Hello."),
    "WildChat": (
        {"conversation": [{**each, "toxic": False, "country": None} for each in CHAT], "language": "English"},
        "<user>Hi<go>",
        "Hello.",
    ),
    "UltraChat 200k and no_robots": ({"prompt": "Hi", "prompt_id": "a", "messages": CHAT}, "Hi", "Hello."),
    "UltraChat": ({"id": "a", "turns": ["Hi", "Hello."]}, "none contains text", "no column response"),
    "OpenAssistant": ({"message_id": "a", "text": "Hi", "role": "prompter"}, NO_TEXT, NO_REPLY),
    "OpenAssistant, a reply": ({"message_id": "a", "text": "Hello.", "role": "assistant"}, NO_TEXT, "Hello."),
    "SmolTalk 2": (
        {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": False, "xml_tools": [], "x": None}},
        "<user>Hi<go><no thoughts>",
        "Hello.",
    ),
    "OpenHermes": (
        {"system_prompt": "S", "conversations": [{**each, "weight": None} for each in sharegpt("human: Hi", "gpt: A")]},
        "<system>S<user>Hi<go>",
        "A",
    ),
    "Capybara": (
        {"conversation": [{"input": "Hi", "output": "A"}]},
        "message 1 of the chat has no role",
        "has no role",
    ),
    "TRL, prompts and completions": ({"prompt": CHAT[:1], "completion": CHAT[1:]}, "<user>Hi<go>", "Hello."),
    "TRL, preferences": (
        {"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": CHAT[1:]},
        "<user>Hi<go>",
        "no column response or output or completion or text or mes; there are prompt, chosen, rejected",
    ),
    "Anthropic's requests": (
        {
            "system": [{"type": "text", "text": "S"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "A"}],
                },
            ],
        },
        "<system>S<user>Hi\nthere<go>",
        "A",
    ),
    "CSV": ({"messages": json.dumps(CHAT)}, "<user>Hi<go>", "Hello."),
    "CSV by pandas": ({"messages": str(CHAT)}, "the chat is not JSON: write it as a list", "the chat is not JSON"),
    "LLaVA": (
        {"messages": [{"role": "user", "content": [IMAGE, SEE]}, {"role": "assistant", "content": [SEE]}]},
        "message 1 of the chat has {'type': 'image', 'index': 0}; only parts of type text are read: leave it out",
        "See?",
    ),
    "role play": (
        {"messages": chat("user: Hi", "narrator: It rained.")},
        "message 2 of the chat has the role 'narrator'; system, user, assistant, tool, or another name of one, such as",
        "message 2 of the chat has the role 'narrator'",
    ),
    "two system messages": (
        {"system": "A", "messages": chat("system: B", "user: Hi", "assistant: C")},
        "the column system has another text than the chat's system message: leave one out, or pass system (--system)",
        "C",
    ),
}

HH = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: More\n\nAssistant: No."
NAMED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "hh-rlhf": ("chosen", {"chosen": HH, "rejected": HH}, "<user>Hi<assistant>Hello.<user>More<go>", "No."),
    "hh-rlhf, prompts": ("prompt", {"prompt": HH[:-4]}, HH[:-4], HH[:-4]),
    "preferences without prompts": ("chosen", {"chosen": CHAT, "rejected": CHAT}, "<user>Hi<go>", "Hello."),
    "LLaMA-Factory, DPO": ("chosen", {"chosen": sharegpt("gpt: A")[0]}, "no message to reply to", "A"),
    "Nemotron": (
        "input",
        {"input": CHAT[:1], "output": "Hello.", "system_prompt": "detailed thinking on"},
        "<system>detailed thinking on<user>Hi<go>",
        NO_REPLY,
    ),
    "Gemini": (
        "contents",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "A"}]}]},
        "<user>Hi<go>",
        "A",
    ),
    "UltraChat": ("turns", {"turns": ["Hi", "Hello."]}, "is str: write {'role'", "is str: write {'role'"),
}
PLACES = {"a.jsonl": ":1", "a.parquet": ", record 0"}
CASES = {
    **{name: (None, *case) for name, case in SHAPES.items()},
    **{f"{name}, by name": NAMED[name] for name in NAMED},
}


def outcome(read: Callable[[], Iterable[str]]) -> str:
    """What is read, or the sentence that refuses it."""
    try:
        return "".join(read())
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("file", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize(("column", "record", "prompt", "text"), CASES.values(), ids=CASES)
def test_a_public_data_set_is_read_right_or_refused_in_one_sentence(
    column: str | None, record: dict[str, Any], prompt: str, text: str, file: str, tmp_path: Path
) -> None:
    path, left_out = tmp_path / file, LeftOut()
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist([record]), path)
    else:
        path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    prompts = partial(read_prompts, path, tokenizer=make_tokenizer(), column=column)
    texts = partial(read_texts, [path], column=column, left_out=left_out)
    made = outcome(lambda: [each.error or each.text for each in prompts()])
    measured = outcome(lambda: [each.text for each in texts()])
    assert made == prompt or (made.startswith(str(path)) and prompt in made and "\n" not in made)
    assert measured == text or (text and measured.startswith(f"{path}{PLACES[file]}: ") and text in measured)
    lost = {(str(path), "left out {} without a reply of the assistant"): 1}
    assert {key: count for key, count in left_out.items() if "turns" not in key[1]} == ({} if text else lost)


def test_the_system_message_that_is_passed_comes_before_all_others() -> None:
    records = [{"messages": CHAT, "system": "A"}, {"messages": [*chat("system: B"), *CHAT], "system": "A"}]
    for system, expected in (("T", "<system>T<user>Hi<go>"), ("", "<user>Hi<go>")):
        made = read_prompts(records, tokenizer=make_tokenizer(), system=system)
        assert [prompt.text for prompt in made] == [expected] * 2
    (made,) = read_prompts(records[:1], tokenizer=make_tokenizer(), template="{system}, {prompt}")
    assert made.text == "<user>A, Hi<go>"  # a column that the prompt template names is not written twice


def test_variables_that_are_passed_come_before_those_of_a_record() -> None:
    record = {"messages": CHAT, "tools": [TOOL], "chat_template_kwargs": '{"enable_thinking": false}'}
    (made,) = read_prompts([record], tokenizer=make_tokenizer(), chat_template_kwargs={"enable_thinking": True})
    assert made.text == "area:<user>Hi<go>" and made.variables == {"enable_thinking": True, "tools": [TOOL]}
    rest = {"messages": made.messages, "chat_template_kwargs": made.variables}  # as `antislop tune --auto` writes it
    assert [again.text for again in read_prompts([rest], tokenizer=make_tokenizer())] == [made.text]
    assert check_variables({"tools": [AREA]}, make_tokenizer()) == {"tools": [TOOL]}


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"tools": "area"}, "tools is 'area'; a list of functions, or JSON of one, was expected"),
        ({"tools": [AREA, 5]}, "a list of functions, or JSON of one, was expected"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs is 'x'; names and values were expected"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs has 'tokenize', which no template reads"),
        ({"system": 5}, "the column system has 5; only parts of type text are read: leave it out"),
        (
            {"messages": sharegpt("human: Hi", "function_call: f()", "gpt: A", "human: B")},
            "'f()'; a call of a function",
        ),
        ({"messages": sharegpt("human: Hi", 'function_call: {"name": "f", "arguments": 5}', "tool: 1")}, "5; a JSON"),
        ({"messages": [*CHAT, {"role": "assistant", "content": "", "tool_calls": 5}, *CHAT]}, "tool_calls 5; a list"),
        ({"messages": '[{"role": "user", "content": ' + "[" * 5000}, "the chat is not JSON"),
        ({"messages": '[{"role": ' * 500 + '"user"' + "}]" * 500}, "the chat is not JSON"),
    ],
)
def test_what_can_not_be_rendered_is_an_error_of_the_record(record: dict[str, Any], error: str) -> None:
    (made,) = read_prompts([{"messages": CHAT, **record}], tokenizer=make_tokenizer())
    assert made.error is not None and made.error.startswith("record 0: ") and error in made.error


def test_what_a_template_does_not_show_is_refused() -> None:
    calls = [*CHAT, {"role": "assistant", "content": "", "tool_calls": [CALLING]}, *chat("tool: 25")]
    for record, error in (
        ({"messages": CHAT, "tools": [TOOL]}, "no tools"),
        ({"messages": calls}, "no calls of tools"),
    ):
        (made,) = read_prompts([record], tokenizer=make_tokenizer(PLAIN))
        assert made.error == f"record 0: the chat template shows {error}, which the chat has: leave them out"
    (made,) = read_prompts([{"messages": CHAT, "tools": "[]"}], tokenizer=make_tokenizer(PLAIN))
    assert made.error is None
    (made,) = read_prompts([{"messages": CHAT, "tools": [TOOL]}], template="{prompt}")
    assert made.error == "record 0: 1 message with tools can't be written without a chat template: use another model"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (PLAIN, "<system>a\nb<user>c\nd"),
        ("{% for m in messages %}<{{ m.role }}>{{ m.content + '' }}{% endfor %}", "<system>a\nb<user>c\nd"),
        ("{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}", '<system>"a\\nb"<user>"c\\nd"'),
        (
            "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
            "[{{ part.text }}]{% endfor %}{% endif %}{% endmacro %}"
            "{% for m in messages %}<{{ m.role }}>{{ show(m.content) }}{% endfor %}",
            "<system>[a][b]<user>[c][d]",
        ),
        (
            "{{ messages[0].content | trim }}{% for part in messages[1].content %}[{{ part['text'] }}]{% endfor %}",
            "a\nb[c][d]",
        ),
    ],
)
def test_parts_are_joined_by_line_feeds_where_the_template_does_not_read_them(template: str, text: str) -> None:
    messages = [
        {"role": "system", "content": ["a", {"text": "b"}]},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "input_text", "text": "d"}]},
    ]
    assert render_chat(read_chat(messages), make_tokenizer(template)) == text


def test_a_text_is_a_part_where_the_template_reads_nothing_else() -> None:
    parts = "{% for m in messages %}<{{ m.role }}>{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}"
    (made,) = read_prompts([{"messages": CHAT}], tokenizer=make_tokenizer(parts + "{% endfor %}"))
    assert made.text == "<user>Hi" and made.messages == CHAT[:1]
    plain = make_tokenizer("{% for m in messages %}<{{ m.role }}>{{ m.content | replace('Hi', 'Ho') }}{% endfor %}")
    assert render_chat(CHAT[:1], plain) == "<user>Ho"


def test_a_role_is_known_by_its_usual_names_or_because_the_template_names_it() -> None:
    names = "Human USER prompter | gpt BOT ChatGPT Assistant model | Developer | Observation ipython"
    roles = [{find_role(name) for name in group.split()} for group in names.split("|")]
    assert roles == [{"user"}, {"assistant"}, {"system"}, {"tool"}]
    messages = chat("control: thinking", "user: Hi")
    with pytest.raises(InputError, match=re.escape("message 1 of the chat has the role 'control'")):
        read_chat(messages)
    assert read_chat(messages, template="{% if m.role == 'control' %}") == messages
