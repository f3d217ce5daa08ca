"""What the rooms of the house may have. A change that needs more raises a number here, and says why in its message."""

from __future__ import annotations

LINES = {
    "core.bans": 5220,
    "core.trace": 1171,
    "core.loop": 3883,
    "core.hf": 6687,
    "core.sampler": 490,
    "core.patching": 190,
    "lists": 1661,
    "files": 2120,
    "errors": 70,
    "display": 195,
    "data": 5,
    "explain": 1830,
    "steer": 1335,
    "engines": 4718,
    "measure": 3899,
    "datasets": 2145,
    "tuning": 923,
    "evaluation": 1285,
    "serve": 3476,
    "cli": 5436,
    "__main__": 30,
}
"""The lines of Python in each room of docs/house.svg."""

POT = 46_752
"""The lines of all rooms together, which only fall: what a change adds to one room, it takes from another."""

NAMES_AT_THE_COUNTER = 102
"""The different names that the doors import from the core."""

FUNCTIONS_PER_1000_LINES = 65
"""Functions of all rooms together, methods and inner ones included."""
