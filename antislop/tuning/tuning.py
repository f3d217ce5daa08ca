"""Tuning of a model on preference rows (FTPO or DPO); the result is a folder that loads without antislop."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil, inf, isfinite
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from peft import get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
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
from antislop.core.bans import BanList
from antislop.core.hf import max_positions
from antislop.datasets.hub import CARD, list_settings
from antislop.datasets.samples import fingerprint_items
from antislop.display import describe_count, load_template
from antislop.errors import InputError
from antislop.files.disk import read_json, replace_text
from antislop.files.models import ModelSpec
from antislop.measure.words import extract_words
from antislop.tuning.ftpo import WEIGHTS, FTPOConfig, FTPOTrainer, StopAtWin, collate, make_adapter, unfreeze
from antislop.tuning.rows import FTPORow, Loss

CHECKPOINTS, SETTINGS, PLOT = "checkpoints", "tuning.json", "tuning.svg"
WRITTEN = ("adapter_*", "*.safetensors", "*.safetensors.index.json", "*config.json")
"""Patterns of the files of a saved model, which are deleted before another model is saved into the same folder."""
LOGS, CHECKPOINT_LOGS = 8, 4
"""Lines of the log per epoch (training stops early only at such a line), and lines of the log per checkpoint."""
PROBES, PROBE_TOKENS, SKIPPED = 32, 140, 20
"""Samples in which bans are counted: how many, tokens of each, and its first tokens that are left out of the count."""
MOST_PROBES = 10
"""How many times at most bans are counted during training, beside the counts before and after it."""
EXPECTED = ("`(is_)?gradient_checkpointing` is deprecated", "Setting `save_embedding_layers`")
"""Beginnings of warnings that are not shown, since peft and TRL cause them themselves."""

RATES = {"ftpo": 0.05, "dpo": 0.015}
"""Learning rates to be divided by the width of a layer, so that a step of Adam moves the logits equally in small and
large models."""
OTHERS = {"ftpo": ("beta",), "dpo": WEIGHTS}
"""For each loss, the settings of `TuneSpec` that only the other loss uses."""

Rows = Sequence[Any]
"""What a model is trained on: each item is an `FTPORow`, or with `loss="dpo"` a `TextPair`."""
Note = Callable[[int, int, Mapping[str, float]], None]
"""A callback that gets the step, the number of steps, and the latest values of "loss", "win" and "hits"."""


@dataclass(frozen=True, kw_only=True)
class TuneSpec:
    """The settings that, with the rows, decide the tuned model.

    loss: "ftpo" for rows of tokens; "dpo" for pairs of texts. "dpo" uses `beta`, and ignores the settings from
        `margin` to `rest_weight`, which only "ftpo" uses.
    rank: of the LoRA adapter; None trains the model's own weights, without an adapter.
    layers: how many of the last layers are trained.
    rate: the learning rate; None chooses one by the width of the model.
    merge: save the whole model, with the adapter merged into its weights, instead of the adapter alone.
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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name in ("epochs", "rate", "margin", "temperature") and value is not None and not value > 0:
                raise InputError(f"{name} is {value!r}: a number above 0 was expected")
            if value == inf and name != "stop_at_win":
                raise InputError(f"{name} is {value!r}: a finite number was expected")

    @property
    def metric(self) -> str:
        """The name of the share of wins in the trainer's log."""
        return "win" if self.loss == "ftpo" else "rewards/accuracies"


