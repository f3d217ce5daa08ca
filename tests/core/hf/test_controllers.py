"""Controllers on real models: caches follow every move, forks are texts of their own, and errors leave all usable."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binom
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.loop import Branch, Capabilities, Controller, Splice, Step, TokenSet
from antislop.core.trace import Drawn, Rewound, Truncated
from antislop.errors import BacktrackError, CapabilityError, InputError
from antislop.steer import Grammar
from tests.support import letters
from tests.support.controllers import controlled_distribution
from tests.support.depth import DEPTH, first_quick
from tests.support.families import ENCODER_DECODER, FAMILIES, MULTIMODAL, build
from tests.support.models import build_model, build_tokenizer
from tests.support.toys import PROMPT as TOY_PROMPT, Markov

TOKENIZER = build_tokenizer()
SIZE = len(TOKENIZER)
PROMPT = torch.tensor([[5, 6, 7, 8]])
SPECIAL = ENCODER_DECODER | MULTIMODAL
ANY = Branch(sample_mask=TokenSet.all())


class Rule:
    """A controller made of a function."""

    def __init__(self, answer: Any, needs: Capabilities | None = None) -> None:
        self.answer, self.needs = answer, needs or Capabilities(has_forks=True)
        self.prompts, self.steps = list[list[int]](), list[Step]()

    def start(self, prompt: Sequence[int]) -> None:
        self.prompts.append(list(prompt))

    def fork(self) -> Controller:
        return Rule(self.answer, self.needs)

    def mid_process(self, step: Step) -> list[Branch]:
        self.steps.append(step)
        return self.answer(step)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def generate(model: PreTrainedModel, controller: Any, *, bans: Sequence[Any] = (), **options: Any) -> Any:
    set_seed(0)
    inputs = options.pop("inputs", PROMPT)
    asked = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0, **options}
    asked.setdefault("attention_mask", torch.ones_like(inputs))
    return AntiSlop(TOKENIZER, list(bans)).generate(
        model, inputs, return_dict_in_generate=True, controller=controller, **asked
    )


def move_at_random(seed: int, *, is_moving: bool = True) -> Rule:
    """Sample any token, and often force, cut and splice before."""
    choice = random.Random(seed)

    def answer(step: Step) -> list[Branch]:
        kind = choice.choice(["sample", "force", "cut", "splice"]) if is_moving and len(rule.steps) < 25 else "sample"
        back = choice.randrange(min(len(step.tokens), 9) + 1)
        forced = tuple(choice.choices(range(2, SIZE), k=choice.randrange(1, 5)))
        if kind == "force":
            return [Branch(ff_tokens=forced)]
        if kind == "cut" and back:
            return [Branch(back, sample_mask=TokenSet.all())]
        if kind == "splice":
            return [Branch(sample_mask=TokenSet.all(), splices=(Splice(backtrack=back + 1, ff_tokens=forced),))]
        return [ANY]

    rule = Rule(answer, Capabilities())
    return rule


def measure_error(model: PreTrainedModel, out: Any) -> tuple[float, int]:
    """Return the largest difference of a draw's probability from that of a clean forward pass, and the draws."""
    text, error, draws = list[int](), 0.0, 0
    for event in out.trace.rows[0].events:
        if isinstance(event, (Rewound, Truncated)):
            del text[event.length :]
        elif isinstance(event, Drawn):
            if event.choice is not None:
                logits = model(torch.tensor([[*PROMPT[0].tolist(), *text]]), use_cache=False).logits[0, -1].float()
                logits[1] = -torch.inf  # min_new_tokens
                expected = float(torch.softmax(logits, dim=-1)[event.token])
                error, draws = max(error, abs(event.choice.probability - expected)), draws + 1
            text.append(event.token)
    assert text == out.sequences[0, PROMPT.shape[1] :].tolist()
    return error, draws


FEW = ("gemma3", "llama", "mistral", "mamba", "qwen3-next", "llama4", "lfm2", "gpt-neo")


@pytest.mark.parametrize("family", first_quick(FEW if DEPTH == 1 else [f for f in FAMILIES if f not in SPECIAL]))
@torch.no_grad()
def test_after_any_moves_a_draw_is_from_what_the_model_says_after_the_text(family: str) -> None:
    """Within five times the noise of decoding straight on."""
    model, bans = build(family), [Ban("a", edges="anywhere"), Ban("cd", edges="anywhere")]
    asked: dict[str, Any] = {"record": "top", "do_sample": True, "top_k": 0}
    floor, _ = measure_error(model, generate(model, move_at_random(0, is_moving=False), **asked))
    for seed in range(2):
        error, draws = measure_error(model, generate(model, move_at_random(seed), bans=bans, **asked))
        assert draws > 20
        assert error <= 5 * max(floor, 1e-6)


