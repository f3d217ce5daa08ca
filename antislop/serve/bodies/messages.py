"""The messages, tools and template variables of a chat's body, as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.files.chats import check_variables, read_call, read_content
from antislop.serve.bodies.fields import MAX_SCHEMA, MAX_TEMPLATE_VARIABLES, ChatBody
from antislop.serve.request_errors import RequestError, shorten, translate_errors

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_MESSAGES = 10_000
REASONING = ("reasoning_content", "reasoning")
"""Fields of an assistant's message that contain the thoughts of that earlier answer."""
MORE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "assistant": ("tool_calls", *REASONING, "parsed"),
    "tool": ("tool_call_id",),
}
"""Fields besides role, name and content, by role. parsed: the content as OpenAI's client parsed it; ignored."""
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn thoughts off."""


@dataclass(frozen=True)
class Chat:
    """A chat of a request, as a chat template renders it.

    variables: values for the template's variables.
    effort: the body's `reasoning_effort`, for templates with a variable of this name.
    tools: the tools that the template shows to the model.
    prefix: text to add after the rendered chat, so that the answer continues it.
    continued: the field of the last message that the answer continues; None for a new message.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    prefix: str = ""
    continued: str | None = None

    def choose_variables(self, known: set[str]) -> tuple[dict[str, Any], list[str]]:
        """Return values for the template's variables `known`, and names of the body's fields that have no effect."""
        variables = {name: value for name, value in self.variables.items() if name in known}
        unused = [f"chat_template_kwargs.{name}" for name in self.variables.keys() - known]
        if self.effort == "none":
            variables = {name: False for name in THINKING_SWITCHES if name in known} | variables
        if self.effort is not None and "reasoning_effort" in known:
            variables = {"reasoning_effort": self.effort, **variables}
        elif self.effort not in (None, "none"):
            unused.append("reasoning_effort")
        return variables, unused + (["tools"] if self.tools and "tools" not in known else [])


def read_chat(body: ChatBody) -> Chat:
    """Return the chat that a body asks to continue, after checking it. Raises `RequestError`."""
    sent = body.messages
    if not isinstance(sent, list) or not 1 <= len(sent) <= MAX_MESSAGES:
        message = f"messages is {shorten(sent)}; a list of 1 to {MAX_MESSAGES:,} messages was expected"
        raise RequestError(400, message, param="messages")
    messages = [_read_message(message, f"messages.{number}") for number, message in enumerate(sent)]
    tools = [tool.model_dump(exclude_unset=True) for tool in body.tools] if body.has_calls else []
    if (size := len(json.dumps(tools))) > MAX_SCHEMA:
        message = f"the tools have {size:,} characters of JSON; at most {MAX_SCHEMA:,} are allowed"
        raise RequestError(400, message, param="tools")
    name, variables = "chat_template_kwargs", body.chat_template_kwargs
    with translate_errors(param=name):
        check_variables(variables, PreTrainedTokenizerBase)
    if "tools" in variables:
        raise RequestError(400, f"{name} has 'tools', which is a field of its own: send it beside messages", param=name)
    if (size := len(json.dumps(variables))) > MAX_TEMPLATE_VARIABLES:
        message = f"{name} has {size:,} characters of JSON; at most {MAX_TEMPLATE_VARIABLES:,} are allowed"
        raise RequestError(400, message, param=name)
    name, continues, last, continued = "continue_final_message", body.continue_final_message, messages[-1], None
    if body.add_generation_prompt not in (not continues, None):
        raise RequestError(400, f"{name} and add_generation_prompt exclude each other: pass one as true", param=name)
    if continues:
        if last["role"] != "assistant" or "tool_calls" in last:
            raise RequestError(400, f"{name} needs a last message of text, whose role is assistant", param=name)
        continued = "reasoning_content" if "reasoning_content" in last and not last["content"] else "content"
    return Chat(messages, tools, variables, body.reasoning_effort, body.response_prefix, continued)


def choose_required(body: ChatBody, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of which the answer must call at least one; [] if it need call none. Raises `RequestError`."""
    choice, param = body.tool_choice, "tool_choice"
    if choice in ("auto", "none"):
        return []
    if body.response_format.schema_text is not None:
        raise RequestError(400, "tool_choice and response_format exclude each other: pass one", param=param)
    name = None if isinstance(choice, str) else choice["function"]["name"]
    required = [tool for tool in tools if name in (None, tool["function"]["name"])]
    if not required:
        raise RequestError(400, f"tool_choice is {shorten(choice)}, but tools has no such function", param=param)
    return required


def _read_message(message: Any, place: str) -> dict[str, Any]:
    """Return a message in the form that chat templates read, after checking it. Raises `RequestError`."""
    if not isinstance(message, dict):
        raise RequestError(400, f"{place} is {shorten(message)}; an object was expected", param=place)
    off = ("prefix", False)  # sent by clients of servers that continue a message with prefix: true
    filled = {name: value for name, value in message.items() if value not in (None, []) and (name, value) != off}
    role = filled.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(400, f"{place}.role is {shorten(role)}; one of {', '.join(ROLES)} was expected", param=place)
    more = MORE_FIELDS.get(role, ())
    for name in filled.keys() - {"role", "content", "name", *more}:
        advice = "pass continue_final_message beside messages" if name == "prefix" else "leave it out"
        raise RequestError(400, f"{place} has {name[:60]!r}, which is not supported: {advice}", param=place)
    texts = {name: filled[name] for name in ("name", "tool_call_id", *REASONING) if name in filled}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise RequestError(400, f"{place}.{name} is {shorten(value)}; a text was expected", param=place)
    thoughts = [text for name in REASONING if (text := texts.pop(name, ""))]
    calls = filled.get("tool_calls", [])
    if not isinstance(calls, list):
        raise RequestError(400, f"{place}.tool_calls is {shorten(calls)}; a list was expected", param=place)
    content = filled.get("content", "" if calls or thoughts else None)
    if not isinstance(content, str | list):
        raise RequestError(400, f"{place}.content is {shorten(content)}; a text was expected", param=place)
    with translate_errors(param=place):
        calls = [read_call(call, f"{place}.tool_calls.{number}") for number, call in enumerate(calls)]
        content = read_content(content, f"{place}.content")
    return {
        "role": ROLES[role],
        "content": content,
        **{name: text for name, text in texts.items() if text},
        **({"reasoning_content": thoughts[0]} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }
