"""Servers and commands that run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from antislop.errors import DISTRIBUTION

ROOT = Path(__file__).parents[2]
_WITH_MODULES_HIDDEN = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.argv = {arguments}
from antislop.__main__ import main; main()
"""


@dataclass(frozen=True)
class ServingProcess:
    """A server.

    url: without a path; the OpenAI routes are below `/v1`.
    pid: of the first process of a session of its own.
    """

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server and of all processes that it started, from `/proc`."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            if int(fields[3]) == self.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


_list_packages = cache(packages_distributions)


def start_command(arguments: Sequence[str], *, installed: Collection[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command of `antislop` that can import the package and some installed distributions, and nothing else."""
    hidden = {
        module
        for module, names in _list_packages().items()
        if module != "antislop" and not set(map(canonicalize_name, names)) & set(installed)
    }
    code = _WITH_MODULES_HIDDEN.format(hidden=hidden, arguments=["antislop", *arguments])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes, **options)


def find_requirements(extras: Iterable[str]) -> set[str]:
    """Return the names of all distributions that pip installs for the package with some of its extras."""
    found, waiting = set[tuple[str, str]](), [Requirement(f"{DISTRIBUTION}[{','.join(extras)}]")]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in found:
                found.add((name, extra))
                needed = map(Requirement, requires(name) or ())
                waiting += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}
