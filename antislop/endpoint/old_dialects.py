"""The requests and answers of completions servers, as plain values: no network.

Three servers and two formats: `/v1/completions` of vLLM and llama.cpp's server, and SGLang's own `/generate`, whose
`/v1/completions` names tokens by their text only. Documentation of the servers:
https://docs.vllm.ai/en/latest/serving/openai_compatible_server/,
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md,
https://docs.sglang.ai/basic_usage/native_api.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf
from reprlib import repr as shorten
from typing import Any, Literal, NamedTuple, TypeAlias

Api = Literal["openai", "sglang"]
Key: TypeAlias = int | bytes
"""A token as a server names it: by its id, or by its text."""

NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""Settings that don't change the distribution; sent because servers have other defaults."""
ROUNDING = 1e-3
"""Largest log-probability that is accepted as 0: some servers compute in low precision."""
MASS_ROUNDING = 1e-2
"""Excess over 1 that is accepted in the sum of the probabilities at a position, for the same reason."""
LOWEST = -1e4
"""Floor of log-probabilities, at which a probability is 0 in every number format; it prevents overflow."""


class EndpointError(RuntimeError):
    """Raised if an endpoint gives no usable answer. It is no `InputError`, since the same request may succeed later."""


class Position(NamedTuple):
    """The token that the server wrote at one position, and the natural log-probabilities there."""

    token: Key
    logprobs: dict[Key, float]


class Answer(NamedTuple):
    """The positions that the server wrote.

    has_gaps: positions may be missing, so their indices can't be used. leaves_gaps: answers of this server can have
    gaps: llama.cpp leaves out tokens that end within a character. retries: number of repeated requests.
    """

    positions: list[Position]
    has_gaps: bool = False
    leaves_gaps: bool = False
    retries: int = 0


class Dialect(NamedTuple):
    """The format of the requests and answers of one kind of server.

    path: of the URL, after the base. ask: makes the body of a request from a prompt, a number of alternatives and the
    settings. read: makes an `Answer` of the parsed JSON; raises `EndpointError`, or the error of a failed lookup if the
    answer has another structure.
    """

    path: str
    ask: Callable[[list[int], int, dict[str, Any]], dict[str, Any]]
    read: Callable[[Any], Answer]


def _ask_openai(prompt: list[int], alternatives: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request; `return_tokens_as_token_ids` is for vLLM, llama.cpp always returns ids."""
    return {"prompt": prompt, "logprobs": alternatives, "return_tokens_as_token_ids": True, **settings}


def _ask_sglang(prompt: list[int], alternatives: int, settings: dict[str, Any]) -> dict[str, Any]:
    names = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
    params = {names.get(name, name): value for name, value in settings.items() if name != "repeat_penalty"}
    return {
        "input_ids": prompt,
        "sampling_params": params,
        "return_logprob": True,
        "top_logprobs_num": alternatives,
        "return_text_in_logprobs": False,
    }


def _read_openai(answer: Any) -> Answer:
    choice = answer["choices"][0]
    logprobs = choice.get("logprobs") or {}
    token_count = (answer.get("usage") or {}).get("completion_tokens")
    if "content" in logprobs:
        positions = [Position(_key_of(entry), _by_key(entry["top_logprobs"])) for entry in logprobs["content"]]
        leaves_gaps = True
    elif logprobs.get("top_logprobs"):
        pairs = zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
        positions = [
            Position(_key(token), {_key(name): _logprob(value) for name, value in top.items()}) for token, top in pairs
        ]
        leaves_gaps = False
        _check_spelling(positions, choice.get("text", ""))
    elif token_count and "timings" in answer:  # llama.cpp left out all tokens
        return Answer([], has_gaps=True, leaves_gaps=True)
    else:
        raise EndpointError("the answer has no log-probabilities: use a server that returns them, and completions")
    return Answer(positions, token_count is not None and token_count != len(positions), leaves_gaps)


def _read_sglang(answer: Any) -> Answer:
    info = answer["meta_info"]
    if not info.get("output_top_logprobs"):
        raise EndpointError("the answer has no log-probabilities")
    pairs = zip(info["output_token_logprobs"], info["output_top_logprobs"], strict=True)
    positions = [Position(_id(token[1]), {_id(top[1]): _logprob(top[0]) for top in tops}) for token, tops in pairs]
    return Answer(positions, info.get("completion_tokens", len(positions)) != len(positions))


DIALECTS: dict[str, Dialect] = {
    "openai": Dialect("/completions", _ask_openai, _read_openai),
    "sglang": Dialect("/generate", _ask_sglang, _read_sglang),
}


def _by_key(tops: Sequence[Mapping[str, Any]]) -> dict[Key, float]:
    return {_key_of(top): _logprob(top["logprob"]) for top in tops}


def _key_of(entry: Mapping[str, Any]) -> Key:
    if "id" in entry:
        return _id(entry["id"])
    spelled = entry.get("bytes")
    if spelled and not isinstance(spelled, list):  # `bytes(3)` would be three zeros
        raise EndpointError(f"the answer has {shorten(spelled)} as the bytes of a token: a list of numbers is needed")
    return bytes(spelled) if spelled else _key(entry["token"])


def _id(value: Any) -> int:
    if type(value) is not int:
        raise EndpointError(f"the answer has {shorten(value)} as the id of a token: a whole number is needed")
    return value


def _logprob(value: Any) -> float:
    """Return a log-probability, from `LOWEST` to 0; raises `EndpointError` for any other value."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -inf < value <= ROUNDING:
        raise EndpointError(
            f"the answer has {shorten(value)} as a log-probability: finite numbers up to 0 are needed; "
            "check the options that the server was started with"
        )
    return min(0.0, float(max(value, LOWEST)))


def check_answer(answer: Answer, *, max_tokens: int) -> None:
    """Raise `EndpointError` for too many positions, or probabilities that add up to more than 1."""
    if len(answer.positions) > max_tokens:
        raise EndpointError(f"the answer has {len(answer.positions)} tokens, more than the {max_tokens} requested")
    for _, logprobs in answer.positions:
        mass = sum(map(exp, logprobs.values()))
        if mass > 1 + MASS_ROUNDING:
            raise EndpointError(
                f"the probabilities of the alternatives add up to {mass:.4g}, more than 1: they must be unmodified"
            )


def _key(token: str) -> Key:
    """Return the token of a string: an id for "token_id:5", b"" for a part of a character, which comes as U+FFFD."""
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
            f"the strings of the tokens, {b'|'.join(spelled)[:200]!r}, don't spell the text {text[:200]!r}: "
            "token ids are needed"
        )
