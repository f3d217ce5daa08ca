"""`antislop tune --auto`: the commands from prompts to a tuned and measured model, one after another."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from antislop.cli.evaluate import require_packages
from antislop.cli.measure import MIN_SAMPLE
from antislop.cli.options import BanOptions, ModelOptions, collect_bans, list_options
from antislop.cli.terminal import say, warn, writing
from antislop.core.bans import BanList
from antislop.core.hf import ModelSpec
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.disk import read_json, read_text, replace_text
from antislop.files.prompts import Prompt, read_prompts
from antislop.measure.words import load_frequencies

PANEL = "From prompts, with --auto"
MADE_FROM, HELD_OUT, SETTINGS, BANS = "made-from.jsonl", "held-out.jsonl", "auto.json", "bans.txt"
MIN_PROMPTS = 4
"""Two in each half: a phrase enters the list if it comes from two prompts, and an interval needs two."""
MIN_BANS = 3
"""With fewer tokens to reject, no share of one can be limited (`balance`), and it is avoided everywhere."""
TOKENS_PER_ROW = 120
"""Of the bundled model's texts: 88 rows came of 9,600 tokens, and 40 of 5,760."""
FAILED_RECORDS, INTERRUPTED = 1, 130
"""Exit statuses. After the first, of a dataset with failed records, the next command uses the records that exist."""


@dataclass(frozen=True)
class AutoOptions:
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            rich_help_panel=PANEL,
            help="Start from --prompts: generate texts, make a list of bans and pairs, train, and write a report.",
        ),
    ] = False
    prompts: Annotated[
        str | None,
        typer.Option(metavar="PROMPTS", rich_help_panel=PANEL, help="Prompts as antislop dataset reads them."),
    ] = None
    n: Annotated[int, typer.Option(min=1, rich_help_panel=PANEL, help="Responses per prompt.")] = 8
    max_new_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=PANEL, help="Maximum tokens kept per text.")] = (
        300
    )


class Stage(NamedTuple):
    """A command of antislop.

    made: the command is skipped if this file exists; None for a command that resumes by itself.
    """

    arguments: Sequence[object]
    made: Path | None = None


class TuningStage(NamedTuple):
    """The options of the training. batch_size: the rows that it needs."""

    arguments: Sequence[str]
    batch_size: int
    is_dpo: bool


def run_stages(options: AutoOptions, out: Path, *, model: ModelOptions, bans: BanOptions, tuning: TuningStage) -> int:
    """Run the commands that aren't done yet, and return the first exit status that isn't 0."""
    from antislop.cli.main import app

    require_packages()
    if _makes_list(bans):
        load_frequencies()  # which bans-from needs, after hours of texts
    else:
        collect_bans(bans)  # refuses a list that can't be read
    halves = split_prompts(str(options.prompts), model)
    _guess_rows(options, len(halves[MADE_FROM]), needed=tuning.batch_size)
    _open_folder(out, [*list_options(options), *list_options(model), *list_options(bans), *tuning.arguments], halves)
    stages = [*list_stages(options, out, model=model, bans=bans, tuning=tuning)]
    for number, (arguments, made) in enumerate(stages, start=1):
        line = [str(argument) for argument in arguments]
        is_done = made is not None and made.exists()
        say(f"== {number} of {len(stages)}{' (done before)' if is_done else ''}: {shlex.join(['antislop', *line])}")
        status = 0 if is_done else int(app(line, standalone_mode=False) or 0)
        if status == INTERRUPTED:
            say("stopped: run the same command again to resume")
        elif made is not None and made.name == BANS:
            _check_bans(made)
        if status > FAILED_RECORDS:
            return status
    return 0


def _makes_list(bans: BanOptions) -> bool:
    return bans == BanOptions(lenient=bans.lenient)


