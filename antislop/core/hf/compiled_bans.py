"""A list of bans, compiled for the tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antislop.core.bans.ban_list import BanList, Bans, combine_bans, read_bans
from antislop.core.bans.scopes import Scope
from antislop.core.bans.token_matcher import Matcher, State
from antislop.core.hf.endings import encode_forced, name_forced
from antislop.core.hf.vocabulary import Vocabulary, encode_after
from antislop.core.loop.drafts import PhraseDrafter
from antislop.core.loop.row import RowSettings, RowSpec
from antislop.core.loop.sampling import Policy
from antislop.errors import BanError

LISTS_KEPT = 64
"""Maximum number of compiled lists that are kept for later texts."""


@dataclass(frozen=True, eq=False)
class CompiledBans:
    """Bans and the matcher for them; compared and hashed by identity, since lists are long.

    forced: the tokens of the texts that bans force.
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
    forced: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = len(self.vocabulary.surfaces)
        for ban in self.bans:
            if max(ban.pattern.token_ids, default=0) >= known:
                raise BanError(f"{ban!r:.60} is beyond the tokenizer, whose ids end at {known - 1:,}: pass its ids")

    @classmethod
    def compile(
        cls,
        bans: BanList,
        tokenizer: PreTrainedTokenizerBase,
        *,
        exempt: Sequence[str] = (),
        scopes: Sequence[Scope] = (),
        prompt_lookback: bool = True,
        exempt_prompt: bool = False,
    ) -> CompiledBans:
        vocabulary = Vocabulary.of(tokenizer)
        bans = name_forced(bans, tokenizer)
        return cls(
            bans,
            tokenizer,
            vocabulary,
            Matcher(bans, vocabulary),
            tuple(exempt),
            tuple(scopes),
            prompt_lookback,
            exempt_prompt,
            encode_forced(bans, tokenizer, vocabulary),
        )

    def with_bans(self, bans: Bans) -> CompiledBans:
        named = name_forced(read_bans(bans), self.tokenizer)
        combined = combine_bans(named, exempt=self.exempt, scopes=self.scopes)
        forced = encode_forced(combined, self.tokenizer, self.vocabulary)
        return replace(self, bans=combined, matcher=Matcher(combined, self.vocabulary), forced=forced)

    def read_prompt(self, ids: Sequence[int]) -> State:
        return self.matcher.start(ids, lookback=self.prompt_lookback, exempt_prompt=self.exempt_prompt)

    def make_row(
        self,
        tokens: Sequence[int],
        *,
        policy: Policy,
        settings: RowSettings,
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
            settings=settings,
            max_new_tokens=max_new_tokens,
            generator=generator,
            forced=self.forced,
        )

    def make_drafter(self) -> PhraseDrafter:
        """Return a drafter that completes bans that were begun."""
        return PhraseDrafter(self.matcher, partial(encode_after, self.tokenizer, self.vocabulary))


class CompiledLists:
    """Compiles the lists that texts ask for, each list object once; texts without a list get `own`."""

    def __init__(self, own: CompiledBans, *, is_drafted: bool = False) -> None:
        self._own = own
        self._is_drafted = is_drafted
        self._compiled: dict[int, tuple[Bans | None, CompiledBans, list[PhraseDrafter]]] = {}

    def compile(self, bans: Bans | None) -> tuple[CompiledBans, list[PhraseDrafter]]:
        if id(bans) not in self._compiled:
            if len(self._compiled) >= LISTS_KEPT:
                del self._compiled[next(iter(self._compiled))]
            compiled = self._own if bans is None else self._own.with_bans(bans)
            drafters = [compiled.make_drafter()] if self._is_drafted else []
            self._compiled[id(bans)] = bans, compiled, drafters
        _, compiled, drafters = self._compiled[id(bans)]
        return compiled, drafters
