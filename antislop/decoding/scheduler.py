"""Choose which texts are written at the same time: they wait, take a free row of the batch, and leave it when finished.

Texts come from an iterable, which is read as rows become free, and from other threads, which submit them at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from threading import Condition
from typing import TypeAlias

from antislop.control.branches import CapabilityError
from antislop.decoding.controller_source import open_source
from antislop.decoding.row import Row, RowSpec
from antislop.decoding.sources import Source

MakeText: TypeAlias = Callable[[], RowSpec | None]
"""Makes a text when a row is free for it, or None."""


class Scheduler:
    """Rows of a batch, and the texts that wait for one.

    texts: read as rows become free.
    rows: texts that begin together, in one forward pass; they count as the first texts.
    max_rows: the number of rows if none are given.
    is_open: texts may be submitted until `close` is called.
    """

    def __init__(
        self, texts: Iterable[RowSpec] = (), *, max_rows: int = 0, rows: Sequence[Row] = (), is_open: bool = False
    ) -> None:
        for settings in {id(row.spec.settings): row.spec.settings for row in rows}.values():
            _follow([row for row in rows if row.spec.settings is settings])
        self.sources = [open_source(row) for row in rows]
        self._max_rows = len(rows) or max_rows
        self._is_in_flight = not rows  # otherwise finished rows consume random numbers, as in `generate`
        self._numbers = count(len(rows))
        self._texts: Iterator[RowSpec] | None = iter(texts)
        self._submitted: deque[tuple[int, RowSpec | MakeText]] = deque()
        self._canceled: set[int] = set()
        self._is_open = is_open
        self._changed = Condition()

    @property
    def rows(self) -> list[Row]:
        return [source.row for source in self.sources]

    @property
    def idle(self) -> bool:
        return all(source.row.is_finished for source in self.sources)

    def submit(self, text: RowSpec | MakeText) -> int:
        """Queue a text, and return its number. Any thread may call this.

        A function that makes the text is called by the thread that decodes.
        """
        with self._changed:
            if not self._is_open:
                raise ValueError(
                    "the scheduler takes no more texts: construct it with is_open=True, and submit before close()"
                )
            number = next(self._numbers)
            self._submitted.append((number, text))
            self._changed.notify()
            return number

    def cancel(self, number: int) -> None:
        """End a submitted text, from any thread, before the next forward pass and without further events."""
        with self._changed:
            waiting = next((text for text in self._submitted if text[0] == number), None)
            if waiting is None:
                self._canceled.add(number)
            else:
                self._submitted.remove(waiting)

    def abandon(self) -> list[Row]:
        """Free all rows after an error of the engine; return the unfinished ones, which get no further events."""
        rows = [row for row in self.rows if not row.is_finished]
        self.sources.clear()
        return rows

    def close(self) -> None:
        """Take no more texts, from any thread; those submitted are still written."""
        with self._changed:
            self._is_open = False
            self._changed.notify()

    def admit(self) -> Iterator[Source]:
        """Yield the source of each text that takes a free row; read its prompt before asking for the next.

        A row that is finished by then takes another text at once, in an open scheduler only if nothing else is being
        written. An idle open scheduler waits for a text; if it is idle afterwards, all texts are finished.
        """
        self.drop_canceled()
        for place in range(self._max_rows):
            while (len(self.sources) <= place or self.sources[place].row.is_finished) and (row := self._next_row()):
                row.index = place
                _follow([row])
                self.sources[place : place + 1] = [open_source(row)]
                yield self.sources[place]
                if self._is_open and not self.idle:  # texts of one token must not keep a client's others waiting
                    break

    def place_copy(self, copy: Source, *, of: Row) -> None:
        """Give a copy of a row a finished row, or a new one. Raises `CapabilityError` beyond the limit of rows."""
        if of.history is not None:
            raise CapabilityError(
                "a controller forks, and logits processors of one's own can't be copied with their memory: "
                "leave them out"
            )
        limit = of.spec.max_forks
        if sum(row.root == of.root and not row.is_finished for row in self.rows) >= limit:
            raise CapabilityError(
                f"a controller continues more than {limit} texts at a time: raise max_forks, or return fewer branches"
            )
        place = next((row.index for row in self.rows if row.is_finished), len(self.sources))
        copy.row.number, copy.row.index = next(self._numbers), place
        self.sources[place : place + 1] = [copy]
        self._max_rows = max(self._max_rows, len(self.sources))

    def drop_canceled(self) -> None:
        """Finish the rows of canceled texts, and forget finished rows behind the last text."""
        with self._changed:
            canceled, self._canceled = self._canceled, set()
        for row in self.rows:
            if row.number in canceled:
                row.is_finished, row.history = True, None
                row.node.cut_loose()
                row.node.drop_children()
        while self._is_in_flight and self.sources and self.sources[-1].row.is_finished:
            self.sources.pop()  # with its states and probabilities

    def _next_row(self) -> Row | None:
        if self._texts is not None:
            spec = next(self._texts, None)
            if spec is not None:
                return Row(spec, number=next(self._numbers))
            self._texts = None
        while (submitted := self._next_submitted()) is not None:
            number, text = submitted
            spec = text if isinstance(text, RowSpec) else text()
            if spec is not None:
                return Row(spec, number=number)
            if not self.idle:  # making it may have taken a while: the others come first
                return None
        return None

    def _next_submitted(self) -> tuple[int, RowSpec | MakeText] | None:
        with self._changed:
            if self.idle:
                self._changed.wait_for(lambda: self._submitted or not self._is_open)
            return self._submitted.popleft() if self._submitted else None


def _follow(rows: Sequence[Row]) -> None:
    history = rows[0].spec.settings.follow(rows)
    for row in rows:
        row.history = history
