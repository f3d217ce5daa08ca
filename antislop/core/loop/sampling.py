"""The settings by which tokens are drawn (`Sampling`), their ranges, and what is done about bans (`Policy`).

Each consumer has a table of the settings that it follows, with the consumer's own names for them: the options of the
command line, the fields of a server's bodies, the requests of `StreamDialect.settings`, and the processors of an
endpoint's sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from antislop.core.bans.refusals import sentence
from antislop.errors import InputError


class Limits(NamedTuple):
    """The range of a setting: of finite numbers, or of the lengths of tuples.

    expected: the last words of the error for a value out of range. is_open: whether `lowest` itself is out of range.
    """

    lowest: float
    highest: float
    expected: str
    is_open: bool = False

    def has(self, value: float | tuple[str, ...]) -> bool:
        number = len(value) if isinstance(value, tuple) else value
        is_low = number <= self.lowest if self.is_open else number < self.lowest
        return not is_low and number <= self.highest and number < inf


_PROBABILITY = "a probability up to 1 was expected"
_FACTOR = "a finite number above 0 was expected"
_PENALTY = "-100 to 100 was expected"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn; the defaults draw from the model's own distribution.

    temperature: 0 for the likeliest token.
    min_p, top_p, typical_p: probabilities, 0 to 1.
    top_k: number of tokens; 0 for all.
    repetition_penalty: divides the scores of tokens in prompt and text, as in `generate`.
    presence_penalty, frequency_penalty: as in OpenAI's API; they count generated tokens only.
    dry_…: of `DryLogitsProcessor`; a multiplier of 0 switches it off. breakers: strings where a repetition ends.
        By default, those of llama.cpp.
    xtc_…: of `XtcLogitsProcessor`; a probability of 0 switches it off.
    epsilon_cutoff, eta_cutoff, no_repeat_ngram_size, encoder_repetition_penalty: as in `generate`.
    top_n_sigma: keep tokens up to this many standard deviations below the highest score; 0 for all.
    min_keep: how many tokens each setting in `KEEPING` leaves at least, as in llama.cpp; 0 and 1 are the same.

    limits: the range of each setting, by its name.
    foreign: the settings that `generate` lacks. truncating: the settings that leave out tokens.

    Raises `InputError` for values out of range.
    """

    limits: ClassVar[Mapping[str, Limits]]
    foreign: ClassVar[frozenset[str]]
    truncating: ClassVar[frozenset[str]]

    temperature: Annotated[float, Limits(0, 100, "0 to 100 was expected")] = 1.0
    min_p: Annotated[float, Limits(0, 1, _PROBABILITY)] = 0.0
    top_p: Annotated[float, Limits(0, 1, _PROBABILITY, is_open=True)] = 1.0
    top_k: Annotated[int, Limits(0, inf, "a number of tokens was expected, 0 for all")] = 0
    typical_p: Annotated[float, Limits(0, 1, _PROBABILITY, is_open=True)] = 1.0
    repetition_penalty: Annotated[float, Limits(0, inf, _FACTOR, is_open=True)] = 1.0
    encoder_repetition_penalty: Annotated[float, Limits(0, inf, _FACTOR, is_open=True)] = 1.0
    no_repeat_ngram_size: Annotated[int, Limits(0, inf, "a number of tokens was expected, 0 for all")] = 0
    epsilon_cutoff: Annotated[float, Limits(0, 0.99, "0 to 0.99 was expected")] = 0.0
    eta_cutoff: Annotated[float, Limits(0, 0.99, "0 to 0.99 was expected")] = 0.0
    presence_penalty: Annotated[float, Limits(-100, 100, _PENALTY)] = 0.0
    frequency_penalty: Annotated[float, Limits(-100, 100, _PENALTY)] = 0.0
    dry_multiplier: Annotated[float, Limits(0, 100, "0 to 100 was expected")] = 0.0
    dry_base: Annotated[float, Limits(1, 100, "1 to 100 was expected")] = 1.75
    dry_allowed_length: Annotated[int, Limits(0, inf, "a number of tokens was expected")] = 2
    dry_penalty_last_n: Annotated[int, Limits(-1, inf, "a number of tokens was expected, -1 for all")] = -1
    dry_sequence_breakers: Annotated[tuple[str, ...], Limits(0, 64, "at most 64 were expected")] = ("\n", ":", '"', "*")
    top_n_sigma: Annotated[float, Limits(0, 100, "0 to 100 was expected")] = 0.0
    xtc_probability: Annotated[float, Limits(0, 1, _PROBABILITY)] = 0.0
    xtc_threshold: Annotated[float, Limits(0, 1, _PROBABILITY)] = 0.1
    min_keep: Annotated[int, Limits(0, inf, "a number of tokens was expected, 0 for no minimum")] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dry_sequence_breakers", tuple(self.dry_sequence_breakers))  # a journal has a list
        for name, limits in self.limits.items():
            if not limits.has(value := getattr(self, name)):
                raise InputError(f"{name} is {value!r}; {limits.expected}")

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> tuple[Sampling, dict[str, Any]]:
        """Split arguments of `generate` into settings and the others; a setting that is None has its default."""
        settings = {name: value for name, value in arguments.items() if name in cls.limits and value is not None}
        others = {name: value for name, value in arguments.items() if name not in {*cls.limits, "do_sample"}}
        if not arguments.get("do_sample", True):
            settings["temperature"] = 0.0
        elif settings.get("temperature") == 0:
            raise InputError("temperature is 0; write do_sample=False for the likeliest tokens")
        return cls(**settings), others

    @property
    def do_sample(self) -> bool:
        return self.temperature > 0

    @property
    def in_effect(self) -> dict[str, Any]:
        """The settings whose values differ from the defaults and therefore change which tokens are drawn."""
        changed = {name: value for name, value in vars(self).items() if value != getattr(Sampling, name)}
        if self.min_keep < 2 or KEEPING.isdisjoint(changed):
            changed.pop("min_keep", None)
        used = [name for name in changed if PARTS.get(name, name) in changed and name not in self.unused]
        return {name: changed[name] for name in used}

    @property
    def unused(self) -> frozenset[str]:
        """The settings that change nothing because the likeliest token is taken."""
        return frozenset() if self.do_sample else DRAWING

    @staticmethod
    def list_off(settings: Mapping[str, Any]) -> list[str]:
        """Return the settings without effect: `dry_base`, for example, if `dry_multiplier` is 0 or missing."""
        return [part for part, whole in PARTS.items() if settings.get(whole, 0) == 0]

    @property
    def truncates(self) -> bool:
        return not self.truncating.isdisjoint(self.in_effect)

    @property
    def generate_arguments(self) -> dict[str, Any]:
        """The arguments of `generate` that replace the model's generation config, without `foreign` settings."""
        names = [name for name in self.limits if name not in self.foreign]
        settings = {name: None if name in self.unused else getattr(self, name) for name in names}
        return {"do_sample": self.do_sample, **settings, "min_p": settings["min_p"] or None}

    def translate(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return settings under other names. names: the other name of each setting, by its name here."""
        return {other: getattr(self, name) for name, other in names.items()}


_HINTS = get_type_hints(Sampling, include_extras=True)
Sampling.limits = {each.name: _HINTS[each.name].__metadata__[0] for each in fields(Sampling)}
PARTS: Mapping[str, str] = {
    **{name: "dry_multiplier" for name in Sampling.limits if name.startswith("dry_") and name != "dry_multiplier"},
    "xtc_threshold": "xtc_probability",
}
"""By the name of a setting, the name of the setting that switches it on."""
_OWN = ("presence_penalty", "frequency_penalty", "dry_multiplier", "top_n_sigma", "xtc_probability", "min_keep")
Sampling.foreign = frozenset({*_OWN, *PARTS})
_CUTS = ("min_p", "top_p", "top_k", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "xtc_probability")
Sampling.truncating = frozenset(_CUTS)
KEEPING = Sampling.truncating - {"top_k", "top_n_sigma"}
"""The truncating settings that leave at least `min_keep` tokens."""
DRAWING = Sampling.truncating | {"temperature", "xtc_threshold", "min_keep"}
"""The settings that change no greedy text."""


# -- bans --------------------------------------------------------------------------------------------------------------

Method = Literal["exact", "token", "text"]
"""Where a violation leads back: "exact" to its start; "token" also, by the first-token rule; "text" to the text's."""
OnExhausted = Literal["concede", "stop", "raise"]

MAX_REWINDS = 100
REJECTION_FACTOR = 10
"""How much higher the limits of plain rejection are, which may draw the same phrase again."""
MASS_FLOOR = 1e-3
PROBABILITY_FLOOR = 1e-4


@dataclass(frozen=True)
class Policy:
    """Whether to sample, how bans are kept, and limits on rewinds.

    max_rewinds: most rewinds to one position; with method="text", most rewinds of one text.
    max_withdrawn_ratio: most withdrawn tokens, as a multiple of `max_new_tokens`; no limit with method="text".
    mass_floor: if bans leave less than this share of a distribution, the rest may be noise.
    probability_floor: below `mass_floor`, tokens less likely than this under the model are not drawn.
    """

    do_sample: bool
    method: Method
    on_exhausted: OnExhausted
    max_rewinds: int = MAX_REWINDS
    max_withdrawn_ratio: float = 16
    mass_floor: float = MASS_FLOOR
    probability_floor: float = PROBABILITY_FLOOR

    def __post_init__(self) -> None:
        for name, choices in (("method", get_args(Method)), ("on_exhausted", get_args(OnExhausted))):
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")
        if isinstance(self.max_rewinds, bool) or not isinstance(self.max_rewinds, int) or self.max_rewinds < 0:
            raise InputError(sentence("limit of rewinds", limit=self.max_rewinds))
        for name in ("mass_floor", "probability_floor"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise InputError(f"{name} is {share!r}; it is a share of probability, 0.0 to 1.0")

    def for_rejection(self) -> Policy:
        """Return this policy with higher limits, for texts whose probabilities are unknown."""
        return replace(
            self,
            max_rewinds=self.max_rewinds * REJECTION_FACTOR,
            max_withdrawn_ratio=self.max_withdrawn_ratio * REJECTION_FACTOR,
        )


_SEED_STEP = 2654435769


def seed_of(seed: int, number: int) -> int:
    """Return the seed of text `number` of several that are drawn from one seed."""
    return seed + number * _SEED_STEP  # differs in the lower 32 bits, all that torch's CPU generators read
