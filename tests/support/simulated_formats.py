"""The routes of three kinds of servers over a `SimulatedEngine`: each request's answer, or the events of its stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.simulated_engine import Draw, Floats, RequestRefused, SimulatedEngine

STREAMED_PATHS = ("/v1/completions", "/completion")
DONE = "[DONE]"


def answer_get(engine: SimulatedEngine, path: str) -> Any:
    """Answer a request without a body."""
    if path == "/v1/models" and engine.kind == "llama.cpp":
        return {"data": [{"id": "tiny", "owned_by": "llamacpp", "meta": {"n_ctx": engine.context_length}}]}
    if path == "/v1/models":
        owner = engine.owner if engine.kind == "openai" else engine.kind
        card: dict[str, Any] = {"id": "tiny", "owned_by": owner}
        if engine.kind != "openai":
            card["max_model_len"] = engine.context_length
        return {"object": "list", "data": [card]}
    raise RequestRefused(404, "Not Found")


def answer_post(engine: SimulatedEngine, path: str, body: Mapping[str, Any]) -> Any:
    """Answer a request that is not streamed."""
    if path == "/tokenize" and engine.kind != "openai":
        text = body["content" if engine.kind == "llama.cpp" else "prompt"]
        return {"tokens": engine.tokenizer(text, add_special_tokens=False)["input_ids"]}
    if path == "/v1/completions" and body.get("n", 1) > 1:
        choices = []
        for index in range(body["n"]):
            (answer,) = stream(engine, path, {**body, "n": 1, "seed": body["seed"] + index}, whole=True)
            choices.append({**answer["choices"][0], "index": index})
        return {"choices": choices}
    (answer,) = stream(engine, path, body, whole=True)
    return answer


def stream(engine: SimulatedEngine, path: str, body: Mapping[str, Any], *, whole: bool = False) -> Iterator[Any]:
    """Yield the events of a stream, or the one whole answer."""
    served = {"vllm": "/v1/completions", "openai": "/v1/completions", "llama.cpp": "/completion"}
    if path != served[engine.kind]:
        raise RequestRefused(404, "Not Found")
    engine.asked.append((path, body))
    if reason := engine.refuse(body):
        raise RequestRefused(422, reason)
    write = {"vllm": _Vllm, "openai": _Openai, "llama.cpp": _LlamaCpp}[engine.kind](engine, body)
    yield from write.events(whole=whole)


def _read_bias(engine: SimulatedEngine, bias: Mapping[str, float] | None) -> dict[int, float]:
    ids = {int(token): value for token, value in (bias or {}).items()}
    if engine.kind == "llama.cpp":
        return {token: value for token, value in ids.items() if token < engine.size}
    if engine.bias_limit is not None and len(ids) > engine.bias_limit:
        raise RequestRefused(400, f"logit_bias has {len(ids)} tokens, more than {engine.bias_limit}")
    if any(not 0 <= token < engine.size for token in ids):
        raise RequestRefused(400, "token_id in logit_bias is out of vocabulary")
    return ids


class _Writer:
    """Reads a body, as far as it is the same for all kinds, and draws."""

    def __init__(self, engine: SimulatedEngine, body: Mapping[str, Any]) -> None:
        self.engine, self.body = engine, body
        self.reason = "length"

    def draws(self, prompt: Any, params: Mapping[str, Any], count: int, seed: Any) -> Iterator[Draw]:
        if isinstance(prompt, str):
            prompt = self.engine.tokenizer(prompt)["input_ids"]
        elif not self.engine.takes_ids:
            raise RequestRefused(400, "json: cannot unmarshal array into Go struct field .prompt of type string")
        if not isinstance(prompt, list) or not prompt or any(not 0 <= token < self.engine.size for token in prompt):
            raise RequestRefused(400, "prompt contains invalid tokens")
        if len(prompt) + (count if self.engine.kind == "vllm" else 1) > self.engine.context_length:
            raise RequestRefused(400, f"maximum context length is {self.engine.context_length} tokens")
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
        asked = {name: params[name] for name in names if params.get(name) is not None}
        others = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "top_n_sigma", "min_keep")
        others += ("xtc_probability", "xtc_threshold", "order", "penalized")
        asked |= {name: params[name] for name in others if name in params}
        asked["bias"] = _read_bias(self.engine, params.get("logit_bias"))
        for draw in self.engine.draw(prompt, asked, count=count, seed=0 if seed is None else seed):
            if draw.token in self.engine.end_tokens:
                self.reason = "stop"
            yield draw


def _likeliest(logprobs: Floats, count: int) -> list[int]:
    return [int(token) for token in (-logprobs).argsort(kind="stable")[:count]]


class _Vllm(_Writer):
    def events(self, *, whole: bool) -> Iterator[Any]:
        body = self.body
        draws = list if whole else iter
        parts = draws(self.draws(body["prompt"], body, body["max_tokens"], body.get("seed")))
        if whole:
            yield {"object": "text_completion", "choices": [self._choice(parts, self.reason)]}
            return
        yield from self._stream(parts)

    def _stream(self, draws: Iterator[Draw]) -> Iterator[Any]:
        """A slow reader gets several tokens per event, which depends on nothing but time: here two in each third."""
        waiting: list[Draw] = []
        for place, draw in enumerate(draws):
            waiting.append(draw)
            if place % 4 and self.reason == "length" and place + 1 < self.body["max_tokens"]:
                yield {"choices": [self._choice(waiting, None)]}
                waiting = []
        yield {"choices": [self._choice(waiting, self.reason)]}

    def _choice(self, draws: list[Draw], reason: str | None) -> dict[str, Any]:
        text = b"".join(self.engine.piece(draw.token) for draw in draws).decode(errors="replace")
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        if self.body.get("return_token_ids"):
            choice["token_ids"] = [draw.token for draw in draws]
        if self.body.get("logprobs") is not None:
            if self.body["logprobs"] > 20:
                raise RequestRefused(400, "Requested sample logprobs of more than 20")
            choice["logprobs"] = self._logprobs(draws)
        return choice

    def _logprobs(self, draws: list[Draw]) -> dict[str, Any]:
        told = [draw.drawn if self.engine.tells_drawn else draw.raw for draw in draws]
        tops = [
            {
                self._name(token): float(values[token])
                for token in [draw.token, *_likeliest(values, self.body["logprobs"])]
            }
            for draw, values in zip(draws, told, strict=True)
        ]
        return {
            "tokens": [self._name(draw.token) for draw in draws],
            "token_logprobs": [max(-9999.0, float(v[draw.token])) for draw, v in zip(draws, told, strict=True)],
            "top_logprobs": [{name: max(-9999.0, value) for name, value in top.items()} for top in tops],
        }

    def _name(self, token: int) -> str:
        if self.body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        return self.engine.piece(token).decode(errors="replace")


class _Openai(_Vllm):
    """Tells token texts, and no end tokens."""

    def _choice(self, draws: list[Draw], reason: str | None) -> dict[str, Any]:
        draws = [draw for draw in draws if draw.token not in self.engine.end_tokens]
        choice = super()._choice(draws, reason)
        is_named = self.engine.names_tokens and (self.engine.names_streamed or not self.body["stream"])
        return choice if is_named else {**choice, "logprobs": None}


class _LlamaCpp(_Writer):
    def events(self, *, whole: bool) -> Iterator[Any]:
        body = self.body
        params = {
            **body,
            "repetition_penalty": body.get("repeat_penalty", 1.0),
            "penalized": body.get("repeat_last_n", 64),
        }
        if "samplers" in body:
            params["order"] = ("bias", *body["samplers"])
        text, sent, ids, entries = b"", 0, list[int](), list[Any]()
        for draw in self.draws(body["prompt"], params, body.get("n_predict", 512), body.get("seed")):
            text += b"" if draw.token in self.engine.end_tokens else self.engine.piece(draw.token)
            ids.append(draw.token)
            if _is_incomplete(text):
                continue
            entries.append(self._entry(draw))
            event = {
                "content": text[sent:].decode(errors="replace"),
                "tokens": [draw.token],
                "stop": False,
                "tokens_predicted": len(ids),
                "completion_probabilities": [entries[-1]],
            }
            sent = len(text)
            if not whole:
                yield self._prune(event)
        end = {
            "content": text.decode(errors="replace") if whole else "",
            "tokens": ids if whole else [],
            "stop": True,
            "stop_type": "eos" if self.reason == "stop" else "limit",
            "tokens_predicted": len(ids),
        }
        yield self._prune(end | ({"completion_probabilities": entries} if whole else {}))

    def _prune(self, event: dict[str, Any]) -> dict[str, Any]:
        missing = set() if self.body.get("n_probs") else {"completion_probabilities"}
        return {name: value for name, value in event.items() if name not in missing}

    def _entry(self, draw: Draw) -> dict[str, Any]:
        is_drawn = self.body.get("post_sampling_probs")
        values = draw.drawn if is_drawn else draw.raw

        def tell(token: int) -> dict[str, Any]:
            named = {"id": token, "token": self.engine.piece(token).decode(errors="replace")}
            value = float(values[token])
            return {**named, "prob": 2.718281828459045**value} if is_drawn else {**named, "logprob": max(value, -1e30)}

        top = [tell(token) for token in _likeliest(values, self.body.get("n_probs", 0))]
        return tell(draw.token) | {"top_probs" if is_drawn else "top_logprobs": top}


def _is_incomplete(text: bytes) -> bool:
    """Return whether a text ends within a character, as llama.cpp's `validate_utf8` finds it."""
    for place, byte in enumerate(reversed(text[-4:]), 1):
        if (
            (byte >> 5 == 0b110 and place < 2)
            or (byte >> 4 == 0b1110 and place < 3)
            or (byte >> 3 == 0b11110 and place < 4)
        ):
            return True
    return False
