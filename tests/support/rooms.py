"""What the rooms of the house may have. A change that needs more raises a number here, and says why in its message."""

from __future__ import annotations

LINES = {
    "core.bans": 5183,
    "core.trace": 1028,
    "core.loop": 3889,
    "core.hf": 5646,
    "core.sampler": 428,
    "core.patching": 191,
    "lists": 1642,
    "files": 2466,
    "errors": 91,
    "display": 182,
    "data": 5,
    "explain": 1744,
    "steer": 2138,
    "engines": 4691,
    "measure": 3904,
    "datasets": 2030,
    "tuning": 877,
    "evaluation": 1110,
    "serve": 3287,
    "cli": 5393,
    "__main__": 29,
}
"""The lines of Python in each room of docs/house.svg."""

POT = 45_954
"""The lines of all rooms together, which only fall: what a change adds to one room, it takes from another."""

NAMES_AT_THE_COUNTER = 99
"""The different names that the doors import from the core."""

FUNCTIONS_PER_1000_LINES = 63.1
"""Functions of all rooms together, methods and inner ones included."""
