"""What an evaluation measures of arms beside `metrics.METRICS`: hits, likelihood, costs, and each against plain."""

from __future__ import annotations

from typing import NamedTuple

from antislop.metrics.metrics import Metric

_OWN = "this project"

LISTS = ("made_from", "held_out", "held_out_only")
"""The lists whose hits are counted, as far as they are given."""


class Ratio(NamedTuple):
    """A quantity that is a sum over texts by another one. metric: what it is. above, below: names of the sums."""

    metric: Metric
    above: str
    below: str
    factor: float = 1


LIST_TITLES = {
    "made_from": "hits of the list",
    "held_out": "hits of the held-out list",
    "held_out_only": "hits of the held-out list alone",
}
_LIST_ABOUT = {
    "made_from": "occurrences of the bans under which the arms were written",
    "held_out": "occurrences of a list that was made from other texts, entries that both have included",
    "held_out_only": "occurrences of what is on the held-out list and not on the list of the arms",
}
RATIOS = (
    *(
        Ratio(Metric(name, LIST_TITLES[name], "per 1,000 words", _LIST_ABOUT[name], _OWN), name, "words", 1000)
        for name in LISTS
    ),
    Ratio(
        Metric(
            "nll",
            "negative log-likelihood",
            "nats per token",
            "−log p of the kept tokens under the model without bans, at temperature 1, given the original prompt",
            _OWN,
        ),
        "nll",
        "tokens",
    ),
    Ratio(
        Metric("violations", "violations", "per 1,000 tokens", "bans that were completed, per kept token", _OWN),
        "violations",
        "tokens",
        1000,
    ),
    Ratio(
        Metric("withdrawn", "withdrawn tokens", "% of drawn", "tokens taken back, of all that were drawn", _OWN),
        "withdrawn_tokens",
        "drawn",
        100,
    ),
    Ratio(
        Metric("conceded", "conceded bans", "per 1,000 tokens", "bans that stand for want of anything else", _OWN),
        "conceded",
        "tokens",
        1000,
    ),
    Ratio(
        Metric("passes", "forward passes", "per kept token", "passes a text took part in, its prompt's included", _OWN),
        "forward_passes",
        "tokens",
    ),
)
"""What is measured of each arm beside `metrics.METRICS`, in the order of tables."""

SUPPRESSION = tuple(
    Metric(
        f"{name}_suppressed",
        LIST_TITLES[name].replace("hits", "suppression"),
        "%",
        "100 · (1 − hits per 1,000 words / those of the plain arm)",
        _OWN,
    )
    for name in LISTS
)
EXCESS = Metric(
    "excess_nll", "excess negative log-likelihood", "nats per token", "that of the arm less that of the plain one", _OWN
)
PASSES = Metric(
    "passes_ratio",
    "forward passes",
    "× plain",
    "forward passes per kept token, divided by those of the plain arm",
    _OWN,
)

_FAR = "human standard deviations"
DISTANCE = Metric(
    "distance",
    "distance to human, overall",
    _FAR,
    "the root mean square of the distances of the metrics, see `antislop.metrics.human_distance.measure_distance`",
    _OWN,
)


def place(metric: Metric) -> Metric:
    """Return a metric's distance to human as a metric of its own; above 0, the texts have more of it than people's."""
    return Metric(f"{DISTANCE.name}_{metric.name}", metric.title, _FAR, "less the human value, by its spread", _OWN)
