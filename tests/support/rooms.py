"""What the rooms of the house may have. A change that needs more raises a number here, and says why in its message."""

from __future__ import annotations

LINES = {
    "core.bans": 5270,
    "core.trace": 1061,
    "core.loop": 3939,
    "core.hf": 5829,
    "core.sampler": 428,
    "core.patching": 191,
    "lists": 1688,
    "files": 2421,
    "errors": 70,
    "display": 182,
    "data": 5,
    "explain": 1812,
    "steer": 1665,
    "engines": 4733,
    "measure": 4038,
    "datasets": 2012,
    "tuning": 896,
    "evaluation": 1179,
    "serve": 3367,
    "cli": 5414,
    "__main__": 29,
}
"""The lines of Python in each room of docs/house.svg."""

POT = 46_139
"""The lines of all rooms together, which only fall: what a change adds to one room, it takes from another."""

NAMES_AT_THE_COUNTER = 99
"""The different names that the doors import from the core."""

FUNCTIONS_PER_1000_LINES = 63.1
"""Functions of all rooms together, methods and inner ones included."""