def test_a_controller_that_does_nothing_changes_no_bit(llama: PreTrainedModel) -> None:
    bans = [Ban("ab", edges="anywhere"), Ban("d", edges="anywhere", weight=0.5)]
    for do_sample in (True, False):
        plain = generate(llama, None, bans=bans, do_sample=do_sample, max_new_tokens=40)
        rule = Rule(lambda step: [ANY], Capabilities(backtrack=0))
        ours = generate(llama, rule, bans=bans, do_sample=do_sample, max_new_tokens=40)
        assert torch.equal(plain.sequences, ours.sequences)
        assert ours.report.rewinds == plain.report.rewinds > 0
        assert ours.report.forward_passes == plain.report.forward_passes
        assert rule.prompts == [PROMPT[0].tolist()]


def test_forced_tokens_cost_one_forward_pass(llama: PreTrainedModel) -> None:
    forced = (5, 9, 12, 7, 20, 31, 8, 6)

    def answer(step: Step) -> list[Branch]:
        return [ANY] if step.tokens else [Branch(ff_tokens=forced[:3]), Branch(ff_tokens=forced)][-1:]

    out = generate(llama, Rule(answer), max_new_tokens=12, min_new_tokens=12)
    assert tuple(out.sequences[0, 4:12].tolist()) == forced
    assert out.report.forward_passes == 1 + 1 + 3  # the prompt, the forced tokens, and the others but the last
    assert out.report.tokens_fed == 4 + 8 + 3


def fork_once(length: int, *branches: Branch) -> Any:
    return lambda step: list(branches) if len(step.tokens) == length and step.sampled is not None else [ANY]


@pytest.mark.parametrize("family", first_quick(["gemma3", "llama", "mamba", "qwen3-next"]))
def test_a_fork_is_two_texts_written_alone(family: str) -> None:
    """Greedy, with bans, and forks of forks in finished rows' places."""
    bans = [Ban("ab", edges="anywhere", rewind="span"), Ban("d", edges="anywhere", rewind="span")]
    branches = [ANY, Branch(2, ff_tokens=(9, 10, 11)), Branch(sample_mask=~TokenSet(range(20)))]
    model = build(family)
    out = generate(model, Rule(fork_once(6, *branches)), bans=bans, max_forks=3)
    assert [report.parent for report in out.reports] == [None, 0, 0]
    assert [report.fork_length for report in out.reports] == [None, 6, 6]
    for branch, row in zip(branches, out.sequences, strict=True):
        alone = generate(model, Rule(fork_once(6, branch)), bans=bans)
        assert torch.equal(alone.sequences[0], row)
    assert out.trace.sequences == out.sequences.tolist()
    fed = [report.tokens_fed for report in out.reports]
    assert max(fed[1:]) < fed[0]  # what a fork shares is not read again


def test_a_cache_with_copied_rows_is_not_returned_as_that_of_the_texts(llama: PreTrainedModel) -> None:
    """A row may have taken the place of a finished text: then there are fewer rows in the cache than texts."""
    out = generate(llama, Rule(fork_once(4, ANY, Branch(1, ff_tokens=(9,)))), max_forks=2)
    assert len(out.sequences) == 2 and out.past_key_values is None
    assert generate(llama, Rule(lambda step: [ANY])).past_key_values is not None


@pytest.mark.parametrize("option", ["return_cache", "output_hidden_states"])
def test_activations_of_forks_are_refused_before_anything_is_written(llama: PreTrainedModel, option: str) -> None:
    rule = Rule(fork_once(4, ANY, ANY))
    with pytest.raises(CapabilityError, match="call run_with_cache with the sequences"):
        generate(llama, rule, max_forks=2, **{option: True})
    assert not rule.steps


def test_a_batch_forks_and_takes_the_places_of_finished_rows(llama: PreTrainedModel) -> None:
    inputs, mask = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])

    def answer(step: Step) -> list[Branch]:
        if len(step.tokens) in (4, 8, 12) and step.sampled is not None and step.branch_idx == 0:
            return [ANY, Branch(1, ff_tokens=(9,))]
        return [] if step.branch_idx == 1 and len(step.tokens) in (4, 8, 12) else [ANY]

    out = generate(llama, Rule(answer), inputs=inputs, attention_mask=mask, max_forks=2)
    assert len(out.sequences) == 8 and out.sequences[:, :4].tolist()[0] == [0, 0, 5, 6]
    roots = [row.prompt for row in out.trace.rows]
    for number, report in enumerate(out.reports):
        assert report.reason == "done"
        if report.parent is not None:
            assert roots[number] == roots[report.parent]
    assert sorted(len(row.tokens) for row in out.trace.rows) == [4, 4, 8, 8, 12, 12, 24, 24]


