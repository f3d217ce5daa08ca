"""Choose which texts are written at the same time: they wait, take a free row of the batch, and leave it when finished.

Texts come from an iterable, which is read as rows become free, and from other threads, which submit them at any time.
Those of one request take turns with those of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import count
from threading import Condition
from typing import NamedTuple, TypeAlias

from antislop.core.loop.controlled import ControlledDrawing
from antislop.core.loop.drawing import LogitsDrawing
from antislop.core.loop.row import Drawing, Row, RowSpec
from antislop.core.loop.writing import begin
from antislop.errors import CapabilityError

MakeText: TypeAlias = Callable[[], RowSpec | None]
"""Makes a text when a row is free for it, or None."""


class _SubmittedText(NamedTuple):
    number: int
    request: Hashable
    text: RowSpec | MakeText


class Scheduler:
    """Rows of a batch, and the texts that wait for one.

    texts: read as rows become free.
    rows: texts that begin together, in one forward pass; they count as the first texts.
    max_rows: the number of rows if none are given.
    is_open: texts may be submitted until `close` is called.

    rows: of the batch, by their places in it.
    reading: texts whose prompts are unread, in the order of reading; they have no place yet.
    admitted: how many texts were taken so far.
    """

    def __init__(
        self, texts: Iterable[RowSpec] = (), *, max_rows: int = 0, rows: Sequence[Row] = (), is_open: bool = False
    ) -> None:
        for callbacks in {id(row.spec.callbacks): row.spec.callbacks for row in rows}.values():
            begin([row for row in rows if row.spec.callbacks is callbacks], _make_drawing)
        self.rows = list(rows)
        self._max_rows = len(rows) or max_rows
        self._is_in_flight = not rows  # otherwise finished rows consume random numbers, as in `generate`
        self._numbers = count(len(rows))
        self._texts: Iterator[RowSpec] | None = iter(texts)
        self.reading: list[Row] = []
        self._width = len(rows)  # rows of the engine's batch
        self.admitted = len(rows)
        self._submitted: list[_SubmittedText] = []
        self._canceled: set[int] = set()
        self.is_open = is_open
        self._changed = Condition()

    @property
    def is_writing(self) -> bool:
        """Whether a text whose prompt is read is unfinished."""
        return not all(row.is_finished for row in self.rows)

    @property
    def reads_in_parts(self) -> bool:
        """Whether the readers of other texts wait while a prompt is read."""
        return self.is_open and self.is_writing

    @property
    def idle(self) -> bool:
        return not (self.reading or self.is_writing)

    def submit(self, text: RowSpec | MakeText, *, request: Hashable = None) -> int:
        """Queue a text, and return its number. Any thread may call this.

        A function that makes the text is called by the thread that decodes.

        request: equal for texts that take turns as one; None for a text that was asked for alone.
        """
        with self._changed:
            if not self.is_open:
                raise ValueError(
                    "the scheduler takes no more texts: construct it with is_open=True, and submit before close()"
                )
            number = next(self._numbers)
            self._submitted.append(_SubmittedText(number, number if request is None else request, text))
            self._changed.notify()
            return number

    def cancel(self, number: int) -> None:
        """End a submitted text, from any thread, before the next forward pass and without further events."""
        with self._changed:
            waiting = next((text for text in self._submitted if text.number == number), None)
            if waiting is None:
                self._canceled.add(number)
            else:
                self._submitted.remove(waiting)

    def abandon(self) -> list[Row]:
        """Free all rows after an error; return them. Their texts get no further events, of their ends neither."""
        rows = [*self.rows, *self.reading]
        self.rows.clear()
        self.reading.clear()
        return rows

    def close(self) -> None:
        """Take no more texts, from any thread; those submitted are still written."""
        with self._changed:
            self.is_open = False
            self._changed.notify()

    def admit(self) -> bool:
        """Take a text for each free row; return whether there are prompts to read.

        An idle open scheduler waits for a text; if it is idle afterwards, all texts are finished.
        """
        self.drop_canceled()
        taken = Counter(row.request for row in (*self.reading, *self.rows) if not row.is_finished)
        while taken.total() < self._max_rows and (row := self._next_row(taken)) is not None:
            begin([row], _make_drawing)
            self.reading.append(row)
            taken[row.request] += 1
            self.admitted += 1
        if not self.is_open:  # all are read before the next step, and cheaper in this order: shorter ones fit beside
            self.reading.sort(key=lambda row: -row.prompt_length)
        return bool(self.reading)

    def place(self, rows: Sequence[Row]) -> None:
        """Give texts whose prompts are read the place of a finished row each, or a new one."""
        for row in rows:
            self.reading.remove(row)
            self._put(row)

    def _put(self, row: Row) -> None:
        row.index = next((other.index for other in self.rows if other.is_finished), len(self.rows))
        self.rows[row.index : row.index + 1] = [row]
        self._width = max(self._width, len(self.rows))

    @property
    def has_gaps(self) -> bool:
        """Whether finished rows are to leave the batch, since no text takes their places.

        While texts may still come, only once half of the rows are finished: a batch that grows is copied.
        """
        if self.reading or not self._is_in_flight:
            return False
        left = sum(not row.is_finished for row in self.rows)
        return 0 < left <= (self._width // 2 if self.is_open else self._width - 1)

    def close_gaps(self) -> list[int]:
        """Move the last rows to the places of finished ones; return which place each row had."""
        rows = self.rows
        last = [row.index for row in rows if not row.is_finished]
        self._width = len(last)
        places = [last.pop() if row.is_finished else row.index for row in rows[: self._width]]
        self.rows = [rows[place] for place in places]
        for place, row in enumerate(self.rows):
            row.index = place
        return places

    def place_fork(self, fork: Row, *, of: Row) -> None:
        """Give the fork of a row a finished row's place, or a new one. Raises `CapabilityError` beyond the limit."""
        if of.follower is not None:
            raise CapabilityError(
                "a controller forks, and logits processors of one's own can't be copied with their memory: "
                "leave them out"
            )
        limit = of.spec.max_forks
        if sum(row.root == of.root and not row.is_finished for row in self.rows) >= limit:
            raise CapabilityError(
                f"a controller continues more than {limit} texts at a time: raise max_forks, or return fewer branches"
            )
        fork.number = next(self._numbers)
        self._put(fork)
        self._max_rows = max(self._max_rows, len(self.rows))

    def drop_canceled(self) -> None:
        """Finish the rows of canceled texts, and forget finished rows behind the last text."""
        with self._changed:
            canceled, self._canceled = self._canceled, set()
        for row in (*self.rows, *self.reading) if canceled else ():
            if row.number in canceled:
                row.is_finished, row.follower, row.is_lockstep = True, None, False
                row.node.cut_loose()
                row.node.drop_children()
        self.reading = [row for row in self.reading if not row.is_finished]
        while self._is_in_flight and self.rows and self.rows[-1].is_finished:
            self.rows.pop()  # with its states and probabilities

    def _next_row(self, taken: Counter[Hashable]) -> Row | None:
        if self._texts is not None:
            spec = next(self._texts, None)
            if spec is not None:
                return Row(spec, number=next(self._numbers))
            self._texts = None
        while (submitted := self._next_submitted(taken)) is not None:
            spec = submitted.text if isinstance(submitted.text, RowSpec) else submitted.text()
            if spec is not None:
                row = Row(spec, number=submitted.number)
                row.request = submitted.request
                return row
            if not self.idle:  # making the text may have taken a while: those being written come first
                return None
        return None

    def _next_submitted(self, taken: Counter[Hashable]) -> _SubmittedText | None:
        """Return the next text of the request that has the fewest rows, the first of equals; None if it has to wait.

        The last free row is for a request without any: whoever comes next begins at once.
        """
        with self._changed:
            if self.idle:
                self._changed.wait_for(lambda: self._submitted or not self.is_open)
            chosen = min(self._submitted, key=lambda text: taken[text.request], default=None)
            if chosen is None or (taken[chosen.request] and taken.total() == self._max_rows - 1):
                return None
            self._submitted.remove(chosen)
            self._submitted.sort(key=lambda text: text.request == chosen.request)  # the others of its request go last
            return chosen


def _make_drawing(row: Row) -> Drawing:
    controller = row.spec.controller
    return LogitsDrawing() if controller is None else ControlledDrawing(controller)
