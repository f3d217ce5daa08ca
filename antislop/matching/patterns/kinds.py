"""The table of kinds. A new one is added here."""

from __future__ import annotations

from antislop.matching.patterns.loop import Loop
from antislop.matching.patterns.pattern import Pattern
from antislop.matching.patterns.phrase import Phrase
from antislop.matching.patterns.regex import Regex
from antislop.matching.patterns.repeat import Repeat
from antislop.matching.patterns.tokens import Tokens
from antislop.matching.patterns.words import Wildcard, Words

KINDS: dict[str, type[Pattern]] = {kind.kind: kind for kind in (Phrase, Regex, Wildcard, Words, Tokens, Loop, Repeat)}
"""By name, in the order in which matches that begin at the same character are reported."""
