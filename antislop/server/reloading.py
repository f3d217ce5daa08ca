"""Read lists of bans again when their files change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from antislop.errors import InputError, first_line
from antislop.lists.ban_list import BanList
from antislop.server.service import Service

POLL_SECONDS = 1.0

Stamp = tuple[tuple[int, int, int], ...]


class BanReloader:
    """Watch the files of a service's bans, off the path of requests.

    read: reads the whole list from its files. say, warn: told of each reload, and of a file that can't be used: the
    list stays as it was then.
    """

    def __init__(
        self,
        files: Sequence[Path],
        read: Callable[[], BanList],
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        seconds: float = POLL_SECONDS,
    ) -> None:
        self._files = list(files)
        self._read = read
        self._say, self._warn = say, warn
        self._seconds = seconds
        self._stamp = _stamp(self._files)

    async def watch(self, service: Service) -> None:
        """Reload until canceled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.reload(service)

    async def reload(self, service: Service) -> None:
        """Read the list again if a file has changed."""
        stamp = await asyncio.to_thread(_stamp, self._files)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            bans = await asyncio.to_thread(self._read)
            await service.replace_bans(bans)
        except (InputError, OSError) as error:
            self._warn(f"the bans stay as they were: {first_line(error)}")
        else:
            self._say(f"the bans were read again, {len(bans):,} in all")


def _stamp(files: Sequence[Path]) -> Stamp:
    """Return what changes when a file does; a missing file has zeros."""
    stats = [file.stat() if file.exists() else None for file in files]
    return tuple((0, 0, 0) if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)
