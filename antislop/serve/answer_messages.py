"""Chat answers by the response template: parse a text into a message, or write a grammar that requires a call."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from antislop.core.hf import ResponseTemplate
from antislop.serve.request_errors import RequestError

LONG_SPACES = re.compile(r"(?<!\s)(\s{1000})\s+")
"""More than 1,000 spaces in a row: in a prompt, those beyond mean nothing, and take long to parse."""
SEPARATOR = "\n\n"
"""Separates two regions of the same field, unless the template sets another separator."""

METACHARACTERS = frozenset(".^$*+?{}[]()|\\")
ANY = "/(?s:.*)/"
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""The arguments of a function without parameters."""
SPACE = "/\\n{0,2}/"
SPACING = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""Options that make llguidance space JSON as `json.dumps` does."""


# -- reading a message -------------------------------------------------------------------------------------------------


@dataclass
class MessageDelta:
    """The next part of a message. calls: tool calls in OpenAI's format."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __iadd__(self, other: MessageDelta) -> MessageDelta:
        self.reasoning += other.reasoning
        self.content += other.content
        self.calls += other.calls
        return self

    def to_dict(self, *, first_call: int | None = None) -> dict[str, Any]:
        """Return plain data without empty parts. first_call: the `index` of the first call; None: write no `index`."""
        calls = [
            call if first_call is None else {"index": number, **call}
            for number, call in enumerate(self.calls, first_call or 0)
        ]
        parts = {"reasoning_content": self.reasoning, "content": self.content, "tool_calls": calls}
        return {name: part for name, part in parts.items() if part}


@dataclass
class _MessagePart:
    """The state of a message's thoughts, or of its content. gap: spaces or a separator to put before the next text."""

    has_text: bool = False
    has_region_text: bool = False
    gap: str = ""


class MessageParser:
    """Parses one message by a response template while its text comes in; returned parts of the message are final.

    prompt: the rendered chat. If it ends with the beginning of the message, that beginning is not returned.
    tools: the tools that the model may call. Without tools, calls are content.
    calls: the number of calls so far.

    A malformed call is content, too. The second region of a field begins a new paragraph.
    """

    def __init__(self, template: ResponseTemplate, *, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.calls = 0
        self._template = template
        self._regions = template.begin(LONG_SPACES.sub(r"\1", prompt), tools=list(tools))
        self._fields = self._regions.fields
        self._reads_calls = bool(tools)
        self._thoughts, self._content = _MessagePart(), _MessagePart()
        self._places: list[tuple[int, int, int]] = []  # of each part: start in the text and message, length
        self._length = 0
        self._read(self._regions.initial_events)

    @property
    def is_thinking(self) -> bool:
        return self._template.is_thought(self._regions.region)

    def feed(self, text: str) -> MessageDelta:
        """Take the next piece of the text, and return the part of the message that is certain now."""
        return self._read(self._regions.feed(text))

    def end(self, *, is_cut: bool) -> MessageDelta:
        """Return the rest of the message. is_cut: whether the text was cut: an incomplete call is then content."""
        return self._read(self._regions.finalize()[1], is_cut=is_cut)

    def locate(self, index: int) -> int:
        """Return the place of a character, `index` in the model's text, in all returned thoughts and content."""
        index += self._regions.prefilled
        number = bisect_right(self._places, index, key=lambda place: place[0])
        start, written_at, length = self._places[number - 1] if number else (index, 0, 0)
        return written_at + min(index - start, length)

    def _part_of(self, name: str) -> _MessagePart:
        return self._thoughts if self._template.is_thought(name) else self._content

    def _read(self, events: Sequence[dict[str, Any]], *, is_cut: bool = False) -> MessageDelta:
        delta = MessageDelta()
        for event in events:
            name, kind = event["field"], event["type"]
            part = self._part_of(name)
            if kind in ("region_close", "region_failed"):
                part.gap = "" if name != "tool_calls" else part.gap
                if not isinstance(event.get("value"), str) and not self._read_calls(event, delta, is_cut=is_cut):
                    self._add(delta, "content", event["raw"], event["start"])
            elif kind == "region_open" and name != "tool_calls":
                join = self._fields[name].join
                part.gap = (SEPARATOR if join is None else join) if part.has_text else ""
                part.has_region_text = False
            elif kind == "region_chunk" and not event["dirty"] and name != "tool_calls":
                self._add(delta, name, event["text"], event["start"])
        return delta

    def _read_calls(self, event: dict[str, Any], delta: MessageDelta, *, is_cut: bool) -> bool:
        """Add a region's calls to the delta. Return False if it is no region of calls, or a call is malformed."""
        if not self._reads_calls or event["field"] != "tool_calls" or (is_cut and not event.get("is_complete")):
            return False
        value = event.get("value")
        calls = [call for one in (value if isinstance(value, list) else [value]) if (call := read_call(one))]
        if not calls or (isinstance(value, list) and len(calls) < len(value)):
            return False
        if event["start"] + len(event["raw"]) > self._regions.prefilled:
            delta.calls += calls
            self.calls += len(calls)
        return True

    def _add(self, delta: MessageDelta, name: str, text: str, start: int) -> None:
        """Add a region's text to the delta, without spaces at the region's ends if the template strips these."""
        part = self._part_of(name)
        strips = name not in self._fields or self._fields[name].content_args.get("strip", True)
        count = max(0, self._regions.prefilled - start)
        old, new = text[:count], text[count:]
        if old.strip() or (old and not strips):
            part.has_text, part.has_region_text, part.gap = True, True, ""
        if strips and not part.has_region_text:
            new = new.lstrip()
        body = new.rstrip() if strips else new
        if body:
            self._places.append((start + len(text) - len(new), self._length + len(part.gap), len(body)))
            self._length += len(part.gap + body)
            delta += MessageDelta(*((part.gap + body, "") if part is self._thoughts else ("", part.gap + body)))
            part.has_text, part.has_region_text, part.gap = True, True, ""
        part.gap += new[len(body) :]


def read_call(call: Any) -> dict[str, Any] | None:
    """Return a tool call in OpenAI's format; None if the value is no valid call.

    >>> read_call({"function": {"name": "now", "arguments": {}}})["function"]
    {'name': 'now', 'arguments': '{}'}
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str) or not name:
        return None
    arguments = function.get("arguments", {})
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
        text = json.dumps(read, allow_nan=False)
        name.encode()
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": {"name": name, "arguments": text}}


# -- a grammar of the answers that call a tool, for models that write calls as JSON ------------------------------------


def write_grammar(
    template: ResponseTemplate | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    is_thinking: bool,
    has_many: bool,
    special: Mapping[int, str],
) -> str:
    """Return a grammar in llguidance's variant of Lark. Raises `RequestError` for templates without JSON calls.

    is_thinking: whether the answer begins within thoughts.
    has_many: whether the answer may have more than one call.
    special: the names of the special tokens in the template, by token id.
    """
    calls, thoughts = (template.fields.get("tool_calls", {}), template.thoughts) if template else ({}, {})
    opening, closing = (_read_literal(calls, name, special) for name in ("open", "close"))
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
    r"""Return a region's delimiter as a literal of Lark; None if the delimiter is a pattern for several texts.

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
