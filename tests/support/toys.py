"""Toys for tests: a vocabulary of a few strings, a Markov model without transformers, and a function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from antislop.decoding.engine import ForwardPass
from antislop.decoding.loop import decode
from antislop.decoding.policy import Policy
from antislop.decoding.row import Drafter, Row, TextSpec
from antislop.decoding.scheduler import Scheduler
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Matcher
from antislop.trace.report import Report

Processor = Callable[[Tensor, Tensor], Tensor]


class Words:
    """A vocabulary of given surfaces; `None` is a special token, whose content may be given by its id."""

    def __init__(self, *surfaces: str | bytes | None, contents: Mapping[int, str] | None = None) -> None:
        self.byte_tokens: frozenset[int] = frozenset()  # those of byte fallback
        self._surfaces = [s.encode() if isinstance(s, str) else s or b"" for s in surfaces]
        self.breaks = {i: "" for i, s in enumerate(surfaces) if s is None} | dict(contents or {})

    def surface(self, token_id: int) -> bytes:
        return self._surfaces[token_id]

    def text(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self.surface, tokens)).decode(errors="replace")

    def __len__(self) -> int:
        return len(self._surfaces)


class Bytes(Words):
    """One token per byte."""

    def __init__(self) -> None:
        super().__init__(*(bytes([i]) for i in range(256)))


@dataclass
class Markov:
    """A model whose next token depends on the last two, with logits drawn once from a seed."""

    size: int
    seed: int = 0
    sharpness: float = 1.0
    length: int = 4
    eos: frozenset[int] = frozenset()
    processors: Sequence[Processor] = ()
    bias: Tensor | None = None
    fed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.table = self.sharpness * torch.randn(self.size, self.size, self.size, generator=generator)
        if self.bias is not None:
            self.table += self.bias

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.eos

    def logits(self, ids: Tensor) -> Tensor:
        return self.table[ids[0, -2], ids[0, -1]][None].clone()

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        most = max(len(row.draft.tokens) for row in rows)
        logits = torch.zeros(len(rows), most + 1, self.size)
        for own, row in zip(logits, rows, strict=True):
            draft = len(row.draft.tokens)
            for step in range(draft + 1):
                own[step - draft - 1] = self.logits(row.ids_up_to(len(row.tokens) + step))[0]
        return ForwardPass(logits, [len(row.tokens) - row.unchanged for row in rows], [0] * len(rows))

    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        return self.forward([rows[place]])

    def follow(self, rows: Sequence[Row]) -> None:
        pass

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        each = zip(rows, lengths, logits, strict=True)
        return torch.cat([self.score(row.ids_up_to(length), own[None]) for row, length, own in each])

    def score(self, ids: Tensor, logits: Tensor) -> Tensor:
        for processor in self.processors:
            logits = processor(ids, logits)
        return logits

    def is_done(self, row: Row) -> bool:
        return self.ends(row.tokens)

    def ends(self, tokens: Sequence[int]) -> bool:
        return len(tokens) >= self.length or tokens[-1] in self.eos

    def probs(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*prompt, *tokens]])
        return torch.softmax(self.score(ids, self.logits(ids)), dim=-1)[0]


PROMPT = (0, 0)
EXACT = Policy(True, "exact", "concede", max_rewinds=100, max_withdrawn_ratio=10_000)


def spec_of(
    model: Markov,
    matcher: Matcher,
    prompt: Sequence[int] = PROMPT,
    *,
    policy: Policy = EXACT,
    seed: int | None = None,
    lookback: bool = True,
    **kwargs: Any,
) -> TextSpec:
    """A text of the toy model."""
    asked: dict[str, Any] = {"settings": model, "capacity": model.length, **kwargs}
    return TextSpec(
        prompt=torch.tensor([prompt]),
        matcher=matcher,
        state=matcher.start(prompt, lookback=lookback),
        policy=policy,
        generator=None if seed is None else torch.Generator().manual_seed(seed),
        **asked,
    )


def run(
    model: Markov,
    words: Words,
    bans: Sequence[Ban],
    *,
    prompt: Sequence[int] = PROMPT,
    matcher: Matcher | None = None,
    lookback: bool = True,
    do_sample: bool = True,
    method: str = "exact",
    on_exhausted: str = "concede",
    drafter: Drafter | None = None,
    **limits: float,
) -> tuple[tuple[int, ...], Report]:
    """Generate one text with the loop under test. limits: the other fields of the policy."""
    matcher = matcher or Matcher(bans, words)
    limits = {"max_rewinds": 100, "max_withdrawn_ratio": 10_000, **limits}
    policy = Policy(do_sample, method, on_exhausted, **limits)  # type: ignore[arg-type]
    row = Row(spec_of(model, matcher, prompt, policy=policy, lookback=lookback, drafter=drafter))
    events = decode(Scheduler(rows=[row]), model)
    report = Report.of([event for _, event in events])
    return tuple(row.tokens), report
