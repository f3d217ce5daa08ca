"""The command `antislop tune`: train a model against the phrases that the sampler withdrew.

With --auto, it runs the commands from prompts to a tuned and measured model, one after another.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from antislop.cli import options as shared
from antislop.cli.evaluate import require_packages
from antislop.cli.job import count_records
from antislop.cli.measure import MIN_SAMPLE
from antislop.cli.parsing import Conflicts, When
from antislop.cli.progress import ProgressBar, stop_at_interrupt
from antislop.cli.terminal import as_input_error, check_folder, console, say, warn, writing
from antislop.core.bans import BanList
from antislop.display import describe_count
from antislop.errors import DISTRIBUTION, InputError
from antislop.files.disk import read_json, read_text, replace_text
from antislop.files.models import ModelSpec
from antislop.files.prompts import Prompt, read_prompts
from antislop.measure.languages import ENGLISH, recognize
from antislop.tuning.rows import FTPORow, Loss, TextPair, load_pairs, load_text_pairs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antislop.tuning.tuning import TuneResult, TuneSpec

SHARED = ("epochs", "batch_size", "stop_at_win", "merge", "seed")
"""Training options that `TuneSpec` has under the same names."""
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
    beta: Annotated[
        float,
        typer.Option(
            min=0, rich_help_panel="With --loss dpo", help="Weight that keeps the model close to the original."
        ),
    ] = 0.1


@dataclass(frozen=True)
class TrainingOptions:
    lora_r: Annotated[int | None, typer.Option(min=1, help="Rank of the adapter.", show_default="128")] = None
    full: Annotated[bool, typer.Option(help="Train the weights themselves, without an adapter.")] = False
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
    merge: Annotated[bool, typer.Option(help="Write whole weights instead of an adapter.")] = False
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
    "--bans -: standard input can be read once, and --auto reads the list several times": When(
        "auto", shared.reads_stdin
    ),
    **shared.TWO_LISTS,
    "--no-bans leaves nothing to ban: leave it out, or add --ban PHRASE": When("auto", shared.bans_nothing),
    "--no-bans leaves nothing to count in the texts: leave it out, or add --ban PHRASE": When(
        "no_bans", shared.bans_nothing
    ),
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
    model: shared.ModelOptions,
    bans: shared.BanOptions,
    training: TrainingOptions,
    balance: BalanceOptions,
    weights: WeightOptions,
    auto: AutoOptions,
    force: Annotated[bool, typer.Option(help="Overwrite the folder instead of resuming.")] = False,
) -> int:
    """Train a model on the places at which it began banned phrases, until it prefers something else there.

    The model is trained on PAIRS alone. The bans are counted in a few of its texts before and after.

    To resume after an interruption, run the same command again.
    """
    run = TuningRun(loss, model, bans, training, balance, weights)
    run.check()
    check_folder(out, "the model")
    if model.model is not None and Path(model.model).resolve() == out.resolve():
        raise InputError(f"{out}: is the folder of the model that is tuned: choose another one")
    if pairs is None:
        return run_stages(auto, out, run)
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
class TuningRun:
    """A training run, by its options on the command line."""

    loss: Loss
    model: shared.ModelOptions
    bans: shared.BanOptions
    training: TrainingOptions
    balance: BalanceOptions
    weights: WeightOptions

    def check(self) -> None:
        """Raise `InputError` for values that are out of range, and for missing packages."""
        _import_tuning("accelerate", "matplotlib", "peft", *(("datasets", "trl") if self.loss == "dpo" else ()))
        _ = self.spec

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments of this run, except those for the model, the bans and the files."""
        groups = (self.training, self.balance, self.weights)
        return ["--loss", self.loss, *(part for group in groups for part in shared.list_options(group))]

    @property
    def spec(self) -> TuneSpec:
        """The settings of the training. Raises `InputError` if packages of antislop-lm[tune] are missing."""
        spec: TuneSpec = _import_tuning().TuneSpec(
            loss=self.loss,
            rank=None if self.training.full else self.training.lora_r or 128,
            layers=self.training.unfrozen,
            rate=self.training.lr,
            **{name: getattr(self.training, name) for name in SHARED},
            **asdict(self.weights),
        )
        return spec

    def tune(self, pairs: Path, out: Path, *, force: bool) -> TuneResult | None:
        """Train on a file of pairs, and return the result; None if the user stopped the training."""
        balanced = asdict(self.balance) if self.loss == "ftpo" else {}
        made_with = {"pairs": str(pairs), **self.model.spec.content, "max_rows": self.training.max_rows, **balanced}
        settings = {"bans": shared.collect_bans(self.bans), "made_with": made_with, "force": force}
        with as_input_error():
            spec = self.spec
            base = self.model.spec
            is_precise = self.training.full and base.dtype == "auto"  # all weights are trained
            loaded, tokenizer = (replace(base, dtype="float32") if is_precise else base).load()
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
        from antislop.core.hf import max_positions

        training, room = self.training, max_positions(model)
        taken: dict[str, Any] = {"max_length": room, "max_rows": training.max_rows, "seed": training.seed}
        if self.loss == "ftpo":
            size = model.config.get_text_config().vocab_size
            return load_pairs(pairs, tokenizer, vocab_size=size, **taken, **asdict(self.balance))
        from datasets import disable_progress_bars

        disable_progress_bars()  # TRL tokenizes with bars of its own
        return load_text_pairs(pairs, tokenizer, **taken)


