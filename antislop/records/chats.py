"""Chats in the two formats of data sets: OpenAI's (role, content) and ShareGPT's (from, value)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

from antislop.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "model": "assistant"}


def is_chat(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(part, Mapping) for part in value)


def read_chat(value: Any) -> list[Message]:
    """Return the messages of a chat, with OpenAI's names of roles, without the replies at its end.

    value: a list of messages, or one list for each of their columns. Text parts of a content are joined by line feeds,
        as in vLLM; other fields are kept.
    """
    turns = _transpose(value) if isinstance(value, Mapping) else value
    if not isinstance(turns, list):
        raise InputError(f"a chat is a list of messages, not {type(value).__name__}: correct the record")
    messages = [_read_message(turn, number) for number, turn in enumerate(turns, start=1)]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system":
        raise InputError("the chat has no message to reply to: a message of the user is needed")
    if not (messages[-1]["content"] or "").strip():
        raise InputError("the prompt is empty: the last message before the reply has no text")
    return messages


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the text of a chat up to the reply, by the tokenizer's template, with special tokens.

    variables: of the template, such as enable_thinking.
    """
    from jinja2 import TemplateError

    if not getattr(tokenizer, "chat_template", None):
        raise InputError("messages need a chat template, which the tokenizer doesn't have: pass a text instead")
    try:
        return str(
            tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **variables)
        )
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise InputError(f"the chat template refuses the chat ({first_line(error)}): change the chat") from error


def check_variables(
    variables: object, tokenizer: PreTrainedTokenizerBase | type[PreTrainedTokenizerBase]
) -> dict[str, Any]:
    """Return the variables of a chat template, by name. Raises `InputError` for what is none."""
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise InputError(f"chat_template_kwargs is {variables!r}; names and values were expected")
    taken = {"messages", *signature(tokenizer.apply_chat_template).parameters}
    if reserved := sorted(variables.keys() & taken):
        raise InputError(f"chat_template_kwargs has {reserved[0]!r}, which no template reads: leave it out")
    return dict(variables)


def put_system(messages: list[Message], system: str) -> list[Message]:
    """Return the chat with `system` as its only system message, or without one if it is empty."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *(message for message in messages if message["role"] != "system")]


def _transpose(columns: Mapping[str, Any]) -> Any:
    """Return messages from one list per column: `datasets` before version 4 kept lists of objects so."""
    lists = list(columns.values())
    if not lists or not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        return columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _read_message(turn: Any, number: int) -> Message:
    if not isinstance(turn, Mapping):
        was = "nothing" if turn is None else type(turn).__name__
        raise InputError(f"message {number} of the chat is {was}: write {{'role': …, 'content': …}}")
    fields = {name: value for name, value in turn.items() if value is not None}  # Arrow has null for missing values
    role = fields.get("role", fields.get("from"))
    content = fields.get("content", fields.get("value"))
    if not isinstance(role, str):
        raise InputError(f"message {number} of the chat has no role: write {{'role': …, 'content': …}}")
    if content is None and "tool_calls" not in fields:
        raise InputError(f"message {number} of the chat has no content: write {{'role': …, 'content': …}}")
    other_fields = {name: value for name, value in fields.items() if name not in ("from", "value")}
    return {**other_fields, "role": _ROLES.get(role, role), "content": _read_content(content, number)}


def _read_content(content: Any, number: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    values = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    texts = [text for text in values if isinstance(text, str)]
    if len(texts) < len(parts):
        raise InputError(f"message {number} of the chat contains parts that are not text: leave these out")
    return "\n".join(texts)
