"""Adapters of PEFT, in each way to write a text: the text is that of the adapter's own `generate`, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from antislop import AntiSlop, Ban, applied_to
from antislop.datasets import rollout
from antislop.errors import InputError
from antislop.files.models import ModelSpec
from tests.support.depth import first_quick
from tests.support.models import build_model, build_tokenizer

peft = pytest.importorskip("peft", reason="peft is not installed")
pytest.importorskip("trl", reason="trl is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # some of peft's

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[3, 5, 9, 2, 12, 7]])
NEW = 8
ASKED: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
SAMPLER = AntiSlop(TOKENIZER, ["zzzz"])
LAYERS = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
VECTORS = {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}


def adapt(kind: str, **options: Any) -> Any:
    """Return a model with an adapter whose weights are random, so that no text is the base's."""
    return scramble(peft.get_peft_model(build_model(), getattr(peft, f"{kind}Config")(**options)))


def scramble(model: Any) -> Any:
    random = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += torch.randn(weight.shape, generator=random) * 0.3
    return model.eval()


def build_two(active: str = "default") -> Any:
    model = peft.get_peft_model(build_model(), peft.LoraConfig(**LAYERS))
    model.add_adapter("other", peft.LoraConfig(**LAYERS))
    for name, weight in model.named_parameters():
        weight.requires_grad = "lora_" in name
    scramble(model).set_adapter(active)
    return model


def build_mixed() -> Any:
    model = peft.PeftMixedModel(build_model(), peft.LoraConfig(**LAYERS), "default")
    model.add_adapter("other", peft.LoHaConfig(**LAYERS))
    model.set_adapter(["default", "other"])
    return scramble(model)


def build_disabled() -> Any:
    model = adapt("Lora", **LAYERS)
    model.base_model.disable_adapter_layers()
    return model


EVERY = "generate custom_generate applied_to rollout events stream many paged"
OWN = "generate custom_generate applied_to rollout"  # what calls the adapter's `generate`, and runs in it
ACTIVATED = {**LAYERS, "alora_invocation_tokens": [12, 7]}
KINDS: list[tuple[str, Callable[[], Any], dict[str, Any], str]] = [
    ("aLoRA", lambda: adapt("Lora", **ACTIVATED), {}, OWN),
    ("LoRA", lambda: adapt("Lora", **LAYERS), {}, EVERY),
    ("prompt tuning", lambda: adapt("PromptTuning", **VECTORS), {}, ""),
    ("adapter_names", build_two, {"adapter_names": ["other"]}, OWN),
    ("prefix tuning", lambda: adapt("PrefixTuning", **VECTORS), {}, ""),
    ("p-tuning", lambda: adapt("PromptEncoder", encoder_hidden_size=16, **VECTORS), {}, ""),
    ("DoRA", lambda: adapt("Lora", use_dora=True, **LAYERS), {}, EVERY),
    ("IA3", lambda: adapt("IA3", feedforward_modules=[], **LAYERS), {}, EVERY),
    ("AdaLoRA", lambda: adapt("AdaLora", total_step=10, **LAYERS), {}, EVERY),
    ("VeRA", lambda: adapt("Vera", r=4, **LAYERS), {}, EVERY),
    ("OFT", lambda: adapt("OFT", oft_block_size=8, **LAYERS), {}, EVERY),
    ("BOFT", lambda: adapt("BOFT", boft_block_size=8, **LAYERS), {}, EVERY),
    ("LoHa", lambda: adapt("LoHa", **LAYERS), {}, EVERY),
    ("LoKr", lambda: adapt("LoKr", **LAYERS), {}, EVERY),
    ("FourierFT", lambda: adapt("FourierFT", n_frequency=16, scaling=1e5, **LAYERS), {}, EVERY),
    ("LN tuning", lambda: adapt("LNTuning", task_type="CAUSAL_LM"), {}, EVERY),
    ("Poly", lambda: adapt("Poly", n_tasks=2, n_skills=2, r=2, **LAYERS), {"task_ids": torch.tensor([1])}, OWN),
    ("RoAd", lambda: adapt("Road", group_size=8, **LAYERS), {}, EVERY),
    ("trainable tokens", lambda: adapt("TrainableTokens", token_indices=[3, 7], task_type="CAUSAL_LM"), {}, EVERY),
    ("the second of two", lambda: build_two("other"), {}, EVERY),
    ("two of two kinds", build_mixed, {}, EVERY),
    ("disabled", build_disabled, {}, EVERY),
    ("merged", lambda: adapt("Lora", **LAYERS).merge_and_unload(), {}, EVERY),
]


def write(way: str, model: Any, options: dict[str, Any]) -> Any:
    """Return the tokens that a way writes after the prompt; for a stream its text."""
    inputs = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT), **ASKED, **options}
    if way == "generate":
        return SAMPLER.generate(model, **inputs)[0, PROMPT.shape[1] :].tolist()
    if way == "custom_generate":
        return model.generate(custom_generate=SAMPLER, **inputs)[0, PROMPT.shape[1] :].tolist()
    if way == "applied_to":
        with applied_to(model, SAMPLER):
            return model.generate(**inputs)[0, PROMPT.shape[1] :].tolist()
    if way == "rollout":
        return rollout(SAMPLER)([PROMPT[0].tolist()], make_trainer(model))["completion_ids"][0]
    if way == "events":
        events = SAMPLER.events(model, **inputs)
        return [None for _ in events] and [each.token for each in events.trace.rows[0].history.kept]
    if way == "stream":
        return "".join(SAMPLER.stream(model, **inputs))
    engine: Any = "paged" if way == "paged" else "own"
    return next(iter(SAMPLER.generate_many(model, [PROMPT[0].tolist()], engine=engine, **ASKED, **options))).tokens


