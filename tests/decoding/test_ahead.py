"""Passes that are begun before the matcher reads their tokens: the same texts, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList, TextStreamer, set_seed

from antislop import AntiSlop, Ban
from antislop.caches.layers import AHEAD_IN_WINDOW
from antislop.decoding.batch_engine import BatchEngine
from antislop.decoding.loop import decode
from antislop.decoding.protocols import count_queries
from antislop.decoding.row import Row
from antislop.decoding.walker import Policy
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Drawn, Event, Finished, Forwarded
from antislop.trace.report import Report
from tests.caches.test_batches import (
    COMMON,
    LIKELY_TO_END,
    MANY,
    NEVER,
    NO_END,
    PROMPTS,
    SETTINGS,
    assert_as_if_alone,
    counting,
    generate,
    pad,
    texts_of,
    unequal_prompts,
)
from tests.decoding.test_exactness import CASES, p_value
from tests.hf.test_families import ASKED, favorites, fresh_logits
from tests.support.families import RECURRENT, build, prepare
from tests.support.markov import MarkovModel
from tests.support.models import FAMILIES, WINDOW, build_model, build_tokenizer
from tests.support.oracles import rejection_distribution
from tests.support.toys import PROMPT, Markov, Words

TOKENIZER = build_tokenizer()
SAMPLED: dict[str, Any] = {"do_sample": True, "return_dict_in_generate": True, "output_logits": True}
ENDS_LATE: dict[str, Any] = {"exponential_decay_length_penalty": (8, 1.15), "pad_token_id": 0}
BOTH = (False, True)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build_model(request.param)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def sampler(bans: Sequence[str | Ban], *, run_ahead: bool = True, **kwargs: Any) -> AntiSlop:
    return AntiSlop(TOKENIZER, bans, run_ahead=run_ahead, **kwargs)


def without_passes(report: Report) -> list[Event]:
    return [event for event in report.events if not isinstance(event, Forwarded | Finished)]


# -- where nothing is banned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"num_return_sequences": 3}], ids=["once", "three times"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_where_nothing_matches_a_text_is_generates_own(
    model: PreTrainedModel, name: str, rows: int, more: dict[str, Any]
) -> None:
    """And takes up as many random numbers, and one pass more if it ends before its limit."""
    asked = {**LIKELY_TO_END, **SETTINGS[name], **(more if SETTINGS[name]["do_sample"] else {})}
    for seed in range(2):
        with counting(model) as theirs:
            expected = generate(model, PROMPTS[:rows], seed=seed, **asked)
        random_after = torch.rand(1)
        with counting(model) as ours:
            ids = generate(model, PROMPTS[:rows], seed=seed, custom_generate=sampler(NEVER), **asked)
        assert torch.equal(ids, expected)
        assert torch.equal(torch.rand(1), random_after)
        to_limit = max(map(len, texts_of(ids, PROMPTS[:rows]))) == 24
        assert len(ours) == len(theirs) + (not to_limit)


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_no_pass_is_run_for_what_comes_after_the_limit(llama: PreTrainedModel, prompts: Any) -> None:
    for new in (1, 2, 20):
        with counting(llama) as fed:
            generate(llama, prompts, custom_generate=sampler(NEVER), max_new_tokens=new, do_sample=True, **NO_END)
        assert len(fed) == new


def test_the_next_pass_is_begun_before_the_matcher_reads() -> None:
    """Of each token but the last, which ends the text by its length."""
    happened: list[str] = []
    markov = Markov(4, length=6)

    class Watched(MarkovModel):
        def forward(self, *args: Any) -> torch.Tensor:
            happened.append("pass")
            return super().forward(*args)

    class Reading(Matcher):
        def feed(self, *args: Any) -> Any:
            happened.append("read")
            return super().feed(*args)

    for run_ahead in BOTH:
        happened.clear()
        language_model = Watched(markov.table)
        write(markov, Reading([], LETTERS), engine=engine_of(language_model, rows=1), rows=1, run_ahead=run_ahead)
        del happened[: len(PROMPT)]  # read first
        ahead = ["pass", *["pass", "read"] * 5, "read"]
        assert happened == (ahead if run_ahead else ["pass", "read"] * 6)


class _Waits(TorchDispatchMode):
    """Counts what would have to wait for a device: a look at a number that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"):
            self.found.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("prompts", [PROMPTS[:1], [PROMPTS[0]] * 3, PROMPTS])