@dataclass(frozen=True)
class TuneResult:
    """The result of tuning a model.

    steps: number of training steps.
    win: at the end, the share of cases in which the chosen side is likelier than the rejected side; for "dpo", in which
        training raised the probability of the chosen side more than that of the rejected side.
    before, after: matches of bans per 1,000 words of samples that continue contexts of rows; None if all are too long.
    """

    steps: int
    win: float
    before: float | None
    after: float | None


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
    """Train a model on rows, and write the model, its card and its training curves into the folder `out`.

    bans: their matches are counted in samples of the model before, during and after training.
    made_with: further settings, for the card. A folder that was begun with other settings is refused unless `force`.
    is_stopped: if True, training stops at a line of the log and returns None; the next call resumes from there.

    If `out` has a finished run with the same settings, the result of that run is returned and nothing is trained.
    """
    _check(model, len(rows), spec)
    if spec.rate is None:
        spec = replace(spec, rate=RATES[spec.loss] / float(model.config.get_text_config().hidden_size))
    # What decides the result: the settings in use, the rows and the bans.
    used = {name: value for name, value in asdict(spec).items() if name not in OTHERS[spec.loss]}
    digests = {"rows_sha256": fingerprint_items(rows), "bans_sha256": fingerprint_items(bans)}
    settings = {**used, "rows": len(rows), **digests, **made_with}
    if (done := _open_folder(out, settings, force=force)) is not None:
        return done
    count_hits = partial(_count_hits, tokenizer=tokenizer, rows=rows, bans=bans)
    before, watch = count_hits(model), _Watch(note, is_stopped, count_hits, spec)
    with warnings.catch_warnings():
        for message in EXPECTED:
            warnings.filterwarnings("ignore", message)
        arguments = _list_arguments(spec, out / CHECKPOINTS, model, rows=len(rows))
        trainer = _make_trainer(model, tokenizer, rows, spec, arguments, revision=made_with.get("revision"))
        trainer.add_callback(watch)
        trainer.remove_callback(PrinterCallback)  # the caller shows the log
        trainer.train(resume_from_checkpoint=_find_checkpoint(out / CHECKPOINTS, spec, steps=arguments["max_steps"]))
    if watch.was_stopped:
        return None
    trained = trainer.model.merge_and_unload() if spec.rank is not None and spec.merge else trainer.model
    state, after = trainer.state, count_hits(trained)
    win = next(entry[spec.metric] for entry in reversed(state.log_history) if spec.metric in entry)
    result = TuneResult(state.global_step, win, before, after)
    _save(trained, tokenizer, out)
    ends = [{"step": 0, "hits": before}, {"step": state.global_step, "hits": after}]
    draw_curves([*state.log_history, *ends], out / PLOT, metric=spec.metric)
    replace_text(out / CARD, describe(result, settings, trained, bans))
    _note(out, settings, asdict(result))
    shutil.rmtree(out / CHECKPOINTS)
    return result


def _save(trained: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Save a model, or its adapters alone, which then name their base model as the Hub does."""
    adapters = getattr(trained, "peft_config", {})
    for adapter in adapters.values():
        adapter.base_model_name_or_path = ModelSpec(adapter.base_model_name_or_path).public_name
    # By default, peft looks up the base model on the Hub, to see whether its vocabulary has grown.
    trained.eval().save_pretrained(out, **({"save_embedding_layers": False} if adapters else {}))
    tokenizer.save_pretrained(out)


def _check(model: PreTrainedModel, rows: int, spec: TuneSpec) -> None:
    """Raise `InputError` for a model that can't be trained here, and for rows that are too few for two steps."""
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise InputError("the model lies on several devices, and a tuned one has to be on one: load it without a map")
    if torch.cuda.device_count() > 1:
        raise InputError(f"{torch.cuda.device_count()} GPUs are visible, and tuning uses one: set CUDA_VISIBLE_DEVICES")
    if any(isinstance(part, BaseTunerLayer) for part in model.modules()):
        raise InputError("the model has an adapter already: merge it into the weights first (merge_and_unload)")
    if spec.rank is None and model.dtype in (torch.float16, torch.bfloat16):
        raise InputError(f"weights of {model.dtype} are too coarse for small steps: load the model in float32")

    if rows < spec.batch_size:
        raise InputError(
            f"{describe_count(rows, 'row')} to train on, and the {spec.batch_size:,} of one step are needed: make "
            "pairs of more prompts, with a larger --n, or of a longer list; --batch-size "
            f"{max(1, rows // 2)} trains on so few"
        )
    if _count_steps(rows, spec) < 2:
        epochs = 2 / ceil(rows / spec.batch_size)
        raise InputError(
            f"training on {describe_count(rows, 'row')} has 1 step, and 2 or more are needed, since the first one only "
            f"warms up: raise --epochs to {epochs:g}, or make more pairs"
        )


def _count_steps(rows: int, spec: TuneSpec) -> int:
    return max(1, round(spec.epochs * ceil(rows / spec.batch_size)))


def _make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    spec: TuneSpec,
    arguments: dict[str, Any],
    *,
    revision: str | None,
) -> Trainer:
    """Return a trainer of the model's own weights, or of an adapter whose initial weights are drawn with the seed."""
    torch.manual_seed(spec.seed)
    if spec.rank is None:
        adapter = None
        unfreeze(model, layers=spec.layers)
    else:
        has_head = spec.loss == "ftpo"  # TRL takes no adapter of the head
        adapter = make_adapter(model, rank=spec.rank, layers=spec.layers, has_head=has_head, revision=revision)
    if spec.loss == "dpo":
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

        trainer = DPOTrainer(
            model=model,
            ref_model=copy.deepcopy(model) if adapter is None else None,  # an adapter is compared with its base
            args=DPOConfig(**arguments, beta=spec.beta, bf16=False, gradient_checkpointing=False, max_length=None),
            train_dataset=Dataset.from_list([pair._asdict() for pair in rows]),
            processing_class=tokenizer,
            peft_config=adapter,
        )
        trainer.add_callback(StopAtWin(spec.stop_at_win, metric=spec.metric))
        return trainer
    config = FTPOConfig(**arguments, **{name: getattr(spec, name) for name in ("stop_at_win", *WEIGHTS)})
    trained = model if adapter is None else get_peft_model(model, adapter)
    return FTPOTrainer(trained, config, train_dataset=rows)


