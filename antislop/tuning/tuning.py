"""Tune a model on final-token rows, and keep the result in a folder that needs no antislop to be loaded."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from peft import get_peft_model
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from antislop import __version__
from antislop.errors import InputError
from antislop.files import read_json, replace_text
from antislop.lists.ban_list import BanList
from antislop.metrics.segmentation import extract_words
from antislop.tuning.dpo import make_dpo_trainer
from antislop.tuning.rows import FTPORow
from antislop.tuning.trainer import FTPOConfig, FTPOTrainer, StopAtWin, find_rate, make_adapter, unfreeze

CHECKPOINTS, SETTINGS, PLOT, CARD = "checkpoints", "tuning.json", "tuning.svg", "README.md"
LOGS, CHECKPOINT_LOGS = 8, 4
"""Lines of the log per epoch, at which training may end; and such lines per checkpoint."""
PROBES, PROBE_START, PROBE_TOKENS = 32, 8, 120
"""Texts whose bans are counted before and after: how many, the tokens of their prompts, and their own."""
MOST_PROBES = 10
"""How often they are counted in between."""
EXPECTED = ("`(is_)?gradient_checkpointing` is deprecated", "Setting `save_embedding_layers`")
"""Warnings about what peft and TRL themselves do."""

METHODS = {
    "ftpo": "final-token preference optimization (https://arxiv.org/abs/2510.15061)",
    "dpo": "direct preference optimization (https://arxiv.org/abs/2305.18290)",
}
OTHERS = {"ftpo": ("beta",), "dpo": ("margin", "temperature", "target_weight", "target_slack", "rest_weight")}
"""Settings of the other loss."""

Loss = Literal["ftpo", "dpo"]
Rows = Sequence[Any]
"""`FTPORow`, or with `loss="dpo"` `TextPair`."""
Note = Callable[[int, int, Mapping[str, float]], None]
"""Called with the step, the number of steps, and the latest of "loss", "win" and "hits"."""


@dataclass(frozen=True, kw_only=True)
class TuneSpec:
    """What decides a tuned model, beside its rows.

    loss: "ftpo" for rows of tokens; "dpo" for pairs of texts, with `beta` and without the options from `margin` to
        `rest_weight`.
    rank: of the LoRA adapter; None trains the weights themselves.
    layers: how many of the last layers train.
    rate: the learning rate; None chooses one by the width of the model.
    merge: write whole weights instead of an adapter.
    """

    loss: Loss = "ftpo"
    rank: int | None = 128
    layers: int = 5
    rate: float | None = None
    epochs: float = 10.0
    batch_size: int = 16
    stop_at_win: float = 0.85
    margin: float = 2.0
    temperature: float = 1.0
    target_weight: float = 0.05
    target_slack: float = 0.5
    rest_weight: float = 0.4
    beta: float = 0.1
    merge: bool = False
    seed: int = 0

    @property
    def metric(self) -> str:
        """The name of the share of wins in the trainer's log."""
        return "win" if self.loss == "ftpo" else "rewards/accuracies"


@dataclass(frozen=True)
class TuneResult:
    """What became of a model.

    steps: training steps.
    win: the share of cases in which the chosen side leads, at the end.
    before, after: bans per 1,000 words of texts that begin as the rows do.
    """

    steps: int
    win: float
    before: float
    after: float


def tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    out: Path,
    *,
    spec: TuneSpec,
    bans: BanList,
    made_with: Mapping[str, Any],
    note: Note = lambda *_: None,
    is_stopped: Callable[[], bool] = lambda: False,
    force: bool = False,
) -> TuneResult | None:
    """Train a model on rows, and write it, its card and its curves into a folder; None if it was stopped before.

    bans: counted in samples of the model before and after training.
    made_with: for the card and for resuming: a folder that other settings began is refused unless `force`.
    is_stopped: asked after each step; once True, a checkpoint is written from which the next call goes on.

    In the folder of a finished run with the same settings, the result is read and nothing is trained.
    """
    used = {name: value for name, value in asdict(spec).items() if name not in OTHERS[spec.loss]}
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise InputError("the model lies on several devices, and a tuned one has to be on one: load it without a map")
    settings = {**used, **made_with, "rows": len(rows)}
    if (done := _open_folder(out, settings, force=force)) is not None:
        return done
    probe = _Probe(tokenizer, rows, bans)
    before, watch = probe.count(model), _Watch(note, is_stopped, probe, metric=spec.metric)
    with warnings.catch_warnings():
        for message in EXPECTED:
            warnings.filterwarnings("ignore", message)
        trainer = _make_trainer(model, tokenizer, rows, spec, out / CHECKPOINTS)
        trainer.add_callback(watch)
        trainer.remove_callback(PrinterCallback)  # the caller shows the log
        trainer.train(resume_from_checkpoint=any((out / CHECKPOINTS).glob("checkpoint-*")))
    if watch.was_stopped:
        return None
    trained = trainer.model.merge_and_unload() if spec.rank is not None and spec.merge else trainer.model
    state, after = trainer.state, probe.count(trained)
    win = next(entry[spec.metric] for entry in reversed(state.log_history) if spec.metric in entry)
    result = TuneResult(state.global_step, win, before, after)
    _save(trained, tokenizer, out)
    ends = [{"step": 0, "hits": before}, {"step": state.global_step, "hits": after}]
    draw_curves([*state.log_history, *ends], out / PLOT, metric=spec.metric)
    replace_text(out / CARD, describe(result, settings, trained, bans))
    _note(out, settings, asdict(result))
    shutil.rmtree(out / CHECKPOINTS)
    return result


