"""The command `antislop tune`: train a model against the phrases that the sampler withdrew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antislop.cli.job import count_records
from antislop.cli.options import (
    TWO_LISTS,
    BanOptions,
    ModelOptions,
    bans_nothing,
    collect_bans,
    list_options,
    reads_stdin,
)
from antislop.cli.parsing import Conflicts, When
from antislop.cli.progress import ProgressBar, stop_at_interrupt
from antislop.cli.terminal import as_input_error, check_folder, console, say, warn, writing
from antislop.cli.tune_auto import AutoOptions, TuningStage, run_stages
from antislop.display import describe_count
from antislop.errors import DISTRIBUTION, InputError
from antislop.tuning.rows import Loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.tuning.dpo import TextPair
    from antislop.tuning.rows import FTPORow
    from antislop.tuning.tuning import TuneResult, TuneSpec

SHARED = ("epochs", "batch_size", "stop_at_win", "merge", "seed")
"""Options that `TuneSpec` has by the same names."""
OF_FTPO = partial(typer.Option, rich_help_panel="With --loss ftpo")


@dataclass(frozen=True)
class BalanceOptions:
    balance_chosen: Annotated[float, OF_FTPO(min=0, max=1, help="Largest share of one token among the chosen.")] = 0.2
    balance_rejected: Annotated[float, OF_FTPO(min=0, max=1, help="Largest share of one among the rejected.")] = 0.8
    min_chosen: Annotated[int, OF_FTPO(min=1, help="Leave out rows with fewer chosen tokens.")] = 2
    max_chosen: Annotated[int, OF_FTPO(min=1, help="Take the likeliest N chosen tokens of a row.")] = 8


@dataclass(frozen=True)
class WeightOptions:
    margin: Annotated[float, OF_FTPO(min=0, help="Logits by which chosen tokens are to lead.")] = 2.0
    temperature: Annotated[float, OF_FTPO(min=0, help="Softness of the preference.")] = 1.0
    target_weight: Annotated[float, OF_FTPO(min=0, help="Weight of the drift of chosen and rejected tokens.")] = 0.05
    target_slack: Annotated[float, OF_FTPO(min=0, help="Logits by which these may drift without loss.")] = 0.5
    rest_weight: Annotated[float, OF_FTPO(min=0, help="Weight of the drift of all other tokens.")] = 0.4


@dataclass(frozen=True)
class DPOOptions:
    beta: Annotated[
        float,
        typer.Option(
            min=0, rich_help_panel="With --loss dpo", help="Weight that keeps the model close to the original."
        ),
    ] = 0.1


@dataclass(frozen=True)
class TrainingOptions:
    lora_r: Annotated[int | None, typer.Option(min=1, help="Rank of the adapter.", show_default="128")] = None
    full: Annotated[bool, typer.Option("--full", help="Train the weights themselves, without an adapter.")] = False
    unfrozen: Annotated[int, typer.Option(min=1, help="Train the last N layers, and an untied head.")] = 5
    stop_at_win: Annotated[
        float,
        typer.Option(
            min=0, help="End once the chosen side wins in this share of cases: it is likelier, or for dpo, gained more."
        ),
    ] = 0.85
    lr: Annotated[float | None, typer.Option(min=0, help="Learning rate.", show_default="by the model's width")] = None
    epochs: Annotated[float, typer.Option(min=0, help="Times that the rows are read, at the most.")] = 10.0
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 16
    max_rows: Annotated[int | None, typer.Option(min=1, help="Train on N rows, chosen at random.")] = None
    merge: Annotated[bool, typer.Option("--merge", help="Write whole weights instead of an adapter.")] = False
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the order of the rows, and of the adapter.")] = 0


CONFLICTS: Conflicts = {
    "{option} has no effect without --auto: pass --auto, or leave it out": When(
        "prompts n max_new_tokens", lambda o: not o.auto
    ),
    "no pairs to train on: pass PAIRS, or --auto --prompts PROMPTS": When("", lambda o: o.pairs is None and not o.auto),
    "--auto makes the pairs itself: leave out {pairs}, or leave out --auto": When("auto", lambda o: o.pairs),
    "--auto needs prompts: pass --prompts PROMPTS": When("auto", lambda o: o.prompts is None),
    "--force has no effect with --auto: delete the files that are to be made again": When("force", lambda o: o.auto),
    "--full has no adapter: leave out {option}": When("lora_r merge", lambda o: o.full),
    "--device-map spreads the model, and a tuned one has to be on one device: pass --device": When(
        "device_map", lambda o: o.device_map
    ),
    "--beta has no effect with --loss {loss}: leave it out": When("beta", lambda o: o.loss != "dpo"),
    "{option} has no effect with --loss {loss}: leave it out": When(
        "balance_chosen balance_rejected min_chosen max_chosen "
        "margin temperature target_weight target_slack rest_weight",
        lambda o: o.loss != "ftpo",
    ),
    "--min-chosen is larger than --max-chosen: no row can have as many tokens": When(
        "min_chosen max_chosen", lambda o: o.min_chosen > o.max_chosen
    ),
    "--bans -: standard input can be read once, and --auto reads the list several times": When("auto", reads_stdin),
    **TWO_LISTS,
    "--no-bans leaves nothing to ban: leave it out, or add --ban PHRASE": When("auto", bans_nothing),
    "--no-bans leaves nothing to count in the texts: leave it out, or add --ban PHRASE": When("no_bans", bans_nothing),
}


def tune(
    pairs: Annotated[
        Path | None,
        typer.Argument(
            metavar="PAIRS",
            help="Pairs of antislop dataset --pairs FILE: with --pairs-format tokens, or for dpo without.",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder of the tuned model.")],
    loss: Annotated[
        Loss, typer.Option(help="ftpo: final-token preference optimization; dpo: TRL's direct preference optimization.")
    ] = "ftpo",
    model: ModelOptions,
    bans: BanOptions,
    training: TrainingOptions,
    balance: BalanceOptions,
    weights: WeightOptions,
    dpo: DPOOptions,
    auto: AutoOptions,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the folder instead of resuming.")] = False,
) -> int:
    """Train a model on the places at which it began banned phrases, until it prefers something else there.

    The model is trained on PAIRS alone. The bans are counted in a few of its texts before and after.

    To resume after an interruption, run the same command again.
    """
    run = _Run(loss, model, bans, training, balance, weights, dpo)
    run.check()
    check_folder(out, "the model")
    if model.model is not None and Path(model.model).resolve() == out.resolve():
        raise InputError(f"{out}: is the folder of the model that is tuned: choose another one")
    if pairs is None:
        tuning = TuningStage(run.arguments, training.batch_size, is_dpo=loss == "dpo")
        return run_stages(auto, out, model=model, bans=bans, tuning=tuning)
    if not pairs.is_file():
        raise InputError(f"{pairs}: is not a file: make pairs with antislop dataset --pairs FILE")
    was_finished = not force and _import_tuning().read_result(out) is not None
    result = run.tune(pairs, out, force=force)
    if result is None:
        say(f"stopped at a checkpoint: run the same command again to resume; {out}")
        return 130
    if was_finished:
        say(f"{out}: was finished before; --force trains again")
    report_result(result, training)
    say(f"{out}: the {'model' if training.full or training.merge else 'adapter'}, its card and its curves")
    return 0


def report_result(result: TuneResult, options: TrainingOptions) -> None:
    """Say whether training worked, and what to do if it didn't."""
    say(f"{describe_count(result.steps, 'step')}; the chosen side wins in {result.win:.0%}")
    wanted = options.stop_at_win if options.stop_at_win <= 1 else 0.5  # above 1, training takes all epochs
    if result.steps == 1:  # the first step warms up, with a learning rate of 0
        warn("training ended before it changed the model: raise --stop-at-win")
    elif result.win < wanted:
        longer = f"train longer, with --epochs {2 * options.epochs:g} --force, or on more pairs"
        warn(f"training ended before the chosen side won in {wanted:.0%}: {longer}")
    if result.before is None or result.after is None:
        return
    say(f"banned phrases per 1,000 words, in a few samples: {result.before:.1f} before, {result.after:.1f} after")
    if result.after >= result.before > 0:
        warn("the model writes banned phrases as often as before: train longer, on more pairs, or raise --lr")
    elif result.after < result.before and result.win >= wanted:
        say("it worked: there are fewer; antislop eval measures how many, and what it costs")


