"""A real vLLM server on 127.0.0.1, run by the Python of another environment; it is ready in half a minute."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.processes import ServingProcess

PYTHON = "ANTISLOP_VLLM_PYTHON"
"""The environment variable that names the Python executable of an environment with vLLM."""
START_SECONDS = 300
DRAWN_LOGPROBS = ("--logprobs-mode", "processed_logprobs")
ONE_PROCESS = ("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor")
"""As on one GPU. That for CPUs adds a process, and both wait for each other in busy loops that fill two cores."""
SMALL_BLOCKS = ("--block-size", "32")
"""Of the prefix cache: the least for CPUs, where the default of 128 is longer than most texts here."""


@contextmanager
def serve_vllm(python: str, model: Path | str, log: Path, *options: str, slots: int = 8) -> Iterator[ServingProcess]:
    """Serve a folder of a model with 512 positions on a free port. log: a file for all that vLLM writes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += [*ONE_PROCESS, *SMALL_BLOCKS]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            [*command, "--max-num-seqs", str(slots), *options],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, log)
            yield ServingProcess(url, process.pid)
        finally:
            _end(process)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except (URLError, OSError):
            if process.poll() is not None or time.monotonic() > until:
                end = log.read_text(encoding="utf-8")[-3000:]
                raise RuntimeError(f"vLLM did not start within {START_SECONDS} s; its last lines:\n{end}") from None
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
