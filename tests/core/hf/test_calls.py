"""Prompts and other arguments are used as intended, or refused in one sentence before the model runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    MaxLengthCriteria,
    PreTrainedModel,
    TextIteratorStreamer,
    pipeline,
    set_seed,
)

from antislop import AntiSlop, Ban, BanError, BanList, InputError
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.calls import prepare_call
from antislop.core.trace.events import Settled
from antislop.steer.samplers import TopNSigmaLogitsProcessor
from tests.support.models import build_model, build_spaced_tokenizer, build_tokenizer
from tests.support.refusals import refused

TOKENIZER = build_tokenizer()
SAMPLER = AntiSlop(TOKENIZER, ["ad", "be"])
SPELL = SAMPLER.compiled.vocabulary.spell
TEXT = "abad fab"
IDS = TOKENIZER(TEXT, return_tensors="pt")["input_ids"]
CHAT = [{"role": "user", "content": "abad"}]
SETTINGS: dict[str, Any] = {"max_new_tokens": 20, "do_sample": True}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def seeded(write: Callable[[], Any]) -> Any:
    set_seed(0)
    return write()


def test_a_text_is_generated_from_as_its_ids_are(llama: PreTrainedModel) -> None:
    call = {"attention_mask": torch.ones_like(IDS), **SETTINGS}
    expected = seeded(lambda: SAMPLER.generate(llama, IDS, **call))
    assert torch.equal(seeded(lambda: SAMPLER.generate(llama, TEXT, **SETTINGS)), expected)
    text = TOKENIZER.decode(expected[0, IDS.shape[1] :], skip_special_tokens=True)
    assert seeded(lambda: "".join(SAMPLER.stream(llama, TEXT, **SETTINGS))) == text
    events = seeded(lambda: list(SAMPLER.events(llama, TEXT, **SETTINGS)))
    settled = [token for event in events if isinstance(event, Settled) for token in event.tokens]
    assert settled == expected[0, IDS.shape[1] :].tolist()


def test_arguments_are_moved_to_a_model_that_is_elsewhere(llama: PreTrainedModel) -> None:
    mask = (torch.arange(IDS.shape[1]) > 0)[None].long()
    here = prepare_call(llama, IDS, {"attention_mask": mask, **SETTINGS}, bans=SAMPLER.compiled)
    assert here.arguments is here.model_kwargs
    there = replace(here, model=deepcopy(llama).to("meta"))
    there.model.hf_device_map = {"": "meta"}
    tensors = [value for value in there.arguments.values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 2 and all(tensor.is_meta for tensor in tensors)
    assert there.mask is not None and torch.equal(there.mask, mask)


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ("", "an empty prompt was passed"),
        (["abad", "fab"], "inputs is a list: pass one text or chat, or several to generate_many"),
        ([[*CHAT], [*CHAT]], "inputs is a list: pass one text or chat, or several to generate_many"),
        ([2, 3], r"inputs is a list: pass a text, the messages of a chat, or ids as a tensor \[rows, tokens\]"),
        (CHAT, "messages need a chat template, which the tokenizer doesn't have: pass a text instead"),
        (torch.tensor([[5, 48]]), "the prompt contains the id 48, and LlamaForCausalLM has 48 tokens: encode it with"),
        (torch.tensor([[5, 6], [-1, 6]]), "row 1 of the prompt contains the id -1, and LlamaForCausalLM has 48 tokens"),
        (torch.zeros((1, 0), dtype=torch.long), "an empty prompt was passed"),
        (
            TOKENIZER(TEXT, return_tensors="pt"),
            r"inputs is a BatchEncoding: pass its parts, generate\(model, \*\*inputs\)",
        ),
        (IDS[0], r"inputs has the shape \(\d,\), not \[rows, tokens\]: pass inputs\[None\]"),
        (b"abad", "inputs is a bytes"),
    ],
)
def test_inputs_that_are_not_a_prompt_are_refused(llama: PreTrainedModel, inputs: Any, match: str) -> None:
    for way in (SAMPLER.generate, SAMPLER.stream, SAMPLER.events):
        refused(match, way, llama, inputs, **SETTINGS)


OF_CHATS = "chat_template_kwargs are for chats: pass messages, or leave them out"
OF_IDS = ("attention_mask", "input_ids", "position_ids", "inputs_embeds", "past_key_values", "cache")
HEALING = "^token_healing=True is not supported: it rewrites the prompt; leave it out$"  # before a tokenizer is missed
TEMPLATED = build_tokenizer()
TEMPLATED.chat_template = "{{ messages[0].content }} {{ word }}"
CALLS: list[tuple[str, Any, dict[str, Any]]] = [
    *((f"a text and {name} are passed: leave {name} out", TEXT, {name: IDS}) for name in OF_IDS),
    ("a chat and input_ids are passed: leave input_ids out", CHAT, {"input_ids": IDS}),
    ("message 1 of the chat has the role 'narrator'", [{"role": "narrator", "content": "fab"}], {}),
    (OF_CHATS, "fab", {"chat_template_kwargs": {"word": "dab"}}),
    (
        "chat_template_kwargs has 'tokenize', which no template reads",
        CHAT,
        {"chat_template_kwargs": {"tokenize": True}},
    ),
    (r"tools are for the chat template: pass chat_template_kwargs=", CHAT, {"tools": [{"name": "f"}]}),
    ("tokenizer is not the sampler's", TEXT, {"tokenizer": build_spaced_tokenizer(), "stop_strings": "fa"}),
    # transformers would not call the sampler
    ("cache_implementation='paged' never asks a sampler", TEXT, {"cache_implementation": "paged"}),
    ("'paged' is not supported", TEXT, {"generation_config": GenerationConfig(cache_implementation="paged")}),
    (HEALING, TEXT, {"token_healing": True, "tokenizer": TOKENIZER}),
    (HEALING, TEXT, {"generation_config": GenerationConfig(token_healing=True), "tokenizer": TOKENIZER}),
]
SCORES = GenerationConfig(max_new_tokens=2, return_dict_in_generate=True, output_scores=True, pad_token_id=1)
MANY: list[tuple[str, Any, dict[str, Any]]] = [
    (OF_CHATS, [CHAT, "fab"], {"chat_template_kwargs": {"word": "dab"}}),
    ("generate_many keeps no scores", [TEXT], {"generation_config": SCORES}),
    ("there are fewer seeds than prompts", [TEXT] * 3, {"seeds": [1, 2]}),  # once, the last prompt was skipped
]


@pytest.mark.parametrize(
    ("door", "case"), [*(("generate", case) for case in CALLS), *(("generate_many", case) for case in MANY)]
)
def test_arguments_that_do_not_go_with_a_prompt_are_refused(
    door: str, case: tuple[str, Any, dict[str, Any]], llama: PreTrainedModel
) -> None:
    sentence, prompt, arguments = case
    write = getattr(AntiSlop(TEMPLATED, ["ad"]), door)
    refused(sentence, lambda: list(write(llama, prompt, **SETTINGS | arguments)))


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        ("The old house", "prompts is 'The old house', one text, and each letter would be a prompt: write \\[text\\]"),
        (b"abad", "prompts is b'abad', one text"),
        (TOKENIZER([TEXT]), "prompts is a BatchEncoding: pass a list of texts, of ids or of chats"),
        (5, "prompts is a int"),
        (CHAT, r"prompts is one chat, and each message would be a prompt: write \[messages\]"),
        ([CHAT], "messages need a chat template, which the tokenizer doesn't have"),
        ([None], r"a prompt is a text, ids \[tokens\] or a chat, not a NoneType"),
        ([[0.5, 2.0]], r"a prompt is a text, ids \[tokens\] or a chat, not a list"),
        ([IDS], r"a prompt is a text, ids \[tokens\] or a chat, not a Tensor of shape \(1, \d\)"),
        (IDS[0], r"a prompt is a text, ids \[tokens\] or a chat, not a Tensor of shape \(\)"),
    ],
)
def test_unusable_prompts_are_refused(llama: PreTrainedModel, prompts: Any, match: str) -> None:
    refused(match, lambda: list(SAMPLER.generate_many(llama, prompts, **SETTINGS)))


def test_a_chat_is_generated_from_as_its_rendered_text_is(llama: PreTrainedModel) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }} {% endfor %}{% if add_generation_prompt %}fab{% endif %}"
    )
    sampler = AntiSlop(tokenizer, ["ad", "be"])
    expected = seeded(lambda: sampler.generate(llama, TEXT, **SETTINGS))
    assert torch.equal(seeded(lambda: sampler.generate(llama, CHAT, **SETTINGS)), expected)
    text = tokenizer.decode(expected[0, IDS.shape[1] :], skip_special_tokens=True)
    assert seeded(lambda: "".join(sampler.stream(llama, CHAT, **SETTINGS))) == text
    texts = list(sampler.generate_many(llama, [CHAT, TEXT], seeds=[1, 1], **SETTINGS))
    assert texts[0].tokens == texts[1].tokens


def test_variables_reach_the_chat_template(llama: PreTrainedModel) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }} {{ word }}"
    sampler = AntiSlop(tokenizer, ["ad"])
    chat, settings = [{"role": "user", "content": "fab"}], {**SETTINGS, "chat_template_kwargs": {"word": "dab"}}
    expected = seeded(lambda: sampler.generate(llama, "fab dab", **SETTINGS))
    assert torch.equal(seeded(lambda: sampler.generate(llama, chat, **settings)), expected)
    texts = list(sampler.generate_many(llama, [chat], seeds=[1], **settings))
    assert texts[0].tokens == next(sampler.generate_many(llama, ["fab dab"], seeds=[1], **SETTINGS)).tokens


def test_tools_parts_and_names_of_roles_are_read_as_those_of_data_sets_are(llama: PreTrainedModel) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{{ tools[0].function.name }} {% for m in messages %}{{ m.role[0] }} {{ m.content }}{% endfor %}"
    )
    sampler = AntiSlop(tokenizer, ["ad"])
    chat = [{"role": "Human", "content": [{"type": "text", "text": "fab"}, {"type": "text", "text": "dab"}]}]
    expected = seeded(lambda: sampler.generate(llama, "bad u fab\ndab", **SETTINGS))
    options = {**SETTINGS, "chat_template_kwargs": {"tools": [{"name": "bad"}]}}
    assert torch.equal(seeded(lambda: sampler.generate(llama, chat, **options)), expected)


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_a_prompt_that_cannot_be_used_gives_its_text_an_error_and_the_others_go_on(
    llama: PreTrainedModel, batch_size: int
) -> None:
    prompts: list[Any] = [[], TEXT, [5, 48], IDS[0], "", [-1], TEXT, [10**6]]
    texts = {t.number: t for t in SAMPLER.generate_many(llama, iter(prompts), batch_size=batch_size, **SETTINGS)}
    assert sorted(texts) == list(range(8))
    empty = "an empty prompt was passed: pass at least one token, the bos token for instance"
    advice = "and LlamaForCausalLM has 48 tokens: encode it with the model's own tokenizer"
    assert {number: str(text.error) for number, text in texts.items() if text.error} == {
        0: f"prompt 0: {empty}",
        2: f"prompt 2: the prompt contains the id 48, {advice}",
        4: f"prompt 4: {empty}",
        5: f"prompt 5: the prompt contains the id -1, {advice}",
        7: f"prompt 7: the prompt contains the id 1,000,000, {advice}",
    }
    assert all(texts[number].tokens for number in (1, 3, 6))
    refused = list(SAMPLER.generate_many(llama, [[], [48]], **SETTINGS))
    assert [(text.number, text.tokens, text.text) for text in refused] == [(0, [], ""), (1, [], "")]


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        *(
            (name, IDS, f"{name} belongs to one prompt, and generate_many prepares each by itself")
            for name in ("inputs", "input_ids", "attention_mask", "position_ids", "inputs_embeds", "token_type_ids")
        ),
        ("past_key_values", DynamicCache(), "past_key_values belongs to one prompt"),
        ("negative_prompt_ids", IDS, "negative_prompt_ids belongs to one prompt"),
        ("streamer", TextIteratorStreamer(TOKENIZER), "leave streamer out and read the texts as they are yielded"),
        ("return_dict_in_generate", True, "return_dict_in_generate has no effect here"),
    ],
)
def test_arguments_of_one_prompt_are_refused_for_many(
    llama: PreTrainedModel, name: str, value: Any, match: str
) -> None:
    """At once, since otherwise a caller would wait forever for the end of a streamer."""
    refused(match, SAMPLER.generate_many, llama, [TEXT], **SETTINGS, **{name: value})


def test_a_model_whose_generate_changes_the_output_works_only_with_generate(llama: PreTrainedModel) -> None:
    class WithOwnOutput(type(llama)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            super().generate(*args, **kwargs)
            return {"sequences": None}

    model, own = WithOwnOutput(llama.config), r"WithOwnOutput has a generate\(\) of its own, which changes the output"
    for way in (SAMPLER.stream, SAMPLER.events):
        refused(own, way, model, TEXT, **SETTINGS)
    refused(own, lambda: next(SAMPLER.generate_many(model, [TEXT], **SETTINGS)))
    assert SAMPLER.generate(model, TEXT, **SETTINGS) == {"sequences": None}


def test_a_model_whose_generate_passes_on_its_arguments_works(llama: PreTrainedModel) -> None:
    class Passing(type(llama)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    model, settings = Passing(llama.config), {**SETTINGS, "suppress_tokens": [0, 1]}
    out = SAMPLER.generate(model, TEXT, return_dict_in_generate=True, **settings)
    assert out.report.tokens_fed >= out.sequences.shape[1] - 1
    assert out.reports == [out.report]
    assert "".join(SAMPLER.stream(model, TEXT, **settings))
    assert [done.text for done in SAMPLER.generate_many(model, [TEXT], **settings)]


def test_a_model_that_does_not_call_the_sampler_is_refused(llama: PreTrainedModel) -> None:
    class Independent(type(llama)):  # type: ignore[misc]
        def generate(self, *args: Any, custom_generate: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    with pytest.raises(
        ValueError, match=r"Independent.generate\(\) wrote the text by itself and never called the sampler"
    ):
        SAMPLER.generate(Independent(llama.config), TEXT, **SETTINGS)


@pytest.mark.parametrize("first", [["a testament to"], "gpt2", BanList(["a"]), None])
def test_what_is_no_tokenizer_is_refused_with_what_to_write(first: Any, llama: PreTrainedModel) -> None:
    first = first or llama
    refused(rf"not a {type(first).__name__}: write AntiSlop\(tokenizer, bans\)$", AntiSlop, first, ["a testament to"])
    with pytest.raises(InputError, match=r"write AntiSlop\(processor.tokenizer, bans\)$"):
        AntiSlop(SimpleNamespace(tokenizer=TOKENIZER), [])  # type: ignore[arg-type]


@pytest.mark.parametrize("args", [(), (torch.tensor([[1]]),)])
def test_a_sampler_that_is_called_itself_says_what_to_write(args: Any, llama: PreTrainedModel) -> None:
    with pytest.raises(InputError, match=r"^write sampler.generate\(model, …\), or model.generate\(…, custom_gen"):
        AntiSlop(TOKENIZER, [])(llama, *args, attention_mask=torch.tensor([[1]]))


@pytest.mark.parametrize("way", [SAMPLER.generate, SAMPLER.stream, SAMPLER.generate_many, SAMPLER.forward_pass])
def test_a_text_in_the_place_of_the_model_is_refused(way: Callable[..., Any], llama: PreTrainedModel) -> None:
    refused(r"^a model was expected first, not a str: write generate\(model, text\)$", way, TEXT, llama)


def test_a_tokenizer_equal_to_the_samplers_may_be_passed(llama: PreTrainedModel) -> None:
    for same in (TOKENIZER, build_tokenizer()):
        SAMPLER.generate(llama, TEXT, tokenizer=same, stop_strings="fa", **SETTINGS)


def test_stop_strings_reach_the_sampler_through_generate_and_a_pipeline(llama: PreTrainedModel) -> None:
    settings = {**SETTINGS, "stop_strings": ["d", "\n\n"]}
    expected = seeded(lambda: SAMPLER.generate(llama, TEXT, **settings))
    assert expected.shape[1] < IDS.shape[1] + 20
    mask = torch.ones_like(IDS)
    call: dict[str, Any] = {"attention_mask": mask, "custom_generate": SAMPLER, **settings}
    assert torch.equal(seeded(lambda: llama.generate(IDS, **call)), expected)
    assert torch.equal(seeded(lambda: llama.generate(IDS, tokenizer=TOKENIZER, **call)), expected)
    write = pipeline("text-generation", model=llama, tokenizer=TOKENIZER, device="cpu")
    settings = {**SETTINGS, "temperature": 1.0}  # a pipeline has defaults of its own
    (done,) = seeded(
        lambda: write(TEXT, custom_generate=SAMPLER, stop_sequence="d", return_full_text=False, **settings)
    )
    alone = seeded(lambda: SAMPLER.generate(llama, TEXT, stop_strings="d", **settings))
    assert done["generated_text"] == TOKENIZER.decode(alone[0, IDS.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("stops", ["", [""], ["d", ""], [5], 5])
@pytest.mark.parametrize("way", ["generate", "custom_generate", "stream", "generate_many", "config"])
def test_stop_strings_that_end_each_text_at_once_are_refused(way: str, stops: Any, llama: PreTrainedModel) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: SAMPLER.generate(llama, TEXT, stop_strings=stops, **SETTINGS),
        "custom_generate": lambda: llama.generate(IDS, custom_generate=SAMPLER, stop_strings=stops, **SETTINGS),
        "stream": lambda: next(SAMPLER.stream(llama, TEXT, stop_strings=stops, **SETTINGS)),
        "generate_many": lambda: next(SAMPLER.generate_many(llama, [TEXT], stop_strings=stops, **SETTINGS)),
        "config": lambda: SAMPLER.generate(
            llama, TEXT, generation_config=GenerationConfig(stop_strings=stops, **SETTINGS)
        ),
    }
    refused(r"^stop_strings is .*; strings that are not empty were expected: write \['…'\], or leave it", calls[way])


def test_the_bans_of_a_sampler_can_not_be_replaced() -> None:
    with pytest.raises(AttributeError, match=r"are compiled once: make another one for others, AntiSlop\(tokenizer,"):
        SAMPLER.bans = BanList([])
    assert f"{len(SAMPLER.bans)} bans" in repr(SAMPLER)


@pytest.mark.parametrize("bans", ["", "  ", "no such file.txt", "x" * 5000, b"", False, 5, {}, {"ad": 0.5}])
def test_inputs_that_are_not_a_list_of_bans_are_refused(bans: Any) -> None:
    """Former faults: an empty string banned nothing, and a long one was read as a path."""
    with pytest.raises(BanError, match=r"one string|a list of bans was expected") as caught:
        AntiSlop(TOKENIZER, bans)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("other", [{"banned_strings": [""]}, {"banned_strings": ["  "]}, {"banned_regex": [""]}])
def test_bans_without_a_visible_character_are_refused(other: dict[str, Any]) -> None:
    refused("", AntiSlop, TOKENIZER, **other)


@pytest.mark.parametrize(
    "copied", [deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))], ids=["deep", "pickle"]
)
def test_a_used_sampler_can_be_copied_and_the_copy_writes_the_same(
    llama: PreTrainedModel, copied: Callable[[AntiSlop], AntiSlop]
) -> None:
    sampler = AntiSlop(
        TOKENIZER, ["ad", Ban.regex("b[ea]"), Ban.words(["f", "a"], gap=1)], method="token", max_rewinds=7
    )
    written = seeded(lambda: sampler.generate(llama, TEXT, **SETTINGS))
    copy = copied(sampler)
    assert torch.equal(seeded(lambda: copy.generate(llama, TEXT, **SETTINGS)), written)
    assert (copy.bans, copy.options) == (sampler.bans, sampler.options)


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "begin_suppress_tokens": [7, 9], "stop_strings": ["fa"]},
        {"min_new_tokens": 6, "suppress_tokens": [7]},
        {"generation_config": GenerationConfig(max_new_tokens=9, min_new_tokens=4, eos_token_id=[5, 1], top_k=9)},
        {"max_new_tokens": None, "max_length": 12},
        {"exponential_decay_length_penalty": (2, 1.5), "forced_eos_token_id": 1, "prompt_lookup_num_tokens": 2},
        {"prefix_allowed_tokens_fn": lambda _, ids: [int(ids[0]), 9, 11, 12] + [1] * (len(ids) > 8)},
        {"logits_processor": [TopNSigmaLogitsProcessor(1.0)], "stopping_criteria": [StopStrings(["ab"], SPELL)]},
    ],
)
def test_each_of_many_texts_is_that_of_a_call_for_it_alone(llama: PreTrainedModel, asked: dict[str, Any]) -> None:
    """`generate` prepares the first prompt; those after it, of other lengths, as if it were called for each."""
    prompts = [[5, 6], [3, 8, 5, 22, 30, 9, 7], [7], [40, 9, 8, 5]]

    def write(numbers: Iterable[int]) -> list[list[int]]:
        chosen = {**SETTINGS, "batch_size": 1, "seeds": numbers, **asked}
        return [each.tokens for each in SAMPLER.generate_many(llama, [prompts[i] for i in numbers], **chosen)]

    assert write(range(4)) == [write([i])[0] for i in range(4)]


@pytest.mark.parametrize("limit", [2, 9, 40])
def test_a_length_criterion_of_the_caller_replaces_the_limit_of_the_configuration(
    llama: PreTrainedModel, limit: int
) -> None:
    settings = {"do_sample": False, "max_new_tokens": 20, "stopping_criteria": [MaxLengthCriteria(limit)]}
    inputs = TOKENIZER(TEXT, return_tensors="pt")
    expected = llama.generate(**inputs, **settings, eos_token_id=None)
    assert expected.shape[1] == max(limit, inputs["input_ids"].shape[1] + 1)
    assert torch.equal(AntiSlop(TOKENIZER, []).generate(llama, **inputs, **settings, eos_token_id=None), expected)
