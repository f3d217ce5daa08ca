"""A real llama.cpp server on 127.0.0.1, in a process of its own; it is ready in a quarter of a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServingProcess:
    """url: without a path; the OpenAI routes are below `/v1`. pid: whose CPU time `/proc` tells."""

    url: str
    pid: int


@contextmanager
def serve_llama_cpp(path: Path, *, slots: int = 8, context: int = 512) -> Iterator[ServingProcess]:
    """Serve a GGUF file on a free port. slots: texts at once. context: positions of each."""
    command = [sys.executable, str(Path(__file__).with_name("llama_cpp_process.py")), str(path)]
    with subprocess.Popen(
        [*command, str(slots), str(context)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"llama.cpp ended with {process.wait()} before it served {path}")
            yield ServingProcess(url, process.pid)
        finally:
            process.terminate()  # the end of its standard input would end it too, and does if the tests are killed
