"""Stream what is settled: text or tokens that will never be taken back. Folds over events; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from antislop.matching.characters import NOTHING, Surfaces, complete, finish
from antislop.trace.events import Event, Settled


def stream_text(events: Iterable[Event], surfaces: Surfaces, *, drops_space: bool = False) -> Iterator[str]:
    """Yield the settled text in pieces, characters always whole; special tokens add nothing.

    Joined, the pieces are the text of the final tokens; bytes at its end that are no character come as U+FFFD.
    drops_space: leave out one space at the very beginning.
    """
    pending = NOTHING
    for event in events:
        if isinstance(event, Settled):
            text = ""
            for token in event.tokens:
                added, _, pending = complete(surfaces, token, pending)
                text += added
            if text and drops_space:
                text, drops_space = text.removeprefix(" "), False
            if text:
                yield text
    rest = finish(surfaces, pending).text
    if rest:
        yield rest
