"""The file `custom_generate/generate.py` of a model's folder that brings its bans.

transformers calls `generate` in place of its own. The work is done by the package antislop:
https://github.com/antislop/antislop
"""

try:
    from antislop.engines.custom_generate.folder import generate, withhold_batching
except ImportError as error:
    raise ImportError(
        "this model's folder brings bans, which the package antislop obeys: pip install -U 'antislop-lm[hf]'"
    ) from error

__all__ = ["generate"]
withhold_batching()
