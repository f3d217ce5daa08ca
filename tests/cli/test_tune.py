"""The command that tunes: its folder loads without antislop, and one sentence reports each fault."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM
from typer.testing import Result

import antislop
from antislop.cli.options import BanOptions, ModelOptions
from antislop.cli.tune import (
    AutoOptions,
    BalanceOptions,
    TrainingOptions,
    TuningRun,
    WeightOptions,
    list_stages,
    report_result,
    split_prompts,
)
from antislop.core.hf.vocabulary import fingerprint_tokenizer
from antislop.data import FOLDER
from antislop.evaluation import html_report
from antislop.files.prompts import read_prompts
from antislop.measure.languages import ENGLISH
from antislop.tuning import tuning
from antislop.tuning.ftpo import FTPOTrainer
from antislop.tuning.tuning import TuneResult
from tests.support.commands import assert_refused, invoke

FEW = ("--lora-r", "4", "--epochs", "1", "--batch-size", "8")
FORMS = {"adapter": FEW, "merged": (*FEW, "--merge"), "full": (*FEW[2:], "--full")}


@pytest.fixture(autouse=True)
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Final-token pairs of the bundled model, in the working folder."""
    return enter(tmp_path, monkeypatch)


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the working one, write pairs there, and return their path."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tuning, "SKIPPED", 0)
    monkeypatch.setattr(tuning, "PROBE_TOKENS", 4)  # or counting takes most of the time
    _, tokenizer = antislop.tiny_model()
    row = {"rejected_id": 264, "chosen_ids": [261, 270, 288], "tokenizer": fingerprint_tokenizer(tokenizer)}
    contexts = [tokenizer(f"One day the old house number {number} was")["input_ids"] for number in range(24)]
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row | {"context_ids": ids}) + "\n" for ids in contexts), encoding="utf-8")
    return path


def run(*arguments: str) -> Result:
    return invoke("tune", "pairs.jsonl", "-o", "tuned", *arguments)


Tune = Callable[[str], tuple[Result, Path]]


@pytest.fixture(scope="module")
def tune_as(tmp_path_factory: pytest.TempPathFactory) -> Tune:
    """Tunes once in each of `FORMS`, and returns what the command said and its folder."""

    @cache
    def tune(form: str) -> tuple[Result, Path]:
        folder = tmp_path_factory.mktemp(form)
        with pytest.MonkeyPatch.context() as patch:
            enter(folder, patch)
            return run(*FORMS[form]), folder / "tuned"

    return tune


@pytest.mark.slow
def test_an_adapter_and_a_merged_model_load_and_write_the_same(tune_as: Tune) -> None:
    from peft import AutoPeftModelForCausalLM

    tiny, (_, folder) = Path(antislop.__file__).parent / "data" / "tiny", tune_as("adapter")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    assert Path(config["base_model_name_or_path"]) == tiny, "the base is found again"
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tune_as("merged")[1], dtype=torch.float32)
    ids = torch.tensor([[0, 312, 1006, 1588]])
    assert torch.allclose(adapted(ids).logits, merged(ids).logits, atol=1e-5)
    plain, _ = antislop.tiny_model()
    assert not torch.allclose(plain(ids).logits, merged(ids).logits, atol=1e-3)


