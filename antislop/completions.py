"""Ask a completions endpoint over HTTP for the log-probabilities of what may come next.

Three servers and two ways to ask: `/v1/completions` of vLLM and llama.cpp's server, and SGLang's own `/generate`, whose
`/v1/completions` tells tokens by their text alone. What is relied on stands in their documentation:
https://docs.vllm.ai/en/latest/serving/openai_compatible_server/,
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md,
https://docs.sglang.ai/basic_usage/native_api.html. Knows neither tokenizers nor bans; the standard library is enough.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Event
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

Api = Literal["openai", "sglang"]
Key: TypeAlias = int | bytes
"""A token as the server names it: by its id, or by its text."""

NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""Settings that leave a distribution as it is, said aloud since servers have defaults of their own."""
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be another one the next time."""
LONGEST_WAIT = 30.0
"""Seconds between two attempts."""


class EndpointError(RuntimeError):
    """Raised where an endpoint gives no answer that a text could go on with."""


class Position(NamedTuple):
    """The token that the server wrote at one position, and log-probabilities there, natural ones."""

    token: Key
    logprobs: dict[Key, float]


class Answer(NamedTuple):
    """What the server wrote, position by position.

    has_gaps: whether positions may be missing, so that the number of a position means nothing. leaves_gaps: whether
    answers of this server can have them: llama.cpp leaves out tokens that end within a character.
    """

    positions: list[Position]
    has_gaps: bool = False
    leaves_gaps: bool = False
    retries: int = 0


@dataclass
class Endpoint:
    """A completions endpoint; any number of threads may ask it.

    base_url: where `/completions` hangs, such as "http://127.0.0.1:8000/v1"; for api="sglang", `/generate`.
    model: the name under which the server knows its model; some need none. api_key: sent as a bearer token.
    timeout: seconds without a word from the server before a request counts as failed.
    retries: how often a request is sent again after a failed connection, a time-out, 429 or 5xx, after `backoff`
    seconds at first, twice as long each time, up to half of that less by chance, or as long as the server asks for.
    extra: fields that each request has beside the usual ones; `None` takes a usual one out.

    Speaks HTTP without proxies. Raises `ValueError` for a URL that is none.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api: Api = "openai"
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 0.5
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url is {self.base_url!r}; something like http://127.0.0.1:8000/v1 is expected")
        if self.api not in ("openai", "sglang"):
            raise ValueError(f"api is {self.api!r}; it is 'openai' or 'sglang'")
        self._path = parts.path.rstrip("/") + ("/completions" if self.api == "openai" else "/generate")
        self._url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._idle: deque[HTTPConnection] = deque()

    def complete(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        alternatives: int,
        seed: int,
        greedy: bool = False,
        stop: Event | None = None,
    ) -> Answer:
        """Return up to `max_tokens` positions after a prompt of token ids, with so many alternatives at each.

        The server draws from the model's own distribution, or writes the likeliest tokens. stop: give up once it is
        set. Raises `EndpointError`.
        """
        make, read = _APIS[self.api]
        asked = {"max_tokens": max_tokens, "temperature": 0.0 if greedy else 1.0, "seed": seed, **NEUTRAL}
        body = make(list(prompt), alternatives, asked)
        body |= {"model": self.model, **self.extra}
        sent = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        content, retries = self._insist(sent, stop)
        try:
            return read(json.loads(content))._replace(retries=retries)
        except EndpointError as error:
            raise EndpointError(f"{self._url}: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise EndpointError(f"{self._url} is no completions endpoint: it says {_shorten(content)!r}") from None

    def close(self) -> None:
        """End the connections that are kept open between requests; they are opened anew when needed."""
        while self._idle:
            self._idle.pop().close()

    def _insist(self, body: bytes, stop: Event | None) -> tuple[bytes, int]:
        """Send a request until it is answered; return the answer and how often it was sent again."""
        asked_to_wait, failure = 0.0, ""
        for attempt in range(self.retries + 1):
            if attempt:
                _wait(max(asked_to_wait, self.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)), stop)
            if stop is not None and stop.is_set():
                raise EndpointError(f"{self._url} was not asked any more")
            try:
                status, asked_to_wait, content = self._exchange(body)
            except TimeoutError:
                asked_to_wait, failure = 0.0, f"did not answer within {self.timeout:g} s: raise timeout"
                continue
            except (OSError, HTTPException) as error:
                asked_to_wait, failure = 0.0, f"can't be reached ({error or type(error).__name__}): check base_url"
                continue
            if status == 200:
                return content, attempt
            failure = f"answered {status}: {_message(content)}" + _advise(status)
            if status not in AGAIN:
                raise EndpointError(f"{self._url} {failure}")
        raise EndpointError(f"{self._url} {failure} (tried {self.retries + 1} times)")

    def _exchange(self, body: bytes) -> tuple[int, float, bytes]:
        """Return status, seconds that the server wants to be left alone for, and content."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        connection, is_kept = self._connect()
        try:
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except BaseException as error:
            connection.close()
            if is_kept and isinstance(error, ConnectionError):  # the server may end a connection that is not in use
                self.close()
                return self._exchange(body)
            raise
        self._idle.append(connection)
        return response.status, _seconds(response.headers.get("Retry-After")), content

    def _connect(self) -> tuple[HTTPConnection, bool]:
        """Return a connection, and whether it was in use before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            parts = urlsplit(self.base_url)
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            return kind(str(parts.hostname), parts.port, timeout=self.timeout), False


