"""Controllers at random, and a naive interpreter of controllers under bans, which computes everything anew."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import torch

from antislop.core.bans.bans import Ban
from antislop.core.loop.branches import Branch, Capabilities, Controller, Splice, Step, TokenSet
from tests.support.oracles import absorb, completed, standing, toss
from tests.support.toys import PROMPT, Markov, Words

Path = tuple[Any, ...]
"""The choices that led to a place: ("token", t), ("force", t), ("jump", depth)."""
STOP = -1
"""In the place of a text's last token: the controller ended it."""


class RandomController:
    """Answers at random, the same stream for the same seed; only samples after some steps, so that texts end."""

    needs = Capabilities()

    def __init__(self, seed: int, size: int) -> None:
        self._choice, self._size = random.Random(seed), size
        self.steps: list[Step] = []

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def fork(self) -> Controller:
        raise NotImplementedError

    def mid_process(self, step: Step) -> list[Branch]:
        self.steps.append(step)
        kind = self._choice.choice(["any", "mask", "bias", "force", "cut", "splice", "splice", "end"])
        back = self._choice.randrange(len(step.tokens) + 1) if self._choice.random() < 0.3 else 0
        tokens = self._choice.sample(range(self._size), 2)
        if len(self.steps) > 12 or kind == "any":
            return [Branch(sample_mask=TokenSet.all())]
        if kind == "mask":
            return [Branch(back, sample_mask=TokenSet(tokens))]
        if kind == "bias":
            return [Branch(back, sample_mask=~TokenSet(tokens[:1]), bias={tokens[1]: 1.5}, temperature=0.5)]
        if kind == "force":
            return [Branch(back, ff_tokens=tuple(tokens[: self._choice.randrange(1, 3)]))]
        if kind == "cut" and back:
            return [Branch(back)]
        if kind == "end" and self._choice.random() < 0.1:
            return []
        removed = self._choice.randrange(len(step.tokens) - back + 2)
        when = frozenset(self._choice.sample(range(self._size), self._choice.randrange(3)))
        forced = tuple(self._choice.choices(range(self._size), k=self._choice.randrange(3)))
        return [Branch(back, sample_mask=TokenSet.all(), splices=(Splice(when, removed, forced),))]


class MaskingController:
    """Masks, biases and heats the same way at each step."""

    needs = Capabilities()

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def fork(self) -> Controller:
        return MaskingController()

    def mid_process(self, step: Step) -> list[Branch]:
        return [Branch(sample_mask=~TokenSet([5, 6]), bias={7: 1.5}, temperature=1.3)]


class TextController:
    """Answers at random, but always the same for the same tokens."""

    needs = Capabilities()

    def __init__(self, seed: int, size: int) -> None:
        self._seed, self._size = seed, size

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def fork(self) -> Controller:
        return self

    def mid_process(self, step: Step) -> list[Branch]:
        return [self.choose(tuple(step.tokens))]

    def choose(self, tokens: tuple[int, ...]) -> Branch:
        choice = random.Random(f"{self._seed} {tokens}")
        kind = choice.choice(["any", "mask", "bias", "force", "splice", "splice"])
        some = choice.sample(range(self._size), 2)
        if kind == "mask":
            return Branch(sample_mask=~TokenSet(some[:1]))
        if kind == "bias":
            return Branch(sample_mask=TokenSet.all(), bias={some[0]: 1.0}, temperature=1.5)
        if kind == "force":
            return Branch(ff_tokens=tuple(some[: choice.randrange(1, 3)]))
        if kind == "splice":
            forced = tuple(choice.choices(range(self._size), k=choice.randrange(3)))
            return Branch(
                sample_mask=TokenSet.all(),
                splices=(Splice(frozenset(some[:1]), choice.randrange(len(tokens) + 2), forced),),
            )
        return Branch(sample_mask=TokenSet.all())


class CuttingController(TextController):
    """Removes tokens after some texts, and samples one of two there, whatever it answers for the shorter text."""

    def mid_process(self, step: Step) -> list[Branch]:
        choice = random.Random(f"{self._seed} {step.tokens}")
        if step.is_done or len(step.tokens) < 2 or choice.random() > 0.4:
            return [Branch(sample_mask=TokenSet.all())]
        mask = TokenSet(choice.sample(range(self._size), 2))
        return [Branch(choice.randrange(1, len(step.tokens) + 1), sample_mask=mask)]


Rest = tuple[int, ...] | int | None
"""What follows without asking the controller: forced tokens, or the branch of this number, after its cut."""


