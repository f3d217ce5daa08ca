"""One text of a batch: its specification (`RowSpec`), and its row (`Row`), which holds the tokens written so far."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher, State, Violation
from antislop.core.loop.branches import Controller
from antislop.core.loop.forced import LookAhead
from antislop.core.loop.ledger import Node, Table
from antislop.core.loop.protocols import send
from antislop.core.loop.sampling import Policy
from antislop.core.loop.tables import Draws, LogitsBatch, find_dense
from antislop.core.trace.events import Event, Reason
from antislop.errors import Exhausted, SharingError


class Callbacks:
    """The logits processors and stopping criteria of texts; by default they remember no text, like transformers' own.

    eos_token_ids: the tokens that end a text.
    is_lockstep: whether a row may draw its token n + 1 only after `ask` was called for the first n tokens of all rows.
    """

    eos_token_ids: frozenset[int] = frozenset()
    is_lockstep: bool = False

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores [n, vocab] for logits [n, vocab], which follow `lengths[i]` tokens of each row."""
        raise NotImplementedError

    def is_done(self, row: Row) -> bool:
        """Report whether a stopping criterion is met."""
        raise NotImplementedError

    def follow(self, rows: Sequence[Row]) -> Callbacks | None:  # noqa: ARG002
        """Return the callbacks that are to be rewound with these rows of a batch; None if they remember no text."""
        return None

    # -- called only of callbacks that `follow` has returned

    @property
    def step_count(self) -> int:
        """How many tokens of each row the criteria have seen."""
        return 0

    def ask(self) -> Sequence[bool]:
        """Call the criteria with one more token of each row; return for each row whether it ends."""
        return []

    def rewind(self, row: Row, length: int) -> None:
        """Forget all but the first `length` tokens of a rewound row; raise `ValueError` if that is impossible."""

    def settle(self, length: int) -> None:
        """Note that from now on no row is rewound to fewer than `length` tokens."""

    def may_ask_again(self, length: int) -> bool:  # noqa: ARG002
        """Report whether the processors can be called a second time after `length` tokens."""
        return True

    def find_constraint(self, row: Row, length: int, logits: Tensor) -> str | None:  # noqa: ARG002
        """Return the name of a processor that rules out nearly all tokens after `length` tokens; None without one."""
        return None

    def look_ahead(self, row: Row, length: int) -> LookAhead | None:  # noqa: ARG002
        """Return the grammar of a processor after `length` tokens; None if no processor's grammar reads characters."""
        return None


class Draft(NamedTuple):
    """Tokens that may come next.

    proposals: the distribution that each token was drawn from, [tokens, vocab]; None if the tokens were not drawn.
    read: how many of the tokens are fed to the model ahead of time; None for all. The token after these would complete
        a ban, so it is not fed. It still takes part in the draw: without it, the distribution would change.
    """

    proposed: list[int]
    proposals: Tensor | None = None
    read: int | None = None

    @property
    def tokens(self) -> list[int]:
        return self.proposed[: self.read]


NO_DRAFT = Draft([])


class Drafter(Protocol):
    """Guesses the next tokens. A draft never changes the distribution of the text."""

    def propose(self, rows: Sequence[Row]) -> Sequence[Draft]:
        """Return for each row a draft of the tokens that may follow its text, or `NO_DRAFT`."""

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        """Note that `accepted` of the `proposed` tokens of a row's draft were added to its text."""


