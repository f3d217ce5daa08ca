"""A run without bans marks what a run with bans would have withdrawn."""

from __future__ import annotations

from collections.abc import Sequence

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.trace import Drawn, Finished, Forwarded, Settled, TextPiece, TextPieces
from antislop.core.trace.events import Event, mark_conceded
from tests.support.toys import Words

WORDS = Words(" a", " testament", " to", " cat", " quiet")
A, TESTAMENT, TO, CAT, QUIET = range(5)


def written(*tokens: int) -> list[Event]:
    return [*map(Drawn, tokens), Settled(tokens), Finished("done", 0.0)]


def marked(events: list[Event], bans: list[Ban], prompt: Sequence[int] = ()) -> list[TextPiece]:
    matcher, text_pieces = Matcher(bans, WORDS), TextPieces(WORDS)
    return [p for event in mark_conceded(iter(events), matcher, matcher.start(prompt)) for p in text_pieces.add(event)]


def test_every_ban_of_a_run_without_bans_is_marked() -> None:
    assert marked(written(A, TESTAMENT, TO, CAT), [Ban("a testament to"), Ban("cat")]) == [
        TextPiece(" ", "kept"),
        TextPiece("a testament to", "conceded"),
        TextPiece(" ", "kept"),
        TextPiece("cat", "conceded"),
    ]


def test_a_ban_that_began_in_the_prompt_is_marked() -> None:
    assert marked(written(TO), [Ban("testament to")], (A, TESTAMENT)) == [TextPiece(" to", "conceded")]


def test_text_that_no_ban_can_reach_is_settled_and_nothing_else_changes() -> None:
    matcher = Matcher([Ban("a testament to")], WORDS)
    events: list[Event] = [Forwarded(1, 0), *written(QUIET, A, TESTAMENT)]
    assert list(mark_conceded(iter(events), matcher, matcher.start())) == [
        Forwarded(1, 0),
        Drawn(QUIET),
        Settled((QUIET,)),
        Drawn(A),
        Drawn(TESTAMENT),
        Settled((A, TESTAMENT)),
        Finished("done", 0.0),
    ]
