"""Judge each new token of a text, whoever has drawn it: the rules by which a ban rewinds the text.

docs/exactness.md explains why the texts are distributed as with rejection sampling.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch

from antislop.core.bans.bans import Ban
from antislop.core.bans.refusals import sentence
from antislop.core.bans.token_matcher import Violation
from antislop.core.loop.forced import Answer, ask, find_place
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row
from antislop.core.loop.tables import CertainTable, draw_uniform, find_dense
from antislop.core.trace.events import Admitted, Conceded, Rewound
from antislop.errors import Exhausted

ALSO_TRIED = 32
"""How many other likely tokens are judged when one completes a ban: many tokens may end the same banned phrase."""
UNKNOWN_TRIES = 8
"""Most rewinds to a place where a search could not tell whether a grammar forces a ban."""
LISTED_ALTERNATIVES = 16
"""Most alternatives that a `Rewound` event lists."""

Verdict: TypeAlias = Literal["stays", "rewound", "forced", "exhausted", "repetition"]
"""What becomes of a token. "forced": the text was cut before the banned phrase, and goes on with the tokens that the
ban forces. "exhausted", "repetition": the text was cut before the banned phrase, and ends there.
"""

Alternatives: TypeAlias = tuple[tuple[int, float], ...]


def judge(row: Row, token: int, violations: Sequence[Violation]) -> Verdict:
    """Judge the violations that `token`, drawn at the row's node, completes; rewind the row unless all may stay."""
    policy, node = row.spec.policy, row.node
    if policy.method == "text":
        # This is rejection sampling of whole texts: each violation leads back to the start of the text. Whole texts are
        # then independent trials, of which the first that is accepted is kept, so a text is written in proportion to
        # its probability times the weights of its bans. The mass that the ledger has subtracted belongs to trials that
        # would be rejected: without them, the accepted texts keep their shares.
        latest_start = row.floor
    else:  # a ban within tokens that were certain, not drawn, leads back to the latest draw before these
        choice = find_choice(row, node)
        latest_start = row.max_new_tokens if choice is None else choice.depth
    violations = _in_order(row, violations)
    held = [violation for violation in violations if _is_held(row, node, token, violation)]
    for violation in violations:
        ban, start = violation.ban, violation.target
        if start < row.settled:
            raise ValueError(sentence("settled start", text=ban.text, start=start))
        if violation not in held:
            row.events.append(Admitted(violation))
            continue
        place, target = node.back_to(min(start, latest_start)), None
        answer, way_out = _ask_grammar(row, ban, place)
        if answer == "avoidable":
            _subtract(row, node, token, violation, held=held, latest_start=latest_start)
        tries = 0
        if ban.then or answer == "unknown":
            tries = place.tries[ban] = place.tries.get(ban, 0) + 1
        if answer != "forced" and tries <= (ban.tries if ban.then else UNKNOWN_TRIES):
            target = _find_target(row, violation, place, way_out)
        if target is not None:
            target.rewinds += 1
            _rewind(row, target.depth, violation, target.list_alternatives(LISTED_ALTERNATIVES))
            return "rewound"
        # No other token is left: what the user has said for this case decides.
        constraint, begun = None, node.back_to(start)  # the processor that left no choice there, if one did
        if row.follower is not None and (table := find_dense(begun)) is not None:
            constraint = row.follower.find_constraint(row, begun.depth, table.logits)
        ending = ban.then or policy.on_exhausted
        if ending == "raise":
            cause = f" ({constraint} allows nothing else)" if constraint else ""
            raise Exhausted(sentence("no alternative", start=violation.start, text=ban.text, cause=cause))
        if ending == "concede":
            row.events.append(Conceded(violation, constraint))
            continue
        row.constraint, row.ended_by = constraint, violation if ban.then else None
        if ending == "force" and ban.force in row.spec.forced and not 0 < row.floor == violation.start:
            _rewind(row, violation.start, violation)
            return "forced"
        cut_before(row, violation)
        return "repetition" if ban.then and ban.pattern.is_repetition else "exhausted"
    return "stays"


def cut_before(row: Row, violation: Violation) -> None:
    """Rewind a text to where a violation starts, and further if an end of the text there would complete another ban."""
    violations = [violation]
    while violations:
        _rewind(row, violations[0].start, violations[0])
        violations = list(_in_order(row, row.spec.matcher.finish(row.state)))


def _rewind(row: Row, length: int, violation: Violation, alternatives: Alternatives = ()) -> None:
    part = row.spec.matcher.find_part(row.state.back_to(violation.start))
    row.events.append(Rewound(length, row.rewind(length), violation, alternatives, part))


