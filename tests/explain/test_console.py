"""Withdrawn text is shown at the position where it was written, and the kept pieces are the text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from rich.console import Console
from rich.text import Text

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Admitted, Conceded, Drawn, Event, Finished, Forwarded, Report, Rewound, Settled
from antislop.core.trace.text_pieces import TextPiece, TextPieces
from antislop.explain.console import ConsoleWriter, list_bans, summarize, to_plain, to_rich
from tests.support.toys import Bytes, Markov, Words, run

WORDS = Words(" a", " testament", " to", " tapestry", " quiet", ".", "I", "You", "\n", " cat", " s", None)
A, TESTAMENT, TO, TAPESTRY, QUIET, DOT, ME, YOU, BREAK, CAT, S, END = range(12)


def violation(phrase: str, start: int, end: int, *, weight: float = 0.0) -> Violation:
    return Violation(Ban(phrase, weight=weight), start, end)


def drawn(*tokens: int) -> list[Event]:
    return [Drawn(token) for token in tokens]


def rewound(length: int, *withdrawn: int) -> Rewound:
    return Rewound(length, withdrawn, violation("x", length, length))


def ended(*tokens: int) -> list[Event]:
    return [Settled(tokens), Finished("done", 0.0)]


def pieces_of(events: Sequence[Event], words: Words = WORDS) -> list[TextPiece]:
    text_pieces = TextPieces(words)
    return [piece for event in events for piece in text_pieces.add(event)]


def shown(events: Sequence[Event], words: Words = WORDS) -> str:
    return to_plain(pieces_of(events, words))


def text_of(pieces: Sequence[TextPiece]) -> str:
    return "".join(piece.text for piece in pieces if piece.kind != "withdrawn")


OLD, NEW = "a — b".encode(), "a ’s".encode()
DASH, QUOTE, HALF = "—".encode(), "’".encode(), "—".encode()[:2]  # the first two differ in their last byte only
RUN = Words("\n", "é".encode()[:1], "é".encode()[1:], "cat", "dog")
RUN.byte_tokens = frozenset(range(3))
SHOWN: dict[str, tuple[Words, list[Event], str]] = {
    "withdrawn text comes before the text written instead": (
        WORDS,
        [*drawn(ME, A, TESTAMENT, TO), rewound(1, A, TESTAMENT, TO), *drawn(A, QUIET), *ended(ME, A, QUIET)],
        "I [-a testament to-] a quiet",
    ),
    "a rewind inside replacement text keeps the order of time": (
        WORDS,
        [
            *(*drawn(ME, A, TESTAMENT, TO), rewound(2, TESTAMENT, TO)),
            *(*drawn(TAPESTRY, DOT), rewound(1, A, TAPESTRY, DOT)),
            *(*drawn(QUIET), *ended(ME, QUIET)),
        ],
        "I [-a-] [-testament to-] [-tapestry.-] quiet",
    ),
    "adjacent withdrawn pieces are separated": (
        WORDS,
        [*drawn(ME), rewound(0, ME), *drawn(YOU), rewound(0, YOU), *drawn(A), *ended(A)],
        "[-I-] [-You-] a",
    ),
    "a withdrawn line break does not break the line": (
        WORDS,
        [*drawn(ME, BREAK, BREAK), rewound(1, BREAK, BREAK), *drawn(BREAK, DOT), *ended(ME, BREAK, DOT)],
        "I[-↵↵-]\n.",
    ),
    "special tokens add nothing": (WORDS, [*drawn(ME, END), *ended(ME, END)], "I"),
    "a character of several tokens is whole on both sides": (
        Bytes(),
        [*drawn(*OLD), rewound(2, *OLD[2:]), *drawn(*NEW[2:]), *ended(*NEW)],
        "a [-— b-]’s",
    ),
    "a rewind into the middle of a character": (
        Bytes(),
        [*drawn(*DASH), rewound(2, DASH[2]), *drawn(QUOTE[2]), *ended(*QUOTE)],
        "[-—-]’",
    ),
    "both sides of a rewind within a run of byte tokens have their own characters": (
        RUN,
        [*drawn(0, 3), rewound(1, 3), *drawn(1, 2), rewound(1, 1, 2), *drawn(4), *ended(0, 4)],
        "[-cat-] [-é-]\ndog",
    ),
    "bytes of an incomplete character are hidden if withdrawn and shown if kept": (
        Bytes(),
        [*drawn(*HALF), rewound(0, *HALF), *drawn(*HALF), *ended(*HALF)],
        "�",
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_withdrawn_text_is_shown_where_it_was_written(case: str) -> None:
    words, events, text = SHOWN[case]
    assert shown(events, words) == text


def test_withdrawn_text_appears_when_it_is_withdrawn_and_kept_text_when_it_is_settled() -> None:
    text_pieces = TextPieces(WORDS)
    assert [text_pieces.add(event) for event in drawn(ME, A)] == [[], []]
    assert text_pieces.add(Settled((ME,))) == [TextPiece("I", "kept")]
    assert text_pieces.add(rewound(1, A)) == [TextPiece(" a", "withdrawn", (0, 2))]
    assert text_pieces.add(Drawn(QUIET)) == []
    assert text_pieces.add(Settled((QUIET,))) == [TextPiece(" quiet", "kept")]


def test_withdrawn_text_waits_for_text_before_it_that_may_still_be_withdrawn() -> None:
    text_pieces = TextPieces(WORDS)
    for event in drawn(ME, A):
        text_pieces.add(event)
    assert text_pieces.add(rewound(1, A)) == []
    assert text_pieces.add(Settled((ME,))) == [TextPiece("I", "kept"), TextPiece(" a", "withdrawn", (0, 2))]


def test_a_conceded_phrase_is_marked_to_the_character() -> None:
    events = [
        *drawn(ME, CAT, S),
        Conceded(violation("cat", 1, 2)),
        *drawn(TAPESTRY),
        Admitted(violation("tapestry", 3, 3, weight=0.5)),
        *ended(ME, CAT, S, TAPESTRY),
    ]
    pieces = pieces_of(events)
    assert pieces == [
        TextPiece("I ", "kept"),
        TextPiece("cat", "conceded"),
        TextPiece(" s ", "kept"),
        TextPiece("tapestry", "admitted"),
    ]


def test_conceded_text_is_marked_without_colors_too() -> None:
    events = [*drawn(ME, A, TESTAMENT, TO), Conceded(violation("a testament to", 1, 3)), *ended(ME, A, TESTAMENT, TO)]
    assert shown(events) == "I [!a testament to!]"
    pieces = pieces_of(events)
    assert to_rich(pieces, brackets=True).plain == "I [!a testament to!]"
    assert to_rich(pieces).plain == "I a testament to"


@pytest.mark.parametrize(("show", "text"), [(True, "I [!a testament to!]\n"), (False, "I a testament to\n")])
def test_a_writer_marks_conceded_text_only_if_it_shows_withdrawn_text(show: bool, text: str) -> None:
    out = io.StringIO()
    writer = ConsoleWriter(Console(file=out), show_withdrawn=show)
    writer.write([TextPiece("I ", "kept"), TextPiece("a testament to", "conceded")])
    writer.end()
    assert out.getvalue() == text


def test_a_ban_that_began_in_the_prompt_is_marked_from_the_start_of_the_output() -> None:
    events = [*drawn(TO, A), Conceded(violation("a testament to", 0, 0)), *ended(TO, A)]
    assert pieces_of(events) == [
        TextPiece(" to", "conceded"),
        TextPiece(" a", "kept"),
    ]


def test_events_without_a_picture_add_nothing() -> None:
    assert TextPieces(WORDS).add(Forwarded(1, 0)) == []


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], list[int], list[int]]:
    """Return events, the final tokens and all tokens in order of time."""
    events: list[Event] = []
    tokens: list[int] = []
    everything: list[int] = []
    settled = 0
    for _ in range(draw(st.integers(0, 30))):
        kind = draw(st.sampled_from("DDDDRS"))
        if kind == "D":
            tokens.append(draw(st.sampled_from([*b" ab\n", *"é—".encode()])))
            everything.append(tokens[-1])
            events.append(Drawn(tokens[-1]))
        elif kind == "R" and len(tokens) > settled:
            length = draw(st.integers(settled, len(tokens) - 1))
            events.append(rewound(length, *tokens[length:]))
            del tokens[length:]
        elif kind == "S" and len(tokens) > settled:
            length = draw(st.integers(settled + 1, len(tokens)))
            events.append(Settled(tuple(tokens[settled:length])))
            settled = length
    return [*events, *ended(*tokens[settled:])], tokens, everything


@given(histories())
def test_the_pieces_that_are_not_withdrawn_are_the_text(history: tuple[list[Event], list[int], list[int]]) -> None:
    events, tokens, _ = history
    assert text_of(pieces_of(events, Bytes())) == bytes(tokens).decode(errors="replace")


@given(histories())
def test_every_letter_that_was_written_is_shown_once_and_in_order_of_time(
    history: tuple[list[Event], list[int], list[int]],
) -> None:
    events, _, everything = history
    letters = [chr(token) for token in everything if token in b"ab"]
    text = to_rich(pieces_of(events, Bytes())).plain
    assert [c for c in text if c in "ab"] == letters


@given(st.integers(0, 300))
def test_the_pieces_of_a_real_run_are_its_text_and_its_withdrawals(seed: int) -> None:
    words = Words("a", "b", "c", "d")
    bans = [Ban("abc", edges="anywhere"), Ban("ca", edges="anywhere", weight=0.5), Ban("dd", edges="anywhere")]
    tokens, report = run(Markov(4, seed=seed, length=12), words, bans)
    pieces = pieces_of(report.events, words)
    assert text_of(pieces) == words.text(tokens)
    withdrawn = "".join(piece.text for piece in pieces if piece.kind == "withdrawn")
    assert len(withdrawn.replace(" ", "")) == report.withdrawn_tokens


def test_withdrawn_text_beside_a_ban_is_distinguished_from_the_ban() -> None:
    ban = Violation(Ban("cat"), 1, 2)
    pieces = pieces_of([*drawn(ME, CAT, QUIET), Rewound(1, (CAT, QUIET), ban), *ended(ME)])
    assert pieces == [TextPiece("I", "kept"), TextPiece(" cat quiet", "withdrawn", (1, 4))]
    painted = to_rich(pieces)
    assert [(painted.plain[s.start : s.end], str(s.style)) for s in painted.spans] == [
        ("cat", "red strike"),
        (" quiet", "dim strike"),
    ]


def test_successive_attempts_are_apart_by_a_wider_gap_or_by_brackets() -> None:
    events = [*drawn(ME, CAT), Rewound(1, (CAT,), violation("cat", 1, 1))] * 2
    pieces = pieces_of([*events[:3], *events[4:], *ended(ME)])
    assert to_rich(pieces).plain == "I cat  cat"
    assert to_plain(pieces) == to_rich(pieces, brackets=True).plain == "I [-cat-] [-cat-]"
    assert [piece.text[slice(*piece.banned)] for piece in pieces[1:]] == ["cat", "cat"]


def test_brackets_keep_the_spaces_of_the_text() -> None:
    pieces = [TextPiece("so", "kept"), TextPiece("  a cat", "conceded")]
    assert to_plain(pieces) == to_rich(pieces, brackets=True).plain == "so  [!a cat!]"


def test_the_bans_that_were_hit_are_listed_the_most_frequent_first() -> None:
    hits = [Rewound(1, (CAT,), violation(phrase, 1, 1)) for phrase in ("a\x1b", "cat", "cat")]
    assert list_bans(Report(events=hits)) == "'cat' (2), 'a\\x1b'"
    assert list_bans(Report()) == ""


def test_withdrawn_is_red_and_struck_conceded_yellow_and_underlined() -> None:
    painted = to_rich(
        [TextPiece("so ", "kept"), TextPiece(" a cat", "withdrawn", (1, 6)), TextPiece(" dog", "conceded")]
    )
    assert painted.plain == "so  a cat dog"
    assert [(painted.plain[s.start : s.end], str(s.style)) for s in painted.spans] == [
        ("a cat", "red strike"),
        (" dog", "yellow underline"),
    ]


def test_no_text_can_steer_the_terminal() -> None:
    assert to_rich([TextPiece("a\x1b[2J\x9b1m\rb\tc\n", "kept")]).plain == "a␛[2J�1m␍b\tc\n"


# -- ConsoleWriter ----------------------------------------------------------------------------------------------------


def written(pieces: Sequence[TextPiece], *, terminal: bool, width: int = 20, show_withdrawn: bool = True) -> str:
    out = io.StringIO()
    writer = ConsoleWriter(
        Console(file=out, force_terminal=terminal, width=width, color_system=None), show_withdrawn=show_withdrawn
    )
    for piece in pieces:
        writer.write([piece])
    writer.end()
    return out.getvalue()


PIECES = [
    TextPiece("Once", "prompt"),
    TextPiece(" upon ", "kept"),
    TextPiece(" a cat", "withdrawn"),
    TextPiece(" a dog", "kept"),
]


def test_a_pipe_gets_the_text_alone_or_with_brackets() -> None:
    assert written(PIECES, terminal=False, show_withdrawn=False) == " upon  a dog\n"
    assert written(PIECES, terminal=False) == " upon  [-a cat-] a dog\n"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_a_terminal_without_color_gets_brackets_too(environment: dict[str, str]) -> None:
    out = io.StringIO()
    writer = ConsoleWriter(Console(file=out, force_terminal=True, width=40, _environ=environment), show_withdrawn=True)
    writer.write(PIECES)
    writer.end()
    assert re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()) == "Once upon  [-a cat-] a dog\n"


@given(st.lists(st.text("ab \n—漢", max_size=9), max_size=12), st.integers(8, 30))
def test_a_terminal_breaks_lines_at_spaces_and_drops_only_these_spaces(texts: list[str], width: int) -> None:
    lines = written([TextPiece(text, "kept") for text in texts], terminal=True, width=width)
    assert lines.split() == "".join(texts).split()
    fits = all(Text(word).cell_len <= width for word in "".join(texts).split())
    if fits:
        assert all(Text(line.rstrip()).cell_len <= width for line in lines.split("\n"))


def test_a_word_waits_until_it_is_whole() -> None:
    out = io.StringIO()
    writer = ConsoleWriter(Console(file=out, force_terminal=True, width=20, color_system=None), show_withdrawn=True)
    writer.write([TextPiece("some wo", "kept")])
    assert out.getvalue() == "some"
    writer.write([TextPiece("rd ", "kept")])
    assert out.getvalue() == "some word"


# -- summarize --------------------------------------------------------------------------------------------------------


def test_the_summary_is_one_line_and_mentions_concessions_only_if_any_occurred() -> None:
    report = Report(violations=1, withdrawn_tokens=3, forward_passes=1203)
    line = summarize(report, seconds=2.0, kept_tokens=100)
    assert line == "100 tokens, 1 violation, 3 withdrawn tokens, 1,203 forward passes, 50.0 tokens/s"
    report.conceded = 1
    assert ", 1 violation, 1 conceded, 3 withdrawn" in summarize(report, seconds=2.0, kept_tokens=100)


def test_the_summary_of_an_empty_run_does_not_divide_by_zero() -> None:
    assert summarize(Report(), seconds=0.0, kept_tokens=0).endswith("0.0 tokens/s")
