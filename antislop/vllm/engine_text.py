"""Judge a text whose tokens an engine draws.

Most tokens complete no ban: they cost one look-up of the matcher, and neither row, ledger nor events are made for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from antislop.decoding.ledger import Node
from antislop.decoding.row import CallbackMemory, Row, RowSpec
from antislop.decoding.stream_source import SparseTable, StreamSource, open_table
from antislop.trace.events import Admitted, Conceded, Event, Rewound
from antislop.trace.report import Report


class NoSettings:
    """The engine applies the settings of a text, and says when it ends."""

    eos_token_ids: frozenset[int] = frozenset()

    def follow(self, rows: Sequence[Row]) -> CallbackMemory | None:  # noqa: ARG002
        return None

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:  # noqa: ARG002
        return logits

    def is_done(self, row: Row) -> bool:  # noqa: ARG002
        return False


class StopStrings:
    """Strings that end a text. surface: returns the bytes of a token."""

    def __init__(self, strings: Sequence[str], surface: Callable[[int], bytes], *, min_tokens: int = 0) -> None:
        self._strings = [string.encode() for string in strings]
        self._longest = max(map(len, self._strings))
        self._surface = surface
        self._min_tokens = min_tokens

    def end(self, tokens: Sequence[int]) -> bool:
        """Report whether the latest token completes one of the strings."""
        if len(tokens) <= self._min_tokens:
            return False
        latest = tail = self._surface(tokens[-1])
        for token in reversed(tokens[:-1]):
            if len(tail) - len(latest) >= self._longest - 1:
                break
            tail = self._surface(token) + tail
        return any(
            string in tail and tail.rfind(string) + len(string) > len(tail) - len(latest) for string in self._strings
        )


class EngineText:
    """The tokens of a text, as far as they were not withdrawn.

    tokens: a list of its own.
    settled: no rewind reaches below this length.
    is_finished: the text ended, and is not judged any more. After a stop string, tokens may follow that nobody reads.
    report: what its bans did.
    outcomes: the events of its bans.
    thinned: tokens that were drawn again, because bans left only a part of their probability.
    """

    def __init__(self, spec: RowSpec, *, stop_strings: StopStrings | None = None) -> None:
        self._spec = spec
        self._stop_strings = stop_strings
        self.tokens: list[int] = []
        self.settled = 0
        self.is_finished = False
        self.report = Report()
        self.outcomes: list[Event] = []
        self.thinned = 0
        self._probabilities: list[float] = []  # of the tokens, if the engine tells them
        self._state = spec.state
        self._withdrawn = 0
        self._source: StreamSource | None = None  # while something unsettled was withdrawn

    def read(self, token: int, probability: float | None = None) -> bool:
        """Add the token that was drawn next; return whether it stays. If not, `tokens` is what is left.

        probability: of the token under the model, of all tokens or of none. With it, later draws at a position exclude
            what a ban has already taken from it.
        """
        if self.is_finished:
            self.tokens.append(token)
            self.settled = len(self.tokens)
            return True
        stays = self._judge(token, probability)
        if stays and probability is not None:
            self._probabilities.append(probability)
        if stays and self._stop_strings is not None and self._stop_strings.end(self.tokens):
            return self.end()
        return stays

    def _judge(self, token: int, probability: float | None) -> bool:
        if self._source is None:
            state = self._spec.matcher.feed(self._state, token)
            if not state.violations:
                self.tokens.append(token)
                self._state = state
                self.settled = max(self.settled, state.settled_length)
                return True
            self._source = self._open()
        elif probability is not None and not self._counts(token, self._source):
            self.thinned += 1
            return False
        stays = self._source.take(token, probability)
        self._follow(self._source.row)
        return stays

    def end(self) -> bool:
        """End the text here; return whether it ends. If not, that completes a ban, and `tokens` is what is left."""
        if self.is_finished:
            return True
        if self._source is None:
            if not self._spec.matcher.finish(self._state):
                self.settled, self.is_finished = len(self.tokens), True
                return True
            self._source = self._open()
        self._source.end_at(len(self.tokens))
        self._follow(self._source.row)
        return self.is_finished

    def _counts(self, token: int, source: StreamSource) -> bool:
        """Return whether a token counts as drawn from what bans have left of the distribution."""
        is_noise = source.table.mass_left() < self._spec.policy.mass_floor  # the judge then concedes what comes
        return is_noise or source.keeps(token)

    def _open(self) -> StreamSource:
        row = Row(self._spec)
        row.tokens, row.state, row.settled = self.tokens, self._state, self.settled
        row.withdrawn_count = self._withdrawn
        node = Node(depth=self.settled)
        known: Sequence[float | None] = self._probabilities or [None] * len(self.tokens)
        for token, probability in zip(self.tokens[self.settled :], known[self.settled :], strict=True):
            if probability is not None:
                open_table(node).note(token, probability)
            node = node.child(token)
        row.node = node
        return StreamSource(row)

    def _follow(self, row: Row) -> None:
        self._state, self.settled, self._withdrawn = row.state, row.settled, row.withdrawn_count
        self.is_finished = row.is_finished
        del self._probabilities[len(self.tokens) :]
        events = row.release()
        self.report.extend(events, keep=False)
        self.outcomes += [event for event in events if isinstance(event, (Rewound, Conceded, Admitted))]
        if not _remembers(row.node):
            self._source = None


def _remembers(node: Node | None) -> bool:
    """Report whether a node, or an unsettled one before it, counts rewinds or has lost mass."""
    while node is not None:
        if node.rewinds or (isinstance(node.table, SparseTable) and node.table.touched):
            return True
        node = node.parent
    return False
