"""Globs as in .gitignore, which may be a stranger's: each takes a time that grows with its length and the path's.

The regexes that pathspec makes of them backtrack, so that *a*a*a*a*a*a*b takes hours on a long name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import NamedTuple

_ESCAPES = re.compile(r"\\([*?[\\])|\\|\[\^")
_FOLDERS = re.compile(r"\*\*+")


class Glob(NamedTuple):
    """A glob.

    names: what the parts of a path must match, each with whether any number of folders may come before it.
    """

    is_negated: bool
    needs_folder: bool
    names: Sequence[tuple[bool, re.Pattern[str]]]

    def matches(self, parts: Sequence[str], *, is_folder: bool) -> bool:
        """Return whether it matches a path as a whole, not only a folder on the way."""
        if self.needs_folder and not is_folder:
            return False
        if len(self.names) == 1 and self.names[0][0]:  # most globs: the last part decides
            return self.names[0][1].match(parts[-1]) is not None
        reached = {0}  # the names that the next part may match
        for part in parts:
            expected = [(place, *self.names[place]) for place in reached if place < len(self.names)]
            reached = {place for place, skips, _ in expected if skips}
            reached |= {place + 1 for place, _, name in expected if name.match(part)}
        return len(self.names) in reached


def read_glob(line: str) -> Glob | None:
    """Return the glob in a line of a .gitignore; None for a comment, an empty line, or a [ without a ].

    >>> read_glob("docs/**/*.md").matches(["docs", "new", "a.md"], is_folder=False)
    True
    """
    text = line.rstrip(" \r")
    text += " " * (text.endswith("\\") and text != line)
    glob = text.removeprefix("!")
    parts = glob.rstrip("/").split("/")
    if text.startswith("#") or not parts[-1]:
        return None
    names, skips = [], len(parts) == 1
    for part in (_ESCAPES.sub(_write_escape, part) for part in parts[parts[0] == "" :]):
        if part.rfind("[") > part.rfind("]"):
            return None
        if not _FOLDERS.fullmatch(part):
            names.append((skips, re.compile(translate(part))))
        skips = _FOLDERS.fullmatch(part) is not None
    if skips:  # a/** matches what is in a, not a
        names.append((True, re.compile("")))
    return Glob(glob != text, glob.endswith("/"), names)


def _write_escape(match: re.Match[str]) -> str:
    """Return an escape of git's globs as fnmatch writes it."""
    return f"[{match[1]}]" if match[1] else "[!" * (match[0] == "[^")
