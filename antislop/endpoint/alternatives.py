"""Write texts from a server's alternatives: the same loop, matcher and ledger, in this process.

A node of the ledger is filled with the alternatives that the server returns. A rewind sends a shorter prompt, which is
still in the server's prefix cache. The server's own continuation is a draft, and the distributions along it come with
the same answer, so that one request yields several tokens.

Exactness: within the returned alternatives, everything in docs/exactness.md holds. A token beyond them is never
written; `Coverage` counts the positions at which that can matter. There are none with `top_k` up to the number of
alternatives, or with a `min_p` that excludes the last alternative.

Drafts: if the server draws its continuation from the distributions that it returns, the sampler draws its tokens
coupled with it (`Node.draw_beside`) and keeps nearly all of it. The sampler must then use each answer, whatever its
tokens are: discarding answers because of their tokens would make these tokens rarer. llama.cpp leaves some tokens out
of its answers; its drafts are therefore the likeliest continuation, which involves no chance and so can't be biased.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag, Lock

import torch
from torch import Tensor

from antislop.decoding.engine import ForwardPass
from antislop.decoding.loop import decode
from antislop.decoding.row import NO_DRAFT, Draft, Row, TextSpec
from antislop.decoding.scheduler import Scheduler
from antislop.endpoint.coverage import Coverage
from antislop.endpoint.endpoint import Endpoint
from antislop.endpoint.old_dialects import Answer, EndpointError, Position
from antislop.endpoint.token_names import TokenNames
from antislop.trace.events import Conceded, Event

GAP_TRIES = 16
"""Limit of requests for one token, if the server leaves it out of its answers."""


@dataclass
class AlternativesWriter:
    """What the texts of one endpoint share.

    warn: called with each violation that is conceded. lock: one text computes at a time; all of them can wait for the
    server at once. stop: once it is set, no further request is made.
    """

    endpoint: Endpoint
    names: TokenNames
    alternatives: int
    tokens_per_request: int
    warn: Callable[[Conceded], None]
    lock: Lock = field(default_factory=Lock)
    stop: Flag = field(default_factory=Flag)


class AlternativesText:
    """One text, and the loop's engine for it: a forward pass is a request, and its answer contains a draft."""

    def __init__(self, writer: AlternativesWriter, spec: TextSpec, *, seed: int) -> None:
        self.row = Row(spec)
        self.coverage = Coverage()
        self.written = 0
        self._writer = writer
        self._server_seeds = random.Random(seed)
        self._sent_tokens: list[int] = []  # generated tokens in the prompt of the latest request
        self._leaves_gaps = False

    def events(self) -> Iterator[Event]:
        """Yield the events of the text; hold the lock while computing, but not during requests."""
        events = decode(Scheduler(rows=[self.row]), self)
        while True:
            with self._writer.lock:
                event = next(events, None)
            if event is None:
                return
            if isinstance(event[1], Conceded):
                self._writer.warn(event[1])
            yield event[1]

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        """Request the distribution of the next token, and the server's draft."""
        row = rows[0]
        fed, cut = self._compare(row)
        positions, is_drawn, is_draft = self._ask(row)
        logits, tokens = self._read(positions)
        row.draft = NO_DRAFT
        if is_draft:
            proposals = logits.exp() if is_drawn else None
            row.draft = Draft(tokens, proposals, read=len(logits) - 1)
        self.coverage.measure(row, logits)
        return ForwardPass(logits[None], [fed], [cut])

    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        """Begin a new text; the server keeps no state between requests."""
        return self.forward(rows[place : place + 1])

    def _compare(self, row: Row) -> tuple[int, int]:
        """Return the number of tokens that were added since the latest request, and the number removed."""
        pairs = list(zip(row.tokens, self._sent_tokens, strict=False))
        shared = next((i for i, (token, sent_token) in enumerate(pairs) if token != sent_token), len(pairs))
        cut, fed = len(self._sent_tokens) - shared, len(row.tokens) - shared
        fed += 0 if self.coverage.requests else row.prompt_length
        self._sent_tokens = list(row.tokens)
        return fed, cut

    def _ask(self, row: Row) -> tuple[list[Position], bool, bool]:
        """Return the server's answer, whether its tokens were drawn, and whether they are a draft."""
        draft_length = min(self._writer.tokens_per_request, row.capacity - len(row.tokens))
        if draft_length > 1 and self.coverage.requests:  # the first answer shows whether the server leaves gaps
            greedy = not row.spec.policy.do_sample or self._leaves_gaps
            answer = self._request(row, draft_length, greedy=greedy)
            if not answer.has_gaps:
                return answer.positions, not greedy, True
            if not greedy:
                raise EndpointError("the server left tokens out of its answer: set tokens_per_request to 1")
        for _ in range(GAP_TRIES):
            answer = self._request(row, 1)
            if answer.positions and not answer.has_gaps:
                return answer.positions[:1], False, False
        raise EndpointError(f"the server left the next token out of {GAP_TRIES} answers")

    def _request(self, row: Row, max_tokens: int, *, greedy: bool = False) -> Answer:
        """Send a request; release the lock meanwhile, so that other texts can compute."""
        writer, seed = self._writer, self._server_seeds.getrandbits(31)
        writer.lock.release()
        try:
            answer = writer.endpoint.complete(
                row.ids[0].tolist(),
                max_tokens=max_tokens,
                alternatives=writer.alternatives,
                seed=seed,
                greedy=greedy,
                stop=writer.stop,
            )
        finally:
            writer.lock.acquire()
        self._leaves_gaps |= answer.leaves_gaps
        self.coverage.requests += 1
        self.coverage.retries += answer.retries
        self.written += len(answer.positions)
        return answer

    def _read(self, positions: Sequence[Position]) -> tuple[Tensor, list[int]]:
        """Return log-probabilities [positions, vocab], -inf beyond the alternatives, and the server's tokens.

        Both end at the first token that is not among its alternatives: it is never drawn, so the rest is not used.
        """
        names, tokens, rows = self._writer.names, list[int](), list[Tensor]()
        for position in positions:
            alternatives = names.read(position.logprobs, limit=self._writer.alternatives)
            self.coverage.unreadable += min(len(position.logprobs), self._writer.alternatives) - len(alternatives)
            if not alternatives:
                break
            logits = torch.full((names.size,), -torch.inf)
            logits[list(alternatives)] = torch.tensor(list(alternatives.values()))
            rows.append(logits)
            token = names.find(position.token)
            is_alternative = token in alternatives
            # A token without an id is replaced by one of probability 0: neither is ever drawn.
            tokens.append(int(logits.argmin()) if token is None or not is_alternative else token)
            if not is_alternative:
                break
        if not rows:
            raise EndpointError(
                "none of the alternatives is a token of the tokenizer: pass the tokenizer of the served model"
            )
        return torch.stack(rows), tokens
