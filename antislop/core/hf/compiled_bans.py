"""Bans compiled for one tokenizer, and scopes that limit bans to a part of a chat message, such as the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import regex
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans.ban_list import BanList, Bans, read_bans
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import THOUGHTS, TOOL_CALLS, BanScope, Regions, Scope
from antislop.core.bans.token_matcher import Matcher, State
from antislop.core.bans.units import Unit
from antislop.core.hf.private import RegionParser, compile_response_template, response_template_for
from antislop.core.hf.refusals import refusal
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.row import Callbacks, RowSpec
from antislop.core.loop.sampling import Policy
from antislop.core.trace.events import Conceded
from antislop.errors import BanError, InputError, first_line

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate as CompiledTemplate

_NEVER = "(?!)"  # matches nothing
_HEAD = regex.compile(r"(?:\\s[*+]?)?(?P<head>(?:(?:\\\W|[^\\.^$*+?{}\[\]|()])(?![*+?{]))+)")


def name_forced(bans: BanList, tokenizer: PreTrainedTokenizerBase) -> BanList:
    """Replace each ban with then="force" but no text by two: in thoughts, force their end; elsewhere, then="stop".

    Raises `BanError` if the tokenizer's response template doesn't say how thoughts end.
    """
    nameless = dict.fromkeys(ban for ban in bans if ban.then == "force" and not ban.force)
    if not nameless:
        return bans
    if tokens := [ban.pattern.describe() for ban in nameless if not ban.pattern.occurs_in_text]:
        raise BanError(f"then='force' needs a text for {tokens[0]}, which have no place in thoughts: pass force")
    template = find_response_template(tokenizer)
    fields = read_response_template(template.source).fields if template else {}
    ends = [field.close_literals[0] for name, field in fields.items() if name in THOUGHTS and field.close_literals]
    if template is None or not ends:
        raise refusal("no end of thoughts", error=BanError)
    inside = chat_scope(template.source, "thinking")
    outside = replace(inside, where="outside")
    named: list[Ban] = []
    for ban in bans:
        if ban in nameless:
            named.append(replace(ban, force=ends[0], scopes=(*ban.scopes, inside)))
            named.append(replace(ban, then="stop", scopes=(*ban.scopes, outside)))
        else:
            named.append(ban)
    return BanList(named, source=bans.source, license=bans.license)


def encode_forced(
    bans: Iterable[Ban], tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> dict[str, tuple[int, ...]]:
    """Return the tokens of each text that a ban forces. Raises `BanError` if no tokens spell a text exactly."""
    forced: dict[str, tuple[int, ...]] = {}
    for text in {ban.force for ban in bans if ban.force}:
        before, *tries = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (".", text, "." + text))
        for ids in (tries[0], tries[1][len(before) :]):  # some tokenizers put a space before a text
            surfaces = (
                vocabulary.breaks[token].encode() if token in vocabulary.breaks else vocabulary.surface(token)
                for token in ids
            )
            if b"".join(surfaces) == text.encode():
                forced[text] = tuple(ids)
                break
        else:
            raise BanError(f"force is {text!r}, which this tokenizer does not write as it stands: choose another text")
    return forced


@dataclass(frozen=True, eq=False)
class CompiledBans:
    """Bans with the matcher that finds them; compared and hashed by identity, since lists are long.

    bans: the bans as they apply: each has the sampler's exempt phrases and scopes, too, and a text if it forces text.
    forced: the tokens of each text that a ban forces.
    The other options have the same meaning as in `AntiSlop`.
    """

    bans: BanList
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    matcher: Matcher
    exempt: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ()
    prompt_lookback: bool = True
    exempt_prompt: bool = False
    rewind: Unit | None = None
    forced: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = len(self.vocabulary.surfaces)
        for ban in self.bans:
            if max(ban.pattern.token_ids, default=0) >= known:
                raise BanError(f"{ban!r:.60} is beyond the tokenizer, whose ids end at {known - 1:,}: pass its ids")

    @classmethod
    def compile(
        cls,
        bans: Bans,
        tokenizer: PreTrainedTokenizerBase,
        *,
        strings: Sequence[str] = (),
        patterns: Sequence[str] = (),
        exempt: Sequence[str] = (),
        scopes: Sequence[Scope] = (),
        prompt_lookback: bool = True,
        exempt_prompt: bool = False,
        rewind: Unit | None = None,
    ) -> CompiledBans:
        """Compile bans for a tokenizer. strings, patterns: more bans: `banned_strings` and `banned_regex`."""
        named = name_forced(read_bans(bans), tokenizer)
        applied = read_bans(named, strings=strings, patterns=patterns, exempt=exempt, scopes=scopes, rewind=rewind)
        vocabulary = Vocabulary.of(tokenizer)
        return cls(
            applied,
            tokenizer,
            vocabulary,
            Matcher(applied, vocabulary),
            tuple(exempt),
            tuple(scopes),
            prompt_lookback,
            exempt_prompt,
            rewind,
            encode_forced(applied, tokenizer, vocabulary),
        )

    def with_bans(self, bans: Bans) -> CompiledBans:
        named = name_forced(read_bans(bans), self.tokenizer)
        applied = read_bans(named, exempt=self.exempt, scopes=self.scopes, rewind=self.rewind)
        forced = encode_forced(applied, self.tokenizer, self.vocabulary)
        return replace(self, bans=applied, matcher=Matcher(applied, self.vocabulary), forced=forced)

    def read_prompt(self, ids: Sequence[int]) -> State:
        return self.matcher.start(
            ids,
            lookback=self.prompt_lookback,
            exempt_prompt=self.exempt_prompt,
            drops_space=self.vocabulary.drops_space_after(ids),
        )

    def make_row(
        self,
        tokens: Sequence[int],
        *,
        policy: Policy,
        callbacks: Callbacks,
        max_new_tokens: int,
        generator: torch.Generator | None = None,
    ) -> RowSpec:
        """Return the specification of a text that continues the prompt `tokens`."""
        return RowSpec(
            prompt=torch.tensor([tokens]),
            matcher=self.matcher,
            state=self.read_prompt(tokens),
            policy=policy,
            callbacks=callbacks,
            max_new_tokens=max_new_tokens,
            generator=generator,
            forced=self.forced,
        )


@dataclass(frozen=True)
class Terms:
    """The bans of a sampler, its policy for drawing again, and `warn`, a function that is called for each concession.

    options: the keyword arguments of the `AntiSlop` to which these terms belong, for its traces.
    """

    bans: CompiledBans
    policy: Policy
    options: Mapping[str, Any]
    warn: Callable[[Conceded], None]


# -- the parts of a model's messages: thoughts, tool calls and answers -------------------------------------------------


@dataclass(frozen=True)
class ResponseTemplate:
    """How a model marks the parts of its messages. The constructor raises `InputError` for an invalid template.

    source: the template as a dict, in the format that transformers defines.
    """

    source: dict[str, Any]

    def __post_init__(self) -> None:
        read_response_template(self.source)

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        """The template's entries for the parts of a message, by the names of the parts."""
        fields: Mapping[str, Mapping[str, Any]] = self.source["fields"]
        return fields

    @property
    def thoughts(self) -> Mapping[str, Any]:
        """The entry for the model's thoughts; empty if the template has none."""
        return next((self.fields[name] for name in sorted(THOUGHTS) if name in self.fields), {})

    @staticmethod
    def is_thought(field: str | None) -> bool:
        return field in THOUGHTS

    def find_spelled(self, names: Mapping[int, str]) -> dict[int, str]:
        r"""Return those of the special tokens `names` whose names occur in the template's fields.

        >>> fields = {"a": {"close": "</s>", "open_pattern": r"<\|a\|>"}}
        >>> template = ResponseTemplate({"fields": fields, "start_anchor": "<s>"})
        >>> template.find_spelled({0: "</s>", 1: "<|a|>", 2: "b"})
        {0: '</s>', 1: '<|a|>'}
        """
        text = json.dumps(self.fields, ensure_ascii=False).replace("\\", "")
        return {token: name for token, name in names.items() if name in text}

    def begin(self, prompt: str, *, tools: list[Any]) -> RegionParser:
        """Return a parser for one message. prompt: the rendered chat, which may contain the message's beginning."""
        return RegionParser(self.source, prompt, tools=tools)


