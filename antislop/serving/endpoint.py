"""AntiSlop's counterpart for models behind an HTTP endpoint: the same loop, matcher and ledger.

A node of the ledger is filled with the alternatives that the server returns; going back is sending a shorter prompt,
which the server's prefix cache knows already. The server's own continuation is a draft, whose nodes come with the same
answer, so that a request is good for several tokens.

What is exact: within the returned alternatives, everything that docs/exactness.md says. A token beyond them is never
written; `Coverage` counts where that can matter. With `top_k` up to the number of alternatives, or a `min_p` above the
last of them, it doesn't.

Drafts. Where the server draws its continuation from the distributions that it returns, tokens are drawn beside it
(`Node.draw_beside`), and nearly all of it is kept. All that it wrote has to be looked at for that, whatever it is: an
answer that were thrown away for its tokens would make these rarer. llama.cpp leaves some tokens out of its answers;
there the draft is the likeliest continuation, which takes no chance and so can't be biased.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count, islice
from threading import Event as Flag
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, StopStringCriteria

from antislop.callbacks.settings import Settings
from antislop.decoding.loop import Passes, decode
from antislop.decoding.row import NO_DRAFT, Draft, Row
from antislop.decoding.walker import Policy
from antislop.hf.arguments import check_prompts, pair
from antislop.hf.vocabulary import Vocabulary
from antislop.sampler import SEED_STEP, AntiSlop, Completion
from antislop.serving.completions import Endpoint
from antislop.serving.dialects import Answer, EndpointError, Key, Position
from antislop.trace.events import Conceded, Event
from antislop.trace.report import Report
from antislop.trace.text_pieces import stream_text

__all__ = ["Coverage", "Endpoint", "EndpointCompletion", "EndpointError", "EndpointSampler"]

ROUNDING = 1e-5
"""Less mass than this outside of the alternatives is rounding."""
GAP_TRIES = 16
"""How often one token is asked for where the server left it out."""


@dataclass
class Coverage:
    """How far the returned alternatives reached for one text, over all distributions that came back.

    outside: probability that lies beyond the alternatives, all in all. outside_max: the most at one place.
    ran_out: places where a token beyond the alternatives might have been drawn, under the settings that were asked for;
        the others are exact. unreadable: alternatives that are no token of the tokenizer, or might be several; they
        count as lying beyond. requests, retries: answers of the server, and requests that had to be sent again.
    """

    distributions: int = 0
    outside: float = 0.0
    outside_max: float = 0.0
    ran_out: int = 0
    unreadable: int = 0
    requests: int = 0
    retries: int = 0

    @property
    def outside_mean(self) -> float:
        """The probability beyond the alternatives at a place, on average."""
        return self.outside / max(1, self.distributions)


@dataclass(frozen=True)
class EndpointCompletion(Completion):
    """A text from an endpoint. error: why it ends early, at what can't be taken back any more; None if it does not."""

    coverage: Coverage


@dataclass(frozen=True)
class _Plan:
    """What was asked for, the same for all texts."""

    settings: Settings
    policy: Policy
    max_new_tokens: int


