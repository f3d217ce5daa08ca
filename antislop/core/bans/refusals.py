"""The longer sentences with which bans, and what the loop does with them, are refused."""

from __future__ import annotations

from antislop.errors import sentences_of

sentence = sentences_of(__file__)
