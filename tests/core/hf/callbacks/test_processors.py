"""Logits processors of the user: those with a memory of the text are rewound with it, or refused by name."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel, set_seed

import antislop
from antislop import AntiSlop, Ban, Rewindable
from antislop.core.trace.events import Rewound
from tests.support.ban_cases import anywhere
from tests.support.models import VOCABULARY, build_model
from tests.support.processors import BANS, END, PROMPTS, TOKENIZER, sample

REFUSED = r"test_processors\.Grammar (changes with its calls|gave another answer|raised AssertionError)"


class Matcher:
    """A grammar: some tokens may follow each token; an end is always allowed. Raises on others, as real grammars do."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: list[int] = []

    @property
    def is_terminated(self) -> bool:
        return self._tokens[-1:] == [END]

    def allowed(self) -> Tensor:
        turn = (torch.arange(VOCABULARY) + len(self._tokens) + sum(self._tokens)) % 4 != 0
        turn[END] = True
        return turn

    def accept(self, token: int) -> bool:
        is_allowed = bool(self.allowed()[token])
        if is_allowed:
            self._tokens.append(token)
        return is_allowed

    def rollback(self, count: int) -> None:
        del self._tokens[len(self._tokens) - count :]


class Grammar(LogitsProcessor):
    """A processor as xgrammar's: each call advances the matcher of each row by the newest token of the row."""

    def __init__(self) -> None:
        self.matchers: list[Matcher] = []
        self.is_started = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self.matchers:
            self.matchers = [Matcher() for _ in input_ids]
        if len(self.matchers) != len(input_ids):
            raise RuntimeError(f"{len(input_ids)} rows, and {len(self.matchers)} at first")
        for matcher, ids in zip(self.matchers, input_ids, strict=True):
            if self.is_started and not matcher.is_terminated:
                assert matcher.accept(int(ids[-1]))
        self.is_started = True
        return mask(self.matchers, scores)


class RewindableGrammar(Grammar):
    """The same processor with a method `rewind`."""

    def __init__(self) -> None:
        super().__init__()
        self.rewinds: list[tuple[int, int]] = []

    def rewind(self, row: int, length: int) -> None:
        self.rewinds.append((row, length))
        self.matchers[row].rollback(len(self.matchers[row]._tokens) - length)


