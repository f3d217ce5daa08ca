"""How servers of completions are asked for log-probabilities, and what they answer: plain values, no network.

Three servers and two ways to ask: `/v1/completions` of vLLM and llama.cpp's server, and SGLang's own `/generate`, whose
`/v1/completions` names tokens by their text only. The sources are their documentation:
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
"""Settings that leave a distribution as it is, sent because servers have other defaults."""
ROUNDING = 1e-3
"""How far above 0 a log-probability may be: some servers compute them with few bits."""
MASS_ROUNDING = 1e-2
"""How far above 1 the probabilities at one position may add up, for the same reason."""
LOWEST = -1e4
"""A log-probability that is 0 as a probability in every format; lower ones are raised to it, so that none overflows."""


class EndpointError(RuntimeError):
    """Raised if an endpoint gives no usable answer. No `InputError`: the same request may succeed later."""


class Position(NamedTuple):
    """The token that the server wrote at one position, and the natural log-probabilities there."""

    token: Key
    logprobs: dict[Key, float]


class Answer(NamedTuple):
    """The positions that the server wrote.

    has_gaps: positions may be missing, so that their numbers mean nothing. leaves_gaps: answers of this server can have
    gaps: llama.cpp leaves out tokens that end within a character. retries: of the request.
    """

    positions: list[Position]
    has_gaps: bool = False
    leaves_gaps: bool = False
    retries: int = 0


class Dialect(NamedTuple):
    """How one kind of server is asked, and how its answers are read.

    path: of the requests, after the base URL. ask: makes the body of a request from a prompt, a number of alternatives
    and the settings. read: makes an `Answer` of the parsed JSON; raises `EndpointError`, or any error of a lookup for
    an answer of another shape.
    """

    path: str
    ask: Callable[[list[int], int, dict[str, Any]], dict[str, Any]]
    read: Callable[[Any], Answer]


def _ask_openai(prompt: list[int], alternatives: int, settings: dict[str, Any]) -> dict[str, Any]:
    """`return_tokens_as_token_ids` is vLLM's; llama.cpp returns ids anyway."""
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
    told = choice.get("logprobs") or {}
    written = (answer.get("usage") or {}).get("completion_tokens")
    if "content" in told:
        positions = [Position(_key_of(each), _by_key(each["top_logprobs"])) for each in told["content"]]
        leaves_gaps = True
    elif told.get("top_logprobs"):
        each = zip(told["tokens"], told["top_logprobs"], strict=True)
        positions = [
            Position(_key(token), {_key(name): _logprob(own) for name, own in top.items()}) for token, top in each
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
    positions = [Position(_id(own[1]), {_id(top[1]): _logprob(top[0]) for top in tops}) for own, tops in each]
    return Answer(positions, told.get("completion_tokens", len(positions)) != len(positions))


DIALECTS: dict[str, Dialect] = {
    "openai": Dialect("/completions", _ask_openai, _read_openai),
    "sglang": Dialect("/generate", _ask_sglang, _read_sglang),
}


def _by_key(tops: Sequence[Mapping[str, Any]]) -> dict[Key, float]:
    return {_key_of(top): _logprob(top["logprob"]) for top in tops}


def _key_of(told: Mapping[str, Any]) -> Key:
    if "id" in told:
        return _id(told["id"])
    spelled = told.get("bytes")
    if spelled and not isinstance(spelled, list):  # `bytes` of a number is as many zeros
        raise EndpointError(f"the answer has {shorten(spelled)} as the bytes of a token: a list of them is needed")
    return bytes(spelled) if spelled else _key(told["token"])


def _id(told: Any) -> int:
    if type(told) is not int:
        raise EndpointError(f"the answer has {shorten(told)} as the id of a token: a whole number is needed")
    return told


def _logprob(told: Any) -> float:
    """Return a log-probability, from `LOWEST` to 0; raises `EndpointError` for any other value."""
    is_number = isinstance(told, (int, float)) and not isinstance(told, bool)
    if not is_number or not -inf < told <= ROUNDING:
        raise EndpointError(
            f"the answer has {shorten(told)} as a log-probability: finite numbers up to 0 are needed; "
            "look at how the server was started"
        )
    return min(0.0, float(max(told, LOWEST)))


def check_answer(answer: Answer, *, max_tokens: int) -> None:
    """Raise `EndpointError` for too many positions, or probabilities that add up to more than 1."""
    if len(answer.positions) > max_tokens:
        raise EndpointError(f"the answer has {len(answer.positions)} tokens, where {max_tokens} were asked for")
    for _, logprobs in answer.positions:
        mass = sum(map(exp, logprobs.values()))
        if mass > 1 + MASS_ROUNDING:
            raise EndpointError(
                f"the probabilities of the alternatives add up to {mass:.4g}, more than 1: the model's own are needed"
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
