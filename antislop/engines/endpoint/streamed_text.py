"""Write one text from the streams of a server that draws the tokens itself.

At a violation, `EndpointText` closes its stream, rewinds the text, and sends a new request from there. At places that
were rewound to, it also requests the likeliest tokens, and draws from what the ledger has left of these; elsewhere, the
next token comes by thinning or by a bias.

Rejecting draws again from the start of a violation. Thinning keeps a token of the server with probability (left /
original), and needs the original probability in the distribution that the server draws from; once the server has sent
the likeliest tokens of a place, one is drawn here instead, from what is left of them. A bias makes the server draw from
what is left; truncation and penalties act after the bias, so it is exact only without these. "Exact" refers to the
distribution that the server draws from: that of `generate`, unless `StreamDialect.cuts_min_p_first` matters.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import ceil, exp
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from antislop.core.loop import ALSO_TRIED, Node, Row, RowSpec, Sampling, advance_together, end_at
from antislop.core.trace import Event
from antislop.engines.endpoint.dialects import DIALECTS
from antislop.engines.endpoint.endpoint import (
    EndpointError,
    EndpointMethod,
    Logprobs,
    Server,
    ServerFeatures,
    StreamBroken,
    StreamEnd,
    StreamItem,
    StreamRequest,
    StreamToken,
    sentence,
)
from antislop.engines.stream_source import LOWEST_BIAS, SparseTable, StreamDrawing, StreamSource
from antislop.errors import InputError

if TYPE_CHECKING:
    from antislop.engines.endpoint.client import StreamingClient

ExactMethod: TypeAlias = Literal["reject", "thin", "bias"]
MANY_ALTERNATIVES = 256
"""Likeliest tokens to request where a bias can't exclude tokens: nearly always all that truncation leaves."""
FURTHER_ALTERNATIVES = 1024
"""Likeliest tokens to request where those were too few: most of what is left is unknown, or almost nothing is left."""
REWINDS_BEFORE_LOGPROBS = 1
"""Rewinds to a place before log-probabilities are requested there, which costs up to 25 % of a server's speed."""
MAX_BIASED_TEMPERATURE = 4.0
"""Highest temperature at which a bias of −100 still makes a token negligible: exp(−100 / 4)."""
SERVER_TITLES: dict[Server, str] = {
    "vllm": "vLLM",
    "llama.cpp": "llama.cpp",
    "openai": "a server of an unknown kind",
}
NO_BIAS: Mapping[int, float] = MappingProxyType({})
MAX_DRAWS = 16
"""Most draws of the same next token that are requested together, where thinning would discard most of them."""
EXPECTED_KEPT_DRAWS = 3
"""Expected number of accepted draws per batch: P(none) is about 5 %."""
CONVINCING_DRAWS = 30
"""Draws stop once this many unknown tokens were expected among them and none came: a chance of 1e-13 if any exist."""
TOLD_TOKENS = 16
"""Most tokens of a request after a violation, for each of which the likeliest alternatives are requested."""
MAX_EMPTY_REQUESTS = 4
"""Most requests in a row that may bring no token."""


# -- how bans are kept on a server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodPlan:
    """The exact methods that a server and the settings of a text allow.

    logprobs: the kind of log-probabilities to request; None if only rejecting is allowed.
    bias_limit: maximum number of biased tokens per request; None for any.
    top_logprobs: number of likeliest tokens to request after violations, up to `max_top_logprobs`.
    further: the kind of log-probabilities to request without truncation; None if the server sends no likeliest tokens.
    draws_together: whether one request can bring several draws of the same next token.
    """

    method: EndpointMethod
    logprobs: Logprobs | None
    can_thin: bool
    can_bias: bool
    bias_limit: int | None = None
    top_logprobs: int = 0
    max_top_logprobs: int = 0
    further: Logprobs | None = None
    rewinds_before_logprobs: int = 0
    draws_together: bool = False

    def choose(self, table: SparseTable) -> ExactMethod | Literal["here"]:
        """Return the cheapest way to draw at a place; "here": from the likeliest tokens that the server has sent."""
        if self.can_thin and self.method != "bias" and table.told and table.unknown <= table.subtracted:
            return "here"  # thinning would discard a token more often than "here" requests an unknown one
        if table.touched and (not self.can_thin or self.method == "bias") and self.fits(table.biases()):
            return "bias"
        return "thin" if self.can_thin else "reject"

    def wants_more(self, table: SparseTable) -> bool:
        """Return whether to request more of the likeliest tokens, to save later requests for unknown tokens."""
        is_cheap = self.can_bias and table.unknown <= table.mass_left() / 2
        return table.unknown > 0 and not is_cheap and self.top_logprobs < self.max_top_logprobs

    def fits(self, bias: Mapping[int, float]) -> bool:
        return self.can_bias and len(bias) <= (self.bias_limit or 2**31)


