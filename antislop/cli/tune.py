"""The command `antislop tune`: weights that forget what the sampler had to withdraw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from antislop.cli.options import BanOptions, ModelOptions, collect_bans
from antislop.cli.progress import ProgressBar, stop_at_interrupt
from antislop.cli.terminal import as_input_error, console, say
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.hf.pretrained import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.tuning.rows import FTPORow
    from antislop.tuning.tuning import TuneSpec

SHARED = ("epochs", "batch_size", "stop_at_win", "margin", "rest_weight", "merge", "seed")
"""Options that `TuneSpec` has by the same names."""


@dataclass(frozen=True)
class DataOptions:
    max_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="Train on N rows, chosen at random.")] = None
    balance_chosen: Annotated[
        float, typer.Option(min=0, max=1, help="The largest share of all chosen tokens that one token may have.")
    ] = 0.2
    balance_rejected: Annotated[
        float, typer.Option(min=0, max=1, help="The largest share of all rejected tokens that one token may have.")
    ] = 0.8


@dataclass(frozen=True)
class TrainingOptions:
    lora_r: Annotated[
        int | None, typer.Option(min=1, metavar="RANK", help="Rank of the adapter.", show_default="128")
    ] = None
    full: Annotated[bool, typer.Option("--full", help="Train the weights themselves, without an adapter.")] = False
    unfrozen: Annotated[int, typer.Option(min=1, metavar="N", help="Train the last N layers, and an untied head.")] = 5
    stop_at_win: Annotated[
        float, typer.Option(min=0, help="End once this share of chosen tokens is likelier than the rejected one.")
    ] = 0.85
    lr: Annotated[float | None, typer.Option(min=0, help="Learning rate.", show_default="by the model's width")] = None
    epochs: Annotated[float, typer.Option(min=0, help="Times that the rows are read, at the most.")] = 10.0
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 16
    margin: Annotated[float, typer.Option(min=0, help="Logits by which chosen tokens are to lead.")] = 2.0
    rest_weight: Annotated[float, typer.Option(min=0, help="Weight of the drift of all other tokens.")] = 0.4
    merge: Annotated[bool, typer.Option("--merge", help="Write whole weights instead of an adapter.")] = False
    seed: Annotated[int, typer.Option(help="Of the order of the rows, and of the adapter.")] = 0

    @property
    def spec(self) -> TuneSpec:
        """What decides the tuned model. Raises `InputError` without the packages of antislop[tune]."""
        spec: TuneSpec = _import_tuning().TuneSpec(
            rank=None if self.full else self.lora_r or 128,
            layers=self.unfrozen,
            rate=self.lr,
            **{name: getattr(self, name) for name in SHARED},
        )
        return spec


def tune(
    pairs: Annotated[
        Path,
        typer.Argument(metavar="PAIRS", help="Final-token pairs: antislop dataset --pairs FILE --pairs-format tokens."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder of the tuned model.")],
    *,
    model: ModelOptions,
    bans: BanOptions,
    data: DataOptions,
    training: TrainingOptions,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the folder instead of resuming.")] = False,
) -> int:
    """Train a model on the places at which it began banned phrases, until it prefers something else there.

    The model is trained on PAIRS alone. The bans are counted in a few of its texts before and after.

    To resume after an interruption, run the same command again.
    """
    if training.full and (training.lora_r or training.merge):
        raise InputError(f"--full has no adapter: leave out --{'lora-r' if training.lora_r else 'merge'}")
    if model.device_map is not None:
        raise InputError("--device-map spreads the model, and a tuned one has to be on one device: pass --device")
    banned = collect_bans(bans)
    made_with = {"pairs": str(pairs), **model.spec.content, **asdict(data)}
    with as_input_error():
        loaded, tokenizer = load_model(model.spec)
        rows = _load_rows(pairs, loaded, tokenizer, data, seed=training.seed)
        with _watching() as (note, is_stopped):
            settings = {"spec": training.spec, "made_with": made_with, "bans": banned, "force": force}
            result = _import_tuning().tune(loaded, tokenizer, rows, out, note=note, is_stopped=is_stopped, **settings)
    if result is None:
        say(f"stopped at a checkpoint: run the same command again to resume; {out}")
        return 130
    before, after = result.hits
    say(f"{result.steps:,} steps; {result.win:.0%} of the chosen tokens lead")
    say(f"banned phrases per 1,000 words, in a few samples: {before:.1f} before, {after:.1f} after")
    say(f"{out}: the {'model' if training.full or training.merge else 'adapter'}, its card and its curves")
    return 0


def _import_tuning() -> ModuleType:
    try:
        return import_module("antislop.tuning.tuning")
    except ImportError as error:
        raise InputError(f"tuning needs more packages ({error}): pip install 'antislop[tune]'") from error


def _load_rows(
    pairs: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: DataOptions, *, seed: int
) -> list[FTPORow]:
    from antislop.tuning.rows import load_pairs

    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    rows = load_pairs(pairs, tokenizer, max_length=room, seed=seed, **asdict(data))
    say(describe_count(len(rows), "row"))
    return rows


@contextmanager
def _watching() -> Iterator[tuple[Callable[[int, int, Mapping[str, float]], None], Callable[[], bool]]]:
    """Show how training goes, and let Ctrl-C stop it at the next checkpoint."""
    with stop_at_interrupt(say) as stop, ProgressBar(console(stderr=True), "tuning") as bar:

        def note(step: int, steps: int, logs: Mapping[str, float]) -> None:
            shown = [f"{name} {logs[name]:.2f}" for name in ("loss", "win") if name in logs]
            bar.update(done=step, total=steps, note=", ".join(shown))

        yield note, lambda: stop.is_requested