def ends_in_b(tokens: Sequence[int]) -> bool:
    return TOKENIZER.decode(tokens).endswith("b")


def test_bans_hold_in_forced_tokens_and_the_step_says_what_is_there(llama: PreTrainedModel) -> None:
    """A ban that a forced token completes rewinds to its start, and the controller is asked again there."""
    c = TOKENIZER("c")["input_ids"]
    rule = Rule(lambda step: [Branch(ff_tokens=tuple(c)) if ends_in_b(step.tokens) else ANY])
    out = generate(llama, rule, bans=[Ban("bc", edges="anywhere")], do_sample=True)
    assert "bc" not in TOKENIZER.decode(out.sequences[0, 4:])
    withdrawn = [step for step in rule.steps if step.last_backtrack]
    assert withdrawn and all(step.sampled is None for step in withdrawn)
    text: list[int] = []
    for step in rule.steps:
        text = [*text[: len(text) - step.last_backtrack], *step.last_append]
        assert list(step.tokens) == text


REFUSED = [
    (lambda step: [Branch()], InputError, "says nothing"),
    (lambda step: [Branch(sample_mask=TokenSet.all(), ff_tokens=(5,))], InputError, "both sample_mask and ff_tokens"),
    (lambda step: [Branch(ff_tokens=(5,), temperature=2.0)], InputError, "are for a sampled token"),
    (lambda step: [Branch(sample_mask=TokenSet())], InputError, "sample_mask is empty"),
    (lambda step: [Branch(sample_mask=TokenSet([SIZE]))], InputError, f"token {SIZE} is beyond the vocabulary"),
    (lambda step: [Branch(ff_tokens=(-4,))], InputError, "token -4 is beyond the vocabulary"),
    (lambda step: [Branch(len(step.tokens) + 1)], BacktrackError, "the prompt is never changed"),
    (
        lambda step: [Branch(sample_mask=TokenSet.all(), splices=(Splice(backtrack=len(step.tokens) + 2),))],
        BacktrackError,
        "the prompt is never changed",
    ),
    (
        lambda step: [Branch(sample_mask=TokenSet.all(), splices=(Splice(frozenset({5})), Splice(frozenset({5, 6}))))],
        InputError,
        "two splices apply to the same token",
    ),
    (lambda step: [Branch(sample_mask=TokenSet.all(), temperature=0.0)], InputError, "a number above 0"),
    (lambda step: [ANY, ANY, ANY], CapabilityError, "more texts at once than max_forks=2"),
    (lambda step: ANY, InputError, r"mid_process returned a Branch: return a list, \[branch\], or \[\] to stop"),
    (lambda step: None, InputError, "mid_process returned a NoneType: return a list"),
    (lambda step: 1 / 0, ZeroDivisionError, "division"),
]


@pytest.mark.parametrize(("answer", "error", "message"), REFUSED)
def test_what_a_controller_can_not_do_is_one_sentence_and_leaves_the_model_usable(
    llama: PreTrainedModel, answer: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        generate(llama, Rule(lambda step: answer(step) if len(step.tokens) == 3 else [ANY]), max_forks=2)
    if error is ZeroDivisionError and sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["raised by the controller of row 0 after 3 tokens"]
    assert torch.equal(generate(llama, None).sequences, generate(llama, Rule(lambda step: [ANY])).sequences)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"controller": object()}, "is not a controller, since it has no needs"),
        ({"max_forks": 0}, "max_forks is 0"),
        ({"controller": None, "max_forks": 2}, "is for a controller that forks"),
        ({"output_scores": True}, "forced tokens have no scores"),
        ({"prompt_lookup_num_tokens": 3}, "nothing is drafted"),
        ({"cache_implementation": "static", "max_forks": 2}, "can't copy rows"),
        ({"streamer": object()}, None),
    ],
)
def test_what_a_controller_can_not_be_combined_with_is_refused(
    llama: PreTrainedModel, options: dict[str, Any], message: str | None
) -> None:
    if message is None:
        with pytest.raises(CapabilityError, match="streamed at a time"):
            generate(llama, Rule(fork_once(3, ANY, ANY)), streamer=_Sink(), max_forks=2)
        return
    with pytest.raises(ValueError, match=message):
        generate(llama, options.pop("controller", Rule(lambda step: [ANY])), **options)


