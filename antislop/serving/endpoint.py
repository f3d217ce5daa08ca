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

__all__ = ["Coverage", "Endpoint", "EndpointCompletion", "EndpointError", "EndpointSampler"]

GAP_TRIES = 16
"""How often one token is asked for where the server left it out."""


@dataclass(frozen=True)
class EndpointCompletion(Completion):
    """A text from an endpoint. error: why it ends early, at what can't be taken back any more; None if it does not."""

    coverage: Coverage


@dataclass(frozen=True)
class _Plan:
    """The settings that all texts share."""

    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    policy: Policy
    max_new_tokens: int

    def make_spec(self, prompt: Sequence[int], bans: CompiledBans, *, seed: int) -> TextSpec:
        """Return a text, with random numbers of its own."""
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
        self._bans = sampler.compiled
        self._tokenizer = self._bans.tokenizer
        own = self._tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self._eos = [own] if isinstance(own, int) else list(own or ())
        self._names = TokenNames(self._tokenizer, self._bans.vocabulary)
        self._turn = Lock()  # texts take turns to think, and wait for the server together

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
        """Generate from many prompts, with `batch_size` requests under way, and yield each text when it is finished.

        prompts: texts, which the tokenizer turns into ids with its special tokens, or ids; read as they are needed.
        seed: together with a prompt's number it decides its random numbers, so that neither order nor company matter;
        with `tokens_per_request` above 1 that also asks for a server that heeds seeds. A text that the server fails
        ends there with an `error`; the others continue. seeds: one for each prompt instead, read after it. bans: a list
        for each prompt in the place of the sampler's own, read after it; None for the sampler's own.
        """
        check_prompts(prompts)
        refuse_one_list(bans)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is expected")
        plan = self._plan(**settings)
        if seed is not None and seeds is not None:
            raise ValueError("both seed and seeds are given: one seed for all, or one for each prompt")
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
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((future.result() for future in done), key=lambda finished: finished.number)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            self._endpoint.close()

    def stream(self, prompt: str | Sequence[int], *, seed: int | None = None, **settings: Any) -> Iterator[str]:
        """Yield one text in pieces that are never taken back."""
        vocabulary = self._bans.vocabulary
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
        with self._turn:
            spec = plan.make_spec(ids, bans or self._bans, seed=seed)
        return _Text(self, spec, number=number, seed=seed)


class _Text:
    """One text and the loop's engine for it, which asks the server; its answers contain drafts."""

    def __init__(self, sampler: EndpointSampler, spec: TextSpec, *, number: int, seed: int) -> None:
        self._sampler = sampler
        self._vocabulary = sampler._bans.vocabulary
        self._row = Row(spec)
        self._number = number
        self._server_seeds = random.Random(seed)
        self._asked: list[int] = []  # generated tokens in the latest prompt
        self._leaves_gaps = False
        self._stop: Flag | None = None
        self._coverage = Coverage()

    def complete(self, stop: Flag) -> EndpointCompletion:
        """Generate to the end, or to where the server fails."""
        self._stop = stop
        report, error = Report(surfaces=self._vocabulary), None
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
        text = self._vocabulary.decode(tokens, after=prompt)
        return EndpointCompletion(self._number, text, tokens, report, self._coverage, error=error)

    def events(self) -> Iterator[Event]:
        """Yield what happens; while it does, it is this text's turn, but for the requests."""
        events = decode(Scheduler(rows=[self._row]), self)
        while True:
            with self._sampler._turn:
                event = next(events, None)
            if event is None:
                return
            if isinstance(event[1], Conceded):
                self._sampler._sampler.warn(event[1].violation)
            yield event[1]

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        """Ask what may follow the text, and what the server wrote there."""
        row = rows[0]
        fed, cut = self._compare(row)
        positions, is_drawn, is_draft = self._ask(row)
        logits, written = self._read(positions)
        row.draft = NO_DRAFT
        if is_draft:
            proposals = logits.exp() if is_drawn else None
            row.draft = Draft(written, proposals, read=len(logits) - 1)
        self._coverage.measure(row, logits)
        return ForwardPass(logits[None], [fed], [cut])

    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        """Begin a new text: nothing that the server would have to be told."""
        return self.forward(rows[place : place + 1])

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
            greedy = not row.spec.policy.do_sample or self._leaves_gaps
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
            found = names.read(position.logprobs, limit=self._sampler._alternatives)
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
