"""Stream what is settled: text or tokens that will never be taken back. Folds over events; no torch."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from antislop.events import Event, Settled
from antislop.matcher import Surfaces


def stream_text(events: Iterable[Event], surfaces: Surfaces, *, drops_space: bool = False) -> Iterator[str]:
    """Yield the settled text in pieces, characters always whole; special tokens add nothing.

    Joined, the pieces are the text of the final tokens; bytes at its end that are no character come as U+FFFD.
    drops_space: leave out one space at the very beginning.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for event in events:
        if isinstance(event, Settled):
            text = decoder.decode(b"".join(map(surfaces.surface, event.tokens)))
            if text and drops_space:
                text, drops_space = text.removeprefix(" "), False
            if text:
                yield text
    rest = decoder.decode(b"", final=True)
    if rest:
        yield rest