def make_trainer(model: Any) -> Any:
    """Return what a rollout asks of TRL's `GRPOTrainer`."""
    config = type(model.generation_config)(**{**model.generation_config.to_dict(), **ASKED, "pad_token_id": 0})
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        unwrap_model=lambda wrapped, **_: wrapped,
        state=SimpleNamespace(deepspeed_plugin=None),
    )
    return SimpleNamespace(
        generation_config=config,
        accelerator=accelerator,
        model_wrapped=model,
        args=SimpleNamespace(ds3_gather_for_generation=True, gradient_checkpointing_kwargs=None),
        chat_template_kwargs={},
        generation_kwargs=None,
        use_vllm=False,
        tools=None,
        is_fsdp_enabled=False,
    )


@pytest.mark.parametrize(("name", "build", "options", "right"), first_quick(KINDS, 4), ids=[kind[0] for kind in KINDS])
def test_a_text_is_the_adapters_own_or_refused(
    name: str, build: Callable[[], Any], options: dict[str, Any], right: str
) -> None:
    model = build()
    own = model.generate(input_ids=PROMPT, **ASKED, **options)[0, PROMPT.shape[1] :].tolist()
    is_base = own == build_model().generate(PROMPT, **ASKED)[0, PROMPT.shape[1] :].tolist()
    assert is_base == (name == "disabled"), "the adapter must matter"
    for way in EVERY.split():
        if way == "rollout" and (options or not hasattr(model, "generation_config")):
            continue  # a trainer has no such arguments, and trains no mixture
        if way in right.split():
            text = SAMPLER.compiled.vocabulary.decode(own, after=PROMPT[0].tolist()) if way == "stream" else own
            assert write(way, model, options) == text, way
        else:
            with pytest.raises(InputError, match=r"PEFT|task_ids belongs to one prompt"):
                write(way, model, options)


def test_an_adapter_that_is_told_which_tokens_to_change_reads_them_one_by_one() -> None:
    model = adapt("Lora", **ACTIVATED)
    for asked in ({"prompt_lookup_num_tokens": 2}, {"output_hidden_states": True, "return_dict_in_generate": True}):
        with pytest.raises(InputError, match="leave out drafts, then='force', hidden states"):
            SAMPLER.generate(model, PROMPT, **ASKED, **asked)


def test_rewinds_leave_no_trace_in_adapters_that_differ_by_row() -> None:
    """The kept logits of each row are those of the adapter's own `generate` for that row alone."""
    names, prompts = ["default", "other", "__base__"], torch.tensor([[3, 5, 9, 2], [4, 4, 12, 7], [6, 2, 3, 12]])
    bans = [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde", "cb", "a,")]
    model, asked = build_two(), {"output_logits": True, "return_dict_in_generate": True, "do_sample": False}
    mask = {"attention_mask": torch.ones_like(prompts)}
    out = AntiSlop(TOKENIZER, bans).generate(model, prompts, adapter_names=names, max_new_tokens=20, **mask, **asked)
    assert out.report.rewinds >= 3
    for row, name in enumerate(names):
        kept = [each.token for each in out.trace.rows[row].history.kept]

        def follow(ids: Tensor, scores: Tensor, kept: list[int] = kept) -> Tensor:
            return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor(kept[ids.shape[1] - 4]), 0.0)

        alone = model.generate(
            input_ids=prompts[row : row + 1],
            adapter_names=[name],
            logits_processor=[follow],
            max_new_tokens=len(kept),
            **asked,
        )
        for ours, own in zip(out.logits, alone.logits, strict=False):
            assert torch.allclose(ours[row], own[0], atol=1e-4)


def test_vectors_before_the_prompt_are_passed_to_the_base_model() -> None:
    """As the guide says of prompt tuning and prefix tuning."""
    for kind in ("PromptTuning", "PrefixTuning"):
        model = adapt(kind, **VECTORS)
        own = model.generate(input_ids=PROMPT, **ASKED)[0, PROMPT.shape[1] :].tolist()
        before, base = model.get_prompt(1), model.get_base_model()
        mask = torch.ones(1, 4 + PROMPT.shape[1], dtype=torch.long)
        if kind == "PromptTuning":
            embeds = torch.cat([before, base.get_input_embeddings()(PROMPT)], dim=1)
            ids = SAMPLER.generate(base, inputs_embeds=embeds, attention_mask=mask, **ASKED)
        else:
            padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), PROMPT], dim=1)
            ids = SAMPLER.generate(base, padded, past_key_values=before, attention_mask=mask, **ASKED)
        assert ids[0, -len(own) :].tolist() == own


def test_a_folder_of_an_alora_is_refused(tmp_path: Any) -> None:
    """transformers loads it without a word, and writes what its base does."""
    build_model().save_pretrained(tmp_path / "base")
    base = type(build_model()).from_pretrained(tmp_path / "base")
    scramble(peft.get_peft_model(base, peft.LoraConfig(**ACTIVATED))).save_pretrained(tmp_path / "adapter")
    TOKENIZER.save_pretrained(tmp_path / "adapter")
    with pytest.raises(InputError, match="is an aLoRA, which only generate\\(\\) of PEFT turns on"):
        ModelSpec(str(tmp_path / "adapter"), device="cpu").load()