def find_response_template(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None = None
) -> ResponseTemplate | None:
    """Return a model's response template; None if it has none.

    This is the tokenizer's `response_template`, or else transformers' template for the model's type. Without `model`,
    the type is read from the configuration in the tokenizer's folder or repository.

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
    """Return a scope that limits bans to one part of a chat message.

    template: the tokenizer's `response_template`, which says how parts begin and end. If a regex opens a part, the part
        begins with the literal text at the start of that regex.
    where: "answer": outside of thoughts and tool calls. "thinking": in thoughts. "all": outside of tool calls.
    has_calls: whether there are tools to call; if not, text that looks like a call belongs to the answer.

    Raises `InputError` for a template that is not valid, and for where="thinking" if the template has no thoughts.
    """
    read = read_response_template(template)
    explicit = [field for field in read.fields.values() if field.open_re is not None]
    thoughts = THOUGHTS & {field.name for field in explicit}
    if where == "thinking" and not thoughts:
        raise InputError(f"the response template has no thoughts, which are one of {', '.join(sorted(THOUGHTS))}")
    delimiters = []
    for part in explicit:
        # A pattern may extend to the name of a function, which belongs to the call already: only its head is taken.
        head = None if part.open_literals else _HEAD.match(part.open_re.pattern)
        opening = head["head"] if head else part.open_re.pattern
        closing = _NEVER if part.close_re is None else str(part.close_re.pattern)
        delimiters.append((part.name, opening, closing))
    calls = TOOL_CALLS if has_calls else frozenset()
    chosen = {"answer": thoughts | calls, "thinking": thoughts, "all": calls}[where]
    regions = Regions(tuple(delimiters), tuple(sorted(chosen)), read.start_anchor_re.pattern)
    return Scope("inside" if where == "thinking" else "outside", regions)


def choose_scopes(
    where: BanScope | None, template: ResponseTemplate | None, *, has_calls: bool = True
) -> tuple[Scope, ...]:
    """Return the scopes to add to all bans: one for a part of the messages, or none without a template.

    where, has_calls: as in `chat_scope`; None means "answer" with a template, and "all" without a template.
    template: the model's response template; None if it has none.

    Raises `InputError` for where="answer" and where="thinking" without a template.
    """
    if template is None:
        if where in (None, "all"):
            return ()
        raise refusal("unknown parts of messages", where=where)
    return (chat_scope(template.source, where or "answer", has_calls=has_calls),)
