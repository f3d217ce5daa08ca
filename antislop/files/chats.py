"""Chats: read from the formats of data sets and clients into OpenAI's format, and rendered by a chat template.

A chat may come as a list of messages with role and content (OpenAI) or from and value (ShareGPT), as one list for each
of these columns, as JSON text of either form, or as a transcript of Human and Assistant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

from antislop.display import shorten
from antislop.errors import InputError, first_line
from antislop.files.disk import parse_json
from antislop.files.sources import to_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

_ROLES = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter", "inst", "instruction", "input"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "chatbot", "ai", "model", "/inst", "response"),
    "tool": ("tool", "observation", "function", "function_response", "tool_response", "ipython"),
}
"""OpenAI's names of roles, each with the names that data sets use for it, in upper or lower case."""
_CALLS = ("function_call", "tool_call")
"""Roles of the assistant's messages whose content is one tool call as JSON (LLaMA-Factory, ms-swift)."""
_CONTENTS = ("content", "value", "parts")
"""Names of the field with a message's content: OpenAI's, ShareGPT's, Gemini's."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_TEXT_PARTS = (None, "text", "input_text", "output_text")
"""Values of `type` in the parts of a content that are text; None stands for a part without `type`."""
_READ_BY_TEMPLATES = {"tools", "documents"}
"""Arguments of `apply_chat_template` that are passed on to the template as variables."""
TEMPLATE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors that a chat template can raise besides jinja2's own."""
_WRITTEN_CHAT = re.compile(r"""\s*\[\s*\{\s*["'](?:role|from|content|value)["']""")
_TURN = re.compile(
    r"(?:\A|\n\n)(Human|User|Assistant):(?=\s|\Z)|^(USER|ASSISTANT):(?=\s|\Z)"  # Anthropic, Vicuna
    r"|<\|(?:im_start|start_header_id)\|>(\w+)(?:<\|end_header_id\|>)?|<\|(user|assistant|system)\|>|<start_of_turn>(\w+)"
    r"|\[(/?INST)\]|^### ?(Instruction|Input|Response|Human|User|Assistant):",  # Llama 2, Alpaca
    re.MULTILINE,
)
"""Marks that begin a turn in a chat written as one text. The group that matches is the turn's role."""
_TURN_END = re.compile(r"\s*(?:<\|(?:im_end|eot_id|end)\|>|<end_of_turn>|</?s>)\s*")


def is_chat(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(part, Mapping) for part in value)


# -- reading ----------------------------------------------------------------------------------------------------------


def list_turns(value: Any) -> list[Any] | None:
    """Return the messages of a chat in any form, unchanged; None if the value is no chat, such as a plain text.

    Raises `InputError` for a string that begins like a chat and isn't JSON.
    """
    if isinstance(value, str) and _WRITTEN_CHAT.match(value):
        value = _from_json(value)
        if isinstance(value, str):
            raise InputError("the chat is not JSON: write it as a list of messages, or as JSON with double quotes")
    elif isinstance(value, str) and value.startswith("\n\nHuman:"):
        turns = read_transcript(value) or [{}]
        return turns if turns[-1].get("content") else None  # "Assistant:" at the end begins a reply: a prompt
    if not isinstance(value, Mapping):
        return list(value) if isinstance(value, list | tuple) else None
    columns = list(value.values())  # how `datasets` before version 4 kept lists of objects
    if columns and all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return [value] if value.keys() & {"role", "from"} else None


def read_transcript(text: str) -> list[Message] | None:
    r"""Return the turns of a chat that is written as one text; None for a text without a turn of the user.

    Text before the first mark is the assistant's turn if the user's turn follows.

    >>> read_transcript("A cat.\n\nHuman: And a dog?")
    [{'role': 'assistant', 'content': 'A cat.'}, {'role': 'user', 'content': 'And a dog?'}]
    """
    turns, role, end = list[Message](), "", 0
    for match in (*_TURN.finditer(text), None):
        name = match[match.lastindex or 0] if match else ""
        following = find_role(name) or ""
        content = _TURN_END.sub("", text[end : match.start() if match else len(text)]).strip()
        if content or role:
            turns.append({"role": role or ("assistant" if following == "user" else "system"), "content": content})
        role, end = following or "system", match.end() if match else 0
    return turns if any(turn["role"] == "user" for turn in turns) else None


