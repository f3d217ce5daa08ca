"""The grammar of answers that call a tool, from a response template, for models that write calls as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antislop.core.bans import THOUGHTS
from antislop.serve.request_errors import RequestError

METACHARACTERS = frozenset(".^$*+?{}[]()|\\")
ANY = "/(?s:.*)/"
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""The arguments of a function without parameters."""
SPACE = "/\\n{0,2}/"
SPACING = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""That of `json.dumps`."""


def write_grammar(
    template: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    *,
    is_thinking: bool,
    has_many: bool,
    special: Mapping[int, str],
) -> str:
    """Return a grammar in llguidance's variant of Lark. Raises `RequestError` for other templates.

    is_thinking: the answer begins within thoughts.
    has_many: more than one call may follow.
    special: the special tokens that the template reads, with their names.
    """
    fields: Mapping[str, Mapping[str, Any]] = template.get("fields", {})
    calls = fields.get("tool_calls", {})
    opening, closing = (_read_literal(calls, name, special) for name in ("open", "close"))
    thoughts = next((fields[name] for name in sorted(THOUGHTS) if name in fields), {})
    thinking, thought = (_read_literal(thoughts, name, special) for name in ("open", "close"))
    is_json = calls.get("content") == "json" and not calls.get("content_args")
    has_function = calls.get("transform", {}).get("function") == "{content}"
    if not (opening and closing and is_json and has_function and (thought or not is_thinking)):
        message = "calls can be required of models that write JSON between fixed delimiters only: leave tool_choice out"
        raise RequestError(400, message, param="tool_choice")
    special_ends = str(thought).startswith("<")
    start = "rest" if is_thinking else "thoughts?" if thinking and thought else ""
    more = ' ("\\n"? call)*' if has_many else ""
    choices = " | ".join(f"call_{number}" for number in range(len(tools)))
    lines = [f"start: {start} {SPACE} call{more}", f'call: {opening} "\\n"? ({choices}) "\\n"? {closing}']
    if start:
        lines += [f"thoughts: {thinking} rest" if thinking else ""]
        lines += [f"rest: TEXT {thought}", f"TEXT: {ANY}"] if special_ends else [f"rest[suffix={thought}]: {ANY}"]
    for number, tool in enumerate(tools):
        function = tool["function"]
        head = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        schema = json.dumps({**SPACING, **(function.get("parameters") or NOTHING)})
        lines += [f'call_{number}: {head} arguments_{number} "}}"', f"arguments_{number}: %json {schema}"]
    return "\n".join(filter(None, lines))


def _read_literal(region: Mapping[str, Any], name: str, special: Mapping[int, str]) -> str | None:
    r"""Return a delimiter of a region in Lark; None unless it is one text, or a pattern that has only one.

    >>> _read_literal({"open_pattern": r"\s*<call\|>"}, "open", {})
    '"<call|>"'
    >>> _read_literal({"close": "<end>"}, "close", {7: "<end>"})
    '<[7]>'
    """
    literal = region.get(name)
    if isinstance(literal, list):
        literal = literal[0]
    if literal is None:
        pattern = region.get(f"{name}_pattern", "(").removeprefix("\\s*")
        if METACHARACTERS & set(re.sub(r"\\\W", "", pattern)):
            return None
        literal = re.sub(r"\\(\W)", r"\1", pattern)
    tokens = {name: f"<[{token}]>" for token, name in special.items()}
    parts = re.split("(" + "|".join(map(re.escape, tokens)) + ")", literal) if tokens else [literal]
    return " ".join(tokens.get(part) or json.dumps(part) for part in parts if part)
