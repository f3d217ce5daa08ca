"""The files of a folder as ripgrep chooses them: no hidden files, no links, no files that .gitignore names.

Git is not asked, since it runs programs that a repository names: this module reads the .gitignore files. They may be a
stranger's, so a match takes time that grows only with the lengths of glob and path. The regexes that pathspec makes of
globs backtrack: *a*a*a*a*a*a*b takes hours on a long name.
"""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from antislop.errors import InputError
from antislop.files.disk import PIECE, open_bytes, open_text

_ESCAPES = re.compile(r"\\([*?[\\])|\\|\[\^")
_FOLDERS = re.compile(r"\*\*+")


class Glob(NamedTuple):
    """A glob of a .gitignore file.

    names: a pattern for each part of a path, with whether any number of folders may come before this part.
    """

    is_negated: bool
    needs_folder: bool
    names: Sequence[tuple[bool, re.Pattern[str]]]

    def matches(self, parts: Sequence[str], *, is_folder: bool) -> bool:
        """Return whether the glob matches a whole path, not only a folder that contains the path."""
        if self.needs_folder and not is_folder:
            return False
        if len(self.names) == 1 and self.names[0][0]:  # most globs: the last part decides
            return self.names[0][1].match(parts[-1]) is not None
        reached = {0}  # indices of the names that the next part may match
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
    for part in parts[parts[0] == "" :]:
        # git's globs escape otherwise than fnmatch.
        part = _ESCAPES.sub(lambda match: f"[{match[1]}]" if match[1] else "[!" * (match[0] == "[^"), part)
        if part.rfind("[") > part.rfind("]"):
            return None
        if not _FOLDERS.fullmatch(part):
            names.append((skips, re.compile(translate(part))))
        skips = _FOLDERS.fullmatch(part) is not None
    if skips:  # a/** matches what is in a, not a
        names.append((True, re.compile("")))
    return Glob(glob != text, glob.endswith("/"), names)


MAX_IGNORE = 1 << 18
"""The most characters that a .gitignore file may have."""

_Ignore = tuple[Path, list[Glob]]  # a folder, and the globs for what is in it


def list_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a folder and of the folders in it, in order.

    Files that a repository's .gitignore files or .git/info/exclude name are left out, even if git tracks them; but
    `folder` itself is listed even if they name it. Raises `InputError` for a .gitignore file that is too long.
    """
    root, top = Path(folder), Path(folder).resolve()
    files: list[Path] = []
    ignores: Sequence[_Ignore] | None = None
    for place in (*reversed(top.parents), top):
        if ignores and _is_ignored(place, ignores, is_folder=True):
            ignores = []  # `folder` is listed all the same
        ignores = _enter(place, ignores)
    waiting = [(top, ignores)]
    while waiting:
        place, ignores = waiting.pop()
        with suppress(OSError), os.scandir(place) as entries:  # another user's, or removed meanwhile
            for entry in entries:
                path, is_folder = place / entry.name, entry.is_dir(follow_symlinks=False)
                if entry.name.startswith(".") or (ignores and _is_ignored(path, ignores, is_folder=is_folder)):
                    continue
                if is_folder:
                    waiting.append((path, _enter(path, ignores)))
                elif entry.is_file(follow_symlinks=False):
                    files.append(root / path.relative_to(top))
    return sorted(files)


def is_text(path: Path) -> bool:
    """Return whether the beginning of a file is UTF-8 without null characters."""
    try:
        with open_bytes(path, unpack=False) as file:
            piece = file.read(PIECE)
        return "\0" not in getincrementaldecoder("utf-8")().decode(piece)
    except (OSError, UnicodeDecodeError):
        return False


def _enter(folder: Path, ignores: Sequence[_Ignore] | None) -> Sequence[_Ignore] | None:
    """Return the globs that apply to files in a folder; None outside of repositories, where git reads no .gitignore."""
    if os.path.lexists(folder / ".git"):
        ignores = _read_ignore(folder / ".git" / "info" / "exclude", folder)
    return None if ignores is None else [*ignores, *_read_ignore(folder / ".gitignore", folder)]


def _read_ignore(path: Path, folder: Path) -> list[_Ignore]:
    """Return the globs of a .gitignore file; none if the file can't be read, or is a link or a pipe."""
    is_link, is_file = os.path.islink(path), os.path.isfile(path)  # noqa: PTH113, PTH114 - Path raises for long names
    if is_link or not is_file or not os.access(path, os.R_OK):
        return []
    with open_text(path, errors="surrogateescape") as file:
        text = file.read(MAX_IGNORE + 1)
    if len(text) > MAX_IGNORE:
        raise InputError(f"{path}: has more than {MAX_IGNORE:,} characters: shorten it")
    return [(folder, [glob for glob in map(read_glob, text.split("\n")) if glob])]


def _is_ignored(path: Path, ignores: Sequence[_Ignore], *, is_folder: bool) -> bool:
    """Return whether a path is ignored: in the innermost .gitignore file with a matching glob, the last one decides."""
    for folder, globs in reversed(ignores):
        parts = path.parts[len(folder.parts) :]
        for glob in reversed(globs):
            if glob.matches(parts, is_folder=is_folder):
                return not glob.is_negated
    return False