def read_messages(turns: Sequence[Any], *, template: object = None) -> list[Message]:
    """Return the messages of a chat with OpenAI's names and without nulls, which Arrow writes for missing values.

    A content with one part becomes a text, with several parts a list of {"type": "text", "text": …}, without parts "".
    A tool call's arguments become an object. Other fields are kept.

    template: a chat template, whose own names of roles are kept, too.
    """
    return [_read_message(turn, number, template) for number, turn in enumerate(turns, start=1)]


def read_chat(turns: Sequence[Any], *, template: object = None) -> list[Message]:
    """Return the messages of a chat as `read_messages` does, without the assistant's messages at the chat's end."""
    count = len(turns)
    while count and _find_role(_fields(turns[count - 1], count), count, template) in ("assistant", *_CALLS):
        count -= 1
    messages = read_messages(turns[:count], template=template)
    if not messages or messages[-1]["role"] == "system":
        raise InputError("the chat has no message to reply to: a message of the user is needed")
    if not join_parts(messages[-1]["content"]).strip():
        raise InputError("the prompt is empty: the last message before the reply has no text")
    return messages


def list_replies(turns: Sequence[Any]) -> list[str]:
    """Return the texts of the assistant's replies in order, "" for a reply that only calls a tool."""
    replies = []
    for number, turn in enumerate(turns, start=1):
        fields = _fields(turn, number)
        if _find_role(fields, number) == "assistant":
            content = _content_of(fields)
            if not isinstance(content, str | list | tuple | None):
                raise InputError(f"message {number} of the chat has the content {content!r:.40}; a text was expected")
            text = "\n".join(text for part in _list_parts(content) if (text := _text_of(part)) is not None)
            replies.append("" if _is_call(text) else text)
    return replies


def map_replies(value: Any, change: Callable[[str, Any], str]) -> Any:
    """Return a chat in the form in which it came, with each text of the assistant's replies changed, but no tool calls.

    A text that is no chat is changed as a whole; None stays. Raises `InputError` for a chat that can't be read.

    change: takes a text and what came before it in the chat: messages, or of a chat written as one text, that text.
    """
    if isinstance(value, str) and value.startswith("\n\nHuman:"):
        marks, made = [*_TURN.finditer(value)], ""
        for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(value)], strict=True):
            text, role = value[mark.end() : end], find_role(mark[mark.lastindex or 0])
            made += mark[0] + (change(text, value[: mark.end()]) if role == "assistant" else text)
        return made
    turns = list_turns(value)
    if turns is None and not isinstance(value, str | None):
        raise InputError(f"a text or a chat was expected, not {type(value).__name__}: correct the record")
    if turns is None:
        return value and change(value, "")
    list_replies(turns)  # raises an error for a message that can't be read
    changed = [_change_reply(turn, turns[:number], change) for number, turn in enumerate(turns)]
    if isinstance(value, Mapping):
        return changed[0] if turns[0] is value else {name: [turn[name] for turn in changed] for name in value}
    return changed if not isinstance(value, str) else value if changed == turns else json.dumps(changed)


def _change_reply(turn: dict[str, Any], before: Sequence[Any], change: Callable[[str, Any], str]) -> dict[str, Any]:
    def change_part(part: Any) -> Any:
        if not (text := _text_of(part)) or _is_call(text):
            return part
        return {**part, "text": change(text, before)} if isinstance(part, Mapping) else change(text, before)

    name = next((name for name in _CONTENTS if turn.get(name) is not None), None)
    if name is None or find_role(str(turn.get("role") or turn.get("from"))) != "assistant":
        return turn
    content = turn[name]
    return {**turn, name: [*map(change_part, content)] if isinstance(content, list) else change_part(content)}


def _is_call(text: str) -> bool:
    return text.lstrip().startswith("<tool_call>") and text.rstrip().endswith("</tool_call>")


def list_requests(turns: Sequence[Any]) -> list[str]:
    """Return the texts of all messages except the assistant's. Items that aren't messages or texts are left out."""
    messages = [turn for turn in turns if isinstance(turn, Mapping)]
    others = [turn for turn in messages if find_role(str(turn.get("role", turn.get("from")))) != "assistant"]
    return [text for turn in others for part in _list_parts(_content_of(turn)) if (text := _text_of(part))]


def find_role(name: str) -> str | None:
    """Return OpenAI's name of a role; None for an unknown role.

    >>> find_role("Human")
    'user'
    """
    return next((role for role, names in _ROLES.items() if name.strip().lower() in names), None)


def join_parts(content: Any) -> str:
    """Return the text of a content from `read_content`, with its parts joined by line feeds, as in vLLM."""
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else str(content)


