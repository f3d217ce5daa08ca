"""The table of kinds. A new one is added here."""

from __future__ import annotations

from antislop.core.bans.patterns.loop import Loop
from antislop.core.bans.patterns.pattern import Pattern
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.patterns.regex import Regex
from antislop.core.bans.patterns.repeat import Repeat
from antislop.core.bans.patterns.tokens import Tokens
from antislop.core.bans.patterns.words import Wildcard, Words

KINDS: dict[str, type[Pattern]] = {kind.kind: kind for kind in (Phrase, Regex, Wildcard, Words, Tokens, Loop, Repeat)}
"""By name, in the order in which matches that begin at the same character are reported."""
