"""A real HTTP server on 127.0.0.1 that completes as vLLM, llama.cpp's server, SGLang or a bare OpenAI clone would.

It runs any function from tokens to logits, draws with a seed, and fails on request. The requests and answers of each
kind follow its documentation and source, not the client under test.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

Model = Callable[[list[int]], Tensor]
"""Returns the logits [vocab] of the token after some tokens."""


class Served(ThreadingHTTPServer):
    """kind: "vllm", "llama.cpp", "sglang" or "strings".

    failures: how the next requests fail: "drop", "slow", "silent" (no log-probabilities), a status, or (status,
    headers). Bytes are sent unchanged, a function returns another answer for an answer, and a `Misbehavior` never ends.
    bad_prompts: prompts with these beginnings always fail, with a status. requests: all requests so far. skew: draw at
    another temperature than the log-probabilities claim, as an untrustworthy server does.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, model: Model, tokenizer: PreTrainedTokenizerBase, kind: str, *, skew: float = 1.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.tokenizer, self.kind, self.skew = model, tokenizer, kind, skew
        self.failures: deque[Any] = deque()
        self.bad_prompts: dict[tuple[int, ...], int] = {}
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.stopping = threading.Event()
        self.busy = self.most_busy = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}" + ("" if self.kind == "sglang" else "/v1")

    @property
    def path(self) -> str:
        return "/generate" if self.kind == "sglang" else "/v1/completions"

    def prompts(self) -> list[list[int]]:
        return [request.get("prompt", request.get("input_ids")) for request in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are part of the tests."""

    def write(
        self, prompt: list[int], count: int, temperature: float, seed: int | None, top: int
    ) -> list[tuple[int, Tensor, list[int]]]:
        """Tokens, each with the log-probabilities of all, and the likeliest of them; the token itself too."""
        generator = torch.Generator().manual_seed(0 if seed is None else seed)
        tokens, written = list(prompt), []
        for _ in range(count):
            logits = self.model(tokens)
            logprobs = torch.log_softmax(logits.double(), dim=-1)
            if temperature == 0:
                token = int(logits.argmax())
            else:
                probs = torch.softmax(logits * self.skew / temperature, dim=-1)
                token = int(torch.multinomial(probs, 1, generator=generator))
            likeliest = logprobs.topk(min(top, len(logprobs))).indices.tolist()
            written.append((token, logprobs, likeliest if token in likeliest else [token, *likeliest]))
            tokens.append(token)
            if token == self.tokenizer.eos_token_id:
                break
        return written

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return (
            self.tokenizer.convert_ids_to_tokens(token).encode()
            if token in self.tokenizer.all_special_ids
            else (
                self.tokenizer.backend_tokenizer.decoder.decode([self.tokenizer.convert_ids_to_tokens(token)]).encode()
            )
        )

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        params = asked.get("sampling_params", asked)
        count = params.get("max_new_tokens", params.get("max_tokens", 16))
        seed = params.get("sampling_seed", params.get("seed"))
        top = asked.get("top_logprobs_num", asked.get("logprobs"))
        assert (params["top_p"], params["top_k"], params["min_p"]) == (1.0, -1, 0.0), "servers have other defaults"
        written = self.write(asked.get("prompt", asked.get("input_ids")), count, params["temperature"], seed, top)
        text = self.tokenizer.decode([token for token, _, _ in written], skip_special_tokens=True)
        if self.kind == "sglang":
            return _sglang(text, written)
        told = {"llama.cpp": self._content, "vllm": self._lists, "strings": self._lists}[self.kind](written)
        choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": "length"}
        answer = {"object": "text_completion", "choices": [choice], "usage": {"completion_tokens": len(written)}}
        return answer | ({"timings": {}} if self.kind == "llama.cpp" else {})

    def _lists(self, written: Sequence[tuple[int, Tensor, list[int]]]) -> dict[str, Any]:
        names_ids = self.kind == "vllm" and self.requests[-1].get("return_tokens_as_token_ids")
        name = (lambda t: f"token_id:{t}") if names_ids else lambda t: self.piece(t).decode()
        return {
            "tokens": [name(token) for token, _, _ in written],
            "token_logprobs": [float(logprobs[token]) for token, logprobs, _ in written],
            "top_logprobs": [{name(t): float(logprobs[t]) for t in top} for _, logprobs, top in written],
        }

    def _content(self, written: Sequence[tuple[int, Tensor, list[int]]]) -> dict[str, Any] | None:
        """Tokens that end within a character are left out."""

        def tell(token: int, logprobs: Tensor) -> dict[str, Any]:
            piece = self.piece(token)
            text = piece.decode(errors="ignore")
            return {"id": token, "token": text, "bytes": list(piece), "logprob": float(logprobs[token])}

        content = [
            tell(token, logprobs) | {"top_logprobs": [tell(t, logprobs) for t in top if t != token or len(top) > 1]}
            for token, logprobs, top in written
            if not self.piece(token).endswith("\ufffd".encode())
        ]
        return {"content": content} if content else None


def _sglang(text: str, written: Sequence[tuple[int, Tensor, list[int]]]) -> dict[str, Any]:
    meta = {
        "completion_tokens": len(written),
        "output_token_logprobs": [[float(logprobs[token]), token, None] for token, logprobs, _ in written],
        "output_top_logprobs": [[[float(logprobs[t]), t, None] for t in top] for _, logprobs, top in written],
    }
    return {"text": text, "meta_info": meta}


class Misbehavior(Enum):
    """Answers that never end: slow single bytes, bytes as fast as possible, or one interim answer after the other."""

    DRIP = (b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.01)
    FLOOD = (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536, 0.0)
    CHUNKS = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b" " * 4096 + b"\r\n", 0.0)
    CONTINUE = (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0)
    SLOW_CONTINUE = (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)

    def write(self, send: Callable[[bytes], Any], stopping: threading.Event) -> None:
        """Send until the client closes the connection."""
        head, part, pause = self.value
        send(head)
        while not stopping.wait(pause):
            send(part)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Served

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.busy += 1
        server.most_busy = max(server.most_busy, server.busy)
        try:
            server.requests.append(asked)
            server.headers.append(dict(self.headers))
            self._answer(asked, server.failures.popleft() if server.failures else None)
        finally:
            server.busy -= 1

    def _answer(self, asked: dict[str, Any], failure: Any) -> None:
        server, prompt = self.server, asked.get("prompt", asked.get("input_ids"))
        for start, status in server.bad_prompts.items():
            if tuple(prompt[: len(start)]) == start:
                failure = status
        if self.path != server.path:
            failure = 404
        if failure == "drop":
            self.close_connection = True
            return
        if isinstance(failure, bytes):
            self.close_connection = True
            self.wfile.write(failure)
            return
        if isinstance(failure, Misbehavior):
            self.close_connection = True
            failure.write(self.wfile.write, server.stopping)
            return
        if failure == "slow":
            server.stopping.wait(5)
        status, headers = failure if isinstance(failure, tuple) else (failure, {})
        if isinstance(status, int):
            self._send(status, {"error": {"message": f"told to answer {status}", "code": status}}, headers)
            return
        answer = server.answer(asked)
        if failure == "silent":
            answer["choices"][0]["logprobs"] = None
            answer.pop("timings", None)
        self._send(200, failure(answer) if callable(failure) else answer, {})

    def _send(self, status: int, answer: dict[str, Any], headers: dict[str, str]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def serve(
    model: Model, tokenizer: PreTrainedTokenizerBase, kind: str = "vllm", *, skew: float = 1.0
) -> Iterator[Served]:
    """Serve until the block ends."""
    with Served(model, tokenizer, kind, skew=skew) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()
            _let_go(server)


def _let_go(server: Served) -> None:
    """Wait for threads that are still answering, up to a second."""
    until = time.monotonic() + 1
    while server.busy and time.monotonic() < until:
        time.sleep(0.01)