class Put(NamedTuple):
    """A token of a text, and how it came there. is_choice: by a draw. rest: what was followed there."""

    token: int
    is_choice: bool
    rest: Rest


State = tuple[tuple[Put, ...], Rest]
Coin = tuple[tuple[int, ...], int] | None
"""That of a place and of the ban of this number; None where nothing is left to chance."""


def controlled_distribution(
    model: Markov, words: Words, bans: Sequence[Ban], controller: Controller
) -> dict[tuple[int, ...], float]:
    """Follow the controller; on a violation that holds cut back to its start, and go on there: the chain, solved.

    Weights are coins, as in `rejection_distribution`.

    For a controller that answers the same for the same tokens; a text that it ends itself ends in `STOP` here. A ban
    within forced tokens leads back to the choice before them. Raises `LinAlgError` if there is no distribution.
    """
    states: list[State] = [((), None)]
    seen, texts = set(states), dict[State, None]()
    steps: list[tuple[State, float, list[tuple[Coin, State]]]] = []  # where each ends: by the first coin that says so
    cutting: list[Branch] = []
    for state in states:
        for base, puts, is_drawn, mass in _outcomes(model, state, controller, cutting):
            trail, leads = base, list[tuple[Coin, State]]()
            for place, put in enumerate(puts):
                trail = (*trail, put)
                tokens = tuple(each.token for each in trail)
                for start, number in _find_violations(tokens, words, bans, is_final=model.ends(tokens)):
                    before = start if is_drawn and place == 0 else _find_start(trail, start)
                    coin = (tokens[:start], number) if bans[number].weight else None
                    leads.append((coin, (trail[:before], trail[before].rest)))
                if any(coin is None for coin, _ in leads) or model.ends(tokens):
                    break
            if not any(coin is None for coin, _ in leads):
                leads.append((None, (trail, None)))
                if trail and (trail[-1].token == STOP or model.ends([each.token for each in trail])):
                    texts[trail, None] = None
            steps.append((state, mass, leads))
            new = dict.fromkeys(to for _, to in leads if to not in seen and to not in texts)
            states += new
            seen |= set(new)
    coins = sorted({coin for *_, leads in steps for coin, _ in leads if coin is not None})
    ends: dict[tuple[int, ...], float] = {}
    for held, share in toss([bans[number].weight for _, number in coins], times=1000):
        holding = {None, *compress(coins, held)}
        jumps = [(state, next(to for coin, to in leads if coin in holding), mass) for state, mass, leads in steps]
        for (trail, _), mass in absorb(states, jumps, list(texts)).items():
            text = tuple(put.token for put in trail)
            ends[text] = ends.get(text, 0.0) + share * mass
    return ends


def _find_start(trail: tuple[Put, ...], start: int) -> int:
    """Where a ban leads back to that the last token completes: its start, or the choice before forced tokens."""
    choices = [place for place, put in enumerate(trail) if put.is_choice]
    return min(start, choices[-1]) if choices else start


def _find_violations(
    text: tuple[int, ...], words: Words, bans: Sequence[Ban], *, is_final: bool
) -> list[tuple[int, int]]:
    """The start and the number of each ban that the last token completes, or that `STOP` does by ending the text."""
    if text[-1] != STOP:
        return completed(text, words, bans, is_final=is_final)
    tokens = text[:-1]
    return sorted(standing(tokens, words, bans, is_final=True) - standing(tokens, words, bans, is_final=False))


def _outcomes(
    model: Markov, state: State, controller: Controller, cutting: list[Branch]
) -> Iterator[tuple[tuple[Put, ...], list[Put], bool, float]]:
    """Yield the text after a cut, the tokens that follow it, whether the first is drawn, and the probability."""
    trail, rest = state
    tokens = tuple(put.token for put in trail)
    if isinstance(rest, tuple):
        branches: Sequence[Branch] = [Branch(ff_tokens=rest)]
    elif rest is not None:
        branches = [replace(cutting[rest], backtrack=0)]
    else:
        branches = controller.mid_process(Step(0, 0, tokens, None, tokens))
    if not branches:
        yield trail, [Put(STOP, False, None)], False, 1.0
        return
    (branch,) = branches
    if branch.backtrack:
        trail = trail[: len(trail) - branch.backtrack]
        cutting += [] if branch in cutting else [branch]
        rest = cutting.index(branch)
    if branch.sample_mask is None:
        yield trail, _force(branch.ff_tokens, rest), False, 1.0
        return
    logits = model.logits(torch.tensor([[*PROMPT, *tokens[: len(trail)]]]))[0]
    for token, bias in branch.bias.items():
        logits[token] += bias
    probs = torch.softmax(logits / (branch.temperature or 1.0), dim=-1).tolist()
    allowed = {token: share for token, share in enumerate(probs) if token in branch.sample_mask}
    for token, share in allowed.items():
        splice = next((s for s in branch.splices if not s.when_sampled or token in s.when_sampled), Splice())
        sampled, mass = Put(token, True, rest), share / sum(allowed.values())
        if not splice.backtrack:
            yield trail, [sampled, *_force(splice.ff_tokens, splice.ff_tokens)], True, mass
            continue
        longer = (*trail, sampled)
        kept = len(longer) - splice.backtrack
        puts = _force(splice.ff_tokens, None)
        if puts:  # a rewind to the first one leads to what was there before
            puts[0] = longer[kept]._replace(token=puts[0].token)
        yield longer[:kept], puts, True, mass


