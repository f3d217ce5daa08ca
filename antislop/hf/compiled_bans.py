"""A list of bans, compiled for the tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from transformers import PreTrainedTokenizerBase

from antislop.decoding.drafts import PhraseDrafter
from antislop.errors import BanError
from antislop.hf.vocabulary import Vocabulary, encode_after
from antislop.lists.ban_list import BanList, Bans, read_bans
from antislop.matching.bans import Ban
from antislop.matching.patterns.phrase import Phrase
from antislop.matching.token_matcher import Matcher, State

LISTS_KEPT = 64
"""Compiled lists that are kept for later texts."""


@dataclass(frozen=True, eq=False)
class CompiledBans:
    """Bans and the matcher for them. Equal to itself only, and hashed at once however long the list is.

    exempt: phrases inside which no ban applies, in addition to those of each ban. prompt_lookback: whether a ban may
    begin in the prompt. exempt_prompt: whether the bans that the prompt contains may be written.
    """

    bans: BanList
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    matcher: Matcher
    exempt: tuple[str, ...] = ()
    prompt_lookback: bool = True
    exempt_prompt: bool = False

    @classmethod
    def compile(
        cls,
        bans: BanList,
        tokenizer: PreTrainedTokenizerBase,
        *,
        exempt: Sequence[str] = (),
        prompt_lookback: bool = True,
        exempt_prompt: bool = False,
    ) -> CompiledBans:
        """Compile a list, all of whose bans have the exempt phrases already, and read the tokenizer's vocabulary."""
        vocabulary = Vocabulary.of(tokenizer)
        matcher = Matcher(bans, vocabulary)
        return cls(bans, tokenizer, vocabulary, matcher, tuple(exempt), prompt_lookback, exempt_prompt)

    def with_bans(self, bans: Bans) -> CompiledBans:
        """Compile another list in the same way, for the same tokenizer."""
        combined = combine_bans(read_bans(bans), exempt=self.exempt)
        return replace(self, bans=combined, matcher=Matcher(combined, self.vocabulary))

    def read_prompt(self, ids: Sequence[int]) -> State:
        """Return the matcher's state after a prompt."""
        return self.matcher.start(ids, lookback=self.prompt_lookback, exempt_prompt=self.exempt_prompt)

    def make_drafter(self) -> PhraseDrafter:
        """Return a drafter of the rest of bans."""
        return PhraseDrafter(self.matcher, partial(encode_after, self.tokenizer, self.vocabulary))


class CompiledLists:
    """Lists of bans that texts ask for one after another, each compiled once.

    own: for texts that ask for none. is_drafted: whether the rest of bans is drafted.
    """

    def __init__(self, own: CompiledBans, *, is_drafted: bool = False) -> None:
        self._own = own
        self._is_drafted = is_drafted
        self._compiled: dict[int, tuple[Bans | None, CompiledBans, list[PhraseDrafter]]] = {}

    def compile(self, bans: Bans | None) -> tuple[CompiledBans, list[PhraseDrafter]]:
        """Return the compiled list and its drafters, the same for the same object."""
        if id(bans) not in self._compiled:
            if len(self._compiled) >= LISTS_KEPT:
                del self._compiled[next(iter(self._compiled))]
            compiled = self._own if bans is None else self._own.with_bans(bans)
            drafters = [compiled.make_drafter()] if self._is_drafted else []
            self._compiled[id(bans)] = bans, compiled, drafters
        _, compiled, drafters = self._compiled[id(bans)]
        return compiled, drafters


def combine_bans(
    bans: BanList, *, strings: Sequence[str] = (), patterns: Sequence[str] = (), exempt: Sequence[str] = ()
) -> BanList:
    """Return the bans together with those that came under other names, all with the exempt phrases."""
    for name, value in (("banned_strings", strings), ("banned_regex", patterns), ("exempt", exempt)):
        if isinstance(value, str):
            raise BanError(
                f"{name} is {value[:40]!r}, one string, and each of its characters would count: write [{name}]"
            )
    if not (strings or patterns or exempt):
        return bans
    more = [*(Ban(Phrase(string, edges="anywhere")) for string in strings), *map(Ban.regex, patterns)]
    exempted = (
        replace(ban, exempt=(*ban.exempt, *exempt)) if ban.pattern.occurs_in_text else ban for ban in (*bans, *more)
    )
    return BanList(exempted, source=bans.source)
