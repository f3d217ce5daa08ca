"""Fields of other servers: translated, accepted where they change nothing, or refused.

SillyTavern sends some 60 fields to any server, most of them switched off.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from antislop.core.loop.sampling import PARTS, TRUNCATING, Sampling
from antislop.errors import suggest
from antislop.serve.request_errors import RequestError, shorten

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
"""Other names of fields."""

HARMLESS = {
    "user",
    "genkey",
    "metadata",
    "safety_identifier",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "api_type",
    "api_server",
    "legacy_api",
    "truncation_length",
    "num_ctx",
    "max_context_length",
    "cache_prompt",
    "include_reasoning",
    "max_tokens_second",
    "speculative_ngram",
    "generate_window",
    "quiet",
    "trim_stop",
    "skip_special_tokens",
    "spaces_between_special_tokens",
}
"""Fields that don't change the text: names of users and clients, hints about speed, and internals of other servers."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"], []),
    "moderation": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "min_tokens": (0,),
    "min_length": (0,),
    "ban_eos_token": (False,),
    "ignore_eos": (False,),
    "bypass_eos": (False,),
    "use_default_badwordsids": (False,),
    "allowed_tokens": ([], ""),
    "token_healing": (False,),
    "render_special": (False,),
    "memory": ("",),
    "images": ([],),
    "skew": (0,),
    "dynamic_temperature": (False,),
    "dynatemp_range": (0,),
    "min_temp": (1,),
    "max_temp": (1,),
    "smoothing_factor": (0,),
    "adaptive_target": (-1, -0.01, 0),
    "repetition_decay": (0,),
    "num_beams": (1,),
    "length_penalty": (0, 1),
    "early_stopping": (False,),
    "guidance_scale": (1,),
    "cfg_scale": (1,),
    "negative_prompt": ("",),
    "grammar": ("",),
    "grammar_string": ("",),
    "grammar_retain_state": (False,),
    "json_schema": ({},),
    "regex_pattern": ("",),
    "prompt_template": ("",),
}
"""Fields that are not supported, with the values that switch them off."""

OF_CHATS: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": ("none",),
    "chat_template_kwargs": ({},),
    "response_prefix": ("",),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Fields that only chats have, with the values that switch them off in completions."""

ADVICE = {
    "messages": "send it to /v1/chat/completions",
    "prompt": "send it to /v1/completions",
    "bans": "pass phrases as banned_strings, and regexes as banned_regex",
}
"""For fields that belong to the other route, or that are named otherwise here."""

DEPENDENT = {
    "audio": "modalities",
    "mirostat_tau": "mirostat_mode",
    "mirostat_eta": "mirostat_mode",
    "dynatemp_low": "dynamic_temperature",
    "dynatemp_high": "dynamic_temperature",
    "dynatemp_exponent": "dynamic_temperature",
    "temp_exponent": "max_temp",
    "smoothing_curve": "smoothing_factor",
    "adaptive_decay": "adaptive_target",
}
"""Sub-options of an unsupported field; ignored, since that field is off or ignored."""

IGNORED = {
    "rep_pen_range": (0, -1),
    "repetition_range": (0, -1),
    "penalty_range": (0, -1),
    "repetition_penalty_range": (0, -1),
    "repeat_last_n": (0, -1),
    "rep_pen_slope": (0, 1),
    "top_a": (0,),
    "tfs": (1,),
    "tfs_z": (1,),
    "mirostat": (0, False),
    "mirostat_mode": (0,),
    "penalty_alpha": (0,),
    "n_probs": (0,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields that many clients send and that are ignored, with the values for which that makes no difference; a header of
the answer names those with other values."""


ORDERS = ("sampler_order", "sampler_priority", "samplers", "samplers_priorities", "temperature_last")
"""Fields that ask for an order of settings."""
OWN_ORDER = [
    *("encoder_repetition_penalty", "repetition_penalty", "no_repeat_ngram_size", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff", "xtc_probability"),
]
"""The only order of settings here."""
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
"""The settings of a step, by its name in an order."""


def keeps_order(name: str, order: Any, sampling: Sampling) -> bool:
    """Return whether the order that a field of `ORDERS` asks for is ours, as far as its settings are in effect."""
    if name == "temperature_last":
        order = [] if order is False else [*(each for each in OWN_ORDER if each in TRUNCATING), "temperature"]
    if not isinstance(order, list) or not all(isinstance(step, int | str) for step in order):
        return False
    settings = (setting for step in order for setting in _STEPS.get(step, ()))
    places = [OWN_ORDER.index(setting) for setting in settings if setting in sampling.in_effect]
    return places == sorted(places)


def translate_fields(body: dict[str, Any], names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields `names` of a body, by these names, and the names of ignored ones. Raises `RequestError`."""
    kept = {name: value for name, value in body.items() if name in names}
    ignored = []
    neutral = NEUTRAL | OF_CHATS
    for name, value in body.items():
        meant = ALIASES.get(name, name)
        if name in names or name in HARMLESS or name in DEPENDENT or name in ORDERS:
            continue
        if meant in names:
            _merge(kept, name, value)
        elif name in IGNORED:
            ignored += [] if _is_among(value, IGNORED[name]) else [name]
        elif meant not in neutral:
            advice = suggest(name, names, advice=ADVICE.get(name, "leave it out"), aliases=ALIASES)
            raise RequestError(400, f"the field {name[:60]!r} is unknown: {advice}", param=name[:60])
        elif not _is_among(value, neutral[meant]):
            raise RequestError(
                400, f"{name} is {shorten(value)}, but is not supported: leave it out, or switch it off", param=name
            )
    off = [part for part, whole in PARTS.items() if kept.get(whole, 0) == 0]
    return {name: value for name, value in kept.items() if name not in off}, ignored


def _merge(kept: dict[str, Any], alias: str, value: Any) -> None:
    name = ALIASES[alias]
    if name in kept and kept[name] != value:
        raise RequestError(400, f"{name} and {alias} mean the same and differ: pass one of them", param=alias)
    kept[name] = value


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether a value is one of some; 0.0 equals 0, but False does not."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)
