"""The bans that requests ask for, at a server or in vLLM: read in one way, with one limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antislop.core.bans import Ban, BanList, Opening, Scope, Unit, read_bans
from antislop.lists import SENT_LIMITS, bundled_bans, read_sent_ban


@dataclass(frozen=True, kw_only=True)
class SentBans:
    """The fields of a request that ask for bans.

    bans: phrases as people write them, or objects with a text, a kind and options.
    banned_strings: phrases that match anywhere; a `*` in them is literal.
    ban_weights: by its text, the weight of a ban in any of the lists; `read` leaves weights out.
    ban_opening: the `opening` of banned_strings and banned_regex. ban_rewind: the `rewind` of all bans.
    """

    bans: Sequence[Any] = field(default_factory=list)
    banned_strings: Sequence[str] = field(default_factory=list)
    banned_regex: Sequence[str] = field(default_factory=list)
    custom_token_bans: Sequence[int] = field(default_factory=list)
    exempt: Sequence[str] = field(default_factory=list)
    ban_weights: Mapping[str, float] = field(default_factory=dict)
    loops: bool = False
    repeats: bool = False
    use_global_bans: bool = True
    ban_opening: Opening | None = None
    ban_rewind: Unit | None = None

    def read(self, own: Iterable[Ban] = (), *, scopes: Sequence[Scope] = ()) -> BanList:
        """Return the server's own bans and those of the request, all with these scopes, without `ban_weights`.

        Raises `BanError` for bans that can't be read, and for more than a request may bring.
        """
        phrases: list[Any] = [*self.banned_strings, *self.exempt, *self.ban_weights]
        regexes: list[Any] = [*self.banned_regex]
        for entry in self.bans:
            options: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {"text": entry}
            (regexes if options.get("kind") == "regex" else phrases).append(options.get("text"))
            phrases += exempt if isinstance(exempt := options.get("exempt"), list) else []
        count = len(phrases) + len(regexes) + len(self.custom_token_bans)
        SENT_LIMITS.check(count, (text for text in phrases if isinstance(text, str)), [*map(str, regexes)])
        bundled = [ban for name in ("loops", "repeats") if getattr(self, name) for ban in bundled_bans(name)]
        tokens = (Ban.tokens([token]) for token in self.custom_token_bans)
        return read_bans(
            BanList([*(own if self.use_global_bans else ()), *map(read_sent_ban, self.bans), *bundled, *tokens]),
            strings=self.banned_strings,
            patterns=self.banned_regex,
            exempt=self.exempt,
            scopes=scopes,
            rewind=self.ban_rewind,
            opening=self.ban_opening,
        )
