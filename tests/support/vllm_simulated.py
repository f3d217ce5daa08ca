"""vLLM's schedulers with bans, driven by a pretend runner; run by the Python of an environment with vLLM.

It has what this machine's vLLM can't run: asynchronous steps, and the rules of the second model runner. Blocks of the
cache hold the tokens that were read into them, so that each draw can check the whole text that it would attend to.
"""

from __future__ import annotations

import json
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
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

import antislop.engines.vllm.scheduler
from antislop.core.bans.reading import SentLimits
from antislop.engines.vllm import BanningScheduler, banning
from antislop.engines.vllm.requests import PARAMETERS

BLOCK, BLOCKS, PLACES = 4, 40, 16
STEPS = 100_000
END, NONE = 1, -1
init_none_hash(sha256)
HASHER = get_request_block_hasher(BLOCK, sha256)


class State:
    """A request as a runner knows it."""

    def __init__(self, params: Any, prompt_length: int) -> None:
        self.params, self.prompt_length = params, prompt_length
        self.tokens: list[int] = []
        self.blocks: list[int] = []
        self.numbers = random.Random(params.seed)


class Runner:
    """Draws from a table of what may follow. second: with the rules of vLLM's second model runner."""

    def __init__(self, shares: dict[str, list[float]], *, second: bool) -> None:
        self._shares, self._second = shares, second
        self.states: dict[str, State] = {}
        self._cells = [[-1] * BLOCK for _ in range(BLOCKS)]
        self._unseeded = random.Random(0)

    def run(self, step: Any, grammar: Any) -> Any:
        gone = step.finished_req_ids | (step.preempted_req_ids or set() if self._second else set())
        for name in gone:
            self.states.pop(name, None)
        computed = {}
        for new in step.scheduled_new_reqs:
            state = self.states[new.req_id] = State(new.sampling_params, len(new.prompt_token_ids))
            if self._second and state.params.seed is None:  # as its sampler does when a request is added
                state.params = state.params.clone()
                state.params.seed = self._unseeded.getrandbits(60)
            state.tokens = list(new.prefill_token_ids if self._second else new.prompt_token_ids)
            state.blocks, computed[new.req_id] = list(new.block_ids[0]), new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        if not self._second:
            for name, params in getattr(step, PARAMETERS).items():
                self.states[name].params = params
        assert not (self._second and cached.resumed_req_ids)
        for name, count, blocks in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            state, computed[name] = self.states[name], count
            if name in cached.resumed_req_ids:
                state.tokens, state.blocks = list(cached.all_token_ids[name]), []
            state.blocks += blocks[0] if blocks else []
        names = list(step.num_scheduled_tokens)
        asked = ([], []) if grammar is None else (grammar.structured_output_request_ids, grammar.grammar_bitmask)
        masks = dict(zip(*asked, strict=True))
        drawn = [
            self._read(self.states[name], computed[name], step.num_scheduled_tokens[name], masks.get(name))
            for name in names
        ]
        sampled = [[token] if token != NONE else [] for token, _ in drawn]
        counts = [self.states[name].params.logprobs for name in names]
        logprobs = None if counts.count(None) == len(counts) else _tell(drawn, max(count or 0 for count in counts))
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled, logprobs)

    def _read(self, state: State, start: int, count: int, mask: Any) -> tuple[int, list[float]]:
        """Read tokens into the cache; return the token drawn after the last of a text, and the shares of all tokens.

        mask: bits of the tokens that may be drawn; None for all.
        """
        for i in range(start, start + count):
            self._cells[state.blocks[i // BLOCK]][i % BLOCK] = state.tokens[i]
        if start + count < len(state.tokens):
            return NONE, [1.0]
        seen = [cell for block in state.blocks for cell in self._cells[block]][: len(state.tokens)]
        assert seen == state.tokens, (seen, state.tokens)
        own = state.tokens[state.prompt_length :]
        shares = self._shares.get(" ".join(map(str, own)), [1.0])  # steps in flight go on behind the end of a text
        if mask is not None:
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little").tolist()
            shares = [share * bit for share, bit in zip(shares, bits, strict=False)]
        numbers = random.Random(f"{state.params.seed} {len(own)}") if self._second else state.numbers
        token = numbers.choices(range(len(shares)), shares)[0]
        state.tokens.append(token)
        return token, [share / sum(shares) for share in shares]


def _tell(drawn: Sequence[tuple[int, list[float]]], count: int) -> LogprobsLists:
    """Return what the runner tells of tokens and of the likeliest ones beside them, as many for each."""
    rows, ranks = [], []
    for token, shares in drawn:
        order = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)
        row = [(token, shares[token]), *((other, shares[other]) for other in order[:count])]
        rows.append(row + row[-1:] * (1 + count - len(row)))
        ranks.append(1 + order.index(token) if token != NONE else 1)
    with np.errstate(divide="ignore"):
        logprobs = np.log([[share for _, share in row] for row in rows])
    return LogprobsLists(np.array([[token for token, _ in row] for row in rows]), logprobs, np.array(ranks))


def build_scheduler(model: str, *, is_async: bool, second: bool, options: dict[str, Any]) -> Any:
    """Return vLLM's scheduler of an engine that this machine could not start."""
    arguments = banning(**options)
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
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = BanningScheduler(
        config,
        kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )
    scheduler.use_v2_model_runner = second
    return scheduler


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
    reasons: why they ended, in that order.
    """
    antislop.engines.vllm.scheduler.SENT_LIMITS = SentLimits(seconds=job.get("seconds", 10.0))
    torch.manual_seed(0)  # the coins of requests without a seed
    options = {"is_async": job["in_flight"] > 1, "second": job["second"]}
    scheduler = build_scheduler(job["model"], options=job["banning"], **options)
    lists = scheduler._lists = LateLists(scheduler._lists)
    runner = Runner(job["shares"], second=job["second"])
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
    assert not scheduler.requests
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    written = [text if name in order else None for name, text in texts.items()]
    return {"texts": written, "is_free": free == BLOCKS - 1, "order": order, "reasons": reasons}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps([*map(run, json.loads(Path(sys.argv[1]).read_text()))]), encoding="utf-8")