def _save(model: Any, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    # peft would look for the embedding of the base on the hub, to see if it has grown.
    options = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.eval().save_pretrained(out, **options)
    tokenizer.save_pretrained(out)


def _make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Rows, spec: TuneSpec, folder: Path
) -> Trainer:
    """Return a trainer of the model's own weights or of an adapter, which begins by the seed."""
    torch.manual_seed(spec.seed)
    arguments = _list_arguments(spec, folder, model, rows=len(rows))
    if spec.rank is None:
        adapter = None
        unfreeze(model, layers=spec.layers)
    else:  # TRL takes no adapter of the head
        adapter = make_adapter(model, rank=spec.rank, layers=spec.layers, has_head=spec.loss == "ftpo")
    if spec.loss == "dpo":
        trainer = make_dpo_trainer(model, tokenizer, rows, arguments, beta=spec.beta, adapter=adapter)
        trainer.add_callback(StopAtWin(spec.stop_at_win, metric=spec.metric))
        return trainer
    names = ("stop_at_win", "margin", "temperature", "target_weight", "target_slack", "rest_weight")
    config = FTPOConfig(**arguments, **{name: getattr(spec, name) for name in names})
    trained = model if adapter is None else get_peft_model(model, adapter)
    return FTPOTrainer(trained, config, train_dataset=rows)


def _open_folder(out: Path, settings: dict[str, Any], *, force: bool) -> TuneResult | None:
    """Note the settings in the folder; return the result of a run of them that is finished."""
    path = out / SETTINGS
    if force:
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    elif path.exists():
        noted = read_json(path)
        for name, value in settings.items():
            if name in noted["settings"] and (before := noted["settings"][name]) != value:
                raise InputError(
                    f"{out}: was begun with {name}={before!r}, and this run has {name}={value!r}: choose another "
                    "folder, or use --force to begin again"
                )
        if noted["result"] is not None:
            return TuneResult(**noted["result"])
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: has other files: choose a new folder, or use --force to write into it")
    out.mkdir(parents=True, exist_ok=True)
    _note(out, settings, None)
    return None


def _note(out: Path, settings: dict[str, Any], result: dict[str, Any] | None) -> None:
    replace_text(out / SETTINGS, json.dumps({"settings": settings, "result": result}, indent=2) + "\n")


def _list_arguments(spec: TuneSpec, folder: Path, model: PreTrainedModel, *, rows: int) -> dict[str, Any]:
    """Return the arguments of any trainer."""
    epoch = ceil(rows / spec.batch_size)
    every = max(1, epoch // LOGS)
    return {
        "output_dir": str(folder),
        "learning_rate": find_rate(model, spec.loss) if spec.rate is None else spec.rate,
        "lr_scheduler_type": "constant_with_warmup",  # the end is not known: the share of wins decides
        "warmup_steps": every,
        "max_steps": max(1, round(spec.epochs * epoch)),
        "per_device_train_batch_size": spec.batch_size,
        "logging_steps": every,
        "save_steps": every * CHECKPOINT_LOGS,
        "save_total_limit": 1,
        "report_to": [],
        "disable_tqdm": True,
        "seed": spec.seed,
        "use_cpu": model.device.type == "cpu",
    }


class _Watch(TrainerCallback):  # type: ignore[misc]  # transformers has no type for it
    """Tells how training goes, with the hits at some checkpoints, and stops it with a checkpoint."""

    def __init__(self, note: Note, is_stopped: Callable[[], bool], probe: _Probe, *, metric: str) -> None:
        self._note, self._is_stopped, self._probe, self._metric = note, is_stopped, probe, metric
        self._latest: dict[str, float] = {}
        self.was_stopped = False

    def on_log(self, *_: Any, logs: Mapping[str, float] | None = None, **__: Any) -> None:
        if logs and self._metric in logs:
            self._latest |= {"loss": logs["loss"], "win": logs[self._metric]}

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any) -> None:
        if state.global_step % (args.save_steps * ceil(state.max_steps / args.save_steps / MOST_PROBES)) == 0:
            self._latest["hits"] = self._probe.count(model)
            state.log_history.append({"step": state.global_step, "hits": self._latest["hits"]})  # in the checkpoint
        self._note(state.global_step, state.max_steps, self._latest)
        # At a line of the log, so that a resumed run decides to end by the same steps as one in one piece.
        if self._is_stopped() and state.global_step % args.logging_steps == 0 and state.global_step < state.max_steps:
            self.was_stopped = control.should_save = control.should_training_stop = True