def _open_folder(out: Path, settings: dict[str, Any], *, force: bool) -> TuneResult | None:
    """Write the settings into the folder; if a run with these settings is finished there, return the run's result."""
    path = out / SETTINGS
    if path.exists() and force:
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
        for written in (found for name in WRITTEN for found in out.glob(name)):
            written.unlink()
    elif path.exists():
        noted = read_json(path)
        for name, value in settings.items():
            if name in noted["settings"] and (before := noted["settings"][name]) != value:
                raise InputError(
                    f"{out}: was begun with {name}={before!r}, and this run has {name}={value!r}: choose another "
                    "folder, or use --force to begin again"
                )
        if (result := read_result(out)) is not None:
            return result
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: has other files: choose a new folder")
    out.mkdir(parents=True, exist_ok=True)
    _note(out, settings, None)
    return None


def read_result(out: Path) -> TuneResult | None:
    """Return the result of a finished run from its folder."""
    path = out / SETTINGS
    result = read_json(path)["result"] if path.exists() else None
    return None if result is None else TuneResult(**result)


def _note(out: Path, settings: dict[str, Any], result: dict[str, Any] | None) -> None:
    replace_text(out / SETTINGS, json.dumps({"settings": settings, "result": result}, indent=2) + "\n")


def _find_checkpoint(folder: Path, spec: TuneSpec, *, steps: int) -> str | None:
    """Return the latest checkpoint to resume from.

    Deletes incomplete checkpoints, and any at which training was over: the trainer would take one more step from there.
    """
    found: dict[int, str] = {}
    for path in folder.glob("checkpoint-*"):
        state = path / "trainer_state.json"  # the last file of a checkpoint
        history = read_json(state)["log_history"] if state.exists() else []
        wins = [entry[spec.metric] for entry in history if spec.metric in entry]
        step = int(path.name.partition("-")[2])
        has_ended = step >= steps or (wins and wins[-1] >= spec.stop_at_win)
        if has_ended or not state.exists():
            shutil.rmtree(path)
        else:
            found[step] = str(path)
    return found[max(found)] if found else None


