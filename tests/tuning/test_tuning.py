"""A model is trained on the rows as they were written, by every option, and the same way again."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from antislop import BanList
from antislop.core.hf.vocabulary import fingerprint_tokenizer
from antislop.datasets.hub import CARD
from antislop.errors import InputError
from antislop.tuning import tuning
from antislop.tuning.ftpo import FTPOConfig, FTPOTrainer, collate, make_adapter
from antislop.tuning.rows import FTPORow, TextPair, load_pairs, load_text_pairs
from antislop.tuning.tuning import CHECKPOINTS, PLOT, TuneSpec, _count_hits, tune
from tests.support.depth import first_quick
from tests.support.letters import END, START, build_model, build_tokenizer
from tests.support.refusals import refused

SPEC = TuneSpec(rank=4, layers=1, rate=0.02, epochs=2.0, batch_size=4, stop_at_win=2.0)
SPECS = {"ftpo": SPEC, "dpo": replace(SPEC, loss="dpo")}
BRIEF = {loss: replace(spec, epochs=0.75) for loss, spec in SPECS.items()}
"""Four steps: the first one warms up, and by the fourth the weights have drifted beyond the slack."""
TEXTS = [TextPair("ab"[: i % 2 + 1] * (i // 4 + 1), "cd"[i % 2 :] * 2, " b."[: i % 3 + 1]) for i in range(24)]
BANS = BanList(["ab"])


def make_rows(number: int = 24, *, seed: int = 0) -> list[FTPORow]:
    chance = Random(seed)
    rows = []
    for _ in range(number):
        rejected, *chosen = chance.sample(range(2, 16), 4)
        rows.append(FTPORow((START, *chance.choices(range(2, 16), k=chance.randint(1, 12))), rejected, tuple(chosen)))
    return rows


def write_pairs(path: Path, rows: list[FTPORow], **changes: Any) -> Path:
    lines = [
        {
            "context_ids": row.context,
            "rejected_id": row.rejected,
            "chosen_ids": row.chosen,
            "tokenizer": fingerprint_tokenizer(build_tokenizer()),
        }
        for row in rows
    ]
    path.write_text("".join(json.dumps(line | changes) + "\n" for line in lines), encoding="utf-8")
    return path


def train(out: Path, spec: TuneSpec = SPEC, **options: Any) -> dict[str, torch.Tensor]:
    """Return the weights, with the adapter in them, of the tuned letters' model."""
    model: Any = LlamaForCausalLM(build_model().config)
    model.load_state_dict(build_model().state_dict())
    rows: Any = make_rows() if spec.loss == "ftpo" else TEXTS
    with pytest.MonkeyPatch.context() as patch:  # or counting and drawing take most of the time
        patch.setattr(tuning, "SKIPPED", 0)
        patch.setattr(tuning, "PROBE_TOKENS", 4)
        patch.setattr(tuning, "draw_curves", lambda history, path, **_: path.touch())
        result = tune(model, build_tokenizer(), rows, out, spec=spec, **{"bans": BANS, "made_with": {}, **options})
    return {} if result is None else load(out, spec).state_dict()


def load(out: Path, spec: TuneSpec) -> LlamaForCausalLM:
    if spec.rank is None or spec.merge:
        return AutoModelForCausalLM.from_pretrained(out)
    from peft import PeftModel

    base = LlamaForCausalLM(build_model().config)
    base.load_state_dict(build_model().state_dict())
    return PeftModel.from_pretrained(base, out).merge_and_unload()


def differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


CHANGES: dict[str, Any] = {
    "rank": 2,
    "layers": 2,
    "rate": 0.01,
    "epochs": 1.0,
    "batch_size": 8,
    "stop_at_win": 0.01,
    "margin": 5.0,
    "temperature": 0.2,
    "target_weight": 5.0,
    "target_slack": 0.0,
    "rest_weight": 5.0,
    "seed": 1,
}


