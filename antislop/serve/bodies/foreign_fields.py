"""Fields of other servers' APIs: translate them, name them as ignored in a header of the answer, or refuse them.

SillyTavern sends some 80 fields to any server, most of them switched off.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from antislop.core.loop import Sampling
from antislop.serve.request_errors import RequestError

MAX_FIELDS = 256
"""The most fields of a body: each unknown field is compared with all known ones."""
SLIP = 0.88
"""The similarity to a known name from which an unknown name is a typing error, such as `tempreature`."""

ALIASES = {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "stopping_strings": "stop",
    "stop_sequence": "stop",
    "sampler_seed": "seed",
    "typical": "typical_p",
    "rep_pen": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "nsigma": "top_n_sigma",
    "dry_range": "dry_penalty_last_n",
    "add_special_tokens": "add_bos_token",
    "template_vars": "chat_template_kwargs",
}
"""Other servers' names of fields, with this server's names."""

_RULES = "the text would not keep to it, so leave it out; response_format takes a JSON schema"
_READ = "the model would not read it, so leave it out, or write it into the prompt"
_BANS = "pass phrases as banned_strings, regexes as banned_regex, and ids of tokens as custom_token_bans"
_BESIDE = "write its fields beside the others"
_CONTINUE = "pass continue_final_message to /v1/chat/completions"
REFUSED = {
    "allowed_tokens": _RULES,
    "format": _RULES,
    **dict.fromkeys(("suffix", "memory", "negative_prompt", "images", "chat_template", "prompt_template"), _READ),
    **dict.fromkeys(("messages", "tools", "response_prefix"), "send it to /v1/chat/completions"),
    "prefix": _CONTINUE,
    "prompt": "send it to /v1/completions",
    "functions": "send them as tools to /v1/chat/completions",
    **dict.fromkeys(("extra_body", "vllm_xargs", "generation_config", "options", "parameters"), _BESIDE),
    "bans": _BANS,
    "mode": 'send "instruct", or leave it out: there are no characters here, only the chat template',
}
"""Fields that are refused, each with what to do instead: if they were ignored, the text would look as if it followed
them. A field with a false or empty value isn't refused, nor is a field that the body's route reads."""
OWN_MODE = ("mode", "instruct")  # what text-generation-webui calls an answer by the chat template

_THINGS = "phrase|string|word|token|sequence|list|text|term|regex|pattern|expression|character|id"
_BANNING = (
    "ban|banned|banning|bad|block|blocked|black|deny|denied|disallow|disallowed|forbid|forbidden|prohibit|prohibited|"
    "exclude|excluded|avoid|suppress|suppressed|negative|unwanted|ignore|ignored"
)
_GRAMMARS = "grammar|ebnf|gbnf|lark|regex|guided|schema|structured|structural|constraint"
_RULE_NAMES = (
    ("stop|stopping", _THINGS, "stop takes the texts that end an answer"),
    (_BANNING, "eos", "the model's end token ends a text; logit_bias can exclude it by its id, with -100"),
    (_BANNING, _THINGS, _BANS),
    ("allow|allowed|white|force|forced|required", _THINGS, _RULES),
    ("bias", "bias", 'logit_bias takes biases, as {"id": bias}'),
    ("logit", "processor", "a request can't bring code: leave it out"),
    (_GRAMMARS, "backend|state|whitespace|lazy|trigger", None),  # about a grammar in another field
    (_GRAMMARS, _GRAMMARS, _RULES),
    ("continue", "continue", _CONTINUE),
)
"""(first words, second words, advice): in some server's API, a field whose name has one of the first and one of the
second words carries bans or rules. The advice says what to do instead; None: the field is harmless."""


def _find_rule(name: str) -> str | None:
    """Return what to do instead of sending a field that carries bans or rules; None for any other field.

    >>> _find_rule("badWordsIds") == _find_rule("phrase_bans")
    True
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|\W", "_", f"_{name}_").lower()
    parted = re.sub("(phrase|string|word|token|sequence|list)s?", r"_\1_", parted)  # badwordsids, blocklist
    for first, second, advice in _RULE_NAMES:
        if all(re.search(f"_({words})s?_", parted) for words in (first, second)):
            return advice
    return None


ORDERS = ("sampler_order", "sampler_priority", "samplers", "samplers_priorities", "temperature_last")
"""Fields that ask for an order in which sampling settings are applied."""
OWN_ORDER = [
    *("encoder_repetition_penalty", "repetition_penalty", "no_repeat_ngram_size", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff", "xtc_probability"),
]
"""The only order in which this server applies sampling settings."""
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_STEPS: dict[Any, tuple[str, ...]] = {name: (name,) for name in OWN_ORDER} | {
    "penalties": _PENALTIES,
    "no_repeat_ngram": ("no_repeat_ngram_size",),
    "dry": ("dry_multiplier",),
    "top_nsigma": ("top_n_sigma",),
    "top_p_top_k": ("top_k", "top_p"),
    "typ_p": ("typical_p",),
    "xtc": ("xtc_probability",),
    0: ("top_k",),  # KoboldCpp's numbers
    2: ("top_p", "min_p"),
    4: ("typical_p",),
    5: ("temperature",),
    6: _PENALTIES,
}
"""The settings that a step in a requested order applies, by the step's name or number."""


def keeps_order(name: str, order: Any, sampling: Sampling) -> bool:
    """Return whether the order in a field of `ORDERS` agrees with `OWN_ORDER` in all settings that are in effect."""
    if name == "temperature_last":
        order = [] if order is False else [*(each for each in OWN_ORDER if each in Sampling.truncating), "temperature"]
    if not isinstance(order, list) or not all(isinstance(step, int | str) for step in order):
        return False
    settings = (setting for step in order for setting in _STEPS.get(step, ()))
    places = [OWN_ORDER.index(setting) for setting in settings if setting in sampling.in_effect]
    return places == sorted(places)


def translate_fields(body: dict[str, Any], names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a body's known fields under their names in `names`, and ignored fields' names. Raises `RequestError`."""
    if len(body) > MAX_FIELDS:
        raise RequestError(400, f"the body has {len(body):,} fields; at most {MAX_FIELDS} are allowed: send fewer")
    kept = {name: value for name, value in body.items() if name in names}
    aliases = {alias: name for alias, name in ALIASES.items() if name in names}
    ignored = []
    for name, value in body.items():
        if name in names or name in ORDERS or (name, value) == OWN_MODE:
            continue
        if name in aliases:
            if kept.setdefault(aliases[name], value) != value:
                message = f"{aliases[name]} and {name} mean the same and differ: pass one of them"
                raise RequestError(400, message, param=name)
        elif name in REFUSED:
            if value:
                raise RequestError(400, f"{name} can't be followed: {REFUSED[name]}", param=name)
        elif near := get_close_matches(name[:60], (*names, *aliases), n=1, cutoff=SLIP):
            meant = aliases.get(near[0], near[0])
            raise RequestError(400, f"the field {name[:60]!r} is unknown: did you mean {meant}?", param=name[:60])
        elif advice := _find_rule(name[:60]):
            if value:
                raise RequestError(400, f"{name[:60]} can't be followed: {advice}", param=name[:60])
        elif value or isinstance(value, dict):  # an empty object may ask for something: `web_search_options`
            ignored.append(name)
    off = Sampling.list_off(kept)
    return {name: value for name, value in kept.items() if name not in off}, ignored
