"""Controllers: rules of the caller's own, which after each step remove, force or mask tokens of a text, or fork it.

The names are those of AICI (https://github.com/microsoft/aici). `antislop.core.loop.controlled` does what a
controller asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from antislop.core.bans.refusals import sentence
from antislop.core.loop.protocols import send
from antislop.errors import BacktrackError, InputError


class TokenSet:
    """A set of token ids.

    >>> 5 in TokenSet([5, 6]), 5 in ~TokenSet([5, 6]), 5 in TokenSet.all()
    (True, False, True)
    """

    __slots__ = ("_ids", "_is_inverted")

    def __init__(self, ids: Iterable[int] | Tensor = ()) -> None:
        self._ids = torch.as_tensor(ids if isinstance(ids, Tensor) else list(ids), dtype=torch.long)
        if not (self._ids[1:] > self._ids[:-1]).all():  # sorting takes 30 times as long as this check
            self._ids = torch.unique(self._ids)
        self._is_inverted = False

    @classmethod
    def all(cls) -> TokenSet:
        return ~cls()

    def __invert__(self) -> TokenSet:
        other = TokenSet(self._ids)
        other._is_inverted = not self._is_inverted
        return other

    def __contains__(self, token: int) -> bool:
        return bool((self._ids == token).any()) != self._is_inverted

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenSet):
            return NotImplemented
        return self._is_inverted == other._is_inverted and torch.equal(self._ids, other._ids)

    def __hash__(self) -> int:
        return hash((self._is_inverted, len(self._ids)))

    def __repr__(self) -> str:
        ids = ", ".join(map(str, self._ids[:5].tolist())) + (", …" if len(self._ids) > 5 else "")
        return f"{'~' * self._is_inverted}TokenSet([{ids}])"

    def check(self, vocabulary_size: int) -> None:
        ends = self._ids[[0, -1]].tolist() if len(self._ids) else []
        for token in ends:
            if not 0 <= token < vocabulary_size:
                raise InputError(f"token {token} is beyond the vocabulary of {vocabulary_size:,}: pass the model's ids")
        if (vocabulary_size - len(self._ids) if self._is_inverted else len(self._ids)) == 0:
            raise InputError("a sample_mask is empty, so there is no token to draw: return [] to end the text")

    def restrict(self, logits: Tensor) -> Tensor:
        """Return logits [vocab] with −inf outside the set."""
        if self._is_inverted and len(self._ids) == 0:
            return logits
        ids = send(self._ids, logits.device)
        if self._is_inverted:
            return logits.index_fill(0, ids, -torch.inf)
        return torch.full_like(logits, -torch.inf).index_copy(0, ids, logits[ids])


@dataclass(frozen=True)
class Splice:
    """Once one of some tokens is sampled, remove the last tokens of the text, and force others in their place.

    when_sampled: the sampled tokens to which this splice applies; empty for any.
    backtrack: the number of tokens removed, the sampled one included.
    ff_tokens: the tokens forced in the place of the removed ones.
    """

    when_sampled: frozenset[int] = frozenset()
    backtrack: int = 0
    ff_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Branch:
    """How a text goes on: some tokens are removed, then one is sampled, or several are forced.

    backtrack: the number of the text's last tokens to remove first.
    sample_mask: sample one of these tokens; `TokenSet.all()` for any.
    ff_tokens: force these tokens; only without a mask.
    bias: by token, what is added to its logit before the call's logits processors run.
    temperature: divides the logits, in addition to the call's own temperature.
    splices: replacements of the sampled token; no token may be in two of them.
    """

    backtrack: int = 0
    sample_mask: TokenSet | None = None
    ff_tokens: tuple[int, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float | None = None
    splices: tuple[Splice, ...] = ()

    @property
    def rule(self) -> SampleRule:
        tokens = TokenSet.all() if self.sample_mask is None else self.sample_mask
        return SampleRule(tokens, tuple(sorted(self.bias.items())), self.temperature, self.splices)

    def find_splice(self, token: int) -> Splice | None:
        return next((s for s in self.splices if not s.when_sampled or token in s.when_sampled), None)

    def check(self, *, vocabulary_size: int, length: int, limit: int | None) -> None:
        """Raise `InputError` for a branch that is empty, contradicts itself, or removes more tokens than it may.

        length: how many tokens were generated so far.
        limit: maximum tokens to remove, as declared in `Capabilities`; None for any number.
        """
        self._check_tokens(vocabulary_size)
        removed = [self.backtrack, *(self.backtrack + splice.backtrack - 1 for splice in self.splices)]
        if min(self.backtrack, *(splice.backtrack for splice in self.splices), 0) < 0:
            raise InputError("a branch removes fewer than 0 tokens: backtrack is a number of tokens, 0 or more")
        if max(removed) > length:
            raise BacktrackError(sentence("removed prompt", removed=max(removed), length=length))
        if limit is not None and max(removed) > limit:
            raise BacktrackError(sentence("removed too much", removed=max(removed), limit=limit))

    def _check_tokens(self, vocabulary_size: int) -> None:
        if self.sample_mask is None and not self.ff_tokens and not self.backtrack:
            raise InputError("a branch says nothing: give it a sample_mask, ff_tokens or backtrack; [] ends the text")
        if self.sample_mask is not None and self.ff_tokens:
            raise InputError("a branch has both sample_mask and ff_tokens: sample, or force; a splice does both")
        if self.sample_mask is None and (self.bias or self.temperature is not None or self.splices):
            raise InputError("bias, temperature and splices are for a sampled token: add sample_mask=TokenSet.all()")
        if self.temperature is not None and not self.temperature > 0:
            raise InputError(f"the temperature of a branch is {self.temperature}; it is a number above 0")
        if self.sample_mask is not None:
            self.sample_mask.check(vocabulary_size)
        tokens = [*self.ff_tokens, *self.bias, *(t for s in self.splices for t in (*s.when_sampled, *s.ff_tokens))]
        if tokens:
            TokenSet(tokens).check(vocabulary_size)
        spliced = [token for splice in self.splices for token in splice.when_sampled]
        has_any = len(self.splices) > 1 and not all(splice.when_sampled for splice in self.splices)
        if has_any or len(spliced) > len(set(spliced)):
            raise InputError("two splices apply to the same token: give each token to one of them")


@dataclass(frozen=True)
class SampleRule:
    """The part of a branch that says how a token is sampled. bias: pairs of a token and what is added to its logit."""

    tokens: TokenSet
    bias: tuple[tuple[int, float], ...] = ()
    temperature: float | None = None
    splices: tuple[Splice, ...] = ()

    def apply(self, logits: Tensor) -> Tensor:
        """Return logits [vocab] with bias, temperature and mask applied, for the call's logits processors."""
        if self.bias:
            tokens, added = zip(*self.bias, strict=True)
            biases = send(torch.tensor(added, dtype=logits.dtype), logits.device)
            logits = logits.index_add(0, send(torch.tensor(tokens), logits.device), biases)
        if self.temperature is not None:
            logits = logits / self.temperature
        return self.tokens.restrict(logits)


