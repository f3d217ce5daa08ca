"""The error of inputs that can't be used. Knows nothing else of the package."""

from __future__ import annotations


class InputError(ValueError):
    """Raised with one sentence: what was expected, what came, what to do.

    The command line writes the sentence to standard error and ends with status 2.
    """


def first_line(error: object) -> str:
    r"""Return the first line of what an error says, as part of a sentence.

    >>> first_line(ValueError("no such file.\nSee the documentation."))
    'no such file'
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .:") if lines else type(error).__name__