CASES = [("ftpo", name) for name in CHANGES]
CASES += [("dpo", name) for name in ("rank", "layers", "rate", "epochs", "batch_size", "stop_at_win", "seed", "beta")]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """The weights after training with each loss."""
    return {loss: train(tmp_path_factory.mktemp("tuned") / "out", spec) for loss, spec in SPECS.items()}


@pytest.fixture(scope="module")
def briefly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """The weights after a few steps with each loss."""
    return {loss: train(tmp_path_factory.mktemp("briefly") / "out", spec) for loss, spec in BRIEF.items()}


def test_all_options_are_tried() -> None:
    assert {name for _, name in CASES} | {"loss", "merge"} == {field.name for field in fields(TuneSpec)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "name"), [pytest.param(*case, marks=[pytest.mark.slow] * (case[1] != "margin")) for case in CASES]
)
def test_each_option_changes_the_weights(loss: str, name: str, briefly: Any, tmp_path: Path) -> None:
    changed = replace(BRIEF[loss], **{name: (CHANGES | {"beta": 1.0})[name]})
    assert differ(train(tmp_path / "out", changed), briefly[loss]) > 1e-5


@pytest.mark.parametrize("loss", SPECS)
@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(loss: str, tuned: Any, tmp_path: Path) -> None:
    assert differ(train(tmp_path / "out", SPECS[loss]), tuned[loss]) == 0


@pytest.mark.parametrize("loss", first_quick(SPECS))
def test_a_stopped_run_resumes_to_the_same_weights(loss: str, tuned: Any, tmp_path: Path) -> None:
    steps = count()
    assert train(tmp_path / "out", SPECS[loss], is_stopped=lambda: next(steps) > 3) == {}
    assert [*(tmp_path / "out" / CHECKPOINTS).iterdir()] and not (tmp_path / "out" / CARD).exists()
    assert differ(train(tmp_path / "out", SPECS[loss]), tuned[loss]) == 0
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert differ(train(tmp_path / "out", SPECS[loss], note=fail), tuned[loss]) == 0, "finished: nothing is trained"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == written


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tuned: Any, tmp_path: Path) -> None:
    def kill(step: int, *_: Any) -> None:
        if step == 6:
            raise SystemExit

    with pytest.raises(SystemExit):
        train(tmp_path / "out", note=kill)
    assert [path.name for path in (tmp_path / "out" / CHECKPOINTS).iterdir()] == ["checkpoint-4"]
    taken: list[int] = []
    assert differ(train(tmp_path / "out", note=lambda step, *_: taken.append(step)), tuned["ftpo"]) == 0
    assert taken == [*range(5, 13)]


@pytest.mark.slow
def test_force_begins_again(tuned: Any, tmp_path: Path) -> None:
    steps = count()
    train(tmp_path / "out", replace(SPEC, seed=1), is_stopped=lambda: next(steps) > 3)
    assert differ(train(tmp_path / "out", force=True), tuned["ftpo"]) == 0


def fail(*_: Any) -> None:
    raise AssertionError("a step was taken")


@pytest.mark.slow
def test_force_removes_the_weights_of_another_form(tmp_path: Path) -> None:
    train(tmp_path / "out")
    full = replace(SPEC, rank=None, rate=0.001)
    weights = train(tmp_path / "out", full, force=True)
    assert not [*(tmp_path / "out").glob("adapter_*")]
    assert differ(weights, train(tmp_path / "other", full)) == 0


@pytest.mark.slow
def test_a_run_that_was_killed_at_its_end_gives_the_same_weights(tuned: Any, tmp_path: Path) -> None:
    """Neither a checkpoint that was not finished nor one of the last step is resumed from."""

    def kill(step: int, *_: Any) -> None:
        if step == 8:  # a checkpoint, which then is taken for that of the last step
            raise SystemExit

    with pytest.raises(SystemExit):
        train(tmp_path / "out", note=kill)
    folder = tmp_path / "out" / CHECKPOINTS
    (folder / "checkpoint-12").mkdir()
    (folder / "checkpoint-4").rename(folder / "checkpoint-13")
    assert differ(train(tmp_path / "out"), tuned["ftpo"]) == 0