def _list_arguments(spec: TuneSpec, folder: Path, model: PreTrainedModel, *, rows: int) -> dict[str, Any]:
    steps = _count_steps(rows, spec)
    every = min(max(1, ceil(rows / spec.batch_size) // LOGS), steps)
    return {
        "output_dir": str(folder),
        "learning_rate": spec.rate,
        "lr_scheduler_type": "constant_with_warmup",  # the end is not known: the share of wins decides
        "warmup_steps": every,
        "max_steps": steps,
        "per_device_train_batch_size": spec.batch_size,
        "logging_steps": every,
        "logging_nan_inf_filter": False,
        "save_steps": every * CHECKPOINT_LOGS,
        "save_total_limit": 1,
        "report_to": [],
        "disable_tqdm": True,
        "seed": spec.seed,
        "use_cpu": model.device.type == "cpu",
    }


@dataclass(eq=False)
class _Watch(TrainerCallback):  # type: ignore[misc]  # transformers has no type for it
    """Reports the progress of training, counts bans at some checkpoints, and stops training on request."""

    note: Note
    is_stopped: Callable[[], bool]
    count_hits: Callable[[Any], float | None]
    spec: TuneSpec
    latest: dict[str, float] = field(default_factory=dict)
    was_stopped: bool = False

    def on_log(self, *_: Any, logs: Mapping[str, float] | None = None, **__: Any) -> None:
        if not logs or self.spec.metric not in logs:
            return
        if not isfinite(logs["loss"]):
            raise InputError(f"the loss became {logs['loss']}: use a smaller learning rate (--lr), or --dtype float32")
        self.latest |= {"loss": logs["loss"], "win": logs[self.spec.metric]}
        if self.latest["win"] >= self.spec.stop_at_win:
            self.was_stopped = False  # the run ends by its wins

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **_: Any) -> None:
        if state.global_step % (args.save_steps * ceil(state.max_steps / args.save_steps / MOST_PROBES)) == 0:
            hits = self.count_hits(model)
            state.log_history.append({"step": state.global_step, "hits": hits})  # so the checkpoint has it
            self.latest |= {} if hits is None else {"hits": hits}
        self.note(state.global_step, state.max_steps, self.latest)
        # Stop at a line of the log, so that a resumed run averages wins over the same steps as an uninterrupted run.
        if self.is_stopped() and state.global_step % args.logging_steps == 0 and state.global_step < state.max_steps:
            self.was_stopped = control.should_save = control.should_training_stop = True


def _count_hits(model: Any, *, tokenizer: PreTrainedTokenizerBase, rows: Rows, bans: BanList) -> float | None:
    """Return the bans per 1,000 words of samples that continue contexts of rows; None if all contexts are too long."""
    room = max_positions(model) or inf
    contexts = (row.context if isinstance(row, FTPORow) else tuple(tokenizer(row.prompt)["input_ids"]) for row in rows)
    distinct = dict.fromkeys(context for context in contexts if len(context) + PROBE_TOKENS <= room)
    if not distinct:
        return None
    step = max(1, len(distinct) // PROBES)  # spread over all rows
    batch = collate([FTPORow(context, 0, (0,)) for context in [*distinct][::step][:PROBES]])
    ids, was_training, end = batch["input_ids"].to(model.device), model.training, tokenizer.eos_token_id
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(0)
        written = model.eval().generate(
            input_ids=ids,
            attention_mask=batch["attention_mask"].to(model.device),
            do_sample=True,
            max_new_tokens=PROBE_TOKENS,
            eos_token_id=end,
            pad_token_id=0 if end is None else end,
        )
    model.train(was_training)
    samples: list[list[int]] = written[:, ids.shape[1] + SKIPPED :].tolist()
    kept = [sample[: sample.index(end)] if end in sample else sample for sample in samples]
    texts = [str(text) for text in tokenizer.batch_decode(kept, skip_special_tokens=True)]
    words = sum(len(extract_words(text)) for text in texts)
    return 1000 * sum(len(list(bans.find(text))) for text in texts) / max(1, words)


def draw_curves(history: Sequence[Mapping[str, float]], path: Path, *, metric: str) -> None:
    """Draw the loss (its parts, if they were logged), the share of wins, and the matches of bans, by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    names = ("preference", "target", "rest") if any("preference" in entry for entry in history) else ("loss",)
    panels = {"loss": names, "share of wins": (metric,), "hits per 1,000 words": ("hits",)}
    for axes, (title, drawn) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name in drawn:
            points = sorted((entry["step"], entry[name]) for entry in history if entry.get(name) is not None)
            axes.plot([step for step, _ in points], [value for _, value in points], label=name)
        axes.set(title=title, xlabel="step", ylim=(0, 1) if drawn == (metric,) else (0, None))
        if len(drawn) > 1:
            axes.legend(frameon=False)
    figure.savefig(path)


def describe(result: TuneResult, settings: Mapping[str, Any], model: PreTrainedModel, bans: BanList) -> str:
    base = str(settings.get("model") or type(model).__name__)
    settings = {name: Path(value).name if name == "pairs" else value for name, value in settings.items()}
    if Path(base).exists():  # readers of the card have no use for paths of this machine
        settings["model"] = base = Path(base).resolve().name
    license, carried = read_license(model.name_or_path), ModelSpec(base).carried
    data = ModelCardData(
        base_model=carried.hub if carried else base if "/" in base else None,
        license=license,
        library_name="transformers" if settings["merge"] or settings["rank"] is None else "peft",
        tags=["antislop", settings["loss"]],
    )
    text = load_template("model_card.md").render(
        base=base,
        version=__version__,
        loss=settings["loss"],
        rows=settings["rows"],
        bans=bans,
        result=result,
        plot=PLOT,
        settings=list_settings(settings),
        license=license,
    )
    return f"---\n{data.to_yaml()}\n---\n\n{text}\n"


def read_license(model: str) -> str | None:
    """Return the license that a model's card names; None without a card, or if the hub can't be reached."""
    card = Path(model) / CARD
    with suppress(OSError, ValueError, HfHubHTTPError):
        license: str | None = ModelCard.load(
            card if card.is_file() else model, ignore_metadata_errors=True
        ).data.license
        return license
    return None
