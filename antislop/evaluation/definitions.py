"""The metrics of an evaluation beside `METRICS`: hits of lists, costs, and comparisons with the plain arm."""

from __future__ import annotations

from antislop.metrics.definitions import Metric, Ratio

LISTS = ("made_from", "held_out", "held_out_only")
"""The names of the lists whose hits are counted, if they are passed."""
LIST_TITLES = {
    "made_from": "hits of the list",
    "held_out": "hits of the held-out list",
    "held_out_only": "hits of the held-out list alone",
}
_LIST_ABOUT = {
    "made_from": "occurrences of the bans of the arms; of overlapping ones the first and longest",
    "held_out": "occurrences of a list made from other texts, including entries that are also in the arms' list",
    "held_out_only": "occurrences of entries of the held-out list that are not in the arms' list",
}
_UNKNOWN = "the outputs don't contain it"


def _define_cost(name: str, title: str, unit: str, about: str, ratio: Ratio) -> Metric:
    return Metric(name, title, unit, about, formula=ratio, missing=_UNKNOWN, undefined=f"no {ratio.below} to divide by")


LIST_METRICS = tuple(
    Metric(name, LIST_TITLES[name], "per 1,000 words", _LIST_ABOUT[name], formula=Ratio(name, "words", 1000, True))
    for name in LISTS
)
COST_METRICS = (
    _define_cost(
        "nll",
        "negative log-likelihood",
        "nats per token",
        "−log p of the kept tokens under the model without bans, at temperature 1, given the original prompt",
        Ratio("nll", "tokens"),
    ),
    _define_cost(
        "violations",
        "violations",
        "per 1,000 tokens",
        "completed bans, per kept token",
        Ratio("violations", "tokens", 1000, is_rate=True),
    ),
    _define_cost(
        "withdrawn",
        "withdrawn tokens",
        "% of drawn",
        "withdrawn tokens, of all drawn tokens",
        Ratio("withdrawn_tokens", "drawn", 100, is_rate=True),
    ),
    _define_cost(
        "conceded",
        "conceded bans",
        "per 1,000 tokens",
        "bans that stay in the text because no alternative was left",
        Ratio("conceded", "tokens", 1000, is_rate=True),
    ),
    _define_cost(
        "passes",
        "forward passes",
        "per kept token",
        "forward passes that included the text, with that over its prompt",
        Ratio("forward_passes", "tokens"),
    ),
)
"""Metrics of sums over `Output.costs`."""

SUPPRESSION = tuple(
    Metric(
        f"{name}_suppressed",
        LIST_TITLES[name].replace("hits", "suppression"),
        "%",
        "100 · (1 − hits per 1,000 words / those of the plain arm)",
        undefined="the plain texts contain no entry of the list",
    )
    for name in LISTS
)
EXCESS = Metric(
    "excess_nll",
    "excess negative log-likelihood",
    "nats per token",
    "negative log-likelihood of the arm minus that of the plain arm",
)
PASSES = Metric(
    "passes_ratio", "forward passes", "× plain", "forward passes per kept token, divided by those of the plain arm"
)

_DEVIATIONS = "human standard deviations"
DISTANCE = Metric(
    "distance",
    "distance to human, overall",
    _DEVIATIONS,
    "the root mean square of the distances of the metrics, see `antislop.metrics.human_distance.measure_distance`",
)


def distance_metric(metric: Metric) -> Metric:
    """Return the metric of the distance between a metric and its human value; above 0, the texts exceed it."""
    about = "its value minus the human value, divided by the standard deviation between human passages"
    return Metric(f"{DISTANCE.name}_{metric.name}", metric.title, _DEVIATIONS, about)
