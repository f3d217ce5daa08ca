"""Choose how bans are kept on a server that draws the tokens itself.

Three ways are exact. Rejecting draws again from the start of a violation, which needs nothing. Thinning keeps a token
with the share of its probability that the ledger has left, and asks again otherwise; it needs that probability, in the
distribution that the token was drawn from. A bias makes the server draw from what is left; it acts before truncation
and penalties, so it is exact only without these.

"Exact" refers to the distribution that the server itself draws from. It is that of `generate`, except on vLLM for
`top_p` together with `min_p`: vLLM cuts by `min_p` first (`StreamDialect.cuts_min_p_first`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from antislop.decoding.judge import ALSO_TRIED
from antislop.endpoint.sampling import Sampling
from antislop.endpoint.stream_source import SparseTable
from antislop.endpoint.streams.messages import Logprobs, ServerFeatures
from antislop.errors import InputError

ExactMethod: TypeAlias = Literal["reject", "thin", "bias"]
EndpointMethod: TypeAlias = Literal["auto", "reject", "thin", "bias", "alternatives"]
"""How a sampler keeps bans on a server; "auto" is the cheapest exact way at each token."""
HEAVY = 0.5
"""If less than this is left at a node, thinning would ask more than twice for a token."""
PATIENCE = 2
"""Most phrases are not written again at once, and log-probabilities cost a server up to a quarter of its speed."""
MAX_BIASED_TEMPERATURE = 4.0
"""Up to here the lowest bias leaves a token less than a probability of exp(-100 / 4) per likelier one."""


@dataclass(frozen=True)
class MethodPlan:
    """The exact ways that a server and its settings allow.

    logprobs: the kind of log-probability to request; None for rejecting alone. has_first_bias: a request may bias its
    first token only, so that one request does what otherwise takes two. alternatives: the number of likeliest tokens to
    request, of which many may complete the same ban; max_alternatives: the limit of the server. patience: rewinds to a
    position before log-probabilities are requested from there on; until then it is rejected. draws_together: several
    draws of one token take one request.
    """

    method: EndpointMethod
    logprobs: Logprobs | None
    can_thin: bool
    can_bias: bool
    bias_limit: int | None = None
    has_first_bias: bool = False
    alternatives: int = 0
    max_alternatives: int = 0
    patience: int = 0
    draws_together: bool = False

    def choose(self, table: SparseTable) -> ExactMethod:
        """Return the way to draw the next token at a node."""
        if not table.touched:
            return "thin" if self.can_thin else "reject"
        fits = self.can_bias and len(table.biases()) <= (self.bias_limit or 2**31)
        if fits and (not self.can_thin or self.method == "bias" or table.mass_left() < HEAVY):
            return "bias"
        return "thin" if self.can_thin else "reject"


def plan_method(method: EndpointMethod, sampling: Sampling, features: ServerFeatures) -> MethodPlan:
    """Return the ways that are exact with these settings on this server.

    Raises `InputError` if the method is not exact there, or if none is.
    """
    if method not in get_args(EndpointMethod):
        raise InputError(f"method is {method!r}; it is one of {', '.join(map(repr, get_args(EndpointMethod)))}")
    if sampling.repetition_penalty != 1 and not features.penalizes_prompt:
        raise InputError(
            "this server's repetition_penalty does not count the prompt, which contains the kept text after a rewind: "
            "leave repetition_penalty out"
        )
    logprobs = _find_logprobs(sampling, features)
    can_thin = sampling.do_sample and logprobs is not None
    cause = _find_obstacle(sampling, features, logprobs)
    if not sampling.do_sample and (cause or method in ("reject", "thin")):
        cause = cause or f"method={method!r} draws again, which writes the same"
        raise InputError(f"greedy texts need method='bias', and {cause}: use method='alternatives', or sample")
    if method == "thin" and not can_thin:
        raise InputError(f"method='thin' needs {_name(sampling)}, which this server does not return: use 'reject'")
    if method == "bias" and cause:
        raise InputError(f"method='bias' is not exact here: {cause}; use method='auto'")
    if method == "reject":
        return MethodPlan(method, None, can_thin=False, can_bias=False)
    can_bias = cause is None and method != "thin"
    return MethodPlan(
        method,
        logprobs,
        can_thin=can_thin,
        can_bias=can_bias,
        bias_limit=features.bias_limit,
        has_first_bias=features.has_first_bias,
        # A sampled text rarely returns to the same ban; a greedy one does so until other tokens are likelier.
        alternatives=0 if sampling.do_sample else ALSO_TRIED,
        max_alternatives=features.max_alternatives,
        draws_together=features.server == "vllm",
        patience=PATIENCE if method == "auto" and sampling.do_sample else 0,
    )


def _find_logprobs(sampling: Sampling, features: ServerFeatures) -> Logprobs | None:
    """Return the kind of log-probability that the ledger needs, if the server returns it."""
    is_plain = sampling.temperature in (0, 1) and not sampling.truncates and sampling.repetition_penalty == 1
    if is_plain and "raw" in features.logprobs:
        return "raw"
    has_drawn = "drawn" in features.logprobs and (features.has_truncated_logprobs or not sampling.truncates)
    return "drawn" if sampling.do_sample and has_drawn else None


def _find_obstacle(sampling: Sampling, features: ServerFeatures, logprobs: Logprobs | None) -> str | None:
    """Return why a bias would not be exact; None if it is."""
    if not features.has_bias:
        return "this server has no logit_bias"
    if logprobs is None:
        return f"it needs {_name(sampling)}, which this server does not return"
    if sampling.truncates:
        return "top_k, top_p, min_p and typical_p act after the bias"
    if sampling.repetition_penalty != 1:
        return "repetition_penalty acts after the bias"
    if sampling.temperature > MAX_BIASED_TEMPERATURE:
        return f"a temperature above {MAX_BIASED_TEMPERATURE:g} weakens the lowest bias"
    return None


def _name(sampling: Sampling) -> str:
    plain = Sampling(temperature=sampling.temperature if sampling.temperature == 0 else 1.0)
    if sampling == plain:
        return "the log-probabilities of the written tokens"
    return "the log-probabilities of the distribution drawn from (vLLM: --logprobs-mode processed_logprobs)"
