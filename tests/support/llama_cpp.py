"""A real llama.cpp server on 127.0.0.1, in a process of its own; it is ready in a quarter of a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import ServingProcess


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
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"llama.cpp ended with {process.wait()} before it served {path}")
            yield ServingProcess(url, process.pid)
        finally:
            process.terminate()  # the end of its standard input would end it too, and does if the tests are killed
