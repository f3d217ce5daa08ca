"""`antislop tune --auto`: the commands from prompts to a tuned and measured model, one after another."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from antislop.cli.options import BanOptions, DtypeChoice, ModelOptions
from antislop.cli.terminal import say, warn
from antislop.data import FOLDER
from antislop.errors import InputError
from antislop.files import read_json, replace_text
from antislop.hf.pretrained import load_tokenizer
from antislop.records.prompts import Prompt, read_prompts

PANEL = "From prompts, with --auto"
TINY = FOLDER / "tiny"
MADE_FROM, HELD_OUT, SETTINGS = "made-from.jsonl", "held-out.jsonl", "auto.json"


@dataclass(frozen=True)
class AutoOptions:
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            rich_help_panel=PANEL,
            help="Begin with prompts: make texts, a list of what they overuse, pairs, the model, a report.",
        ),
    ] = False
    prompts: Annotated[
        str | None,
        typer.Option(metavar="PROMPTS", rich_help_panel=PANEL, help="Prompts as `antislop dataset` reads them."),
    ] = None
    n: Annotated[int, typer.Option(min=1, rich_help_panel=PANEL, help="Responses per prompt.")] = 8
    max_new_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=PANEL, help="Maximum tokens per response.")] = (
        300
    )

    def check(self, pairs: Path | None, *, force: bool) -> None:
        """Raise `InputError` unless there are either pairs, or prompts with --auto."""
        if not self.auto:
            if used := list_options(self):
                raise InputError(f"{used[0]} has no effect without --auto: pass --auto, or leave it out")
            if pairs is None:
                raise InputError("no pairs to train on: pass PAIRS, or --auto --prompts PROMPTS")
        elif pairs is not None:
            raise InputError(f"--auto makes the pairs itself: leave out {pairs}, or leave out --auto")
        elif self.prompts is None:
            raise InputError("--auto needs prompts: pass --prompts PROMPTS")
        elif force:
            raise InputError("--force has no effect with --auto: delete the files that are to be made again")


class Stage(NamedTuple):
    """A command. made: a file whose presence shows that it has run; None: it resumes by itself."""

    arguments: Sequence[object]
    made: Path | None = None


def run_stages(
    options: AutoOptions, out: Path, *, model: ModelOptions, bans: BanOptions, tuning: Sequence[str], is_dpo: bool
) -> int:
    """Run the commands that aren't done yet, and return the first exit status that isn't 0. tuning: options of tune."""
    from antislop.cli.main import app

    _note_settings(out / SETTINGS, [*list_options(options), *list_options(model), *list_options(bans), *tuning])
    split_prompts(str(options.prompts), out, model)
    stages = [*list_stages(options, out, model=model, bans=bans, tuning=tuning, is_dpo=is_dpo)]
    for number, (arguments, made) in enumerate(stages, start=1):
        line = [str(argument) for argument in arguments]
        is_done = made is not None and made.exists()
        say(f"== {number} of {len(stages)}{' (done before)' if is_done else ''}: {shlex.join(['antislop', *line])}")
        if is_done:
            continue
        if status := app(line, standalone_mode=False):
            say("stopped: run the same command again to resume")
            return int(status)
    return 0


def list_stages(
    options: AutoOptions, out: Path, *, model: ModelOptions, bans: BanOptions, tuning: Sequence[str], is_dpo: bool
) -> Iterator[Stage]:
    """Yield the commands. A list on the command line replaces the one that is made of the model's texts."""
    base, texts = list_options(model), ["--n", options.n, "--max-new-tokens", options.max_new_tokens]
    made_from, held_out, tuned = out / MADE_FROM, out / HELD_OUT, out / "model"
    banned = list_options(bans)
    if bans == BanOptions(lenient=bans.lenient):
        yield Stage(["dataset", made_from, "-o", out / "plain.jsonl", "--arms", "plain", *texts, *base])
        yield Stage(["profile", out / "plain.jsonl", "-o", out / "profile.json"], out / "profile.json")
        yield Stage(["bans-from", out / "profile.json", "-o", out / "bans.txt"], out / "bans.txt")
        banned += ["--bans", str(out / "bans.txt")]
    pairs = ["--pairs", str(out / "pairs.jsonl"), *([] if is_dpo else ["--pairs-format", "tokens"])]
    yield Stage(["dataset", made_from, "-o", out / "banned.jsonl", *pairs, *banned, *texts, *base])
    yield Stage(["tune", out / "pairs.jsonl", "-o", tuned, *tuning, *banned, *base], tuned / "README.md")
    # The bundled model is computed in float32, and a folder as its checkpoint says.
    dtype = ["--dtype", "float32"] if model.model is None and model.dtype is DtypeChoice.AUTO else []
    after = [*list_options(replace(model, model=str(tuned), revision=None)), *dtype]
    arms = {"plain": [*base, "--arms", "plain"], "sampler": [*base, *banned]}
    arms |= {"tuned": [*after, "--arms", "plain"], "tuned-and-sampler": [*after, *banned]}
    for arm, arguments in arms.items():
        yield Stage(["dataset", held_out, "-o", out / f"{arm}.held-out.jsonl", *arguments, *texts])
    outputs = [part for arm in arms for part in ("--outputs", f"{arm}={out / f'{arm}.held-out.jsonl'}")]
    named = base if model.model else [*base, "--model", str(TINY), *dtype]
    yield Stage(["eval", *outputs, "-o", out / "report", *banned, *named], out / "report" / "report.html")


def _note_settings(path: Path, arguments: list[str]) -> None:
    """Write the arguments into the folder; refuse one that others began, since what is done would be left as it is."""
    if path.exists() and (before := read_json(path)["arguments"]) != arguments:
        raise InputError(f"{path.parent}: was begun with {shlex.join(before)}: repeat these, or choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps({"arguments": arguments}, indent=1) + "\n")


def split_prompts(source: str, out: Path, model: ModelOptions) -> None:
    """Write every second prompt into a file to make the list and the pairs from, and the others to measure with."""
    prompts = [*read_prompts(source, tokenizer=load_tokenizer(model.spec))]
    for error in (prompt.error for prompt in prompts if prompt.error is not None):
        warn(error)
    usable = [prompt for prompt in prompts if prompt.error is None]
    if len(usable) < 2:
        raise InputError(f"{source}: has {len(usable)} prompts: --auto needs 2 or more, half of them to measure with")
    for name, half in ((MADE_FROM, usable[::2]), (HELD_OUT, usable[1::2])):
        replace_text(out / name, "".join(json.dumps(_describe(prompt)) + "\n" for prompt in half))


def _describe(prompt: Prompt) -> dict[str, Any]:
    asked = {"prompt": prompt.text} if prompt.messages is None else {"messages": prompt.messages}
    return {"id": prompt.key, **asked}


def list_options(options: Any) -> list[str]:
    """Return the arguments of the command line that set a dataclass of options: those that differ from the defaults."""
    arguments = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            name = f"--{field.name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            texts = (str(value.value if isinstance(value, Enum) else value) for value in values)
            arguments += [name] if value is True else [part for text in texts for part in (name, text)]
    return arguments