class Drawing(Protocol):
    """How the tokens of a row are drawn: from logits, as a controller says, or by a server.

    forks: copies of the row that a controller has asked for; they wait for a place in the batch.
    """

    forks: list[Row]

    # -- what the loop asks

    def read(self, row: Row, batch: LogitsBatch, place: int) -> bool:
        """Take the row's logits, at `place` in the batch; return whether the loop is to draw a token from them."""

    def take(self, row: Row, draws: Draws, number: int) -> None:
        """Add the token that the loop has drawn for a row, entry `number` of `draws`; then do as `walk` does."""

    def walk(self, row: Row) -> None:
        """Add tokens to a row until the next token needs a forward pass of the model."""

    def end(self, row: Row, reason: Reason) -> None:
        """End a text."""

    # -- what the judge asks

    def has_choice(self, row: Row, node: Node, *, avoided: Node | None = None) -> bool:
        """Report whether bans have left a token to draw at a node; where they have left little, search for more first.

        avoided: a node whose tokens are not alternatives.
        """

    def draws_others(self, node: Node) -> bool:
        """Report whether whatever token is drawn at a node is added to the text as it is, not replaced by a splice."""

    def is_stuck(self, row: Row, start: Node) -> bool:
        """Report whether a text was rewound to a node so often that the token into a ban is to be excluded there."""

    def look_ahead(self, row: Row, node: Node) -> LookAhead | None:
        """Return the grammar of the text at a node; None if the text has no grammar that reads characters."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RowSpec:
    """All that decides one text, such as prompt, bans and limits. Texts of a batch may share any of these objects.

    prompt: ids [1, tokens].
    state: the matcher's state after the prompt.
    generator: the random numbers, on the CPU; None for torch's global ones, which the texts of a batch share.
    keep_scores: whether `Row.kept` holds the logits and scores of each token of the text.
    alternatives: how many likely tokens are recorded with each draw; None if draws are not described.
    max_forks: how many texts, forks of this one included, the controller may continue at a time.
    forced: the tokens of each text that a ban with then="force" writes, by that text.
    """

    prompt: Tensor
    matcher: Matcher
    state: State
    policy: Policy
    callbacks: Callbacks
    max_new_tokens: int
    generator: torch.Generator | None = None
    drafter: Drafter | None = None
    keep_scores: bool = False
    alternatives: int | None = None
    controller: Controller | None = None
    max_forks: int = 1
    forced: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Row:
    """One text, and the row of a batch in which it is written.

    Its tokens, and the cursors that point between them:

        tokens     t0  t1  t2  t3  t4  t5  t6  .   .   .   .
                   |       |       |           |           |
                   0    settled unchanged  len(tokens)  max_new_tokens

    settled: tokens that no rewind withdraws any more; they are streamed, and their part of the ledger is dropped.
    closed: tokens that no ban of this text withdraws any more. In lockstep, a late criterion may still cut some.
    unchanged: tokens not rewritten since the last forward pass; the cache is correct up to there.
    len(tokens): without a draft's tokens; `state` and, between two forward passes, `node` are those after this length.

    number: counts texts in the order in which they came, from 0.
    root: the number of the text that this one was forked from, or its own.
    request: equal for texts that were asked for together; its own number by default.
    index: the place of the row in its batch.
    reported: how many tokens a controller has seen that were not rewritten since.
    floor: length of the text up to the end of what a ban has forced; no ban rewinds below it.
    withdrawn_count: how many tokens bans have withdrawn.
    events: what happened since `release` was last called.
    drawing: how the text's tokens are drawn; given when the text begins, see `writing.begin`.
    follower: the callbacks that are rewound with the text, shared by the rows of a batch; None if none remembers text.
    is_lockstep: whether the row waits after each token until all rows of its batch have as many tokens.
    has_own_generator: if so, an error of this text's own ends it while the other texts of its batch continue.
    keeps_ledger: whether nodes are kept where no ban has begun: in lockstep, for scores, controllers or method="text".
    restrict: makes the logits [vocab] that the next token is drawn from, if a controller restricts that token.
    is_waiting: whether the row draws no token now, since it waits for the other rows of its batch.
    fault: the error of this text's own matcher, processors, criteria or controller that ends it; other texts continue.
    end: the length at which the text ends, until a rewind of another row undoes this end; None before.
    ends_itself: whether `end` is due to the text's own tokens, not to a criterion's answer about all rows.
    reason: why the text ends.
    constraint: the name of the processor that left no choice where the judge cut the text.
    ended_by: the violation of the ban whose `then` decided that the text ends, or what it goes on with.
    timed_out: the bans for which a `TimedOut` event was written.
    """

    def __init__(self, spec: RowSpec, *, number: int = 0, index: int = 0, batch_ids: Tensor | None = None) -> None:
        self.spec = spec
        self.number = self.root = number
        self.request: Hashable = number
        self.index = index
        self.prompt_length = spec.prompt.shape[1]
        self.max_new_tokens = spec.max_new_tokens
        self._batch_ids = batch_ids
        self._line = 0 if batch_ids is None else index
        self._written = 0  # how many of the tokens are in that line of `batch_ids` already
        self.tokens: list[int] = []
        self.events: list[Event] = []
        self.draft = NO_DRAFT
        self.unchanged = 0
        self.reported = 0
        self.floor = 0
        self._node: Node | None = None  # None where no ban has begun
        self._tables: dict[int, Callable[[], Table]] = {}  # by position: functions that make unsettled tokens' tables
        self._passed = 0  # how many tokens the node follows, if it has to be made
        self.state = spec.state
        self.settled = self.closed = 0
        self.withdrawn_count = 0
        self._coins: tuple[int, Any] | None = None  # how many tokens were hashed, and the hash, which never changes
        self._written_bans: dict[Ban, bytes] = {}  # as the hash of a coin reads them; to write one takes 8 µs
        self.matcher_seconds = 0.0
        self.restrict: Callable[[Tensor], Tensor] | None = None
        self.is_finished = False
        self.is_waiting = False
        self.fault: Exception | None = None
        self.end: int | None = None
        self.drawing: Drawing
        self.follower: Callbacks | None = None
        self.is_lockstep = False
        self.has_own_generator = spec.generator is not None
        self.keeps_ledger = spec.keep_scores or spec.policy.method == "text" or spec.controller is not None
        self.ends_itself = False
        self.reason: Reason = "done"
        self.constraint: str | None = None
        self.ended_by: Violation | None = None
        self.timed_out: set[Ban] = set()
        self.kept: list[tuple[Tensor, Tensor]] | None = [] if spec.keep_scores else None
        self.after_end: list[Tensor] = []  # logits, if scores are kept

    # -- the ledger

    @property
    def node(self) -> Node:
        """The ledger's node after the latest token; while a draft is read, after one of the draft's tokens.

        At most places no ban has begun, and no node is needed: nodes are made when this property is read.
        """
        if self._node is None:
            self._node = Node(depth=self.settled)
            for token in (*self.tokens[self.settled : self._passed], None):
                if (make_table := self._tables.pop(self._node.depth, None)) is not None:
                    self._node.table = make_table()
                if token is not None:
                    self._node = self._node.child(token)
            self._tables = {}
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node, self._tables = node, {}

    @property
    def is_open(self) -> bool:
        """Whether the row has nodes of the ledger, as after a ban has begun."""
        return self._node is not None

    def set_table(self, make_table: Callable[[], Table]) -> None:
        """Set the distribution of the next token: `make_table` is called once a node needs the table."""
        self._tables[len(self.tokens)] = make_table
        if self._node is not None:
            self._node.table = make_table()

    def pass_over(self, settled: int) -> list[int]:
        """Keep the latest token, settle the first `settled` tokens, and drop the ledger, of which no node is needed.

        Returns the tokens that this call has settled.
        """
        if self._node is not None:
            self._node.cut_loose()
            self._node.drop_children()
            self._node = None
        tokens = self.tokens[self.settled : max(self.settled, settled)]
        self.settled += len(tokens)
        self._passed = len(self.tokens)
        if self._tables:
            self._tables = {depth: table for depth, table in self._tables.items() if depth >= settled}
        return tokens

    # -- the text

    @property
    def settleable(self) -> int:
        return self.settleable_at(len(self.tokens))

    def settleable_at(self, length: int) -> int:
        """Return the length that is settled once the text has been rewound to `length`."""
        reach = 0 if self.spec.controller is None else self.spec.controller.needs.backtrack
        if self.spec.policy.method == "text" or reach is None:
            return 0
        return max(0, self.state.back_to(length).settled_length - reach)

    @property
    def batch_ids(self) -> Tensor:
        """Ids [rows, prompt + max_new_tokens] of a whole batch, whose new tokens are sent to the device together."""
        if self._batch_ids is None:
            self._batch_ids = _make_room([self.spec])
        return self._batch_ids

    @property
    def ids(self) -> Tensor:
        """The ids of the prompt and of the text, [1, tokens]."""
        return self.ids_up_to(len(self.tokens))

    def ids_up_to(self, length: int) -> Tensor:
        """Return ids [1, tokens]: the prompt, then the first `length` tokens of the text and of the draft after it."""
        if self._written < length:
            start = self.prompt_length + self._written
            tokens = send(torch.tensor(self._tokens_between(self._written, length)), self.batch_ids.device)
            self.batch_ids[self._line, start : start + len(tokens)] = tokens
            self._written = min(length, len(self.tokens))
        return self.batch_ids[self._line : self._line + 1, : self.prompt_length + length]

    def _tokens_between(self, start: int, end: int, filler: int = 0) -> list[int]:
        tokens = self.tokens[start:end]
        if len(tokens) < end - start:
            tokens += self.draft.tokens[max(0, start - len(self.tokens)) :][: end - start - len(tokens)]
        return tokens + [filler] * (end - start - len(tokens))

    def release(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def feed(self, state: State, token: int) -> State:
        """Return the matcher's state after a token."""
        began = time.perf_counter()
        try:
            return self.spec.matcher.feed(state, token)
        finally:
            self.matcher_seconds += time.perf_counter() - began

    def blame(self, fault: Exception) -> None:
        """Note an error of this text's own matcher, processors, criteria or controller, which ends this text only.

        Raises the error instead if the text has no generator of its own, as in `generate`, where texts share random
        numbers; if the error is about all texts of a batch; or if on_exhausted="raise" has asked for it.
        """
        if not self.has_own_generator or isinstance(fault, SharingError | Exhausted):
            raise fault
        self.fault = fault

    def append(self, token: int, state: State) -> None:
        self.tokens.append(token)
        self.state = state
        if self.kept is not None:
            table = find_dense(self.node)
            assert table is not None, "no scores are kept of tokens that were not drawn from logits"
            self.kept.append((table.logits, table.scores))

    def toss(self, start: int, ban: Ban) -> float:
        """Return the random number in [0, 1) of a ban after the text's first `start` tokens: the same at each call.

        Numbers after other tokens, of other bans and of other rows are independent. Each is a keyed hash, not stored.
        """
        if self._coins is None:
            key = torch.randint(256, (16,), generator=self.spec.generator).tolist()
            self._coins = 0, blake2b(digest_size=8, key=bytes(key))
        hashed, prefix = self._coins
        number = prefix.copy()
        if self.settled > hashed:  # settled tokens are hashed once
            number.update(array("q", self.tokens[hashed : self.settled]))
            self._coins = hashed, _ = self.settled, number.copy()
        number.update(array("q", self.tokens[hashed:start]))
        if ban not in self._written_bans:
            self._written_bans[ban] = repr(ban).encode()
        number.update(self._written_bans[ban])
        return (int.from_bytes(number.digest(), "big") >> 11) / 2**53

    def take_draft(self, draft: Draft) -> None:
        """Store a draft for the next forward pass, which reads its tokens before the first that completes a ban."""
        state, read = self.state, 0
        for token in draft.proposed[: self.max_new_tokens - len(self.tokens) - 1]:
            state = self.feed(state, token)
            if state.violations:
                break
            read += 1
        self.draft = draft._replace(read=read)

    def fork(self, controller: Controller) -> Row:
        """Return a copy that continues this text independently; the copy's number and index are still to be set."""
        row = Row(replace(self.spec, controller=controller))
        row.tokens, row.node = list(self.tokens), self.node.fork()
        counts = ("unchanged", "reported", "settled", "withdrawn_count", "matcher_seconds")
        for name in (*counts, "state", "follower", "is_lockstep", "root", "request", "_coins"):
            setattr(row, name, getattr(self, name))
        return row

    def rewind(self, length: int) -> tuple[int, ...]:
        if self.follower is not None:  # first, since it may fail: then nothing has changed
            self.follower.rewind(self, length)
        self.node = self.node.back_to(length)
        withdrawn = tuple(self.tokens[length:])
        del self.tokens[length:]
        if self.kept is not None:
            del self.kept[length:]
        self.state = self.state.back_to(length)
        self.unchanged = min(self.unchanged, length)
        self.reported = min(self.reported, length)
        self.closed = min(self.closed, length)
        self._written = min(self._written, length)
        self.floor = self.floor if length >= self.floor else 0  # a criterion has ended the text within what was forced
        self.withdrawn_count += len(withdrawn)
        self.draft = self.draft._replace(proposals=None)  # each proposal may be used for one draw only
        return withdrawn


