"""Stopping criteria are called as in `generate`, with kept text, and their memory of withdrawn text is undone."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, set_seed

from antislop import AntiSlop, Ban, BanList
from antislop.core.trace.events import Drawn, Truncated
from tests.support.depth import first_quick
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
BANS = [
    Ban(phrase, edges="anywhere")
    for phrase in ("b", "da", "ec", "ii", "f.", ". ", "gc", "h,", "d\n", "acc", "eea", "jea", "iej")
]
PROMPTS = torch.tensor([[0, 5, 9, 2], [0, 7, 3, 4], [0, 2, 2, 6]])


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


class StopPhrase(StoppingCriteria):
    """A flag per row, set when the phrase is in the text's tail; ends all rows at once, as in evaluation harnesses.

    calls: the ids of each call.
    """

    def __init__(self, phrase: str, *, rows: int) -> None:
        self.phrase = phrase
        self.tokenizer = TOKENIZER
        self.found = [False] * rows
        self.calls: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> bool:
        self.calls.append(input_ids)
        tails = self.tokenizer.batch_decode(input_ids[:, PROMPTS.shape[1] :][:, -len(self.phrase) - 2 :])
        for row, is_found in enumerate(self.found):
            self.found[row] = is_found or self.phrase in tails[row]
        return all(self.found)


class StopRows(StopPhrase):
    """The same criterion, which ends each row independently."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        super().__call__(input_ids, scores)
        return torch.tensor(self.found)


def sample(
    model: PreTrainedModel,
    criterion: Any,
    *,
    rows: int,
    seed: int,
    bans: Any = None,
    method: Any = "exact",
    **kwargs: Any,
) -> Any:
    """Run `generate`, or with bans the sampler, in a batch."""
    prompts = PROMPTS[:rows]
    settings = {"max_new_tokens": 20, "do_sample": True, "attention_mask": torch.ones_like(prompts), "pad_token_id": 1}
    settings |= {"stopping_criteria": [criterion], "return_dict_in_generate": True, **kwargs}
    set_seed(seed)
    run = model.generate if bans is None else AntiSlop(TOKENIZER, bans, method=method).generate
    return run(prompts, **settings) if bans is None else run(model, prompts, **settings)


WITHOUT_END: dict[str, Any] = {"eos_token_id": None, "suppress_tokens": [1]}
WAYS = [StopPhrase, StopRows]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", [{}, WITHOUT_END], ids=["with an end token", "without"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_criterion_is_called_as_in_generate(
    llama: PreTrainedModel, way: type[StopPhrase], end: dict[str, Any], rows: int
) -> None:
    """The same ids in each call, and the same output; without an end token, finished rows are continued."""
    for seed, phrase in enumerate(("a", "j")):
        theirs, ours = way(phrase, rows=rows), way(phrase, rows=rows)
        expected = sample(llama, theirs, rows=rows, seed=seed, **end)
        out = sample(llama, ours, rows=rows, seed=seed, bans=["zz"], **end)
        assert torch.equal(out.sequences, expected.sequences)
        assert len(ours.calls) == len(theirs.calls)
        assert all(map(torch.equal, ours.calls, theirs.calls))
        assert ours.found == theirs.found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", first_quick([{}, WITHOUT_END]), ids=["with an end token", "without"])
@pytest.mark.parametrize("rows", first_quick([3, 1]))
def test_a_criterion_ends_kept_text_at_the_same_token_as_in_generate(
    llama: PreTrainedModel, way: type[StopPhrase], end: dict[str, Any], rows: int
) -> None:
    """A new criterion, called with the output step by step, returns the same values and has the same memory."""
    rewinds = 0
    for seed, phrase in enumerate(("j", "a", "ea")):
        ours, again = way(phrase, rows=rows), way(phrase, rows=rows)
        out = sample(llama, ours, rows=rows, seed=seed, bans=BANS, **end)
        rewinds += out.report.rewinds
        ids, start = out.sequences, PROMPTS.shape[1]
        is_ended = torch.zeros(rows, dtype=torch.bool)
        for length in range(start + 1, ids.shape[1] + 1):
            assert not is_ended.all()
            is_padded = is_ended if not end else torch.zeros_like(is_ended)
            assert torch.all(ids[is_padded, length - 1] == 1)
            is_ended |= torch.as_tensor(again(ids[:, :length], None))
            is_ended |= (ids[:, length - 1] == 1) if not end else False
        assert is_ended.all() or ids.shape[1] == start + 20
        assert ours.found == again.found
        text = TOKENIZER.batch_decode(ids[:, start:])
        assert out.report.conceded or not any(map(BanList(BANS).find, text))
    assert rewinds > 5


def test_a_stop_that_occurs_in_withdrawn_text_alone_ends_nothing(llama: PreTrainedModel) -> None:
    """The phrase to stop at is part of a ban: without the ban each text ends early, with it none does."""
    stopped = [sample(llama, StopPhrase("e", rows=1), rows=1, seed=seed).sequences.shape[1] for seed in range(4)]
    assert max(stopped) < PROMPTS.shape[1] + 20
    for seed in range(4):
        criterion = StopPhrase("e", rows=1)
        bans = [Ban("e", edges="anywhere")]
        out = sample(llama, criterion, rows=1, seed=seed, bans=bans, suppress_tokens=[1])
        assert out.report.rewinds
        assert criterion.found == [False]
        assert out.sequences.shape[1] == PROMPTS.shape[1] + 20


