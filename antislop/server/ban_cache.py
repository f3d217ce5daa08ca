"""Lists of bans as requests bring them: each is compiled once, off the event loop, and kept as long as there is room.

A compiled list is shared by all texts that ask for an equal one. It grows while tokens are read with it, which only the
thread that decodes does; a list that is being compiled belongs to one thread of this cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from antislop.errors import InputError
from antislop.hf.compiled_bans import CompiledBans
from antislop.matching.patterns.regex import Regex
from antislop.server.backend import Busy

MAX_SIZE = 700_000
"""Limit of the sizes of all lists together, in bans of up to 450 bytes: about 300 MB. A transition that a matcher
remembers counts as two bans."""
SECONDS = 10.0
THREADS = 2
"""Lists that are compiled at the same time. One that takes too long keeps its thread until it is compiled."""
MAX_COMPILATIONS = 64
"""Lists that are compiled or wait for a thread; more are refused."""


@dataclass
class _KeptList:
    """A compiled list, its size when it was new, and the largest since then, as far as it was asked for."""

    compiled: CompiledBans
    new_size: int
    size: int = 0


class _Compilation:
    """A list that is being compiled, or waits for a thread."""

    def __init__(self, make: Callable[[], CompiledBans], pool: ThreadPoolExecutor) -> None:
        self.has_begun = False
        self._make = make
        self.future = asyncio.get_running_loop().run_in_executor(pool, self._run)

    def _run(self) -> _KeptList:
        self.has_begun = True
        compiled = self._make()
        return _KeptList(compiled, measure(compiled))


class BanCache:
    """Compiled lists by what was asked for; the least recently used ones are dropped beyond `max_size`.

    seconds: how long a request waits for its list. For one event loop.
    """

    def __init__(self, *, max_size: int = MAX_SIZE, seconds: float = SECONDS) -> None:
        self._max_size = max_size
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="antislop-lists")
        self._kept: OrderedDict[Hashable, _KeptList] = OrderedDict()
        self._size = 0  # a running total: a request costs the same however many lists are kept
        self._compilations: dict[Hashable, _Compilation] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The sizes of all lists that are kept, each when it was last asked for."""
        return self._size

    async def compile(self, key: Hashable, make: Callable[[], CompiledBans]) -> CompiledBans:
        """Return the list of a key, which `make` compiles in a thread unless it is kept or being compiled already.

        Raises the errors of `make`, `InputError` for a list that takes too long, and `Busy` if too many are being
        compiled.
        """
        if kept := self._kept.get(key):
            self._keep(key, kept)
            return kept.compiled
        compilation = self._compilations.get(key) or self._begin(key, make)
        try:
            return (await asyncio.wait_for(asyncio.shield(compilation.future), self._seconds)).compiled
        except asyncio.TimeoutError:
            if not compilation.has_begun:
                raise Busy("other lists of bans are being compiled: try again later") from None
            raise InputError(
                f"the list of bans took longer than {self._seconds:g} seconds to compile: shorten it, or simplify its "
                "regexes"
            ) from None

    def close(self) -> None:
        """Take no more lists; those that are being compiled still are."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, key: Hashable, make: Callable[[], CompiledBans]) -> _Compilation:
        if len(self._compilations) >= MAX_COMPILATIONS:
            raise Busy(f"{MAX_COMPILATIONS} lists of bans are being compiled: try again later")
        compilation = self._compilations[key] = _Compilation(make, self._pool)
        compilation.future.add_done_callback(partial(self._end, key))
        return compilation

    def _end(self, key: Hashable, future: asyncio.Future[_KeptList]) -> None:
        """Keep a list that is compiled, even if those who asked for it have left."""
        del self._compilations[key]
        if not future.cancelled() and future.exception() is None:
            self._keep(key, future.result())

    def _keep(self, key: Hashable, kept: _KeptList) -> None:
        """Note that a list is in use, and how large it is by now; drop others, whose texts keep them until they end."""
        self._size -= kept.size
        # A matcher that begins anew with its transitions keeps the states of its automaton: no list gets smaller.
        kept.size = max(kept.size, kept.new_size + 2 * kept.compiled.matcher.transition_count)
        self._size += kept.size
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while self._size > self._max_size and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1].size


def measure(compiled: CompiledBans) -> int:
    """Return the size of a new list in bans of some 20 characters; exempt phrases, regexes and length count more."""
    return 10 + sum(
        1 + len(ban.exempt) + len(ban.phrase) // 50 + 10 * isinstance(ban.pattern, Regex) for ban in compiled.bans
    )