class _Probe:
    """Counts bans in samples that begin as some rows do."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: Rows, bans: BanList) -> None:
        starts = (row.context if isinstance(row, FTPORow) else tokenizer(row.prompt)["input_ids"] for row in rows)
        distinct = dict.fromkeys(tuple(start[:PROBE_START]) for start in starts if len(start) >= PROBE_START)
        self._prompts, self._tokenizer, self._bans = torch.tensor([*distinct][:PROBES]), tokenizer, bans

    def count(self, model: Any) -> float:
        """Return the bans per 1,000 words; 0 if no row is long enough."""
        if not len(self._prompts):
            return 0.0
        ids, was_training = self._prompts.to(model.device), model.training
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(0)
            written = model.eval().generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                max_new_tokens=PROBE_TOKENS,
                pad_token_id=self._tokenizer.pad_token_id or 0,
            )
        model.train(was_training)
        texts = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        words = sum(len(extract_words(text)) for text in texts)
        return 1000 * sum(len(list(self._bans.find(text))) for text in texts) / max(1, words)


def draw_curves(history: Sequence[Mapping[str, float]], path: Path, *, metric: str) -> None:
    """Draw the loss and its parts, the share of wins, and the hits by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    names = ("preference", "target", "rest") if any("preference" in entry for entry in history) else ("loss",)
    panels = {"loss": names, "share of wins": (metric,), "hits per 1,000 words": ("hits",)}
    for axes, (title, drawn) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name in drawn:
            points = sorted((entry["step"], entry[name]) for entry in history if name in entry and "step" in entry)
            axes.plot(*zip(*points, strict=True), label=name)
        axes.set(title=title, xlabel="step", ylim=(0, 1) if drawn == (metric,) else (0, None))
        if len(drawn) > 1:
            axes.legend(frameon=False)
    figure.savefig(path)


def describe(result: TuneResult, settings: Mapping[str, Any], model: PreTrainedModel, bans: BanList) -> str:
    """Return the model card."""
    base = str(settings.get("model") or type(model).__name__)
    license = read_license(model.name_or_path)
    head = {
        "base_model": base if "/" in base and not Path(base).exists() else None,
        "license": license,
        "library_name": "transformers" if settings["merge"] or settings["rank"] is None else "peft",
        "tags": f"[antislop, {settings['loss']}]",
    }
    front = "\n".join(f"{name}: {value}" for name, value in head.items() if value is not None)
    before, after = f"{result.before:.1f}", f"{result.after:.1f}"
    rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items() if value is not None)
    return f"""\
---
{front}
---

# {base}, tuned against its habits

Made with `antislop tune` ([antislop](https://github.com/antislop/antislop) {__version__}) by
{METHODS[settings["loss"]]} on {settings["rows"]:,} places at which the model had begun a banned phrase.

| | before | after |
|---|---|---|
| hits of {len(bans):,} bans per 1,000 words, in samples that begin as the data does | {before} | {after} |

{result.steps:,} steps; the chosen side leads in {result.win:.0%}. ![curves]({PLOT})

| setting | value |
|---|---|
{rows}

The bans come from: {bans.source or "no file"}.

The license is that of the base model: {license or "its card was not found, or names none"}. Nobody has checked whether
the texts of this model are true, good or safe.
"""


def read_license(model: str) -> str | None:
    """Return the license that a model's card names; None without a card, or if the hub can't be reached."""
    card = Path(model) / "README.md"
    with suppress(OSError, ValueError, HfHubHTTPError):
        license: str | None = ModelCard.load(
            card if card.is_file() else model, ignore_metadata_errors=True
        ).data.license
        return license
    return None
