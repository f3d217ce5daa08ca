"""The arms of an experiment: ways to write texts to the same prompts."""

from __future__ import annotations

from typing import Literal

Arm = Literal["plain", "banned", "token", "prompt-only"]
"""How a text is written: without bans; with them; with the first-token rule; without, but asked to leave them out."""

PLAIN: Arm = "plain"
"""The arm that the others are held against."""

UNBANNED: tuple[Arm, ...] = ("plain", "prompt-only")
"""The arms in which nothing is taken back."""
