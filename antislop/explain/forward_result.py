"""`ForwardResult`, which `AntiSlop.forward_pass` returns: generated texts, and explanations of their tokens."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from operator import index
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal, TypedDict, get_args

from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from antislop.core.bans import Surfaces, decode
from antislop.core.hf import Generation
from antislop.core.trace import Attempt, Drawn, Report, Trace, TracedRow
from antislop.errors import InputError
from antislop.explain.activations import attribute, sentence
from antislop.explain.kept_text import find_obstacle
from antislop.files.disk import explain_write, read_path, replace_text

InlineFormat = Literal["html", "text"]
"""The format that `visualize` returns: a page, or a single text with brackets around withdrawn parts."""

_SUFFIXES: dict[str, InlineFormat] = {".html": "html", ".htm": "html", ".txt": "text", ".text": "text"}
_TYPES: dict[InlineFormat, str] = {"html": "text/html", "text": "text/plain"}


class Alternative(TypedDict):
    """A token that could have been drawn at the same place.

    share: the token's probability at that time, in the distribution as bans had left it, renormalized.
    """

    token_id: int
    token: str
    share: float


class RejectedAttempt(TypedDict):
    """Tokens that were withdrawn together, and whose place a kept token took.

    ban: the text of the ban that these tokens completed; None if other rows of the batch caused the rewind.
    probability, share: those of the first of these tokens, as in `Explanation`; None if they were not recorded.
    step_index: that of the first of these tokens, as in `Explanation`.
    """

    tokens: list[int]
    text: str
    ban: str | None
    probability: float | None
    share: float | None
    step_index: int


class Explanation(TypedDict):
    """Why a token is in the text, as plain data for JSON.

    step_index: the number of tokens drawn for this text before the token, including withdrawn tokens.
    token_index: the token's index among the kept tokens, from 0.
    token: the token's text; an incomplete character is U+FFFD, and a special token has its name.
    probability: the token's probability in `generate`, after logits processors and without bans.
    share: the token's probability in that distribution as bans had left it at that time, renormalized.
    rank: the token's rank by share; 1 for the likeliest token.
    alternatives: the tokens with the largest shares, in this order, including the token itself if it is likely enough.
    rejected: the attempts that began at this place after the same tokens and were withdrawn, in the order of time.
    relevance: a number for each earlier token: those of the prompt, without padding, then those of the text; None if
        relevance was not requested.
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
    """The texts that `AntiSlop.forward_pass` generated, with methods that explain their tokens.

    complete_sequence: the ids of prompts and kept tokens [rows, tokens], like `sequences` in the output of `generate`.
    generated_token_ids: the ids of the kept tokens without the prompts [rows, new tokens].
    report: the counts of all rows together.
    reports: a report for each row.

    Refers to the trace and the model until `clear_traces` is called. Keeps no tensors but the ids.
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
        """The trace of all rows. Raises `RuntimeError` if it was not recorded, or was cleared."""
        if self._trace is None:
            raise RuntimeError(self._explain_absence("trace"))
        return self._trace

    @property
    def num_steps(self) -> int:
        """The number of tokens drawn for all rows, withdrawn ones included. Raises `RuntimeError` if not recorded."""
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
        """Explain kept tokens of one row: their probabilities, their alternatives, and the attempts withdrawn before.

        token_indices: indices among the kept tokens of the row, in any order; negative indices count from the end; None
            for all kept tokens.
        relevance: "input_x_gradient" also computes how much each earlier token contributed to the token's own logit,
            before processors: the model runs forward once, and backward once for each token. None runs nothing.
        top_k: the maximum number of alternatives for each token.

        For relevance, the model reads the row alone, without padding, with its current weights, in evaluation mode.

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
            raise InputError(sentence("more than was recorded", top_k=top_k, recorded=self._recording.top_k))
        if relevance not in (None, "input_x_gradient"):
            raise InputError(f"relevance is {relevance!r}; it is None or 'input_x_gradient'")
        numbers = {} if relevance is None else self._attribute(row, indices)
        return [explain(text, i, trace.surfaces, top_k=top_k, relevance=numbers.get(i)) for i in indices]

    def rejected_at_end(self, row: int = 0) -> list[RejectedAttempt]:
        """Return the attempts that began after the last kept token and were withdrawn before the text ended there."""
        trace = self.trace
        history = trace.rows[self._check_row(row)].history
        return [describe_attempt(attempt, trace.surfaces) for attempt in history.rejected_at_end]

    def visualize(
        self, path: str | os.PathLike[str] | None = None, *, inline_format: InlineFormat = "html", show: bool = False
    ) -> str:
        """Return the texts, with withdrawn parts at their places, as an HTML page, or a single text as plain text.

        path: a file to which the returned string is also written.
        inline_format: "html": a page, with shading for all relevance computed so far; "text": withdrawn in brackets.
        show: also show the page in the notebook, or else in a browser; write "text" to standard output.

        Raises `InputError` for a path with the suffix of another format and for "text" of several texts, and
        `RuntimeError` if no trace was recorded, or if it was cleared.
        """
        if inline_format not in get_args(InlineFormat):
            expected = ", ".join(map(repr, get_args(InlineFormat)))
            raise InputError(f"inline_format is {inline_format!r}; it is {expected}")
        suffix = "" if path is None else read_path(path).suffix.lower()
        if (meant := _SUFFIXES.get(suffix, inline_format)) != inline_format:
            raise InputError(
                sentence("another suffix", path=os.fspath(path or ""), suffix=suffix, given=inline_format, meant=meant)
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
            raise InputError(sentence("several texts as text", count=len(trace.rows)))
        return trace.to_text()

    def _repr_html_(self) -> str | None:
        return None if self._trace is None else _frame(self._render("html"))

    def clear_traces(self) -> None:
        """Drop the references to the trace, the model and all relevance, so that their memory can be freed.

        Sequences, counts and the events `Conceded` and `Admitted` in the reports remain.
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
    """Return the explanation of the kept token at `index`, with up to `top_k` alternatives."""
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
    """Return the text of tokens; special tokens appear with their names."""
    runs = groupby(tokens, key=lambda token: token in surfaces.breaks)
    return "".join(
        "".join(map(surfaces.breaks.__getitem__, run)) if is_special else decode(surfaces, run)
        for is_special, run in runs
    )


# -- showing it --------------------------------------------------------------------------------------------------------


def _frame(page: str) -> str:
    """Return an iframe with the page, so that a notebook's styles don't affect it."""
    style = "width: 100%; height: 36em; border: 0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def _show(rendered: str, inline_format: InlineFormat, path: str | os.PathLike[str] | None = None) -> None:
    """Show output in the current notebook; outside of one, open a page in a browser and print text."""
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
