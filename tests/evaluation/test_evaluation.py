"""The figures of an evaluation follow from the texts, are compared prompt by prompt, or are undefined with a reason."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from antislop import Ban, BanList
from antislop.evaluation.evaluation import FALSE_SHARE, HINTED_FALSE_SHARE, Evaluation, evaluate, find_lists
from antislop.evaluation.outputs import Output, Piece, align, make_output, mark
from antislop.measure.estimates import Estimate

BANS = BanList(["shiny tapestry", "whisper"])
HELD_OUT = BanList(["whisper", "testament"])


def write(words: Mapping[str, float], *, prompts: int = 12, samples: int = 2, seed: int = 0) -> list[Output]:
    """Texts of random words, with these by their frequency."""
    dice = random.Random(seed)
    kinds, weights = [*words, "the", "old", "house"], [*words.values(), 0.3, 0.3, 0.3]
    outputs = []
    for key in range(prompts):
        for sample in range(samples):
            size = dice.randint(20, 60)
            text = " ".join(dice.choices(kinds, weights, k=size)) + "."
            costs = {"tokens": 2.0 * size, "nll": 3.0 * size + dice.random(), "violations": 1, "conceded": 0}
            costs |= {"withdrawn_tokens": 4, "forward_passes": 2 * size + 3}
            outputs.append(Output(f"p{key}", sample, text, costs, f"Prompt {key}"))
    return outputs


ARMS = {"plain": write({"whisper": 0.1, "testament": 0.1}), "banned": write({"testament": 0.05}, seed=1)}


def run(arms: Mapping[str, Sequence[Output]] | None = None, **options: object) -> Evaluation:
    """Evaluate these arms, or all of `ARMS`, once."""
    return run_usual() if arms is None and not options else run_anew(arms or ARMS, **options)


def run_anew(arms: Mapping[str, Sequence[Output]], **options: object) -> Evaluation:
    return evaluate(arms, **{"made_from": BANS, "held_out": HELD_OUT, "resamples": 200, **options})  # type: ignore[arg-type]


@cache
def run_usual() -> Evaluation:
    return run_anew(ARMS)


def find(evaluation: Evaluation, arm: str, name: str, *, against: str | None = None) -> Estimate:
    estimate = evaluation.find(arm, name, against=against)
    assert estimate is not None, (arm, name)
    return estimate


def per_thousand(outputs: Sequence[Output], word: str) -> float:
    words = [each for output in outputs for each in output.text.rstrip(".").split()]
    return 1000 * words.count(word) / len(words)


def test_hits_are_counted_per_word_and_suppression_is_their_missing_share() -> None:
    evaluation = run()
    before, after = per_thousand(ARMS["plain"], "testament"), per_thousand(ARMS["banned"], "testament")
    assert find(evaluation, "plain", "held_out_only").value == pytest.approx(before)
    assert find(evaluation, "banned", "held_out_only").value == pytest.approx(after)
    suppressed = find(evaluation, "banned", "held_out_only_suppressed", against="plain")
    assert suppressed.value == pytest.approx(100 * (1 - after / before))
    assert suppressed.low is not None and suppressed.high is not None and suppressed.value is not None
    assert suppressed.low < suppressed.value < suppressed.high
    assert find(evaluation, "plain", "made_from").value == pytest.approx(per_thousand(ARMS["plain"], "whisper"))


def test_hits_that_never_occurred_have_an_upper_bound() -> None:
    """By the rule of three: less than 3 in as many independent words as there are."""
    evaluation = run()
    words = sum(len(output.text.split()) for output in ARMS["banned"]) / 2  # two texts to each prompt count as one
    hits = find(evaluation, "banned", "made_from")
    assert (hits.value, hits.low) == (0, 0)
    assert hits.high == pytest.approx(1000 * 3 / words, rel=0.01)
    suppressed = find(evaluation, "banned", "made_from_suppressed", against="plain")
    assert (suppressed.value, suppressed.high) == (100, 100)
    before = per_thousand(ARMS["plain"], "whisper")
    assert suppressed.low == pytest.approx(100 * (1 - 1000 * 3 / words / before), rel=0.01)


def test_hits_are_counted_per_ban_the_most_frequent_first() -> None:
    bans = run(made_from=BanList(["testament", "whisper", "never written"])).bans
    for each in bans:
        for arm, outputs in ARMS.items():
            assert each.hits[arm] == sum(o.text.rstrip(".").split().count(each.ban) for o in outputs)
    assert {each.ban for each in bans} == {"testament", "whisper"}
    assert bans[0].hits["plain"] >= bans[1].hits["plain"]


def test_costs_are_ratios_of_sums() -> None:
    evaluation = run()
    for arm, outputs in ARMS.items():
        total = {name: sum(each.costs[name] for each in outputs) for name in outputs[0].costs}
        assert find(evaluation, arm, "nll").value == pytest.approx(total["nll"] / total["tokens"])
        if arm == "plain":
            assert evaluation.find(arm, "violations") is evaluation.find(arm, "withdrawn") is None
        else:
            assert find(evaluation, arm, "violations").value == pytest.approx(1000 * len(outputs) / total["tokens"])
            drawn = total["tokens"] + total["withdrawn_tokens"]
            assert find(evaluation, arm, "withdrawn").value == pytest.approx(100 * total["withdrawn_tokens"] / drawn)
        assert find(evaluation, arm, "passes").value == pytest.approx(total["forward_passes"] / total["tokens"])
    nll = [find(evaluation, arm, "nll").value or 0 for arm in ("banned", "plain")]
    assert find(evaluation, "banned", "excess_nll", against="plain").value == pytest.approx(nll[0] - nll[1])
    passes = [find(evaluation, arm, "passes").value or 0 for arm in ("banned", "plain")]
    assert find(evaluation, "banned", "passes_ratio", against="plain").value == pytest.approx(passes[0] / passes[1])


def test_differences_are_of_the_same_prompts() -> None:
    """What a prompt adds to both arms cancels out: the interval of the difference is narrower than that of either."""
    dice, plain, banned = random.Random(3), [], []
    for key in range(30):
        hard = dice.random()
        for arm, more in ((plain, 0.0), (banned, 0.1)):
            costs = {"tokens": 100.0, "nll": 100 * (1 + hard + more + dice.gauss(0, 0.01))}
            arm.append(Output(f"p{key}", 0, "The old house.", costs))
    evaluation = run({"plain": plain, "banned": banned[::-1]})
    excess, alone = find(evaluation, "banned", "excess_nll", against="plain"), find(evaluation, "banned", "nll")
    assert excess.value == pytest.approx(0.1, abs=0.02)
    assert None not in (excess.low, excess.high, alone.low, alone.high)
    assert 10 * (excess.high - excess.low) < alone.high - alone.low  # type: ignore[operator]


@pytest.mark.slow
def test_texts_of_one_prompt_are_not_independent_observations() -> None:
    """Four texts that are the same make no interval narrower than one of them does."""
    single = {arm: [output for output in outputs if output.sample == 0] for arm, outputs in ARMS.items()}
    fourfold = {
        arm: [Output(o.key, sample, o.text, o.costs) for o in outputs for sample in range(4)]
        for arm, outputs in single.items()
    }
    for arm, name, against in (
        ("banned", "excess_nll", "plain"),
        ("plain", "made_from", None),
        ("plain", "sentence_words", None),
        ("banned", "sentence_words", "plain"),
        ("banned", "distance_sentence_words", None),
    ):
        assert find(run(single), arm, name, against=against)[:3] == pytest.approx(
            find(run(fourfold), arm, name, against=against)[:3]
        )


def test_only_texts_with_a_counterpart_in_each_arm_count() -> None:
    whole = run()
    more = {**ARMS, "plain": [*ARMS["plain"], Output("new", 0, "whisper " * 50, {})]}
    evaluation = run(more)
    assert evaluation.rows == whole.rows
    assert [size.left_out for size in evaluation.sizes.values()] == [1, 0]
    assert any("1 of plain" in note for note in evaluation.notes)


def test_arms_without_common_prompts_are_compared_as_a_whole() -> None:
    loose = {arm: [Output(None, i, o.text) for i, o in enumerate(outputs)] for arm, outputs in ARMS.items()}
    loose["banned"] = loose["banned"][:5]
    evaluation = run(loose)
    assert not evaluation.is_paired
    assert any("don't answer the same prompts" in note for note in evaluation.notes)
    suppressed = find(evaluation, "banned", "made_from_suppressed", against="plain")
    assert (suppressed.value, suppressed.low) == (100, None)
    assert "same prompts" in str(suppressed.why)
    assert evaluation.find("banned", "slop_words", against="plain") is None
    assert evaluation.examples == []


def test_undefined_values_give_a_reason() -> None:
    never = run(made_from=BanList(["never written"]))
    suppressed = find(never, "banned", "made_from_suppressed", against="plain")
    assert suppressed == (None, None, None, "the plain texts contain no entry of the list")
    unknown = run({arm: [Output(o.key, o.sample, o.text) for o in outputs] for arm, outputs in ARMS.items()})
    for name, against in (("nll", None), ("passes", None), ("excess_nll", "plain"), ("passes_ratio", "plain")):
        assert find(unknown, "banned", name, against=against) == (None, None, None, "the outputs don't contain it")
    one = run({arm: outputs[:1] for arm, outputs in ARMS.items()})
    for row in one.rows:
        assert row.estimate.low is None
        assert row.estimate.why
    assert any("only one prompt" in note for note in one.notes)


def test_without_a_plain_arm_nothing_is_compared() -> None:
    evaluation = run({"banned": ARMS["banned"]})
    assert not [row for row in evaluation.rows if row.against]
    assert evaluation.notes[0].startswith("There is no plain arm")


@pytest.mark.parametrize("arms", [{}, {"plain": []}, {"plain": ARMS["plain"], "banned": []}])
def test_no_texts_are_refused(arms: dict[str, list[Output]]) -> None:
    with pytest.raises(ValueError, match=r"no arm was passed|no texts"):
        run_anew(arms)


def test_the_held_out_list_alone_has_nothing_of_the_other() -> None:
    lists = find_lists(BANS, BanList(["Whisper", Ban("testament", weight=0.5)]))
    assert [ban.text for ban in lists["held_out_only"]] == ["testament"]
    assert list(find_lists(BANS, None)) == ["made_from"]
    assert list(find_lists(BANS, BANS)) == ["made_from", "held_out"]


def test_falls_and_rises_are_reported() -> None:
    more = {"plain": write({"whisper": 0.2}), "banned": write({"testament": 0.2}, seed=1)}
    changes = {change.text: change.ratio for change in run(more).changes["banned"] if change.kind == "word"}
    assert changes["whisper"] < 1 < changes["testament"]
    assert run(more).chances == {"banned": FALSE_SHARE}


def test_small_samples_give_hints_that_are_labeled_as_hints() -> None:
    same = write({"whisper": 0.02})
    evaluation = run({"plain": same, "banned": same})
    assert (evaluation.chances, evaluation.changes) == ({"banned": HINTED_FALSE_SHARE}, {"banned": []})


def test_distances_to_human_are_among_the_rows() -> None:
    overall = find(run(), "plain", "distance")
    assert overall.value is not None and overall.value > 0
    assert find(run(), "plain", "distance_sentence_words").value is not None


def test_it_can_be_written_as_json() -> None:
    plain = json.loads(json.dumps(run().describe()))
    assert {row["metric"] for row in plain["rows"]} <= {metric["name"] for metric in plain["metrics"]}
    assert plain["arms"]["plain"]["texts"] == 24


def test_arms_are_brought_into_one_order() -> None:
    aligned, is_paired = align({"a": ARMS["plain"], "b": ARMS["banned"][::-1]})
    assert is_paired
    assert [(o.key, o.sample) for o in aligned["a"]] == [(o.key, o.sample) for o in aligned["b"]]


def test_examples_are_the_sloppiest_prompts_each_once() -> None:
    examples = run().examples
    assert len({example.prompt for example in examples}) == len(examples) == 3
    hits = [o.text.split().count("whisper") for o in ARMS["plain"]]
    assert sum(piece.kind == "banned" for piece in examples[0].texts["plain"]) >= max(hits) - 1
    for example in examples:
        assert "".join(piece.text for piece in example.texts["plain"]) in {o.text for o in ARMS["plain"]}


def test_overlapping_bans_are_marked_once() -> None:
    text = "a shiny tapestry of gold"
    pieces = mark(text, BanList(["shiny tapestry", "tapestry of", "shiny"]))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in pieces if piece.kind == "banned"] == ["shiny tapestry of"]


def test_a_record_is_an_output() -> None:
    record = {"key": "k", "sample": 1, "response": "x", "prompt": "p", "tokens": 3, "nll": 2.5, "status": "ok"}
    record |= {"violations": {"a": 2, "b": 1}, "conceded": {}, "withdrawn_tokens": 4, "pieces": [["x", "kept"]]}
    costs = {"tokens": 3, "nll": 2.5, "violations": 3, "withdrawn_tokens": 4, "conceded": 0}
    assert make_output(record) == Output("k", 1, "x", costs, "p", [Piece("x", "kept")])
    assert make_output({**record, "response": "Hm.</think>x", "prompt": "p<think>"}).text == "x"
