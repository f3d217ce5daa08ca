"""Judge a text whose tokens an engine draws.

Most tokens complete no ban: they cost one look-up of the matcher, and no nodes or events are made for them. Where
banned phrases come again and again, the engine is asked for the likeliest tokens, and the next one is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessorList

from antislop.core.hf import StopStrings
from antislop.core.loop import Callbacks, Node, Row, RowSpec, end_at
from antislop.core.trace import Admitted, Conceded, Event, Report, Rewound
from antislop.engines.stream_source import SparseTable, StreamDrawing, StreamSource

REWINDS_BEFORE_ASKING = 2
"""Rewinds to a position before the likeliest tokens are asked for there: few positions are rewound to more often."""
LIKELIEST = 32
"""How many of the likeliest tokens are asked for first; an engine may gather as many for all texts of its step."""
MORE = 8
"""Factor on that number where it was too small: 256 tokens are nearly always all that a truncation leaves."""


class Told(NamedTuple):
    """The probabilities that an engine reports with a draw, in the distribution that it drew from.

    probability: that of the drawn token.
    tokens, logprobs: the likeliest tokens, [n]; if a log-probability is -inf, no other token has any probability.
    is_forced: whether a grammar allows nothing but the drawn token.
    """

    probability: float
    tokens: NDArray[np.integer[Any]]
    logprobs: NDArray[np.floating[Any]]
    is_forced: bool = False

    def list_likeliest(self, share: float = 1.0) -> list[tuple[int, float]]:
        """Return the likeliest tokens and their probabilities. share: the probability of all tokens not masked."""
        probabilities = share * np.exp(self.logprobs, dtype=float)
        return list(zip(self.tokens.tolist(), probabilities.tolist(), strict=True))


class Allowed(NamedTuple):
    """The tokens from which an engine is to draw. is_excluded: it is to draw from all tokens but these."""

    tokens: Collection[int]
    is_excluded: bool = False


class Question(NamedTuple):
    """What an engine is to report with each draw.

    told: how many of the likeliest tokens it is to report, with their probabilities.
    is_raw: whether to draw from the model's own distribution, and report that, without temperature and truncation.
    """

    told: int
    is_raw: bool = False


class EngineCallbacks(Callbacks):
    """Callbacks of a text to which the engine itself applies the settings, and of which it decides the end.

    warpers: processors that turn the model's distribution into the one from which the engine draws.
    """

    def __init__(
        self, *, warpers: LogitsProcessorList | None = None, eos_token_ids: frozenset[int] = frozenset()
    ) -> None:
        self._warpers = warpers or LogitsProcessorList()
        self.eos_token_ids = eos_token_ids

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:  # noqa: ARG002
        scores: Tensor = self._warpers(None, logits)
        return scores

    def is_done(self, row: Row) -> bool:  # noqa: ARG002
        return False


class EngineText:
    """A text whose tokens an engine draws: it takes each token, and says whether the token stays.

    min_tokens: how many tokens the text must have before a stop string ends it.
    truncates: whether the engine leaves out unlikely tokens, by top-k, top-p or min-p.
    askable: how many of the likeliest tokens the engine can be asked for: all, or none.
    look_ahead: returns the grammar that the user asked for, after some number of tokens.

    row: the tokens that were not withdrawn, how many are settled, and whether the text has ended. An ended text is not
        judged any more; after a stop string, tokens may follow that nobody reads.
    report: counts of what the bans did.
    outcomes: the events of the bans.
    thinned: tokens drawn again: bans left only a part of their probability, or the draw only answered a question.
    """

    def __init__(
        self,
        spec: RowSpec,
        *,
        stop_strings: StopStrings | None = None,
        min_tokens: int = 0,
        truncates: bool = False,
        askable: int = 0,
        look_ahead: Callable[[int], Any] = lambda _: None,
    ) -> None:
        self.row = Row(spec)
        self._feed = spec.matcher.feed
        drawing = StreamDrawing(visible=askable, looks_further=askable > 0, look_ahead=look_ahead)
        self._source = StreamSource(self.row, drawing)
        self._stop_strings = stop_strings
        self._min_tokens = min_tokens
        self._truncates = truncates
        self._samples = spec.policy.do_sample
        self._askable = askable
        self.report = Report()
        self.outcomes: list[Event] = []
        self.thinned = 0
        self._question: Question | None = None
        self._choice: Allowed | None = None  # from which the engine draws the next token

    @property
    def is_at_rest(self) -> bool:
        """Whether the text goes on, no ban has begun, and the engine is asked nothing, as after nearly all tokens."""
        return self._question is None and not (self.row.is_open or self.row.is_finished)

    @property
    def asks_in_vain(self) -> bool:
        """Whether the engine is still asked for probabilities, though no rewind leads to the place they were for."""
        return self._question is not None and self._samples and not self.row.is_open

    def ask(self) -> Question | None:
        """Return what the engine is to report with its draws from now on; None for nothing.

        Call it before the first draw, after a rewind, and if the text asks in vain. A greedy text always asks: what it
        writes in place of a banned phrase depends on all tokens that are not settled.
        """
        self._question = None
        if self._askable and not self._samples:
            self._question = Question(min(MORE * LIKELIEST, self._askable))
        if self.row.is_open and self._askable:
            node = self.row.node
            is_told = isinstance(node.table, SparseTable) and node.table.told > 0
            if self._source.must_look_further:
                self._question = Question(min(MORE * LIKELIEST, self._askable), is_raw=True)
            elif (is_told or node.rewinds >= REWINDS_BEFORE_ASKING) and (count := self._count_lacking(node)):
                self._question = Question(min(count, self._askable))
        return self._question

    def _count_lacking(self, node: Node) -> int:
        """Return how many of the likeliest tokens to ask for, at a node or below it; 0 if enough are known."""
        table = node.table
        if table is None or (isinstance(table, SparseTable) and not table.told):
            return LIKELIEST if self._samples else MORE * LIKELIEST
        if isinstance(table, SparseTable) and table.touched and self._knows_too_few(table):
            return MORE * len(table.known)
        reached = (child for token, child in node.children.items() if table.knows(token) and table.left(token) > 0)
        return max(map(self._count_lacking, reached), default=0)

    def _knows_too_few(self, table: SparseTable) -> bool:
        """Return whether more tokens must be asked for at a place where something was subtracted."""
        if self._samples:
            return table.unknown > (0 if self._truncates else table.mass_left() / 2)
        is_first = max(map(table.left, table.known)) >= min(map(table.probability, table.known))
        return table.unknown > 0 and not is_first  # an unknown token may be the likeliest that is left

    def choose(self) -> Allowed | None:
        """Return the tokens from which the engine is to draw next; None for all. Call this once for each draw."""
        self._choice = None
        if self.can_choose:
            if self._samples or self._source.dense is not None:
                token = self._source.draw()
            else:
                token = max(self._source.table.known, key=self._source.table.left)
            if token is None:
                self._choice = Allowed([*self._source.table.known], is_excluded=True)
            else:
                self._choice = Allowed([token])
        return self._choice

    def forgo_choice(self) -> None:
        """Give up the choice that `choose` returned: the engine draws from all tokens."""
        self._choice = None

    @property
    def can_choose(self) -> bool:
        """Whether `choose` returns a choice for the next token."""
        if not self.row.is_open or (self._question is not None and self._question.is_raw):
            return False
        table = self.row.node.table
        if isinstance(table, SparseTable) and (not table.touched or (self._truncates and table.unknown)):
            return False  # without some likely tokens, the engine's truncation would let others in
        if isinstance(table, SparseTable) and not self._samples and self._knows_too_few(table):
            return False
        return table is not None and table.mass_left() > 0

    def read(self, token: int, told: Told | None = None) -> bool:
        """Add the token that was drawn next; return whether it stays. If not, the row has the tokens that are left.

        told: what the engine reported with the draw. With it, violations are subtracted from later draws there.
        """
        if self.row.is_finished:
            self.row.tokens.append(token)
            self.row.settled = len(self.row.tokens)
            return True
        stays = self._judge(token, told)
        stops = self._stop_strings
        if stays and stops is not None and len(self.row.tokens) > self._min_tokens and stops.end(self.row.tokens):
            return self.end()
        return stays

    def pass_over(self, token: int) -> list[int] | None:
        """Add a token to a text in which no ban has begun; return the newly settled tokens.

        If the token completes a ban, nothing is added, and None is returned.
        """
        state = self._feed(self.row.state, token)
        if state.violations:
            return None
        self.row.append(token, state)
        return self.row.pass_over(state.settled_length)

    def _judge(self, token: int, told: Told | None) -> bool:
        row = self.row
        if row.is_open:
            if not self._counts(token, told):
                self.thinned += 1
                return False
        else:
            if told is not None:
                row.set_table(lambda: self._fill(SparseTable(), token, told))
            if self.pass_over(token) is not None:
                return True
        stays = self._source.take(token, None)
        self._follow()
        return stays

    def _counts(self, token: int, told: Told | None) -> bool:
        """Return whether a token counts as drawn from what bans have left of the distribution."""
        node, source = self.row.node, self._source
        choice, self._choice = self._choice, None
        if self._question is not None and self._question.is_raw:
            source.look_further(told.list_likeliest() if told is not None else ())
            return False
        if told is not None and source.dense is None and (choice is None or choice.is_excluded):
            self._fill(source.table, token, told, share=1.0 if choice is None else source.table.unknown)
        if choice is not None:
            return True
        is_noise = node.mass_left() < self.row.spec.policy.mass_floor  # the judge then concedes whatever comes
        return is_noise or source.keeps(token)

    def list_shares(self) -> dict[int, float]:
        """Return the known probabilities of the next token, before anything was subtracted."""
        if table := self._source.dense:
            return dict(enumerate(table.logits[0].exp().tolist()))
        return {token: self._source.table.probability(token) for token in self._source.table.known}

    def end(self) -> bool:
        """End the text here; return whether it ends. If not, its end completed a ban, and the row was rewound."""
        if not self.row.is_finished:
            end_at(self.row, len(self.row.tokens))
            self._follow()
        return self.row.is_finished

    def _fill(self, table: SparseTable, token: int, told: Told, *, share: float = 1.0) -> SparseTable:
        """Store what the engine reported. share: the probability of all tokens that were not masked for the draw."""
        table.note(token, share * told.probability)
        if share < 1 or len(told.tokens) > table.told:  # a later draw at a place reports the same tokens
            table.tell(told.list_likeliest(share))
        table.is_forced = table.is_forced or told.is_forced
        table.is_whole = table.is_whole or len(told.tokens) == self._askable > 0
        return table

    def _follow(self) -> None:
        row = self.row
        events = row.release()
        self.report.extend(events, keep=False)
        self.outcomes += [event for event in events if isinstance(event, (Rewound, Conceded, Admitted))]
        node: Node | None = row.node
        while node is not None and not (node.rewinds or (isinstance(node.table, SparseTable) and node.table.touched)):
            node = node.parent
        if node is None:  # no unsettled node was rewound to, or has lost mass
            row.pass_over(row.settled)
