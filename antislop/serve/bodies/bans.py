"""A request's bans, from its body and the server's own list: compiled in threads, and cached for later requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple

from antislop.core.bans import BanList, Scope
from antislop.core.hf import CompiledBans
from antislop.engines.sent_bans import SentBans
from antislop.errors import InputError
from antislop.lists import SENT_LIMITS
from antislop.serve.backend import Busy
from antislop.serve.bodies.fields import GenerationBody
from antislop.serve.request_errors import RequestError

MAX_CACHE_SIZE = 100_000
"""The largest total size of cached lists, in bans of up to 500 bytes: about 50 MB."""
COMPILER_THREADS = 2
"""Threads that compile lists. A compilation that times out still occupies its thread until it ends."""
MAX_COMPILATIONS = 64
"""The most compilations that may run or wait for a thread; further ones are refused."""


class _KeptList(NamedTuple):
    """A cached list. size: its size at the latest request, which grows with the transitions that its matcher caches."""

    compiled: CompiledBans
    new_size: int
    size: int = 0


class BanCache:
    """A cache of compiled lists for one event loop. Beyond `max_size`, it drops the least recently used lists.

    seconds: how long a request waits for its list.
    """

    def __init__(self, *, max_size: int = MAX_CACHE_SIZE, seconds: float = SENT_LIMITS.seconds) -> None:
        self.size = 0  # of all cached lists: a running total, so that a request needn't add up their sizes
        self._max_size = max_size
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(COMPILER_THREADS, thread_name_prefix="antislop-lists")
        self._kept: OrderedDict[Hashable, _KeptList] = OrderedDict()
        self._compilations: dict[Hashable, tuple[Future[CompiledBans], asyncio.Future[CompiledBans]]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def compile(self, key: Hashable, make: Callable[[], CompiledBans]) -> CompiledBans:
        """Return the compiled list of a key. Unless it is cached or being compiled, `make` compiles it in a thread.

        Raises the errors of `make`, `InputError` for a timeout, and `Busy` if too many lists are being compiled.
        """
        if kept := self._kept.get(key):
            self._keep(key, kept)
            return kept.compiled
        if key not in self._compilations:
            if len(self._compilations) >= MAX_COMPILATIONS:
                raise Busy(f"{MAX_COMPILATIONS} lists of bans are being compiled: try again later")
            work = self._pool.submit(make)
            self._compilations[key] = work, (future := asyncio.wrap_future(work))
            future.add_done_callback(partial(self._end, key))
        work, future = self._compilations[key]
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._seconds)
        except asyncio.TimeoutError:
            if not (work.running() or work.done()):
                raise Busy("other lists of bans are being compiled: try again later") from None
            raise InputError(
                f"the list of bans took longer than {self._seconds:g} seconds to compile: shorten it, or simplify its "
                "regexes"
            ) from None

    def close(self) -> None:
        """Cancel waiting compilations; running ones continue."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, key: Hashable, future: asyncio.Future[CompiledBans]) -> None:
        """Cache a compiled list, even if the requests that waited for it are gone."""
        del self._compilations[key]
        if not future.cancelled() and future.exception() is None:
            compiled = future.result()
            self._keep(key, _KeptList(compiled, measure(compiled)))

    def _keep(self, key: Hashable, kept: _KeptList) -> None:
        """Mark a list as used now, and drop lists beyond `max_size`; running requests still use dropped lists."""
        # A transition that a matcher caches takes up to as much memory as two bans.
        size = max(kept.size, kept.new_size + 2 * kept.compiled.matcher.transition_count)
        self.size += size - kept.size
        self._kept[key] = kept._replace(size=size)
        self._kept.move_to_end(key)
        while self.size > self._max_size and len(self._kept) > 1:
            self.size -= self._kept.popitem(last=False)[1].size


def measure(compiled: CompiledBans) -> int:
    """Return the size of a list just after compilation; a ban of some 20 characters has the size 1."""
    # A regex takes 3,000 bytes, and 100 for each character with its repetitions written out.
    return 10 + sum(
        1 + len(ban.exempt) + len(ban.text) // 50 + (6 + size // 5 if (size := ban.pattern.compiled_size) else 0)
        for ban in compiled.bans
    )


def find_bans(body: GenerationBody) -> SentBans:
    """Return the bans, and the settings about bans, that a body contains."""
    given = {each.name: getattr(body, each.name) for each in fields(SentBans) if each.name != "bans"}
    given["banned_strings"] = body.banned_strings + [text for text in body.banned_tokens if isinstance(text, str)]
    given["custom_token_bans"] = [i for i in body.banned_tokens if isinstance(i, int)] + body.custom_token_bans
    return SentBans(**given)


def collect_bans(sent: SentBans, own: BanList, *, scopes: Sequence[Scope] = ()) -> BanList:
    """Return the bans that a request asks for. own: the server's list. Raises `InputError` and `RequestError`.

    scopes: parts of the text to which all of these bans are limited.
    """
    if sent.ban_opening and not (sent.banned_strings or sent.banned_regex):
        raise InputError("ban_opening is of banned_strings and banned_regex, which are empty: list what it is for")
    bans = sent.read(own, scopes=scopes)
    if not sent.ban_weights:
        return bans
    known, weights = {ban.text.casefold() for ban in bans}, sent.ban_weights
    if unknown := [phrase for phrase in weights if phrase.casefold() not in known]:
        message = f"ban_weights has {unknown[0][:60]!r}, which is in no list: add it to banned_strings, or leave it out"
        raise RequestError(400, message, param="ban_weights")
    folded = {phrase.casefold(): weight for phrase, weight in weights.items()}
    return BanList([replace(ban, weight=folded.get(ban.text.casefold(), ban.weight)) for ban in bans])


def warn_of_stars(body: GenerationBody) -> str:
    """Return an ASCII warning about the first phrase whose * would be a wildcard in a list; "" if there is none."""
    phrases = (text for text in (*body.banned_strings, *body.banned_tokens) if isinstance(text, str))
    starred = next((text for text in phrases if "*" in text and any(map(str.isalnum, text))), None)
    if starred is None:
        return ""
    advice = "for a wildcard, send a regex in banned_regex, or write the phrase into a list of the server"
    return f"the * in {starred[:60]!a} is the character * and no wildcard: {advice}"