def begin_rows(specs: Sequence[RowSpec]) -> list[Row]:
    """Return the rows of a batch, all of whose prompts have the same length."""
    batch_ids = _make_room(specs)
    return [Row(spec, number=index, index=index, batch_ids=batch_ids) for index, spec in enumerate(specs)]


def _make_room(specs: Sequence[RowSpec]) -> Tensor:
    prompts = torch.cat([spec.prompt for spec in specs])
    return torch.cat([prompts, prompts.new_zeros((len(specs), max(spec.max_new_tokens for spec in specs)))], dim=1)


def ids_of(rows: Sequence[Row], length: int, *, filler: int = 0) -> Tensor:
    """Return ids [n, tokens] of rows: prompt, then the first `length` tokens of the text and of the draft after it.

    The prompts have the same length. Rows with fewer tokens end with `filler`. New tokens of all rows are sent to the
    device together.
    """
    batch_ids, start = rows[0].batch_ids, min(row._written for row in rows)
    if len(rows) == 1 and length <= len(rows[0].tokens) + len(rows[0].draft.tokens):
        return rows[0].ids_up_to(length)
    if any(row.batch_ids is not batch_ids for row in rows):
        return torch.cat([ids_of([row], length, filler=filler) for row in rows])
    numbers = [row._line for row in rows]
    is_whole = numbers == list(range(len(batch_ids)))
    lines = slice(None) if is_whole else send(torch.tensor(numbers), batch_ids.device)
    if start < length:
        columns = torch.tensor([row._tokens_between(start, length, filler) for row in rows])
        first = rows[0].prompt_length + start
        batch_ids[lines, first : first + length - start] = send(columns, batch_ids.device)
        for row in rows:
            row._written = length if row.is_finished else min(length, len(row.tokens))
    ids = batch_ids[lines, : rows[0].prompt_length + length]
    return ids.clone() if is_whole else ids