def _force(tokens: tuple[int, ...], rest: Rest) -> list[Put]:
    """Forced tokens. rest: what is followed where the first one is put."""
    return [Put(token, False, tokens[place:] if place else rest) for place, token in enumerate(tokens)]


class Interpreter:
    """Greedy. Keeps only the choices made and the rejections; masses are computed anew from these each time."""

    def __init__(self, model: Markov, words: Words, bans: Sequence[Ban], controller: Controller) -> None:
        self.model, self.words, self.bans, self.controller = model, words, bans, controller
        self.tokens: list[int] = []
        self.path: Path = ()
        self.depths: dict[Path, int] = {(): 0}
        self.rules: dict[Path, Any] = {}
        self.shares: dict[Path, dict[Any, float]] = {}
        self.rejected: dict[Path, dict[Any, list[int]]] = {}  # by edge: the starts that its mass leads back to
        self.closed: set[Path] = set()
        self.rests: dict[Path, list[Branch]] = {}  # what follows a place without asking the controller
        self.is_done = False
        self.low = 0
        self.sampled: int | None = None

    def run(self) -> list[int]:
        length, self.sampled = 0, None
        while True:
            rest = [] if self.is_done else self.rests.get(self.path, [])
            back, appended = length - self.low, tuple(self.tokens[self.low :])
            step = Step(0, back, appended, self.sampled, tuple(self.tokens), self.is_done, is_greedy=True)
            branches = rest or self.controller.mid_process(step)
            if not branches or (self.is_done and not branches[0].backtrack):
                break
            (branch,) = branches
            self.is_done = False
            if not rest:
                length = self.low = len(self.tokens)
            self.sampled = None
            if branch.backtrack:
                self.jump(branch)
            if branch.sample_mask is None:
                self.force(branch.ff_tokens)
            else:
                self.sample(branch)
        return self.tokens

    def jump(self, branch: Branch) -> None:
        depth = len(self.tokens) - branch.backtrack
        self.choose(("jump", branch), {("jump", depth): 1.0})
        self.cut(depth)
        self.enter(("jump", depth))
        if branch.sample_mask is not None or branch.ff_tokens:
            self.rests[self.path] = [replace(branch, backtrack=0)]

    def force(self, tokens: Sequence[int], *, has_begun: bool = False) -> None:
        for place, token in enumerate(tokens):
            if has_begun or place:
                self.rests[self.path] = [Branch(ff_tokens=tuple(tokens[place:]))]
            self.choose(("force", *tokens[place:]), {("force", token): 1.0})
            if not self.add(token, ("force", token)) or self.is_done:
                return

    def sample(self, branch: Branch) -> None:
        logits = self.model.logits(torch.tensor([[*PROMPT, *self.tokens]]))[0]
        for token, bias in branch.bias.items():
            logits[token] += bias
        probs = torch.softmax(logits / (branch.temperature or 1.0), dim=-1).tolist()
        allowed = {t: p for t, p in enumerate(probs) if branch.sample_mask is not None and t in branch.sample_mask}
        total = sum(allowed.values())
        self.choose(branch.rule, {("token", token): share / total for token, share in allowed.items()})
        left, _ = self.weigh(self.path)
        edge = max(left, key=lambda edge: left[edge])
        self.sampled = token = edge[1]
        splice = next((s for s in branch.splices if not s.when_sampled or token in s.when_sampled), None)
        if splice is None or splice.backtrack == 0:
            if self.add(token, edge) and splice is not None and not self.is_done:
                self.force(splice.ff_tokens, has_begun=True)
            return
        self.tokens.append(token)
        self.cut(len(self.tokens) - splice.backtrack)
        if not splice.ff_tokens:
            self.enter(edge)
        elif self.add(splice.ff_tokens[0], edge) and not self.is_done:
            self.force(splice.ff_tokens[1:], has_begun=True)

    def choose(self, rule: Any, shares: dict[Any, float]) -> None:
        """Choose by a rule here; what was rejected under another rule is forgotten."""
        if self.rules.setdefault(self.path, rule) != rule:
            for path in [path for path in self.rejected if path[: len(self.path)] == self.path]:
                del self.rejected[path]
            for path in [path for path in self.rules if path[: len(self.path)] == self.path]:
                del self.rules[path]
            self.closed = {path for path in self.closed if path[: len(self.path)] != self.path}
            for path in [path for path in self.rests if path != self.path and path[: len(self.path)] == self.path]:
                del self.rests[path]
        self.rules[self.path], self.shares[self.path] = rule, shares

    def enter(self, edge: Any) -> None:
        self.path = (*self.path, edge)
        self.depths[self.path] = len(self.tokens)

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        self.low = min(self.low, length)

    def add(self, token: int, edge: Any) -> bool:
        """Append a token; on a violation rewind, unless nothing else is left."""
        self.tokens.append(token)
        self.is_done = self.model.ends(self.tokens)
        starts = self.find(self.tokens)
        if starts:
            self.reject(edge, starts[0])
            if edge[0] == "token" and not self.rules[self.path].splices:
                left, _ = self.weigh(self.path)
                for other in [other for other in left if left[other] > 0]:
                    if more := self.find([*self.tokens[:-1], other[1]]):
                        self.reject(other, more[0])
        for start in starts:
            target = self.find_target(start)
            if target is not None:
                self.path, self.is_done = target, False
                self.cut(self.depths[target])
                self.sampled = None
                return False
        self.enter(edge)
        return True

    def find(self, tokens: Sequence[int]) -> list[int]:
        found = completed(tokens, self.words, self.bans, is_final=self.model.ends(tokens))
        return [min(start, self.find_choice()) for start, _ in found]

    def find_choice(self) -> int:
        """The depth of the latest choice, this place's own perhaps; none limits nothing."""
        path = self.path
        while isinstance(self.rules[path], tuple):
            if not path or not self.depths[path]:
                return len(self.tokens)
            path = self.back_to(path[:-1], self.depths[path] - 1)
        return self.depths[path]

    def reject(self, edge: Any, start: int) -> None:
        starts = self.rejected.setdefault(self.path, {}).setdefault(edge, [])
        starts.append(start)

    def back_to(self, path: Path, depth: int) -> Path:
        while self.depths[path] > depth:
            path = path[:-1]
        return path

    def find_target(self, start: int) -> Path | None:
        path = self.back_to(self.path, start)
        while not any(self.weigh(path)[0].values()):
            before = self.depths[path] - 1
            if not path or before < 0:
                return None
            self.rejected.setdefault(path[:-1], {})[path[-1]] = [before]
            self.closed.add(path)
            path = self.back_to(path[:-1], before)
        return path

    def weigh(self, path: Path) -> tuple[dict[Any, float], dict[int, float]]:
        """The mass left of each choice, and the mass that leads back before this place, by start."""
        left, exits = {}, dict[int, float]()
        for edge, share in self.shares[path].items():
            mass, child, starts = share, (*path, edge), self.rejected.get(path, {}).get(edge, [])
            if starts:
                if starts[0] < self.depths[path]:
                    exits[starts[0]] = exits.get(starts[0], 0.0) + mass
                mass = 0.0
            if child not in self.closed and any(other[: len(child)] == child for other in self.rejected):
                inner, outer = self.weigh(child)
                total = sum(inner.values()) + sum(outer.values())
                for start, lost in outer.items():
                    if start < self.depths[path] and total:
                        exits[start] = exits.get(start, 0.0) + mass * lost / total
                mass = mass * sum(inner.values()) / total if total else 0.0
            left[edge] = mass
        return left, exits


def write_stream(controller: Controller, tokens: Sequence[int]) -> list[int]:
    """Return the text that a controller without masks makes of a model that writes these tokens."""
    text: list[int] = []
    unread, length, low, is_done = list(tokens), 0, 0, False
    controller.start([])
    while True:
        step = Step(0, length - low, tuple(text[low:]), None, tuple(text), is_done)
        branches = controller.mid_process(step)
        if not branches or (is_done and not branches[0].backtrack):
            return text
        length, low = len(text), len(text) - branches[0].backtrack
        assert controller.needs.backtrack is None or branches[0].backtrack <= controller.needs.backtrack
        text[low:] = branches[0].ff_tokens or [unread.pop(0)]
        is_done = not unread