def read_content(content: Any, place: str) -> str | list[Message]:
    """Return a message's content as a text, or as a list of parts if it has several. place: its name in errors."""
    texts = []
    for part in _list_parts(content):
        if (text := _text_of(part)) is None:
            shown = shorten(repr(part), 60)
            raise InputError(f"{place} has {shown}; only parts of type text are read: leave it out")
        texts.append(text)
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]


def read_call(call: Any, place: str) -> Message:
    """Return a tool call in OpenAI's format, but with an object as its arguments. place: the call's name in errors."""
    fields = call if isinstance(call, Mapping) else {}
    function, number = fields.get("function", fields), fields.get("id")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(number, str | None):
        raise InputError(f"{place} is {shorten(repr(call), 60)}; a call of a function was expected")
    arguments = function.get("arguments") or {}
    arguments = _from_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        shown = shorten(repr(arguments), 60)
        raise InputError(f"{place}.function.arguments is {shown}; a JSON object was expected")
    more = {} if number is None else {"id": number}
    return {**more, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def read_tools(tools: Any) -> list[Any]:
    """Return tools in OpenAI's format, from a list of tools or its JSON text. Python functions are kept as they are."""
    listed = (_from_json(tools) if isinstance(tools, str) and tools.strip() else tools) or []
    if not isinstance(listed, list) or not all(isinstance(tool, Mapping) or callable(tool) for tool in listed):
        raise InputError(f"tools is {shorten(repr(tools), 60)}; a list of functions, or JSON of one, was expected")
    tools = [_drop_nulls(tool) for tool in listed]
    is_bare = [isinstance(tool, dict) and "name" in tool and "function" not in tool for tool in tools]
    return [{"type": "function", "function": tool} if bare else tool for tool, bare in zip(tools, is_bare, strict=True)]


def read_variables(fields: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Return the chat template's variables that a record's columns `tools` and `chat_template_kwargs` set."""
    tools, variables = read_tools(fields.get("tools")), fields.get("chat_template_kwargs") or {}
    if tokenizer is not None:
        variables = _drop_nulls(_from_json(variables) if isinstance(variables, str) else variables)
        variables = check_variables(variables, tokenizer)
    return {**variables, **({"tools": tools} if tools else {})}


def put_system(messages: list[Message], system: Any) -> list[Message]:
    """Return the chat with `system` as its only system message, or without a system message if `system` is empty."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *(message for message in messages if message["role"] != "system")]


def _fields(turn: Any, number: int) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        was = "nothing" if turn is None else type(turn).__name__
        raise InputError(f"message {number} of the chat is {was}: write {{'role': …, 'content': …}}")
    return dict(_drop_nulls(turn))


def _find_role(fields: Mapping[str, Any], number: int, template: object = None) -> str:
    """Return OpenAI's name of the role of a message, or one of `_CALLS`, or a role that only the template knows."""
    name = fields.get("role", fields.get("from"))
    if not isinstance(name, str):
        raise InputError(f"message {number} of the chat has no role: write {{'role': …, 'content': …}}")
    role = find_role(name) or next((call for call in _CALLS if name.strip().lower() == call), None)
    if role is None and isinstance(template, str) and (f"'{name}'" in template or f'"{name}"' in template):
        return name
    if role is None:
        raise InputError(
            f"message {number} of the chat has the role {shorten(name, 40)!r}; system, user, assistant, tool, or "
            "another name of one, such as human and gpt, was expected: rename it"
        )
    return role


def _read_message(turn: Any, number: int, template: object) -> Message:
    fields, place = _fields(turn, number), f"message {number} of the chat"
    role, content = _find_role(fields, number, template), _content_of(fields)
    calls = fields.pop("tool_calls", [])
    calls = (_from_json(calls) if isinstance(calls, str) else calls) or []
    if role in _CALLS:
        role, content, read = "assistant", None, _from_json(content) if isinstance(content, str) else content
        calls = read if isinstance(read, list) else [read]
    if "function_call" in fields:  # of OpenAI, before calls had a list
        calls = [fields.pop("function_call")]
    if not isinstance(calls, list):
        raise InputError(f"{place} has the tool_calls {shorten(repr(calls), 60)}; a list was expected")
    if content is None and not calls and not fields.keys() & set(_THOUGHTS):
        raise InputError(f"{place} has no content: write {{'role': …, 'content': …}}")
    return {
        **{name: value for name, value in fields.items() if name not in ("from", *_CONTENTS)},
        "role": role,
        "content": read_content(content, place),
        **({"tool_calls": [read_call(call, f"a call in {place}") for call in calls]} if calls else {}),
    }


def _content_of(fields: Mapping[str, Any]) -> Any:
    return next((fields[name] for name in _CONTENTS if name in fields), None)


def _list_parts(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list | tuple) else [] if content is None else [content]


def _text_of(part: Any) -> str | None:
    """Return the text of one part of a content; None if the part is no text."""
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS else part
    return text if isinstance(text, str) else None


def _from_json(text: str) -> Any:
    """Return the value of a JSON text. Return invalid or too deeply nested JSON unchanged, for callers to refuse."""
    try:
        return to_json(parse_json(text, "", advice=""))
    except InputError:
        return text


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


# -- rendering --------------------------------------------------------------------------------------------------------


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the text of a chat up to the reply, by the tokenizer's template, with special tokens.

    variables: values for the template's variables, such as enable_thinking and tools.

    Raises `InputError` for a chat that the template refuses, and if the template leaves tools or calls out of the text.
    """
    from jinja2 import TemplateError

    if not getattr(tokenizer, "chat_template", None):
        raise InputError("messages need a chat template, which the tokenizer doesn't have: pass a text instead")
    options = {"add_generation_prompt": True, **variables}
    try:
        text = apply_template(messages, tokenizer, **options)
    except (TemplateError, *TEMPLATE_ERRORS) as error:
        raise InputError(f"the chat template refuses the chat ({first_line(error)}): change the chat") from error
    silent = [{name: value for name, value in message.items() if name != "tool_calls"} for message in messages]
    if silent != list(messages) and _try_template(silent, tokenizer, **options) == text:
        raise InputError("the chat template shows no calls of tools, which the chat has: leave them out")
    if variables.get("tools") and _try_template(messages, tokenizer, **{**options, "tools": None}) == text:
        raise InputError("the chat template shows no tools, which the chat has: leave them out")
    return text


def apply_template(messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    """Return the text of a chat, rendered by the tokenizer's template. Raises what the template raises.

    A content in parts is passed as parts if the template reads parts, else as one text, with line feeds between parts,
    as in vLLM. A content that is a text is passed as one part if the template reads only parts.

    options: arguments of `apply_chat_template`.
    """
    contents = [message.get("content") for message in messages]
    if divided := [number for number, content in enumerate(contents) if isinstance(content, list)]:
        joined = set(divided) - _find_read_parts(messages, divided, tokenizer, options)
        contents = [join_parts(content) if number in joined else content for number, content in enumerate(contents)]
        messages = [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]
    text = str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    if not contents or not isinstance(contents[-1], str) or contents[-1].strip() in text:
        return text
    whole = [number for number, content in enumerate(contents) if isinstance(content, str)]
    read = _find_read_parts(messages, whole, tokenizer, options)
    chat = [
        {**message, "content": [{"type": "text", "text": contents[number]}]} if number in read else message
        for number, message in enumerate(messages)
    ]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, **options))


def _find_read_parts(
    messages: Sequence[Mapping[str, Any]],
    numbers: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
) -> set[int]:
    """Return those of the messages `numbers` whose content the template would read part by part."""
    probe = list(messages)
    for number in numbers:
        parts = [{"type": "text", "text": mark} for mark in (f"<{number}>", f"</{number}>")]
        probe[number] = {**messages[number], "content": parts}
    shown = _try_template(probe, tokenizer, **options) or ""
    read = set()
    for first, second in pairwise(re.finditer(r"<(/?)(\d{1,9})>", shown)):
        # A template that expects a text writes the list as Python or JSON does, with its keys between the two texts.
        if (first[1], second[1], second[2]) == ("", "/", first[2]) and "text" not in shown[
            first.end() : second.start()
        ]:
            read.add(int(first[2]))
    return read & set(numbers)


def _try_template(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, **options: Any
) -> str | None:
    """Return the text of a chat, rendered by the tokenizer's template; None if the template refuses the chat."""
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except (TemplateError, *TEMPLATE_ERRORS):
        return None


def check_variables(
    variables: object, tokenizer: PreTrainedTokenizerBase | type[PreTrainedTokenizerBase]
) -> dict[str, Any]:
    """Return a chat template's variables, with tools in OpenAI's format. Raises `InputError` for invalid variables."""
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise InputError(f"chat_template_kwargs is {variables!r}; names and values were expected")
    taken = {"messages", *signature(tokenizer.apply_chat_template).parameters} - _READ_BY_TEMPLATES
    if reserved := sorted(variables.keys() & taken):
        raise InputError(f"chat_template_kwargs has {reserved[0]!r}, which no template reads: leave it out")
    return {**variables, **({"tools": read_tools(variables["tools"])} if "tools" in variables else {})}