def find_choice(row: Row, node: Node) -> Node | None:
    """Return the latest node, `node` or one before it, where a token was drawn, not certain; None if settled."""
    while isinstance(node.table, CertainTable):
        before = node.depth - 1
        if node.parent is None or before < 0 or row.state.back_to(before).earliest_start < row.settled:
            return None
        node = node.parent.back_to(before)
    return node


def _is_held(row: Row, node: Node, token: int, violation: Violation, *, is_drawn: bool = True) -> bool:
    """Return whether a violation must be withdrawn: always if its ban has weight 0, otherwise as weight and method say.

    is_drawn: whether the token was drawn. With method="text", a violation of a token only judged as likely may stay.
    """
    policy, weight = row.spec.policy, violation.ban.weight
    if weight == 0:
        return True
    if policy.method == "token":
        start, first = node.step_from(violation.target, token)
        return not start.has_weighed(violation.ban, token=first)
    if not policy.do_sample:
        return not _is_likeliest(node, token, violation)
    if policy.method == "text":  # each whole text that is drawn is a trial, with coins of its own
        return is_drawn and draw_uniform(row.spec.generator) >= weight
    return row.toss(violation.target, violation.ban) >= weight


def _is_likeliest(node: Node, token: int, violation: Violation) -> bool:
    """Return whether a greedy text keeps a violation: if, times its ban's weight, no other next token is likelier."""
    mass = violation.ban.weight
    if not node.knows_since(violation.target, token):
        return False
    while True:
        assert node.table is not None, "its tokens are known"
        mass *= node.table.left(token) / node.mass_left()
        if node.depth <= violation.target or node.parent is None:
            break
        node, token = node.parent, node.token
    return mass >= max((share for other, share in node.list_alternatives(2) if other != token), default=0.0)


def _subtract(
    row: Row, node: Node, token: int, violation: Violation, *, held: Sequence[Violation], latest_start: int
) -> None:
    """Subtract the probability of a violation that `token` completes at a node, and of other violating tokens there.

    If a probability since the violation's start is unknown, nothing is subtracted, and the same draw is repeated.
    """
    policy, ban, first_start = row.spec.policy, violation.ban, violation.target
    if not node.knows_since(min(first_start, latest_start), token):
        return
    start, first = node.step_from(first_start, token)
    if policy.method == "token":
        start.weigh(first, ban)
    elif not policy.do_sample and ban.pattern.is_repetition:
        # From the last token, the text would change one word of each copy, and repeat the rest.
        start.exclude([first], start.depth)
    elif ban.weight == 0 or policy.method == "exact" or not policy.do_sample:
        _exclude(node, {held[0].target: [token]}, latest_start)
        if row.drawing.draws_others(node):
            _exclude(node, _find_rejected(row, node, ban), latest_start)
        node.propagate()
    if row.drawing.is_stuck(row, start):
        start.exclude([first], start.depth)
        start.propagate()


def _exclude(node: Node, rejected: Mapping[int, Sequence[int]], latest_start: int) -> None:
    """Subtract rejected tokens from a node, if the probability of each token since their start is known.

    rejected: the tokens, by the depth of the start that they lead back to.

    If one is unknown, the token is not subtracted, but rejected whenever it is drawn.
    """
    for target, tokens in rejected.items():
        start = min(target, latest_start)
        if node.knows_since(start, tokens[0]):  # all share the way from there
            node.exclude(tokens, start)


def _find_rejected(row: Row, node: Node, ban: Ban) -> dict[int, list[int]]:
    """Judge the likeliest tokens at a node; return those that would be rejected, by the depth that they lead back to.

    A token that completes another ban with a `then` is left out, which is exact: any subset may be subtracted. Tokens
    that complete the same ban at the same place are judged as one group.
    """
    policy, matcher, rejected = row.spec.policy, row.spec.matcher, dict[int, list[int]]()
    tokens = [token for token, _ in node.table.likeliest(ALSO_TRIED)] if node.table else []
    is_last = len(row.tokens) == row.max_new_tokens
    began = time.perf_counter()
    # The end of the text may complete a ban after each token. In greedy texts, the token decides what a weight leaves.
    groups = matcher.group(row.state.back_to(len(row.tokens) - 1), tokens, apart=is_last or not policy.do_sample)
    row.matcher_seconds += time.perf_counter() - began
    for after, group in groups:
        completed = (*after.violations, *matcher.finish(after)) if is_last else after.violations
        held = [each for each in _in_order(row, completed) if _is_held(row, node, group[0], each, is_drawn=False)]
        if held and not any(each.ban.then and each.ban != ban for each in held):
            rejected.setdefault(held[0].target, []).extend(group)
    return rejected


