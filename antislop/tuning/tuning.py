"""Tune a model on final-token rows, and keep the result in a folder that needs no antislop to be loaded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from antislop import __version__
from antislop.errors import InputError
from antislop.files import read_json, replace_text
from antislop.lists.ban_list import BanList
from antislop.metrics.segmentation import extract_words
from antislop.tuning.rows import FTPORow
from antislop.tuning.trainer import FTPOConfig, FTPOTrainer, add_adapter, find_rate, unfreeze

CHECKPOINTS, SETTINGS, PLOT, CARD = "checkpoints", "tuning.json", "tuning.svg", "README.md"
LOGS, CHECKPOINT_LOGS = 8, 4
"""Lines of the log per epoch, at which training may end; and such lines per checkpoint."""
PROBES, PROBE_START, PROBE_TOKENS = 32, 8, 120
"""Texts whose bans are counted before and after: how many, the tokens of their prompts, and their own."""


@dataclass(frozen=True, kw_only=True)
class TuneSpec:
    """What decides a tuned model, beside its rows.

    rank: of the LoRA adapter; None trains the weights themselves.
    layers: how many of the last layers train.
    rate: the learning rate; None chooses one by the width of the model.
    merge: write whole weights instead of an adapter.
    """

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
    merge: bool = False
    seed: int = 0


@dataclass(frozen=True)
class TuneResult:
    """What became of a model.

    steps: training steps.
    win: the share of chosen tokens that lead, at the end.
    hits: bans per 1,000 words, before and after, of texts that begin as the rows do.
    """

    steps: int
    win: float
    hits: tuple[float, float]


def tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[FTPORow],
    out: Path,
    *,
    spec: TuneSpec,
    bans: BanList,
    made_with: Mapping[str, Any],
    note: Callable[[int, int, Mapping[str, float]], None] = lambda *_: None,
    is_stopped: Callable[[], bool] = lambda: False,
    force: bool = False,
) -> TuneResult | None:
    """Train a model on rows, and write it, its card and its curves into a folder; None if it was stopped before.

    bans: counted in samples of the model before and after training.
    made_with: for the card and for resuming: a folder that other settings began is refused unless `force`.
    note: called with the step, the number of steps and the log, as training goes.
    is_stopped: asked after each step; once True, a checkpoint is written from which the next call goes on.
    """
    settings = {**asdict(spec), **made_with, "rows": len(rows)}
    resumes = _open_folder(out, settings, force=force)
    before = count_hits(model, tokenizer, rows, bans)
    rate = find_rate(model) if spec.rate is None else spec.rate
    trained = _prepare(model, spec)
    config = _make_config(spec, out / CHECKPOINTS, rate=rate, rows=len(rows), device=model.device)
    watch = _Watch(note, is_stopped)
    trainer = FTPOTrainer(trained, config, train_dataset=rows, callbacks=[watch])
    trainer.remove_callback(PrinterCallback)  # the caller shows the log
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting `save_embedding_layers`")  # in checkpoints
        trainer.train(resume_from_checkpoint=resumes or None)
    if watch.was_stopped:
        return None
    if spec.rank is not None and spec.merge:
        trained = trained.merge_and_unload()
    trained.eval()
    history = [entry for entry in trainer.state.log_history if "win" in entry]
    result = TuneResult(
        trainer.state.global_step, history[-1]["win"], (before, count_hits(trained, tokenizer, rows, bans))
    )
    is_adapter = spec.rank is not None and not spec.merge
    trained.save_pretrained(out, **({"save_embedding_layers": False} if is_adapter else {}))
    tokenizer.save_pretrained(out)
    draw_curves(history, out / PLOT)
    replace_text(out / CARD, describe(result, settings, model, bans))
    return result


def _prepare(model: PreTrainedModel, spec: TuneSpec) -> Any:
    """Return the model with the weights that train: its own, or those of an adapter, which begin by the seed."""
    torch.manual_seed(spec.seed)
    if spec.rank is not None:
        return add_adapter(model, rank=spec.rank, layers=spec.layers)
    unfreeze(model, layers=spec.layers)
    return model


def _open_folder(out: Path, settings: dict[str, Any], *, force: bool) -> bool:
    """Note the settings in the folder; return whether it has a checkpoint of them."""
    path = out / SETTINGS
    if path.exists() and not force:
        before = read_json(path)
        for name, value in settings.items():
            if name in before and before[name] != value:
                raise InputError(
                    f"{out}: was begun with {name}={before[name]!r}, and this run has {name}={value!r}: choose another "
                    "folder, or use --force to begin again"
                )
    elif out.exists() and any(out.iterdir()) and not force:
        raise InputError(f"{out}: has other files: choose a new folder, or use --force to write into it")
    out.mkdir(parents=True, exist_ok=True)
    is_begun = not force and any((out / CHECKPOINTS).glob("checkpoint-*"))
    replace_text(path, json.dumps(settings, indent=2) + "\n")
    return is_begun


def _make_config(spec: TuneSpec, folder: Path, *, rate: float, rows: int, device: torch.device) -> FTPOConfig:
    epoch = ceil(rows / spec.batch_size)
    every = max(1, epoch // LOGS)
    return FTPOConfig(
        output_dir=str(folder),
        learning_rate=rate,
        lr_scheduler_type="constant_with_warmup",  # the end is not known: the share of wins decides
        warmup_steps=every,
        max_steps=max(1, round(spec.epochs * epoch)),
        per_device_train_batch_size=spec.batch_size,
        logging_steps=every,
        save_steps=every * CHECKPOINT_LOGS,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        seed=spec.seed,
        use_cpu=device.type == "cpu",
        stop_at_win=spec.stop_at_win,
        margin=spec.margin,
        temperature=spec.temperature,
        target_weight=spec.target_weight,
        target_slack=spec.target_slack,
        rest_weight=spec.rest_weight,
    )


class _Watch(TrainerCallback):  # type: ignore[misc]  # transformers has no type for it
    """Tells how training goes, and stops it with a checkpoint."""

    def __init__(self, note: Callable[[int, int, Mapping[str, float]], None], is_stopped: Callable[[], bool]) -> None:
        self._note, self._is_stopped = note, is_stopped
        self._latest: Mapping[str, float] = {}
        self.was_stopped = False

    def on_log(self, *_: Any, logs: Mapping[str, float] | None = None, **__: Any) -> None:
        if logs and "win" in logs:
            self._latest = logs

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._note(state.global_step, state.max_steps, self._latest)
        # At a line of the log, so that a resumed run decides to end by the same steps as one in one piece.
        if self._is_stopped() and state.global_step % args.logging_steps == 0 and state.global_step < state.max_steps:
            self.was_stopped = control.should_save = control.should_training_stop = True


def count_hits(
    model: Any, tokenizer: PreTrainedTokenizerBase, rows: Sequence[FTPORow], bans: BanList, *, seed: int = 0
) -> float:
    """Return the bans per 1,000 words of samples that begin as the contexts of some rows."""
    prompts = list(dict.fromkeys(row.context[:PROBE_START] for row in rows if len(row.context) >= PROBE_START))[:PROBES]
    if not prompts:
        return 0.0
    ids = torch.tensor(prompts, device=model.device)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=PROBE_TOKENS,
            pad_token_id=tokenizer.pad_token_id or 0,
        )
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    words = sum(len(extract_words(text)) for text in texts)
    return 1000 * sum(len(list(bans.find(text))) for text in texts) / max(1, words)


def draw_curves(history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the parts of the loss and the share of wins by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [entry["step"] for entry in history]
    for name in ("preference", "target", "rest"):
        left.plot(steps, [entry[name] for entry in history], label=name)
    left.set(title="parts of the loss", xlabel="step")
    left.legend(frameon=False)
    right.plot(steps, [entry["win"] for entry in history])
    right.set(title="chosen tokens that lead", xlabel="step", ylim=(0, 1))
    figure.savefig(path)


def describe(result: TuneResult, settings: Mapping[str, Any], model: PreTrainedModel, bans: BanList) -> str:
    """Return the model card."""
    base = str(settings.get("model") or type(model).__name__)
    on_hub = f"base_model: {base}\n" if "/" in base and not Path(base).exists() else ""
    rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
    before, after = result.hits
    return f"""\
---
{on_hub}library_name: {"transformers" if settings["merge"] or settings["rank"] is None else "peft"}
tags: [antislop, ftpo]
---

# {base}, tuned against its habits

Made with `antislop tune` ([antislop](https://github.com/antislop/antislop) {__version__}) by final-token preference
optimization (https://arxiv.org/abs/2510.15061) on {settings["rows"]:,} places at which the model had begun a banned
phrase.

| | before | after |
|---|---|---|
| hits of {len(bans):,} bans per 1,000 words, in samples that begin as the data does | {before:.1f} | {after:.1f} |

{result.steps:,} steps; {result.win:.0%} of the chosen tokens lead. ![curves]({PLOT})

| setting | value |
|---|---|
{rows}

The license is that of the base model. Nobody has checked whether its texts are true, good or safe.
"""
