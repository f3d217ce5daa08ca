"""The input of an encoder is masked, continued and cached separately from the decoder's text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, WhisperConfig, WhisperForConditionalGeneration, set_seed

from antislop import AntiSlop, Ban, applied_to
from tests.support.families import build
from tests.support.models import VOCABULARY, build_tokenizer

TOKENIZER = build_tokenizer()
OFTEN = AntiSlop(TOKENIZER, [Ban(a + b, edges="anywhere") for a in "acegi" for b in "bdfhj"])
SOUND = torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))
SETTINGS: dict[str, Any] = {"max_new_tokens": 30, "do_sample": True, "temperature": 4.0, "suppress_tokens": [0, 1]}


def test_the_padding_of_the_encoder_hides_no_token_of_the_decoders_prompt() -> None:
    """Also if both are equally long: a phrase that begins in the decoder's prompt is not completed."""
    model, read = build("t5"), torch.tensor([[5, 9, 7, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    prompt = torch.tensor([[0, *TOKENIZER("jj.a")["input_ids"]]])
    assert prompt.shape == mask.shape
    sampler = AntiSlop(TOKENIZER, [Ban("a" + letter, edges="anywhere") for letter in "abcdefgh"])
    asked = {"max_new_tokens": 2, "do_sample": True, "suppress_tokens": [1]}
    for seed in range(20):
        set_seed(seed)
        ids = sampler.generate(model, read, attention_mask=mask, decoder_input_ids=prompt, **asked)
        assert not sampler.bans.find(TOKENIZER.decode(ids[0, 1:])), seed


@pytest.fixture(scope="module")
def whisper() -> PreTrainedModel:
    torch.manual_seed(0)
    halves = {
        f"{half}_{name}": size
        for half in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 0}
    model: PreTrainedModel = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            **halves,
            **ids,
            num_mel_bins=8,
            max_source_positions=20,
            max_target_positions=40,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight *= 3
    return model.eval().requires_grad_(False)


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_its_own_generate_converts_the_output_of_the_sampler(whisper: PreTrainedModel) -> None:
    """Whisper iterates over all fields of the output of `generate`, and expects tensors in each."""
    set_seed(0)
    expected = whisper.generate(SOUND, **SETTINGS)
    assert len(set(expected[0].tolist())) > 5
    empty = AntiSlop(TOKENIZER, [])
    set_seed(0)
    assert torch.equal(empty.generate(whisper, SOUND, **SETTINGS), expected)
    set_seed(0)
    assert torch.equal(whisper.generate(SOUND, custom_generate=empty, **SETTINGS), expected)
    for seed in range(4):
        set_seed(seed)
        ids = OFTEN.generate(whisper, SOUND, **SETTINGS)
        assert not OFTEN.bans.find(TOKENIZER.decode(ids[0]))


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_its_own_generate_converts_the_output_inside_applied_to(whisper: PreTrainedModel) -> None:
    set_seed(1)
    expected = OFTEN.generate(whisper, SOUND, **SETTINGS)
    for args, named in [((SOUND,), {}), ((), {"input_features": SOUND})]:
        set_seed(1)
        with applied_to(whisper, OFTEN):
            assert torch.equal(whisper.generate(*args, **named, **SETTINGS), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["stream", "events"])
def test_a_model_with_its_own_generate_can_not_stream(whisper: PreTrainedModel, way: str) -> None:
    with pytest.raises(ValueError, match=r"WhisperForConditionalGeneration .* call sampler.generate\(model, …\)"):
        list(getattr(OFTEN, way)(whisper, SOUND, **SETTINGS))