def _import_tuning(*packages: str) -> ModuleType:
    """Import `antislop.tuning.tuning`, and torch with it. Raises `InputError` if one of `packages` is missing."""
    try:
        if missing := [name for name in packages if find_spec(name) is None]:
            raise ModuleNotFoundError(f"no {', no '.join(missing)}")
        return import_module("antislop.tuning.tuning")
    except ImportError as error:
        raise InputError(f"tuning needs more packages ({error}): pip install '{DISTRIBUTION}[tune]'") from error


@contextmanager
def _watching() -> Iterator[tuple[Callable[[int, int, Mapping[str, float]], None], Callable[[], bool]]]:
    """Show a progress bar of the training, and let Ctrl-C stop the training at the next checkpoint."""
    message = "stopping at the next line of the log; Ctrl-C again stops at once"
    with stop_at_interrupt(say, message) as stop, ProgressBar(console(stderr=True), "tuning") as bar:

        def note(step: int, steps: int, logs: Mapping[str, float]) -> None:
            shown = [f"{name} {logs[name]:.2f}" for name in ("loss", "win", "hits") if name in logs]
            bar.update(done=step, total=steps, note=", ".join(shown))

        yield note, stop.is_set


# -- from prompts to a report -----------------------------------------------------------------------------------------

OF_AUTO = partial(typer.Option, rich_help_panel="From prompts, with --auto")
MADE_FROM, HELD_OUT, SETTINGS, BANS = "made-from.jsonl", "held-out.jsonl", "auto.json", "bans.txt"
MIN_PROMPTS = 4
"""Fewest prompts for --auto: both halves need two, one to make a list (phrases of two prompts), one for intervals."""
MIN_BANS = 3
"""Fewest bans for --auto: with fewer tokens to reject, `balance` can't limit a token's share in the training rows."""
TOKENS_PER_ROW = 120
"""Tokens to generate per training row, as measured on the bundled model: 9,600 tokens gave 88 rows, 5,760 gave 40."""
FAILED_RECORDS, INTERRUPTED = 1, 130
"""Exit statuses. If `dataset` exits with FAILED_RECORDS, the next command still runs, on the records that exist."""


@dataclass(frozen=True)
class AutoOptions:
    auto: Annotated[
        bool,
        OF_AUTO(
            "--auto",
            help="Start from --prompts: generate texts, make a list of bans and pairs, train, and write a report.",
        ),
    ] = False
    prompts: Annotated[str | None, OF_AUTO(metavar="PROMPTS", help="Prompts as antislop dataset reads them.")] = None
    n: Annotated[int, OF_AUTO(min=1, help="Responses per prompt.")] = 8
    max_new_tokens: Annotated[int, OF_AUTO(min=1, help="Maximum tokens kept per text.")] = 300


