"""What the rooms of the house may have. A change that needs more raises a number here, and says why in its message."""

from __future__ import annotations

LINES = {
    "core.bans": 6410,
    "core.trace": 1240,
    "core.loop": 3810,
    "core.hf": 5730,
    "core.sampler": 480,
    "core.patching": 190,
    "files": 2050,
    "errors": 50,
    "display": 200,
    "data": 10,
    "explain": 1980,
    "steer": 1010,
    "engines": 4480,
    "measure": 4040,
    "datasets": 2150,
    "tuning": 980,
    "evaluation": 1350,
    "serve": 3620,
    "cli": 5250,
    "__main__": 30,
}
"""The lines of Python in each room of docs/house.svg."""

NAMES_AT_THE_COUNTER = 148
"""The different names that the doors import from the core."""

FUNCTIONS_PER_1000_LINES = 69
"""Functions of all rooms together, methods and inner ones included."""