def plan_method(method: EndpointMethod, sampling: Sampling, features: ServerFeatures) -> MethodPlan:
    """Return the exact methods; raises `InputError` if the given method is not exact here, or if no method is."""
    _refuse_settings(sampling, features)
    logprobs = _find_logprobs(sampling, features)
    can_thin = sampling.do_sample and logprobs is not None
    obstacle = _find_obstacle(sampling, features, logprobs)
    if not sampling.do_sample and obstacle:
        raise InputError(sentence("greedy text", title=SERVER_TITLES[features.server], obstacle=obstacle))
    if not sampling.do_sample and method in ("reject", "thin"):
        raise InputError(sentence("greedy method", method=method))
    if method == "thin" and not can_thin:
        raise InputError(sentence("thin without log-probabilities", needed=_name_logprobs(sampling)))
    if method == "bias" and obstacle:
        raise InputError(f"method='bias' is not exact here, because {obstacle}: use method='auto'")
    if method == "reject":
        return MethodPlan(method, None, can_thin=False, can_bias=False)
    can_bias = obstacle is None and method != "thin"
    alternatives = ALSO_TRIED if can_bias else MANY_ALTERNATIVES
    return MethodPlan(
        method,
        logprobs,
        can_thin=can_thin,
        can_bias=can_bias,
        bias_limit=features.bias_limit,
        top_logprobs=min(alternatives, features.max_top_logprobs),
        max_top_logprobs=features.max_top_logprobs,
        further=("raw" if "raw" in features.logprobs else logprobs) if features.max_top_logprobs else None,
        draws_together=features.server == "vllm",
        rewinds_before_logprobs=REWINDS_BEFORE_LOGPROBS if method == "auto" and sampling.do_sample else 0,
    )


def _refuse_settings(sampling: Sampling, features: ServerFeatures) -> None:
    """Raise `InputError` for settings with which no method is exact."""
    title = SERVER_TITLES[features.server]
    for name in sampling.in_effect:
        if name in ("presence_penalty", "frequency_penalty"):
            raise InputError(sentence("penalty of one answer", name=name, title=title))
        if name not in DIALECTS[features.server].settings:
            other = "llama.cpp" if name in DIALECTS["llama.cpp"].settings else "a model in this process"
            raise InputError(sentence("unknown setting", name=name, title=title, other=other))
    if sampling.repetition_penalty != 1 and not features.penalizes_prompt:
        raise InputError(sentence("penalty without the prompt", title=title))


def _find_logprobs(sampling: Sampling, features: ServerFeatures) -> Logprobs | None:
    """Return the kind of log-probabilities that the ledger needs; None if the server does not return this kind."""
    if not sampling.in_effect and "raw" in features.logprobs:
        return "raw"
    # The coin that a server throws for XTC changes its probabilities.
    has_drawn = "drawn" in features.logprobs and sampling.xtc_probability == 0
    return "drawn" if sampling.do_sample and has_drawn else None


def _find_obstacle(sampling: Sampling, features: ServerFeatures, logprobs: Logprobs | None) -> str | None:
    """Return why drawing under a bias would not be exact; None if it is exact."""
    if not features.has_bias:
        return "this server takes no logit_bias"
    if sampling.do_sample and sampling.xtc_probability > 0:
        return "the server throws a coin for XTC, and tells what is left after it"
    if logprobs is None:
        return f"it needs {_name_logprobs(sampling)}, which this server does not return"
    if sampling.truncates:
        return "top_k, top_p, min_p, typical_p and top_n_sigma act after the bias"
    if sampling.repetition_penalty != 1:
        return "repetition_penalty acts after the bias"
    if sampling.temperature > MAX_BIASED_TEMPERATURE:
        return f"a temperature above {MAX_BIASED_TEMPERATURE:g} weakens the lowest bias"
    return None


def _name_logprobs(sampling: Sampling) -> str:
    if not sampling.in_effect:
        return "the log-probabilities of the written tokens"
    return "the log-probabilities of the distribution drawn from (vLLM: --logprobs-mode processed_logprobs)"


# -- a text ------------------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """Counts of the requests and tokens for one text.

    retries: answers that broke off and were continued by another request.
    received_tokens: tokens that the server sent; the text keeps only some of them.
    thinned: received tokens that were drawn again, because bans left only a part of their probability.
    chosen: tokens that were drawn on this side, among the likeliest tokens that the server sent.
    """

    requests: int = 0
    retries: int = 0
    received_tokens: int = 0
    thinned: int = 0
    chosen: int = 0


class DrawnToken(NamedTuple):
    """The next token, drawn from what the ledger has left. probability: the token's before anything was subtracted."""

    token: int
    probability: float | None
    alternatives: tuple[tuple[int, float], ...] = ()


