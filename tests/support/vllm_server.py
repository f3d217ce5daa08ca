"""A real vLLM server on 127.0.0.1, run by the Python of another environment; it is ready in half a minute."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.processes import ServingProcess

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "ANTISLOP_VLLM_PYTHON"
"""The environment variable that names the Python executable of an environment with vLLM."""
START_SECONDS = 300
DRAWN_LOGPROBS = ("--logprobs-mode", "processed_logprobs")
ONE_PROCESS = ("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor")
"""As on one GPU. That for CPUs adds a process, and both wait for each other in busy loops that fill two cores."""
SMALL_BLOCKS = ("--block-size", "32")
"""Of the prefix cache: the least for CPUs, where the default of 128 is longer than most texts here."""


@contextmanager
def serve_vllm(
    python: str, model: Path | str, log: Path, *options: str, slots: int = 8, path: Sequence[Path] = ()
) -> Iterator[ServingProcess]:
    """Serve a folder of a model with 512 positions on a free port.

    log: a file for all that vLLM writes.
    path: folders from which it imports, too.
    """
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
        "PYTHONPATH": os.pathsep.join([*map(str, (ROOT, *path))]),
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


def install_plugins(folder: Path) -> Path:
    """Make in a folder what pip writes about the plug-ins of this copy of the package; return the folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    made = folder / f"{project['name'].replace('-', '_')}-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n{name} = {value}" for group, own in project["entry-points"].items() for name, value in own.items()
    ]
    (made / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


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