def list_stages(
    options: AutoOptions, out: Path, *, model: ModelOptions, bans: BanOptions, tuning: TuningStage
) -> Iterator[Stage]:
    """Yield the commands in order. Without options for bans, the first three make a list from the model's own texts."""
    base, texts = list_options(model), ["--n", options.n, "--max-new-tokens", options.max_new_tokens]
    made_from, held_out, tuned = out / MADE_FROM, out / HELD_OUT, out / "model"
    banned = list_options(bans)
    if _makes_list(bans):
        yield Stage(["dataset", made_from, "-o", out / "plain.jsonl", "--arms", "plain", *texts, *base])
        yield Stage(["profile", out / "plain.jsonl", "-o", out / "profile.json"], out / "profile.json")
        yield Stage(["bans-from", out / "profile.json", "-o", out / BANS], out / BANS)
        banned += ["--bans", str(out / BANS)]
    pairs = ["--pairs", str(out / "pairs.jsonl"), *([] if tuning.is_dpo else ["--pairs-format", "tokens"])]
    yield Stage(["dataset", made_from, "-o", out / "banned.jsonl", *pairs, *banned, *texts, *base])
    yield Stage(["tune", out / "pairs.jsonl", "-o", tuned, *tuning.arguments, *banned, *base], tuned / "README.md")
    # The bundled model is computed in float32, and a folder as its checkpoint says.
    dtype = ["--dtype", "float32"] if model.model is None and model.dtype == "auto" else []
    after = [*list_options(replace(model, model=str(tuned))), *dtype]
    arms = {"plain": [*base, "--arms", "plain"], "tuned": [*after, "--arms", "plain"]}  # the report is about the second
    arms |= {"sampler": [*base, *banned], "tuned-and-sampler": [*after, *banned]}
    for arm, arguments in arms.items():
        yield Stage(["dataset", held_out, "-o", out / f"{arm}.held-out.jsonl", *arguments, *texts])
    outputs = [part for arm in arms for part in ("--outputs", f"{arm}={out / f'{arm}.held-out.jsonl'}")]
    named = base if model.model else [*base, "--model", ModelSpec().find_source(), *dtype]
    yield Stage(["eval", *outputs, "-o", out / "report", *banned, *named], out / "report" / "report.html")


def split_prompts(source: str, model: ModelOptions) -> dict[str, list[Prompt]]:
    """Return halves of the prompts by the names of their files: one for the list and the pairs, one to measure with.

    A prompt that comes again is left out, so that none is in both halves.
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
            f"{source}: has {len(usable)} prompts, half of them to measure with: intervals of the report are rough "
            f"below {MIN_SAMPLE} of these, so pass {2 * MIN_SAMPLE} prompts or more"
        )
    return {MADE_FROM: usable[::2], HELD_OUT: usable[1::2]}


def _guess_rows(options: AutoOptions, prompts: int, *, needed: int) -> None:
    """Warn if texts to so many prompts are too short to begin enough banned phrases to train on."""
    tokens = prompts * options.n * options.max_new_tokens
    if tokens < needed * TOKENS_PER_ROW:
        warn(
            f"{describe_count(prompts, 'prompt')} to make pairs of, --n {options.n} and --max-new-tokens "
            f"{options.max_new_tokens} give {tokens:,} tokens at most, and so about "
            f"{describe_count(tokens // TOKENS_PER_ROW, 'row')} of the {needed:,} that one step of the training needs: "
            "raise them, or lower --batch-size"
        )


def _check_bans(path: Path) -> None:
    """Raise `InputError` unless the list that was made has enough bans to train against."""
    count = len(BanList.load(path)) if path.exists() else 0
    if count < MIN_BANS:
        raise InputError(
            f"{path}: the list has {describe_count(count, 'ban')}, and {MIN_BANS} or more are needed, or training "
            "teaches to avoid one token everywhere: begin in another folder with more prompts, a larger --n or "
            "--max-new-tokens, or a list of your own (--bans)"
        )


def _open_folder(out: Path, arguments: list[str], halves: Mapping[str, list[Prompt]]) -> None:
    """Write the prompts and the arguments into the folder.

    Raises `InputError` if the folder was begun with other ones: the commands that finished then would be skipped.
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
