"""The files of a folder as ripgrep chooses them: no hidden ones, no links, none that git ignores."""

from __future__ import annotations

import os
import stat
import subprocess
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from antislop.files import PIECE, open_bytes


def list_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a folder and of the folders in it, in order."""
    root = Path(folder)
    files: list[Path] = []
    paths = _ask_git(root)
    for path in _walk(root) if paths is None else paths:
        mode = 0
        with suppress(OSError):  # git also lists files that were deleted since the last commit
            mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            files.append(path)
        elif stat.S_ISDIR(mode):
            files += list_files(path)  # a repository of its own, in this one
    return sorted(files)


def is_text(path: Path) -> bool:
    """Return whether the beginning of a file is UTF-8 without null characters."""
    try:
        with open_bytes(path, unpack=False) as file:
            piece = file.read(PIECE)
        return "\0" not in getincrementaldecoder("utf-8")().decode(piece)
    except (OSError, UnicodeDecodeError):
        return False


def _ask_git(folder: Path) -> list[Path] | None:
    """Return what git does not ignore in a folder; None outside of repositories, or if the folder itself is ignored.

    Only git knows all of its rules: .gitignore in each folder, those of the user and of the repository, exceptions for
    files in its index.
    """
    git = ["git", "-c", "core.fsmonitor=false", "-C", os.fspath(folder)]  # which may be a program
    with suppress(OSError):
        if subprocess.run([*git, "check-ignore", "-q", "."], capture_output=True).returncode == 1:
            command = [*git, "ls-files", "-coz", "--exclude-standard", "--deduplicate"]
            names = subprocess.run(command, capture_output=True).stdout.split(b"\0")
            return [folder / name for name in _drop_hidden(map(os.fsdecode, names))]
    return None


def _drop_hidden(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name and not name.startswith(".") and "/." not in name)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files, and the repositories without what is in them."""
    for place, folders, names in os.walk(folder):
        if ".git" in (*folders, *names) and Path(place) != folder:
            folders.clear()
            yield Path(place)
            continue
        folders[:] = _drop_hidden(folders)
        yield from (Path(place, name) for name in _drop_hidden(names))