@pytest.mark.slow
def test_a_tuned_folder_needs_no_antislop_to_be_loaded(tune_as: Tune) -> None:
    program = (
        "import sys, transformers, peft; sys.modules['antislop'] = None\n"
        "for folder in sys.argv[1:]:\n"
        "    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)\n"
        "    kind = peft.AutoPeftModelForCausalLM if 'adapter' in folder else transformers.AutoModelForCausalLM\n"
        "    ids = tokenizer('The old house', return_tensors='pt')['input_ids']\n"
        "    print(len(kind.from_pretrained(folder).generate(input_ids=ids, max_new_tokens=4)[0]))"
    )
    folders = [str(tune_as(form)[1]) for form in FORMS]
    done = subprocess.run([sys.executable, "-c", program, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lengths = [int(line) for line in done.stdout.split()]
    assert len(lengths) == len(FORMS) and min(lengths) > 4


@pytest.mark.slow
def test_passages_that_repeat_are_trained_against(pairs: Path) -> None:
    make_prompts(24)
    pairs.unlink()
    loops = ("--no-bans", "--loops")
    command = [
        "dataset",
        "prompts.jsonl",
        "-o",
        "run.jsonl",
        *loops,
        "--temperature",
        "0.2",
        "--max-new-tokens",
        "120",
        "--n",
        "2",
    ]
    made = invoke(*command, "--pairs", "pairs.jsonl", "--pairs-format", "tokens")
    assert made.exit_code == 0, made.stderr
    result = run(*FEW, *loops, "--min-chosen", "1", "--batch-size", "2", "--epochs", "2")
    assert result.exit_code == 0 and "the chosen side wins in" in result.stderr


def test_what_it_says(tune_as: Tune) -> None:
    result, folder = tune_as("adapter")
    assert "24 rows of 24 in pairs.jsonl" in result.stderr and "3 steps; the chosen side wins in" in result.stderr
    assert "banned phrases per 1,000 words, in a few samples: " in result.stderr
    card = ModelCard.load(folder / "README.md")
    data = card.data.to_dict()
    assert (data["library_name"], data["license"], data["tags"]) == ("peft", "apache-2.0", ["antislop", "ftpo"])
    assert "| rank | `4` |" in card.text and "24 places" in card.text
    assert "The bans come from: the bundled list." in card.text
    assert "share of wins" in (folder / tuning.PLOT).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["matplotlib", "wordfreq"])
def test_a_package_that_a_later_command_lacks_is_named_before_the_first(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_prompts(4)
    monkeypatch.setitem(sys.modules, package, None)
    vars(ENGLISH).pop("frequencies", None)  # which an earlier test has loaded
    result = run_auto()
    assert result.exit_code == 2 and "pip install 'antislop-lm[" in result.stderr and not Path("all").exists()


RANK = ("--lora-r", "4")
PAIRS = ("pairs.jsonl", "-o", "tuned")
PROMPTS = ("--auto", "-o", "tuned", "--full", "--epochs", "1", "--n", "1", "--prompts")
REFUSED = [
    ((*PAIRS, "--margin", "0"), "margin is 0.0: a number above 0 was expected"),
    ((*PAIRS, "--epochs", "0"), "epochs is 0.0: a number above 0 was expected"),
    ((*PAIRS, "--epochs", "inf"), "epochs is inf: a finite number was expected"),
    ((*PAIRS, "--margin", "inf"), "margin is inf: a finite number was expected"),
    ((*PAIRS, "--rest-weight", "inf"), "rest_weight is inf: a finite number was expected"),
    ((*PAIRS, "--lr", "0"), "rate is 0.0: a number above 0 was expected"),
    ((*PAIRS, "--lr", "inf"), "rate is inf: a finite number was expected"),
    ((*PAIRS, "--seed", "-1"), "'--seed' is '-1', but should be"),
    ((*PAIRS, "--loss", "dpo"), "pairs.jsonl:1: the pair has no prompt: make pairs with antislop dataset --pairs"),
    (("beyond.jsonl", *PAIRS[1:], *FEW), "beyond.jsonl:2: the pair has the id 4,096, and the model has 4,096 tokens"),
    ((*PAIRS[:2], "mine", *FEW), "mine: has other files: choose a new folder"),
    ((*PAIRS[:2], "mine", *FEW, "--force"), "mine: has other files: choose a new folder"),
    (
        (*PAIRS, *RANK, "--batch-size", "25"),
        "24 rows to train on, and the 25 of one step are needed: make pairs of more",
    ),
    ((*PAIRS, *RANK, "--max-rows", "4"), "4 rows to train on, and the 16 of one step are needed"),
    (
        (*PAIRS, *RANK, "--batch-size", "24", "--epochs", "1"),
        "training on 24 rows has 1 step, and 2 or more are needed",
    ),
    ((*PAIRS, *RANK, "--batch-size", "8", "--epochs", "0.4"), "training on 24 rows has 1 step, and 2 or more are"),
    ((*PROMPTS, "few.jsonl"), "few.jsonl: has 3 different prompts, and --auto needs 4 or more: "),
    ((*PROMPTS, "prompts.jsonl", "--bans", "missing.txt"), "missing.txt: can't be read"),
    ((*PROMPTS, "mine/held-out.jsonl", "-o", "mine"), "mine: has other files: choose a new folder"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_what_can_not_be_tuned_is_refused_and_nothing_is_written(
    arguments: tuple[str, ...], sentence: str, pairs: Path
) -> None:
    first, second, *rest = pairs.read_text(encoding="utf-8").splitlines(keepends=True)
    Path("beyond.jsonl").write_text("".join([first, second.replace("264", "4096"), *rest]), encoding="utf-8")
    make_prompts(3)
    lines = Path("prompts.jsonl").read_text(encoding="utf-8")
    Path("few.jsonl").write_text(lines + lines, encoding="utf-8")
    make_prompts(4)
    Path("mine").mkdir()
    shutil.copyfile("prompts.jsonl", "mine/held-out.jsonl")
    before = {path: path.is_dir() or path.read_bytes() for path in Path().rglob("*")}
    result = invoke("tune", *arguments, columns=300)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert {path: path.is_dir() or path.read_bytes() for path in Path().rglob("*")} == before


def test_the_model_that_is_read_is_not_overwritten(tune_as: Tune) -> None:
    shutil.copytree(tune_as("full")[1], "tuned")
    before = {path: path.read_bytes() for path in Path("tuned").iterdir()}
    for force in ((), ("--force",)):
        result = run(*FORMS["full"], "--model", "./tuned", *force)
        assert_refused(result, "tuned: is the folder of the model that is tuned: choose another one")
    assert {path: path.read_bytes() for path in Path("tuned").iterdir()} == before


@pytest.mark.slow
def test_a_run_that_ends_before_it_learned_says_so() -> None:
    """The first step warms up, with a rate of 0."""
    result = run(*FEW, "--stop-at-win", "0.01")
    assert result.exit_code == 0 and "1 step; the chosen side wins in" in result.stderr
    assert "antislop: training ended before it changed the model: raise --stop-at-win" in " ".join(
        result.stderr.split()
    )


@pytest.mark.slow
def test_every_option_reaches_the_run(tmp_path: Path) -> None:
    given = {"lr": 0.001, "unfrozen": 2, "max_rows": 20, "balance_chosen": 0.9, "balance_rejected": 0.95}
    given |= {"min_chosen": 1, "max_chosen": 3, "stop_at_win": 0.5, "margin": 3.0, "temperature": 0.5, "seed": 3}
    given |= {
        "target_weight": 0.1,
        "target_slack": 0.4,
        "rest_weight": 0.3,
        "lora_r": 2,
        "epochs": 0.5,
        "batch_size": 4,
    }
    result = run(*(part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))))
    assert result.exit_code == 0, result.stderr
    noted = json.loads((tmp_path / "tuned" / "tuning.json").read_text(encoding="utf-8"))["settings"]
    names = {"lr": "rate", "unfrozen": "layers", "lora_r": "rank"}
    assert {name: noted[names.get(name, name)] for name in given} == given


def refuse_writing(path: object, mode: int) -> bool:
    """Answer for a file system that can only be read: to root, every other place can be written."""
    return not mode & os.W_OK


@pytest.mark.parametrize("way", ["pairs.jsonl", "--auto"])
@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("file/tuned", "file: is a file, and the model needs a folder: choose another path"),
        ("file", "file: is a file, and the model needs a folder: choose another path"),
        ("x" * 300, "x: can't be written (File name too long): choose a shorter name"),
        ("-", "-: the model is a folder of files: pass -o FOLDER"),
        ("tuned.json", "tuned.json: .json is not what this option writes: pass the name of a folder"),
        ("new/tuned", "new/tuned: can't be written (. is read-only): choose a folder of yours"),
    ],
)
def test_an_output_that_can_not_be_written_is_refused_before_any_work(
    way: str, out: str, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    make_prompts(24)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("antislop.files.models.ModelSpec.load", lambda _: pytest.fail("a model was loaded"))
    if "new" in out:
        monkeypatch.setattr(os, "access", refuse_writing)
    options = ["--auto", "--prompts", "prompts.jsonl"] if way == "--auto" else [way]
    assert_refused(invoke("tune", *options, "-o", out, *FEW), sentence)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("way", ["pairs.jsonl", "--auto"])
def test_a_folder_that_can_not_be_made_is_reported_in_a_sentence(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_prompts(24)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    options = ["--auto", "--prompts", "prompts.jsonl"] if way == "--auto" else [way]
    result = invoke("tune", *options, "-o", "tuned", *FEW)
    assert result.exit_code == 2
    assert "tuned: can't be written (Permission denied): choose a folder of yours" in result.stderr


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (TuneResult(9, 0.9, 12.0, 1.0), ["it worked: there are fewer"]),
        (
            TuneResult(9, 0.08, 12.0, 11.0),
            ["before the chosen side won in 85%: train longer, with --epochs 20 --force"],
        ),
        (TuneResult(9, 0.9, 12.0, 12.0), ["writes banned phrases as often as before: train longer"]),
        (TuneResult(9, 0.9, None, None), []),
        (TuneResult(1, 0.9, 12.0, 12.0), ["training ended before it changed the model", "as often as before"]),
    ],
)
def test_the_end_says_whether_it_worked_and_what_to_do(
    result: TuneResult, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report_result(result, TrainingOptions())
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.startswith(f"{result.steps} step")
    assert [part for part in said if part not in shown] == []
    assert ("it worked" in shown, shown.count("antislop: ")) == (
        "it worked" in str(said),
        len(said) - ("it worked" in str(said)),
    )


def test_ctrl_c_keeps_a_checkpoint_from_which_the_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    command, log = (*FEW, "--epochs", "3", "--stop-at-win", "2"), FTPOTrainer.log
    steps: list[int] = []

    def interrupt(trainer: FTPOTrainer, *args: Any) -> None:
        log(trainer, *args)
        steps.append(trainer.state.global_step)
        if len(steps) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FTPOTrainer, "log", interrupt)
    stopped = run(*command)
    assert stopped.exit_code == 130 and "run the same command again to resume" in stopped.stderr
    assert [path.name for path in Path("tuned/checkpoints").iterdir()] == ["checkpoint-5"]
    ended = run(*command)
    assert ended.exit_code == 0 and "9 steps" in ended.stderr
    assert steps.count(1) == 1 and {*steps} == {*range(1, 10)}, "no step is taken again"


