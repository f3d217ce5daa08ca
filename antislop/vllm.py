"""A logits processor for vLLM that biases the first token of a request, so that a rewind takes one request, not two.

    VLLM_USE_V2_MODEL_RUNNER=0 vllm serve MODEL --logits-processors antislop.vllm:FirstTokenBias

vLLM imports it, so antislop must be installed beside vLLM: `pip install --no-deps antislop`; this module needs no other
package. It is for vLLM's V1 model runner, which the environment variable chooses where another one is the default. vLLM
refuses custom logits processors with speculative decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from antislop.errors import InputError

try:
    from vllm.v1.sample.logits_processor import LogitsProcessor
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    LogitsProcessor = object  # without vLLM the class can be read and tested, but not used

__all__ = ["FirstTokenBias"]

LARGEST_BIAS = 1e30  # a float32 is finite up to 3e38, and a sum must be as well


class FirstTokenBias(LogitsProcessor):  # type: ignore[misc]
    """Add a request's bias to the logits of its first generated token, and leave all later tokens as they are.

    In a request: `"vllm_xargs": {"first_ids": [17, 290], "first_bias": [-1.5, -100.0]}`. The bias comes before
    penalties, temperature and truncation, like `logit_bias`, but is not clamped to ±100. An id beyond the vocabulary
    has no effect. Requests without these two arguments are unchanged. Invalid arguments are answered with status 400.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise `InputError` if a request has one of the two arguments alone, or values that can't be used."""
        read_bias(sampling_params.extra_args)

    def __init__(self, vllm_config: Any, device: torch.device, _: bool) -> None:
        self._vocabulary_size = int(vllm_config.model_config.get_vocab_size())
        self._device = device
        self._waiting: dict[int, tuple[dict[int, float], Sequence[int]]] = {}
        """By row of the batch: the bias of a request without output, and its list of output tokens, which grows."""
        self._fill()

    def is_argmax_invariant(self) -> bool:
        """Return False: a bias changes which token is the likeliest."""
        return False

    def update_state(self, batch_update: Any | None) -> None:
        """Follow the requests that entered, left and moved since the last step, and drop those that have output.

        batch_update: vLLM's `BatchUpdate`, whose parts apply in the order removed, added, moved; None for no change.
        """
        if batch_update is not None:
            self._follow(batch_update)
        finished = [row for row, (_, output) in self._waiting.items() if output]
        for row in finished:
            del self._waiting[row]
        if batch_update is not None or finished:
            self._fill()

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits [requests, vocabulary], changed in place."""
        if self._waiting:
            logits[self._rows, self._ids] += self._biases
        return logits

    def _follow(self, batch_update: Any) -> None:
        for row in batch_update.removed:
            self._waiting.pop(row, None)
        for row, params, _, output in batch_update.added:
            self._waiting.pop(row, None)
            if bias := self._keep_known(read_bias(params.extra_args)):
                self._waiting[row] = bias, output
        for source, target, direction in batch_update.moved:
            moved, replaced = self._waiting.pop(source, None), self._waiting.pop(target, None)
            if moved is not None:
                self._waiting[target] = moved
            if replaced is not None and direction.name == "SWAP":
                self._waiting[source] = replaced

    def _keep_known(self, bias: Mapping[int, float]) -> dict[int, float]:
        return {token: value for token, value in bias.items() if token < self._vocabulary_size}

    def _fill(self) -> None:
        entries = [(row, *entry) for row, (bias, _) in self._waiting.items() for entry in bias.items()]
        rows, ids, biases = zip(*entries, strict=True) if entries else ((), (), ())
        self._rows = torch.tensor(rows, dtype=torch.int64, device=self._device)
        self._ids = torch.tensor(ids, dtype=torch.int64, device=self._device)
        self._biases = torch.tensor(biases, dtype=torch.float32, device=self._device)


def read_bias(extra_args: Mapping[str, Any] | None) -> dict[int, float]:
    """Return the bias of a request by token, empty if it has none. Raises `InputError`.

    >>> read_bias({"first_ids": [17, 290], "first_bias": [-1.5, 2]})
    {17: -1.5, 290: 2.0}
    """
    ids, biases = ((extra_args or {}).get(name) for name in ("first_ids", "first_bias"))
    if ids is None and biases is None:
        return {}
    if not isinstance(ids, list) or not isinstance(biases, list) or len(ids) != len(biases):
        raise InputError("vllm_xargs: first_ids and first_bias must be two lists of the same length")
    for token in ids:
        if type(token) is not int or token < 0:
            raise InputError(f"vllm_xargs: first_ids contains {token!r}; token ids, 0 or more, were expected")
    if len(set(ids)) < len(ids):
        raise InputError("vllm_xargs: first_ids contains a token twice; add its biases up")
    for bias in biases:
        if type(bias) not in (int, float) or not isfinite(bias) or abs(bias) > LARGEST_BIAS:
            raise InputError(f"vllm_xargs: first_bias contains {bias!r}; numbers from -1e30 to 1e30 were expected")
    return dict(zip(ids, map(float, biases), strict=True))
