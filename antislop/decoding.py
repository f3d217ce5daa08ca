"""Draw tokens, and draw again where they complete a ban: the loop.

A row is one text in the making. It walks: draws a token at its node, feeds the matcher, and either stays, or has the
ledger take the violation and goes back. It walks through nodes that are known until it needs the model; then all rows
that need it get one forward pass. Everything that happens is yielded as an event. The loop knows neither what the
tokens mean nor what computes the logits.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from antislop.events import Admitted, Conceded, Drafted, Drawn, Event, Finished, Forwarded, Reason, Rewound, Settled
from antislop.ledger import FLOOR, SCARCE, Node
from antislop.matcher import Matcher, State, Violation

Method = Literal["exact", "token"]
OnExhausted = Literal["concede", "stop", "raise"]

CANDIDATES = 32
"""Tokens that are tried beside the one that completed a ban: most word edges are decided by any of many."""


class Exhausted(RuntimeError):
    """Raised where every alternative to a ban is used up and the policy is to raise."""


class Passes(NamedTuple):
    """One forward pass of a batch.

    logits: float32 [rows, positions, vocab]; the last position is the one after a row's last token, or that of its
    draft. fed, cut: what it cost each row.
    """

    logits: Tensor
    fed: Sequence[int]
    cut: Sequence[int]


class Engine(Protocol):
    """What the loop needs of whatever computes."""

    def forward(self, rows: Sequence[Row]) -> Passes:
        """Read what each row has that was not read yet, and its draft; finished rows are kept up with the others."""

    def replace(self, rows: Sequence[Row], place: int) -> Passes:
        """Read the prompt of the new row at a place, which belonged to a finished one; the others stay as they are."""


class Settings(Protocol):
    """What was asked for: processors, and when a text ends."""

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return scores [n, vocab] for logits [n, vocab] after the first `lengths[i]` generated tokens of each row."""

    def is_done(self, row: Row) -> bool:
        """Tell whether a stopping criterion is met after the row's tokens."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text."""


class Draft(NamedTuple):
    """Tokens that may come next, and, where they were drawn, the distribution of each, [tokens, vocab]."""

    tokens: list[int]
    proposals: Tensor | None = None


NO_DRAFT = Draft([])


class Drafter(Protocol):
    """Guesses what comes next. Any guess leaves what is written as it is; good ones make it come faster."""

    def propose(self, row: Row) -> Draft:
        """Return what may follow the row's tokens; it may be empty."""

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        """Take note of how many of the row's proposed tokens were drawn."""


@dataclass(frozen=True)
class Policy:
    """How to draw and what to do when nothing is left.

    max_rewinds counts per position. A row may withdraw `max_withdrawn_ratio` tokens for each one that it may have.
    """

    do_sample: bool
    method: Method
    on_exhausted: OnExhausted
    max_rewinds: int
    max_withdrawn_ratio: float = 16


class Row:
    """One text in the making.

    prompt: ids [1, tokens]. state: the matcher's after the prompt. capacity: the most tokens that may be generated.
    place: its row in the batch. generator: its own random numbers, so that it does not matter what it is batched with.
    keep_scores: remember logits and scores of the kept tokens.
    """

    def __init__(
        self,
        prompt: Tensor,
        *,
        settings: Settings,
        state: State,
        capacity: int,
        place: int = 0,
        generator: torch.Generator | None = None,
        keep_scores: bool = False,
    ) -> None:
        self.prompt_length = prompt.shape[1]
        self._ids = torch.cat([prompt, prompt.new_zeros((1, capacity))], dim=1)
        self.settings = settings
        self.capacity = capacity
        self.place = place
        self.generator = generator
        self.tokens: list[int] = []
        self.draft = NO_DRAFT
        self.unchanged = 0
        self.node = Node()
        self.state = state
        self.settled = 0
        self.withdrawn = 0
        self.matcher_seconds = 0.0
        self.is_finished = False
        self.kept: list[tuple[Tensor, Tensor]] | None = [] if keep_scores else None

    @property
    def ids(self) -> Tensor:
        """Prompt and tokens, [1, tokens]."""
        return self.ids_up_to(len(self.tokens))

    def ids_up_to(self, length: int) -> Tensor:
        """Prompt and the first `length` tokens, [1, tokens]."""
        return self._ids[:, : self.prompt_length + length]

    def append(self, token: int, state: State) -> None:
        """Add a token to the text."""
        self._ids[0, self.prompt_length + len(self.tokens)] = token
        self.tokens.append(token)
        self.state = state
        if self.kept is not None:
            assert self.node.logits is not None and self.node.scores is not None
            self.kept.append((self.node.logits, self.node.scores))

    def expect(self, draft: Draft) -> None:
        """Have these tokens read together with the text."""
        self.draft = draft
        if draft.tokens:
            end = self.prompt_length + len(self.tokens)
            self._ids[0, end : end + len(draft.tokens)] = self._ids.new_tensor(draft.tokens)

    def rewind(self, length: int) -> tuple[int, ...]:
        """Go back to `length` tokens and return the others."""
        withdrawn = tuple(self.tokens[length:])
        del self.tokens[length:]
        if self.kept is not None:
            del self.kept[length:]
        self.state = self.state.back_to(length)
        self.node = self.node.back_to(length)
        self.unchanged = min(self.unchanged, length)
        self.withdrawn += len(withdrawn)
        self.draft = self.draft._replace(proposals=None)  # each was good for one draw
        return withdrawn


