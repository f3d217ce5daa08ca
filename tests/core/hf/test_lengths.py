"""Texts longer than a model's positions are refused if the model would fail, and cause a warning if not."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BertGenerationConfig,
    BloomConfig,
    CodeGenConfig,
    CTRLConfig,
    DynamicCache,
    FalconConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoConfig,
    LlamaConfig,
    MptConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    set_seed,
)

from antislop import AntiSlop, Ban
from antislop.core.hf.private import CACHE
from antislop.datasets import ModelRecordMaker
from antislop.datasets.samples import plan_samples
from antislop.files.prompts import Prompt
from tests.support.models import VOCABULARY, build_tokenizer
from tests.support.refusals import refused

TOKENIZER = build_tokenizer()
SAMPLER = AntiSlop(TOKENIZER, [Ban(a + b, edges="anywhere") for a in "acegi" for b in "bdfhj"])
POSITIONS = 24
PROMPT = torch.tensor([[4, 8, 3, 30, 22]])
_IDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
_SMALL = {**_IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SHAPE = {**_SMALL, "intermediate_size": 48, "max_position_embeddings": POSITIONS}
_GPT: dict[str, Any] = {**_IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
_BART: dict[str, Any] = {
    **_IDS,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
LOOKING_UP: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(**_GPT),
    "gpt-bigcode": GPTBigCodeConfig(**_GPT),
    "gpt-neo": GPTNeoConfig(
        **{**_SHAPE, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]], "num_hidden_layers": 2}
    ),
    "gptj": GPTJConfig(**_GPT, rotary_dim=4),
    "codegen": CodeGenConfig(**_GPT, rotary_dim=4),
    "ctrl": CTRLConfig(**_GPT, dff=48),
    "opt": OPTConfig(**_SHAPE, ffn_dim=48, word_embed_proj_dim=32),
    "bert-generation": BertGenerationConfig(**_SHAPE, is_decoder=True),
    "mpt": MptConfig(
        **_IDS, d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=POSITIONS, use_cache=True
    ),
    "bart": BartConfig(**_BART),
}
COMPUTING: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SHAPE),
    "falcon": FalconConfig(**_SHAPE, alibi=False),
    "bloom": BloomConfig(**_IDS, hidden_size=32, n_layer=2, n_head=4),
}
BOUNDARY = 12
LONGROPE = Phi3Config(
    **{**_SHAPE, "max_position_embeddings": 64, "num_key_value_heads": 2},
    original_max_position_embeddings=BOUNDARY,
    rope_parameters={
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0, 8.0, 12.0, 16.0],
        "original_max_position_embeddings": BOUNDARY,
    },
)


def build(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: PreTrainedModel = kind.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight *= 8
    return model.eval().requires_grad_(False)


@cache
def phi3() -> PreTrainedModel:
    return build(LONGROPE)


def settings(new: int, prompt: torch.Tensor = PROMPT) -> dict[str, Any]:
    mask = torch.ones_like(prompt)
    return {"attention_mask": mask, "max_new_tokens": new, "do_sample": True, "suppress_tokens": [0, 1]}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # on import of GPT BigCode
@pytest.mark.parametrize("family", LOOKING_UP)
def test_texts_too_long_for_generate_are_refused_and_no_shorter_ones(family: str) -> None:
    model = build(LOOKING_UP[family])
    start = 1 if model.config.is_encoder_decoder else PROMPT.shape[1]
    most = POSITIONS + 1 - start
    assert model.generate(PROMPT, **settings(most)).shape[1] == POSITIONS + 1
    with pytest.raises((IndexError, RuntimeError)):
        model.generate(PROMPT, **settings(most + 1))
    set_seed(0)
    assert SAMPLER.generate(model, PROMPT, **settings(most)).shape[1] == POSITIONS + 1
    ran: list[int] = []
    model.register_forward_pre_hook(lambda *_: ran.append(1))
    message = f"has 24 positions, and a prompt of {start} tokens? .*: ask for at most {most} new tokens?"
    refused(message, lambda: SAMPLER.generate(model, PROMPT, **settings(most + 1)))
    refused(message, lambda: model.generate(PROMPT, custom_generate=SAMPLER, **settings(most + 1)))
    assert not ran


def test_padding_occupies_no_positions() -> None:
    model = build(LOOKING_UP["opt"])
    padded = torch.cat([torch.ones((1, 9), dtype=torch.long), PROMPT], dim=1)
    mask = (torch.arange(14) >= 9).long()[None]
    most = POSITIONS + 1 - PROMPT.shape[1]
    assert SAMPLER.generate(model, padded, **{**settings(most), "attention_mask": mask}).shape[1] == 14 + most
    with pytest.raises(ValueError, match=f"ask for at most {most} new"):
        SAMPLER.generate(model, padded, **{**settings(most + 1), "attention_mask": mask})


def test_tokens_in_a_cache_occupy_positions() -> None:
    """Also if only the new tokens are passed."""
    model, long = build(LOOKING_UP["gpt2"]), torch.tensor([[7, 9] * 8])
    past = model(long, use_cache=True).past_key_values
    mask = torch.ones((1, 21), dtype=torch.long)
    with pytest.raises(ValueError, match="a prompt of 21 tokens with 5 new ones takes 25: ask for at most 4 new"):
        SAMPLER.generate(model, PROMPT, **{**settings(5), "attention_mask": mask}, **{CACHE: past})


def test_a_prompt_that_is_too_long_by_itself_is_refused() -> None:
    prompt = torch.tensor([[7, 9] * 13])
    refused("pass a shorter prompt", lambda: SAMPLER.generate(build(LOOKING_UP["gpt2"]), prompt, **settings(1, prompt)))


@pytest.mark.parametrize("family", COMPUTING)
def test_a_text_beyond_the_positions_causes_a_warning_and_no_shorter_one(family: str) -> None:
    model = build(COMPUTING[family])
    fitting = POSITIONS + 1 - PROMPT.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SAMPLER.generate(model, PROMPT, **settings(fitting))
        if family == "bloom":
            SAMPLER.generate(model, PROMPT, **settings(2 * POSITIONS))
    if family != "bloom":
        for run in (SAMPLER.generate, lambda *a, **k: list(SAMPLER.stream(*a, **k))):
            with pytest.warns(UserWarning, match="exceeded the 24 positions that .* was made for"):
                run(model, PROMPT, **settings(fitting + 1))
        with pytest.warns(UserWarning, match="exceeded the 24 positions"):
            list(SAMPLER.generate_many(model, PROMPT, max_new_tokens=fitting + 1, suppress_tokens=[0, 1]))


def test_longrope_is_refused_if_a_text_may_cross_its_boundary() -> None:
    """At the boundary, transformers reads all tokens anew with other positions, and so would each rewind across it."""
    most = BOUNDARY + 1 - PROMPT.shape[1]
    match = "reads all tokens by other positions once a text has more than 12"
    refused(match, lambda: SAMPLER.generate(phi3(), PROMPT, **settings(most + 1)))
    refused(match, lambda: list(SAMPLER.generate_many(phi3(), PROMPT, max_new_tokens=most + 1)))
    refused(match, lambda: list(SAMPLER.generate_many(phi3(), [[7, 9] * 8], max_new_tokens=9)))
    ids = torch.tensor([[1] * 11 + [4, 8, 3, 30, 22], [7, 9] * 8])
    mask = torch.tensor([[0] * 11 + [1] * 5, [1] * 16])
    refused(match, lambda: SAMPLER.generate(phi3(), ids, **{**settings(5), "attention_mask": mask}))
    past = phi3()(ids[1:, :8], use_cache=True).past_key_values
    refused(match, lambda: SAMPLER.generate(phi3(), ids[1:], **settings(5, ids[1:]), **{CACHE: past}))


def test_a_data_set_has_a_failed_record_if_a_text_may_cross_the_boundary() -> None:
    """The other prompts are completed."""
    texts = {"short": "ab", "long": "a b c d e f"}
    prompts = [Prompt(key, text, None, {}) for key, text in texts.items()]
    maker = ModelRecordMaker(phi3(), TOKENIZER, [], settings={"max_new_tokens": 6, "do_sample": True})
    made = maker.make(plan_samples(prompts, samples=1, arm="banned"), arm="banned")
    records = {one.record["key"]: one.record for one in made}
    assert records["short"]["error"] is None
    assert "once a text has more than 12" in records["long"]["error"]


@pytest.mark.parametrize(("prompt", "new"), [(PROMPT, BOUNDARY + 1 - 5), (torch.tensor([[7, 9] * 8]), 20)])
@pytest.mark.parametrize("rows", [1, 2])
def test_on_one_side_of_the_longrope_boundary_rewinds_leave_no_trace(prompt: torch.Tensor, new: int, rows: int) -> None:
    """Beyond the boundary, transformers reads the prompt into a new cache."""
    model, prompt = phi3(), prompt.repeat(rows, 1)  # made here: its weights are random numbers, too
    kwargs = {**settings(new, prompt), "return_dict_in_generate": True, "output_logits": True}
    for cached in ({}, {CACHE: DynamicCache(config=LONGROPE)}):
        set_seed(0)
        plain = model.generate(prompt, **kwargs)
        set_seed(0)
        ours = AntiSlop(TOKENIZER, []).generate(model, prompt, **kwargs, **cached)
        assert torch.equal(ours.sequences, plain.sequences)
        assert all(map(torch.equal, ours.logits, plain.logits))
    rewinds = 0
    for seed in range(2):
        set_seed(seed)
        out = SAMPLER.generate(model, prompt, **kwargs)
        rewinds += out.report.rewinds
        fresh = model(out.sequences, use_cache=False).logits[:, prompt.shape[1] - 1 : -1]
        if prompt.shape[1] > BOUNDARY or out.sequences.shape[1] <= BOUNDARY:
            assert torch.allclose(torch.stack(out.logits, dim=1), fresh, atol=1e-3)
    assert rewinds
