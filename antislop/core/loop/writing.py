"""Add drawn tokens to a text, and end it: the judge decides what becomes of each token, and these functions do it.

`antislop.core.loop.drawing` draws tokens from logits, and `controlled` draws them as a controller says. Engines whose
servers draw call these functions with the tokens that a server has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from antislop.core.bans.token_matcher import State
from antislop.core.loop.judge import Verdict, cut_before, find_choice, judge
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Drawing, Row
from antislop.core.loop.tables import CertainTable
from antislop.core.trace.events import Drawn, Finished, Forced, Reason, Settled, TimedOut, Truncated

Outcome: TypeAlias = Verdict | Literal["done"]
"""The judge's verdict on a token that was added, or: the text has reached its end."""


def begin(rows: Sequence[Row], make_drawing: Callable[[Row], Drawing]) -> None:
    """Prepare rows that share their callbacks: set the `follower` of their rewinds, and the `drawing` of each."""
    follower = rows[0].spec.callbacks.follow(rows)
    for row in rows:
        row.follower, row.drawing = follower, make_drawing(row)
        row.is_lockstep = follower is not None and follower.is_lockstep
        row.keeps_ledger = row.keeps_ledger or row.is_lockstep


def add(row: Row, drawn: Drawn, *, choice: int | None = None, state: State | None = None) -> Outcome:
    """Add a drawn token to a text, judge it, and do what the verdict asks for.

    choice: the token that was drawn, if a controller put another one in its place.
    state: the matcher's state after the token; None if it is still to be computed.
    """
    token = drawn.token
    row.append(token, row.feed(row.state, token) if state is None else state)
    row.events.append(drawn)
    return judge_latest(row, token if choice is None else choice, is_done=row.spec.callbacks.is_done(row))


def judge_latest(row: Row, choice: int, *, is_done: bool) -> Outcome:
    """Judge the latest token, for which `choice` was drawn, and do what the verdict asks for.

    If the token stays, this settles the tokens that no rewind reaches any more.
    """
    matcher, violations = row.spec.matcher, row.state.violations
    if is_done:
        violations = (*violations, *matcher.finish(row.state))
    if timed_out := matcher.timed_out:
        row.events.extend(TimedOut(ban) for ban in timed_out if ban not in row.timed_out)
        row.timed_out.update(timed_out)
    outcome: Outcome = judge(row, choice, violations) if violations else "stays"
    if outcome == "stays":
        row.node = row.node.child(choice, depth=len(row.tokens))
        if is_done:
            outcome = "done"
        elif row.is_lockstep:
            row.is_waiting, row.closed = True, max(row.closed, row.settleable)
        else:
            settle(row, row.settleable)
    end_if(row, outcome)
    return outcome


def settle(row: Row, length: int) -> None:
    """Settle the first `length` tokens, which no rewind reaches any more."""
    if length <= row.settled:
        return
    node = row.node.back_to(length)
    if isinstance(node.table, CertainTable) and not row.is_finished and (choice := find_choice(row, node)):
        # A ban within tokens that were certain, not drawn, may lead back to the latest draw before these.
        length = min(length, row.settleable_at(choice.depth))
        if length <= row.settled:
            return
        node = node.back_to(length)
    row.events.append(Settled.of(tuple(row.tokens[row.settled : length])))
    row.settled = length
    node.cut_loose()


def end_if(row: Row, outcome: Outcome) -> None:
    """Do what an outcome asks for beyond the rewind that has happened: write what a ban forces, or end the text."""
    if outcome == "forced":
        _write_forced(row)
    elif outcome in ("done", "exhausted", "repetition"):
        row.drawing.end(row, outcome)


def _write_forced(row: Row) -> None:
    """Write the tokens that a ban forces; if one of them completes a ban, end the text before all of them."""
    violation, start, is_done = row.ended_by, len(row.tokens), False
    assert violation is not None, "a ban forces tokens"
    tokens = row.spec.forced[violation.ban.force]
    for place, token in enumerate(tokens):
        row.append(token, row.feed(row.state, token))
        row.events.append(Drawn.plain(token))
        row.node = row.node.child(token)
        is_done = row.spec.callbacks.is_done(row)
        is_last = is_done or place == len(tokens) - 1
        completed = row.state.violations or (is_last and row.spec.matcher.finish(row.state))
        if completed:
            cut_before(row, completed[0]._replace(start=start))
            row.drawing.end(row, "repetition" if violation.ban.pattern.is_repetition else "exhausted")
            return
        if is_done:
            break
    row.floor = len(row.tokens)
    row.events.append(Forced(row.floor - start, violation))
    if is_done:
        row.drawing.end(row, "done")
    elif row.is_lockstep:
        row.is_waiting = True


def end(row: Row, reason: Reason) -> None:
    """End a text. In lockstep, the end is provisional until no rewind of another row can undo it."""
    row.reason = reason
    if row.is_lockstep:
        row.end, row.is_waiting, row.ends_itself = len(row.tokens), True, True
    else:
        conclude(row)


def end_at(row: Row, length: int) -> None:
    """End a text after `length` tokens; if its end there completes a ban, let the judge decide, who may rewind it."""
    row.end, row.ends_itself = None, False
    if len(row.tokens) > length:
        row.events.append(Truncated(length, row.rewind(length)))
    if violations := row.spec.matcher.finish(row.state):
        token = row.tokens[-1]
        row.node = row.node.back_to(length - 1)
        verdict = judge(row, token, violations)
        if verdict != "stays":
            end_if(row, verdict)
            return
        row.node = row.node.child(token)
    row.drawing.end(row, "done")
    row.ends_itself = False


def conclude(row: Row) -> None:
    """Finish a text with its present tokens."""
    row.is_finished = True
    settle(row, len(row.tokens))
    row.node.drop_children()
    if row.reason != "failed":  # a failed row keeps its node, whose logits the error describes
        row.node = Node(depth=len(row.tokens))
    cut_by = (row.constraint, row.ended_by) if row.reason in ("exhausted", "repetition") else (None, None)
    row.events.append(Finished(row.reason, row.matcher_seconds, *cut_by))