def test_nothing_waits_for_a_pass_but_the_copy_of_its_tokens(
    llama: PreTrainedModel, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as a CPU can tell: on a device a query of one column is not looked at."""
    monkeypatch.setattr("antislop.hf.model.count_queries", lambda ids: [ids.shape[1]] * ids.shape[0])
    run = sampler(NEVER)._start(llama, **pad(prompts), max_new_tokens=12, do_sample=True, top_k=9, **NO_END)
    events = run._decode()
    next(events)
    with _Waits() as waits:
        assert sum(isinstance(event, Drawn) for _, event in events) == 12 * len(prompts)
    assert waits.found == []


def test_a_query_of_one_column_is_not_looked_at_on_a_device() -> None:
    assert count_queries(torch.zeros((3, 1), dtype=torch.long, device="meta")) == [1, 1, 1]
    with pytest.raises(ValueError, match="feeds no token"):
        count_queries(torch.tensor([[-1], [3]]))


# -- where something is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [NO_END, ENDS_LATE], ids=["all to the limit", "some end"])
@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_texts_are_the_same_and_each_row_is_as_if_alone(
    model: PreTrainedModel, rows: int, ending: dict[str, Any]
) -> None:
    asked = {**SAMPLED, **ending, "do_sample": False, "repetition_penalty": 1.3, "max_new_tokens": 3 * WINDOW}
    usual, ahead = (
        generate(model, PROMPTS[:rows], custom_generate=sampler(COMMON, run_ahead=way), **asked) for way in BOTH
    )
    assert torch.equal(ahead.sequences, usual.sequences)
    assert [*map(without_passes, ahead.reports)] == [*map(without_passes, usual.reports)]
    assert_as_if_alone(model, ahead, PROMPTS[:rows])
    assert_costs(model, usual.reports, ahead.reports, texts_of(ahead.sequences, PROMPTS[:rows]), PROMPTS[:rows])
    assert ahead.report.rewinds > 2


def assert_costs(
    model: PreTrainedModel, usual: Sequence[Report], ahead: Sequence[Report], texts: Any, prompts: Any
) -> None:
    """A violation costs its own row at most one pass more, and so does an early end; tokens are counted in full."""
    longest = max(map(len, prompts))
    for before, after, text in zip(usual, ahead, texts, strict=True):
        assert after.forward_passes <= before.forward_passes + after.violations + 1
        assert after.tokens_fed == longest + len(text) + after.cut_tokens - 1
        assert after.cut_tokens <= after.withdrawn_tokens + 1


def test_sampled_rows_that_go_back_apart_are_as_if_alone(model: PreTrainedModel) -> None:
    asked = {**SAMPLED, **LIKELY_TO_END, "max_new_tokens": 3 * WINDOW, "num_return_sequences": 2}
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    for seed in range(3):
        with counting(model) as fed:
            out = generate(model, seed=seed, custom_generate=sampler(COMMON), **asked)
        assert out.report.rewinds > 3
        assert_as_if_alone(model, out, prompts)
        texts = texts_of(out.sequences, prompts)
        assert not any(TOKENIZER.decode(text).count(ban.phrase) for text in texts for ban in COMMON)
        for report, text in zip(out.reports, texts, strict=True):
            assert report.tokens_fed == max(map(len, prompts)) + len(text) + report.cut_tokens - 1
        assert max(report.forward_passes for report in out.reports) <= len(fed)


def test_a_sampled_text_alone_is_the_same(model: PreTrainedModel) -> None:
    """There is nobody else to take random numbers while it waits."""
    for seed in range(5):
        usual, ahead = (
            generate(model, PROMPTS[:1], seed=seed, custom_generate=sampler(COMMON, run_ahead=way), **SAMPLED, **NO_END)
            for way in BOTH
        )
        assert torch.equal(ahead.sequences, usual.sequences)
        assert without_passes(ahead.report) == without_passes(usual.report)
        assert_costs(model, [usual.report], [ahead.report], texts_of(ahead.sequences, PROMPTS[:1]), PROMPTS[:1])


def test_the_report_of_a_text_counts_each_pass(llama: PreTrainedModel) -> None:
    for ending in (NO_END, LIKELY_TO_END):
        for seed in range(4):
            with counting(llama) as fed:
                out = generate(llama, PROMPTS[:1], seed=seed, custom_generate=sampler(COMMON), **SAMPLED, **ending)
            assert out.report.forward_passes == len(fed)
            assert out.report.tokens_fed == sum(fed)


def test_who_does_not_go_back_waits_for_nobody(llama: PreTrainedModel) -> None:
    """A row that goes back in each step or two; the other is done after as many passes as it has tokens."""
    prompts, asked = [PROMPTS[0], PROMPTS[0][::-1]], {**SAMPLED, **NO_END, "prefix_allowed_tokens_fn": allowed}
    out = generate(llama, prompts, custom_generate=sampler([Ban("ab", edges="anywhere")]), **asked)
    assert out.reports[0].rewinds > 5
    assert out.reports[1].rewinds == 0
    assert out.reports[1].forward_passes == 24
    assert out.reports[0].forward_passes > 29


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    """The first row says "a", "b" and "ab"; the second only "c"."""
    letters = TOKENIZER("c" if row else "ab", add_special_tokens=False)["input_ids"]
    return letters if row else [*letters, *TOKENIZER.convert_tokens_to_ids(["a", "b"])]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_texts_in_flight_are_the_same(family: str, batch_size: int) -> None:
    """Each has its own random numbers, so waiting changes nothing, and neither does a new neighbor."""
    prompts, own = unequal_prompts(8), build_model(family)
    usual, ahead = (
        sorted(
            sampler(COMMON, run_ahead=way).generate_many(own, prompts, batch_size=batch_size, **MANY),
            key=lambda done: done.number,
        )
        for way in BOTH
    )
    assert [done.tokens for done in ahead] == [done.tokens for done in usual]
    assert sum(done.report.rewinds for done in ahead) > 8
    for done, before in zip(ahead, usual, strict=True):
        report = done.report
        assert without_passes(report) == without_passes(before.report)
        assert report.tokens_fed == len(prompts[done.number]) + len(done.tokens) + report.cut_tokens - 1
        assert report.forward_passes <= before.report.forward_passes + report.violations + 1


# -- exactness ---------------------------------------------------------------------------------------------------------

LETTERS = Words("a", "b", "c", "d")


def engine_of(language_model: MarkovModel, *, rows: int) -> BatchEngine:
    return BatchEngine(language_model, language_model.new_cache(rows))


def write(
    markov: Markov, matcher: Matcher, *, engine: BatchEngine, rows: int, run_ahead: bool = True, method: str = "exact"
) -> list[tuple[int, ...]]:
    """The texts of so many rows in one batch."""
    state = matcher.start(PROMPT, lookback=False)
    batch = [
        Row(torch.tensor([PROMPT]), settings=markov, state=state, capacity=markov.length, place=place)
        for place in range(rows)
    ]
    policy = Policy(True, method, "concede", 100, 10_000)  # type: ignore[arg-type]
    for _ in decode(batch, engine=engine, matcher=matcher, policy=policy, run_ahead=run_ahead):
        pass
    return [tuple(row.tokens) for row in batch]


def test_places_that_nobody_takes_are_kept_up_and_do_not_matter() -> None:
    markov = Markov(4, length=12)
    matcher, texts = Matcher([Ban("ab", edges="anywhere"), Ban("c", edges="anywhere")], LETTERS), []
    for places in (3, 5):
        torch.manual_seed(0)
        language_model = MarkovModel(markov.table)
        texts.append([write(markov, matcher, engine=engine_of(language_model, rows=places), rows=3)])
        assert {len(counts) for counts in language_model.fed[1:]} == {places}
    assert texts[0] == texts[1]


@pytest.mark.parametrize("case", ["one phrase", "a weight of 0.3", "nested starts", "word edges with weights"])
def test_rows_that_are_run_ahead_are_drawn_as_rejection_sampling_would(case: str) -> None:
    """Some end early, so they wait, go on and are finished in every mixture."""
    words, bans = CASES[case]
    markov = Markov(len(words), seed=1, eos=frozenset({len(words) - 1}))
    matcher, drawn = Matcher(bans, words), Counter[tuple[int, ...]]()
    torch.manual_seed(0)
    for _ in range(120):
        drawn.update(write(markov, matcher, engine=engine_of(MarkovModel(markov.table), rows=16), rows=16))
    assert p_value(drawn, rejection_distribution(markov, words, bans)) > 1e-4


# -- every kind of model and cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", ["mamba", "lfm2", "falcon-h1", "t5", "bart", "qwen2-vl", "llama4", "bloom"])
def test_every_kind_of_model_is_run_ahead_without_a_trace(family: str, rows: int) -> None:
    own, prompts = build(family), ((2, 5, 9, 3, 12, 7), (4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40), (21, 3, 8))[:rows]
    for seed in range(2):
        set_seed(seed)
        out = sampler(favorites(family)).generate(own, **prepare(family, *prompts), **ASKED, do_sample=True)
        assert out.report.rewinds > 3
        for row, prompt in enumerate(prompts):
            text = out.sequences[row, -ASKED["max_new_tokens"] :].tolist()
            fresh = fresh_logits(own, prepare(family, prompt), text)[:-1]
            kept = torch.stack([step[row] for step in out.logits])
            assert torch.allclose(kept, fresh, atol=1e-4)
    asked = {**prepare(family, *prompts), **LIKELY_TO_END, "do_sample": True, "max_new_tokens": 20}
    set_seed(1)
    expected = own.generate(**asked)
    set_seed(1)
    assert torch.equal(sampler(NEVER).generate(own, **asked), expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_static_caches_need_no_more_room(family: str, rows: int) -> None:
    own, asked = build_model(family), {**SAMPLED, "cache_implementation": "static", "max_new_tokens": 40}
    out = generate(own, PROMPTS[:rows], custom_generate=sampler(COMMON), **asked, **NO_END)
    assert out.report.rewinds > 3
    assert_as_if_alone(own, out, PROMPTS[:rows])
    asked |= LIKELY_TO_END
    expected = generate(own, PROMPTS[:rows], **asked)
    assert torch.equal(
        generate(own, PROMPTS[:rows], custom_generate=sampler(NEVER), **asked).sequences, expected.sequences
    )


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "lfm2", "falcon-h1"])
@torch.no_grad()
def test_the_cache_handed_back_holds_the_text_but_its_last_token(family: str, rows: int) -> None:
    """After texts that end unforeseen: the token that ended the last of them was read in vain."""
    own, prompts = (build_model if family in FAMILIES else build)(family), [PROMPTS[2], PROMPTS[2][::-1]]
    early, cut = 0, set[int]()
    for seed in range(6):
        asked = {**SAMPLED, **LIKELY_TO_END, "max_new_tokens": 3 * WINDOW}
        out = generate(own, prompts[:rows], seed=seed, custom_generate=sampler(NEVER), **asked)
        usual = generate(own, prompts[:rows], seed=seed, custom_generate=sampler(NEVER, run_ahead=False), **asked)
        assert torch.equal(out.sequences, usual.sequences)
        texts = texts_of(out.sequences, prompts[:rows])
        early += max(map(len, texts)) < 3 * WINDOW
        assert out.past_key_values.get_seq_length() == out.sequences.shape[1] - 1
        longest = max(range(rows), key=lambda row: len(texts[row]))
        for mine, theirs in zip(out.past_key_values.layers, usual.past_key_values.layers, strict=True):
            assert type(mine) is type(theirs)
            for one, other in zip(states_of(mine), states_of(theirs), strict=True):
                assert torch.allclose(one[longest], other[longest], atol=1e-5)
        for report, text in zip(out.reports, texts, strict=True):
            assert report.tokens_fed == len(PROMPTS[2]) + len(text) + report.cut_tokens - 1
            cut.add(report.cut_tokens)
    assert early > 1
    assert max(cut) > 1 if family in RECURRENT else max(cut) == 1, "recurrent ones read up to three tokens again"


@pytest.mark.parametrize("rows", [1, 3])
def test_windows_forget_what_is_settled(rows: int) -> None:
    own = build_model("mistral")
    set_seed(0)
    run = sampler(NEVER)._start(own, **pad(PROMPTS[:rows]), do_sample=True, max_new_tokens=300, **NO_END)
    for _ in run._decode():
        pass
    layers = list(run.cache.layers)  # type: ignore[attr-defined]
    assert all(layer._keys.shape[2] <= WINDOW + AHEAD_IN_WINDOW + 16 for layer in layers)


def states_of(layer: Any) -> list[torch.Tensor]:
    """Everything that a layer of transformers remembers."""
    recurrent = (state for name in ("conv", "recurrent") for state in getattr(layer, f"{name}_states", {}).values())
    found = [getattr(layer, "keys", None), getattr(layer, "values", None), *recurrent]
    return [state for state in found if state is not None]


def test_a_cache_of_the_user_goes_on_where_the_text_ended(llama: PreTrainedModel) -> None:
    for seed in range(4):
        cache = DynamicCache(config=llama.config)
        asked = {**LIKELY_TO_END, "do_sample": True, "past_key_values": cache, "custom_generate": sampler(COMMON)}
        ids = generate(llama, PROMPTS[:1], seed=seed, **asked)
        assert cache.get_seq_length() == ids.shape[1] - 1
        logits = llama(ids[:, -1:], past_key_values=cache).logits[:, -1]
        assert torch.allclose(logits, llama(ids).logits[:, -1], atol=1e-4)


# -- what else goes through the loop -----------------------------------------------------------------------------------


class StopsAfter(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == 12


class Recorder(TextStreamer):
    def __init__(self) -> None:
        self.heard: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.heard += value.flatten().tolist()

    def end(self) -> None:
        self.heard.append(-1)


WAYS: dict[str, Callable[[AntiSlop, PreTrainedModel], Any]] = {
    "stream": lambda own, model: list(own.stream(model, prompt(), max_new_tokens=30, do_sample=True)),
    "events": lambda own, model: [
        event for event in own.events(model, prompt(), max_new_tokens=30) if not isinstance(event, Forwarded | Finished)
    ],
    "streamer": lambda own, model: heard(own, model),
    "stop strings": lambda own, model: own.generate(model, prompt(), max_new_tokens=40, stop_strings=["ad", "c"]),
    "a criterion": lambda own, model: own.generate(
        model, prompt(), max_new_tokens=40, do_sample=True, stopping_criteria=StoppingCriteriaList([StopsAfter()])
    ),
    "prompt lookup": lambda own, model: own.generate(
        model, prompt(), max_new_tokens=40, do_sample=True, prompt_lookup_num_tokens=3
    ),
}


def prompt() -> torch.Tensor:
    return torch.tensor([PROMPTS[2]])


def heard(own: AntiSlop, model: PreTrainedModel) -> list[int]:
    recorder = Recorder()
    own.generate(model, prompt(), max_new_tokens=30, do_sample=True, streamer=recorder)
    return recorder.heard


@pytest.mark.filterwarnings("ignore:The attention mask")
@pytest.mark.parametrize("options", [{}, {"method": "token"}, {"draft_bans": True}, {"on_exhausted": "stop"}])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_by_every_way(llama: PreTrainedModel, way: str, options: dict[str, Any]) -> None:
    bans = [*COMMON, Ban("c", weight=0.5, edges="anywhere"), Ban("gh", edges="anywhere")]
    for seed in range(3):
        results = []
        for run_ahead in BOTH:
            set_seed(seed)
            results.append(WAYS[way](sampler(bans, run_ahead=run_ahead, **options), llama))
        usual, ahead = results
        assert torch.equal(usual, ahead) if isinstance(usual, torch.Tensor) else usual == ahead


def test_a_drafter_sees_each_token_before_it_is_read(llama: PreTrainedModel) -> None:
    """With drafts nothing is run ahead: as many passes as without."""
    usual, ahead = (
        generate(llama, PROMPTS[:1], custom_generate=sampler(COMMON, run_ahead=way, draft_bans=True), **SAMPLED)
        for way in BOTH
    )
    assert usual.report.rewinds
    assert ahead.report.events[:-1] == usual.report.events[:-1]