@pytest.mark.parametrize("do_sample", [True, False])
def test_a_mask_of_which_the_processors_leave_nothing_is_one_sentence(llama: PreTrainedModel, do_sample: bool) -> None:
    """The greedy choice among tokens of which none is possible would be the first of the vocabulary."""
    rule = Rule(lambda step: [Branch(sample_mask=TokenSet([1]))])  # the end token, which min_new_tokens forbids
    with pytest.raises(InputError, match="leave no token to draw"):
        generate(llama, rule, do_sample=do_sample)


def test_processors_that_may_remember_are_not_copied(llama: PreTrainedModel) -> None:
    def prefer(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores

    rule = Rule(fork_once(3, ANY, ANY))
    with pytest.raises(CapabilityError, match="can't be copied with their memory"):
        generate(llama, rule, max_forks=2, logits_processor=[prefer])


class _Sink:
    def put(self, ids: torch.Tensor) -> None:
        pass

    def end(self) -> None:
        pass


TEXTS = 4_200
WEIGHTED = [Ban("cb", edges="anywhere", weight=0.1), Ban("c", weight=0.1)]
A, B, C, D = range(2, 6)  # tokens of the letters
C_OR_D = Branch(sample_mask=TokenSet([C, D]))
RULES: dict[str, dict[tuple[int, ...], Branch]] = {  # by the text so far; any other one ends
    "forced tokens": {(): C_OR_D, **dict.fromkeys([(C,), (D,)], Branch(ff_tokens=(B,)))},
    "the end by []": {(): C_OR_D},
    "forced tokens after a cut": {
        (): C_OR_D,
        **dict.fromkeys([(C,), (D,)], Branch(sample_mask=TokenSet([A, D]))),
        **dict.fromkeys([(C, A), (C, D), (D, A), (D, D)], Branch(1, ff_tokens=(B,))),
    },
    "forced tokens of a splice": {(): replace(C_OR_D, splices=(Splice(ff_tokens=(B,)),))},
}


def share_with_ban(texts: Iterable[Sequence[int]], shares: Iterable[float]) -> float:
    """The share of texts of letters that contain one of the bans; all tokens below 2 are special."""
    words = letters.LettersChain.words
    named = (words.text(token for token in text if token > 1) for text in texts)
    return sum(share for text, share in zip(named, shares, strict=True) if "cb" in text or text == "c")


ALL_CASES = (*RULES, "Grammar as controller", "Grammar as processor")
CASES = ALL_CASES if DEPTH > 1 else [case for case in ALL_CASES if "after" not in case and "splice" not in case]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_forced_tokens_complete_a_weighted_ban_as_often_as_by_rejection_sampling(case: str) -> None:
    """The share of texts with the ban, within 3 sigma; the test below says which deviations that finds.

    `loop/test_controllers.py` compares texts of a toy with their solved distribution.
    """
    if case in RULES:
        rule: Any = Rule(lambda step: [RULES[case][step.tokens]] if step.tokens in RULES[case] else [], Capabilities())
    else:
        pytest.importorskip("llguidance", reason="llguidance is not installed")
        rule = Grammar.from_lark('start: ("c" | "d") "b"', letters.build_tokenizer())
    toy = Markov(len(letters.LettersChain.words), length=3)
    toy.table.zero_()
    rule.start(TOY_PROMPT)
    solved = controlled_distribution(toy, letters.LettersChain.words, WEIGHTED, rule)
    expected = share_with_ban(solved, solved.values())
    assert expected == pytest.approx(1 / 20)  # a tenth of one half

    model = copy.deepcopy(letters.build_model())
    model.lm_head.weight.zero_()  # all tokens are equally likely, as in the toy
    set_seed(0)
    asked: dict[str, Any] = {"logits_processor": [rule]} if case == "Grammar as processor" else {"controller": rule}
    drawn = [
        ids[1:]
        for _ in range(4)
        for ids in AntiSlop(letters.build_tokenizer(), WEIGHTED)
        .generate(
            model,
            torch.tensor([[letters.START]]),
            num_return_sequences=TEXTS // 4,
            do_sample=True,
            max_new_tokens=3,
            **asked,
        )
        .tolist()
    ]
    assert not is_noticed(share_with_ban(drawn, [1 / TEXTS] * TEXTS), expected)


def is_noticed(share: float, expected: float) -> bool:
    """Report whether a share of the texts is more than 3 sigma away."""
    return abs(share - expected) > 3 * (expected * (1 - expected) / TEXTS) ** 0.5


@pytest.mark.parametrize("deviation", [-0.02, 0.02])
def test_a_deviation_of_two_hundredths_is_noticed_nine_times_in_ten(deviation: float) -> None:
    noticed = [count for count in range(TEXTS + 1) if is_noticed(count / TEXTS, 1 / 20)]
    assert binom.pmf(noticed, TEXTS, 1 / 20 + deviation).sum() > 0.9
