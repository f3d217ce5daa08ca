"""The result of `AntiSlop.forward_pass`, which explains chosen tokens afterwards."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from operator import index
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, TypedDict, get_args

from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from antislop.core.bans import Surfaces, decode
from antislop.core.hf import Generation
from antislop.core.trace import Attempt, Drawn, Report, Trace, TracedRow
from antislop.errors import InputError
from antislop.explain.activations import attribute
from antislop.explain.kept_text import find_obstacle
from antislop.files.disk import explain_write, read_path, replace_text

InlineFormat = Literal["html", "text"]
"""A page, or one text with brackets around withdrawn parts."""

_SUFFIXES: dict[str, InlineFormat] = {".html": "html", ".htm": "html", ".txt": "text", ".text": "text"}
_TYPES: dict[InlineFormat, str] = {"html": "text/html", "text": "text/plain"}

_TENSORS = ("output_scores", "output_logits", "output_hidden_states", "output_attentions", "return_cache")
"""Arguments of `generate` that ask for tensors, which a `ForwardResult` does not hold."""


def refuse_tensors(arguments: Mapping[str, Any]) -> None:
    for name in _TENSORS:
        if arguments.get(name):
            raise InputError(f"{name} is for generate, and forward_pass keeps no such tensors: leave it out")
    if arguments.get("return_dict_in_generate") is False:
        raise InputError("forward_pass always returns a ForwardResult: leave return_dict_in_generate out")


class Alternative(TypedDict):
    """A token that was left to draw.

    share: its part of what bans had left of the distribution by then.
    """

    token_id: int
    token: str
    share: float


class RejectedAttempt(TypedDict):
    """Tokens that were withdrawn together, in place of a kept token.

    ban: the text of the ban that they completed; None if other rows of the batch caused the rewind.
    probability, share: of the first token, as in `Explanation`; None if they were not recorded.
    step_index: of the first token, as in `Explanation`.
    """

    tokens: list[int]
    text: str
    ban: str | None
    probability: float | None
    share: float | None
    step_index: int


class Explanation(TypedDict):
    """Why a token is in the text, as plain data for JSON.

    step_index: number of tokens drawn for this text before it, including withdrawn ones.
    token_index: index among the kept tokens, from 0.
    token: its text; a part of a character is U+FFFD, a special token has its name.
    probability: under the processed scores, which `generate` would draw from.
    share: its part of what bans had left of that distribution by then.
    rank: among the tokens left, 1 for the likeliest.
    alternatives: the likeliest tokens left, likeliest first, including the token itself if it is likely enough.
    rejected: attempts that were withdrawn here after the same tokens, in order.
    relevance: a number for each earlier token, the prompt's without padding and then the kept ones; None if it was not
        requested.
    """

    step_index: int
    token_index: int
    token_id: int
    token: str
    probability: float
    share: float
    rank: int
    alternatives: list[Alternative]
    rejected: list[RejectedAttempt]
    relevance: list[float] | None


class ForwardResult:
    """Generated texts, with what is needed to explain their tokens. Made by `AntiSlop.forward_pass`.

    complete_sequence: prompts and kept tokens [rows, tokens], as `sequences` of `generate`'s output.
    generated_token_ids: the same without the prompts [rows, new tokens].
    report: counts of all rows together.
    reports: one for each row.

    Holds the trace and the model until `clear_traces`, and no tensor but the sequences.
    """

    def __init__(self, generation: Generation) -> None:
        reported = generation.with_reports(generation.output)
        assert not isinstance(reported, Tensor)
        self.complete_sequence: Tensor = reported.sequences
        self.generated_token_ids: Tensor = reported.sequences[:, generation.rows[0].prompt_length :]
        self.report: Report = reported.report
        self.reports: list[Report] = reported.reports
        self._model: PreTrainedModel | None = generation.call.model
        self._trace: Trace | None = reported.trace
        self._is_cleared = False
        self._recording = generation.recording
        self._obstacle = find_obstacle(generation.call, "relevance")
        self._steps = sum(isinstance(event, Drawn) for report in self.reports for event in report.events)
        self._relevance: dict[tuple[int, int], list[float]] = {}

    def __repr__(self) -> str:
        rows, tokens = self.generated_token_ids.shape
        state = "cleared" if self._is_cleared else f"record={self._recording.level!r}"
        return f"<ForwardResult: {rows} x {tokens} tokens, {state}>"

    @property
    def trace(self) -> Trace:
        """All that happened. Raises `RuntimeError` if it was not recorded, or was cleared."""
        if self._trace is None:
            raise RuntimeError(self._explain_absence("trace"))
        return self._trace

    @property
    def num_steps(self) -> int:
        """Tokens drawn for all rows together, including withdrawn ones. Raises `RuntimeError` with record="none"."""
        if self._recording.level == "none":
            raise RuntimeError(self._explain_absence("number of steps"))
        return self._steps

    def relevance_pass(
        self,
        token_indices: Iterable[int] | None = None,
        *,
        row: int = 0,
        relevance: Literal["input_x_gradient"] | None = None,
        top_k: int = 10,
    ) -> list[Explanation]:
        """Explain kept tokens: their probability, what was left beside them, and what was rejected in their place.

        token_indices: indices among the kept tokens of the row, in any order; negative ones count from the end; None
            for all.
        relevance: how much each earlier token contributed to the token's own logit, before processors.
            "input_x_gradient" runs the model forward once, and backward once for each token; None runs nothing.
        top_k: maximum number of alternatives.

        For its relevance, a row is read alone and without padding, by the model's current weights, in evaluation mode.

        Before the model runs, raises `IndexError` for a row or token that doesn't exist, `InputError` for more
        alternatives than were recorded and for an unknown relevance, `RuntimeError` if no distributions were recorded
        or if they were cleared, and `NotImplementedError` for relevance of texts that depend on more than their ids.
        """
        trace = self.trace
        if not self._recording.has_choices:
            raise RuntimeError(self._explain_absence("distribution of any token"))
        text = trace.rows[self._check_row(row)]
        count = len(text.history.kept)
        if isinstance(token_indices, (str, bytes)) or not isinstance(token_indices, Iterable | None):
            raise InputError(f"token_indices is {token_indices!r}; a list of indices was expected, or None for all")
        indices = list(range(count) if token_indices is None else token_indices)
        for i in indices:
            if not -count <= index(i) < count:
                raise IndexError(f"token index {i}: {count} {'token was' if count == 1 else 'tokens were'} generated")
        indices = [index(i) % count for i in indices]
        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0:
            raise InputError(f"top_k is {top_k!r}; a number of alternatives, 0 or more, was expected")
        if self._recording.level == "top" and top_k > self._recording.top_k:
            raise InputError(
                f"top_k is {top_k}, and the {self._recording.top_k} likeliest of each draw were recorded: pass "
                f"top_k={self._recording.top_k}, or record_top_k={top_k} to forward_pass"
            )
        if relevance not in (None, "input_x_gradient"):
            raise InputError(f"relevance is {relevance!r}; it is None or 'input_x_gradient'")
        numbers = {} if relevance is None else self._attribute(row, indices)
        return [explain(text, i, trace.surfaces, top_k=top_k, relevance=numbers.get(i)) for i in indices]

    def rejected_at_end(self, row: int = 0) -> list[RejectedAttempt]:
        """Return the attempts that were withdrawn after the last kept token, before the text ended there."""
        trace = self.trace
        history = trace.rows[self._check_row(row)].history
        return [describe_attempt(attempt, trace.surfaces) for attempt in history.rejected_at_end]

    def visualize(
        self, path: str | os.PathLike[str] | None = None, *, inline_format: InlineFormat = "html", show: bool = False
    ) -> str:
        """Return the texts as a page, or one text with brackets, with what was withdrawn in its place.

        path: a file to write the same to.
        inline_format: "html": a page, with shading for all relevance computed so far; "text": a single text.
        show: show it in the notebook, or else in a browser; "text" on standard output.

        Raises `InputError` for a path with the suffix of another format and for "text" of several texts, and
        `RuntimeError` if nothing was recorded, or if it was cleared.
        """
        if inline_format not in get_args(InlineFormat):
            expected = ", ".join(map(repr, get_args(InlineFormat)))
            raise InputError(f"inline_format is {inline_format!r}; it is {expected}")
        suffix = "" if path is None else read_path(path).suffix.lower()
        if _SUFFIXES.get(suffix, inline_format) != inline_format:
            raise InputError(
                f"{os.fspath(path or '')} ends in {suffix}, and inline_format is {inline_format!r}: pass "
                f"inline_format={_SUFFIXES[suffix]!r}, or another path"
            )
        rendered = self._render(inline_format)
        if path is not None:
            try:
                replace_text(path, rendered)
            except OSError as error:
                reason = explain_write(error, advice="name a file in a folder of yours")
                raise InputError(f"{path}: {reason}") from error
        if show:
            _show(rendered, inline_format, path)
        return rendered

    def _render(self, inline_format: InlineFormat) -> str:
        trace = self.trace
        if inline_format == "html":
            return trace.to_html(relevance=self._relevance)
        if len(trace.rows) > 1:
            raise InputError(
                f"inline_format='text' shows one text, and {len(trace.rows)} were generated: call "
                'trace.to_text(row=…), or pass "html"'
            )
        return trace.to_text()

    def _repr_html_(self) -> str | None:
        return None if self._trace is None else _frame(self._render("html"))

    def clear_traces(self) -> None:
        """Drop the trace, the model and all relevance.

        Sequences, counts and the events of bans that were conceded or admitted remain.
        """
        self._trace, self._model, self._relevance, self._is_cleared = None, None, {}, True
        self.report, *self.reports = (replace(report, events=[]) for report in (self.report, *self.reports))

    def _attribute(self, row: int, indices: Sequence[int]) -> dict[int, list[float]]:
        if self._obstacle is not None:
            raise NotImplementedError(self._obstacle)
        assert self._model is not None
        text = self.trace.rows[row]
        start = len(text.prompt_tokens)
        numbers = attribute(self._model, text.sequence, [start + i for i in indices])
        by_index = {i - start: values for i, values in numbers.items()}
        self._relevance |= {(row, i): values for i, values in by_index.items()}
        return by_index

    def _explain_absence(self, name: str) -> str:
        if self._is_cleared:
            return 'the trace was cleared: call forward_pass again, with record="top" or "full"'
        return f'record={self._recording.level!r} recorded no {name}: pass record="top" or "full" to forward_pass'

    def _check_row(self, row: int) -> int:
        count = len(self.trace.rows)
        if not 0 <= index(row) < count:
            raise IndexError(f"row {row}: {count} {'text was' if count == 1 else 'texts were'} generated")
        return row


# -- explanations -----------------------------------------------------------------------------------------------------


def explain(
    row: TracedRow, index: int, surfaces: Surfaces, *, top_k: int, relevance: Iterable[float] | None = None
) -> Explanation:
    """Explain a kept token whose distribution was recorded, with up to `top_k` alternatives."""
    kept = row.history.kept[index]
    choice = kept.choice
    assert choice is not None, "the distribution of this token was not recorded"
    return Explanation(
        step_index=kept.step_index,
        token_index=kept.token_index,
        token_id=kept.token,
        token=show_tokens(surfaces, [kept.token]),
        probability=choice.probability,
        share=choice.share,
        rank=choice.rank,
        alternatives=[
            Alternative(token_id=token, token=show_tokens(surfaces, [token]), share=share)
            for token, share in choice.alternatives[:top_k]
        ],
        rejected=[describe_attempt(attempt, surfaces) for attempt in kept.rejected],
        relevance=None if relevance is None else list(relevance),
    )


def describe_attempt(attempt: Attempt, surfaces: Surfaces) -> RejectedAttempt:
    return RejectedAttempt(
        tokens=list(attempt.tokens),
        text=show_tokens(surfaces, attempt.tokens),
        ban=None if attempt.violation is None else attempt.violation.ban.text,
        probability=None if attempt.choice is None else attempt.choice.probability,
        share=None if attempt.choice is None else attempt.choice.share,
        step_index=attempt.step_index,
    )


def show_tokens(surfaces: Surfaces, tokens: Iterable[int]) -> str:
    """Return the text of tokens, with the names of special ones."""
    runs = groupby(tokens, key=lambda token: token in surfaces.breaks)
    return "".join(
        "".join(map(surfaces.breaks.__getitem__, run)) if is_special else decode(surfaces, run)
        for is_special, run in runs
    )


# -- showing it --------------------------------------------------------------------------------------------------------


def _frame(page: str) -> str:
    """Isolate a page from a notebook's styles."""
    style = "width: 100%; height: 36em; border: 0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def _show(rendered: str, inline_format: InlineFormat, path: str | os.PathLike[str] | None = None) -> None:
    """Show a result in the notebook that runs this, else in a browser, or as text on standard output."""
    if Console().is_jupyter:
        shown = _frame(rendered) if inline_format == "html" else rendered
        import_module("IPython.display").display({_TYPES[inline_format]: shown}, raw=True)
    elif inline_format == "text":
        sys.stdout.write(rendered + "\n")
    else:
        if path is None:  # the file stays, since the browser reads it later
            with NamedTemporaryFile(prefix="antislop-", suffix=".html", delete=False) as file:
                path = file.name
            replace_text(path, rendered)
        if not webbrowser.open(Path(path).resolve().as_uri()):
            raise RuntimeError(f"no browser could be opened: open {os.fspath(path)} yourself")