@dataclass(frozen=True)
class _Run:
    """The options of a training run."""

    loss: Loss
    model: ModelOptions
    bans: BanOptions
    training: TrainingOptions
    balance: BalanceOptions
    weights: WeightOptions
    dpo: DPOOptions

    def check(self) -> None:
        """Raise `InputError` for values that are out of range, and for missing packages."""
        _import_tuning("accelerate", "matplotlib", "peft", *(("datasets", "trl") if self.loss == "dpo" else ()))
        _ = self.spec

    @property
    def arguments(self) -> list[str]:
        """The arguments of the command line that aren't about the model, the bans and the files."""
        groups = (self.training, self.balance, self.weights, self.dpo)
        return ["--loss", self.loss, *(part for group in groups for part in list_options(group))]

    @property
    def spec(self) -> TuneSpec:
        """What decides the tuned model. Raises `InputError` without the packages of antislop-lm[tune]."""
        spec: TuneSpec = _import_tuning().TuneSpec(
            loss=self.loss,
            rank=None if self.training.full else self.training.lora_r or 128,
            layers=self.training.unfrozen,
            rate=self.training.lr,
            **{name: getattr(self.training, name) for name in SHARED},
            **asdict(self.weights),
            **asdict(self.dpo),
        )
        return spec

    def tune(self, pairs: Path, out: Path, *, force: bool) -> TuneResult | None:
        """Train on pairs; None if the user stopped it."""
        balanced = asdict(self.balance) if self.loss == "ftpo" else {}
        made_with = {"pairs": str(pairs), **self.model.spec.content, "max_rows": self.training.max_rows, **balanced}
        settings = {"bans": collect_bans(self.bans), "made_with": made_with, "force": force}
        with as_input_error():
            spec = self.spec
            base = self.model.spec
            if self.training.full and base.dtype == "auto":  # all of its weights are trained
                base = replace(base, dtype="float32")
            loaded, tokenizer = base.load()
            rows = self._load_rows(pairs, loaded, tokenizer)
            total = count_records(str(pairs)) or len(rows)
            say(f"{describe_count(len(rows), 'row')} of {total:,} in {pairs}")
            with writing(out, advice="choose another folder"), _watching() as (note, is_stopped):
                result: TuneResult | None = _import_tuning().tune(
                    loaded, tokenizer, rows, out, spec=spec, note=note, is_stopped=is_stopped, **settings
                )
        return result

    def _load_rows(
        self, pairs: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[FTPORow | TextPair]:
        room, training = _import_tuning().find_room(model), self.training
        taken: dict[str, Any] = {"max_length": room, "max_rows": training.max_rows, "seed": training.seed}
        if self.loss == "ftpo":
            from antislop.tuning.rows import load_pairs

            size = model.config.get_text_config().vocab_size
            return load_pairs(pairs, tokenizer, vocab_size=size, **taken, **asdict(self.balance))
        from datasets import disable_progress_bars

        from antislop.tuning.dpo import load_text_pairs

        disable_progress_bars()  # TRL tokenizes with bars of its own
        return load_text_pairs(pairs, tokenizer, **taken)


def _import_tuning(*packages: str) -> ModuleType:
    """Import the code of this command, and torch with it. packages: what must be installed."""
    try:
        if missing := [name for name in packages if find_spec(name) is None]:
            raise ModuleNotFoundError(f"no {', no '.join(missing)}")
        return import_module("antislop.tuning.tuning")
    except ImportError as error:
        raise InputError(f"tuning needs more packages ({error}): pip install '{DISTRIBUTION}[tune]'") from error


@contextmanager
def _watching() -> Iterator[tuple[Callable[[int, int, Mapping[str, float]], None], Callable[[], bool]]]:
    """Show how training goes, and let Ctrl-C stop it at the next checkpoint."""
    message = "stopping at the next line of the log; Ctrl-C again stops at once"
    with stop_at_interrupt(say, message) as stop, ProgressBar(console(stderr=True), "tuning") as bar:

        def note(step: int, steps: int, logs: Mapping[str, float]) -> None:
            shown = [f"{name} {logs[name]:.2f}" for name in ("loss", "win", "hits") if name in logs]
            bar.update(done=step, total=steps, note=", ".join(shown))

        yield note, lambda: stop.is_requested