def _in_order(row: Row, violations: Sequence[Violation]) -> Sequence[Violation]:
    """Return violations ordered by the place that they lead back to, the earliest first, then by the list of bans.

    Violations that began before the end of a forced text lead back to that end.
    """
    if floor := row.floor:
        violations = [
            each._replace(start=max(each.start, floor), unit=None if each.unit is None else max(each.unit, floor))
            for each in violations
        ]
    if len(violations) > 1:
        violations = sorted(violations, key=lambda each: (each.target, row.spec.matcher.ranks[each.ban]))
    return violations


def _find_target(row: Row, violation: Violation, place: Node, way_out: Node) -> Node | None:
    """Return the node from which the text is drawn again, `place` or an earlier node; None if there is none."""
    policy, matcher, node = row.spec.policy, row.spec.matcher, place
    if policy.do_sample:
        node = node.follow_exits(partial(draw_uniform, row.spec.generator, dtype=torch.float64))
    is_spent = policy.method != "text" and row.withdrawn_count >= policy.max_withdrawn_ratio * row.max_new_tokens
    if is_spent or node.rewinds >= policy.max_rewinds:
        return None
    if node.depth > way_out.depth:
        return _step_back(row, node, avoided=None, limit=way_out.depth)
    if not node.is_scarce(policy.mass_floor):
        return node
    # If the token drawn at the row's node only ended the ban's last word, the tokens left there would only make that
    # word longer: "once upon a times".
    ended = {(one.ban, one.start) for one in matcher.finish(row.state.back_to(len(row.tokens) - 1))}
    word_end = row.node if (violation.ban, violation.start) in ended else None
    target = _step_back(row, node, avoided=word_end)
    if target is None and word_end is not None and row.drawing.has_choice(row, node):
        return node  # a longer word is bad text, but it is not banned
    return target


def _ask_grammar(row: Row, ban: Ban, node: Node) -> tuple[Answer, Node]:
    """Answer whether a grammar forces an occurrence that leads back to a node, wherever the text is drawn again.

    Also returns the latest node from which a text can avoid the ban: `node`, or an earlier one.
    """
    policy, matcher = row.spec.policy, row.spec.matcher
    ahead, state = row.drawing.look_ahead(row, node), row.state.back_to(node.depth)
    if ahead is None or (ban.weight and policy.method != "exact"):  # then one of the next trials is kept
        return "avoidable", node
    if policy.method == "text":  # each trial is a whole text
        return "forced" if ask(ban, ahead, matcher, state, is_here=False) == "forced" else "avoidable", node
    before = find_place(ban, matcher, state, row.tokens[node.depth :])
    # The coin of a weight is tossed for the place before a token, which depends on the spelling.
    if before is None or (before and ban.weight) or (before and not ahead.accept_string(before)):
        return "avoidable", node
    *_, state = state, *matcher.read_characters(state, before)
    answer = ask(ban, ahead, matcher, state, is_here=True)
    if answer != "forced":
        # A greedy text that is drawn again without a subtraction is the same, and banned again.
        return answer if policy.do_sample else "avoidable", node
    place = node
    while True:
        if before or place is not node:  # otherwise that was asked above
            ahead, state = row.drawing.look_ahead(row, place), row.state.back_to(place.depth)
            if ahead is None or ask(ban, ahead, matcher, state, is_here=ban.weight > 0) == "avoidable":
                return "avoidable", place
        if place.parent is None or (earlier := _find_before(row, place)) is None:
            return "forced", node
        place = place.parent.back_to(earlier)


def _step_back(row: Row, node: Node, *, avoided: Node | None, limit: int | None = None) -> Node | None:
    """Return the latest unsettled node, `node` or one before it, where a token is left to draw that leads to no ban.

    avoided: a node whose tokens don't count as left. limit: a depth; no deeper node has such a token.
    """
    while (limit is not None and node.depth > limit) or not row.drawing.has_choice(row, node, avoided=avoided):
        if (before := _find_before(row, node)) is None or node.parent is None:
            return None
        node.parent.exclude([node.token], before)
        node.parent.propagate()
        node = node.parent.back_to(before)
    return node


def _find_before(row: Row, node: Node) -> int | None:
    """Return the depth before a node; None if the text can't be drawn again from there."""
    before = node.depth - 1  # a splice or a cut may lead from a greater depth: resume before it
    settled = max(row.settled, row.closed)
    is_settled = before < row.floor or row.state.back_to(before).earliest_start < settled
    return None if node.parent is None or is_settled else before
