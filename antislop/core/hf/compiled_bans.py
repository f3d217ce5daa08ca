"""A list of bans, compiled for the tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antislop.core.bans.ban_list import BanList, Bans, read_bans
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import THOUGHTS, Scope
from antislop.core.bans.token_matcher import Matcher, State
from antislop.core.bans.units import Unit
from antislop.core.hf.response_templates import chat_scope, find_response_template, read_response_template
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.row import Callbacks, RowSpec
from antislop.core.loop.sampling import Policy
from antislop.errors import BanError


def name_forced(bans: BanList, tokenizer: PreTrainedTokenizerBase) -> BanList:
    """Replace each ban that forces text without naming it by two: within thoughts it ends these, elsewhere the text.

    Raises `BanError` if nobody says how the model's thoughts end.
    """
    nameless = [ban for ban in bans if _is_nameless(ban)]
    if not nameless:
        return bans
    if tokens := [ban.pattern.describe() for ban in nameless if not ban.pattern.occurs_in_text]:
        raise BanError(f"then='force' needs a text for {tokens[0]}, which have no place in thoughts: pass force")
    template = find_response_template(tokenizer)
    fields = read_response_template(template.source).fields if template else {}
    ends = [field.close_literals[0] for name, field in fields.items() if name in THOUGHTS and field.close_literals]
    if template is None or not ends:
        raise BanError(
            "then='force' needs a text, and no response template says how this model's thoughts end: pass force"
        )
    inside = chat_scope(template.source, "thinking")
    outside = replace(inside, where="outside")
    named: list[Ban] = []
    for ban in bans:
        if _is_nameless(ban):
            named.append(replace(ban, force=ends[0], scopes=(*ban.scopes, inside)))
            named.append(replace(ban, then="stop", scopes=(*ban.scopes, outside)))
        else:
            named.append(ban)
    return BanList(named, source=bans.source, license=bans.license)


def _is_nameless(ban: Ban) -> bool:
    return ban.then == "force" and not ban.force


def encode_forced(
    bans: Iterable[Ban], tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> dict[str, tuple[int, ...]]:
    """Return the tokens of all texts that bans force. Raises `BanError` for a text that no tokens have."""
    return {text: _encode(text, tokenizer, vocabulary) for text in {ban.force for ban in bans if ban.force}}


def _encode(text: str, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> tuple[int, ...]:
    before, *tries = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (".", text, "." + text))
    for ids in (tries[0], tries[1][len(before) :]):  # some tokenizers put a space before a text
        surfaces = (
            vocabulary.breaks[token].encode() if token in vocabulary.breaks else vocabulary.surface(token)
            for token in ids
        )
        if b"".join(surfaces) == text.encode():
            return tuple(ids)
    raise BanError(f"force is {text!r}, which this tokenizer does not write as it stands: choose another text")


@dataclass(frozen=True, eq=False)
class CompiledBans:
    """The bans as they apply, and the matcher for them; compared and hashed by identity, since lists are long.

    bans: with the exempt phrases and scopes of all bans, and with a text in each ban that forces one.
    forced: the tokens of these texts.
    The other options mean the same as `AntiSlop`'s.
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
        """Compile bans. strings, patterns: more bans, as in `read_bans`."""
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
        prompt: Tensor | None = None,
    ) -> RowSpec:
        """Return the specification of a text that follows a prompt's tokens.

        prompt: its ids [1, tokens] as the model reads them, if they are padded or on a device.
        """
        return RowSpec(
            prompt=torch.tensor([tokens]) if prompt is None else prompt,
            matcher=self.matcher,
            state=self.read_prompt(tokens),
            policy=policy,
            callbacks=callbacks,
            max_new_tokens=max_new_tokens,
            generator=generator,
            forced=self.forced,
        )