def decode(
    rows: Sequence[Row],
    *,
    engine: Engine,
    matcher: Matcher,
    policy: Policy,
    queue: Iterable[Row] = (),
    places: int = 0,
    drafter: Drafter | None = None,
) -> Iterator[tuple[int, Event]]:
    """Generate until every row is finished; yield (number of the text, event) as things happen.

    Texts are numbered as they come: first the rows, then those of the queue, each of which takes the place of a
    finished row while the others go on. Without rows, the first of the queue make up a batch of up to `places`.
    """
    walkers = [_Walker(number, row, matcher=matcher, policy=policy, drafter=drafter) for number, row in enumerate(rows)]
    coming = iter(queue)
    started = len(walkers)
    while True:
        for place in range(max(len(walkers), places)):
            while (place >= len(walkers) or walkers[place].row.is_finished) and (row := next(coming, None)) is not None:
                row.place = place
                walkers[place : place + 1] = [_Walker(started, row, matcher=matcher, policy=policy, drafter=drafter)]
                started += 1
                passes = engine.replace([walker.row for walker in walkers], place)
                yield from _advance([walkers[place]], passes, policy=policy)
        if all(walker.row.is_finished for walker in walkers):
            return
        for walker in walkers:
            walker.draft()
        yield from _advance(walkers, engine.forward([walker.row for walker in walkers]), policy=policy)


def _advance(walkers: Sequence[_Walker], passes: Passes, *, policy: Policy) -> Iterator[tuple[int, Event]]:
    """Fill nodes with what a forward pass says, draw in all rows that go on, and walk on from there."""
    going = [number for number, walker in enumerate(walkers) if not walker.row.is_finished]
    rows = [walkers[number].row for number in going]
    logits = passes.logits if len(going) == len(walkers) else passes.logits[going]
    first: Sequence[int | None] = [None] * len(rows)
    if any(row.draft.tokens for row in rows):
        _fill_paths(rows, logits)
    else:
        scores = _process(rows, [len(row.tokens) for row in rows], logits[:, -1])
        for i, row in enumerate(rows):
            row.node.fill(logits[i, -1:], scores[i : i + 1])
        first = _draw_together(rows, scores, among=len(walkers), at=going, policy=policy)
    for number, token in zip(going, first, strict=True):
        walker = walkers[number]
        walker.row.unchanged = len(walker.row.tokens)
        yield walker.number, Forwarded(passes.fed[number], passes.cut[number])
        for event in walker.walk_drafted() if walker.row.draft.tokens else walker.walk(token):
            yield walker.number, event


def _fill_paths(rows: Sequence[Row], logits: Tensor) -> None:
    """Fill the nodes along each row's draft, its own node first, from logits [rows, positions, vocab]."""
    at = [(row, i, step) for i, row in enumerate(rows) for step in range(len(row.draft.tokens) + 1)]
    flat = torch.stack([logits[i, step - len(row.draft.tokens) - 1] for row, i, step in at])
    scores = _process([row for row, _, _ in at], [len(row.tokens) + step for row, _, step in at], flat)
    for number, (row, _, step) in enumerate(at):
        node = row.node
        for token in row.draft.tokens[:step]:
            node = node.child(token)
        if not node.is_filled:
            node.fill(flat[number : number + 1], scores[number : number + 1])


def _process(rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
    """Have each row's settings make scores of its logits, those of rows that share them together."""
    settings = rows[0].settings
    if all(row.settings is settings for row in rows):
        return settings.process(rows, lengths, logits)
    scores = [
        row.settings.process([row], [length], logits[i : i + 1])
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True))
    ]
    return torch.cat(scores)