class Stateless(LogitsProcessor):
    """The same grammar, matched anew from the ids at each call."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return mask(fit(input_ids[:, PROMPTS.shape[1] :]), scores)


def mask(matchers: list[Matcher], scores: Tensor) -> Tensor:
    for matcher, row in zip(matchers, scores, strict=True):
        if not matcher.is_terminated:
            row[~matcher.allowed()] = -torch.inf  # in place
    return scores


def fit(tokens: Tensor) -> list[Matcher]:
    matchers = [Matcher() for _ in tokens]
    for matcher, row in zip(matchers, tokens.tolist(), strict=True):
        for token in row:
            assert matcher.is_terminated or matcher.accept(token)
    return matchers


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


@pytest.mark.parametrize("kind", [Grammar, RewindableGrammar])
@pytest.mark.parametrize("rows", [1, 3])
def test_without_a_violation_a_processor_is_called_as_in_generate(
    llama: PreTrainedModel, kind: type[Grammar], rows: int
) -> None:
    """With the ids of all rows, including finished ones."""
    lengths = set()
    for seed in range(3):
        expected = sample(llama, kind(), rows=rows, seed=seed)
        out = sample(llama, kind(), rows=rows, seed=seed, bans=["zz"])
        assert torch.equal(out.sequences, expected.sequences)
        lengths |= {row.tolist().index(END) for row in expected.sequences if END in row}
    assert lengths


def test_a_processor_that_can_not_rewind_is_refused_in_a_batch_at_the_first_rewind(llama: PreTrainedModel) -> None:
    for seed in range(4):
        with pytest.raises(ValueError, match=REFUSED) as refused:
            sample(llama, Grammar(), rows=3, seed=seed, bans=BANS)
        assert "rewind(row, length)" in str(refused.value)


def test_changes_of_a_processor_to_itself_are_undone_in_a_single_row(llama: PreTrainedModel) -> None:
    """It writes the same as a processor without a memory, also with drafts."""
    for seed in range(3):
        for drafts in ({}, {"prompt_lookup_num_tokens": 3}):
            expected = sample(llama, Stateless(), seed=seed, bans=BANS, **drafts)
            out = sample(llama, Grammar(), seed=seed, bans=BANS, **drafts)
            assert torch.equal(out.sequences, expected.sequences)
            assert out.report.rewinds


@pytest.mark.parametrize("rows", [1, 3])
def test_a_rewindable_processor_follows_the_text(llama: PreTrainedModel, rows: int) -> None:
    """Each row matches the grammar and is scored as if it was read anew; finished rows are not changed."""
    rewinds = 0
    for seed in range(4):
        processor = RewindableGrammar()
        assert isinstance(processor, Rewindable)
        out = sample(llama, processor, rows=rows, seed=seed, bans=BANS, output_scores=True)
        rewinds += out.report.rewinds
        tokens = out.sequences[:, PROMPTS.shape[1] :]
        fit(tokens)
        for step, scores in enumerate(out.scores):
            for row, matcher in enumerate(fit(tokens[:, :step])):
                if not matcher.is_terminated:
                    assert torch.equal(scores[row] > -torch.inf, matcher.allowed())
        if rows == 1:
            kept = [event.length for event in out.report.events if isinstance(event, Rewound)]
            assert processor.rewinds == [(0, length) for length in kept]
    assert rewinds > 5


def test_a_rewindable_processor_writes_the_same_as_one_without_a_memory(llama: PreTrainedModel) -> None:
    """The same tokens with the same random numbers, also with drafts, which the grammar may reject."""
    for seed in range(3):
        for drafts in ({}, {"prompt_lookup_num_tokens": 3}):
            expected = sample(llama, Stateless(), seed=seed, bans=BANS, max_new_tokens=40, **drafts)
            out = sample(llama, RewindableGrammar(), seed=seed, bans=BANS, max_new_tokens=40, **drafts)
            assert torch.equal(out.sequences, expected.sequences)
            assert out.report.rewinds


class Reader(LogitsProcessor):
    """Reads each row by its latest token up to its end, and checks that it has read what it is shown."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        is_first, self.tokens = not self.tokens, self.tokens or [[] for _ in input_ids]
        for tokens, ids in zip(self.tokens, input_ids[:, PROMPTS.shape[1] :].tolist(), strict=True):
            tokens += [] if is_first or END in tokens else ids[-1:]
            assert tokens == ids[: len(tokens)]
            assert len(tokens) == len(ids) or tokens[-1] == END
        return scores

    def rewind(self, row: int, length: int) -> None:
        del self.tokens[row][length:]


def test_a_row_behind_another_is_shown_what_it_has_read(llama: PreTrainedModel) -> None:
    """Where a ban leaves no token of top-k, processors are asked again, and another row may be shorter by then."""
    out = sample(llama, Reader(), rows=3, bans=BANS, top_k=1, max_new_tokens=60)
    assert len({report.rewinds for report in out.reports}) > 1


class Narrow(Reader):
    """Leaves one to three letters at each place, so that bans are conceded and rows are drawn from stored scores."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.letters = TOKENIZER.convert_tokens_to_ids([*"abc"])
        self.allowed = [chance.sample(self.letters, chance.choice([1, 1, 2, 2, 3])) for _ in range(40)]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        super().__call__(input_ids, scores)
        masked = torch.full_like(scores, -torch.inf)
        for row, tokens in enumerate(self.tokens):
            allowed = self.letters if END in tokens else self.allowed[len(tokens)]
            masked[row, allowed] = scores[row, allowed]
        return masked


@pytest.mark.parametrize("seed", [30, 49])
def test_a_row_that_grew_without_a_call_is_shown_again_from_where_it_was_padded(
    llama: PreTrainedModel, seed: int
) -> None:
    """Of 60 seeds, those where a row that was shown as padding went on with scores that were stored for it."""
    chance = random.Random(seed)
    processor = Narrow(chance)
    bans = ["".join(chance.choices("abc", k=chance.choice([2, 2, 3, 4]))) for _ in range(3)]
    out = sample(llama, processor, rows=2 + seed % 2, bans=[*map(anywhere, bans)], seed=seed, max_new_tokens=16)
    assert out.report.rewinds


def test_drafts_in_a_batch_are_refused_with_a_rewindable_processor(llama: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="RewindableGrammar sees the rows of a batch in step"):
        sample(llama, RewindableGrammar(), rows=2, bans=BANS, prompt_lookup_num_tokens=3)


def test_texts_in_flight_have_processors_of_their_own(llama: PreTrainedModel) -> None:
    """Made by a function; a shared processor is refused before any token if it has a memory."""
    sampler, prompts = AntiSlop(TOKENIZER, BANS), [row.tolist() for row in PROMPTS]
    settings: dict[str, Any] = {"max_new_tokens": 24, "do_sample": True, "seed": 1, "batch_size": 2, "pad_token_id": 1}
    made = sampler.generate_many(llama, prompts, logits_processor=lambda: [RewindableGrammar()], **settings)
    plain = sampler.generate_many(llama, prompts, logits_processor=[Stateless()], **settings)
    texts, expected = ({text.number: text.tokens for text in run} for run in (made, plain))
    assert texts == expected
    with pytest.raises(ValueError, match=r"RewindableGrammar follows one text, .* logits_processor=lambda: \[...\]"):
        next(sampler.generate_many(llama, prompts, logits_processor=[RewindableGrammar()], **settings))
    with pytest.raises(ValueError, match=REFUSED):
        next(sampler.generate_many(llama, prompts, logits_processor=[Grammar()], **settings))


class Noise(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.rand(())


class Penalty(LogitsProcessor):
    """A processor that depends on ids and scores, and changes the scores in place."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, input_ids[0, -1]] -= 3
        return scores


