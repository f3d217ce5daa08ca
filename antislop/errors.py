"""The errors of inputs that can't be used."""

from __future__ import annotations

DISTRIBUTION = "antislop-lm"
"""What pip installs. PyPI takes no package named antislop, since one named anti-slop exists."""


class InputError(ValueError):
    """Raised with one sentence: what was expected, what came, what to do. Commands print it and end with status 2."""


class BanError(InputError):
    """Raised for a ban, a list or a file of bans that can't be used."""


def first_line(error: object) -> str:
    r"""Return the first line of an error's message, as part of a sentence.

    >>> first_line(ValueError("no such file.\nSee the documentation."))
    'no such file'
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .:") if lines else type(error).__name__
