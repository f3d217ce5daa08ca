"""vLLM's samplers in which only some rows ask; run by the Python of an environment with vLLM.

The second one needs Triton, so its kernels are replaced by what they compute, in torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample import logprob, sampler as second

from antislop.engines.vllm import check

VOCABULARY = 50


class CountRanked(TorchFunctionMode):
    """Counts the rows in which the likeliest tokens are looked for, at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.topk, torch.Tensor.topk):
            self.rows.append(len(args[0]))
        return function(*args, **(kwargs or {}))


def draw_first(job: dict[str, Any]) -> tuple[Any, LogprobsTensors | None]:
    """Return the tokens of a step of the first sampler, and what it tells of them. A temperature of 0 is greedy."""
    asked, temperatures = job["asked"], job["temperatures"]
    names = [f"request {row}" for row in range(len(asked))]
    sampler: Any = Sampler("processed_logprobs")
    sampler.antislop_batch = SimpleNamespace(
        req_id_to_index={name: row for row, name in enumerate(names)},
        num_logprobs={name: count for name, count in zip(names, asked, strict=True) if count is not None},
    )
    metadata = SamplingMetadata(
        temperature=torch.tensor(temperatures),
        all_greedy=not any(temperatures),
        all_random=all(temperatures),
        top_p=torch.full((len(asked),), job["top_p"]),
        top_k=None,
        generators={0: torch.Generator().manual_seed(1)},
        max_num_logprobs=max((count for count in asked if count is not None), default=None),
        logprob_token_ids=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(len(asked)),
        presence_penalties=torch.zeros(len(asked)),
        repetition_penalties=torch.ones(len(asked)),
        output_token_ids=[[] for _ in asked],
        spec_token_ids=[[] for _ in asked],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    if job.get("token_ids"):
        metadata = replace(metadata, logprob_token_ids={0: job["token_ids"]})
    torch.manual_seed(2)
    output = sampler(torch.randn(len(asked), VOCABULARY), metadata)
    assert sampler.logprobs_mode == sampler.topk_topp_sampler.logprobs_mode == "processed_logprobs"
    return output.sampled_token_ids, output.logprobs_tensors


class Ranks:
    """What the second sampler's kernel of this name computes."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def rank(ranks: Any, logits: Any, stride: int, tokens: Any, *args: Any, **kwargs: Any) -> None:
            ranks[:] = (logits >= logits.gather(-1, tokens[:, None])).sum(-1)

        return rank


def draw_second(job: dict[str, Any]) -> tuple[Any, LogprobsTensors | None]:
    """Do the same with the second sampler, whose requests have places in another order than its rows."""
    asked = job["asked"]
    places = np.arange(len(asked))[::-1].copy()
    counts = np.full(len(asked), second.NO_LOGPROBS, np.int32)
    for place, count in zip(places, asked, strict=True):
        counts[place] = second.NO_LOGPROBS if count is None else count
    torch.manual_seed(2)
    logits, tokens = torch.randn(len(asked), VOCABULARY), torch.randint(VOCABULARY, (len(asked),))
    sampler: Any = second.Sampler.__new__(second.Sampler)
    sampler.__dict__ |= {
        "compute_nans": False,
        "trace_replay_state": None,
        "return_sampling_mask": False,
        "logprobs_mode": "processed_logprobs",
        "sampling_states": SimpleNamespace(num_logprobs=counts, max_num_logprobs=lambda rows: int(counts[rows].max())),
        "logprob_token_ids_state": SimpleNamespace(max_num_token_ids=lambda _: 0),
        "sample": lambda *_, **__: (tokens, logits),
        "req_states": SimpleNamespace(prefill_len=SimpleNamespace(gpu=None)),
    }

    logprob.compute_token_logprobs = lambda rows, ids: rows.log_softmax(-1).gather(-1, ids)
    logprob._ranks_kernel = Ranks()
    second.get_num_sampled_and_rejected = lambda *_: (None, None)
    batch: Any = SimpleNamespace(
        idx_mapping_np=places,
        idx_mapping=torch.tensor(places),
        expanded_idx_mapping=torch.tensor(places),
        cu_num_logits_np=np.arange(1 + len(asked)),
        cu_num_logits=None,
        expanded_local_pos=None,
        positions=torch.arange(len(asked)),
        input_ids=torch.arange(len(asked)),
        logits_indices=torch.arange(len(asked)),
        seq_lens_cpu_upper_bound=torch.arange(len(asked)),
        seq_lens=torch.arange(len(asked)),
        num_reqs=len(asked),
    )
    output = sampler(logits, batch)
    return output.sampled_token_ids, output.logprobs_tensors


def run(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw a step each before and after the change: are all tokens, and what is told to those that ask, the same?"""
    own = Sampler.forward, second.Sampler.get_logprobs_dims, second.compute_topk_scores
    steps: list[list[tuple[list[int], Any, Any]]] = []
    for changes in (False, True):
        if changes:
            check.rank_only_what_is_asked()
            check.rank_only_what_is_asked_of_second_runner()
            assert own != (Sampler.forward, second.Sampler.get_logprobs_dims, second.compute_topk_scores)
        steps.append([])
        for job in jobs:
            with CountRanked() as ranked:
                drawn, told = (draw_second if job["second"] else draw_first)(job)
            steps[-1].append((ranked.rows, drawn, told))
    found = []
    for job, (before, drawn, told), (after, drawn_again, told_again) in zip(jobs, *steps, strict=True):
        asking = [row for row, count in enumerate(job["asked"]) if count is not None]
        is_same = torch.equal(drawn, drawn_again) and (told is None) == (told_again is None)
        if told is not None and told_again is not None:
            for part, part_again in zip(told[:3], told_again[:3], strict=True):
                is_same &= torch.equal(part[asking], part_again[asking]) and part.dtype == part_again.dtype
                is_same &= part.shape == part_again.shape
        found.append({"is_same": is_same, "before": before, "after": after})
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))), encoding="utf-8")