@pytest.mark.slow
def test_a_run_that_is_stopped_where_it_ends_is_finished(tmp_path: Path) -> None:
    ending = replace(SPEC, stop_at_win=0.01)
    expected, steps = train(tmp_path / "whole", ending), count()
    assert differ(train(tmp_path / "out", ending, is_stopped=lambda: next(steps) >= 0), expected) == 0


@pytest.mark.parametrize(
    ("changes", "spec", "sentence"),
    [
        ({"hf_device_map": {"model.embed_tokens": 0, "model.layers": 1}}, SPEC, "the model lies on several devices"),
        ({"adapter": True}, SPEC, "the model has an adapter already: merge it"),
        ({"half": True}, replace(SPEC, rank=None), "weights of torch.bfloat16 are too coarse for small steps"),
        ({"gpus": 2}, SPEC, "2 GPUs are visible, and tuning uses one: set CUDA_VISIBLE_DEVICES"),
    ],
)
def test_models_that_can_not_be_trained_are_refused(
    changes: dict[str, Any], spec: TuneSpec, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = LlamaForCausalLM(build_model().config)
    if changes.pop("half", False):
        model = model.bfloat16()
    if changes.pop("adapter", False):
        model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]))
    if gpus := changes.pop("gpus", 0):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in changes.items():
        setattr(model, name, value)
    with pytest.raises(InputError, match=sentence):
        tune(model, build_tokenizer(), make_rows(), tmp_path / "out", spec=spec, bans=BANS, made_with={})
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_not_a_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the loss became (nan|inf): use a smaller learning rate"):
        train(tmp_path / "out", replace(SPEC, rate=1e30))


@pytest.mark.slow
def test_a_token_that_the_model_never_writes_does_not_end_the_run(tuned: Any, tmp_path: Path) -> None:
    """Some models give the padding of their vocabulary the logit of minus infinity."""
    forward = LlamaForCausalLM.forward

    def mask(self: LlamaForCausalLM, *args: Any, **kwargs: Any) -> Any:
        output = forward(self, *args, **kwargs)
        output.logits[..., START] = -torch.inf
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaForCausalLM, "forward", mask)
        assert differ(train(tmp_path / "out"), tuned["ftpo"]) < 0.2


def test_a_folder_of_other_bans_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "out")
    refused("was begun with bans_sha256=", lambda: train(tmp_path / "out", bans=BanList(["cd"])))


def test_a_trainer_refuses_what_it_can_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args, rows = FTPOConfig(output_dir=str(tmp_path), use_cpu=True, report_to=[]), make_rows()
    with pytest.raises(InputError, match="FTPOTrainer evaluates no data"):
        FTPOTrainer(build_model(), args, train_dataset=rows, eval_dataset=rows)
    monkeypatch.setattr(FTPOConfig, "world_size", 2)
    refused("FTPOTrainer runs in one process", lambda: FTPOTrainer(build_model(), args, train_dataset=rows))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("margin", -2.0, "above 0"), ("temperature", 0, "above 0"), ("rest_weight", -1, "of 0 or more")],
)
def test_numbers_of_the_loss_are_refused(name: str, value: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} is {value!r}: a number {expected} was expected"):
        FTPOConfig(output_dir=str(tmp_path), use_cpu=True, report_to=[], **{name: value})


def test_layers_of_gpt2_get_an_adapter() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=2, vocab_size=32, n_positions=32))
    assert {name.split(".")[2] for name in make_adapter(model, rank=2, layers=1).target_modules} == {"1"}


class Repeater:
    """A model that continues every text with the same tokens."""

    device, training = torch.device("cpu"), False

    def __init__(self, tokens: list[int], *, positions: int = 512) -> None:
        self.config: Any = LlamaConfig(max_position_embeddings=positions)
        self._tokens = tokens

    def eval(self) -> Repeater:
        return self

    def train(self, mode: bool) -> None:
        assert mode is self.training

    def generate(self, *, input_ids: torch.Tensor, max_new_tokens: int, **_: Any) -> torch.Tensor:
        written = (self._tokens * max_new_tokens)[:max_new_tokens]
        return torch.cat([input_ids, torch.tensor([written] * len(input_ids))], dim=1)


