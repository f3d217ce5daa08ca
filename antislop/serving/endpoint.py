"""`AntiSlop` for models behind an HTTP endpoint: the same loop, matcher and ledger.

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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count, islice, repeat
from threading import Event as Flag
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, StopStringCriteria

from antislop.callbacks.settings import Settings
from antislop.decoding.loop import ForwardPass, decode
from antislop.decoding.policy import Policy
from antislop.decoding.row import NO_DRAFT, Draft, Row, TextSpec
from antislop.decoding.scheduler import Scheduler
from antislop.hf.arguments import check_prompts, pair, refuse_one_list
from antislop.hf.compiled_bans import CompiledBans, CompiledLists
from antislop.hf.in_flight import Completion
from antislop.lists.ban_list import Bans
from antislop.sampler import SEED_STEP, AntiSlop
from antislop.serving.completions import Endpoint
from antislop.serving.coverage import Coverage
from antislop.serving.dialects import Answer, EndpointError, Position
from antislop.serving.token_names import TokenNames
from antislop.trace.events import Conceded, Event
from antislop.trace.report import Report
from antislop.trace.text_pieces import stream_text

GAP_TRIES = 16
"""Limit of requests for one token, if the server leaves it out of its answers."""


@dataclass(frozen=True)
class EndpointCompletion(Completion):
    """A text from an endpoint. error: why the text ends early, after its last settled token, or None."""

    coverage: Coverage


@dataclass(frozen=True)
class _Plan:
    """The settings that all texts share."""

    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    policy: Policy
    max_new_tokens: int

    def make_spec(self, prompt: Sequence[int], bans: CompiledBans, *, seed: int) -> TextSpec:
        """Return the spec of a text, with its own random generator."""
        return TextSpec(
            prompt=torch.tensor([prompt]),
            matcher=bans.matcher,
            state=bans.read_prompt(prompt),
            policy=self.policy,
            settings=Settings(
                logits_processor=self.processors,
                stopping_criteria=self.criteria,
                rows=1,
                shares_processors=True,
                shares_criteria=True,
            ),
            capacity=self.max_new_tokens,
            generator=torch.Generator().manual_seed(seed),
        )


class EndpointSampler:
    """Generate from a served model without the banned phrases.

    sampler: bans, options, and the tokenizer, which must be that of the served model; it serves any number of
    endpoints.
    alternatives: number of log-probabilities to request at each position; vLLM returns up to 20 unless it was started
    with a larger `--max-logprobs`. They must be those of the unmodified model, which is vLLM's default
    (`--logprobs-mode`).
    tokens_per_request: number of tokens that the server drafts per request. The distribution of the texts does not
    depend on it; with 1, the texts don't depend on the server's random numbers.
    eos_token_id: the tokens that end a text; by default those of the tokenizer.

    Settings of a text: `max_new_tokens`, `do_sample` (default: True), `temperature`, `top_k`, `top_p`, `min_p`,
    `stop_strings`, `stopping_criteria`, as in `generate`. Raises `ValueError` for values out of range, and for a
    sampler with `draft_bans`.
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
            raise ValueError("draft_bans needs the model in this process: leave it out for an endpoint")
        self._sampler = sampler
        self._endpoint = endpoint
        self._alternatives = alternatives
        self._tokens_per_request = tokens_per_request
        self._bans = sampler.compiled
        self._tokenizer = self._bans.tokenizer
        end_tokens = self._tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self._eos = [end_tokens] if isinstance(end_tokens, int) else list(end_tokens or ())
        self._names = TokenNames(self._tokenizer, self._bans.vocabulary)
        self._lock = Lock()  # one text computes at a time; all of them can wait for the server at once

    def generate_many(
        self,
        prompts: Iterable[str | Sequence[int]],
        *,
        bans: Iterable[Bans | None] | None = None,
        batch_size: int = 16,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        **settings: Any,
    ) -> Iterator[EndpointCompletion]:
        """Generate from many prompts, with up to `batch_size` texts in flight, and yield each text when it is finished.

        prompts: texts, which the tokenizer turns into ids with its special tokens, or ids; read when a text can start.
        seed: it and a prompt's index determine the random numbers of its text, whatever the order and the batch size;
        if `tokens_per_request` is above 1, the server must also honor seeds. seeds: one for each prompt instead, read
        after it. bans: a list for each prompt, read after it; None for the list of the sampler.

        If the server fails, a text ends early and has an `error`; the other texts continue.
        """
        check_prompts(prompts)
        refuse_one_list(bans)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is expected")
        plan = self._plan(**settings)
        if seed is not None and seeds is not None:
            raise ValueError("both seed and seeds were passed: pass one seed for all prompts, or one for each")
        if seeds is None:
            seeds = count(int(torch.randint(2**31, ())) if seed is None else seed, SEED_STEP)
        lists = CompiledLists(self._bans)
        inputs = enumerate(pair(pair(prompts, seeds), repeat(None) if bans is None else bans, name="bans"))
        texts = (
            self._start(prompt, plan, bans=lists.compile(text_bans)[0], number=number, seed=text_seed)
            for number, ((prompt, text_seed), text_bans) in inputs
        )
        running: set[Future[EndpointCompletion]] = set()
        stop = Flag()
        pool = ThreadPoolExecutor(batch_size)
        try:
            while True:
                running |= {pool.submit(text.complete, stop) for text in islice(texts, batch_size - len(running))}
                if not running:
                    return
                futures, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((future.result() for future in futures), key=lambda finished: finished.number)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            self._endpoint.close()

    def stream(self, prompt: str | Sequence[int], *, seed: int | None = None, **settings: Any) -> Iterator[str]:
        """Yield one text in settled pieces, which no rewind withdraws."""
        vocabulary = self._bans.vocabulary
        ids: list[int] = list(self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        events = self.events(ids, seed=seed, **settings)
        return stream_text(events, vocabulary, drops_space=vocabulary.drops_space_after(ids))

    def events(self, prompt: str | Sequence[int], *, seed: int | None = None, **settings: Any) -> Iterator[Event]:
        """Yield the events of one text as they occur. Raises `EndpointError` if the server fails."""
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
        self._bans.vocabulary.refuse_changes(self._tokenizer)
        criteria.extend(stopping_criteria)
        policy = self._sampler.make_policy(do_sample=do_sample)
        return _Plan(LogitsProcessorList(warpers), StoppingCriteriaList(criteria), policy, max_new_tokens)

    def _start(
        self,
        prompt: str | Sequence[int],
        plan: _Plan,
        *,
        seed: int,
        bans: CompiledBans | None = None,
        number: int = 0,
    ) -> _Text:
        ids: list[int] = list(self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        if not ids:
            raise ValueError("an empty prompt was passed: pass at least one token, the bos token for instance")
        with self._lock:
            spec = plan.make_spec(ids, bans or self._bans, seed=seed)
        return _Text(self, spec, number=number, seed=seed)


class _Text:
    """One text, and the loop's engine for it: a forward pass is a request, and its answer contains a draft."""

    def __init__(self, sampler: EndpointSampler, spec: TextSpec, *, number: int, seed: int) -> None:
        self._sampler = sampler
        self._vocabulary = sampler._bans.vocabulary
        self._row = Row(spec)
        self._number = number
        self._server_seeds = random.Random(seed)
        self._sent_tokens: list[int] = []  # generated tokens in the prompt of the latest request
        self._leaves_gaps = False
        self._stop: Flag | None = None
        self._coverage = Coverage()

    def complete(self, stop: Flag) -> EndpointCompletion:
        """Generate to the end, or until the server fails."""
        self._stop = stop
        report, error = Report(surfaces=self._vocabulary), None
        try:
            for event in self.events():
                report.add(event)
        except EndpointError as failure:
            error = failure
        if report.reason == "failed":
            error = EndpointError("the server's log-probabilities leave no token that can be drawn: use another server")
        row = self._row
        tokens = row.tokens if error is None else row.tokens[: row.settled]
        prompt = row.ids[0, : row.prompt_length].tolist()
        text = self._vocabulary.decode(tokens, after=prompt)
        return EndpointCompletion(self._number, text, tokens, report, self._coverage, error=error)

    def events(self) -> Iterator[Event]:
        """Yield the events of the text; hold the lock while computing, but not during requests."""
        events = decode(Scheduler(rows=[self._row]), self)
        while True:
            with self._sampler._lock:
                event = next(events, None)
            if event is None:
                return
            if isinstance(event[1], Conceded):
                self._sampler._sampler.warn(event[1])
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
        self._coverage.measure(row, logits)
        return ForwardPass(logits[None], [fed], [cut])

    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        """Begin a new text; the server keeps no state between requests."""
        return self.forward(rows[place : place + 1])

    def _compare(self, row: Row) -> tuple[int, int]:
        """Return the number of tokens that were added since the latest request, and the number removed."""
        pairs = list(zip(row.tokens, self._sent_tokens, strict=False))
        shared = next((i for i, (token, sent_token) in enumerate(pairs) if token != sent_token), len(pairs))
        cut, fed = len(self._sent_tokens) - shared, len(row.tokens) - shared
        fed += 0 if self._coverage.requests else row.prompt_length
        self._sent_tokens = list(row.tokens)
        return fed, cut

    def _ask(self, row: Row) -> tuple[list[Position], bool, bool]:
        """Return the server's answer, whether its tokens were drawn, and whether they are a draft."""
        draft_length = min(self._sampler._tokens_per_request, row.capacity - len(row.tokens))
        if draft_length > 1 and self._coverage.requests:  # the first answer shows whether the server leaves gaps
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
        sampler, seed = self._sampler, self._server_seeds.getrandbits(31)
        sampler._lock.release()
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
            sampler._lock.acquire()
        self._leaves_gaps |= answer.leaves_gaps
        self._coverage.requests += 1
        self._coverage.retries += answer.retries
        return answer

    def _read(self, positions: Sequence[Position]) -> tuple[Tensor, list[int]]:
        """Return log-probabilities [positions, vocab], -inf beyond the alternatives, and the server's tokens.

        Both end at the first token that is not among its alternatives: it is never drawn, so the rest is not used.
        """
        names, tokens, rows = self._sampler._names, list[int](), list[Tensor]()
        for position in positions:
            alternatives = names.read(position.logprobs, limit=self._sampler._alternatives)
            self._coverage.unreadable += min(len(position.logprobs), self._sampler._alternatives) - len(alternatives)
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