class Stage(NamedTuple):
    """One of the commands that --auto runs.

    made: the command is skipped if this file exists; None for a command that resumes by itself.
    """

    arguments: Sequence[object]
    made: Path | None = None


def run_stages(options: AutoOptions, out: Path, run: TuningRun) -> int:
    """Run the stages that aren't done yet. Stop at an exit status above `FAILED_RECORDS`, and return it, or else 0."""
    from antislop.cli.main import app

    require_packages()
    if _makes_list(run.bans):
        ENGLISH.frequencies  # noqa: B018 - fails now, not when bans-from needs them, after hours of texts
    else:
        shared.collect_bans(run.bans)  # refuses a list that can't be read
    halves = split_prompts(str(options.prompts), run.model)
    spoken = recognize(prompt.text for half in halves.values() for prompt in half) or ENGLISH
    if _makes_list(run.bans) and not spoken.is_english:
        raise InputError(
            f"the prompts are in {spoken.name}, and the bundled human texts, from which --auto makes a list, are "
            "English: make a list with antislop profile --baseline HUMAN and antislop bans-from, and pass it as --bans"
        )
    prompts, needed = len(halves[MADE_FROM]), run.training.batch_size
    tokens = prompts * options.n * options.max_new_tokens
    if tokens < needed * TOKENS_PER_ROW:
        warn(
            f"{describe_count(prompts, 'prompt')} to make pairs of, --n {options.n} and --max-new-tokens "
            f"{options.max_new_tokens} give {describe_count(tokens, 'token')} at most, and so about "
            f"{describe_count(tokens // TOKENS_PER_ROW, 'row')} of the {needed:,} that one step of the training needs: "
            "raise them, or lower --batch-size"
        )
    given = [part for group in (options, run.model, run.bans) for part in shared.list_options(group)]
    _open_folder(out, [*given, *run.arguments], halves)
    stages = [*list_stages(options, out, run)]
    for number, (arguments, made) in enumerate(stages, start=1):
        line = [str(argument) for argument in arguments]
        is_done = made is not None and made.exists()
        say(f"== {number} of {len(stages)}{' (done before)' if is_done else ''}: {shlex.join(['antislop', *line])}")
        status = 0 if is_done else int(app(line, standalone_mode=False) or 0)
        if status == INTERRUPTED:
            say("stopped: run the same command again to resume")
        elif made is not None and made.name == BANS:
            count = len(BanList.load(made)) if made.exists() else 0
            if count < MIN_BANS:
                raise InputError(
                    f"{made}: the list has {describe_count(count, 'ban')}, and {MIN_BANS} or more are needed, or "
                    "training teaches to avoid one token everywhere: begin in another folder with more prompts, a "
                    "larger --n or --max-new-tokens, or a list of your own (--bans)"
                )
        if status > FAILED_RECORDS:
            return status
    return 0


def _makes_list(bans: shared.BanOptions) -> bool:
    return bans == shared.BanOptions(lenient=bans.lenient)