def test_processors_that_depend_only_on_ids_and_scores_are_accepted(llama: PreTrainedModel) -> None:
    """Changing scores in place is not a memory, and does not change the model's logits."""
    with pytest.raises(ValueError, match="Noise gave another answer"):
        sample(llama, Noise(), bans=BANS)
    out = sample(llama, Penalty(), bans=BANS, output_logits=True)
    assert out.report.rewinds
    assert torch.allclose(torch.cat(out.logits), llama(out.sequences).logits[0, 3:-1], atol=1e-4)


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 20}, "text": {"type": "string", "maxLength": 30}},
    "required": ["title", "text"],
    "additionalProperties": False,
}


def test_a_grammar_of_xgrammar_is_followed_under_bans() -> None:
    """A subclass of its processor is refused; with a method `rewind`, all texts are valid, also in a batch."""
    xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed: its processor is not tested")
    hf = pytest.importorskip("xgrammar.contrib.hf")

    class Rewinding(hf.LogitsProcessor):  # type: ignore[misc, name-defined]
        """Counts the tokens that each matcher accepted, and rolls them back."""

        def __init__(self, grammar: Any) -> None:
            super().__init__(grammar)
            self.taken: Counter[int] = Counter()

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            open_rows = [row for row, matcher in enumerate(self.matchers) if not matcher.is_terminated()]
            scores = super().__call__(input_ids, scores)
            self.taken = self.taken + Counter(open_rows)
            return scores

        def rewind(self, row: int, length: int) -> None:
            self.matchers[row].rollback(self.taken[row] - length)
            self.taken[row] = length

    class Subclass(hf.LogitsProcessor):  # type: ignore[misc, name-defined]
        """Not adapted, since a subclass may have more state than its base."""

    model, tokenizer = antislop.tiny_model()
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    grammar = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    bans = [Ban(phrase, edges="anywhere") for phrase in ("the", "and", "was", "'s no", "for ", "you ", "ed", "I'm")]
    sampler, inputs = AntiSlop(tokenizer, bans), tokenizer("A story as JSON: ", return_tensors="pt")
    start, rewinds = inputs["input_ids"].shape[1], 0
    for rows in (1, 2):
        for seed in range(2):
            settings = {**inputs, "max_new_tokens": 60, "do_sample": True, "num_return_sequences": rows}
            settings["return_dict_in_generate"] = True
            set_seed(seed)
            out = sampler.generate(model, **settings, logits_processor=[Rewinding(grammar)])
            rewinds += out.report.rewinds
            for ids in out.sequences:
                text = tokenizer.decode(ids[start:], skip_special_tokens=True)
                assert json.loads(text).keys() == SCHEMA["properties"].keys()
                assert not sampler.bans.find(text) or out.report.conceded
            if out.report.rewinds:
                set_seed(seed)
                with pytest.raises(ValueError, match=r"test_processors\.Subclass"):
                    sampler.generate(model, **settings, logits_processor=[Subclass(grammar)])
    assert rewinds
