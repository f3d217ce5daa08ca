"""Where the thoughts, the tool calls and the answer of a message are, by a tokenizer's response template."""

from __future__ import annotations

from typing import Any, Literal

import regex
from transformers.utils.chat_parsing.response_templates import ResponseTemplateField, load_response_template

from antislop.errors import InputError, first_line
from antislop.matching.scopes import Regions, Scope

BanScope = Literal["answer", "thinking", "all"]
"""Where bans apply in a message: nowhere in its tool calls, and in the thoughts or beside them or both."""
THOUGHTS = frozenset({"reasoning_content", "reasoning", "thinking"})
TOOL_CALLS = frozenset({"tool_calls"})

_NEVER = "(?!)"  # matches nothing
_HEAD = regex.compile(r"(?:\\s[*+]?)?(?P<head>(?:(?:\\\W|[^\\.^$*+?{}\[\]|()])(?![*+?{]))+)")


def chat_scope(template: dict[str, Any], where: BanScope) -> Scope:
    """Return the scope of the bans that apply to one part of a message.

    template: the tokenizer's `response_template`. The parts are as its parser finds them; a part that a pattern opens
        begins with the literal text at the pattern's beginning.
    where: "answer": outside of thoughts and tool calls. "thinking": in thoughts. "all": outside of tool calls.

    Raises `InputError` for a template that can't be read, and for thoughts if it has none.
    """
    try:
        read = load_response_template(template)
    except (ValueError, TypeError) as error:
        raise InputError(f"the response template can't be read: {first_line(error)}") from error
    explicit = [field for field in read.fields.values() if field.open_re is not None]
    thoughts = THOUGHTS & {field.name for field in explicit}
    if where == "thinking" and not thoughts:
        raise InputError(f"the response template has no thoughts, which are one of {', '.join(sorted(THOUGHTS))}")
    delimiters = tuple((field.name, _find_opening(field), _find_closing(field)) for field in explicit)
    chosen = {"answer": thoughts | TOOL_CALLS, "thinking": thoughts, "all": TOOL_CALLS}[where]
    regions = Regions(delimiters, tuple(sorted(chosen)), read.start_anchor_re.pattern)
    return Scope("inside" if where == "thinking" else "outside", regions)


def _find_opening(field: ResponseTemplateField) -> str:
    # A pattern may go on to the name of a function, which is a part of the call already.
    pattern: str = field.open_re.pattern
    match = None if field.open_literals else _HEAD.match(pattern)
    return match["head"] if match else pattern


def _find_closing(field: ResponseTemplateField) -> str:
    return _NEVER if field.close_re is None else str(field.close_re.pattern)
