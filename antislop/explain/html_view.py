"""A trace as HTML: a self-contained page, and a short version for the output of a notebook's cell.

The page's content security policy forbids requests, and all scripts but the page's own. All texts are escaped; the
script inserts them as text, never as markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antislop.core.trace import Admitted, Conceded, Drawn, TokenChoice, TracedRow
from antislop.display import describe_count, fill_page, load_template, make_visible, write_html_table
from antislop.errors import InputError
from antislop.explain.row_view import RowView, count_bans, list_notes

if TYPE_CHECKING:
    from antislop.core.bans import Ban, Surfaces

Relevance = Mapping[tuple[int, int], Sequence[float]]
"""For a token (row, token_index), a number for each earlier token of prompt and text; padding has none."""


def render_page(
    rows: Sequence[TracedRow],
    *,
    surfaces: Surfaces,
    list_size: int,
    about: Mapping[str, Any],
    relevance: Relevance | None = None,
    title: str | None = None,
) -> str:
    relevance = relevance or {}
    _check_relevance(relevance, rows)
    views = [
        RowView(
            row, surfaces, about, {index: values for (owner, index), values in relevance.items() if owner == number}
        )
        for number, row in enumerate(rows)
    ]
    events = [event for row in rows for event in row.events]
    segments = [segment for view in views for segment in view.segments]
    model = about.get("model")
    name = str(model.get("name")) if isinstance(model, Mapping) else ""
    seed = "" if about.get("seed") is None else f"seed {about['seed']}"
    page, _ = fill_page(
        "trace.html",
        styles=("page.css", "trace.css"),
        script="trace.js",
        title=make_visible(title) if title else "What was withdrawn and why",
        rows=views,
        notes=list(map(list_notes, rows)),
        time_lines=list(map(draw_time_line, views)),
        totals={
            "kept": sum(len(view.row.history.kept) for view in views),
            "withdrawn": sum(len(attempt.tokens) for view in views for attempt in view.attempts),
            "attempts": sum(len(view.attempts) for view in views),
            "conceded": sum(isinstance(event, Conceded) for event in events),
            "admitted": sum(isinstance(event, Admitted) for event in events),
        },
        bans=count_bans(views),
        list_size=list_size,
        kinds={kind for segment in segments for token in segment.tokens for _, kind in token.parts} - {"kept", "space"}
        | {"off" for segment in segments if segment.attempt is not None and not segment.attempt.is_on_path},
        plain=("kept", "space"),
        has_choices=any(isinstance(event, Drawn) and event.choice is not None for event in events),
        model=make_visible(", ".join(part for part in (name, seed) if part)),
        facts=list_facts(about),
        data=json.dumps(_list_data(views), separators=(",", ":")).translate(_ESCAPES),
    )
    return page


_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def _check_relevance(relevance: Relevance, rows: Sequence[TracedRow]) -> None:
    for (number, index), values in relevance.items():
        if not (0 <= number < len(rows) and 0 <= index < len(rows[number].history.kept)):
            raise InputError(f"relevance for token {index} of row {number}: the trace has no such token")
        if len(values) != (expected := len(rows[number].prompt_tokens) + index):
            raise InputError(
                f"relevance for token {index} of row {number} has {describe_count(len(values), 'number')}: "
                f"{expected:,} were expected, one for each token before it, the prompt's included, padding not"
            )
        if not all(math.isfinite(value) for value in values):
            raise InputError(f"relevance for token {index} of row {number} has numbers that are not finite")


def list_facts(about: Mapping[str, Any]) -> list[tuple[str, str | list[tuple[str, str]]]]:
    """Return the facts of a call to show, as pairs: a name, and a text or a list of pairs (name, text)."""
    facts: list[tuple[str, str | list[tuple[str, str]]]] = []
    for name, value in about.items():
        if isinstance(value, Mapping) and value:
            parts = [(make_visible(key), _describe_fact(part)) for key, part in value.items() if part is not None]
            facts.append((make_visible(name), parts))
        elif value not in (None, [], {}, ""):
            facts.append((make_visible(name), _describe_fact(value)))
    return facts


def _describe_fact(value: Any) -> str:
    return make_visible(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def _list_data(views: Sequence[RowView]) -> dict[str, Any]:
    """Return the data for the page's script, in which tokens and bans are indices of lists of their texts."""
    tokens: dict[int, int] = {}
    bans: dict[str, int] = {}
    rows = [_list_row(view, tokens, bans) for view in views]
    texts = [views[0].describe_token(token) for token in tokens]
    return {"ids": list(tokens), "tokens": texts, "bans": list(bans), "rows": rows}