def _ask_openai(prompt: list[int], alternatives: int, asked: dict[str, Any]) -> dict[str, Any]:
    """`return_tokens_as_token_ids` is vLLM's; llama.cpp tells ids unasked."""
    return {"prompt": prompt, "logprobs": alternatives, "return_tokens_as_token_ids": True, **asked}


def _ask_sglang(prompt: list[int], alternatives: int, asked: dict[str, Any]) -> dict[str, Any]:
    names = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
    params = {names.get(name, name): value for name, value in asked.items() if name != "repeat_penalty"}
    return {
        "input_ids": prompt,
        "sampling_params": params,
        "return_logprob": True,
        "top_logprobs_num": alternatives,
        "return_text_in_logprobs": False,
    }


def _read_openai(answer: Any) -> Answer:
    choice = answer["choices"][0]
    told = choice.get("logprobs") or {}
    written = (answer.get("usage") or {}).get("completion_tokens")
    if "content" in told:
        positions = [Position(_key_of(each), _by_key(each["top_logprobs"])) for each in told["content"]]
        leaves_gaps = True
    elif told.get("top_logprobs"):
        each = zip(told["tokens"], told["top_logprobs"], strict=True)
        positions = [
            Position(_key(token), {_key(name): float(own) for name, own in top.items()}) for token, top in each
        ]
        leaves_gaps = False
        _check_spelling(positions, choice.get("text", ""))
    elif written and "timings" in answer:  # llama.cpp, where all tokens were left out
        return Answer([], has_gaps=True, leaves_gaps=True)
    else:
        raise EndpointError("the answer has no log-probabilities: use a server that returns them, and completions")
    return Answer(positions, written is not None and written != len(positions), leaves_gaps)


def _read_sglang(answer: Any) -> Answer:
    told = answer["meta_info"]
    if not told.get("output_top_logprobs"):
        raise EndpointError("the answer has no log-probabilities")
    each = zip(told["output_token_logprobs"], told["output_top_logprobs"], strict=True)
    positions = [Position(int(own[1]), {int(top[1]): float(top[0]) for top in tops}) for own, tops in each]
    return Answer(positions, told.get("completion_tokens", len(positions)) != len(positions))


_Asking: TypeAlias = Callable[[list[int], int, dict[str, Any]], dict[str, Any]]
_APIS: dict[str, tuple[_Asking, Callable[[Any], Answer]]] = {
    "openai": (_ask_openai, _read_openai),
    "sglang": (_ask_sglang, _read_sglang),
}


def _by_key(tops: Sequence[Mapping[str, Any]]) -> dict[Key, float]:
    return {_key_of(top): float(top["logprob"]) for top in tops}


def _key_of(told: Mapping[str, Any]) -> Key:
    if "id" in told:
        return int(told["id"])
    return bytes(told["bytes"]) if told.get("bytes") else _key(told["token"])


def _key(token: str) -> Key:
    """Return what a string names: "token_id:5" an id; a part of a character, which is told as U+FFFD, nothing."""
    if token.startswith("token_id:"):
        return int(token.removeprefix("token_id:"))
    return b"" if "\ufffd" in token else token.encode()


def _check_spelling(positions: Sequence[Position], text: str) -> None:
    """Refuse strings that don't join to the text: decoded one by one, some tokens lose the space before them."""
    pieces = [position.token for position in positions]
    spelled = [piece for piece in pieces if isinstance(piece, bytes)]
    if len(spelled) < len(pieces) or b"" in spelled or "\ufffd" in text:
        return
    if not b"".join(spelled).startswith(text.encode()):
        raise EndpointError(
            f"the strings of the tokens, {b'|'.join(spelled)!r}, don't spell the text {text!r}: token ids are needed"
        )


def _wait(seconds: float, stop: Event | None) -> None:
    seconds = min(seconds, LONGEST_WAIT)
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def _seconds(header: str | None) -> float:
    """Read a Retry-After that is a number; the other kind, a date, is nothing that such servers send."""
    return float(header) if header and header.isdecimal() else 0.0


def _message(content: bytes) -> str:
    """Return what the server says went wrong."""
    try:
        said = json.loads(content)
    except ValueError:
        return _shorten(content) or "nothing more"
    error = said.get("error", said) if isinstance(said, dict) else said
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return str(message)[:500]


def _advise(status: int) -> str:
    if status in (404, 405):
        return " (base_url usually ends in /v1)"
    return " (pass api_key)" if status in (401, 403) else ""


def _shorten(content: bytes) -> str:
    return content[:200].decode(errors="replace")
