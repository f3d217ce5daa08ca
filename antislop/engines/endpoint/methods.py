"""Choose how bans are kept on a server that draws the tokens itself.

Rejecting draws again from the start of a violation. Thinning keeps a token with the share of its probability that the
ledger has left, and must know that probability in the distribution drawn from; once the server has told the likeliest
tokens of a place, one of them is drawn here instead, from what is left of them. A bias makes the server draw from what
is left; truncation and penalties act after it, so it is exact only without these. "Exact" refers to the distribution
that the server draws from, which is `generate`'s except where `StreamDialect.cuts_min_p_first` matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from antislop.core.loop import ALSO_TRIED, Sampling
from antislop.engines.endpoint.dialects import DIALECTS
from antislop.engines.endpoint.endpoint import EndpointMethod, Logprobs, Server, ServerFeatures
from antislop.engines.stream_source import SparseTable
from antislop.errors import InputError

ExactMethod: TypeAlias = Literal["reject", "thin", "bias"]
MANY_ALTERNATIVES = 256
"""Alternatives to request where a bias can't exclude them: nearly always all that truncation leaves."""
FURTHER_ALTERNATIVES = 1024
"""Alternatives to request where these are not enough: of what bans left, most is unknown, or almost nothing is left."""
REWINDS_BEFORE_LOGPROBS = 1
"""Rewinds to a position before log-probabilities are requested there: they cost up to 25 % of a server's speed."""
MAX_BIASED_TEMPERATURE = 4.0
"""Highest temperature at which a bias of −100 still makes a token negligible: exp(−100 / 4)."""
SERVER_TITLES: dict[Server, str] = {
    "vllm": "vLLM",
    "llama.cpp": "llama.cpp",
    "openai": "a server of an unknown kind",
}


@dataclass(frozen=True)
class MethodPlan:
    """The exact methods that a server and its settings allow.

    logprobs: the kind to request; None for rejecting alone.
    bias_limit: maximum number of biased tokens per request; None for any.
    top_logprobs: number of likeliest tokens to request where violations were, up to `max_top_logprobs`.
    further: the kind in which the server tells the model's own distribution; None if it tells no likeliest tokens.
    draws_together: several draws of one token take one request.
    """

    method: EndpointMethod
    logprobs: Logprobs | None
    can_thin: bool
    can_bias: bool
    bias_limit: int | None = None
    top_logprobs: int = 0
    max_top_logprobs: int = 0
    further: Logprobs | None = None
    rewinds_before_logprobs: int = 0
    draws_together: bool = False

    def choose(self, table: SparseTable) -> ExactMethod | Literal["here"]:
        """Return the cheapest way to draw at a place; "here" is from the alternatives that the server told."""
        if self.can_thin and self.method != "bias" and table.told and table.unknown <= table.subtracted:
            return "here"  # thinning would discard more tokens than are drawn among the unknown ones
        if table.touched and (not self.can_thin or self.method == "bias") and self.fits(table.biases()):
            return "bias"
        return "thin" if self.can_thin else "reject"

    def wants_more(self, table: SparseTable) -> bool:
        """Return whether more alternatives would save requests for unknown tokens."""
        is_cheap = self.can_bias and table.unknown <= table.mass_left() / 2
        return table.unknown > 0 and not is_cheap and self.top_logprobs < self.max_top_logprobs

    def fits(self, bias: Mapping[int, float]) -> bool:
        return self.can_bias and len(bias) <= (self.bias_limit or 2**31)