def _list_row(view: RowView, tokens: dict[int, int], bans: dict[str, int]) -> dict[str, Any]:
    def flatten(pairs: Iterable[tuple[int, float]]) -> list[float | None]:
        return [n for token, share in pairs for n in (tokens.setdefault(token, len(tokens)), _round(share))]

    def number(ban: Ban) -> int:
        return bans.setdefault(make_visible(ban.text), len(bans))

    def describe(choice: TokenChoice | None) -> list[Any]:
        if choice is None:
            return []
        return [_round(choice.probability), _round(choice.share), choice.rank, flatten(choice.alternatives)]

    attempts = [
        [
            number(attempt.violation.ban) if attempt.violation else -1,
            attempt.token_index,
            len(attempt.tokens),
            int(attempt.is_on_path),
            text,
            flatten(attempt.alternatives),
            attempt.step_index,
        ]
        for attempt, text in zip(view.attempts, view.attempt_texts, strict=True)
    ]
    return {
        "prompt": len(view.row.prompt_tokens),
        "draws": [
            [tokens.setdefault(draw.token, len(tokens)), draw.index, draw.attempt, *describe(draw.choice)]
            for draw in view.written[:-1]
        ],
        "attempts": attempts,
        "let_through": [
            [number(event.violation.ban), event.violation.start, event.violation.end, int(isinstance(event, Conceded))]
            for event in view.let_through
        ],
        "relevance": {index: [_round(value) for value in values] for index, values in view.relevance.items()},
    }


def _round(value: float) -> float | None:
    """Round to four significant digits; return None for infinity and NaN, which JSON can't express."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


# -- time lines -------------------------------------------------------------------------------------------------------


def draw_time_line(view: RowView) -> dict[str, Any]:
    """Return a picture of the length of a text after each draw, as paths for SVG.

    draws: the width of the picture; x is the number of tokens drawn.
    longest: the height of the picture, the greatest length; y is that length minus the current length.
    kept, withdrawn: the paths of the draws whose tokens are in the final text, and of all other draws.
    rewinds: the path of the cuts, from the length before a cut to the length after it.
    marks: lines of length 0, which are drawn as dots where rewinds begin.
    """
    draws = view.written[:-1]
    top = max((draw.index + 1 for draw in draws), default=0)
    cuts = [
        (attempt.end_index, top - attempt.token_index - len(attempt.tokens), top - attempt.token_index)
        for attempt in view.attempts
    ]
    paths, x = {"kept": "", "withdrawn": ""}, 0
    while x < len(draws):
        is_withdrawn, end = bool(draws[x].attempt), x + 1
        while end < len(draws) and bool(draws[end].attempt) == is_withdrawn and draws[end].index > draws[end - 1].index:
            end += 1
        path = f"M{x} {top - draws[x].index}L{end} {top - draws[end - 1].index - 1}"
        paths["withdrawn" if is_withdrawn else "kept"] += path
        x = end
    return {
        "draws": len(draws),
        "longest": top,
        **paths,
        "rewinds": "".join(f"M{x} {high}V{low}" for x, high, low in cuts),
        "marks": "".join(f"M{x} {high}h0" for x, high, _ in cuts),
    }


# -- the output of a notebook's cell: plain HTML without a script or a style sheet -------------------------------------

ROWS, BANS = 8, 20
"""Maximum numbers of texts and of bans that a notebook's output shows; `Trace.to_html` shows all."""


def write_fragment(rows: Sequence[TracedRow], *, surfaces: Surfaces, about: Mapping[str, Any]) -> str:
    views = [RowView(row, surfaces, about) for row in rows]
    counts = count_bans(views)
    lines = [
        (
            entry.ban.text if entry.ban else "no ban: a controller, or its batch",
            entry.rewinds,
            entry.tokens,
            entry.conceded + entry.admitted,
            ", ".join(f"“{text}”" for text, _ in entry.instead.most_common(3)),
        )
        for entry in counts[:BANS]
    ]
    shown = f", the first {BANS} of {len(counts):,}" if len(counts) > BANS else ""
    headers = ("ban", "rewinds", "tokens withdrawn", "left in", "what came instead")
    bans = write_html_table(headers, lines, caption=f"Bans that occurred{shown}") if lines else ""
    return load_template("fragment.html").render(views=views, most=ROWS, bans=bans)
