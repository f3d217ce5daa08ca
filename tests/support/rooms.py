"""What the rooms of the house may have. A change that needs more raises a number here, and says why in its message."""

from __future__ import annotations

LINES = {
    "core.bans": 6560,
    "core.trace": 1240,
    "core.loop": 3810,
    "core.hf": 5990,
    "core.sampler": 480,
    "core.patching": 190,
    "files": 2050,
    "errors": 50,
    "display": 200,
    "data": 10,
    "explain": 2010,
    "steer": 1010,
    "engines": 4240,
    "measure": 4160,
    "datasets": 2170,
    "tuning": 990,
    "evaluation": 1360,
    "serve": 3650,
    "cli": 5270,
    "__main__": 30,
}
"""The lines of Python in each room of docs/house.svg."""

NAMES_AT_THE_COUNTER = 150
"""The different names that the doors import from the core."""

FUNCTIONS_PER_1000_LINES = 70
"""Functions of all rooms together, methods and inner ones included."""
