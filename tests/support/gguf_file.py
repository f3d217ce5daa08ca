"""Tiny Llamas as GGUF files, which llama.cpp reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Write a model and its tokenizer, in float32.

    Two kinds of tokenizers are supported: byte-level BPE with the regex of GPT-2, and BPE as SentencePiece makes it.
    """
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, model)
    _add_vocabulary(writer, tokenizer)
    _add_special_tokens(writer, model, tokenizer)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            writer.add_tensor(_rename(name), _rearrange(name, weight.float(), model).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, model: LlamaForCausalLM) -> None:
    config = model.config
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    is_byte_level = (parts["pre_tokenizer"] or {}).get("type") == "ByteLevel"
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = {token["id"] for token in parts["added_tokens"]}
    writer.add_tokenizer_model("gpt2" if is_byte_level else "llama")
    writer.add_tokenizer_pre("gpt-2" if is_byte_level else "default")
    writer.add_token_list(tokens)
    writer.add_token_types([_find_type(number, token, special) for number, token in enumerate(tokens)])
    if is_byte_level:
        writer.add_token_merges([" ".join(merge) for merge in parts["model"]["merges"]])
    else:
        writer.add_token_scores([-float(number) for number in range(len(tokens))])  # ids are in the order of merges


def _find_type(number: int, token: str, special: set[int]) -> gguf.TokenType:
    if number in special:
        return gguf.TokenType.UNKNOWN if token == "<unk>" else gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if re.fullmatch("<0x[0-9A-F]{2}>", token) else gguf.TokenType.NORMAL


def _add_special_tokens(writer: gguf.GGUFWriter, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """The generation config can name one end token beside the tokenizer's: it is written as the end of a turn."""
    ends = model.generation_config.eos_token_id
    others = {*([ends] if isinstance(ends, int) else ends)} - {tokenizer.eos_token_id}
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if others:
        (end,) = others
        writer.add_eot_token_id(end)
    writer.add_add_bos_token(True)


def _rename(name: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.weight", name)
    return f"blk.{layer[1]}.{_NAMES[layer[2]]}.weight" if layer else f"{_NAMES[name.removesuffix('.weight')]}.weight"


def _rearrange(name: str, weight: torch.Tensor, model: LlamaForCausalLM) -> torch.Tensor:
    """Interleave the two halves of each head's queries and keys: llama.cpp rotates neighbors, transformers halves."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    heads = weight.shape[0] // model.config.head_dim
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
