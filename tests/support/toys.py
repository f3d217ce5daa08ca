"""Toys without transformers: a vocabulary of a few strings, a Markov model as a loop's engine, and on the protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.engine import Engine, ForwardPass, PromptPass
from antislop.core.loop.protocols import KVState, RewindableCache, count_queries, fill_left
from antislop.core.loop.row import Callbacks, Drafter, Row, RowSpec
from antislop.core.loop.sampling import Policy
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import decode_in_steps
from antislop.core.trace.events import Event, Report

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
class Markov(Callbacks):
    """A model whose next token depends on the last two, with logits drawn once from a seed.

    fed: the tokens of each row in each pass, 0 for the token after a prompt.
    """

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
        counts = [len(row.tokens) - row.unchanged for row in rows]
        self.fed += counts
        return ForwardPass(logits, counts, [0] * len(rows))

    def read(self, rows: Sequence[Row], *, in_parts: bool) -> PromptPass:
        return PromptPass([row.prompt_length for row in rows], [True] * len(rows))

    def replace(self, rows: Sequence[Row], places: Sequence[int]) -> ForwardPass:
        return self.forward([rows[place] for place in places])

    @property
    def can_select(self) -> bool:
        return False

    def select(self, places: Sequence[int]) -> None:
        raise AssertionError("no test with this model forks")

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        if not self.processors:
            return logits.clone()
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
) -> RowSpec:
    """A text of the toy model."""
    asked: dict[str, Any] = {"callbacks": model, "max_new_tokens": model.length, **kwargs}
    return RowSpec(
        prompt=torch.tensor([prompt]),
        matcher=matcher,
        state=matcher.start(prompt, lookback=lookback),
        policy=policy,
        generator=None if seed is None else torch.Generator().manual_seed(seed),
        **asked,
    )


def decode(scheduler: Scheduler, engine: Engine) -> Iterator[tuple[Row, Event]]:
    """Generate until the scheduler has no more texts; yield (row, event) as things happen."""
    for step in decode_in_steps(scheduler, engine):
        for row, events in step:
            for event in events:
                yield row, event


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


class MarkovCache:
    """The tokens of each row; as states they are keys and values of one layer, one head and one dimension."""

    can_share = can_select = True

    def __init__(self, rows: int) -> None:
        self.reads_prompts = False
        self._rows: list[list[int]] = [[] for _ in range(rows)]
        self._settled = [0] * rows

    @property
    def lengths(self) -> Sequence[int]:
        return [len(tokens) for tokens in self._rows]

    def get_num_tokens(self) -> int:
        return max(self.lengths)

    def get_kv_states(self) -> list[KVState]:
        """Return the tokens twice, float32 [rows, 1, tokens, 1]; -1 stands left of shorter rows."""
        states = fill_left(self._rows).float()[:, None, :, None]
        return [KVState(states, states.clone())] if self.get_num_tokens() else []

    def update(self, kv_states: Sequence[tuple[Tensor, Tensor]]) -> None:
        shapes = {tuple(states.shape) for pair in kv_states for states in pair}
        if len(kv_states) > 1 or any(shape != (len(self._rows), 1, shape[2], 1) for shape in shapes) or len(shapes) > 1:
            raise ValueError(f"states of one layer, [{len(self._rows)}, 1, tokens, 1], are expected, not {shapes}")
        rows = len(self._rows)
        self._rows = [keys[0, :, 0].long().tolist() for keys in kv_states[0][0]] if kv_states else [[]] * rows
        self._rows, self._settled = [list(tokens) for tokens in self._rows], [0] * rows

    def crop(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= min(self.lengths):
            raise ValueError(f"{num_tokens} tokens can't be taken out of {min(self.lengths)}")
        for row, length in enumerate(self.lengths):
            self.rewind(row, length - num_tokens)

    def rewind(self, row: int, length: int) -> int:
        if not 0 <= length <= len(self._rows[row]) or 0 < length < self._settled[row]:
            raise ValueError(f"row {row} holds {len(self._rows[row])}, settled at {self._settled[row]}: not {length}")
        del self._rows[row][length:]
        if length == 0:
            self._settled[row] = 0
        return length

    def settle(self, row: int, length: int) -> None:
        self._settled[row] = max(self._settled[row], length)

    def copyable(self, row: int, length: int) -> int:
        return length

    def copy(self, row: int, other: RewindableCache, *, source: int, length: int) -> None:
        if not isinstance(other, MarkovCache):
            raise ValueError("a MarkovCache is expected")
        self._rows[row], self._settled[row] = other._rows[source][:length], 0

    def select(self, rows: Sequence[int]) -> None:
        self._rows, self._settled = [list(self._rows[row]) for row in rows], [self._settled[row] for row in rows]

    def read(self, row: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Append tokens to a row; return its latest two, with 0 for missing ones."""
        self._rows[row] += tokens
        before, last = [0, 0, *self._rows[row][-2:]][-2:]
        return before, last


class MarkovModel:
    """A `LanguageModel`: the token after two tokens has the logits table[before, last], [vocab]."""

    def __init__(self, table: Tensor, *, eos: frozenset[int] = frozenset()) -> None:
        self._table = table
        self.eos_token_id = eos
        self.fed: list[list[int]] = []  # tokens per row and forward

    def new_cache(self, rows: int) -> MarkovCache:
        return MarkovCache(rows)

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        if not isinstance(kv_cache, MarkovCache):
            raise ValueError(f"a MarkovCache is expected, not a {type(kv_cache).__name__}")
        counts = count_queries(query_token_ids)
        self.fed.append(counts)
        logits = self._table.new_full((*query_token_ids.shape, self._table.shape[-1]), torch.nan)
        for row, (queries, count) in enumerate(zip(query_token_ids.tolist(), counts, strict=True)):
            for place in range(len(queries) - count, len(queries)):
                logits[row, place] = self._table[kv_cache.read(row, [queries[place]])]
        return logits[:, -1:] if kv_cache.reads_prompts else logits