def test_bans_are_counted_in_what_the_model_writes() -> None:
    tokenizer, rows = build_tokenizer(), make_rows()
    ids = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("ab. ", "cd. ")}
    count_hits = partial(_count_hits, tokenizer=tokenizer, rows=rows, bans=BANS)
    assert count_hits(Repeater(ids["ab. "])) == pytest.approx(1000, rel=0.05)
    assert count_hits(Repeater(ids["cd. "])) == 0
    assert count_hits(Repeater([*ids["cd. "] * 20, END, *ids["ab. "]])) == 0, "a text ends at its end token"
    assert count_hits(Repeater(ids["cd. "], positions=64)) is None


def test_other_settings_are_refused_in_a_folder_that_was_begun(tmp_path: Path) -> None:
    steps = count()
    train(tmp_path / "out", is_stopped=lambda: next(steps) > 3)
    with pytest.raises(InputError, match=r"was begun with margin=2.0, and this run has margin=3.0"):
        train(tmp_path / "out", replace(SPEC, margin=3.0))


@pytest.mark.parametrize("loss", SPECS)
@pytest.mark.slow
def test_merged_weights_are_those_of_the_adapter(loss: str, tuned: Any, tmp_path: Path) -> None:
    assert differ(train(tmp_path / "out", replace(SPECS[loss], merge=True)), tuned[loss]) < 1e-5
    assert {CARD, PLOT, "model.safetensors", "tokenizer.json"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("loss", SPECS)
@pytest.mark.slow
def test_full_weights_train_in_the_last_layers_alone(loss: str, tmp_path: Path) -> None:
    full = replace(SPECS[loss], rank=None, rate=0.001)
    weights, before = train(tmp_path / "out", full), build_model().state_dict()
    changed = {name for name in before if not torch.equal(weights[name], before[name])}
    assert changed and all("layers.1." in name or name == "lm_head.weight" for name in changed)


def test_rejected_tokens_fall_behind(tmp_path: Path) -> None:
    said: list[dict[str, float]] = []
    train(tmp_path / "out", replace(SPEC, epochs=8.0), note=lambda *state: said.append(dict(state[2])))
    wins = [logs["win"] for logs in said if logs]
    assert wins[-1] > wins[0] + 0.3


def test_padding_changes_no_logits() -> None:
    rows, model = make_rows(6), build_model()
    names = ("input_ids", "attention_mask", "position_ids")
    together, alone = collate(rows), [collate([row]) for row in rows]
    logits = model(**{name: together[name] for name in names}, logits_to_keep=1).logits[:, -1]
    for row, batch in zip(logits, alone, strict=True):
        assert torch.allclose(row, model(input_ids=batch["input_ids"]).logits[0, -1], atol=1e-4)


def test_pairs_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = make_rows()
    path = write_pairs(tmp_path / "p.jsonl", rows)
    assert load_pairs(path, build_tokenizer(), balance_chosen=1, balance_rejected=1) == rows
    few = load_pairs(path, build_tokenizer(), balance_chosen=1, balance_rejected=1, max_chosen=2, max_rows=5)
    assert len(few) == 5 and all(row in [r._replace(chosen=r.chosen[:2]) for r in rows] for row in few)


@pytest.mark.parametrize(("chosen", "rejected"), [(0.2, 0.8), (0.1, 0.1), (0.05, 0.3), (0.0, 0.0)])
def test_no_token_has_more_than_its_share(chosen: float, rejected: float, tmp_path: Path) -> None:
    chance = Random(1)
    rows = [
        FTPORow((START, i % 14 + 2), chance.choice([2, 2, 2, 3, 4]), (5, *chance.sample(range(6, 16), 3)))
        for i in range(300)
    ]
    path = write_pairs(tmp_path / "p.jsonl", rows)
    kept = load_pairs(path, build_tokenizer(), balance_chosen=chosen, balance_rejected=rejected)
    for share, tokens in (
        (chosen, [token for row in kept for token in row.chosen]),
        (rejected, [row.rejected for row in kept]),
    ):
        counts = Counter(tokens)
        assert max(counts.values()) <= max(share, 2 / len(counts)) * len(tokens) + 1
    assert len(kept) > 20


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokenizer": "abc"}, r"p.jsonl:1: the pair belongs to the tokenizer abc, and the model has \w+: make"),
        ({"rejected_id": 2, "chosen_ids": [3]}, r"p.jsonl: no row has enough chosen tokens, 2 \(24 have fewer\): make"),
        ({"context_ids": [3] * 600}, r"p.jsonl:1: the context has 600 tokens, and the model reads 512"),
        ({"context_ids": None}, r"p.jsonl:1: the pair has other values than ids: make it with antislop dataset"),
        ({"context_ids": []}, r"p.jsonl:1: the context is empty"),
        ({"context_ids": [3, 16]}, r"p.jsonl:1: the pair has the id 16, and the model has 16 tokens: make pairs with"),
        ({"rejected_id": 1_234_567}, r"p.jsonl:1: the pair has the id 1,234,567, and the model has 16 tokens"),
        ({"chosen_ids": [3, -1]}, r"p.jsonl:1: the pair has the id -1, and the model has 16 tokens"),
        ({"rejected_id": 3, "chosen_ids": [2, 3]}, r"p.jsonl:1: the rejected id 3 is among the chosen ones: leave out"),
        ({"rejected_id": 4, "chosen_ids": [3, 2, 3]}, r"p.jsonl:1: the chosen id 3 comes twice: leave out one"),
    ],
)
def test_pairs_that_can_not_be_used_are_named(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "p.jsonl", make_rows(), **changes)
    refused(sentence, lambda: load_pairs(path, build_tokenizer(), max_length=512))


