"""Tiny models of every kind of layer with a memory, with random weights that are large enough that positions matter.

Windows and chunks are shorter than the texts of the tests. All models have the vocabulary of `models`, and so its
tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import (
    AutoConfig,
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


def _by_type(model_type: str, *, scale: float = 12.0, **settings: Any) -> Family:
    return Family(AutoConfig.for_model(model_type, **settings), scale)


_FOUR_LOCAL = {**_LOCAL, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
_HYBRID = {**_GROUPED, "layer_types": ["linear_attention", "full_attention"]}
_DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_ROUTED = {**_EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1}
_LATENT_BY_TYPE = {
    **{name: value for name, value in _LATENT.items() if name != "first_k_dense_replace"},
    "mlp_layer_types": ["dense", "sparse"],
}
_INDEXED = {**_LATENT_BY_TYPE, "index_topk": 16, "index_head_dim": 8, "index_n_heads": 4}
_PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8}
_GLOBAL = {"global_head_dim": 16, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
HAS_NAMED = Version(transformers.__version__) >= Version("5.23")
"""Earlier versions lack some of the newer families, or have other layers in their caches."""

_NAMED = (
    {
        "qwen3.5": _by_type("qwen3_5_text", **_HYBRID, **_DELTA, head_dim=8),
        "qwen3.5-moe": _by_type(
            "qwen3_5_moe_text",
            **_HYBRID,
            **_DELTA,
            **_EXPERTS,
            head_dim=8,
            num_experts=4,
            shared_expert_intermediate_size=16,
        ),
        "gemma3n": _by_type(
            "gemma3n_text",
            **_FOUR_LOCAL,
            **_PER_LAYER,
            num_kv_shared_layers=2,
            laurel_rank=8,
            activation_sparsity_pattern=[0.0] * 4,
            altup_num_inputs=2,
            scale=10.0,
        ),
        # The small ones of Gemma 4, those with experts, and the one without either.
        "gemma4": _by_type(
            "gemma4_text", **_FOUR_LOCAL, **_PER_LAYER, num_kv_shared_layers=2, global_head_dim=16, scale=10.0
        ),
        "gemma4-moe": _by_type(
            "gemma4_text",
            **_LOCAL,
            **_GLOBAL,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=16,
            scale=10.0,
        ),
        "gemma4-unified": _by_type("gemma4_unified_text", **_LOCAL, **_GLOBAL, scale=10.0),
        "glm4-moe": _by_type("glm4_moe", **_GROUPED, **_ROUTED, head_dim=8, first_k_dense_replace=1),
        "glm4-moe-lite": _by_type("glm4_moe_lite", **_LATENT_BY_TYPE),
        "kimi-linear": _by_type(
            "kimi_linear",
            **{**_LATENT_BY_TYPE, "q_lora_rank": None},
            num_experts=4,
            num_experts_per_token=2,
            num_shared_experts=1,
            linear_head_dim=8,
            linear_num_heads=4,
            layer_types=["linear_attention", "full_attention"],
        ),
        # Squared activations and no norm before the states multiply errors: they need smaller weights.
        "nemotron-h": _by_type(
            "nemotron_h",
            **{**_GROUPED, "num_hidden_layers": 4},
            **_EXPERTS,
            head_dim=8,
            layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
            ssm_state_size=8,
            mamba_num_heads=4,
            mamba_head_dim=8,
            expand=1,
            n_groups=1,
            chunk_size=8,
            n_routed_experts=4,
            moe_shared_expert_intermediate_size=16,
            scale=8.0,
        ),
        "olmo3": _by_type("olmo3", **{name: value for name, value in _LOCAL.items() if name != "head_dim"}),
        "olmo-hybrid": _by_type("olmo_hybrid", **{**_HYBRID, **_DELTA, "num_key_value_heads": 4}),
        "minimax-m2": _by_type("minimax_m2", **_GROUPED, head_dim=8, num_experts_per_tok=2, num_local_experts=4),
        "ministral3": _by_type(
            "ministral3", **_GROUPED, head_dim=8, rope_parameters={**_YARN, "llama_4_scaling_beta": 0.1}
        ),
        # transformers makes it as the text part of a model that sees images only.
        "mistral4": _by_type(
            "mistral3",
            text_config={
                **_LATENT,
                "model_type": "mistral4",
                "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0},
            },
            vision_config={
                "model_type": "pixtral",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "head_dim": 8,
                "image_size": 8,
                "patch_size": 4,
            },
            image_token_index=IMAGE,
        ),
        "granite4": _by_type(
            "granitemoehybrid",
            **_HYBRID,
            **_STATES,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=16,
            mamba_d_head=8,
            mamba_expand=1,
            position_embedding_type="rope",
        ),
        "lfm2-moe": _by_type(
            "lfm2_moe",
            **_GROUPED,
            **_EXPERTS,
            num_experts=4,
            num_dense_layers=1,
            layer_types=["conv", "full_attention"],
        ),
        "lfm3": _by_type(
            "lfm3",
            **{**_GROUPED, "num_hidden_layers": 3},
            head_dim=8,
            sliding_window=WINDOW,
            layer_types=["conv", "full_attention", "sliding_attention"],
        ),
    }
    if HAS_NAMED
    else {}
)
_FAMILIES |= _NAMED

_DECODER = {
    **_IDS,
    "d_model": 32,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 512,
    "is_encoder_decoder": False,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
COUNTING: dict[str, Family] = {
    "roformer": _by_type("roformer", **_SHAPE, embedding_size=32, is_decoder=True),
    **{f"{name}-decoder": _by_type(name, **_DECODER, scale=20.0) for name in ("bart", "marian", "plbart", "mvp")},
    "whisper-decoder": _by_type("whisper", **{**_DECODER, "max_target_positions": 512}, scale=20.0),
    "trocr": _by_type("trocr", **_DECODER, scale=20.0),
}
"""Families that take no positions, and count the columns of their caches."""

SCANNING: dict[str, Family] = {
    "mamba": _FAMILIES["mamba"],
    "falcon-mamba": _by_type("falcon_mamba", **_SMALL, state_size=8, scale=2.0),
    "jamba": _by_type(
        "jamba",
        **_GROUPED,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        num_experts=1,
        mamba_d_state=8,
        mamba_expand=1,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
        scale=8.0,
    ),
}
"""Families that scan several tokens from zeros, whatever their states hold."""

REFUSED: dict[str, PreTrainedConfig] = {
    "gpt-1": OpenAIGPTConfig(**_IDS, n_embd=32, n_layer=2, n_head=4),
    "minimax": MiniMaxConfig(**_GROUPED, num_local_experts=2),
    "recurrent-gemma": RecurrentGemmaConfig(**{**_SHAPE, "num_hidden_layers": 3}, lru_width=32),
    "rwkv": RwkvConfig(**_SMALL),
    "xlnet": XLNetConfig(**_IDS, d_model=32, n_layer=2, n_head=4, d_inner=48),
}
"""Families that store the tokens they have read in states that no rewind reaches."""

UNKNOWN_LAYERS: dict[str, Family] = (
    {
        "deepseek-v3.2": _by_type("deepseek_v32", **_INDEXED),
        "deepseek-v4": _by_type(
            "deepseek_v4",
            **{**_SHAPE, **_EXPERTS, "num_key_value_heads": 1},
            head_dim=16,
            q_lora_rank=16,
            n_routed_experts=4,
            layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
            compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
            mlp_layer_types=["hash_moe", "moe"],
            sliding_window=WINDOW,
            o_groups=2,
            o_lora_rank=8,
            hc_mult=2,
        ),
        "glm-moe-dsa": _by_type("glm_moe_dsa", **_INDEXED),
        "minimax-m3": _by_type(
            "minimax_m3_vl_text",
            **_GROUPED,
            head_dim=8,
            num_experts_per_tok=2,
            num_local_experts=4,
            dense_intermediate_size=48,
            shared_intermediate_size=16,
            rotary_dim=4,
            layer_types=["full_attention", "minimax_m3_sparse"],
            mlp_layer_types=["dense", "sparse"],
            index_n_heads=2,
            index_head_dim=8,
            index_block_size=4,
            index_topk_blocks=4,
        ),
    }
    if HAS_NAMED
    else {}
)
"""Families whose caches have layers of their own."""

NAMES = {
    "Qwen3.5, Qwen3.6, Qwen3.8-27B": "qwen3.5",
    "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B and others with experts": "qwen3.5-moe",
    "Gemma 3n": "gemma3n",
    "Gemma 4 E2B, E4B": "gemma4",
    "Gemma 4 26B-A4B": "gemma4-moe",
    "Gemma 4 12B": "gemma4-unified",
    "GLM-4.5, GLM-4.6, GLM-4.7": "glm4-moe",
    "GLM-4.7-Flash": "glm4-moe-lite",
    "GLM-5": "glm-moe-dsa",
    "Kimi K2, K2.5, K2.6": "deepseek-v3",
    "Kimi Linear": "kimi-linear",
    "Nemotron-H, Nemotron 3": "nemotron-h",
    "OLMo 3": "olmo3",
    "Olmo Hybrid": "olmo-hybrid",
    "MiniMax-Text-01, M1": "minimax",
    "MiniMax M2": "minimax-m2",
    "MiniMax M3": "minimax-m3",
    "gpt-oss": "gpt-oss",
    "DeepSeek V3, V3.1, R1": "deepseek-v3",
    "DeepSeek V3.2": "deepseek-v3.2",
    "DeepSeek V4": "deepseek-v4",
    "Qwen3-Next": "qwen3-next",
    "Llama 4": "llama4",
    "Ministral 3": "ministral3",
    "Mistral Small 4": "mistral4",
    "Granite 4": "granite4",
    "LFM2": "lfm2",
    "LFM2-8B-A1B": "lfm2-moe",
    "LFM3": "lfm3",
}
"""Names of models, and the families that they are of."""

NAMED = tuple(_NAMED)
FAMILIES = tuple(family for family in _FAMILIES if family not in _NAMED)
"""Families of every kind; those of `NAMED` are of the same kinds."""
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
    elif family in MULTIMODAL or family == "mistral4":
        kind = AutoModelForImageTextToText
    # A model keeps the configuration that it is given, and a test may change the configuration of its own model.
    built = (_FAMILIES | COUNTING | SCANNING)[family]
    model: PreTrainedModel = kind.from_config(deepcopy(built.config))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                # In bfloat16 a tie may choose another expert; that must not drown what is measured.
                weight *= built.scale / (3 if ".experts." in name else 1)
    return model.eval().requires_grad_(False).to(dtype)


def build_refused(family: str) -> PreTrainedModel:
    """A model of a family that is refused."""
    config = REFUSED[family] if family in REFUSED else UNKNOWN_LAYERS[family].config
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model.eval()


def model_type(family: str) -> str:
    """Return the name of a family's code in transformers."""
    config = REFUSED[family] if family in REFUSED else (_FAMILIES | UNKNOWN_LAYERS)[family].config
    return str(config.get_text_config(decoder=True).model_type)


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
