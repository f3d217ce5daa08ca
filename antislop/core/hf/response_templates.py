"""How a model writes its messages: where their thoughts, their calls of tools and their answers are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import regex
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans.scopes import THOUGHTS, TOOL_CALLS, BanScope, Regions, Scope
from antislop.core.hf.private import RegionParser, compile_response_template, response_template_for
from antislop.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate as CompiledTemplate

_NEVER = "(?!)"  # matches nothing
_HEAD = regex.compile(r"(?:\\s[*+]?)?(?P<head>(?:(?:\\\W|[^\\.^$*+?{}\[\]|()])(?![*+?{]))+)")


@dataclass(frozen=True)
class ResponseTemplate:
    """How a model writes its messages. Raises `InputError` for a template that is not valid.

    source: as transformers defines such templates in JSON.
    """

    source: dict[str, Any]

    def __post_init__(self) -> None:
        read_response_template(self.source)

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        """The parts of a message, by their names."""
        fields: Mapping[str, Mapping[str, Any]] = self.source["fields"]
        return fields

    @property
    def thoughts(self) -> Mapping[str, Any]:
        """The field of the thoughts, empty if there is none."""
        return next((self.fields[name] for name in sorted(THOUGHTS) if name in self.fields), {})

    @staticmethod
    def is_thought(field: str | None) -> bool:
        return field in THOUGHTS

    def find_spelled(self, names: Mapping[int, str]) -> dict[int, str]:
        r"""Return the special tokens that the fields read, with their names.

        >>> fields = {"a": {"close": "</s>", "open_pattern": r"<\|a\|>"}}
        >>> template = ResponseTemplate({"fields": fields, "start_anchor": "<s>"})
        >>> template.find_spelled({0: "</s>", 1: "<|a|>", 2: "b"})
        {0: '</s>', 1: '<|a|>'}
        """
        text = json.dumps(self.fields, ensure_ascii=False).replace("\\", "")
        return {token: name for token, name in names.items() if name in text}

    def begin(self, prompt: str, *, tools: list[Any]) -> RegionParser:
        """Return what reads one message. prompt: the rendered chat, which may have begun the message."""
        return RegionParser(self.source, prompt, tools=tools)


def find_response_template(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None = None
) -> ResponseTemplate | None:
    """Return a model's response template; None if it has none.

    It is the tokenizer's `response_template`, or else that which transformers has for the type of the model. Without
    `model`, the type is that in the tokenizer's folder.

    Raises `InputError` for a template of the tokenizer that is not valid.
    """
    template = getattr(tokenizer, "response_template", None)
    if template is None:
        model_type = None if model is None else model.config.model_type
        if model is None and tokenizer.name_or_path:
            with suppress(OSError, ValueError):
                model_type = PreTrainedConfig.get_config_dict(tokenizer.name_or_path)[0].get("model_type")
        template = response_template_for(model_type) if model_type else None
    return None if template is None else ResponseTemplate(template)


def read_response_template(template: Any) -> CompiledTemplate:
    try:
        return compile_response_template(template)
    except (ValueError, TypeError) as error:
        raise InputError(f"the response template is not valid: {first_line(error)}") from error


def chat_scope(template: dict[str, Any], where: BanScope, *, has_calls: bool = True) -> Scope:
    """Return the scope of the bans that apply to one part of a message.

    template: the tokenizer's `response_template`. The parts are as its parser finds them; a part that a pattern opens
        begins with the literal text at the pattern's beginning.
    where: "answer": outside of thoughts and tool calls. "thinking": in thoughts. "all": outside of tool calls.
    has_calls: whether there are tools to call; without any, what looks like a call is a part of the answer.

    Raises `InputError` for a template that can't be read, and for thoughts if it has none.
    """
    read = read_response_template(template)
    explicit = [field for field in read.fields.values() if field.open_re is not None]
    thoughts = THOUGHTS & {field.name for field in explicit}
    if where == "thinking" and not thoughts:
        raise InputError(f"the response template has no thoughts, which are one of {', '.join(sorted(THOUGHTS))}")
    delimiters = []
    for field in explicit:
        # A pattern may go on to the name of a function, which is a part of the call already.
        head = None if field.open_literals else _HEAD.match(field.open_re.pattern)
        opening = head["head"] if head else field.open_re.pattern
        closing = _NEVER if field.close_re is None else str(field.close_re.pattern)
        delimiters.append((field.name, opening, closing))
    calls = TOOL_CALLS if has_calls else frozenset()
    chosen = {"answer": thoughts | calls, "thinking": thoughts, "all": calls}[where]
    regions = Regions(tuple(delimiters), tuple(sorted(chosen)), read.start_anchor_re.pattern)
    return Scope("inside" if where == "thinking" else "outside", regions)


def choose_scopes(
    where: BanScope | None, template: ResponseTemplate | None, *, has_calls: bool = True
) -> tuple[Scope, ...]:
    """Return the scopes that all bans get.

    where, has_calls: as in `chat_scope`; None is "answer" with a template and "all" without one.
    template: the model's response template, if it has one.

    Raises `InputError` for a part that can't be found without a template.
    """
    if template is None:
        if where in (None, "all"):
            return ()
        raise InputError(
            f"the parts of a message are not known, so bans can't hold in {where!r} alone: the model has no response "
            "template"
        )
    return (chat_scope(template.source, where or "answer", has_calls=has_calls),)