@dataclass(frozen=True)
class Step:
    """What happened to a text since the previous call of `mid_process`.

    branch_idx: the index of the text's branch in the list that the previous call returned.
    last_backtrack: number of tokens removed since that call, by the branch, by a ban, or by both.
    last_append: the tokens added since that call.
    sampled: the sampled token; None if no token was sampled, or if a ban rewound the text.
    tokens: all generated tokens of the text.
    is_done: whether an end token, the maximum length or a criterion ends the text, unless all branches remove tokens.
    is_greedy: whether nothing is sampled, so that removed tokens are written again unless they are ruled out.
    """

    branch_idx: int
    last_backtrack: int
    last_append: tuple[int, ...]
    sampled: int | None
    tokens: Sequence[int]
    is_done: bool = False
    is_greedy: bool = False


@dataclass(frozen=True)
class Capabilities:
    """What a controller may do.

    backtrack: maximum tokens that it removes at once; None for any number: then nothing is streamed before the end.
    has_forks: whether `mid_process` may return several branches.
    """

    backtrack: int | None = None
    has_forks: bool = False


class Controller(Protocol):
    """A rule over one text. Bans are exact only if the rule gives the same answer whenever the tokens are the same."""

    @property
    def needs(self) -> Capabilities:
        """What the controller may do."""

    def start(self, prompt: Sequence[int]) -> None:
        """Begin a new text after the tokens of a prompt, without its padding."""

    def mid_process(self, step: Step) -> Sequence[Branch]:
        """Return how the text continues; several branches fork the text, and [] ends it."""

    def fork(self) -> Controller:
        """Return a copy that continues independently."""


@dataclass(frozen=True)
class Control:
    """The controller of a call. max_forks: maximum rows for each requested text."""

    controller: Controller
    max_forks: int = 1

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[Controller]:
        """Return a started controller for each prompt; the first one is the caller's own."""
        controllers = [self.controller, *(self.controller.fork() for _ in prompts[1:])]
        for controller, prompt in zip(controllers, prompts, strict=True):
            controller.start(prompt)
        return controllers


def check_branches(branches: Sequence[Branch]) -> Sequence[Branch]:
    """Return the branches that `mid_process` returned. Raises `InputError` unless they are a list of `Branch`es."""
    if isinstance(branches, Sequence) and all(isinstance(branch, Branch) for branch in branches):
        return branches
    raise InputError(f"mid_process returned a {type(branches).__name__}: return a list, [branch], or [] to stop")


def take_control(arguments: dict[str, Any]) -> Control | None:
    """Remove `controller` and `max_forks` from a call's arguments; return them, or None if there is no controller."""
    controller, max_forks = arguments.pop("controller", None), arguments.pop("max_forks", 1)
    if isinstance(max_forks, bool) or not isinstance(max_forks, int) or max_forks < 1:
        raise InputError(f"max_forks is {max_forks!r}; a number of texts, 1 or more, was expected")
    if controller is None:
        if max_forks > 1:
            raise InputError(f"max_forks={max_forks} is for a controller that forks: pass controller=…, too")
        return None
    if missing := [name for name in ("needs", "start", "mid_process", "fork") if not hasattr(controller, name)]:
        raise InputError(sentence("no controller", kind=type(controller).__name__, name=missing[0]))
    return Control(controller, max_forks)
