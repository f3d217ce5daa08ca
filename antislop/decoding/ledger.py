"""Keep the probabilities that bans have left.

A node is the distribution of the next token after one path of tokens; the nodes of the unsettled text form a tree. A
violation subtracts from a node, and later draws are made from the rest. Knows nothing of text, caches or transformers.

Why this is exact. Rejection sampling withdraws a violation from its first token on and draws again from there. It is a
Markov chain on prefixes, in which a rejection is a jump back to a shorter prefix. A jump from below a node to that node
only repeats the draw there, so it can be left out if the rest is renormalized. A jump to an earlier start can be left
out only at that start; the nodes in between remember its probability in their `exits`, by start. A parent therefore
weights a child by left / (left + exits): the jumps to the child itself don't count. After a rewind the chain may jump
further back, with the probability of the exits, without writing the tokens in between again (`Node.bounce`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor

from antislop.matching.token_matcher import Violation
from antislop.trace.events import TokenChoice


class Node:
    """The distribution after `depth` generated tokens, the last of which is `token`.

    Filled by the first forward pass that reaches it: logits [1, vocab] as the model gave them, scores [1, vocab] as
    the processors left them, both float32.
    """

    __slots__ = (
        "_batch_probs",
        "_entering",
        "_left",
        "_logits",
        "_lost",
        "_probs",
        "_resolved",
        "_row",
        "_scores",
        "children",
        "depth",
        "parent",
        "rest",
        "rewinds",
        "rule",
        "spent",
        "token",
    )

    def __init__(self, parent: Node | None = None, token: int = -1, depth: int | None = None) -> None:
        self.parent = parent
        self.token = token
        self.depth: int = (0 if parent is None else parent.depth + 1) if depth is None else depth
        self.rule: object = None  # a controller's, by which tokens are drawn here
        self.rest: object = None  # of a controller's branch that began before: what follows here without asking again
        self.children: dict[int, Node] = {}
        self.rewinds = 0
        self._row = 0  # of the tensors of a batch
        self._logits: Tensor | None = None
        self._scores: Tensor | None = None
        self._left: Tensor | None = None  # [vocab]; None while nothing was taken
        self.spent: Tensor | None = None  # [vocab], bool: tokens of distributions that this node has given up
        self._batch_probs: Tensor | None = None
        self._probs: Tensor | None = None
        self._entering: dict[int, float] = {}  # mass of a token once its own bans are resolved
        self._resolved: dict[int, set[Violation]] = {}
        self._lost: dict[
            int, tuple[dict[int, float], dict[int, float]]
        ] = {}  # exits of the token itself, and those of its child

    def fill(self, logits: Tensor, scores: Tensor, *, row: int = 0) -> None:
        """Store the logits and scores of this node: one row of [rows, vocab]."""
        self._logits, self._scores, self._row = logits, scores, row

    def read(self, logits: Tensor) -> None:
        """Store the logits [1, vocab] of a node whose scores depend on a controller."""
        self._logits = logits

    @property
    def is_read(self) -> bool:
        """Whether the model's logits are known here."""
        return self._logits is not None

    def expect(self, probs: Tensor) -> None:
        """Store the softmax [rows, vocab] of the scores, if it was computed for the whole batch."""
        self._batch_probs = probs

    @property
    def is_forced(self) -> bool:
        """Whether only one continuation is possible here, by a controller's rule."""
        return False

    @property
    def is_filled(self) -> bool:
        """Whether a forward pass has reached this node."""
        return self._scores is not None

    @property
    def logits(self) -> Tensor:
        """The logits of the model, [1, vocab]."""
        assert self._logits is not None, "no forward pass has reached this node"
        return self._logits[self._row : self._row + 1]

    @property
    def scores(self) -> Tensor:
        """The scores that the processors made of the logits, [1, vocab]."""
        assert self._scores is not None, "no forward pass has reached this node"
        return self._scores[self._row : self._row + 1]

    @property
    def probs(self) -> Tensor:
        """The distribution that `generate` would draw from, [1, vocab]."""
        if self._probs is None:
            batch = self._batch_probs
            self._probs = torch.softmax(self.scores, dim=-1) if batch is None else batch[self._row : self._row + 1]
        return self._probs

    def is_broken(self, *, do_sample: bool) -> bool:
        """Report whether this node has no distribution: a score is NaN or, when sampling, none is finite."""
        return bool(
            (self.probs[0, 0] if do_sample else self.scores.max()).isnan()
        )  # one NaN makes all probabilities NaN

    def child(self, token: int, *, depth: int | None = None) -> Node:
        """Return the node after one more token; create it, at the depth that a splice leads to, if there is none."""
        node = self.children.get(token)
        if node is None:
            node = self.children[token] = self._make_child(token, depth)
        return node

    def _make_child(self, token: int, depth: int | None) -> Node:
        return Node(self, token, depth)

    def fork(self) -> Node:
        """Return this node in a copy of the whole tree, which changes independently."""
        root = self
        while root.parent is not None:
            root = root.parent
        copies, waiting = dict[int, Node](), [root]
        while waiting:
            node = waiting.pop()
            copies[id(node)] = node._copy(None if node.parent is None else copies[id(node.parent)])
            waiting += node.children.values()
        return copies[id(self)]

    def _copy(self, parent: Node | None) -> Node:
        """Return a copy without children below another parent; logits and scores never change and are shared."""
        node = type(self)(parent, self.token, self.depth)
        for name in ("_batch_probs", "_logits", "_probs", "_row", "_scores", "rest", "rewinds", "rule", "spent"):
            setattr(node, name, getattr(self, name))
        node._left = None if self._left is None else self._left.clone()
        node._entering = dict(self._entering)
        node._resolved = {token: set(violations) for token, violations in self._resolved.items()}
        node._lost = {token: (dict(own), dict(child)) for token, (own, child) in self._lost.items()}
        if parent is not None:
            parent.children[self.token] = node
        return node

    def put_in_place(self, node: Node) -> Node:
        """Put a new node into this one's place in the tree, which drops all that is below; return it."""
        node._logits, node._row, node.rest = self._logits, self._row, self.rest
        if self.parent is not None:
            self.parent.children[self.token] = node
            node.carry()
        return node

    def back_to(self, depth: int) -> Node:
        """Return the latest ancestor, or this node, that is at most at a depth."""
        node = self
        while node.depth > depth:
            assert node.parent is not None, "the ancestor is settled and no longer in the tree"
            node = node.parent
        return node

    def step_from(self, depth: int, token: int) -> tuple[Node, int]:
        """Return the latest ancestor, or this node, that is at most at a depth, and the token by which it was left.

        token: the one by which this node is left.
        """
        node = self
        while node.depth > depth:
            assert node.parent is not None, "the ancestor is settled and no longer in the tree"
            node, token = node.parent, node.token
        return node, token

    def draw(self, *, do_sample: bool, generator: torch.Generator | None = None) -> int:
        """Draw a token from the remaining distribution, or take the likeliest.

        The first draw at a node is `generate`'s own, to the bit and to the random number.
        """
        if not do_sample:
            return int((self.scores if self._left is None else self._left).argmax())
        left = self.probs if self._left is None else self._left[None]
        return int(torch.multinomial(left, num_samples=1, generator=generator))

    def draw_beside(self, token: int, proposal: Tensor, *, generator: torch.Generator | None = None) -> int:
        """Draw from the remaining distribution, as often as possible the token that was drawn from a proposal [vocab].

        The result has the same distribution as without a proposal: Leviathan et al., "Fast inference from
        transformers via speculative decoding", 2022, arXiv 2211.17192, algorithm 1.
        """
        left = self.probs[0] if self._left is None else self._left / self._left.sum()
        threshold = draw_uniform(generator) * float(proposal[token])
        if threshold < float(left[token]):
            return token
        rest = (left - proposal).clamp_(min=0)
        if not rest.any():  # the two are equal up to rounding
            return self.draw(do_sample=True, generator=generator)
        return int(torch.multinomial(rest, num_samples=1, generator=generator))

    def likeliest(self, count: int) -> list[int]:
        """Return up to `count` tokens that are left, the likeliest first."""
        mass, tokens = self.left.topk(min(count, self.probs.shape[-1]))
        return tokens[mass > 0].tolist()

    def alternatives(self, count: int) -> tuple[tuple[int, float], ...]:
        """Return up to `count` tokens that are left and their shares of the remaining mass, the likeliest first."""
        total = self.mass_left()
        mass, tokens = self.left.topk(min(count, self.left.shape[-1]))
        return tuple((token, m / total) for token, m in zip(tokens.tolist(), mass.tolist(), strict=True) if m > 0)

    def describe_choice(self, token: int, *, top_k: int | None = None) -> TokenChoice:
        """Return how likely a token is here, and the `top_k` likeliest alternatives, all if None; changes nothing."""
        left = self.probs[0] if self._left is None else self._left
        shares = left / left.sum()
        count = len(shares) if top_k is None else min(top_k, len(shares))
        mass, tokens = shares.topk(count)
        pairs = zip(tokens.tolist(), mass.tolist(), strict=True)
        return TokenChoice(
            probability=float(torch.softmax(self.scores[0], dim=-1)[token]),
            share=float(shares[token]),
            rank=1 + int((shares > shares[token]).sum()),
            alternatives=tuple((other, share) for other, share in pairs if share > 0),
        )

    def has_resolved(self, violation: Violation, *, token: int) -> bool:
        """Report whether a violation was already subtracted from a token's mass."""
        return violation in self._resolved.get(token, ())

    def take(self, token: int, violations: Iterable[Violation], *, latest_start: int = sys.maxsize) -> None:
        """Multiply a token's mass by the weights of the bans that it completes, each once.

        The subtracted mass leads back to the ban's start, or to `latest_start` if that is before it. If that is this
        node, it is renormalized away; otherwise it becomes an exit.
        """
        resolved = self._resolved.setdefault(token, set())
        mass = self._entering.get(token, self._before(token))
        token_exits, _ = self._lost.setdefault(token, ({}, {}))
        for violation in violations:
            if violation not in resolved:
                resolved.add(violation)
                lost = mass * (1 - violation.ban.weight)
                mass -= lost
                target = min(violation.start, latest_start)
                if target < self.depth:
                    token_exits[target] = token_exits.get(target, 0.0) + lost
        self._entering[token] = mass
        self._set(token, mass)
        if token in self.children:
            self.absorb(self.children[token])

    def scale(self, token: int, violation: Violation) -> None:
        """Multiply a token's mass by a ban's weight, once, whatever follows the token: the classic rule."""
        if not self.has_resolved(violation, token=token):
            self._resolved.setdefault(token, set()).add(violation)
            self._set(token, self._get(token) * violation.ban.weight)

    def close(self, token: int, *, start: int) -> None:
        """Remove the mass of a token and of everything below it: it leads back to `start`, or is renormalized here."""
        mass = self._entering.get(token, self._before(token))
        self._set(token, 0.0)
        self._entering[token] = 0.0
        self._lost[token] = ({start: mass} if start < self.depth else {}, {})

    def carry(self) -> None:
        """Update the mass of all ancestors from this node."""
        node = self
        while node.parent is not None and node.parent.absorb(node):
            node = node.parent

    def absorb(self, child: Node) -> bool:
        """Update a token's mass from its child; return whether that changes anything here."""
        exits, left = child.exits(), child.mass_left()
        total = left + sum(exits.values())
        if not exits and total > 0 and child.token not in self._entering:
            return False  # all subtracted mass leads back to the child itself
        mass = self._entering.setdefault(child.token, self._before(child.token))
        token_exits, _ = self._lost.get(child.token, ({}, {}))
        child_exits = {start: mass * lost / total for start, lost in exits.items() if total and start < self.depth}
        self._lost[child.token] = token_exits, child_exits
        self._set(child.token, mass * left / total if total else 0.0)
        return True

    def exits(self) -> dict[int, float]:
        """Return the mass that leads back to before this node, by the start that it leads to."""
        total: dict[int, float] = {}
        for losses in self._lost.values():
            for lost in losses:
                for start, mass in lost.items():
                    total[start] = total.get(start, 0.0) + mass
        return total

    def mass_left(self) -> float:
        """Return the remaining share of the distribution, 1 at first."""
        if self._left is None:
            return 1.0
        left = self._left.cpu() if self._left.device.type == "mps" else self._left  # which has no float64
        return float(left.sum(dtype=torch.float64))

    def bounce(self, generator: torch.Generator | None = None) -> Node:
        """Return the node where a rewind to this one ends: this one, or an earlier start that an exit leads to."""
        node = self
        while exits := node.exits():
            rest = draw_uniform(generator, dtype=torch.float64) * (node.mass_left() + sum(exits.values()))
            for start, mass in exits.items():
                rest -= mass
                if rest < 0:
                    node = node.back_to(start)
                    break
            else:
                break
        return node

    def keep_only(self, candidates: Tensor) -> None:
        """Remove the mass of all tokens but the candidates [vocab]."""
        self.left.masked_fill_(~candidates, 0.0)

    def renew(self, probs: Tensor) -> None:
        """Replace the distribution by another one [vocab], over tokens that could not be drawn so far."""
        self._left = probs / probs.sum()
        self._probs = self._left.clone()[None]
        self._entering.clear()
        self._lost.clear()

    def cut_loose(self) -> None:
        """Make this node the root and free the rest of the tree at once, without waiting for the collector.

        Each node refers to the logits of a whole batch, which a cycle of parent and child would keep in memory.
        """
        kept, ancestor, self.parent = self, self.parent, None
        while ancestor is not None:
            ancestor.drop_children(but=kept)
            kept, ancestor = ancestor, ancestor.parent

    def drop_children(self, *, but: Node | None = None) -> None:
        """Detach all children, and free everything below them at once, except below the child `but`."""
        waiting = [child for child in self.children.values() if child is not but]
        self.children.clear()
        while waiting:
            node = waiting.pop()
            if node.children:
                waiting += node.children.values()
                node.children.clear()
            node.parent = None

    @property
    def left(self) -> Tensor:
        """The remaining distribution [vocab], not normalized, to be changed in place."""
        if self._left is None:
            self._left = self.probs[0].clone()
        return self._left

    def _before(self, token: int) -> float:
        """Return a token's mass before anything was subtracted."""
        return float(self.probs[0, token])

    def _get(self, token: int) -> float:
        return float(self.left[token])

    def _set(self, token: int, mass: float) -> None:
        self.left[token] = mass


def draw_uniform(generator: torch.Generator | None, *, dtype: torch.dtype = torch.float32) -> float:
    """Draw a number in [0, 1) from a generator, or from torch's global one."""
    device = torch.device("cpu") if generator is None else generator.device
    dtype = torch.float32 if device.type == "mps" else dtype  # which has no float64
    return float(torch.rand((), dtype=dtype, device=device, generator=generator))