def list_stages(options: AutoOptions, out: Path, run: TuningRun) -> Iterator[Stage]:
    """Yield the commands of --auto in order. If no bans are chosen, the first three make a list from plain texts."""
    model = run.model
    base, texts = shared.list_options(model), ["--n", options.n, "--max-new-tokens", options.max_new_tokens]
    made_from, held_out, tuned = out / MADE_FROM, out / HELD_OUT, out / "model"
    banned = shared.list_options(run.bans)
    if _makes_list(run.bans):
        yield Stage(["dataset", made_from, "-o", out / "plain.jsonl", "--arms", "plain", *texts, *base])
        yield Stage(["profile", out / "plain.jsonl", "-o", out / "profile.json"], out / "profile.json")
        yield Stage(["bans-from", out / "profile.json", "-o", out / BANS], out / BANS)
        banned += ["--bans", str(out / BANS)]
    pairs = ["--pairs", str(out / "pairs.jsonl"), *([] if run.loss == "dpo" else ["--pairs-format", "tokens"])]
    yield Stage(["dataset", made_from, "-o", out / "banned.jsonl", *pairs, *banned, *texts, *base])
    yield Stage(["tune", out / "pairs.jsonl", "-o", tuned, *run.arguments, *banned, *base], tuned / "README.md")
    # The bundled model runs in float32 by default, and the tuned model's folder would run in its checkpoint's dtype.
    dtype = ["--dtype", "float32"] if model.model is None and model.dtype == "auto" else []
    after = [*shared.list_options(replace(model, model=str(tuned))), *dtype]
    arms = {"plain": [*base, "--arms", "plain"], "tuned": [*after, "--arms", "plain"]}  # the report is about "tuned"
    arms |= {"sampler": [*base, *banned], "tuned-and-sampler": [*after, *banned]}
    for arm, arguments in arms.items():
        yield Stage(["dataset", held_out, "-o", out / f"{arm}.held-out.jsonl", *arguments, *texts])
    outputs = [part for arm in arms for part in ("--outputs", f"{arm}={out / f'{arm}.held-out.jsonl'}")]
    named = base if model.model else [*base, "--model", ModelSpec().find_source(), *dtype]
    yield Stage(["eval", *outputs, "-o", out / "report", *banned, *named], out / "report" / "report.html")


def split_prompts(source: str, model: shared.ModelOptions) -> dict[str, list[Prompt]]:
    """Return two halves of the prompts, by file name: one to make the list and the pairs from, one to measure with.

    Of equal prompts only the first is kept, so that no prompt is in both halves.
    """
    prompts = [*read_prompts(source, tokenizer=model.spec.load_tokenizer())]
    for error in (prompt.error for prompt in prompts if prompt.error is not None):
        warn(error)
    usable = [*{prompt.text: prompt for prompt in reversed(prompts) if prompt.error is None}.values()][::-1]
    if len(usable) < MIN_PROMPTS:
        raise InputError(
            f"{source}: has {describe_count(len(usable), 'different prompt')}, and --auto needs {MIN_PROMPTS} or more: "
            "two to make the list and the pairs of, and two to measure with"
        )
    if len(usable) < 2 * MIN_SAMPLE:
        warn(
            f"{source}: has {describe_count(len(usable), 'prompt')}, half of them to measure with: intervals of the "
            f"report are rough below {MIN_SAMPLE} of these, so pass {2 * MIN_SAMPLE} prompts or more"
        )
    return {MADE_FROM: usable[::2], HELD_OUT: usable[1::2]}


def _open_folder(out: Path, arguments: list[str], halves: Mapping[str, list[Prompt]]) -> None:
    """Write the prompts and the arguments into the folder.

    Raises `InputError` if the folder has other prompts or arguments: commands that finished with them would be skipped.
    """
    texts = {name: "".join(json.dumps(_describe(prompt)) + "\n" for prompt in half) for name, half in halves.items()}
    path = out / SETTINGS
    if path.exists():
        if (before := read_json(path)["arguments"]) != arguments:
            raise InputError(f"{out}: was begun with {shlex.join(before)}: repeat these, or choose another folder")
        if any(read_text(out / name) != text for name, text in texts.items()):
            raise InputError(f"{out}: was begun with other prompts: choose another folder")
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: has other files: choose a new folder")
    with writing(out, advice="choose another folder"):
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            replace_text(out / name, text)
        replace_text(path, json.dumps({"arguments": arguments}, indent=1) + "\n")


def _describe(prompt: Prompt) -> dict[str, Any]:
    if prompt.messages is None:
        return {"id": prompt.key, "prompt": prompt.text}
    variables = {"chat_template_kwargs": prompt.variables} if prompt.variables else {}
    return {"id": prompt.key, "messages": prompt.messages, **variables}