class EndpointSampler:
    """Generate as a served model does, minus what is banned.

    sampler: bans, options and the tokenizer, which must be the model's; compiled once, for any number of endpoints.
    alternatives: how many log-probabilities to ask for at each position; vLLM gives 20 unless it was started with a
    larger `--max-logprobs`. They have to be the model's own, as vLLM's are unless `--logprobs-mode` says otherwise.
    tokens_per_request: how far the server writes ahead. What comes out has the same
    distribution however far, and with 1 nothing depends on the server's own chance.
    eos_token_id: the tokens that end a text; the tokenizer's unless told otherwise.

    Settings of a text: `max_new_tokens`, `do_sample` (default: True), `temperature`, `top_k`, `top_p`, `min_p`,
    `stop_strings`, `stopping_criteria`, with the meaning that they have for `generate`. Raises `ValueError` for
    options that have no meaning here.
    """

    def __init__(
        self,
        sampler: AntiSlop,
        endpoint: Endpoint,
        *,
        alternatives: int = 20,
        tokens_per_request: int = 8,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> None:
        for name, value in (("alternatives", alternatives), ("tokens_per_request", tokens_per_request)):
            if value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is expected")
        if sampler.draft_bans:
            raise ValueError("draft_bans is for models of one's own: leave it out for an endpoint")
        self._sampler = sampler
        self._endpoint = endpoint
        self._alternatives = alternatives
        self._tokens_per_request = tokens_per_request
        self._tokenizer = sampler._tokenizer
        own = self._tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self._eos = [own] if isinstance(own, int) else list(own or ())
        self._names = _Names(self._tokenizer, sampler._vocabulary)
        self._turn = Lock()  # texts take turns to think, and wait for the server together

    def generate_many(
        self,
        prompts: Iterable[str | Sequence[int]],
        *,
        batch_size: int = 16,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        **settings: Any,
    ) -> Iterator[EndpointCompletion]:
        """Generate from many prompts, with `batch_size` requests under way, and yield each text when it is finished.

        prompts: texts, which the tokenizer turns into ids with its special tokens, or ids; read as they are needed.
        seed: together with a prompt's number it decides its random numbers, so that neither order nor company matter;
        with `tokens_per_request` above 1 that also asks for a server that heeds seeds. A text that the server fails
        ends there and says so in `error`; the others go on. seeds: one for each prompt instead, read after it.
        """
        check_prompts(prompts)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is expected")
        plan = self._plan(**settings)
        if seed is not None and seeds is not None:
            raise ValueError("both seed and seeds are given: one seed for all, or one for each prompt")
        if seeds is None:
            seeds = count(int(torch.randint(2**31, ())) if seed is None else seed, SEED_STEP)
        numbered = enumerate(pair(prompts, seeds))
        texts = (self._start(prompt, plan, number=number, seed=own) for number, (prompt, own) in numbered)
        running: set[Future[EndpointCompletion]] = set()
        stop = Flag()
        pool = ThreadPoolExecutor(batch_size)
        try:
            while True:
                running |= {pool.submit(text.complete, stop) for text in islice(texts, batch_size - len(running))}
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((future.result() for future in done), key=lambda finished: finished.number)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            self._endpoint.close()

    def stream(self, prompt: str | Sequence[int], *, seed: int | None = None, **settings: Any) -> Iterator[str]:
        """Yield one text in pieces that are never taken back."""
        vocabulary = self._sampler._vocabulary
        ids: list[int] = list(self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        events = self.events(ids, seed=seed, **settings)
        return stream_text(events, vocabulary, drops_space=vocabulary.drops_space_after(ids))

    def events(self, prompt: str | Sequence[int], *, seed: int | None = None, **settings: Any) -> Iterator[Event]:
        """Yield what happens to one text, as it happens. Raises `EndpointError` where the server fails."""
        plan = self._plan(**settings)
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        try:
            yield from self._start(prompt, plan, seed=seed).events()
        finally:
            self._endpoint.close()

    def _plan(
        self,
        *,
        max_new_tokens: int,
        do_sample: bool = True,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        stop_strings: str | list[str] | None = None,
        stopping_criteria: Sequence[StoppingCriteria] = (),
    ) -> _Plan:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; at least 1 is expected")
        warpers: list[LogitsProcessor] = []  # in the order of `generate`
        if do_sample:
            warpers += [TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []
            warpers += [TopKLogitsWarper(top_k)] if top_k else []
            warpers += [TopPLogitsWarper(top_p)] if top_p is not None and top_p < 1 else []
            warpers += [MinPLogitsWarper(min_p)] if min_p is not None else []
        criteria: list[StoppingCriteria] = [EosTokenCriteria(eos_token_id=self._eos)] if self._eos else []
        if stop_strings:
            criteria.append(StopStringCriteria(tokenizer=self._tokenizer, stop_strings=stop_strings))
        self._sampler._vocabulary.refuse_changes(self._tokenizer)
        criteria.extend(stopping_criteria)
        settings = Settings(
            logits_processor=LogitsProcessorList(warpers), stopping_criteria=StoppingCriteriaList(criteria), rows=1
        )
        return _Plan(settings, self._sampler._policy(do_sample=do_sample), max_new_tokens)

    def _start(self, prompt: str | Sequence[int], plan: _Plan, *, seed: int, number: int = 0) -> _Text:
        ids: list[int] = list(self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        if not ids:
            raise ValueError("an empty prompt was passed: pass at least one token, the bos token for instance")
        own = self._sampler
        with self._turn:
            state = own._matcher.start(ids, lookback=own.prompt_lookback, exempt_prompt=own.exempt_prompt)
        row = Row(
            torch.tensor([ids]),
            settings=plan.settings,
            state=state,
            capacity=plan.max_new_tokens,
            generator=torch.Generator().manual_seed(seed),
        )
        return _Text(self, row, plan.policy, number=number, seed=seed)


class _Text:
    """One text in the making: the loop's engine, which asks the server, and its drafter, since answers hold drafts."""

    def __init__(self, sampler: EndpointSampler, row: Row, policy: Policy, *, number: int, seed: int) -> None:
        self._sampler = sampler
        self._row = row
        self._policy = policy
        self._number = number
        self._server_seeds = random.Random(seed)
        self._asked: list[int] = []  # generated tokens in the latest prompt
        self._leaves_gaps = False
        self._stop: Flag | None = None
        self._coverage = Coverage()

    def complete(self, stop: Flag) -> EndpointCompletion:
        """Generate to the end, or to where the server fails."""
        self._stop = stop
        report, error = Report(surfaces=self._sampler._sampler._vocabulary), None
        try:
            for event in self.events():
                report.add(event)
        except EndpointError as failure:
            error = failure
        if report.reason == "failed":
            error = EndpointError("the server's log-probabilities leave no token that could be drawn: try another one")
        row = self._row
        tokens = row.tokens if error is None else row.tokens[: row.settled]
        prompt = row.ids[0, : row.prompt_length].tolist()
        text = self._sampler._sampler._vocabulary.decode(tokens, after=prompt)
        return EndpointCompletion(self._number, text, tokens, report, self._coverage, error=error)

    def events(self) -> Iterator[Event]:
        """Yield what happens; while it does, it is this text's turn, but for the requests."""
        matcher = self._sampler._sampler._matcher
        events = decode([self._row], engine=self, matcher=matcher, policy=self._policy, drafter=self)
        while True:
            with self._sampler._turn:
                event = next(events, None)
            if event is None:
                return
            if isinstance(event[1], Conceded):
                self._sampler._sampler._warn_once(event[1].violation)
            yield event[1]

    def forward(self, rows: Sequence[Row]) -> Passes:
        """Ask what may follow the text, and what the server wrote there."""
        row = rows[0]
        fed, cut = self._compare(row)
        positions, is_drawn, is_draft = self._ask(row)
        logits, written = self._read(positions)
        row.draft = NO_DRAFT
        if is_draft:
            proposals = logits.exp() if is_drawn else None
            row.draft = Draft(written, proposals, read=len(logits) - 1)
        self._measure(row, logits)
        return Passes(logits[None], [fed], [cut])

    def replace(self, rows: Sequence[Row], place: int) -> Passes:
        """Begin a new text: nothing that the server would have to be told."""
        return self.forward(rows[place : place + 1])

    def propose(self, row: Row) -> Draft:  # noqa: ARG002
        """Return nothing: the draft comes with the answer."""
        return NO_DRAFT

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        """Take note of nothing: the server writes as it does."""

    def _compare(self, row: Row) -> tuple[int, int]:
        """Return how many tokens the prompt has that the latest one had not, and how many it lacks."""
        pairs = list(zip(row.tokens, self._asked, strict=False))
        shared = next((i for i, (own, asked) in enumerate(pairs) if own != asked), len(pairs))
        cut, fed = len(self._asked) - shared, len(row.tokens) - shared
        fed += 0 if self._coverage.requests else row.prompt_length
        self._asked = list(row.tokens)
        return fed, cut

    def _ask(self, row: Row) -> tuple[list[Position], bool, bool]:
        """Return the server's answer, whether its tokens were drawn, and whether they are a draft."""
        ahead = min(self._sampler._tokens_per_request, row.capacity - len(row.tokens))
        if ahead > 1 and self._coverage.requests:  # the first answer tells what kind of server it is
            greedy = not self._policy.do_sample or self._leaves_gaps
            answer = self._request(row, ahead, greedy=greedy)
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
        """Ask the server while other texts have their turn."""
        sampler, seed = self._sampler, self._server_seeds.getrandbits(31)
        sampler._turn.release()
        try:
            answer = sampler._endpoint.complete(
                row.ids[0].tolist(),
                max_tokens=max_tokens,
                alternatives=sampler._alternatives,
                seed=seed,
                greedy=greedy,
                stop=self._stop,
            )
        finally:
            sampler._turn.acquire()
        self._leaves_gaps |= answer.leaves_gaps
        self._coverage.requests += 1
        self._coverage.retries += answer.retries
        return answer

    def _read(self, positions: Sequence[Position]) -> tuple[Tensor, list[int]]:
        """Return log-probabilities [positions, vocab], -inf where none was told, and the tokens that were written.

        Both end with a written token that is no alternative: nothing below it can be reached.
        """
        names, written, known = self._sampler._names, list[int](), list[Tensor]()
        for position in positions:
            found = names.read(position.logprobs, most=self._sampler._alternatives)
            self._coverage.unreadable += min(len(position.logprobs), self._sampler._alternatives) - len(found)
            if not found:
                break
            logits = torch.full((names.size,), -torch.inf)
            logits[list(found)] = torch.tensor(list(found.values()))
            known.append(logits)
            token = names.find(position.token)
            is_alternative = token in found
            # Any token without a chance stands for one that has no name: what counts is that it is not drawn.
            written.append(int(logits.argmin()) if token is None or not is_alternative else token)
            if not is_alternative:
                break
        if not known:
            raise EndpointError("none of the alternatives is a token of the tokenizer: pass the served model's own")
        return torch.stack(known), written

    def _measure(self, row: Row, logits: Tensor) -> None:
        """Count what lies beyond the alternatives.

        The likeliest token there has at most the mass that is left, and less than the last alternative: it is tried
        whether the settings would let such a token be drawn.
        """
        coverage, places = self._coverage, len(logits)
        outside = (1 - logits.double().exp().sum(dim=-1)).clamp(min=0)
        coverage.distributions += places
        coverage.outside += float(outside.sum())
        coverage.outside_max = max(coverage.outside_max, float(outside.max()))
        if not self._policy.do_sample:
            return
        least = logits.masked_fill(logits == -torch.inf, torch.inf).amin(dim=-1)
        next_best = torch.minimum(least - 1e-4, outside.clamp(min=1e-30).log().float())
        absent = logits.argmin(dim=-1, keepdim=True)
        has_absent = (logits.gather(1, absent) == -torch.inf)[:, 0]
        tried = logits.scatter(1, absent, next_best[:, None])
        scores = row.settings.process([row] * places, [len(row.tokens)] * places, tried)
        is_open = scores.gather(1, absent)[:, 0] > -torch.inf
        coverage.ran_out += int((is_open & has_absent & (outside > ROUNDING)).sum())


class _Names:
    """Tokens by what servers call them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary.surfaces)
        self._ids: dict[bytes, int | None] = {}  # None: several have this text
        texts = [(i, surface) for i, surface in enumerate(vocabulary.surfaces) if surface]
        texts += [(i, tokenizer.convert_ids_to_tokens(i).encode()) for i in vocabulary.breaks if i < self.size]
        for token_id, text in texts:
            self._ids[text] = None if text in self._ids else token_id

    def find(self, key: Key) -> int | None:
        """Return the id of a token, None where that is not known."""
        if isinstance(key, int):
            return key if 0 <= key < self.size else None
        return self._ids.get(key)

    def read(self, logprobs: Mapping[Key, float], *, most: int) -> dict[int, float]:
        """Return the likeliest alternatives by id; beyond `most`, servers add the token that they wrote."""
        likeliest = sorted(logprobs.items(), key=lambda item: item[1], reverse=True)[:most]
        return {token: value for key, value in likeliest if (token := self.find(key)) is not None}