def plan_method(method: EndpointMethod, sampling: Sampling, features: ServerFeatures) -> MethodPlan:
    """Return the exact methods; raises `InputError` if the given method is not exact, or if none is."""
    _refuse_settings(sampling, features)
    logprobs = _find_logprobs(sampling, features)
    can_thin = sampling.do_sample and logprobs is not None
    obstacle = _find_obstacle(sampling, features, logprobs)
    if not sampling.do_sample and obstacle:
        raise InputError(
            f"greedy texts (do_sample=False) can't be exact on {SERVER_TITLES[features.server]} here, because "
            f"{obstacle}: sample, or use llama.cpp, or vLLM with its default --logprobs-mode"
        )
    if not sampling.do_sample and method in ("reject", "thin"):
        raise InputError(
            f"method={method!r} can't write greedy texts (do_sample=False), because a repeated draw is the same token: "
            "use method='auto'"
        )
    if method == "thin" and not can_thin:
        raise InputError(
            f"method='thin' needs {_name_logprobs(sampling)}, which this server does not return: use method='reject'"
        )
    if method == "bias" and obstacle:
        raise InputError(f"method='bias' is not exact here, because {obstacle}: use method='auto'")
    if method == "reject":
        return MethodPlan(method, None, can_thin=False, can_bias=False)
    can_bias = obstacle is None and method != "thin"
    alternatives = ALSO_TRIED if can_bias else MANY_ALTERNATIVES
    return MethodPlan(
        method,
        logprobs,
        can_thin=can_thin,
        can_bias=can_bias,
        bias_limit=features.bias_limit,
        top_logprobs=min(alternatives, features.max_top_logprobs),
        max_top_logprobs=features.max_top_logprobs,
        further=("raw" if "raw" in features.logprobs else logprobs) if features.max_top_logprobs else None,
        draws_together=features.server == "vllm",
        rewinds_before_logprobs=REWINDS_BEFORE_LOGPROBS if method == "auto" and sampling.do_sample else 0,
    )


def _refuse_settings(sampling: Sampling, features: ServerFeatures) -> None:
    """Refuse settings with which no method is exact."""
    title = SERVER_TITLES[features.server]
    for name in sampling.in_effect:
        if name in ("presence_penalty", "frequency_penalty"):
            raise InputError(
                f"{name} can't be exact on {title}, which counts the tokens of one answer, and the kept text is in the "
                "prompt after a rewind: leave it out, or use a model in this process"
            )
        if name not in DIALECTS[features.server].settings:
            other = "llama.cpp" if name in DIALECTS["llama.cpp"].settings else "a model in this process"
            raise InputError(
                f"{name} can't be followed on {title}, whose requests lack that field: leave it out, or use {other}"
            )
    if sampling.repetition_penalty != 1 and not features.penalizes_prompt:
        raise InputError(
            f"repetition_penalty can't be exact on {title}, which may not count the prompt, where the kept text is "
            "after a rewind: leave it out, or use vLLM or llama.cpp"
        )


def _find_logprobs(sampling: Sampling, features: ServerFeatures) -> Logprobs | None:
    """Return the kind of log-probabilities that the ledger needs; None if the server returns others, or none."""
    if not sampling.in_effect and "raw" in features.logprobs:
        return "raw"
    # The coin that a server throws for XTC changes its probabilities.
    has_drawn = "drawn" in features.logprobs and sampling.xtc_probability == 0
    return "drawn" if sampling.do_sample and has_drawn else None


def _find_obstacle(sampling: Sampling, features: ServerFeatures, logprobs: Logprobs | None) -> str | None:
    """Return why a bias would not be exact; None if it is."""
    if not features.has_bias:
        return "this server takes no logit_bias"
    if sampling.do_sample and sampling.xtc_probability > 0:
        return "the server throws a coin for XTC, and tells what is left after it"
    if logprobs is None:
        return f"it needs {_name_logprobs(sampling)}, which this server does not return"
    if sampling.truncates:
        return "top_k, top_p, min_p, typical_p and top_n_sigma act after the bias"
    if sampling.repetition_penalty != 1:
        return "repetition_penalty acts after the bias"
    if sampling.temperature > MAX_BIASED_TEMPERATURE:
        return f"a temperature above {MAX_BIASED_TEMPERATURE:g} weakens the lowest bias"
    return None


def _name_logprobs(sampling: Sampling) -> str:
    if not sampling.in_effect:
        return "the log-probabilities of the written tokens"
    return "the log-probabilities of the distribution drawn from (vLLM: --logprobs-mode processed_logprobs)"
