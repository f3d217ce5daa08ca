"""Servers that run in processes of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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
