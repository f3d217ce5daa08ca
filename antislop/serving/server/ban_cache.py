"""Lists of bans as requests bring them: each is compiled once, off the event loop, and kept as long as it fits.

A compiled list is shared by all texts that ask for an equal one. It grows while tokens are read with it, which only the
thread that decodes does; a list that is being compiled belongs to one thread of this cache.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType

from antislop.errors import InputError
from antislop.hf.compiled_bans import CompiledBans
from antislop.lists.ban_list import BanList
from antislop.serving.server.backend import Busy

MAX_BYTES = 256 * 2**20
SECONDS = 10.0
THREADS = 2
"""Lists that are compiled at the same time. One that takes too long keeps its thread until it is compiled."""
FLIGHTS = 64
"""Lists that are compiled or wait for a thread; more are refused."""
TRANSITION_BYTES = 900
"""The memory of one transition that a matcher remembers, with what it refers to: measured, 420 to 930."""

GC_BYTES = 16
"""What the garbage collector adds to an object, which `sys.getsizeof` of most objects leaves out."""

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType)


@dataclass(frozen=True)
class _KeptList:
    """A compiled list and its size in bytes when it was new."""

    compiled: CompiledBans
    size: int

    @property
    def bytes(self) -> int:
        return self.size + TRANSITION_BYTES * self.compiled.matcher.transition_count


class _Flight:
    """A list that is being compiled, or waits for a thread."""

    def __init__(self, own: CompiledBans, bans: BanList, pool: ThreadPoolExecutor) -> None:
        self.has_begun = False
        self._own = own
        self._bans = bans
        self.landing = asyncio.get_running_loop().run_in_executor(pool, self._compile)

    def _compile(self) -> _KeptList:
        self.has_begun = True
        compiled = self._own.with_bans(self._bans)
        return _KeptList(compiled, count_bytes(compiled))


class BanCache:
    """Compiled lists by their content; the least recently used ones are dropped beyond `max_bytes`.

    seconds: how long a request waits for its list. For one event loop.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, seconds: float = SECONDS) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="antislop-lists")
        self._kept: OrderedDict[Hashable, _KeptList] = OrderedDict()
        self._flights: dict[Hashable, _Flight] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """An estimate of the memory of the lists that are kept."""
        return sum(kept.bytes for kept in self._kept.values())

    async def compile(self, own: CompiledBans, bans: BanList) -> CompiledBans:
        """Return a list, compiled with the options of `own`; requests for equal lists share the work and the result.

        Raises `InputError` for a list that can't be used or takes too long, and `Busy` if too many are being compiled.
        """
        if bans is own.bans:
            return own
        key = (own.exempt, own.prompt_lookback, own.exempt_prompt, bans)
        if kept := self._kept.get(key):
            self._kept.move_to_end(key)
            self._shrink()
            return kept.compiled
        flight = self._flights.get(key) or self._begin(key, own, bans)
        try:
            return (await asyncio.wait_for(asyncio.shield(flight.landing), self._seconds)).compiled
        except asyncio.TimeoutError:
            if not flight.has_begun:
                raise Busy("other lists of bans are being compiled: try again later") from None
            raise InputError(
                f"the list of {len(bans):,} bans took longer than {self._seconds:g} seconds to compile: shorten it, or "
                "simplify its regexes"
            ) from None

    def close(self) -> None:
        """Take no more lists; those that are being compiled still are."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, key: Hashable, own: CompiledBans, bans: BanList) -> _Flight:
        if len(self._flights) >= FLIGHTS:
            raise Busy(f"{FLIGHTS} lists of bans are being compiled: try again later")
        flight = self._flights[key] = _Flight(own, bans, self._pool)
        flight.landing.add_done_callback(partial(self._land, key))
        return flight

    def _land(self, key: Hashable, landing: asyncio.Future[_KeptList]) -> None:
        """Keep a list that is compiled, even if those who asked for it have left."""
        del self._flights[key]
        if not landing.cancelled() and landing.exception() is None:
            self._kept[key] = landing.result()
            self._shrink()

    def _shrink(self) -> None:
        """Drop the least recently used lists until the others fit; texts that use them keep them as long as needed."""
        excess = self.bytes - self._max_bytes
        while excess > 0 and self._kept:
            excess -= self._kept.popitem(last=False)[1].bytes


def count_bytes(compiled: CompiledBans) -> int:
    """Return the memory of a list and its matcher, without what all lists share."""
    return _count_bytes([compiled.bans, compiled.matcher], without=[compiled.vocabulary, compiled.tokenizer])


def _count_bytes(roots: Iterable[object], *, without: Iterable[object]) -> int:
    seen, stack, total = set(map(id, without)), list(roots), 0
    while stack:
        thing = stack.pop()
        if id(thing) not in seen and not isinstance(thing, _SHARED):
            seen.add(id(thing))
            total += sys.getsizeof(thing) + GC_BYTES * gc.is_tracked(thing)
            stack += gc.get_referents(thing)
    return total
