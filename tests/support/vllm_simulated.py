"""vLLM's schedulers with bans, driven by a pretend runner; run by the Python of an environment with vLLM.

It has what this machine's vLLM can't run: asynchronous steps, and the rules of the second model runner. Blocks of the
cache hold the tokens that were read into them, so that each draw can check the whole text that it would attend to.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

import antislop.engines.vllm.scheduler
from antislop.engines.vllm import BanningScheduler, banning
from antislop.engines.vllm.requests import PARAMETERS
from antislop.lists.limits import SentLimits

BLOCK, BLOCKS, PLACES = 4, 40, 16
STEPS = 100_000
END, NONE = 1, -1
init_none_hash(sha256)
HASHER = get_request_block_hasher(BLOCK, sha256)


class State:
    """A request as a runner knows it.

    read_before: tokens that it brought; where a step begins among them, vLLM schedules no drafts but places for them.
    """

    def __init__(self, params: Any, prompt_length: int, tokens: Sequence[int], computed: int) -> None:
        self.params, self.prompt_length = params, prompt_length
        self.tokens = list(tokens)
        self.read_before, self.computed = len(self.tokens), computed
        self.blocks: list[int] = []
        self.drafts: list[tuple[int, list[float]]] = []  # and from what they were drawn
        self.numbers = random.Random(params.seed)

    @property
    def own(self) -> list[int]:
        return self.tokens[self.prompt_length :]


class Runner:
    """Draws from a table of what may follow.

    second: with the rules of vLLM's second model runner.
    drafts: how many tokens it drafts, for the next step to verify.
    certain: whether a draft is always the likeliest token; otherwise it is drawn from a flatter distribution.
    cut: tokens before which it cuts drafts unseen, as no runner may.
    """

    def __init__(
        self,
        shares: dict[str, list[float]],
        *,
        second: bool,
        drafts: int = 0,
        certain: bool = False,
        cut: Sequence[int] = (),
    ) -> None:
        self._shares, self._second = shares, second
        self._drafts, self._certain, self._cut = drafts, certain, frozenset(cut)
        self.states: dict[str, State] = {}
        self.drafted = self.accepted = 0
        self._cells = [[-1] * BLOCK for _ in range(BLOCKS)]
        self._unseeded = random.Random(0)

    def run(self, step: Any, grammar: Any) -> Any:
        gone = step.finished_req_ids | (step.preempted_req_ids or set() if self._second else set())
        for name in gone:
            self.states.pop(name, None)
        for new in step.scheduled_new_reqs:
            tokens = new.prefill_token_ids if self._second else new.prompt_token_ids
            state = State(new.sampling_params, len(new.prompt_token_ids), tokens, new.num_computed_tokens)
            if self._second and state.params.seed is None:  # as its sampler does when a request is added
                state.params = state.params.clone()
                state.params.seed = self._unseeded.getrandbits(60)
            self.states[new.req_id] = state
            state.blocks = list(new.block_ids[0])
        cached = step.scheduled_cached_reqs
        if not self._second:
            for name, params in getattr(step, PARAMETERS).items():
                self.states[name].params = params
        assert not (self._second and cached.resumed_req_ids)
        for name, count, blocks in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            state = self.states[name]
            if name in cached.resumed_req_ids:
                state.tokens, state.blocks = list(cached.all_token_ids[name]), []
            if not self._second:  # the second one counts by itself, since the scheduler can't know what it accepts
                state.computed = count
            state.blocks += blocks[0] if blocks else []
        names = list(step.num_scheduled_tokens)
        drafted = {name: len(step.scheduled_spec_decode_tokens.get(name, ())) for name in names}
        masks, row = dict[str, Any](), 0
        for name in [] if grammar is None else grammar.structured_output_request_ids:
            masks[name] = grammar.grammar_bitmask[row]  # of the first draw
            row += 1 + drafted[name]
        drawn = [
            self._read(self.states[name], step.num_scheduled_tokens[name], drafted[name], masks.get(name))
            for name in names
        ]
        sampled = [[token for token, _ in rows] for rows in drawn]
        counts = [self.states[name].params.logprobs for name in names]
        logprobs = None
        if counts.count(None) < len(counts):
            padded = [
                rows + [(NONE, [1.0])] * (1 + drafted[name] - len(rows))
                for name, rows in zip(names, drawn, strict=True)
            ]
            logprobs = _tell(padded, counts)
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled, logprobs)

    def take_drafts(self) -> DraftTokenIds:
        return DraftTokenIds([*self.states], [[token for token, _ in state.drafts] for state in self.states.values()])

    def _read(self, state: State, count: int, drafted: int, mask: Any) -> list[tuple[int, list[float]]]:
        """Read tokens and drafts into the cache; return the tokens drawn after the last one of a text.

        mask: bits of the tokens that may be drawn first; None for all.

        Each token comes with the shares of all tokens.
        """
        start, known = state.computed, count - drafted
        is_placeholder = start + known - 1 < state.read_before
        drafts = [] if is_placeholder else state.drafts[:drafted]
        assert len(drafts) == drafted or is_placeholder
        assert not drafts or mask is None, "a choice is made for one draw, and drafts would be verified beside it"
        read = [*state.tokens[start : start + known], *(token for token, _ in drafts)]
        for i, token in enumerate(read, start):
            self._cells[state.blocks[i // BLOCK]][i % BLOCK] = token
        if start + known < len(state.tokens):
            assert not drafted
            state.computed += count
            return []
        drawn: list[tuple[int, list[float]]] = []
        while True:
            seen = [cell for block in state.blocks for cell in self._cells[block]][: len(state.tokens)]
            assert seen == state.tokens, (seen, state.tokens)
            # Steps in flight go on behind the end of a text.
            shares = list(self._shares.get(" ".join(map(str, state.own)), [1.0]))
            if mask is not None and not drawn:
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little").tolist()
                shares = [share * bit for share, bit in zip(shares, bits, strict=False)]
            told = [share / sum(shares) for share in shares]
            is_accepted, token = False, NONE
            numbers = random.Random(f"{state.params.seed} {len(state.own)}") if self._second else state.numbers
            if len(drawn) < len(drafts):
                token, guessed = drafts[len(drawn)]
                self.drafted += 1
                is_accepted = numbers.random() * guessed[token] < (told[token] if token < len(told) else 0.0)
                shares = [max(0.0, share - guess) for share, guess in zip(told, guessed, strict=False)]
            if not is_accepted:
                token = numbers.choices(range(len(shares)), shares)[0]
            self.accepted += is_accepted
            state.tokens.append(token)
            drawn.append((token, told))
            if not is_accepted:
                break
        state.computed = len(state.tokens) - 1
        self._draft(state)
        return drawn

    def _draft(self, state: State) -> None:
        state.drafts, ahead = [], state.own
        for _ in range(self._drafts):
            shares = self._shares.get(" ".join(map(str, ahead)), [1.0] * 16)
            if self._certain:
                guessed = [float(share == max(shares)) for share in shares]
            else:
                guessed = [share**0.5 for share in shares]
            guessed = [share / sum(guessed) for share in guessed]
            token = self._unseeded.choices(range(len(guessed)), guessed)[0]
            if token in self._cut:
                break
            state.drafts.append((token, guessed))
            ahead = [*ahead, token]


def _tell(drawn: Sequence[Sequence[tuple[int, list[float]]]], asked: Sequence[int | None]) -> LogprobsLists:
    """Return what the runner tells of tokens and of the likeliest ones beside them, as many for each.

    asked: how many of the likeliest tokens each request asks for. Those that ask for nothing are told zeros.
    """
    rows, ranks, begins, count = [], [], [0], max(own or 0 for own in asked)
    for own, own_count in zip(drawn, asked, strict=True):
        for token, shares in own:
            order = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)
            row = [(token, shares[token]), *((other, shares[other]) for other in order[:count])]
            rows.append(row + row[-1:] * (1 + count - len(row)) if own_count is not None else [(0, 1.0)] * (1 + count))
            ranks.append(1 + order.index(token) if token != NONE else 1)
        begins.append(begins[-1] + len(own))
    with np.errstate(divide="ignore"):
        logprobs = np.log([[share for _, share in row] for row in rows])
    return LogprobsLists(np.array([[token for token, _ in row] for row in rows]), logprobs, np.array(ranks), begins)


def build_scheduler(model: str, *, is_async: bool, second: bool, drafts: int, options: dict[str, Any]) -> Any:
    """Return vLLM's scheduler of an engine that this machine could not start."""
    arguments = banning(**options)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the second one needs Triton, which a scheduler does without
    mode = arguments.get("logprobs_mode", "raw_logprobs")
    config = VllmConfig(
        model_config=ModelConfig(
            model=model,
            dtype="float32",
            max_model_len=64,
            logprobs_mode=mode,
            logits_processors=arguments["logits_processors"],
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=PLACES, max_num_batched_tokens=32, max_model_len=64, is_encoder_decoder=False
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        additional_config=arguments["additional_config"],
    )
    config.cache_config.num_gpu_blocks = BLOCKS
    config.scheduler_config.async_scheduling = is_async
    if drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=drafts,
            prompt_lookup_max=2,
            target_model_config=config.model_config,
            target_parallel_config=config.parallel_config,
        )
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(second))
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return BanningScheduler(
        config,
        kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


class LateLists:
    """The lists of a scheduler, of which some are compiled after as many steps as their request says in `late`."""

    def __init__(self, lists: Any) -> None:
        self.has_own = lists.has_own
        self._lists = lists
        self._late: list[tuple[int, Future[Any], Future[Any]]] = []

    def find(self, extra_args: Mapping[str, Any] | None) -> Future[Any]:
        work: Future[Any] = Future()
        if "late" not in (extra_args or {}):
            return self._lists.find(extra_args)
        self._late.append((extra_args["late"], work, self._lists.find(extra_args)))
        return work

    def go_on(self, steps: int) -> None:
        for late, work, found in self._late:
            if late == steps:
                work.set_result(found.result())


def _hand_out(scheduler: Any, step: Any, output: Any) -> list[Any]:
    outputs = scheduler.update_from_output(step, output)
    return outputs[0].outputs if outputs else []


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Write the texts of requests. A request with `abort` is aborted that many steps after it was first run.

    seconds: how long a request waits for its list.
    order: the names of the requests as they ended; those that failed begin with a minus sign.
    drafting: arguments of `Runner`, if it drafts.
    reasons: why they ended, in that order.
    accepted: how many drafts were, and of how many.
    """
    antislop.engines.vllm.scheduler.SENT_LIMITS = SentLimits(seconds=job.get("seconds", 10.0))
    torch.manual_seed(0)  # the coins of requests without a seed
    drafting = job.get("drafting", {})
    scheduler = build_scheduler(
        job["model"],
        is_async=job["in_flight"] > 1,
        second=job["second"],
        drafts=drafting.get("drafts", 0),
        options=job["banning"],
    )
    lists = scheduler._lists = LateLists(scheduler._lists)
    runner = Runner(job["shares"], second=job["second"], **drafting)
    patience = {str(i): own.pop("abort") for i, own in enumerate(job["requests"]) if "abort" in own}
    texts: dict[str, list[int]] = {str(i): [] for i in range(len(job["requests"]))}
    for name, own in zip(texts, job["requests"], strict=True):
        prompt, params = own.pop("prompt"), SamplingParams(**own, stop_token_ids=[END])
        scheduler.add_request(Request(name, prompt, params, None, block_hasher=HASHER))
    order, reasons, flight = list[str](), list[str](), deque[tuple[Any, Any]]()
    for number in range(STEPS):
        lists.go_on(number)
        for name in [name for name, steps in patience.items() if steps == 0 and name in scheduler.requests]:
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        step = scheduler.schedule()
        patience = {
            name: steps - (name in runner.states or name in step.num_scheduled_tokens)
            for name, steps in patience.items()
        }
        if step.num_scheduled_tokens:
            flight.append((step, runner.run(step, scheduler.get_grammar_bitmask(step))))
        if not flight:
            if not scheduler.has_unfinished_requests():
                break
            time.sleep(0.001)  # as vLLM's engine does while threads compile
            flight.append((step, EMPTY_MODEL_RUNNER_OUTPUT))
        if step.num_scheduled_tokens and len(flight) < job["in_flight"]:
            continue
        for output in _hand_out(scheduler, *flight.popleft()):
            texts[output.request_id] += output.new_token_ids
            rows = output.new_logprobs
            assert rows is None or list(rows.logprob_token_ids[:, 0]) == output.new_token_ids
            if output.finish_reason is not None:
                reasons.append(str(output.finish_reason))
                failed = reasons[-1] == "error"
                order.append("-" * failed + output.request_id)
        if drafting and job["in_flight"] == 1:
            scheduler.update_draft_token_ids(runner.take_drafts())
    assert not scheduler.requests
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    written = [text if name in order else None for name, text in texts.items()]
    accepted = [runner.accepted, runner.drafted]
    return {"texts": written, "is_free": free == BLOCKS - 1, "order": order, "reasons": reasons, "accepted": accepted}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps([*map(run, json.loads(Path(sys.argv[1]).read_text()))]), encoding="utf-8")
