"""The releases of transformers that were tested, and a check of the installed release.

The check runs once, when this module is imported, which `private` does before it imports private names.
"""

from __future__ import annotations

import warnings
from pkgutil import resolve_name

import transformers

from antislop.errors import InputError

OLDEST, NEWEST = "5.19", "5.24"
"""The oldest and newest release that .ci/versions tests. The package's requirements don't exclude newer releases."""
NEEDED = (
    "cache_utils:LinearAttentionCacheLayerMixin",
    "cache_utils:LinearAttentionLayer",
    "generation.candidate_generator:EarlyExitCandidateGenerator",
    "generation.utils:GenerationMixin._get_candidate_generator",
    "generation.utils:GenerationMixin._get_logits_processor",
    "generation.utils:GenerationMixin._get_stopping_criteria",
    "generation.utils:GenerationMixin._optimize_model_for_decode",
    "generation.utils:GenerationMixin._prefill",
    "generation.utils:GenerationMixin._supports_default_dynamic_cache",
    "generation.utils:GenerationMixin._valid_auto_compile_criteria",
    "generation.utils:MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL",
    "utils.chat_parsing.response_templates:load_response_template",
    "utils.chat_parsing:ResponseParser._accumulate",
    "utils.chat_parsing:ResponseParser._close_current",
    "utils.chat_parsing:ResponseParser._open_explicit",
    "utils.chat_parsing:ResponseParser._reset_to_implicit",
    "utils.chat_template_utils:_compile_jinja_template",
)


def check_release() -> None:
    """Raise `InputError` if transformers lacks one of the names `NEEDED`; warn if its release was not tested."""
    release = transformers.__version__
    for name in NEEDED:
        try:
            resolve_name(f"transformers.{name}")
        except (ImportError, AttributeError) as error:
            sentence = f"transformers {release} has no {name.replace(':', '.')}, which antislop needs"
            raise InputError(f"{sentence}: install a release from {OLDEST} to {NEWEST}") from error
    oldest, installed, newest = ([*map(int, number.split(".")[:2])] for number in (OLDEST, release, NEWEST))
    if not oldest <= installed <= newest:
        sentence = f"antislop was tested with transformers {OLDEST} to {NEWEST}, not with {release}"
        warnings.warn(f"{sentence}: compare a text with one of model.generate before you rely on it", stacklevel=2)


check_release()