class EndpointText:
    """A text that is being written by a server.

    end_token: the token to add for an end token whose id the server does not send.
    special: tokens without text; such a token is an end token if the server ends the text with it.
    """

    def __init__(
        self,
        client: StreamingClient,
        spec: RowSpec,
        plan: MethodPlan,
        sampling: Sampling,
        *,
        seed: int,
        end_token: int | None = None,
        special: Collection[int] = (),
    ) -> None:
        self.row = Row(spec)
        self.traffic = Traffic()
        drawing = StreamDrawing(visible=plan.max_top_logprobs, looks_further=plan.further is not None)
        self._source = StreamSource(self.row, drawing)
        self._client = client
        self._plan = plan
        self._sampling = sampling
        self._seeds = random.Random(seed)
        self._end_token = end_token
        self._doubtful = set(special) - spec.callbacks.eos_token_ids  # special tokens that may end a text
        self._ends = set[int]()  # tokens by which the server has ended a text
        self._has_ended = False  # the server ended the text by the latest token that was read
        self._prompt: list[int] = spec.prompt[0].tolist()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Write the text, and yield its events. Raises `EndpointError` if the server fails."""
        empty_requests = 0
        while not self.row.is_finished:
            received = self.traffic.received_tokens + self.traffic.chosen
            try:
                async with aclosing(self._draw()) as drawn_tokens:
                    async for drawn in drawn_tokens:
                        stays = self._source.take(*drawn)
                        stays = self._ask_criteria() and stays
                        for event in self.row.release():
                            yield event
                        if self.row.is_finished or not stays:
                            break
                if self._has_ended and not self.row.is_finished:
                    self._has_ended = False
                    if self.row.tokens:
                        end_at(self.row, len(self.row.tokens))
                    else:
                        self.row.drawing.end(self.row, "done")
                    self._ask_criteria()
                    for event in self.row.release():
                        yield event
            except StreamBroken:  # all received tokens were judged: continue after them
                self.traffic.retries += 1
            is_empty = self.traffic.received_tokens + self.traffic.chosen == received
            empty_requests = empty_requests + 1 if is_empty else 0
            if empty_requests > MAX_EMPTY_REQUESTS:
                raise EndpointError(sentence("no tokens", count=empty_requests))

    def _ask_criteria(self) -> bool:
        """Ask the caller's stopping criteria; return whether the text stays."""
        length = len(self.row.tokens)
        if self.row.is_lockstep:
            advance_together([self.row])
        return len(self.row.tokens) == length

    def _draw(self) -> AsyncGenerator[DrawnToken, None]:
        """Return the tokens of one request, up to the first that needs another request, or one token drawn here."""
        if self._source.must_look_further:  # the likeliest tokens before truncation
            request = replace(self._request(max_tokens=1), sampling=Sampling(), logprobs=self._plan.further)
            return self._ask_likeliest(request, self._source.look_further)
        if self._source.dense is not None:
            return self._choose() if self.row.node.mass_left() > 0 else self._stream(is_thinned=False)
        table = self._source.table
        is_noise = table.mass_left() < self.row.spec.policy.mass_floor  # the judge then concedes whatever comes
        method = self._plan.choose(table)
        if method == "here" and self._plan.wants_more(table) and self.row.node.memory is None:
            self.row.node.memory = "told more"  # ask only once at a place
            return self._ask_likeliest(self._request(max_tokens=1), self._source.tell)
        if method == "here" and table.mass_left() > 0:
            return self._choose()
        if method == "bias" and not is_noise:
            return self._draw_biased(table.biases(), share=table.mass_left())
        return self._stream(is_thinned=not is_noise)

    async def _stream(self, *, is_thinned: bool) -> AsyncGenerator[DrawnToken, None]:
        async with aclosing(self._read(self._request())) as drawn_tokens:
            async for drawn in drawn_tokens:
                if is_thinned and not self._source.keeps(drawn.token):
                    self.traffic.thinned += 1
                    self._source.tell(drawn.alternatives)
                    return
                yield drawn

    async def _choose(self) -> AsyncGenerator[DrawnToken, None]:
        """Draw among the tokens that the server has sent; or, by their probability, request an unknown token."""
        token = self._source.draw()
        if token is not None:
            self.traffic.chosen += 1
            yield DrawnToken(token, None)
            self._has_ended = token in self._ends
            return
        table = self._source.table
        bias = dict.fromkeys(table.known, LOWEST_BIAS)
        others = self._draw_biased(bias, share=table.unknown) if self._plan.fits(bias) else self._draw_other(table)
        async with aclosing(others):
            async for drawn in others:
                yield drawn

    async def _draw_other(self, table: SparseTable) -> AsyncGenerator[DrawnToken, None]:
        """Request draws until one is an unknown token, and yield it; give up when an unknown token hardly exists."""
        left = CONVINCING_DRAWS / table.unknown
        while left > 0:
            count = min(MAX_DRAWS, ceil(EXPECTED_KEPT_DRAWS / table.unknown))
            left -= count
            for item in await self._ask(self._request(max_tokens=1), count):
                drawn = self._receive(item)
                if drawn is None or not table.knows(drawn.token):
                    if drawn is not None:
                        yield drawn
                    self._has_ended = isinstance(item, StreamEnd)
                    return
                self.traffic.thinned += 1
        table.is_whole = True

    def _draw_biased(self, bias: Mapping[int, float], *, share: float) -> AsyncGenerator[DrawnToken, None]:
        """Draw one token under a bias. share: the part of the whole distribution that the bias leaves to draw."""
        scale = self._sampling.temperature or 1.0
        request = self._request(max_tokens=1, bias={token: scale * value for token, value in bias.items()})
        # The server sends probabilities within the part that the bias leaves.
        return self._read(request, share=share if self._plan.logprobs == "drawn" else 1.0)

    async def _ask_likeliest(
        self, request: StreamRequest, tell: Callable[[Sequence[tuple[int, float]]], object]
    ) -> AsyncGenerator[DrawnToken, None]:
        """Request many of the likeliest tokens, pass them to `tell`, and yield no token."""
        request = replace(request, top_logprobs=min(FURTHER_ALTERNATIVES, self._plan.max_top_logprobs))
        (item,) = await self._ask(request, 1)
        drawn = self._receive(item)
        tell(drawn.alternatives if drawn else ())
        return
        yield

    async def _ask(self, request: StreamRequest, count: int) -> Sequence[StreamItem]:
        """Return `count` independent draws of the next token."""
        self.traffic.requests += 1 if self._plan.draws_together else count
        self.traffic.received_tokens += count
        return await self._client.draw(request, count)

    def _request(self, *, max_tokens: int | None = None, bias: Mapping[int, float] = NO_BIAS) -> StreamRequest:
        row, plan, alternatives = self.row, self._plan, 0
        node: Node | None = row.node
        rewinds = 0  # the most rewinds to any one place to which the text may still return
        while node is not None:
            rewinds, node = max(rewinds, node.rewinds), node.parent
        logprobs = plan.logprobs if rewinds >= plan.rewinds_before_logprobs else None
        length = max_tokens or row.max_new_tokens - len(row.tokens)
        if not row.spec.policy.do_sample:
            # Biased tokens are usually the likeliest: request more, so that other tokens are among the answer.
            alternatives = min(plan.top_logprobs + len(bias), plan.max_top_logprobs)
        elif logprobs is not None and rewinds and not bias:
            alternatives, length = plan.top_logprobs, min(length, TOLD_TOKENS)
        return StreamRequest(
            prompt=self._prompt + row.tokens,
            max_tokens=length,
            seed=self._seeds.getrandbits(31),
            sampling=self._sampling,
            bias=bias,
            logprobs=logprobs,
            top_logprobs=alternatives,
        )

    async def _read(self, request: StreamRequest, *, share: float = 1.0) -> AsyncGenerator[DrawnToken, None]:
        self.traffic.requests += 1
        received = 0
        async with aclosing(self._client.stream(request)) as items:
            async for item in items:
                if isinstance(item, StreamEnd) and item.reason == "length":
                    if received < request.max_tokens:
                        raise EndpointError(sentence("early end", length=len(request.prompt) + received))
                    return
                received += 1
                self.traffic.received_tokens += 1
                drawn = self._receive(item)
                if drawn is not None:
                    yield drawn if drawn.probability is None else drawn._replace(probability=drawn.probability * share)
                if isinstance(item, StreamEnd):
                    self._has_ended = True  # reached only if all tokens have stayed
                    return

    def _receive(self, item: StreamItem) -> DrawnToken | None:
        """Return an item's token; None for an end without one."""
        if isinstance(item, StreamToken) and item.token is None:
            raise EndpointError(sentence("text of no token", text=item.text))
        token = self._end_token if item.token is None else item.token
        if token is None:
            return None
        self._doubtful.discard(token)
        if isinstance(item, StreamEnd):
            self._ends.add(token)
        alternatives = tuple(
            (other, exp(logprob)) for other, logprob in item.alternatives if other not in self._doubtful
        )
        return DrawnToken(token, None if item.logprob is None else exp(item.logprob), alternatives)
