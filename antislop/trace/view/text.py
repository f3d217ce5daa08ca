"""One text of a trace as pieces, as plain text and as an SVG picture. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from antislop.display import make_visible
from antislop.matching.characters import decode
from antislop.trace.events import Drawn, Event, Finished, Rewound, Settled, Shortened
from antislop.trace.text_pieces import TextPiece, TextPieces
from antislop.trace.traced_row import TracedRow

if TYPE_CHECKING:
    from antislop.matching.token_matcher import Surfaces


def find_row(rows: tuple[TracedRow, ...], number: int) -> TracedRow:
    """Return a text by its number; negative numbers count from the end. Raises `IndexError`."""
    if not -len(rows) <= number < len(rows):
        count = "1 text" if len(rows) == 1 else f"{len(rows):,} texts"
        raise IndexError(f"row {number}: the trace has {count}, numbered from 0")
    return rows[number]


def list_pieces(row: TracedRow, *, surfaces: Surfaces, about: Mapping[str, Any]) -> list[TextPiece]:
    """Return the prompt and the text of a row as pieces, in the order in which they were written.

    about: of the trace. The pieces of the text that are not withdrawn, joined, are the decoded output.
    """
    text_pieces = TextPieces(surfaces)
    pieces = [piece for event in complete_events(row) for piece in text_pieces.add(event)]
    if drops_space_after(row, surfaces=surfaces, about=about):
        pieces = list(_drop_space(pieces))
    prompt = decode(surfaces, row.prompt_tokens)
    return [TextPiece(prompt.removeprefix(" ") if drops_space(about) else prompt, "prompt"), *pieces]


def complete_events(row: TracedRow) -> Iterator[Event]:
    """Yield the events of a row; those of an unfinished text are followed by its end."""
    length = settled = 0
    is_finished = False
    for event in row.events:
        yield event
        if isinstance(event, Drawn):
            length += 1
        elif isinstance(event, (Rewound, Shortened)):
            length = event.length
        elif isinstance(event, Settled):
            settled += len(event.tokens)
        is_finished = is_finished or isinstance(event, Finished)
    if not is_finished:
        yield Settled(tuple(row.tokens[settled:length]))
        yield Finished("done", 0.0)


def drops_space(about: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer's decoder removes the space in front of a text."""
    return bool(about.get("tokenizer", {}).get("drops_space", False))


def drops_space_after(row: TracedRow, *, surfaces: Surfaces, about: Mapping[str, Any]) -> bool:
    """Return whether the decoder removes the space in front of what follows the prompt."""
    prompt = row.prompt_tokens
    return drops_space(about) and (not prompt or prompt[-1] in surfaces.breaks)


def _drop_space(pieces: list[TextPiece]) -> Iterator[TextPiece]:
    """Yield pieces without the space at the beginning of the text that was kept."""
    is_start = True
    for piece in pieces:
        if piece.kind == "withdrawn" or not is_start:
            yield piece
            continue
        is_start = False
        if text := piece.text.removeprefix(" "):
            yield piece._replace(text=text)


def write_text(pieces: list[TextPiece]) -> str:
    """Return pieces as plain text, without the prompt, with control and direction characters made visible."""
    from antislop.trace.console import to_plain

    return make_visible(to_plain(piece for piece in pieces if piece.kind != "prompt"), keep_layout=True)


def draw_svg(pieces: list[TextPiece]) -> str:
    """Return pieces as an SVG picture: the prompt dim, withdrawn text struck through."""
    from antislop.trace.console import draw_svg, to_rich

    return draw_svg(to_rich(pieces))
