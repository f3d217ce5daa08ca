"""Choose which texts are written at the same time: they wait, take a free row of the batch, and leave it when finished.

Texts come from an iterable, which is read as rows become free, and from other threads, which submit them at any time.
Texts of one request take turns with texts of other requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import count
from threading import Condition
from typing import NamedTuple, TypeAlias

from antislop.core.bans.refusals import sentence
from antislop.core.loop.controlled import ControlledDrawing
from antislop.core.loop.drawing import LogitsDrawing
from antislop.core.loop.row import Drawing, Row, RowSpec
from antislop.core.loop.writing import begin
from antislop.errors import CapabilityError

MakeText: TypeAlias = Callable[[], RowSpec | None]
"""Called once a row is free; returns the text to write there, or None for no text."""


class _SubmittedText(NamedTuple):
    number: int
    request: Hashable
    text: RowSpec | MakeText


class Scheduler:
    """Gives each waiting text a row of the batch.

    texts: further texts, from an iterable that is read as rows become free.
    rows: the rows of texts that begin together, in one forward pass; they count as the first texts.
    max_rows: the number of rows if `rows` is empty.
    is_open: whether texts may be submitted until `close` is called.

    After construction, `rows` are all rows of the batch, by their places in it.
    reading: rows whose prompts are unread, in the order of reading; they have no place in the batch yet.
    admitted: how many texts were given a row so far.
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
        """Whether a text is being written: its prompt is read, and it is unfinished."""
        return not all(row.is_finished for row in self.rows)

    @property
    def reads_in_parts(self) -> bool:
        """Whether long prompts are read in parts, so that people who read other texts meanwhile need not wait."""
        return self.is_open and self.is_writing

    @property
    def idle(self) -> bool:
        return not (self.reading or self.is_writing)

    def submit(self, text: RowSpec | MakeText, *, request: Hashable = None) -> int:
        """Queue a text, and return its number. Any thread may call this.

        text: a specification, or a function that makes it, which the decoding thread calls.

        request: a key that the texts of one request share, to take turns with other requests; None for a lone text.
        """
        with self._changed:
            if not self.is_open:
                raise ValueError(sentence("closed scheduler"))
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
        """Free all rows after an error; return them. Their texts get no more events, not even `Finished`."""
        rows = [*self.rows, *self.reading]
        self.rows.clear()
        self.reading.clear()
        return rows

    def close(self) -> None:
        """Take no more texts; those already submitted are still written. Any thread may call this."""
        with self._changed:
            self.is_open = False
            self._changed.notify()

    def admit(self) -> bool:
        """Take a text for each free row; return whether there are prompts to read.

        An idle and open scheduler waits for a text. If the scheduler is idle afterwards, all texts are finished.
        """
        self.drop_canceled()
        taken = Counter(row.request for row in (*self.reading, *self.rows) if not row.is_finished)
        while taken.total() < self._max_rows and (row := self._next_row(taken)) is not None:
            begin([row], _make_drawing)
            self.reading.append(row)
            taken[row.request] += 1
            self.admitted += 1
        if not self.is_open:  # all prompts are read before the next step: shorter ones fit beside longer ones
            self.reading.sort(key=lambda row: -row.prompt_length)
        return bool(self.reading)

    def place(self, rows: Sequence[Row]) -> None:
        """Give each of these rows, whose prompts are read, a place in the batch: a finished row's, or a new one."""
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

        While texts may still come, this waits until half of the rows are finished: a batch that grows again is copied.
        """
        if self.reading or not self._is_in_flight:
            return False
        left = sum(not row.is_finished for row in self.rows)
        return 0 < left <= (self._width // 2 if self.is_open else self._width - 1)

    def close_gaps(self) -> list[int]:
        """Move the last rows to the places of finished ones; return the place that each row had before."""
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
            raise CapabilityError(sentence("forks with processors"))
        limit = of.spec.max_forks
        if sum(row.root == of.root and not row.is_finished for row in self.rows) >= limit:
            raise CapabilityError(sentence("too many forks", limit=limit))
        fork.number = next(self._numbers)
        self._put(fork)
        self._max_rows = max(self._max_rows, len(self.rows))

    def drop_canceled(self) -> None:
        """Finish the rows of canceled texts, and drop finished rows behind the last unfinished one."""
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
            if not self.idle:  # making the text may have taken a while: texts being written come first
                return None
        return None

    def _next_submitted(self, taken: Counter[Hashable]) -> _SubmittedText | None:
        """Return the next text of the request that has the fewest rows; None if no text waits, or this one has to.

        The last free row is kept for a request that has no row, so that the next request begins at once.
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
