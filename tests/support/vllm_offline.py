"""Texts of `vllm.LLM` under bans, made by the Python of another environment, which runs this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


def write_texts(
    python: str,
    folder: Path,
    model: Path,
    requests: Sequence[dict[str, Any]],
    *,
    banning: dict[str, Any] | None = None,
    **options: Any,
) -> list[list[dict[str, Any]]]:
    """Return the outputs of `LLM.generate` for each request.

    requests: the arguments of `SamplingParams`, and `prompt`, ids; `regex`, `choice` or `json` for a grammar.
    banning: arguments of `antislop.engines.vllm.banning`; None for vLLM alone.
    """
    llm = {"model": str(model), "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "block_size": 32}
    job = {"llm": llm | options, "requests": list(requests), "banning": banning}
    outputs: list[list[dict[str, Any]]] = run_job(python, folder, job, module=__name__)
    return outputs


def run_job(python: str, folder: Path, job: Any, *, module: str) -> Any:
    """Return what a module writes about a job; both are JSON."""
    source, out = folder / "job.json", folder / "out.json"
    source.write_text(json.dumps(job), encoding="utf-8")
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        command = [python, "-m", module, str(source), str(out)]
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    if done.returncode:
        raise RuntimeError((folder / "log.txt").read_text(encoding="utf-8")[-4000:])
    return json.loads(out.read_text(encoding="utf-8"))


def run(job: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Write the texts, in this process."""
    from vllm import LLM, SamplingParams  # in the other environment only
    from vllm.sampling_params import StructuredOutputsParams

    from antislop.engines.vllm import banning

    llm = LLM(**({} if job["banning"] is None else banning(**job["banning"])) | job["llm"])
    prompts = [{"prompt_token_ids": request.pop("prompt")} for request in job["requests"]]
    for request in job["requests"]:
        if form := {name: request.pop(name) for name in ("regex", "choice", "json") if name in request}:
            request["structured_outputs"] = StructuredOutputsParams(**form)
    params = [SamplingParams.from_optional(**request) for request in job["requests"]]  # ids in JSON are strings
    results = llm.generate(prompts, params, use_tqdm=False)
    return [
        [
            {
                "tokens": list(output.token_ids),
                "text": output.text,
                "reason": output.finish_reason,
                "counts": (result.kv_transfer_params or {}).get("antislop"),
                "logprobs": output.logprobs
                and [[(token, own.logprob, own.rank) for token, own in told.items()] for told in output.logprobs],
            }
            for output in result.outputs
        ]
        for result in results
    ]


if __name__ == "__main__":
    outputs = run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(outputs), encoding="utf-8")
