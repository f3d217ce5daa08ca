"""What the rooms of the house may have. A change that needs more raises a number here, and says why in its message."""

from __future__ import annotations

LINES = {
    "core.bans": 5220,
    "core.trace": 1101,
    "core.loop": 3861,
    "core.hf": 6022,
    "core.sampler": 490,
    "core.patching": 186,
    "lists": 1665,
    "files": 2441,
    "errors": 70,
    "display": 191,
    "data": 5,
    "explain": 1889,
    "steer": 1670,
    "engines": 4684,
    "measure": 3899,
    "datasets": 2142,
    "tuning": 927,
    "evaluation": 1285,
    "serve": 3377,
    "cli": 5438,
    "__main__": 29,
}
"""The lines of Python in each room of docs/house.svg."""

POT = 46_592
"""The lines of all rooms together, which only fall: what a change adds to one room, it takes from another."""

NAMES_AT_THE_COUNTER = 99
"""The different names that the doors import from the core."""

FUNCTIONS_PER_1000_LINES = 65
"""Functions of all rooms together, methods and inner ones included."""