def test_ids_that_the_model_reads_may_be_beyond_the_tokenizer(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "p.jsonl", make_rows(), context_ids=[3, 17])
    assert len(load_pairs(path, build_tokenizer(), vocab_size=18)) > 20
    with pytest.raises(InputError, match="the pair has the id 17, and the model has 17 tokens"):
        load_pairs(path, build_tokenizer(), vocab_size=17)


def test_pairs_of_texts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({**pair._asdict(), "ban": "f"}) + "\n" for pair in TEXTS), encoding="utf-8")
    assert load_text_pairs(path, build_tokenizer()) == TEXTS
    assert len({*load_text_pairs(path, build_tokenizer(), max_rows=5)} & {*TEXTS}) == 5


DPO = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n'
OTHERS = [
    (load_pairs, "", {}, "pairs.jsonl: the file has no pairs: make some"),
    (load_pairs, '{"context_ids": [1', {}, "pairs.jsonl:1: not JSON"),
    (load_pairs, "", {"min_chosen": 3, "max_chosen": 2}, "min_chosen is 3, and max_chosen is 2"),
    (load_pairs, DPO, {}, "pairs.jsonl:1: a pair of texts, and ftpo reads final-token pairs"),
    (load_text_pairs, "", {}, "pairs.jsonl: the file has no pairs: make some"),
    (load_text_pairs, DPO, {"max_length": 1}, r"pairs.jsonl:1: the text has \d+ tokens, and the model reads 1: make"),
    (load_text_pairs, '{"rejected_id": 3}', {}, "pairs.jsonl:1: the pair has no prompt: make pairs with antislop"),
    (load_text_pairs, DPO.replace('"c"', '"b"'), {}, "pairs.jsonl:1: chosen and rejected are the same text: leave"),
]


@pytest.mark.parametrize(("load", "content", "options", "sentence"), OTHERS)
def test_files_without_pairs_that_can_be_used_are_refused(
    load: Any, content: str, options: dict[str, int], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(content, encoding="utf-8")
    refused(sentence, lambda: load(path, build_tokenizer(), **options))
