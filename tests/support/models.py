"""Tiny transformers models with random weights, large enough that positions matter, and hooks that watch them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LETTERS = "abcdefghij .,'\n"
SPECIAL = ["<s>", "</s>"]
VOCABULARY = 48
WINDOW = 12

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}

FAMILIES = ("llama", "gpt2", "gemma3", "mistral")
EACH_FAMILY = ("llama", "gemma3", *(pytest.param(family, marks=pytest.mark.slow) for family in ("gpt2", "mistral")))
"""Parameters of tests: full attention and a window are quick."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 2 special tokens, 15 characters and pairs of them: texts have many tokenizations."""
    alphabet = [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(c)[0][0] for c in LETTERS
    ]
    pairs = [(a, b) for a in alphabet[:6] for b in alphabet[:6]][: VOCABULARY - len(SPECIAL) - len(alphabet)]
    tokens = [*SPECIAL, *alphabet, *(a + b for a, b in pairs)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def build_spaced_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer as SentencePiece makes them, with the letters of `build_tokenizer`.

    The space before a token is part of it, and one in front of a text is put there by encoding and removed by decoding.
    """
    letters = LETTERS.replace(" ", "▁")
    pairs = [("▁", letter) for letter in letters[:9]]
    tokens = [*SPECIAL, *letters, *(a + b for a, b in pairs)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def build_model(family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of two layers; its windows, if any, are shorter than the texts of the tests."""
    torch.manual_seed(seed)
    if family == "llama":
        model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**_SHAPE))
    elif family == "gpt2":
        ids = {name: _SHAPE[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=512, **ids)
        )
    elif family == "gemma3":
        model = Gemma3ForCausalLM(
            Gemma3TextConfig(
                **_SHAPE,
                head_dim=8,
                sliding_window=WINDOW,
                query_pre_attn_scalar=8,
                layer_types=["sliding_attention", "full_attention"],
            )
        )
    elif family == "mistral":
        model = MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=WINDOW))
    else:
        raise ValueError(family)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight *= 8  # or the model is blind to positions, and wrong ones pass
    return model.eval().requires_grad_(False).to(dtype)


@contextmanager
def poisoned(model: PreTrainedModel, token: int) -> Iterator[None]:
    """Make a model return NaN once it has read a token, and in all states that depend on it."""

    def poison(_: torch.nn.Module, read: tuple[torch.Tensor], embedded: torch.Tensor) -> torch.Tensor:
        return embedded.masked_fill((read[0] == token)[..., None], torch.nan)

    hook = model.get_input_embeddings().register_forward_hook(poison)
    try:
        yield
    finally:
        hook.remove()


def spell(alphabet: str, **special: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with one token for each character of its alphabet, which stands for a byte."""
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def read_state(model: nn.Module) -> list[tuple[Any, ...]]:
    """Return each module's hooks of all kinds and its mode, to compare before and after."""
    return [
        (path, module.training, *(tuple(value) for key, value in sorted(vars(module).items()) if "hooks" in key))
        for path, module in model.named_modules()
    ]


@contextmanager
def counted_calls(model: nn.Module) -> Iterator[list[None]]:
    """Count the forward passes inside: the length of the list."""
    calls: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(None))
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def failing(module: nn.Module) -> Iterator[None]:
    """Make a module raise `ZeroDivisionError` when it is called."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    handle = module.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()