def test_a_row_is_cut_if_another_row_that_was_rewritten_ends_both(llama: PreTrainedModel) -> None:
    """The second row rewinds by several tokens and then ends the batch, when the first row is already longer."""
    greedy: dict[str, Any] = {"do_sample": False, "suppress_tokens": [0, 1]}
    before = sample(llama, never, rows=2, seed=0, **greedy).sequences
    bans = [Ban(TOKENIZER.decode(before[1, 9:15]), edges="anywhere")]
    greedy["method"] = "token"
    after = sample(llama, never, rows=2, seed=0, bans=bans, **greedy).sequences
    last = int((before[1, :14] != after[1, :14]).nonzero()[0])

    def ends_by_second_row(input_ids: Tensor, scores: Any) -> bool:
        return input_ids.shape[1] == last + 1 and bool(input_ids[1, last] == after[1, last])

    out = sample(llama, ends_by_second_row, rows=2, seed=0, bans=bans, **greedy)
    assert torch.equal(out.sequences, after[:, : last + 1])
    text: list[int] = []
    for event in out.reports[0].events:
        if isinstance(event, Drawn):
            text.append(event.token)
        elif isinstance(event, Truncated):
            assert tuple(text[event.length :]) == event.withdrawn
            del text[event.length :]
    assert text == out.sequences[0, 4:].tolist()
    assert any(isinstance(event, Truncated) for event in out.reports[0].events)


def never(input_ids: Tensor, scores: Any) -> bool:
    return False


@pytest.mark.parametrize("rows", [1, 3])
def test_an_end_that_completes_a_ban_is_withdrawn(llama: PreTrainedModel, rows: int) -> None:
    """The criterion ends the text, which completes the ban, so that the text can't end there."""
    bans = [Ban.regex("e.?$", max_span=2)]
    out = sample(llama, StopRows("e", rows=rows), rows=rows, seed=0, bans=bans, suppress_tokens=[0, 1])
    assert out.report.rewinds
    assert not any(map(BanList(bans).find, TOKENIZER.batch_decode(out.sequences[:, 4:])))


class Guessing(StoppingCriteria):
    """A criterion that depends on random numbers."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> bool:
        return bool(torch.rand(()) < 0.3)


class Hashing(StoppingCriteria):
    """A criterion that remembers the text in an object written in C."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> bool:
        self.digest.update(bytes([int(input_ids[0, -1])]))
        return self.digest.digest()[0] < 10


def test_a_memory_that_can_not_be_undone_is_refused_by_name(llama: PreTrainedModel) -> None:
    """What can't be copied before any token; any other at the first rewind by which it is noticed."""
    criterion, before = Hashing(), hashlib.sha256().digest()
    with pytest.raises(ValueError, match=r"Hashing can't be copied \(cannot pickle '_hashlib\.HASH' object\)"):
        sample(llama, criterion, rows=1, seed=0, bans=BANS)
    assert criterion.digest.digest() == before
    with pytest.raises(ValueError, match="Guessing gave another answer"):
        [sample(llama, Guessing(), rows=1, seed=seed, bans=BANS, suppress_tokens=[0, 1]) for seed in range(20)]


class Listed(StopRows):
    """A criterion with a generator as an attribute and a method `rewind` for its memory."""

    def __init__(self, phrase: str, *, rows: int) -> None:
        super().__init__(phrase, rows=rows)
        self.history = [[False] * rows]
        self.source = (number for number in ())

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        self.found = list(self.history[-1])
        answer = super().__call__(input_ids, scores)
        self.history.append(list(self.found))
        return answer

    def rewind(self, row: int, length: int) -> None:
        del self.history[length + 1 :]


def test_a_criterion_with_a_method_rewind_writes_the_same(llama: PreTrainedModel) -> None:
    for rows in (1, 3):
        undone = sample(llama, StopRows("a", rows=rows), rows=rows, seed=1, bans=BANS)
        listed = sample(llama, Listed("a", rows=rows), rows=rows, seed=1, bans=BANS)
        assert undone.report.rewinds
        assert torch.equal(undone.sequences, listed.sequences)


def test_texts_in_flight_do_not_share_a_memory(llama: PreTrainedModel) -> None:
    """A function makes criteria for each text; a shared list is refused once a criterion in it has a memory."""
    sampler, prompts = AntiSlop(TOKENIZER, BANS), [row.tolist() for row in PROMPTS]
    settings = {"max_new_tokens": 30, "do_sample": True, "seed": 1, "batch_size": 2, "pad_token_id": 1}
    made: list[StopPhrase] = []

    def make() -> list[StopPhrase]:
        made.append(StopPhrase("a", rows=1))
        return made[-1:]

    texts = sorted(sampler.generate_many(llama, prompts, stopping_criteria=make, **settings), key=lambda t: t.number)
    assert [("a" in TOKENIZER.decode(text.tokens)) for text in texts] == [parts.found[0] for parts in made]
    assert all("a" not in TOKENIZER.decode(text.tokens[:-1]) for text in texts)
    with pytest.raises(ValueError, match=r"StopPhrase remembers .* stopping_criteria=lambda: \[...\]"):
        list(sampler.generate_many(llama, prompts, stopping_criteria=[StopPhrase("a", rows=1)], **settings))
    alone = list(sampler.generate_many(llama, prompts, stopping_criteria=[never], **settings))
    assert len(alone) == len(prompts)


def test_a_stream_ends_at_the_same_token_as_the_output(llama: PreTrainedModel) -> None:
    out = sample(llama, StopPhrase("a", rows=1), rows=1, seed=2, bans=BANS)
    set_seed(2)
    settings = {"max_new_tokens": 20, "do_sample": True, "stopping_criteria": [StopPhrase("a", rows=1)]}
    pieces = AntiSlop(TOKENIZER, BANS).stream(llama, PROMPTS[:1], **settings)
    assert "".join(pieces) == TOKENIZER.decode(out.sequences[0, 4:], skip_special_tokens=True)
