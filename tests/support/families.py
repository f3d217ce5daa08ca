"""Tiny models of every kind of layer with a memory, with random weights that are large enough that positions matter.

Windows and chunks are shorter than the texts of the tests. All models have the vocabulary of `models`, and so its
tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    BambaConfig,
    BartConfig,
    BloomConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    FalconH1Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MiniMaxConfig,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    OpenAIGPTConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2VLConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
    T5Config,
    XLNetConfig,
)

from tests.support.models import VOCABULARY, WINDOW

_IDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
_SMALL = {**_IDS, "hidden_size": 32, "num_hidden_layers": 2}
_SHAPE = {**_SMALL, "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 512}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {
    **_SHAPE,
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LOCAL = {**_GROUPED, "head_dim": 8, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_STATES = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64}

IMAGE = 0
"""The token that stands for a piece of an image; as bos it is never drawn in the tests."""


@dataclass(frozen=True)
class Family:
    """A configuration, and the factor by which its matrices are larger than at initialization.

    A larger factor makes a model surer and more dependent on positions; if it is too large, the model writes one token
    only, and bfloat16 is too imprecise.
    """

    config: PreTrainedConfig
    scale: float = 12.0


_FAMILIES = {
    "llama": Family(LlamaConfig(**_GROUPED)),
    "qwen3": Family(Qwen3Config(**_GROUPED, head_dim=8)),
    "mistral": Family(MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "gemma3": Family(Gemma3TextConfig(**_LOCAL, query_pre_attn_scalar=8), scale=10.0),
    "gpt2": Family(GPT2Config(**_IDS, n_embd=32, n_layer=2, n_head=4, n_positions=512)),
    "opt": Family(OPTConfig(**_SHAPE, ffn_dim=48, word_embed_proj_dim=32)),
    "bloom": Family(BloomConfig(**_IDS, hidden_size=32, n_layer=2, n_head=8), scale=16.0),
    # MPT's own default is to generate without a cache.
    "mpt": Family(
        MptConfig(**_IDS, d_model=32, n_heads=8, n_layers=2, expansion_ratio=2, max_seq_len=512, use_cache=True)
    ),
    "gpt-neox": Family(GPTNeoXConfig(**_SHAPE), scale=16.0),
    "gpt-neo": Family(
        GPTNeoConfig(
            **_IDS,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            intermediate_size=48,
            max_position_embeddings=512,
            attention_types=[[["global", "local"], 1]],
            window_size=WINDOW,
        )
    ),
    "falcon": Family(FalconConfig(**_SHAPE), scale=16.0),
    "falcon-alibi": Family(FalconConfig(**{**_SHAPE, "num_attention_heads": 8}, alibi=True), scale=24.0),
    "deepseek-v2": Family(DeepseekV2Config(**_LATENT)),
    "deepseek-v3": Family(DeepseekV3Config(**_LATENT)),
    "mixtral": Family(MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3-moe": Family(Qwen3MoeConfig(**_GROUPED, **_EXPERTS, head_dim=8, num_experts=4)),
    "gpt-oss": Family(GptOssConfig(**_LOCAL, num_local_experts=4, num_experts_per_tok=2, rope_parameters=_YARN)),
    "llama4": Family(
        Llama4TextConfig(
            **_GROUPED,
            head_dim=8,
            intermediate_size_mlp=48,
            num_local_experts=4,
            interleave_moe_layer_step=2,
            attention_chunk_size=WINDOW,
            layer_types=["chunked_attention", "full_attention"],
        )
    ),
    "qwen3-next": Family(
        Qwen3NextConfig(
            **_GROUPED,
            **_EXPERTS,
            head_dim=8,
            num_experts=4,
            shared_expert_intermediate_size=16,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            layer_types=["linear_attention", "full_attention"],
        )
    ),
    "mamba": Family(MambaConfig(**_SMALL, state_size=8), scale=2.0),
    "mamba2": Family(
        Mamba2Config(**_SMALL, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8), scale=2.0
    ),
    "lfm2": Family(Lfm2Config(**_GROUPED, block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention"])),
    "falcon-h1": Family(FalconH1Config(**_GROUPED, **_STATES, mamba_d_ssm=32, mamba_d_head=8)),
    "bamba": Family(BambaConfig(**_GROUPED, **_STATES, mamba_expand=1, attn_layer_indices=[1])),
    "t5": Family(
        T5Config(**_IDS, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0), scale=2.0
    ),
    "bart": Family(
        BartConfig(
            **_IDS,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            max_position_embeddings=512,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        ),
        scale=20.0,
    ),
    "qwen2-vl": Family(
        Qwen2VLConfig(
            text_config={**_GROUPED, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
            vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4},
            image_token_id=IMAGE,
            video_token_id=VOCABULARY,
            vision_start_token_id=VOCABULARY,
            vision_end_token_id=VOCABULARY,
        )
    ),
}

REFUSED: dict[str, PreTrainedConfig] = {
    "gpt-1": OpenAIGPTConfig(**_IDS, n_embd=32, n_layer=2, n_head=4),
    "minimax": MiniMaxConfig(**_GROUPED, num_local_experts=2),
    "recurrent-gemma": RecurrentGemmaConfig(**{**_SHAPE, "num_hidden_layers": 3}, lru_width=32),
    "rwkv": RwkvConfig(**_SMALL),
    "xlnet": XLNetConfig(**_IDS, d_model=32, n_layer=2, n_head=4, d_inner=48),
}
"""Families that store the tokens they have read in states that no rewind reaches."""

FAMILIES = tuple(_FAMILIES)
WINDOWED = frozenset({"mistral", "gemma3", "gpt-neo", "gpt-oss", "llama4"})
RECURRENT = frozenset({"qwen3-next", "mamba", "mamba2", "lfm2", "falcon-h1", "bamba"})
ENCODER_DECODER = frozenset({"t5", "bart"})
MULTIMODAL = frozenset({"qwen2-vl"})


_IMAGE_TOKENS = 4  # of an image of 4 by 4 patches, merged two by two


def build(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of two layers with broad distributions, which depends on the order of its tokens."""
    torch.manual_seed(seed)
    kind: Any = AutoModelForCausalLM
    if family in ENCODER_DECODER:
        kind = AutoModelForSeq2SeqLM
    elif family in MULTIMODAL:
        kind = AutoModelForImageTextToText
    model: PreTrainedModel = kind.from_config(_FAMILIES[family].config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                # In bfloat16 a tie may choose another expert; that must not drown what is measured.
                weight *= _FAMILIES[family].scale / (3 if ".experts." in name else 1)
    return model.eval().requires_grad_(False).to(dtype)


def build_refused(family: str) -> PreTrainedModel:
    """A model of a family that is refused."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(REFUSED[family])
    return model.eval()


def prepare(family: str, *prompts: Sequence[int], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the inputs of `generate` for prompts: padded on the left, or on the right for an encoder.

    Each prompt of a vision model begins with an image of its own.
    """
    if family in MULTIMODAL:
        prompts = tuple([IMAGE] * _IMAGE_TOKENS + list(prompt) for prompt in prompts)
    longest = max(map(len, prompts))
    ids, mask = torch.ones((2, len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        start = 0 if family in ENCODER_DECODER else longest - len(prompt)
        ids[row, start : start + len(prompt)] = torch.tensor(prompt)
        mask[row] = 0
        mask[row, start : start + len(prompt)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family in MULTIMODAL:
        seeds = [torch.Generator().manual_seed(len(prompt)) for prompt in prompts]
        patches = [torch.randn((4 * _IMAGE_TOKENS, 3 * 2 * 4 * 4), generator=seed) for seed in seeds]
        inputs |= {
            "pixel_values": torch.cat(patches).to(dtype),
            "image_grid_thw": torch.tensor([[1, 4, 4]] * len(prompts)),
            "mm_token_type_ids": (ids == IMAGE).long(),
        }
    return inputs