def _draw_together(
    rows: Sequence[Row], scores: Tensor, *, among: int, at: Sequence[int], policy: Policy
) -> Sequence[int]:
    """Draw each row's token from scores [n, vocab] as `generate` does: with random numbers for finished rows, too."""
    if not policy.do_sample:
        return list(scores.argmax(dim=-1).tolist())
    probs = torch.softmax(scores, dim=-1)
    for i, row in enumerate(rows):
        row.node.expect(probs[i : i + 1])
    if rows[0].generator is not None:
        return [row.node.draw(do_sample=True, generator=row.generator) for row in rows]
    if len(rows) < among:
        probs, some = probs.new_ones((among, probs.shape[1])), probs
        probs[at] = some
    tokens = torch.multinomial(probs, num_samples=1)[:, 0].tolist()
    return [tokens[number] for number in at]


class _Walker:
    """Moves one row through its tree until it needs the model."""

    def __init__(
        self, number: int, row: Row, *, matcher: Matcher, policy: Policy, drafter: Drafter | None = None
    ) -> None:
        self.number = number
        self.drafter = drafter
        self.row = row
        self.matcher = matcher
        self.policy = policy

    def draft(self) -> None:
        """Ask for a draft and cut it where it would complete a ban or outgrow the text."""
        row = self.row
        if self.drafter is None or row.is_finished or not row.tokens:
            return
        draft, state, kept = self.drafter.propose(row), row.state, 0
        for token in draft.tokens[: row.capacity - len(row.tokens) - 1]:
            state = self._feed(state, token)
            if state.violations:
                break
            kept += 1
        row.expect(Draft(draft.tokens[:kept], draft.proposals))

    def walk_drafted(self) -> Iterator[Event]:
        """Walk, first along the draft; tell how far that was right."""
        assert self.drafter is not None
        row, accepted = self.row, 0
        draft, begun = row.draft.tokens, len(row.tokens)
        for event in self.walk():
            if isinstance(event, Drawn) and len(row.tokens) == begun + accepted + 1:
                accepted += accepted < len(draft) and event.token == draft[accepted]
            yield event
        self.drafter.learn(row, proposed=len(draft), accepted=accepted)
        row.draft = NO_DRAFT
        yield Drafted(len(draft), accepted)

    def _draw(self) -> int:
        """Draw at the row's node: beside the draft's token, as long as the text goes along the draft."""
        row, draft = self.row, self.row.draft
        step = len(row.tokens) - row.unchanged
        is_along = draft.proposals is not None and row.tokens[row.unchanged :] == draft.tokens[:step]
        if self.policy.do_sample and is_along and step < len(draft.tokens) and draft.proposals is not None:
            return row.node.draw_beside(draft.tokens[step], draft.proposals[step], generator=row.generator)
        return row.node.draw(do_sample=self.policy.do_sample, generator=row.generator)

    def walk(self, token: int | None = None) -> Iterator[Event]:
        """Walk until the model is needed; `token` is what was drawn at the first node, if it was."""
        row = self.row
        while not row.is_finished and row.node.is_filled:
            if token is None:
                token = self._draw()
            row.append(token, self._feed(row.state, token))
            yield Drawn(token)
            violations, is_done = row.state.violations, row.settings.is_done(row)
            if is_done:
                violations = _in_order((*violations, *self.matcher.finish(row.state)))
            drawn, token = token, None
            if violations and not (yield from self._judge(drawn, violations)):
                continue
            row.node = row.node.child(drawn)
            yield from self._finish("done") if is_done else self._settle(row.state.hold)

    def _feed(self, state: State, token: int) -> State:
        began = time.perf_counter()
        after = self.matcher.feed(state, token)
        self.row.matcher_seconds += time.perf_counter() - began
        return after

    def _settle(self, length: int) -> Iterator[Event]:
        """Let go of what no rewind can reach."""
        row = self.row
        if length > row.settled:
            yield Settled(tuple(row.tokens[row.settled : length]))
            row.settled = length
            row.node.back_to(length).cut_loose()

    def _finish(self, reason: Reason) -> Iterator[Event]:
        self.row.is_finished = True
        yield from self._settle(len(self.row.tokens))
        yield Finished(reason, self.row.matcher_seconds)

    def _judge(self, token: int, violations: Sequence[Violation]) -> Generator[Event, None, bool]:
        """Return whether the token stays; if not, the row has gone back or is finished."""
        for violation in violations:
            if self._is_admitted(token, violation):
                yield Admitted(violation)
                continue
            self._take(token, violation, violations)
            target = self._find_way_back(violation)
            if target is not None:
                target.rewinds += 1
                yield Rewound(target.depth, self.row.rewind(target.depth), violation)
                return False
            if self.policy.on_exhausted == "raise":
                raise Exhausted(
                    f"nothing is left to say at token {violation.start} but the banned {violation.ban.phrase!r}: "
                    "shorten the list, give the ban a weight, or choose on_exhausted='concede' or 'stop'"
                )
            if self.policy.on_exhausted == "stop":
                yield from self._stop(violation)
                return False
            yield Conceded(violation)
        if self.policy.method == "exact":
            # Resolved now, or a later exit from below it would weigh more than the coin that led there.
            self.row.node.take(token, violations)
            self.row.node.carry()
        return True

    def _is_admitted(self, token: int, violation: Violation) -> bool:
        """Tell whether a ban's weight lets this occurrence stay: by a coin, or because its mass was taken already."""
        row, weight = self.row, violation.ban.weight
        if self.policy.method == "token":
            start = row.node.back_to(violation.start)
            return weight > 0 and start.has_resolved(_at_start(violation), token=row.tokens[violation.start])
        if row.node.has_resolved(violation, token=token):
            return weight > 0
        return self.policy.do_sample and weight > 0 and float(torch.rand((), generator=row.generator)) < weight

    def _take(self, token: int, violation: Violation, violations: Sequence[Violation]) -> None:
        """Take a violation's mass out of the ledger."""
        row = self.row
        if self.policy.method == "token":
            start = row.node.back_to(violation.start)
            start.scale(row.tokens[violation.start], _at_start(violation))
            return
        row.node.take(token, violations)
        before = row.state.back_to(len(row.tokens) - 1)
        for other in row.node.likeliest(CANDIDATES):
            after = self._feed(before, other)
            found = after.violations
            if len(row.tokens) == row.capacity:
                found = _in_order((*found, *self.matcher.finish(after)))
            if found:
                row.node.take(other, found)
        row.node.carry()

    def _find_way_back(self, violation: Violation) -> Node | None:
        """Return the node to draw from next, or None where there is no alternative to the violation."""
        row, policy = self.row, self.policy
        node = row.node.back_to(violation.start)
        if policy.do_sample:
            node = node.bounce(row.generator)
        if node.rewinds >= policy.max_rewinds or row.withdrawn >= policy.max_withdrawn_ratio * row.capacity:
            return None
        while not self._has_choice(node):
            if node.parent is None or row.state.back_to(node.depth - 1).horizon < row.settled:
                return None
            node.parent.close(node.token)
            node = node.parent
            node.carry()
        return node

    def _has_choice(self, node: Node) -> bool:
        """Tell whether there is something to draw at a node; where little is left, first look for more."""
        if node.mass_left() + sum(node.exits().values()) >= SCARCE and node.mass_left() > 0:
            return True
        assert node.logits is not None
        likely = torch.softmax(node.logits[0], dim=-1) >= FLOOR
        for end in self.row.settings.eos_token_ids:  # a text does not end merely because the rest is banned
            likely[end : end + 1] = False
        candidates = likely & (node.left > 0)
        if candidates.any():
            node.keep_only(candidates)
            return True
        return self._look_further(node, likely)

    def _look_further(self, node: Node, likely: Tensor) -> bool:
        """Apply top-k, top-p, min-p to what bans left of the raw logits; tell whether that finds anything."""
        assert node.logits is not None
        node.spent = node.probs[0] > 0 if node.spent is None else node.spent | (node.probs[0] > 0)
        rest = node.logits.masked_fill(node.spent, -torch.inf)
        scores = self.row.settings.process([self.row], [node.depth], rest)[0]
        candidates = likely & ~node.spent & (scores > -torch.inf)
        if candidates.any():
            node.renew(torch.softmax(scores.masked_fill(~candidates, -torch.inf), dim=-1))
        return bool(candidates.any())

    def _stop(self, violation: Violation) -> Iterator[Event]:
        """End the text before a violation, and before what that end would complete."""
        row, ended = self.row, [violation]
        while ended:
            yield Rewound(ended[0].start, row.rewind(ended[0].start), ended[0])
            ended = list(self.matcher.finish(row.state))
        yield from self._finish("exhausted")


def _in_order(violations: Sequence[Violation]) -> tuple[Violation, ...]:
    return tuple(sorted(violations, key=lambda violation: violation.start))


def _at_start(violation: Violation) -> Violation:
    """Return the violation without its length: the classic rule asks only where a ban begins."""
    return Violation(violation.ban, violation.start, violation.start)
