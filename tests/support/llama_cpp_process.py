"""Serve a GGUF file with llama.cpp's own HTTP server, until the standard input ends: `llama_cpp_process.py FILE 8 512`.

Started as a script, so that the process imports nothing else. When it is ready, it writes the server's address to its
standard output.
"""

from __future__ import annotations

import sys

import xllamacpp


def serve(path: str, slots: int, context: int) -> xllamacpp.Server:
    """Start a server on a free port, as close to transformers in float32 as it can be.

    With a float16 cache, its default, and with flash attention, its default too, log-probabilities differ by up to
    0.02; in float32 without flash attention by 3e-5.
    """
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.endpoint_metrics = True
    params.verbosity = -1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    server = serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
