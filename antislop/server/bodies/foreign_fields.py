"""Fields of other servers: translated, accepted where they change nothing, or refused.

SillyTavern sends some 60 fields to any server, most of them switched off.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from antislop.server.request_errors import RequestError, shorten

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
    "add_special_tokens": "add_bos_token",
    "template_vars": "chat_template_kwargs",
}
"""Other names of fields."""

HARMLESS = {
    "user",
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
    "min_keep",
    "quiet",
    "trim_stop",
    "skip_special_tokens",
    "spaces_between_special_tokens",
}
"""Fields that don't change the text: names of users and clients, hints about speed, and internals of other servers."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
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
    "top_a": (0,),
    "tfs": (1,),
    "tfs_z": (1,),
    "skew": (0,),
    "nsigma": (0,),
    "top_n_sigma": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "mirostat": (0, False),
    "mirostat_mode": (0,),
    "dynamic_temperature": (False,),
    "dynatemp_range": (0,),
    "min_temp": (1,),
    "max_temp": (1,),
    "smoothing_factor": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "adaptive_target": (-1, -0.01, 0),
    "repetition_decay": (0,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "penalty_alpha": (0,),
    "num_beams": (1,),
    "length_penalty": (0, 1),
    "early_stopping": (False,),
    "guidance_scale": (1,),
    "cfg_scale": (1,),
    "negative_prompt": ("",),
    "do_sample": (True,),
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

DEPENDENT = {
    "audio": "modalities",
    "mirostat_tau": "mirostat_mode",
    "mirostat_eta": "mirostat_mode",
    "dynatemp_low": "dynamic_temperature",
    "dynatemp_high": "dynamic_temperature",
    "dynatemp_exponent": "dynamic_temperature",
    "temp_exponent": "max_temp",
    "smoothing_curve": "smoothing_factor",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier",
    "dry_range": "dry_multiplier",
    "xtc_threshold": "xtc_probability",
    "adaptive_decay": "adaptive_target",
}
"""Sub-options of an unsupported field; ignored, since that field must be off."""

IGNORED = {
    "temperature_last": (False,),
    "sampler_order": ([], [6, 0, 1, 3, 4, 2, 5]),
    "rep_pen_range": (0, -1),
    "repetition_range": (0, -1),
    "penalty_range": (0, -1),
    "repetition_penalty_range": (0, -1),
    "repeat_last_n": (0, -1),
    "rep_pen_slope": (0, 1),
    "n_probs": (0,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields that many clients send and that are ignored, with the values for which that makes no difference; a header of
the answer names those with other values."""


def translate_fields(body: dict[str, Any], names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields `names` of a body, by these names, and the names of ignored ones. Raises `RequestError`."""
    kept = {name: value for name, value in body.items() if name in names}
    ignored = []
    neutral = NEUTRAL | OF_CHATS
    for name, value in body.items():
        meant = ALIASES.get(name, name)
        if name in names or name in HARMLESS or name in DEPENDENT:
            continue
        if meant in names:
            _merge(kept, name, value)
        elif name in IGNORED:
            ignored += [] if _is_among(value, IGNORED[name]) else [name]
        elif meant not in neutral:
            raise RequestError(400, f"the field {name[:60]!r} is unknown: leave it out", param=name[:60])
        elif not _is_among(value, neutral[meant]):
            raise RequestError(
                400, f"{name} is {shorten(value)}, but is not supported: leave it out, or switch it off", param=name
            )
    return kept, ignored


def _merge(kept: dict[str, Any], alias: str, value: Any) -> None:
    name = ALIASES[alias]
    if name in kept and kept[name] != value:
        raise RequestError(400, f"{name} and {alias} mean the same and differ: pass one of them", param=alias)
    kept[name] = value


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether a value is one of some; 0.0 equals 0, but False does not."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)