AUTO = ("tune", "--auto", "-o", "all", "--full", "--epochs", "1")


def make_prompts(number: int) -> None:
    openings = (FOLDER / "openings.txt").read_text(encoding="utf-8").split("\n")[:number]
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": o}) + "\n" for o in openings), encoding="utf-8")


@pytest.mark.slow
def test_everything_is_made_from_prompts_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "draw_figures", lambda _: {})  # which takes long
    make_prompts(12)
    command = ("--n", "4", "--max-new-tokens", "60", "--batch-size", "2")
    first = run_auto(*command)
    assert first.exit_code == 0, first.stderr
    report = json.loads(Path("all/report/summary.json").read_text(encoding="utf-8"))
    assert [*report["arms"]] == ["plain", "tuned", "sampler", "tuned-and-sampler"]
    Path("all/report/report.html").unlink()
    again = run_auto(*command)
    assert again.exit_code == 0 and again.stderr.count("(done before)") == 3 and Path("all/report/report.html").exists()
    assert "all: was begun with --auto --prompts prompts.jsonl" in run_auto(*command, "--seed", "1").stderr
    make_prompts(11)
    assert "all: was begun with other prompts" in run_auto(*command).stderr


def test_the_stages_take_the_options_of_the_command() -> None:
    model, bans = ModelOptions(model="some/model", revision="v1"), BanOptions(ban=["a b"])
    run = TuningRun("dpo", model, bans, TrainingOptions(lora_r=4), BalanceOptions(), WeightOptions())
    stages = [*list_stages(AutoOptions(n=3), Path("all"), run)]
    lines = [" ".join(map(str, stage.arguments)) for stage in stages]
    assert [line.split()[0] for line in lines] == [
        "dataset",
        "tune",
        "dataset",
        "dataset",
        "dataset",
        "dataset",
        "eval",
    ]
    assert "--pairs all/pairs.jsonl --ban a b --n 3" in lines[0], "pairs of texts, under the list of the command"
    assert "--loss dpo --lora-r 4 --ban a b --model some/model --revision v1" in lines[1]
    assert "--model all/model --revision v1 --ban a b" in lines[5], "the base of an adapter has a revision, too"
    assert lines[6].endswith("--model some/model --revision v1")


