"""One text of a trace as pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from antislop.matching.characters import decode
from antislop.trace.events import Event, Finished, Settled
from antislop.trace.text_pieces import TextPiece, TextPieces
from antislop.trace.traced_row import TracedRow

if TYPE_CHECKING:
    from antislop.matching.token_matcher import Surfaces


def list_pieces(row: TracedRow, *, surfaces: Surfaces, about: Mapping[str, Any]) -> list[TextPiece]:
    text_pieces = TextPieces(surfaces)
    pieces = [piece for event in complete_events(row) for piece in text_pieces.add(event)]
    if drops_space_after(row, surfaces=surfaces, about=about):
        pieces = list(_drop_space(pieces))
    prompt = decode(surfaces, row.prompt_tokens)
    return [TextPiece(prompt.removeprefix(" ") if drops_space(about) else prompt, "prompt"), *pieces]


def complete_events(row: TracedRow) -> Iterator[Event]:
    """Yield the events of a row, and an end for an unfinished text."""
    yield from row.events
    if not row.is_finished:
        settled = sum(len(event.tokens) for event in row.events if isinstance(event, Settled))
        yield Settled(tuple(row.tokens[settled:]))
        yield Finished("done", 0.0)


def drops_space(about: Mapping[str, Any]) -> bool:
    return bool(about.get("tokenizer", {}).get("drops_space", False))


def drops_space_after(row: TracedRow, *, surfaces: Surfaces, about: Mapping[str, Any]) -> bool:
    """Return whether the decoder removes the space in front of what follows the prompt."""
    prompt = row.prompt_tokens
    return drops_space(about) and (not prompt or prompt[-1] in surfaces.breaks)


def _drop_space(pieces: list[TextPiece]) -> Iterator[TextPiece]:
    is_start = True
    for piece in pieces:
        if piece.kind == "withdrawn" or not is_start:
            yield piece
            continue
        is_start = False
        if text := piece.text.removeprefix(" "):
            yield piece._replace(text=text)
