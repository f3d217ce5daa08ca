"""A tiny Llama of 16 tokens for real servers, and its chain: texts so few that their distribution can be solved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MinPLogitsWarper,
    PreTrainedTokenizerFast,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antislop import AntiSlop, Ban
from antislop.engines import Endpoint, EndpointSampler
from antislop.engines.endpoint.endpoint import EndpointMethod
from tests.support.oracles import rejection_distribution
from tests.support.toys import Words

LETTERS = ("a", "b", "c", "d", " ", ".")
PAIRS = (("a", "b"), ("b", "c"), ("c", "d"), ("Ġ", "a"), ("Ġ", "b"), ("d", "a"), ("ab", "c"), ("a", "."))
SURFACES = (*LETTERS, *("".join(pair).replace("Ġ", " ") for pair in PAIRS))
START, END = 0, 1
LENGTH = 3

Setting = Mapping[str, float]
SETTINGS: Mapping[str, Setting] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top-k and min-p": {"temperature": 0.8, "top_k": 6, "min_p": 0.05},
    "top-p": {"top_p": 0.8},
}
LISTS: Mapping[str, Sequence[Ban]] = {
    "words": [Ban("a"), Ban("bc d"), Ban("ab", weight=0.3)],
    "nested starts": [
        Ban("abc", edges="anywhere"),
        Ban("bb", edges="anywhere"),
        Ban("ca", edges="anywhere", weight=0.3),
    ],
    "weights": [
        Ban("bc", edges="anywhere", weight=0.5),
        Ban("da", edges="anywhere", weight=0.2),
        Ban(". ", edges="anywhere"),
    ],
}
TRUNCATED = ("top-k and min-p", "top-p")
METHODS: Sequence[EndpointMethod] = ("bias", "auto", "thin", "reject")
CASES = [
    (bans, setting, method)
    for (bans, setting), method in product(product(LISTS, SETTINGS), METHODS)
    if method != "bias" or setting not in TRUNCATED
]
"""All lists and settings with all methods that are exact with them: a bias is not if truncation follows it."""
FEW_CASES = [
    [case for case in CASES if case[:2] == (bans, setting)][(i + 3 * j) % (3 if setting in TRUNCATED else 4)]
    for (i, bans), (j, setting) in product(enumerate(LISTS), enumerate(SETTINGS))
]
"""All lists and settings, with one method each, in turn."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose texts have several tokenizations."""
    tokens = ["<s>", "</s>", *(letter.replace(" ", "Ġ") for letter in LETTERS), *map("".join, PAIRS)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, list(PAIRS)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


@cache
def build_model() -> LlamaForCausalLM:
    """A model of two layers, with heads that vLLM supports on a CPU."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2 + len(SURFACES),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim == 2:
            weight *= 8
    model.lm_head.weight *= 2  # few texts are likely, so that few draws say much
    return model


class LettersChain:
    """The texts of a model by the tokens that may follow each other, in the form that the oracles read.

    prompt_length: how often the prompt repeats the first token.
    """

    words = Words("\x00", "\x01", *SURFACES)

    def __init__(self, setting: Setting, *, prompt_length: int = 1) -> None:
        self._setting = setting
        self._prompt = [START] * prompt_length

    @cached_property
    def shares(self) -> dict[tuple[int, ...], Tensor]:
        """The distribution after each prefix."""
        model, shares = build_model(), {}
        for length in range(LENGTH):
            prefixes = [*product(range(len(self.words)), repeat=length)]
            ids = torch.tensor([[*self._prompt, *prefix] for prefix in prefixes])
            scores = model(ids).logits[:, -1].double()
            for warp in self.warpers():
                scores = warp(ids, scores)
            shares |= zip(prefixes, scores.softmax(-1), strict=True)
        return shares

    def warpers(self) -> list[Callable[[Tensor, Tensor], Tensor]]:
        kinds: dict[str, Callable[[Any], Callable[[Tensor, Tensor], Tensor]]] = {
            "temperature": TemperatureLogitsWarper,
            "top_k": TopKLogitsWarper,
            "top_p": TopPLogitsWarper,
            "min_p": MinPLogitsWarper,
        }
        return [make(self._setting[name]) for name, make in kinds.items() if name in self._setting]

    def probs(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        return self.shares[tuple(tokens)]

    def ends(self, tokens: Sequence[int]) -> bool:
        return len(tokens) >= LENGTH or tokens[-1] == END


@cache
def expected_texts(bans: str, setting: str, *, prompt_length: int = 1) -> dict[tuple[int, ...], float]:
    """Solve the chain of rejection sampling."""
    chain: Any = LettersChain(SETTINGS[setting], prompt_length=prompt_length)
    return rejection_distribution(chain, chain.words, LISTS[bans])


def draw_texts(url: str, bans: str, setting: str, method: EndpointMethod, *, times: int) -> Counter[tuple[int, ...]]:
    """Draw texts from a server, and check that none contains a ban that is forbidden."""
    banned = list(LISTS[bans])
    sampler = AntiSlop(build_tokenizer(), banned, max_rewinds=10_000)
    served = EndpointSampler(sampler, Endpoint(f"{url}/v1"), method=method)
    drawn: Counter[tuple[int, ...]] = Counter()
    for text in served.generate_many(
        [[START]] * times, max_new_tokens=LENGTH, seed=1, batch_size=8, **SETTINGS[setting]
    ):
        if text.error is not None:
            raise text.error
        assert not text.conceded
        drawn[tuple(text.tokens)] += 1
    return drawn