def run_auto(*arguments: str) -> Result:
    return invoke(*AUTO, "--prompts", "prompts.jsonl", *arguments)


def test_too_few_bans_and_rows_are_refused_once_they_are_known() -> None:
    """Each sentence names what was found and what is needed; a resumed command makes nothing in vain."""
    make_prompts(4)
    few = ("--n", "1", "--max-new-tokens", "24")
    result = run_auto(*few)
    assert "4 prompts, half of them to measure with: intervals of the report are rough below 20 of" in result.stderr
    assert (
        "2 prompts to make pairs of, --n 1 and --max-new-tokens 24 give 48 tokens at most, and so about 0 rows"
        in (result.stderr.partition("== 1 of 10")[0])
    )
    assert result.exit_code == 2 and "== 3 of 10" in result.stderr and "== 4 of 10" not in result.stderr
    assert "all/bans.txt: the list has 0 bans, and 3 or more are needed" in result.stderr
    bans = Path("all/bans.txt")
    bans.write_text("the\na\n", encoding="utf-8")
    result = run_auto(*few)
    assert result.exit_code == 2 and "the list has 2 bans, and 3 or more" in result.stderr
    assert "more prompts, a larger --n or --max-new-tokens, or a list of your own (--bans)" in result.stderr
    bans.write_text("the\na\nwas\n", encoding="utf-8")
    result = run_auto(*few)
    assert result.exit_code == 2 and "== 5 of 10" in result.stderr and "== 6 of 10" not in result.stderr
    assert re.search(r"antislop: \d+ rows? to train on, and the 16 of one step are needed: make", result.stderr)
    assert not Path("all/model").exists()


def test_half_of_the_prompts_are_held_out() -> None:
    make_prompts(5)
    lines = Path("prompts.jsonl").read_text(encoding="utf-8")
    Path("prompts.jsonl").write_text(lines + lines, encoding="utf-8")
    halves = split_prompts("prompts.jsonl", ModelOptions()).values()
    texts = [[prompt.text for prompt in half] for half in halves]
    assert [len(half) for half in texts] == [3, 2]
    assert {text for half in texts for text in half} == {prompt.text for prompt in read_prompts("prompts.jsonl")}
